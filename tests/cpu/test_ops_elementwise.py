"""Element-wise operators: tables of unary and binary functions, clamps, powers, bits, casts, and special values."""

from __future__ import annotations

import pytest
import torch
from op_checks import (
    BF16,
    BOOL,
    C64,
    F16,
    F32,
    F64,
    I32,
    I64,
    INTS,
    U8,
    check,
    check_error,
    check_in_place,
    check_layouts,
    check_out,
    host,
    index,
    inf,
    mask,
    nan,
    random,
    values,
)

EVERYWHERE = (
    "asinh", "atan", "cos", "cosh", "deg2rad", "exp", "exp2", "expm1", "neg", "rad2deg", "relu", "sgn", "sigmoid",
    "sin", "sinc", "sinh", "tan", "tanh", "silu", "mish", "hardswish", "hardsigmoid",
)  # fmt: skip
POSITIVE = ("log", "log10", "log1p", "log2", "rsqrt", "sqrt", "reciprocal")
WITHIN_ONE = ("acos", "asin", "atanh")
STEPS = ("ceil", "floor", "frac", "round", "trunc", "sign", "signbit", "abs", "isnan", "isinf", "isposinf", "isneginf")
EDGES = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-30, 3e38, -3e38]


@pytest.mark.parametrize("name", EVERYWHERE)
def test_unary(name):
    check(name, (3, 5), dtypes=(F32, BF16) if name != "mish" else (F32,))


def test_mish_in_bfloat16():
    check("mish", (3, 5), dtypes=(BF16,))


@pytest.mark.parametrize("name", POSITIVE + WITHIN_ONE)
def test_unary_of_a_domain(name):
    check(name, random(7, low=0.1, high=0.9), dtypes=(F32, BF16))


@pytest.mark.parametrize("name", STEPS)
def test_steps(name):
    check(name, [-2.5, -1.5, -0.5, 0.0, 0.4, 0.5, 1.5, 2.5, nan, inf, -inf], dtypes=(F32, BF16), grad=False)


@pytest.mark.parametrize("name", EVERYWHERE[:19] + POSITIVE + WITHIN_ONE + ("acosh",))
def test_edges(name):
    check(name, EDGES, grad=False)


@pytest.mark.parametrize("name", ("sin", "sqrt", "exp", "sigmoid", "reciprocal"))
def test_integers_become_floats(name):
    check(name, [0, 1, 2, 5], dtypes=(I64, U8, BOOL))


@pytest.mark.parametrize("name", ("abs", "neg", "sign", "bitwise_not", "square", "floor", "relu"))
def test_integers_stay(name):
    check(name, [0, 1, 2, 100], dtypes=INTS)
    check(name, [-(2**63), 2**63 - 1, -7], dtypes=(I64,))


@pytest.mark.parametrize("name", ("exp", "log", "sqrt", "sin", "tanh", "sgn", "abs", "acos", "reciprocal"))
def test_complex(name):
    check(name, (2, 3), dtypes=(C64,))


def test_float64_and_float16():
    check("exp", (4,), dtypes=(F64, F16))
    check("tanh", (4,), dtypes=(F64, F16))


def test_shapes_and_layouts():
    check("exp", ())
    check("exp", (0, 3))
    check_layouts("exp", (3, 4), strides=True)
    check_layouts("sigmoid", (2, 3, 4, 5), strides=True)
    check("add", (2, 0), (1,))
    check(lambda x: x[..., 1:].exp(), (3, 4))
    check(lambda x: x[::2].t().neg(), (4, 3), strides=True)


@pytest.mark.parametrize(
    "name", ("mul", "atan2", "fmax", "fmin", "maximum", "minimum", "logaddexp", "logaddexp2", "hypot")
)
def test_binary(name):
    check(name, (4, 3), (3,), dtypes=(F32, BF16))
    check(name, [1.0, nan, inf, -inf, inf, 0.0, nan], [2.0, 1.0, inf, -inf, -inf, -0.0, nan], grad=False)


@pytest.mark.parametrize("name", ("remainder", "fmod", "floor_divide", "div"))
def test_division(name):
    check(name, [7, -7, 7, -7, 6], [3, 3, -3, -3, 2], dtypes=(I64, I32, F32, BF16), grad=False)
    check(name, [1.0, -1.0, 0.0, inf, nan, 5.5], [0.0, 0.0, 0.0, 2.0, 1.0, -inf], grad=False)
    check(name, (5,), 2.5, grad=name != "floor_divide")
    check(name, [7, -7], 2, dtypes=(I64, U8) if name != "div" else (I64,))


def test_integer_division_of_the_extremes():
    check("floor_divide", [200, 5], [7, 255], dtypes=(U8,))
    check("remainder", [-(2**63) + 1, 2**62], [10, -3], dtypes=(I64,))


def test_powers():
    check("pow", random(5, low=0.1, high=2), (5,))
    for exponent in (2, 3, 0.5, -1, -0.5, 0, 1, 2.5):
        check("pow", random(4, low=0.2, high=3), exponent, dtypes=(F32, BF16))
    check("pow", [2, 3, -3, 0], [3, 0, 3, 0], dtypes=(I64, I32))
    check("pow", [-1.0, -8.0, 0.0, 0.0, inf, nan], [0.5, 1 / 3, 0.0, -1.0, 0.0, 0.0], grad=False)
    check("pow", 2, [0, 1, 5], dtypes=(I64, F32))
    check("pow", 2.5, [0, 1, 5], dtypes=(I64,))
    check("float_power", [2, 3], 2, dtypes=(I64,))


def test_clamps():
    check("clamp", (3, 4), -0.5, 0.5, dtypes=(F32, BF16))
    check("clamp", [-5, 0, 5], -1, 3, dtypes=(I64, I32))
    check("clamp", [nan, inf, -inf], -1.0, 1.0)
    check("clamp", (3, 4), (4,), (3, 1))
    check("clamp", (3,), None, 0.2)
    check("clamp_min", [-5, 5], 0.5, dtypes=(I64,))
    check("clamp", [3.0], 2, 1)
    check("nan_to_num", [nan, inf, -inf, 1.0], dtypes=(F32, BF16))
    check("nan_to_num", [nan, inf, -inf], 1.0, 2.0, 3.0)


def test_where():
    check("where", mask(3, 4), (3, 4), (4,), dtypes=(F32, BF16, I64))
    check("where", mask(3), (3,), 0.5)
    check("where", mask(3), [1, 2, 3], 0.5, dtypes=(I64,))
    check("where", values([True, False]), [nan, 1.0], [1.0, nan], grad=False)
    check(lambda c, x: torch.where(c, x, x.neg()), mask(2, 2), (2, 2))


def test_bits():
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        check(name, [12, 10, 7], [10, 3, 255], dtypes=INTS)
        check(name, values([True, False]), values([True, True]))
        check(name, [12, 10], 6, dtypes=(I64,))
        check(name, values([1, 0], I64), values([True, True]))
    check("bitwise_left_shift", [1, 2, 3], [4, 5, 0], dtypes=INTS)
    check("bitwise_right_shift", [-9, 200], [1, 3], dtypes=(I64, I32))
    check("bitwise_left_shift", [1, 2], 3, dtypes=(U8,))
    check_error("bitwise_and", (2,), (2,))


def test_logic():
    for name in ("logical_and", "logical_or", "logical_xor"):
        check(name, [0.0, 1.0, nan, 0.0], [0.0, 0.0, 1.0, 2.0], dtypes=(F32, BF16))
        check(name, values([True, False]), [0, 3], dtypes=(I64,))
    check("logical_not", [0, 1, 5], dtypes=(I64, F32, BOOL))


def test_other_binaries():
    check("copysign", [1.0, -2.0, 0.0], [-0.0, 1.0, -1.0], dtypes=(F32, BF16), grad=False)
    check("copysign", (4,), -2.0)
    check("heaviside", [-1.0, 0.0, 2.0, nan], [0.5, 0.5, 0.5, 0.5], grad=False)
    check("gcd", [12, -18, 0, 7], [8, 12, 5, 0], dtypes=(I64, I32))
    check("lcm", [4, -6, 0], [6, 4, 5], dtypes=(I64,))
    check("xlogy", [0.0, 1.0, 0.0, 2.0], [0.0, 2.0, nan, 3.0], grad=False)
    check("xlogy", 2.0, random(3, low=0.5, high=2))
    check("nextafter", [1.0, 0.5, -1.0, inf], [2.0, 1.0, -1.0, 0.0], grad=False)
    check("ldexp", (3,), [1, -2, 10])
    check("frexp", [0.0, 1.0, -3.5, 1e10])
    check("round", [1.2345, -2.5555, 12345.678], decimals=2)
    check("round", [1234.5], decimals=-2)
    check("logit", random(4, low=0.1, high=0.9), 0.2)
    check("logit", [0.0, 1.0, 0.5], grad=False)


def test_scalars_promote_as_numbers():
    check(lambda x: x + 1.5, [1, 2], dtypes=(I64, U8, BOOL, F32, BF16))
    check(lambda x: x * 2, [1, 2], dtypes=(I64, U8, BOOL, F32, BF16))
    check(lambda x: x + True, [1, 2], dtypes=(I64, BOOL))
    check(lambda x: x * 2j, [1.0, 2.0], dtypes=(F32, F64))
    check(lambda x: 3 - x, [1, 2], dtypes=(I64, U8, BF16))
    check(lambda x: x / 3, [1, 2], dtypes=(I64, BF16, BOOL))
    check(lambda x: x // 2.0, [5, -5], dtypes=(I64,))
    check(lambda x: x * 1e300, [1.0], dtypes=(F32, F64))


def test_dtypes_promote_as_tensors():
    check("mul", values([1, 2], I64), values([1.5, 2.5], BF16))
    check("mul", values([1, 2], U8), values([-1, 3], torch.int8))
    check("mul", values([1.5], F16), values([1.5], BF16))
    check("mul", values([1.5], F32), values(2.5, F64))
    check("mul", values([3], I32), values(2.5, F64))
    check("mul", values([True]), values(3, I64))
    check("mul", values([1.5], F32), values([1 + 2j], C64))


def test_a_tensor_of_the_host_counts_as_a_number():
    check("mul", (3,), host(2.5, F64))
    check("mul", host(2.5, F64), [1, 2], dtypes=(I64,))
    check("add", [1, 2], host(True, BOOL), dtypes=(I64, BF16))
    check(lambda x, y: x.clone().mul_(y), (3,), host(3, I64))


def test_casts():
    for dtype in (F64, F16, BF16, I64, I32, U8, BOOL, C64):
        check(lambda x, dtype=dtype: x.to(dtype), [0.0, 1.5, 100.7], dtypes=(F32, BF16, F64))
        check(lambda x, dtype=dtype: x.to(dtype), [0, 1, 100], dtypes=(I64, BOOL))
    check(lambda x: x.to(U8), [300, -1], dtypes=(I64,))
    check(lambda x: x.to(BF16), [1.00390625, 1.01171875, 3.4e38, nan, inf], grad=False)
    check(lambda x: x.bool(), [nan, 0.0, -0.0, 1e-30], grad=False)
    check(lambda x: x.to(torch.float8_e4m3fn).float(), [1.0, 0.3, 448.0, -2.7], grad=False)


def test_in_place():
    check_in_place("exp", (3, 4), dtypes=(F32, BF16), grad=True)
    check_in_place("mul", (3, 4), (4,), dtypes=(F32, I64), grad=True)
    check_in_place("clamp", (3, 4), -0.5, 0.5)
    check_in_place("masked_fill", (3, 4), mask(3, 4), 2.0, grad=True)
    check_in_place("pow", random(3, low=0.5, high=2), 2)
    check_in_place("logical_not", [0, 2], dtypes=(I64,))
    check_in_place("copy", (3, 4), (4,))
    check_in_place("copy", (3, 4), index(3, 4, high=9))
    check_in_place("fill", (3,), 2.5, dtypes=(F32, I64))
    check_in_place("zero", (3, 2))
    check_error(lambda x, y: x.add_(y), (3,), (2, 3), match="doesn't match|shape")


def test_out():
    check_out("exp", (3, 4), dtypes=(F32, I64))
    check_out("mul", (3, 4), (4,), dtypes=(F32, BF16, I64))
    check_out("clamp", (3, 4), -0.5, 0.5)
    check_out("logical_and", mask(3), mask(3))
    check_out("frexp", (3,))
    check(lambda x: torch.mul(x, 2, out=torch.zeros(3, dtype=F64, device=x.device)), (3,), grad=False)
    check_error(
        lambda x: torch.mul(x, 2.5, out=torch.zeros(3, dtype=I64, device=x.device)), (3,), match="can't be cast"
    )


def test_errors():
    check_error("mul", (3,), (4,), match="size of tensor a .3. must match the size of tensor b .4.")
    check_error("exp", "x", error=TypeError)
    check_error("remainder", (2,), values([1 + 1j], C64))


def test_in_place_refuses_to_lose_a_fraction():
    check_error(lambda x: x.mul_(1.5), values([1, 2], I64), match="can't be cast")


@pytest.mark.xfail(reason="XLA's CPU compiler takes subnormal numbers for zero", strict=True)
def test_subnormal_numbers():
    check("log", [1e-40], grad=False)
    check("sgn", [1e-40], grad=False)
