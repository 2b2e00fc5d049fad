"""Sums, differences, quotients with a rounding mode, lerp, addcmul: operators with a factor or a mode."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from op_checks import (
    ALL,
    BF16,
    BOOL,
    C64,
    F32,
    I64,
    INTS,
    NUMBERS,
    U8,
    check,
    check_error,
    check_in_place,
    check_out,
    inf,
    nan,
    random,
    strided,
    transposed,
    values,
)


@pytest.mark.parametrize("name", ("add", "sub", "rsub"))
def test_sums(name):
    check(name, (4, 3), (3,), dtypes=NUMBERS)
    check(name, (3,), (3,), dtypes=(F32, BF16, C64), alpha=2.5)
    check(name, (3,), 2.5, dtypes=(F32, BF16))
    check(name, [1, 2], [3, 4], dtypes=INTS, alpha=3)
    check(name, [inf, nan, -inf], [-inf, 1.0, -inf], grad=False)


def test_sums_of_booleans_and_bytes():
    check("add", values([True, False]), values([True, True]))
    check("add", [250, 3], [10, 255], dtypes=(U8,))
    check("add", values([True, False]), 2)
    check_error("sub", values([True]), values([True]), match="bool")
    check_error("add", values([1], I64), values([1], I64), alpha=1.5)


def test_layouts_of_two():
    check("add", strided(3, 4), transposed(3, 4), strides=True)
    check("add", transposed(3, 4), transposed(3, 4), strides=True)
    check("add", (2, 1, 3), (4, 1), strides=True)
    check("add", (0, 3), (3,))
    check("add", (), ())


@pytest.mark.parametrize("mode", ("trunc", "floor", None))
def test_division_modes(mode):
    check("div", [7, -7, 7, -7], [2, 2, -2, -2], dtypes=(F32, BF16, I64), grad=False, rounding_mode=mode)
    check("div", [1.0, -1.0, 0.0, inf, nan], [0.0, 0.0, 0.0, 2.0, 1.0], grad=False, rounding_mode=mode)
    check("div", [7, -7], 2, dtypes=(I64, F32), grad=False, rounding_mode=mode)
    check("div", (4,), random(4, low=0.5, high=2), rounding_mode=mode)


def test_lerp():
    check("lerp", (4, 3), (3,), 0.3, dtypes=(F32, BF16))
    check("lerp", (4, 3), (3,), random(4, 3, low=0, high=1))
    check("lerp", [1.0, inf, 0.0], [2.0, 3.0, inf], 0.5, grad=False)


def test_fused_sums():
    check("addcmul", (4, 3), (3,), (4, 1), dtypes=(F32, BF16, I64), value=2)
    check("addcdiv", (4, 3), (3,), random(4, 1, low=0.5, high=2), dtypes=(F32, BF16), value=0.5)
    check("addcmul", (3,), (3,), (3,), dtypes=(C64,))
    check_error("addcdiv", values([1], I64), values([1], I64), values([1], I64), match="[Ii]nteger division")


def test_written():
    check_in_place("add", (3, 4), (4,), dtypes=ALL)
    check_in_place("add", (3, 4), (4,), grad=True, alpha=0.5)
    check_in_place("lerp", (3, 4), (4,), 0.3)
    check_in_place("addcmul", (3, 4), (4,), (3, 1), value=0.5)
    check_in_place("div", (4,), 2.0, rounding_mode="floor")
    check_out("add", (3, 4), (4,), dtypes=(F32, BF16, I64), alpha=2)
    check_out("div", [7, -7], [2, 2], dtypes=(F32, I64), rounding_mode="floor")
    check_out("addcmul", (3,), (3,), (3,))
    check_error(lambda x: x.div_(2), values([1, 2], I64), match="can't be cast")
    check_error("add", (3,), (4,), match="must match")
    check_error(lambda x: torch.add(x, x, out=torch.zeros(2, dtype=BOOL, device=x.device)), (2,), match="can't be cast")


def test_in_place_refuses_to_lose_the_imaginary_part():
    check_error(lambda x: x.add_(1j), (3,), match="can't be cast")


def test_quotients_are_rounded_once():
    """XLA multiplies by the reciprocal of a divisor that it broadcasts: 41 / 41 would be 0.99999994."""
    numbers = torch.arange(1.0, 200)
    for divisor in (41, 41.0, torch.tensor(41.0), torch.tensor([[41.0], [47.0]])):
        for x in (numbers, numbers.long(), numbers.bfloat16()):
            on_device = divisor.to("tpu") if isinstance(divisor, torch.Tensor) else divisor
            assert torch.equal((x.to("tpu") / on_device).cpu(), x / divisor)
    for size in (41, 47, 55, 61):
        assert torch.ones(3, size, device="tpu").mean(1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_masks_do_not_hide_nan(mode, dtype):
    """0 times infinity is NaN, also where the 0 was False: a mask multiplied with a loss shows that the loss is broken."""
    mask, y = torch.tensor([True, False, False]), torch.tensor([float("inf"), float("inf"), float("nan")], dtype=dtype)

    def products(mask, y):
        return mask * y, mask.to(y.dtype) * y, (1 - mask.to(y.dtype)) * y, (y == y) * y

    with torch.tpu.set_eager_mode(mode):
        found = products(mask.to("tpu"), y.to("tpu"))
        compiled = torch.compile(products, backend="tpu")(mask.to("tpu"), y.to("tpu"))
        for wanted, one, other in zip(products(mask, y), found, compiled, strict=True):
            torch.testing.assert_close(one.cpu(), wanted, equal_nan=True)
            torch.testing.assert_close(other.cpu(), wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_bounds_that_do_not_fit_are_refused(dtype):
    x = torch.tensor([3], dtype=dtype)
    for call in (lambda x: x.clamp(max=2**40), lambda x: x.clamp(min=0, max=2**33), lambda x: x.clamp_max(2**40)):
        for device in ("cpu", "tpu"):
            with pytest.raises(RuntimeError, match="without overflow"):
                call(x.to(device))
    assert x.to("tpu").clamp(max=2).item() == 2 and x.to("tpu").clamp(max=2.5).item() == 2.5


FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)


@pytest.mark.parametrize("dtype", FLOAT8[:-1])
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_casts_to_float8_end_as_on_the_cpu(source, dtype):
    x = torch.tensor([448, 464, 465, 500, 6e4, float("inf"), -500, float("nan"), 240, 249]).to(source)
    torch.testing.assert_close(x.to("tpu").to(dtype).float().cpu(), x.to(dtype).float(), equal_nan=True)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_casts_to_float8_from_what_cannot_hold_its_largest_number(dtype):
    numbers = torch.tensor([0.0, 1.0, 2.0, 3.5, 100.0, 7.0, 1e300], dtype=torch.float64)
    sources = (torch.bool, torch.int8, torch.uint8, torch.int64, torch.uint16, torch.float64, *FLOAT8)
    for source in sources:
        x = numbers[:-1].to(source) if source is not torch.float64 else numbers
        torch.testing.assert_close(x.tpu().to(dtype).float().cpu(), x.to(dtype).float(), equal_nan=True)
    x = numbers.to(dtype)
    assert torch.equal(x.tpu().bool().cpu(), x.bool())


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_wide_unsigned_integers_have_no_common_dtype_with_others(dtype):
    x, y = torch.ones(2, dtype=dtype), torch.ones(2, dtype=torch.int64)
    for call in (torch.add, torch.eq, lambda x, y: torch.where(x == 1, x, y), lambda x, y: torch.cat([x, y])):
        for device in ("cpu", "tpu"):
            with pytest.raises(RuntimeError, match="Promotion for uint16"):
                call(x.to(device), y.to(device))
    assert (x.tpu() + torch.ones(2, device="tpu")).dtype is torch.float32 and (x.tpu() * 3).dtype is dtype


@pytest.mark.parametrize(
    "subtract", [lambda x, y: x - y, lambda x, y: 1 - y, lambda x, y: y - 1, lambda x, y: x - True]
)
def test_bools_are_not_subtracted(subtract):
    x, y = torch.ones(2, device="tpu"), torch.tensor([True, False], device="tpu")
    with pytest.raises(RuntimeError, match="bool tensor is not supported"):
        subtract(x, y)


def test_out_changes_the_dtype_of_the_result_only():
    """The arguments decide in which dtype an elementwise operator computes."""
    for op, dtype, numbers, wide in (
        (torch.add, torch.float16, (33000.0, 33000.0), torch.float64),
        (torch.sub, torch.uint8, (5, 8), torch.float64),
        (torch.mul, torch.int32, (2**30, 8), torch.int64),
        (partial(torch.sum, dim=0), torch.float16, ([60000.0, 60000.0],), torch.float32),  # but sums do in that of out=
    ):
        args = [torch.tensor(number, dtype=dtype) for number in numbers]
        expected = op(*args, out=torch.empty(0, dtype=wide))
        actual = op(*(arg.to("tpu") for arg in args), out=torch.empty(0, dtype=wide, device="tpu"))
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("op", [torch.neg, torch.floor, torch.round, torch.sort])
def test_out_of_another_dtype_is_refused(op):
    x = torch.ones(2, device="tpu")
    out = torch.empty(2, dtype=torch.float64, device="tpu")
    places = torch.empty(2, dtype=torch.int64, device="tpu")
    with pytest.raises(RuntimeError, match="dtype"):
        op(x, out=(out, places) if op is torch.sort else out)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_divided_by_zero(dtype):
    """No error, as on CUDA; and none that ends the process, where XLA divides while it compiles."""
    empty = torch.empty(0, 3, dtype=dtype, device="tpu")
    for divide in (torch.fmod, torch.remainder, torch.floor_divide, partial(torch.div, rounding_mode="trunc")):
        assert divide(empty, empty).shape == (0, 3)
        x = torch.tensor([7, 9], dtype=dtype, device="tpu")
        assert divide(x, torch.tensor([0, 2], dtype=dtype, device="tpu"))[1].item() in (1, 4)
        constant = torch.compile(
            lambda x, divide=divide: divide(torch.full_like(x, 7), torch.zeros_like(x)), backend="tpu"
        )
        assert constant(x).shape == (2,)


@pytest.mark.parametrize(
    "name",
    ["add_", "remainder_", "atan2_", "lt_", "clamp_min_", "pow_", "copysign_", "bitwise_and_", "floor_divide_", "gcd_"],
)
def test_in_place_does_not_grow(name):
    dtype = torch.int64 if name in ("bitwise_and_", "gcd_") else torch.float32
    x, y = torch.ones(3, dtype=dtype, device="tpu"), torch.ones(3, 3, dtype=dtype, device="tpu")
    with pytest.raises(RuntimeError, match=r"output with shape \[3\] doesn't match the broadcast shape \[3, 3\]"):
        getattr(x, name)(y)
    assert x.tolist() == [1, 1, 1]


F = torch.nn.functional
REFUSED = [
    (torch.bool, lambda x: x @ x),
    (torch.bool, lambda x: F.relu(x)),
    (torch.bool, lambda x: x.median()),
    (torch.int64, lambda x: x.frac()),
    (torch.int64, lambda x: F.interpolate(x[None, None], size=(3, 3), mode="bilinear")),
    (torch.int64, lambda x: F.adaptive_avg_pool2d(x[None], 1)),
    (torch.int64, lambda x: F.nll_loss(x, x[0])),
    (torch.float32, lambda x: torch.gcd(x, x)),
    (torch.complex64, lambda x: F.mse_loss(x, x)),
    (torch.complex64, lambda x: F.gelu(x)),
]


@pytest.mark.parametrize(("dtype", "call"), REFUSED)
def test_dtypes_that_no_device_takes(dtype, call):
    x = torch.ones(2, 2, dtype=dtype)
    with pytest.raises((RuntimeError, TypeError)) as expected:
        call(x)
    with pytest.raises(type(expected.value)):
        call(x.to("tpu"))


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32])
def test_casts_to_the_exponent_alone_are_the_cpus(source):
    numbers = [
        0,
        -3.3,
        1,
        1.5,
        1.4999,
        3,
        6,
        448,
        1e-3,
        *([] if source is torch.int32 else [math.inf, -math.inf, math.nan]),
    ]
    if source in (torch.float32, torch.float64, torch.bfloat16):
        numbers += [2.0**127, 1.9 * 2.0**127, 2.0**-126, 2.0**-127]
    x = torch.tensor(numbers).to(source)
    made = x.tpu().to(torch.float8_e8m0fnu)
    assert torch.equal(made.cpu().view(torch.uint8), x.to(torch.float8_e8m0fnu).view(torch.uint8))
