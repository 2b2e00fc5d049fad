"""torch.compile(backend="tpu"): what a compiled function computes, in how many programs."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compile_checks import check, no_program, one_program, to_cpu
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import torch_tpu
from torch_tpu.stats import counters as the_counters


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def x():
    return torch.randn(4, 6)


def wanting(*size):
    return torch.randn(*size, requires_grad=True)


def test_inference(x):
    one_program(lambda x: torch.relu(x @ x.T) + 1, x)
    one_program(torch.no_grad()(lambda x: x.sin().cos()), x, fullgraph=True)
    one_program(torch.inference_mode()(lambda x: x @ x.T), x, mode="max-autotune")
    one_program(lambda x: (x.to(torch.float64), x.int(), x > 0), x)
    one_program(lambda x: F.conv2d(x, torch.ones(2, 3, 3, 3, device=x.device)).relu(), torch.randn(2, 3, 8, 8))
    one_program(lambda x: x.sort(), x)
    one_program(lambda x: torch.fft.fft(x).abs(), x)


def test_training_is_two_programs():
    first, second = check(lambda x, w: torch.tanh(x @ w).softmax(-1), wanting(4, 6), wanting(6, 6), gradients=True)
    assert first == (1, 1, 0) and second == (0, 1, 0)
    check(lambda x, t: F.cross_entropy(x, t), wanting(5, 7), torch.randint(0, 7, (5,)), gradients=True)
    check(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), wanting(2, 2, 8, 4), gradients=True)
    check(lambda i, w: F.embedding(i, w).sum(1), torch.randint(0, 9, (3, 5)), wanting(9, 4), gradients=True)


def test_backward_is_one_program(counters):
    w = wanting(6, 6).detach().to("tpu").requires_grad_()
    loss = torch.compile(lambda w: (w @ w).sin().sum(), backend="tpu")
    for made in (2, 0):
        w.grad = None
        counters.reset()
        result = loss(w)
        result.backward(torch.ones_like(result))
        assert counters.executions == 3  # with ones_like
        assert counters.compiles + counters.disk_hits + counters.memory_hits in (made, made + 1)
        assert w.grad.shape == w.shape and not counters.fallbacks


def test_graph_breaks(x):
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() * 2

    def branching(x):
        return x.exp() if (x.sin().sum() > 0) else x.cos()

    for function in (broken, branching):
        first, second = check(function, x)
        assert first == (2, 2, 0) and second == (0, 2, 0)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(broken, backend="tpu", fullgraph=True)(x.to("tpu"))


def test_operators_in_a_graph_break_are_not_traced_by_dynamo(x, counters):
    """An operator's miss path is Python, which runs while Dynamo watches the function around it."""

    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        z = torch.full((7, 3), 2.5, device="tpu").erfinv_().t()  # never called before: traced here
        torch._dynamo.graph_break()
        return y * 2, z.shape

    torch._dynamo.reset()
    torch.tpu._clear_cache()
    compiled = torch.compile(broken, backend="tpu")
    compiled(x.to("tpu"))
    frames = list(torch._dynamo.convert_frame.input_codes.seen)
    assert not any("torch_tpu" in str(name) for name in frames)
    assert not counters.fallbacks


def test_mutation(x):
    def in_place(x):
        x.add_(1)
        return x * 2

    def through_views(x):
        x[1].mul_(3)
        x.t()[2].zero_()
        return x.sum()

    one_program(in_place, x)
    one_program(through_views, x)


def test_written_arguments_are_donated(counters):
    big = torch.zeros(256, 256, device="tpu")
    step = torch.compile(lambda x: x.add_(1).sum(), backend="tpu")
    seen = []
    step = torch.compile(
        lambda x: x.add_(1).sum(), backend="tpu", options={"debug_callback": lambda p: seen.append(p.stablehlo)}
    )
    assert [step(big).item() for _ in range(3)] == [65536, 131072, 196608]
    assert len(seen) == 1 and "tf.aliasing_output" in seen[0]


def test_buffers(counters):
    device, host = (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).to(d) for d in ("tpu", "cpu"))
    host.load_state_dict(to_cpu(device.state_dict()))
    compiled = torch.compile(device, backend="tpu")
    for _ in range(3):
        x = torch.randn(8, 6)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), host(x))
    torch.testing.assert_close(to_cpu(device.state_dict()), to_cpu(host.state_dict()))
    assert not counters.fallbacks


def test_views_in_and_out(x):
    one_program(lambda v: v.sum(0) * 2, x.t())
    one_program(lambda x: ((y := x * 2), y.t(), y[0], y), x)
    no_program(lambda x: (x.t(), x[1:], x.view(-1)[3:], x), x)
    no_program(lambda x: x, x)


def test_rows_share_a_program(counters):
    data = torch.randn(5, 4, 6)
    device = data.to("tpu")
    compiled = torch.compile(lambda x: x.t()[1:] * 2 + x[0, 0], backend="tpu")
    for row, wanted in zip(device, data, strict=True):
        torch.testing.assert_close(compiled(row).cpu(), wanted.t()[1:] * 2 + wanted[0, 0])
    assert counters.compiles + counters.disk_hits + counters.memory_hits == 1

    def write(x):
        x.mul_(2)
        return x.sum()

    write = torch.compile(write, backend="tpu")
    counters.reset()
    for row in device:
        write(row)
    torch.testing.assert_close(device.cpu(), data * 2)
    assert counters.compiles + counters.disk_hits + counters.memory_hits == 1


def test_views_among_results_share_memory(counters):
    """Views of inputs and of results are views, not copies; a change of what backward needs is noticed through them."""
    weight = torch.randn(4, 4, device="tpu", requires_grad=True)

    def function(x):
        doubled = x * 2
        return doubled, doubled.t(), doubled[1:], x.view(-1)[3:]

    x = torch.arange(16.0, device="tpu").view(4, 4)
    doubled, turned, rest, flat = torch.compile(function, backend="tpu")(x)
    for view, base in ((turned, doubled), (rest, doubled), (flat, x)):
        assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert torch.equal(rest.cpu(), doubled.cpu()[1:]) and torch.equal(flat.cpu(), x.cpu().view(-1)[3:])

    def words(x):
        doubled = x * 2
        return doubled.view(torch.int16)[1:], doubled, doubled.view(torch.int32), x.view(torch.int32)[2:]

    for dynamic in (False, True):
        given = torch.randn(5, 4)
        found = torch.compile(words, backend="tpu", dynamic=dynamic)(given.to("tpu"))
        for one, other in zip(words(given), found, strict=True):
            assert torch.equal(other.cpu(), one)
        found[2].fill_(0)
        assert not found[1].cpu().any() and not found[0].cpu().any()

    loss = torch.compile(lambda x: (x @ weight.t()).sin().sum(), backend="tpu")(x.requires_grad_())
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parts_keep_the_order_of_their_dimensions():
    """A head of attention that one program makes and another one views; an index from the host runs in between."""
    where = torch.tensor([1, 0])

    def function(x):
        heads = (x * 2).view(2, 12, 3, 4, 16)[:, :, 0].transpose(1, 2)
        picked = torch.nonzero(heads[0, 0, 0] > -100).sum() + x.view(-1)[where.to(x.device)].sum()
        return heads.transpose(1, 2).view(2, 12, 64) + picked, heads

    x = torch.randn(2, 12, 192)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = torch.compile(function, backend="tpu", fullgraph=True)(x.to("tpu"))
    for one, other in zip(function(x), found, strict=True):
        torch.testing.assert_close(other.cpu(), one)
    order = sorted(range(4), key=found[1].stride().__getitem__)
    assert order == sorted(range(4), key=function(x)[1].stride().__getitem__)


@pytest.mark.parametrize("train", [True, False])
def test_results_have_the_strides_of_the_graph(train, counters):
    """To the graph a batch norm of a transposed tensor is transposed, so that a reshape behind it has become a view."""
    norm = nn.BatchNorm1d(4).train(train)
    x = torch.randn(2, 5, 4)

    def function(norm, x):
        y = norm(x.transpose(1, 2))
        return y.transpose(1, 2).reshape(10, 4) * 2, y

    wanted = function(norm, x)
    found = torch.compile(function, backend="tpu", fullgraph=True)(norm.to("tpu"), x.to("tpu"))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other.cpu(), one)
    assert not counters.calls_in_between


def test_aliased_inputs(x):
    def function(a, b):
        a.add_(1)
        return b * 2

    compiled = torch.compile(function, backend="tpu")
    host, device = x.clone(), x.to("tpu")
    wanted, given = function(host, host[0]), compiled(device, device[0])
    torch.testing.assert_close(given.cpu(), wanted)
    torch.testing.assert_close(device.cpu(), host)


def test_constants_and_numbers(x):
    one_program(lambda x: x + torch.arange(6.0).to(x.device), x)
    one_program(lambda x: x * torch.tensor(2.5), x)
    one_program(lambda x, n: x * n + n, x, 3)
    _, second = check(lambda x: x + torch.tensor([1.0, 2, 3, 4, 5, 6], device=x.device), x)
    assert second == (0, 1, 0)
    host = torch.compile(lambda x, y: (x + 1, y + 1), backend="tpu")  # what is on the CPU stays there
    on_device, on_host = host(x.to("tpu"), x)
    assert on_device.is_tpu and on_host.device.type == "cpu"
    torch.testing.assert_close(on_device.cpu(), on_host)


def test_floats_are_data(x, counters):
    compiled = torch.compile(lambda x, f: x * f + torch.add(x, x, alpha=f), backend="tpu")
    device = x.to("tpu")
    for f in (0.1, 0.2):
        compiled(device, f)
    counters.reset()
    for f in (0.3, 0.4, 0.5):
        torch.testing.assert_close(compiled(device, f).cpu(), x * f + torch.add(x, x, alpha=f))
    assert counters.compiles == counters.memory_hits == 0 and counters.executions == 3


def test_remainders_are_data(x):
    def function(x, n):
        return x * float(n % 3) + torch.add(x, x, alpha=(n * 0.5) % 2)

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for n in (2, 4, 5, 9):
        torch.testing.assert_close(compiled(x.to("tpu"), n).cpu(), function(x, n))


def test_sizes(counters):
    def function(x):
        return (x.sum(0) / x.shape[0]).reshape(2, -1)

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for size in (3, 5, 7, 5, 3):
        x = torch.randn(size, 4)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), function(x))
    assert counters.compiles + counters.disk_hits + counters.memory_hits == 2  # for sizes up to 4, and up to 8
    x = torch.randn(3, 4, device="tpu")
    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(lambda x: x * x.shape[0], backend="tpu")(x)
    assert not counters.fallbacks


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


def test_autograd():
    check(lambda x: Cube.apply(x) * 2, wanting(4, 6), gradients=True)
    check(
        lambda x, w: checkpoint(lambda x: torch.relu(x @ w).sin(), x, use_reentrant=False),
        wanting(4, 6),
        wanting(6, 6),
        gradients=True,
    )
    one_program(lambda x: torch.func.grad(lambda y: (y**3).sum())(x), torch.randn(4))
    one_program(lambda x: torch.func.grad(torch.func.grad(lambda y: y**4))(x), torch.tensor(2.0))
    one_program(lambda x: torch.vmap(lambda row: row @ row)(x), torch.randn(4, 6))


def test_autocast(x):
    def function(a):
        with torch.autocast(a.device.type, dtype=torch.bfloat16):
            return a @ a.T

    assert torch.compile(function, backend="tpu")(x.to("tpu")).dtype is torch.bfloat16
    no_program(lambda a: function(a).shape, x)


library = torch.library.Library("torch_tpu_test", "DEF")
library.define("composite(Tensor x) -> Tensor")
library.impl("composite", lambda x: x.sin() + 1, "CompositeImplicitAutograd")


@torch.library.custom_op("torch_tpu_test::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.multiply(x.detach().cpu().numpy(), 3)).to(x.device)


@opaque.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("torch_tpu_test::twice", mutates_args={"x"})
def twice(x: torch.Tensor) -> None:
    x.mul_(2)


def test_custom_operators(x):
    one_program(lambda x: torch.ops.torch_tpu_test.composite(x) * 2, x)
    first, second = check(lambda x: opaque(x.sin()) + 1, x)
    assert first == (2, 2, 1) and second == (0, 2, 1)

    def in_place(x):
        y = x.sin()
        twice(y)
        return y + 1

    assert check(in_place, x)[1].in_between == 1


def test_sizes_that_depend_on_data(x):
    _, second = check(lambda x: x[x > 0] * 2, x)
    assert second.made == 0
    check(lambda x: (x > 0).nonzero().sum(), x)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        _, second = check(lambda x: (x.sin() > 0).nonzero() * 2 + 1, x, fullgraph=True)
        assert second.made == 0 and second.in_between == 1
        one_program(lambda x: x * x.sum().item(), x, fullgraph=True)


def test_what_cannot_be_lowered_runs_in_between(x, monkeypatch, counters):
    """A lowering that fails at a call splits the graph around it; the model runs."""
    from torch_tpu.ops import registry

    def fail(*args, **kwargs):
        raise NotImplementedError("not today")

    rule = registry.LOWERINGS["aten::erf"]
    torch.erf(x.to("tpu"))  # its own program stays in the call cache
    monkeypatch.setitem(registry.LOWERINGS._items, "aten::erf", rule.__class__(rule.op, fail))
    compiled = torch.compile(lambda x: x.sin().erf().cos(), backend="tpu")
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), x.sin().erf().cos())
    assert counters.calls_in_between == 2 and not counters.fallbacks


def test_options(x):
    device = x.to("tpu")
    seen = []
    options = {"debug_callback": seen.append, "name": "mine", "num_dynamic_buckets": 2, "bucket_size": 64}
    result = torch.compile(lambda x: x * 2, backend="tpu", options=options)(device)
    assert result.is_tpu
    (program,) = seen
    assert program.kind == "inference" and program.name.startswith("mine")
    assert (
        "aten.mul" in program.graph
        and "stablehlo.multiply" in program.stablehlo
        and "HloModule" in program.optimized_hlo
    )
    for wrong, message in (
        ({"asynccompile": True}, "did you mean 'async_compile'"),
        ({"num_dynamic_buckets": 0}, "a positive int"),
        ({"bucket_size": 0}, "a positive int"),
        ({"name": "a b/c"}, "letters, digits"),
        ({"async_compile": 1}, "True or False"),
    ):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
            torch.compile(lambda x: x * 3, backend="tpu", options=wrong)(device)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no mode 'fast'"):
        torch.compile(lambda x: x * 4, backend="tpu", mode="fast")(device)


def test_explanations(x, counters):
    compiled = torch.compile(lambda x: x.sin() @ x.t() + 1, backend="tpu", dynamic=True)
    device = x.to("tpu")
    compiled(device)
    (step,) = torch_tpu.explain(compiled, device).steps
    assert step.served.kind == "compiled" and len(step.programs) == 1
    assert step.lowerings == ("aten::sin", "aten::t_copy", "aten::mm", "aten::add.Tensor")
    torch_tpu.reset_stats()
    compiled(device[:3])
    assert not torch_tpu.explain_recompiles()
    compiled(x.repeat(3, 1).to("tpu"))
    (made,) = torch_tpu.explain_recompiles()
    assert made.kind == "graph" and "size" in str(made)


def test_compiling_in_the_background(x, counters):
    device = x.to("tpu")
    made = []
    options = {"async_compile": True, "debug_callback": made.append}
    compiled = torch.compile(lambda x: (x.sin() @ x.t()).exp().sum(0), backend="tpu", options=options)
    for _ in range(600):
        torch.testing.assert_close(compiled(device).cpu(), (x.sin() @ x.t()).exp().sum(0))
        if made:
            break
        time.sleep(0.05)
    compiled(device)
    counters.reset()
    compiled(device)
    assert counters.executions == 1 and not counters.fallbacks


DEFAULT = """
import sys, torch
assert "torch._dynamo" not in sys.modules and "torch_tpu.compile" not in sys.modules
import torch_tpu
function = torch.compile(lambda x: x.sin() + 1)
x = torch.randn(4, device="tpu")
assert torch.allclose(function(x).cpu(), x.cpu().sin() + 1)
assert torch_tpu.stats()["executions"] == 2, "randn and the function"
assert "tpu" in torch._dynamo.list_backends() and torch.compiler.get_default_backend() == "inductor"
named = torch.compile(lambda x: x.cos(), backend="inductor", mode="reduce-overhead")
assert torch.allclose(named(x).cpu(), x.cpu().cos())
from torch._inductor import compile_fx
called = []
compile_fx.compile_fx_inner = lambda graph, *a, **k: called.append(graph) or graph
compile_fx._compile_fx_main = lambda graph, *a, **k: called.append(graph) or graph
function(torch.ones(4))
assert called, "CPU tensors get inductor"
"""


def test_it_is_the_default_for_what_touches_the_device():
    subprocess.run([sys.executable, "-c", DEFAULT], check=True)


def test_several_signatures_of_one_graph(counters):
    """Views and numbers are part of a call's signature, as for operators."""
    x = torch.randn(4, 4, device="tpu")
    compiled = torch.compile(lambda x: x * 2, backend="tpu", dynamic=True)
    for view in (x, x[:2], x[:, :2], x.t()):
        torch.testing.assert_close(compiled(view).cpu(), view.cpu() * 2)
    assert the_counters is counters and not counters.fallbacks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_grouped_products_compile_in_the_dtypes_that_the_cpu_takes(dtype):
    left, right = torch.randn(12, 16, dtype=dtype), torch.randn(3, 16, 24, dtype=dtype)
    ends = torch.tensor([4, 6, 12], dtype=torch.int32)
    left_tpu, right_tpu = (x.detach().to("tpu").requires_grad_() for x in (left, right))
    left.requires_grad_(), right.requires_grad_()
    expected = torch._grouped_mm(left, right, offs=ends)
    actual = torch.compile(lambda x, y, o: torch._grouped_mm(x, y, offs=o), backend="tpu", fullgraph=True)(
        left_tpu, right_tpu, ends.to("tpu")
    )
    expected.float().square().sum().backward()
    actual.float().square().sum().backward()
    torch.testing.assert_close(actual.cpu(), expected)
    torch.testing.assert_close(left_tpu.grad.cpu(), left.grad)
    torch.testing.assert_close(right_tpu.grad.cpu(), right.grad)


def test_operators_without_meta_kernels_are_compiled():
    x = torch.randn(4, 3)
    whole = torch.compile(lambda x: (*torch.geqrf(x), *torch.histogram(x, 4)), fullgraph=True)
    for found, expected in zip(whole(x.to("tpu")), (*torch.geqrf(x), *torch.histogram(x, 4)), strict=True):
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recurrent_cells(kind, bias):
    model, x = kind(3, 4, bias=bias), torch.randn(2, 3)
    wanted = tree_leaves(model(x))
    found = tree_leaves(torch.compile(model.to("tpu"), backend="tpu")(x.to("tpu")))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other.cpu(), one)


@pytest.mark.parametrize("view", [torch.conj, torch._neg_view, lambda x: x.conj().imag, lambda x: x[1:].conj()])
def test_conjugates_and_negatives_among_results_are_views(view):
    """Of an input, and of another result."""

    def function(x):
        y = x + 1
        return y, view(y), view(x)

    for device, options in (("cpu", {}), ("tpu", {"backend": "tpu"})):
        torch._dynamo.reset()
        x = torch.tensor([1 + 2j, 3 - 1j], device=device)
        y, of_result, of_input = torch.compile(function, **options)(x) if options else function(x)
        for base, seen in ((y, of_result), (x, of_input)):
            expected = view(base)
            assert (seen.is_conj(), seen.is_neg()) == (expected.is_conj(), expected.is_neg())
            base.mul_(2)
            assert torch.equal(seen.resolve_conj().resolve_neg().cpu(), expected.resolve_conj().resolve_neg().cpu())
            assert seen.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def test_a_tensor_of_the_host_is_copied_into_an_intermediate_one():
    def function(x):
        y = x * 2
        host = y.to("cpu", copy=True)
        y.copy_(host + 1)
        return y, host

    given = torch.arange(3.0)
    for found, wanted in zip(torch.compile(function, backend="tpu")(given.to("tpu")), function(given), strict=True):
        assert torch.equal(found.cpu(), wanted)
