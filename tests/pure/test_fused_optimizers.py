"""The fused optimizers and gradient scaling, against torch.optim and PyTorch's own kernels over several steps.

float32 and float64 are held against torch.optim's plain single-tensor code; bfloat16 against its fused CPU kernels,
which like ours round once a step.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from torch_tpu import hlo
from torch_tpu.ops import optimizer, registry  # noqa: F401 - registers their lowerings
from torch_tpu.runtime.client import cpu_client

STEPS = 5
SHAPES = ((3, 4), (7,), ())
CLOSE = {
    torch.float32: {"rtol": 1.3e-6, "atol": 1e-7},
    torch.float64: {"rtol": 1e-6, "atol": 1e-8},  # step and rate are float32 where the state is
    torch.bfloat16: {"rtol": 8e-3, "atol": 1e-5},
}


@pytest.fixture(scope="module")
def client():
    return cpu_client()


@pytest.fixture
def run(client):
    """run("_fused_sgd", [list of tensors, ...], lr=0.1, ...) -> list of CPU tensors."""

    def call(op, positional, **named):
        rule = registry.LOWERINGS[registry.overload_name(registry.resolve(op))]
        operands = []

        def value(item, name=""):
            if isinstance(item, (list, tuple)):
                return [value(part) for part in item]
            if isinstance(item, torch.Tensor):
                operands.append(item.detach().contiguous())
                return function.argument(tuple(item.shape), item.dtype)
            if name in rule.data:
                wide = any(operand.dtype is torch.float64 for operand in operands)
                operands.append(torch.tensor(item, dtype=torch.float64 if wide else torch.float32))
                return function.argument((), operands[-1].dtype, weak=True)
            return item

        with hlo.Function() as function:
            arguments = [value(item) for item in positional]
            attributes = {name: value(item, name) for name, item in named.items()}
            results = registry.apply(rule, registry.Context(rule.op), arguments, attributes)
            text = function.module(results)
        program = client.compile(text, [(result.shape, result.dtype) for result in results])
        arrays = program.run([client.put(operand) for operand in operands])
        return [client.get(array, result.dtype).clone() for array, result in zip(arrays, results, strict=True)]

    return call


def _parameters(dtype):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def _gradients(dtype):
    generator = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        yield [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def _reference(make, dtype):
    """Parameters after STEPS steps of torch.optim, and the optimizer."""
    parameters = [torch.nn.Parameter(p) for p in _parameters(dtype)]
    how = {"fused": True} if dtype is torch.bfloat16 else {"foreach": False, "fused": False}
    reference = make(parameters, **how)
    for grads in _gradients(dtype):
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        reference.step()
    return parameters, reference


def _split(results, lengths):
    results = iter(results)
    return [list(itertools.islice(results, length)) for length in lengths]


def _compare(mine, theirs, dtype):
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b.detach(), **CLOSE[dtype])


DTYPES = tuple(CLOSE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_adam(run, kind, weight_decay, maximize, amsgrad, tensor_lr, dtype):
    options = {"weight_decay": weight_decay, "maximize": maximize, "amsgrad": amsgrad}
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    wanted, reference = _reference(lambda ps, **how: make(ps, lr=1e-2, betas=(0.9, 0.999), **options, **how), dtype)
    params = _parameters(dtype)
    means, squares = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    largest = [torch.zeros_like(p) for p in params] if amsgrad else []
    count = len(params)
    for step, grads in enumerate(_gradients(dtype), 1):
        results = run(
            f"_fused_{kind}.tensor_lr" if tensor_lr else f"_fused_{kind}",
            [params, grads, means, squares, largest, [torch.tensor(float(step))] * count],
            lr=torch.tensor(1e-2) if tensor_lr else 1e-2,
            beta1=0.9, beta2=0.999, eps=1e-8, **options,
        )  # fmt: skip
        params, stored, means, squares, largest = _split(results, [count] * 4 + [len(largest)])
        _compare(stored, grads, dtype)
    _compare(params, wanted, dtype)
    state = [reference.state[p] for p in wanted]
    _compare(means, [s["exp_avg"] for s in state], dtype)
    _compare(squares, [s["exp_avg_sq"] for s in state], dtype)
    if amsgrad:
        _compare(largest, [s["max_exp_avg_sq"] for s in state], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1, "maximize": True},
        {"momentum": 0.9, "dampening": 0.2},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_sgd(run, options, tensor_lr, dtype):
    options = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False, **options}
    wanted, reference = _reference(lambda ps, **how: torch.optim.SGD(ps, lr=1e-2, **options, **how), dtype)
    params = _parameters(dtype)
    buffers = [torch.full_like(p, float("nan")) for p in params] if options["momentum"] else []
    for step, grads in enumerate(_gradients(dtype)):
        results = run(
            "_fused_sgd.tensor_lr" if tensor_lr else "_fused_sgd",
            [params, grads, buffers],
            lr=torch.tensor(1e-2) if tensor_lr else 1e-2,
            is_first_step=step == 0, **options,
        )  # fmt: skip
        params, _, buffers = _split(results, [len(params), len(params), len(buffers)])
    _compare(params, wanted, dtype)
    if buffers:
        _compare(buffers, [reference.state[p]["momentum_buffer"] for p in wanted], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("lr_decay", [0.0, 0.1])
def test_adagrad(run, lr_decay, maximize, tensor_lr, dtype):
    options = {"lr_decay": lr_decay, "weight_decay": 0.1, "maximize": maximize}
    wanted, reference = _reference(lambda ps, **how: torch.optim.Adagrad(ps, lr=1e-2, **options, **how), dtype)
    params = _parameters(dtype)
    sums, count = [torch.zeros_like(p) for p in params], len(params)
    for step, grads in enumerate(_gradients(dtype), 1):
        steps = [torch.tensor(float(step))] * count
        results = run(
            "_fused_adagrad.tensor_lr" if tensor_lr else "_fused_adagrad",
            [params, grads, sums, steps],
            lr=torch.tensor(1e-2) if tensor_lr else 1e-2,
            eps=1e-10, **options,
        )  # fmt: skip
        params, _, sums, *_ = _split(results, [count] * (3 if tensor_lr else 4))
    _compare(params, wanted, dtype)
    _compare(sums, [reference.state[p]["sum"] for p in wanted], dtype)


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_scaled_gradients_are_unscaled_and_infinite_ones_skip_the_step(run, found):
    params = _parameters(torch.float32)
    grads = next(_gradients(torch.float32))
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "nesterov": False,
               "maximize": False, "is_first_step": False}  # fmt: skip
    buffers = [torch.ones_like(p) for p in params]
    scaled = {"grad_scale": torch.tensor([4.0]), "found_inf": torch.tensor([found])}
    results = run("_fused_sgd", [params, [g * 4 for g in grads], buffers], **options, **scaled)
    new, stored, momenta = _split(results, [len(params)] * 3)
    if found:
        _compare(new, params, torch.float32)
        _compare(momenta, buffers, torch.float32)
        return
    plain = _split(run("_fused_sgd", [params, grads, buffers], **options), [len(params)] * 3)
    for mine, theirs in zip((new, stored, momenta), plain, strict=True):
        _compare(mine, theirs, torch.float32)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
@pytest.mark.parametrize("inverse", [0.25, 1.0])
def test_unscale(run, inverse, bad):
    grads = next(_gradients(torch.float32))
    if bad is not None:
        grads[1][2] = bad
    found, scale = torch.zeros(1), torch.tensor(inverse)
    *mine, flag = run("_amp_foreach_non_finite_check_and_unscale", [grads, found, scale])
    theirs, wanted = torch.ops.aten._amp_foreach_non_finite_check_and_unscale(grads, found, scale)
    assert flag.equal(wanted) and flag.item() == (bad is not None)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 2])
@pytest.mark.parametrize("scale", [8.0, 3e38])
def test_update_scale(run, scale, tracker, found):
    given = [torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found)]
    mine = run("_amp_update_scale", [*given, 2.0, 0.5, 3])
    theirs = torch.ops.aten._amp_update_scale(*given, 2.0, 0.5, 3)
    for a, b in zip(mine, theirs, strict=True):
        assert a.equal(b)
