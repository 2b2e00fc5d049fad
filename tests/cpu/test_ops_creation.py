"""Tensors from nothing: fills, ranges, windows, triangles; dtypes by default and as asked."""

from __future__ import annotations

import pytest
import torch
from op_checks import (
    BF16,
    BOOL,
    C64,
    F32,
    F64,
    I32,
    I64,
    U8,
    channels_last,
    check,
    check_error,
    expanded,
    same,
    transposed,
)


def made(function):
    """The function of a device gives the same tensor on both."""
    one, other = function("tpu"), function("cpu")
    same(one, other)
    assert one.stride() == other.stride() and one.device.type == "tpu"


@pytest.mark.parametrize("dtype", (None, F32, BF16, I64, U8, BOOL, C64))
def test_fills(dtype):
    made(lambda d: torch.zeros(2, 3, dtype=dtype, device=d))
    made(lambda d: torch.ones(2, 0, dtype=dtype, device=d))
    made(lambda d: torch.full((2, 3), 1, dtype=dtype, device=d))


def test_fills_infer():
    made(lambda d: torch.full((2,), 2.5, device=d))
    made(lambda d: torch.full((2,), True, device=d))
    made(lambda d: torch.full((), 1j, device=d))
    made(lambda d: torch.tensor([[1, 2], [3, 4]], device=d))
    made(lambda d: torch.tensor([], device=d))
    made(lambda d: torch.tensor(2.5, device=d))
    made(lambda d: torch.scalar_tensor(3, device=d))
    made(lambda d: torch.eye(3, 4, dtype=I64, device=d))
    made(lambda d: torch.eye(2, device=d))


def test_ranges():
    made(lambda d: torch.arange(5, device=d))
    made(lambda d: torch.arange(1, 10, 3, device=d))
    made(lambda d: torch.arange(10, 1, -3, device=d))
    made(lambda d: torch.arange(0, 1, 0.1, device=d))
    made(lambda d: torch.arange(1.5, 1.5, device=d))
    made(lambda d: torch.arange(5, dtype=BF16, device=d))
    made(lambda d: torch.arange(2**40, 2**40 + 3, device=d))
    made(lambda d: torch.linspace(-1, 1, 7, device=d))
    made(lambda d: torch.linspace(0, 10, 5, dtype=I64, device=d))
    made(lambda d: torch.linspace(0, 1, 1, device=d))
    made(lambda d: torch.linspace(0, 1, 0, device=d))
    made(lambda d: torch.logspace(0, 2, 5, device=d))
    made(lambda d: torch.logspace(0, 4, 5, base=2.0, dtype=F64, device=d))
    made(lambda d: torch.linspace(torch.tensor(0.0, device=d), 1, 3, device=d))
    with pytest.raises(RuntimeError, match="step must be nonzero"):
        torch.arange(0, 5, 0, device="tpu")
    with pytest.raises(RuntimeError, match="inconsistent with step sign"):
        torch.arange(0, 5, -1, device="tpu")


def test_windows_and_triangles():
    for window in (torch.hann_window, torch.hamming_window, torch.blackman_window, torch.bartlett_window):
        made(lambda d, window=window: window(7, device=d))
        made(lambda d, window=window: window(6, periodic=False, device=d))
    made(lambda d: torch.kaiser_window(6, True, 5.0, device=d))
    made(lambda d: torch.hann_window(1, device=d))
    made(lambda d: torch.tril_indices(3, 4, 1, device=d))
    made(lambda d: torch.triu_indices(3, 4, -1, dtype=I32, device=d))
    made(lambda d: torch.vander(torch.arange(4, device=d)))


def test_like():
    for layout in (transposed(3, 4), expanded(3, 4), (2, 0)):
        check("zeros_like", layout, dtypes=(F32, I64), strides=True)
        check("ones_like", layout, dtype=BF16, strides=True)
        check("full_like", layout, 2.5, strides=True)
    check("zeros_like", channels_last(2, 3, 4, 5), strides=True)
    check(lambda x: x.new_full((2, 2), 7), (1,), dtypes=(F32, I64, BF16))
    check(lambda x: x.new_zeros(3, dtype=I64), (1,))
    check(lambda x: x.new_tensor([1, 2]), (1,), dtypes=(F32,))
    check(lambda x: torch.empty_like(x).fill_(3), transposed(2, 3), strides=True, grad=False)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", (F32, BF16, I64, torch.uint8, torch.bool, torch.complex64))
def test_memory_that_nobody_has_written(dtype, deterministic, counters):
    """With deterministic algorithms it holds NaN, or the largest number, as on the CPU."""

    def made(device):
        x = torch.ones(2, 3, dtype=dtype, device=device).t()
        yield torch.empty(2, 3, dtype=dtype, device=device)
        yield torch.empty_like(x)
        yield x.new_empty(4)
        yield x.new_empty_strided((2, 2), (1, 2))
        yield torch.empty_permuted((2, 3), (1, 0), dtype=dtype, device=device)
        yield torch.ones(2, dtype=dtype, device=device).resize_(4)

    for found, wanted in zip(made("tpu"), made("cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == wanted.stride()
    assert not counters.fallbacks


def test_what_gpus_do_not_compute_the_same_every_time(deterministic, counters):
    x = torch.tensor([[3.0, 1.0, 2.0]], device="tpu")
    assert x.median(1).values.item() == 2 and x.nanmedian(1).indices.item() == 2 and x.mode(1).values.item() == 1
    assert x.histc(3).tolist() == torch.histc(x, 3, out=torch.empty(0, device="tpu")).tolist() == [1, 1, 1]
    assert not counters.fallbacks


def test_out():
    for device in ("cpu", "tpu"):
        out = torch.empty(0, device=device)
        assert torch.arange(3, out=out).tolist() == [0, 1, 2] and out.dtype is F32
        assert torch.linspace(0, 1, 3, out=torch.zeros(3, 2, device=device)[:, 0]).tolist() == [0, 0.5, 1]
        assert torch.eye(2, out=torch.zeros(5, device=device)).tolist() == [[1, 0], [0, 1]]


def test_errors():
    check_error(lambda x: torch.full((-1,), 2, device=x.device), (1,), match="negative dimension")
    check_error(lambda x: torch.linspace(0, 1, -1, device=x.device), (1,), match="non-negative")


FILLS = {
    "full": lambda x, number: torch.full((2,), number, dtype=x.dtype, device=x.device),
    "full_like": lambda x, number: torch.full_like(x, number),
    "new_full": lambda x, number: x.new_full((2,), number),
    "fill_": lambda x, number: x.clone().fill_(number),
    "item": lambda x, number: x.clone().__setitem__(0, number),
    "masked_fill": lambda x, number: x.masked_fill(x == 0, number),
    "index_fill": lambda x, number: x.index_fill(0, torch.tensor([0], device=x.device), number),
    "scatter": lambda x, number: x.scatter(0, torch.tensor([0], device=x.device), number),
    "pad": lambda x, number: torch.nn.functional.pad(x, (1, 1), value=number),
}


TOO_LARGE = (
    (torch.int8, 300),
    (torch.uint8, -2.0),
    (torch.int32, 1e10),
    (torch.int64, float("inf")),
    (torch.float32, 1e40),
    (torch.float16, 70000),
    (torch.bfloat16, -1e39),
    (torch.complex64, 1e40),
)


@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
@pytest.mark.parametrize("name", FILLS)
def test_a_number_that_does_not_fit_is_refused(name, mode):
    """Where it is given, in fused mode too."""
    for dtype, number in TOO_LARGE:
        x = torch.zeros(3, dtype=dtype)
        if name == "item" and dtype in (torch.float16, torch.bfloat16):
            continue  # one small element: see the next test
        if name in ("index_fill", "scatter"):
            assert FILLS[name](x.to("tpu"), -2).tolist() == FILLS[name](x, -2).tolist(), "equal, and it fits"
        FILLS[name](x.to("tpu"), 100)
        with torch.tpu.set_eager_mode(mode):
            for device in ("cpu", "tpu"):
                with pytest.raises(RuntimeError, match="without overflow"):
                    FILLS[name](x.to(device), number)


def test_a_number_that_does_not_fit_the_default_dtype_is_refused():
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="without overflow"):
            torch.full((2,), 1e40, device=device)
        assert torch.full((2,), 2**40, device=device).tolist() == [2**40] * 2


@pytest.mark.parametrize("number", [70000.0, float("inf"), -1e39])
def test_one_small_element_becomes_infinite(number):
    for dtype in (torch.float16, torch.float8_e5m2):
        for fill in (
            lambda d, t=dtype: torch.empty((), dtype=t, device=d).fill_(number),
            lambda d, t=dtype: torch.full((1,), number, dtype=t, device=d),
            lambda d, t=dtype: torch.scalar_tensor(number, dtype=t, device=d),
        ):
            assert torch.equal(fill("tpu").cpu().float(), fill("cpu").float())


def test_a_number_that_fits_is_cast():
    for dtype, number in ((torch.uint8, -1), (torch.int8, 3.7), (torch.bool, 5), (torch.float16, 1e-9)):
        expected = torch.full((2,), number, dtype=dtype)
        assert torch.equal(torch.full((2,), number, dtype=dtype, device="tpu").cpu(), expected)


@pytest.mark.parametrize(
    "fill",
    [
        lambda out: torch.arange(0, 4, out=out),
        lambda out: torch.arange(4, out=out),
        lambda out: torch.range(1, 4, out=out),
        lambda out: torch.linspace(0, 3, 4, out=out),
        lambda out: torch.logspace(0, 2, 4, out=out),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_ranges_fill_what_is_given(fill, dtype):
    """An out= with as many elements keeps its shape, whatever that is; another one is resized."""
    for shape in ((2, 3), (3,)):
        found = []
        for device in ("cpu", "tpu"):
            x = torch.zeros(shape, dtype=dtype, device=device)
            out = x.narrow(1, 1, 2) if len(shape) == 2 else x
            fill(out)
            found.append((x.cpu(), out.cpu()))
        torch.testing.assert_close(found[1], found[0])


def test_ranges_of_one_length_share_a_program(counters):
    for start, dtype in ((0, torch.int64), (0, torch.int32), (0.5, torch.float32), (0, torch.bfloat16)):
        torch.arange(start + 1, start + 5, dtype=dtype, device="tpu")
        made = counters.compiles + counters.disk_hits + counters.memory_hits
        for shift in range(2, 7):
            expected = torch.arange(start + shift, start + shift + 4, dtype=dtype)
            actual = torch.arange(start + shift, start + shift + 4, dtype=dtype, device="tpu")
            torch.testing.assert_close(actual.cpu(), expected)
        assert counters.compiles + counters.disk_hits + counters.memory_hits == made


def test_ranges_are_counted_as_pytorch_counts_them():
    cases = [(5, 0, -1), (6, 1, -1), (1, 6, 2), (1.5, 4, 0.5), (0, 1, 0.1), (1, 2, 0.1), (2, 2, 1), (-5, 5, 3)]
    for start, end, step in [*cases, (2**40, 2**40 + 3, 1), (1, 6.5, 1), (1.0, 5.0, 1)]:
        for dtype in (None, torch.int32, torch.float64, torch.float16):
            if dtype is not torch.float16 or start < 2**16:
                expected = torch.arange(start, end, step, dtype=dtype)
                torch.testing.assert_close(torch.arange(start, end, step, dtype=dtype, device="tpu").cpu(), expected)
    for wrong in ((0, 5, 0), (5, 0, 1), (0, float("nan"), 1)):
        with pytest.raises(RuntimeError):
            torch.arange(*wrong, device="tpu")
