"""Operators over lists: against the loop that they stand for, mixed shapes and dtypes, in place, scalars as data."""

from __future__ import annotations

import pytest
import torch
from op_checks import BF16, F32, F64, I64, check, random, values

import torch_tpu
from torch_tpu.stats import num_compiles

SHAPES = ((2, 3), (4,), ())


def over(name, *rest, **named):
    def run(*xs):
        return getattr(torch, f"_foreach_{name}")(list(xs), *rest, **named)

    return run


def in_place(name, *rest, **named):
    def run(*xs):
        xs = [x.clone() for x in xs]
        getattr(torch, f"_foreach_{name}_")(xs, *rest, **named)
        return xs

    return run


@pytest.mark.parametrize("name", ("abs", "exp", "neg", "sqrt", "sign", "reciprocal", "lgamma", "zero"))
def test_unary(name):
    if name != "zero":
        check(over(name), *[random(*shape, low=0.2, high=2) for shape in SHAPES], dtypes=(F32, BF16))
    check(in_place(name), *[random(*shape, low=0.2, high=2) for shape in SHAPES], grad=False)


@pytest.mark.parametrize("name", ("add", "sub", "mul", "div", "maximum", "clamp_min", "pow"))
def test_numbers(name):
    for rest in (2.5, [2.5, 1.0, 3.0]):
        inputs = [random(*shape, low=0.2, high=2) for shape in SHAPES]
        check(over(name, rest), *inputs, dtypes=(F32, BF16), grad=False)
        check(in_place(name, rest), *inputs, grad=False)


@pytest.mark.parametrize("name", ("add", "sub", "mul", "div", "minimum"))
def test_lists(name):
    def run(*xs):
        return getattr(torch, f"_foreach_{name}")(list(xs[:3]), list(xs[3:]))

    check(run, *SHAPES, *[random(*shape, low=0.5, high=2) for shape in SHAPES])


def test_fused_sums():
    def run(*xs):
        a, b, c = list(xs[:2]), list(xs[2:4]), list(xs[4:])
        return [
            torch._foreach_addcmul(a, b, c, 0.5),
            torch._foreach_addcdiv(a, b, c, [0.5, 2.0]),
            torch._foreach_lerp(a, b, 0.3),
            torch._foreach_lerp(a, b, c),
        ]

    check(run, *SHAPES[:2] * 3, dtypes=(F32, F64), grad=False)


def test_norms_copies_and_mixtures():
    check(over("norm", 2), *SHAPES)
    check(over("norm", 1), *SHAPES, grad=False)
    check(over("add", 1), (2,), values([1, 2], I64), random(3, dtype=BF16), grad=False)
    check(over("mul", 2.5), (2,), values([1, 2], I64), grad=False)
    check(over("max"), (2, 3), (4,), grad=False)

    def copied(x, y):
        z = [torch.zeros_like(x), torch.zeros(y.shape, dtype=BF16, device=y.device)]
        torch._foreach_copy_(z, [x, y])
        return z

    check(copied, (2, 3), (4,), grad=False)


def test_clipping():
    def run(*xs):
        parameters = [x.detach().clone().requires_grad_() for x in xs]
        for p in parameters:
            p.grad = p.detach() * 3
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        return [norm] + [p.grad for p in parameters]

    check(run, *SHAPES, grad=False)


def test_a_tensor_of_numbers():
    def run(x, y):
        return torch._foreach_addcmul([x, y], [x, y], [x, y], torch.tensor([0.5, 2.0]))

    check(run, (2,), (3,), grad=False)


def test_elements_that_share_memory_change_in_turns():
    def twice(x):
        x = x.clone()
        torch._foreach_mul_([x, x], 2)
        torch._foreach_mul_([x, x[0]], [2, 3])
        torch._foreach_add_([x[1], x[0]], [x[0], x[1]], alpha=2)
        return x

    check(twice, (2, 3), dtypes=(F32, I64), grad=False)


def test_the_elements_of_one_buffer():
    buffer = torch.ones(12, device="tpu")
    parts = list(buffer.view(4, 3).unbind())
    torch._foreach_add_(parts, torch.arange(4.0, device="tpu").unbind())
    assert buffer.cpu().tolist() == [float(1 + place // 3) for place in range(12)]


def test_changes_of_elements_are_noticed():
    def versions(device):
        x = torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="cast"):
            torch._foreach_mul_([torch.ones(2, dtype=torch.int64, device=device), x], 0.5)
        torch._foreach_mul_([x, x[1:]], 2.0)
        torch._foreach_copy_([x], [x + 1])
        return x._version

    assert versions("tpu") == versions("cpu")

    x = torch.ones(3, device="tpu", requires_grad=True)
    y = x.exp()
    torch._foreach_zero_([y.detach()])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("write", [False, True])
def test_numbers_that_are_all_the_same_are_one_operand(write):
    given = torch.rand(2, 3), torch.rand(4), torch.tensor(5)

    def run(numbers):
        xs = [x.clone() for x in given]
        ours = [x.to("tpu") for x in given]
        for tensors in (xs, ours):
            if write:
                torch._foreach_mul_(tensors, numbers)
            else:
                tensors[:] = torch._foreach_add(tensors, numbers)
        before = num_compiles()
        torch.testing.assert_close([x.cpu() for x in ours], xs)
        return before

    run([2, 2, 2])
    counts = [run([3, 3, 3]), run([1, 2, 3]), run([4, 4, 5]), run([-7, -7, -7])]
    assert counts[0] == counts[-1] - 1 and counts[1] == counts[-1], "one program for equal numbers, one for others"
    if not write:
        zeros = [torch.zeros(2, device="tpu") for _ in range(2)]
        torch._foreach_mul_(zeros, [-0.0, 0.0])
        assert [x.signbit().any().item() for x in zeros] == [True, False]


def test_the_reason_for_a_program_says_that_numbers_differ():
    torch_tpu.explain_recompiles()
    xs = [torch.rand(5, 7).to("tpu") for _ in range(2)]
    torch._foreach_addcdiv(xs, xs, xs, [0.5, 0.5])
    torch._foreach_addcdiv(xs, xs, xs, [0.5, 0.25])
    assert "all the same" in str(torch_tpu.explain_recompiles())
