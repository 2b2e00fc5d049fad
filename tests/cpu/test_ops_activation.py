"""Activations: every function at its kinks, nan and infinities, in reduced precision, gated, in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_checks import (
    BF16,
    F16,
    F32,
    F64,
    check,
    check_error,
    check_in_place,
    check_layouts,
    inf,
    nan,
)

NAMES = (
    "relu", "relu6", "elu", "celu", "selu", "gelu", "silu", "mish", "softplus", "logsigmoid", "hardtanh", "hardshrink",
    "softshrink", "leaky_relu", "hardswish", "hardsigmoid", "softsign", "tanhshrink",
)  # fmt: skip
POINTS = [-30.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 3.0, 6.0, 25.0]


@pytest.mark.parametrize("name", NAMES)
def test_values_and_kinks(name):
    check(name, POINTS, dtypes=(F32, BF16))


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity(name):
    check(name, [nan, -inf, *([inf] if name != "gelu" else [])], grad=False)  # the CPU's gelu(inf) is nan


def test_parameters():
    check("elu", POINTS, 0.7)
    check("celu", POINTS, 1.3)
    check("gelu", POINTS, dtypes=(F32, BF16, F64), approximate="tanh")
    check("softplus", POINTS, 2.0, 5.0)
    check("hardtanh", POINTS, -0.25, 0.75)
    check("leaky_relu", POINTS, 0.2)
    check("threshold", POINTS, 0.1, 20.0)
    check("hardshrink", POINTS, 0.7)
    check("softshrink", POINTS, 0.7)
    check("relu", [-1, 0, 2], dtypes=(torch.int64,))
    check("silu", POINTS, dtypes=(F16,))


def test_gated_and_learned():
    check("glu", (3, 4), dtypes=(F32, BF16))
    check("glu", (4, 3), 0)
    check("prelu", (2, 3, 4), (3,))
    check("prelu", (2, 3), (1,))
    check("rrelu", POINTS, 0.2, 0.3, False)
    check_error("glu", (3, 3), match="must be even")


def test_second_gradients():
    def twice(function):
        def run(x):
            (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            return first

        return run

    for function in (F.gelu, F.silu, F.softplus, torch.sigmoid, torch.tanh, F.mish):
        check(twice(function), (5,))


def test_shapes_layouts_writes():
    check("gelu", ())
    check("silu", (0,))
    check_layouts("gelu", (2, 3, 4, 4), strides=True)
    check_in_place("relu", (3, 4), grad=True)
    check(lambda x: F.leaky_relu(x * 1, 0.1, inplace=True), (3, 4))
    check(lambda x: F.silu(x * 1, inplace=True), (3, 4))
    check_error("gelu", torch.tensor([1, 2]))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.elu_(x, alpha=-2),
        lambda x: F.leaky_relu_(x, -2),
        lambda x: F.rrelu_(x, -2, -1),
        lambda x: F.celu_(x, -2),
    ],
)
def test_gradients_that_are_lost_in_place(call):
    x = torch.tensor([-1.0, 1.0], device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="negative slope"):
        call(x.clone()).sum().backward()


def test_thresholds_of_expanded_tensors():
    x = torch.tensor([[0.125, 0.75]], device="tpu").expand(3, 2)
    F.threshold_(x, 0.5, 0.25)
    assert x.tolist() == [[0.25, 0.75]] * 3
