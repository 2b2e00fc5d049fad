"""The call cache: what compiles again and what does not, donation, the counted fallback, PyTorch's errors."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest
import torch

import torch_tpu
from torch_tpu import errors, ops, settings
from torch_tpu.eager import fallback, transfer
from torch_tpu.ops import registry


def programs():
    stats = torch_tpu.stats()
    return stats["compiles"] + stats["disk_hits"]


@contextmanager
def nothing_compiles():
    before = programs()
    yield
    assert programs() == before


@pytest.fixture
def x():
    return torch.rand(4, 5, device="tpu")


def test_other_numbers_compile_nothing(x):
    calls = {
        "add": lambda n: x + n,
        "mul_": lambda n: x.mul_(n),
        "add alpha": lambda n: torch.add(x, x, alpha=n),
        "compare": lambda n: x > n,
        "clamp": lambda n: x.clamp(-n, n),
        "fill": lambda n: x.clone().fill_(n),
        "full": lambda n: torch.full((4, 5), n, device="tpu"),
        "where": lambda n: torch.where(x > 0, x, n),
        "lerp": lambda n: x.lerp(x, n),
        "masked_fill": lambda n: x.masked_fill(x > 0, n),
        "addcmul": lambda n: torch.addcmul(x, x, x, value=n),
        "foreach": lambda n: torch._foreach_mul([x, x], n),
        "normal": lambda n: x.clone().normal_(0, n),
        "leaky_relu": lambda n: torch.nn.functional.leaky_relu(x, n),
        "smooth_l1_loss": lambda n: torch.nn.functional.smooth_l1_loss(x, x + 1, beta=n),
        "huber_loss": lambda n: torch.nn.functional.huber_loss(x, x + 1, delta=n),
        "tril": lambda n: torch.tril(x, int(4 * n)),
        "triu_": lambda n: x.clone().triu_(-int(4 * n)),
        "uniform_": lambda n: x.clone().uniform_(-n, n),
        "exponential_": lambda n: x.clone().exponential_(n),
        "cauchy_": lambda n: x.clone().cauchy_(n, n),
        "log_normal_": lambda n: x.clone().log_normal_(n, n),
        "randint": lambda n: torch.randint(int(4 * n), (3,), device="tpu"),
        "randint from": lambda n: torch.randint(int(4 * n), int(20 * n) + 5, (3,), device="tpu"),
        "randint_like": lambda n: torch.randint_like(x, int(4 * n), dtype=torch.int64),
        "random_": lambda n: torch.empty(3, dtype=torch.int64, device="tpu").random_(int(4 * n)),
        "random_ from": lambda n: torch.empty(3, dtype=torch.int64, device="tpu").random_(-int(4 * n), 3),
    }
    for name, call in calls.items():
        call(1.5)
        before = programs()
        call(2.25)
        call(7.0)
        assert programs() == before, name


def test_numbers_of_another_kind_are_another_program(x):
    i = torch.arange(3, device="tpu")
    assert (i + 2).dtype is torch.int64 and (i + 2.5).dtype is torch.float32 and (i * True).dtype is torch.int64
    assert (x.square() == x**2).all() and (x**0.5).shape == x.shape


def test_a_call_has_its_own_numbers_and_not_those_of_the_last():
    values = torch.tensor([0.0, 1.0, -2.0])
    device = values.to("tpu")
    nan, inf = float("nan"), float("inf")
    for number in (0.0, -0.0, 0.0, 2, 2, 3, True, False, 1, 1.0, nan, nan, -nan, inf, 2**40, 2**40 + 1, 1 + 2j, 1 + 3j):
        found, wanted = (device * number).cpu(), values * number
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        if not wanted.is_complex() and not wanted.isnan().all():
            assert torch.equal(found.signbit(), wanted.signbit()), number
    for low, high in ((0.0, 1.0), (0.0, 0.5), (-1.0, 0.5), (-1.0, 1.0), (0.0, 1.0)):
        assert torch.equal(device.clamp(low, high).cpu(), values.clamp(low, high))
    rows = torch.arange(12.0).reshape(4, 3)
    ours = rows.to("tpu")
    for one, two in ((0, 1), (1, 0), (1, 3), (3, 3), (0, 1)):
        assert torch.equal((ours[one] * 2 + ours[two]).cpu(), rows[one] * 2 + rows[two])


@pytest.mark.parametrize("mode", list(torch.tpu.EagerMode))
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_a_number_is_read(dtype, mode, counters):
    host = torch.tensor([[1, 0, 3]]).to(dtype)
    three = host[0, 2].item()
    with torch.tpu.set_eager_mode(mode):
        device, single = host.to("tpu"), host[:, 2:].to("tpu")
        counters.reset()
        assert single.item() == three and single[0, 0].item() == three and single.squeeze().tolist() == three
        assert counters.device_to_host == 3
        assert [device[0, i].item() for i in range(3)] == host[0].tolist()
        assert bool(single) and not bool(device[0, 1]) and type(single.item()) is type(three)
        assert single.new_empty(0).set_(device.untyped_storage(), 2, ()).item() == three
        if dtype.is_complex:
            assert torch.tensor(2 + 3j).to("tpu").conj().item() == 2 - 3j
            turned = (single * 1j).squeeze()
            assert turned.conj().item() == -3j and turned.conj().imag.item() == -3
            assert turned.imag.item() == 3 and turned.real.item() == 0
        with pytest.raises(RuntimeError, match="3 elements"):
            device.item()


def test_what_is_copied_from_the_host_takes_dtype_and_shape_of_the_tensor():
    for source in (torch.tensor([1, 2, 3]), torch.tensor([[0.5], [1.5]]), torch.rand(3, 2).t(), torch.rand(2, 3)):
        host, device = torch.empty(2, 3), torch.empty(2, 3, device="tpu")
        assert torch.equal(device.copy_(source).cpu(), host.copy_(source))


def test_what_falls_back_is_read_as_it_is_seen():
    x = torch.tensor([1 + 2j, 3 - 4j])
    for see in (torch.conj, torch._neg_view, lambda t: t.conj().imag):
        assert torch.equal(transfer.to_cpu(see(x.to("tpu"))), see(x).resolve_conj().resolve_neg())


def test_seeds_and_rows_compile_nothing(x):
    torch.tpu.manual_seed(1)
    torch.rand(3, device="tpu"), x[1].sum(), x[2].add_(1)
    with nothing_compiles():
        for seed in range(3):
            torch.tpu.manual_seed(seed)
            torch.rand(3, device="tpu")
        x[0].sum(), x[3].add_(2)


def test_a_window_that_wanders_compiles_nothing():
    """At few places a window is a constant slice of its own; a loop or a random crop makes one program for all others."""
    host = torch.arange(2 * 60 * 3.0).reshape(2, 60, 3)
    x, wanted = host.to("tpu"), host.clone()

    def slide(x, places):
        sums = []
        for place in places:
            window = x[:, place : place + 3]
            window.mul_(0.5).add_(window.flip(1), alpha=0.25)
            sums.append(x[1, place + 1 : place + 4, 1:].sum())
        return torch.stack(sums).cpu()

    slide(x, range(20)), slide(wanted, range(20))
    with nothing_compiles():
        sums = slide(x, range(20, 40))
    torch.testing.assert_close(sums, slide(wanted, range(20, 40)))
    torch.testing.assert_close(x.cpu(), wanted)


def test_windows_at_few_places_are_constant_slices():
    x = torch.rand(4, 12, device="tpu")
    text = torch_tpu.explain(lambda: x[:, 4:8].exp()).text(["stablehlo"])
    assert "dynamic_slice" not in text and "stablehlo.slice" in text


def test_a_second_call_compiles_nothing(x):
    def step():
        y = (x @ x.t()).softmax(-1).sum(0, keepdim=True)
        y[0, 1:] = 2
        return y.sort()[0].nonzero().tolist()

    first = step()
    with nothing_compiles():
        assert step() == first


def test_programs_are_counted(counters, empty_cache):
    y = torch.ones(3, 7, device="tpu") * 3
    assert counters.compiles == counters.disk_misses > 0 and counters.disk_hits == 0
    executions = counters.executions
    assert (y * 2).sum().item() == 126 and counters.executions == executions + 2


def test_large_tensors_are_written_in_place():
    """A donated operand costs no second buffer: the peak stays where it was."""
    big = torch.zeros(1 << 20, device="tpu")
    big.add_(1)
    big[5:10].mul_(2)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    peak = torch.tpu.max_memory_allocated()
    for _ in range(3):
        big.add_(1)
        big[5:10].mul_(2)
    assert torch.tpu.max_memory_allocated() - peak < big.nbytes // 2
    held = big.clone()
    big.add_(1)
    assert not torch.equal(held, big)


def test_what_others_hold_is_not_overwritten():
    big = torch.zeros(1 << 18, device="tpu")
    alias, host = big.view(512, 512), big.cpu()
    big.add_(1)
    assert alias.sum().item() == 1 << 18 and host.sum().item() == 0
    saved = torch.rand(1 << 18, device="tpu", requires_grad=True)
    y = saved.exp()
    kept = y.detach().clone()
    y.sum().backward()
    assert torch.equal(saved.grad, kept)


def unserved(x):
    """An operator that no program serves."""
    return torch._dirichlet_grad(x, x + 1, x + 2)


UNSERVED = "aten::_dirichlet_grad"


def test_a_fallback_is_counted_and_warned_about_once(counters):
    x = torch.tensor([0.25, 0.75], device="tpu")
    with settings.override(fallback="warn"), pytest.warns(UserWarning, match=f"{UNSERVED} falls back to the CPU"):
        y = unserved(x)
    assert y.is_tpu and torch.equal(y.cpu(), unserved(x.cpu()))
    with settings.override(fallback="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        unserved(x)
    assert torch_tpu.stats()["fallbacks"] == {UNSERVED: 2} and UNSERVED in torch_tpu.fallback_reasons()


def test_a_fallback_can_be_an_error(counters):
    x = torch.tensor([0.25, 0.75], device="tpu")
    with settings.override(fallback="error"), pytest.raises(errors.FallbackError, match="would run on the CPU instead"):
        unserved(x)
    with settings.override(fallback="count"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(unserved(x).cpu(), unserved(x.cpu()))


@pytest.fixture
def library():
    """Operators as another library brings them: with kernels for the CPU."""
    with torch.library._scoped_library("foreign", "FRAGMENT") as lib:
        kernels = {
            "split(Tensor x, Tensor? y=None, float scale=2.0) -> (Tensor, Tensor)": lambda x, y=None, scale=2.0: (
                x * scale,
                x if y is None else y + 1,
            ),
            "join(Tensor[] xs, Device device) -> Tensor": lambda xs, device: torch.cat(xs).to(device),
            "count(Tensor x) -> int": lambda x: x.numel(),
            "bump_(Tensor(a!) x) -> Tensor(a!)": lambda x: x.add_(1),
            "row(Tensor(a) x) -> Tensor(a)": lambda x: x[0],
            "nowhere(Tensor x) -> Tensor": None,
        }
        for schema, kernel in kernels.items():
            name = lib.define(schema)
            if kernel is not None:
                lib.impl(name.partition("(")[0], kernel, "CPU")
        yield lib


def test_operators_of_other_libraries_run_on_the_cpu_and_count(counters, library):
    x, foreign = torch.arange(3.0, device="tpu"), torch.ops.foreign
    with pytest.warns(UserWarning, match="foreign::split falls back to the CPU: foreign has no kernel"):
        twice, more = foreign.split(x, x[1:])
    assert twice.is_tpu and (twice.tolist(), more.tolist()) == ([0, 2, 4], [2, 3])
    joined = foreign.join([x, twice], device="tpu")
    assert joined.is_tpu and joined.tolist() == [0, 1, 2, 0, 2, 4] and foreign.count(x[1:]) == 2
    assert foreign.bump_(x[:2]).is_tpu and x.tolist() == [1, 2, 2]
    names = ("split", "join", "count", "bump_")
    assert torch_tpu.stats()["fallbacks"] == dict.fromkeys([f"foreign::{name}" for name in names], 1)
    with settings.override(fallback="error"), pytest.raises(errors.FallbackError, match="foreign::count would run"):
        foreign.count(x)


def test_operators_of_other_libraries_without_a_kernel_are_refused(counters, library):
    x, foreign = torch.rand(3, 2, device="tpu"), torch.ops.foreign
    with pytest.raises(errors.UnsupportedOpError, match=r"none for the CPU[^!]*register_kernel"):
        foreign.nowhere(x)
    with pytest.raises(NotImplementedError, match="shares memory with an argument"):
        foreign.row(x)
    torch.library.register_kernel("foreign::nowhere", "tpu", torch.exp, lib=library)
    assert torch.equal(foreign.nowhere(x), x.exp())
    assert not counters.fallbacks


def test_custom_operators_for_the_cpu_have_gradients_and_compile(counters):
    @torch.library.custom_op("foreign_custom::cube", mutates_args=(), device_types="cpu")
    def cube(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() ** 3)

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    for call in (lambda x: cube(x * 2).sum(), torch.compile(lambda x: cube(x * 2).sum())):
        x = torch.tensor([1.0, 2.0], device="tpu", requires_grad=True)
        loss = call(x)
        loss.backward()
        assert loss.item() == 72 and x.grad.tolist() == [24, 96]
    assert counters.fallbacks == {"foreign_custom::cube": 2}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    (
        (lambda x: x + torch.ones(3, device="tpu"), RuntimeError, "must match the size of tensor b"),
        (lambda x: x @ x, RuntimeError, "shapes cannot be multiplied"),
        (lambda x: x.sum(5), IndexError, "Dimension out of range"),
        (lambda x: x[7], IndexError, "out of bounds"),
        (lambda x: x.add("a"), TypeError, "must be|argument"),
        (lambda x: x + torch.ones(5), RuntimeError, "same device"),
        (lambda x: x.view(3, 3), RuntimeError, "invalid for input of size"),
        (lambda x: torch.linalg.cholesky(-torch.eye(2, device="tpu")), torch.linalg.LinAlgError, "positive-definite"),
        (lambda x: x.t().view(-1), RuntimeError, "view size is not compatible"),
        (lambda x: bool(x), RuntimeError, "ambiguous"),
        (lambda x: x.item(), RuntimeError, "cannot be converted to Scalar"),
        (lambda x: torch.cat([x, x[0]]), RuntimeError, "same number of dimensions"),
        (lambda x: x.numpy(), TypeError, "can't convert"),
    ),
)
def test_errors_are_those_of_pytorch(x, call, error, text):
    for _ in range(2):
        with settings.override(fallback="count"), pytest.raises(error, match=text):
            call(x)
    assert (x + 1).shape == x.shape


def test_every_lowering_is_reached():
    """A lowering of an operator that PyTorch defines by others must be registered over that definition."""
    ops.load()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    unreached = [
        name for name in registry.LOWERINGS if has(name, "CompositeImplicitAutograd") and not has(name, "PrivateUse1")
    ]
    assert not unreached


REFUSED = {
    "floats have no bits": (
        NotImplementedError,
        lambda d: torch.bitwise_and(torch.ones(2, device=d), torch.ones(2, device=d)),
    ),
    "too few to put": (
        IndexError,
        lambda d: torch.ones(2, device=d).put_(torch.tensor([0, 1], device=d), torch.ones((), device=d)),
    ),
    "a list minus a bool": (RuntimeError, lambda d: torch._foreach_sub_([torch.ones(2, device=d)], True)),
    "a list minus bools": (
        RuntimeError,
        lambda d: torch._foreach_sub_([torch.ones(2, device=d)], [torch.ones(2, device=d) > 0]),
    ),
    "joined without dimensions": (
        RuntimeError,
        lambda d: torch.cat([torch.ones((), device=d)], out=torch.empty(2, device=d)),
    ),
    "joined as integers": (
        TypeError,
        lambda d: torch.cat([torch.ones(2, device=d)], out=torch.empty(2, dtype=torch.int8, device=d)),
    ),
    "the largest of none": (
        IndexError,
        lambda d: torch.amax(torch.ones(0, 2, device=d), 0, out=torch.empty(2, device=d)),
    ),
}


@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_so_where_it_is_called(what, mode):
    """In fused mode as well, and with PyTorch's error."""
    kind, call = REFUSED[what]
    with torch.tpu.set_eager_mode(mode):
        for device in ("cpu", "tpu"):
            with pytest.raises(kind):
                call(device)


def test_an_error_says_for_which_operator_and_operands(x):
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        x @ x
    assert caught.value.__notes__ == ["raised by aten::mm\n  inputs: Tensor[4, 5] float32, Tensor[4, 5] float32"]


@pytest.mark.parametrize("index", [torch.tensor([1, 2]), torch.tensor([[0]])])
def test_a_cpu_tensor_takes_no_indices_from_the_device(index):
    host = torch.arange(5)
    for call in (lambda: host[index.tpu()], lambda: host.__setitem__(index.tpu(), 1)):
        with pytest.raises(RuntimeError, match=r"either on cpu or on the same device.*aten::index"):
            call()
    assert torch.equal(torch.arange(5, device="tpu")[index], torch.arange(5)[index].tpu())


def test_out_is_resized_with_a_warning_unless_it_is_read(x):
    out = torch.empty(2, device="tpu")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        assert torch.add(x, 1, out=out) is out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.add(x, 1, out=torch.empty(0, device="tpu"))
    row = x[0].clone()
    for read in (row, row.cpu()):
        with pytest.raises(RuntimeError, match=r"output with shape \[5\] doesn't match the broadcast shape \[4, 5\]"):
            torch.add(read, x if read is row else x.cpu(), out=read)


@pytest.mark.parametrize(("reason", "falls_back"), [("RESOURCE_EXHAUSTED: out of HBM", False), ("refused", True)])
def test_what_does_not_fit_is_no_fallback(x, counters, monkeypatch, reason, falls_back):
    """Nor does what the compiler refuses run on the CPU where fallbacks are errors."""
    ran = []

    def refuse(*args, **kwargs):
        raise errors.compile_failed("aten_sinh", reason)

    monkeypatch.setattr(torch_tpu.runtime.client.Client, "compile", refuse)
    monkeypatch.setattr(fallback, "_call", lambda op, args: ran.append(op) or op(*args))
    y = torch.empty(3, 7, 11, device="tpu")
    if falls_back:
        with settings.override(fallback="count"):
            y.sinh()
        assert len(ran) == 1
        kind = errors.FallbackError
    else:
        kind = errors.CompileError
    with settings.override(fallback="error"), pytest.raises(kind, match=r"sinh"):
        torch.empty(3, 7, 12, device="tpu").sinh()
    assert len(ran) == falls_back
