"""Activation functions and their gradients.

All are element-wise formulas in the dtype PyTorch computes in; comparisons are written so that NaN goes where
PyTorch's own does. `relu6`, `selu` and `logsigmoid` are made of these by PyTorch itself.
"""

from __future__ import annotations

import math

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.arithmetic import add
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.elementwise import sigmoid, table
from torch_tpu.ops.registry import RESULT, Context, lowering


def relu(x: Value) -> Value:
    return hlo.maximum(x, 0)


def threshold_backward(grad: Value, x: Value, threshold: Value) -> Value:
    return hlo.select(hlo.less_equal(x, threshold), 0, grad)


def threshold(x: Value, limit: Value, value: Value) -> Value:
    return hlo.select(hlo.less_equal(x, limit), value, x)


def sigmoid_backward(grad: Value, output: Value) -> Value:
    if output.dtype.is_complex:
        return grad * hlo.conj((1 - output) * output)
    return grad * (1 - output) * output


def tanh_backward(grad: Value, output: Value) -> Value:
    return grad * hlo.conj(1 - output * output)


def silu(x: Value) -> Value:
    return x * sigmoid(x)


def silu_backward(grad: Value, x: Value) -> Value:
    gate = sigmoid(x)
    return grad * gate * (x * (1 - gate) + 1)


def _soft_exponent(x: Value) -> Value:
    """tanh(log(1 + e^x))."""
    return hlo.tanh(hlo.log1p(hlo.exponential(x)))


def mish(x: Value) -> Value:
    return x * _soft_exponent(x)


def mish_backward(grad: Value, x: Value) -> Value:
    gate = _soft_exponent(x)
    return grad * (gate + x * hlo.logistic(x) * (1 - gate * gate))


def hard_sigmoid(x: Value) -> Value:
    return hlo.clamp(0, x + 3, 6) / 6


def hard_sigmoid_backward(grad: Value, x: Value) -> Value:
    return hlo.select(hlo.greater(x, -3) & hlo.less(x, 3), grad / 6, 0)


def hard_swish(x: Value) -> Value:
    return x * hlo.clamp(0, x + 3, 6) / 6


def hard_swish_backward(grad: Value, x: Value) -> Value:
    middle = grad * (x / 3 + 0.5)
    return hlo.select(hlo.less_equal(x, -3), 0, hlo.select(hlo.greater_equal(x, 3), grad, middle))


def hard_tanh_backward(grad: Value, x: Value, low: Value, high: Value) -> Value:
    return hlo.select(hlo.less_equal(x, low) | hlo.greater_equal(x, high), 0, grad)


def prelu(x: Value, weight: Value) -> Value:
    return hlo.select(hlo.greater(x, 0), x, weight * x)


table(
    {
        "relu": relu,
        "threshold": threshold,
        "threshold_backward": threshold_backward,
        "sigmoid_backward": sigmoid_backward,
        "tanh_backward": tanh_backward,
        "silu": silu,
        "silu_backward": silu_backward,
        "mish": mish,
        "mish_backward": mish_backward,
        "hardsigmoid": hard_sigmoid,
        "hardsigmoid_backward": hard_sigmoid_backward,
        "hardswish": hard_swish,
        "hardswish_backward": hard_swish_backward,
        "hardtanh_backward": hard_tanh_backward,
        "_prelu_kernel": prelu,
    },
    RESULT,
)


@lowering("_add_relu.Tensor", "_add_relu.Scalar", promote=RESULT)
def add_relu(ctx: Context, x: Value, y: Value, alpha: Value | None = None) -> Value:
    return relu(add(ctx, x, y, alpha))


@lowering("hardtanh", promote=RESULT)
def hard_tanh(ctx: Context, x: Value, min_val: Value | int = -1, max_val: Value | int = 1) -> Value:
    return hlo.clamp(min_val, x, max_val)


@lowering("hardshrink", promote=RESULT)
def hard_shrink(ctx: Context, x: Value, lambd: Value | float = 0.5) -> Value:
    return hlo.select(_within(x, lambd), 0, x)


@lowering("hardshrink_backward", "softshrink_backward", promote=RESULT)
def shrink_backward(ctx: Context, grad: Value, x: Value, lambd: Value) -> Value:
    return hlo.select(_within(x, lambd), 0, grad)


def _within(x: Value, limit: Value | float) -> Value:
    return hlo.less_equal(hlo.abs(x), limit)


@lowering("softshrink", promote=RESULT)
def soft_shrink(ctx: Context, x: Value, lambd: Value | float = 0.5) -> Value:
    """x moved toward zero by lambd; NaN stays."""
    low = hlo.select(hlo.less(x, -lambd), x + lambd, x * 0)
    return hlo.select(hlo.greater(x, lambd), x - lambd, low)


@lowering("leaky_relu", promote=RESULT)
def leaky_relu(ctx: Context, x: Value, negative_slope: Value | float = 0.01) -> Value:
    return hlo.select(hlo.greater(x, 0), x, x * negative_slope)


def _require_positive(ctx: Context, slope: Value, is_result: bool, name: str) -> None:
    """A result says which side its input was on only if no slope is negative."""
    if is_result:
        message = f"the gradient of in-place {name} is not known for a negative slope"
        require_all(ctx.platform, hlo.greater_equal(slope, 0), message)


@lowering("leaky_relu_backward", promote=RESULT)
def leaky_relu_backward(ctx: Context, grad: Value, x: Value, slope: Value, self_is_result: bool) -> Value:
    _require_positive(ctx, slope, self_is_result, "leaky_relu")
    return hlo.select(hlo.greater(x, 0), grad, grad * slope)


@lowering("elu", promote=RESULT)
def elu(ctx: Context, x: Value, alpha: Value | int = 1, scale: Value | int = 1, input_scale: Value | int = 1) -> Value:
    """scale x for positive x, else scale alpha (e^(input_scale x) - 1)."""
    return hlo.select(hlo.greater(x, 0), x * scale, hlo.expm1(x * input_scale) * alpha * scale)


@lowering("celu", promote=RESULT, static_integral=("alpha",))
def celu(ctx: Context, x: Value, alpha: Value | float = 1.0) -> Value:
    if not isinstance(alpha, Value) and alpha == 0:
        raise RuntimeError("alpha cannot be 0 for CELU")
    return hlo.select(hlo.greater(x, 0), x, hlo.expm1(x / alpha) * alpha)


@lowering("elu_backward", promote=RESULT)
def elu_backward(
    ctx: Context, grad: Value, alpha: Value, scale: Value, input_scale: Value, is_result: bool, x: Value
) -> Value:
    """The gradient from elu's input, or from its result, of which e^x is known."""
    _require_positive(ctx, alpha, is_result, "elu")
    slope = scale * alpha
    exponential = x + slope if is_result else hlo.exponential(x * input_scale) * slope
    return hlo.select(hlo.less_equal(x, 0), grad * input_scale * exponential, grad * scale)


@lowering("softplus", promote=RESULT)
def soft_plus(ctx: Context, x: Value, beta: Value | int = 1, threshold: Value | int = 20) -> Value:
    scaled = x * beta
    return hlo.select(hlo.greater(scaled, threshold), x, hlo.log1p(hlo.exponential(scaled)) / beta)


@lowering("softplus_backward", promote=RESULT)
def soft_plus_backward(ctx: Context, grad: Value, x: Value, beta: Value, threshold: Value) -> Value:
    scaled = x * beta
    return hlo.select(hlo.greater(scaled, threshold), grad, grad * hlo.logistic(scaled))


@lowering("log_sigmoid_forward", promote=RESULT)
def log_sigmoid(ctx: Context, x: Value) -> list[Value]:
    """min(x, 0) - log(1 + e^-|x|), and e^-|x| or nothing, as PyTorch's kernel keeps."""
    exponential = hlo.exponential(-hlo.abs(x))
    kept = ctx.outs[1].shape
    buffer = exponential if kept == x.shape else hlo.full(kept, 0, x.dtype)
    return [hlo.minimum(x, 0) - hlo.log1p(exponential), buffer]


@lowering("log_sigmoid_backward", promote=RESULT)
def log_sigmoid_backward(ctx: Context, grad: Value, x: Value, buffer: Value) -> Value:
    return grad * hlo.logistic(-x)


_ERF_SLOPE = 2 / math.sqrt(math.pi)
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


@lowering("gelu", promote=RESULT)
def gelu(ctx: Context, x: Value, *, approximate: str = "none") -> Value:
    """x times the normal distribution function, exactly or by the tanh formula (Hendrycks and Gimpel 2016)."""
    if approximate == "tanh":
        return x * 0.5 * (hlo.tanh((x + x * x * x * _TANH_CUBE) * _TANH_SCALE) + 1)
    return x * 0.5 * (hlo.erf(x * math.sqrt(0.5)) + 1)


@lowering("gelu_backward", promote=RESULT)
def gelu_backward(ctx: Context, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    if approximate == "tanh":
        bend = hlo.tanh((x + x * x * x * _TANH_CUBE) * _TANH_SCALE)
        slope = (x * x * (3 * _TANH_CUBE) + 1) * _TANH_SCALE
        return grad * ((bend + 1) * 0.5 + x * 0.5 * (1 - bend * bend) * slope)
    share = (hlo.erf(x * math.sqrt(0.5)) + 1) * 0.5
    density = hlo.exponential(x * x * -0.5) * (_ERF_SLOPE * math.sqrt(0.5) * 0.5)
    return grad * (share + x * density)


def _halves(x: Value, dim: int) -> tuple[Value, Value]:
    dim %= x.ndim
    middle = x.shape[dim] // 2
    return hlo.slice_in_dim(x, dim, 0, middle), hlo.slice_in_dim(x, dim, middle, x.shape[dim])


@lowering("glu", promote=RESULT)
def glu(ctx: Context, x: Value, dim: int = -1) -> Value:
    value, gate = _halves(x, dim)
    return value * hlo.logistic(gate)


@lowering("glu_backward", promote=RESULT)
def glu_backward(ctx: Context, grad: Value, x: Value, dim: int) -> Value:
    value, gate = _halves(x, dim)
    open_part = hlo.logistic(gate)
    through = grad * open_part
    return hlo.concatenate([through, through * value * (1 - open_part)], dim)


@lowering("glu_jvp", promote=RESULT)
def glu_jvp(ctx: Context, output: Value, x: Value, dx: Value, dim: int) -> Value:
    open_part = hlo.logistic(_halves(x, dim)[1])
    d_value, d_gate = _halves(dx, dim)
    return d_value * open_part + output * (1 - open_part) * d_gate


@lowering("glu_backward_jvp", promote=RESULT)
def glu_backward_jvp(ctx: Context, grad_x: Value, grad: Value, x: Value, d_grad: Value, dx: Value, dim: int) -> Value:
    """The derivative of glu_backward along (d_grad, dx)."""
    value, gate = _halves(x, dim)
    d_value, d_gate = _halves(dx, dim)
    open_part = hlo.logistic(gate)
    shut = 1 - open_part
    slope = open_part * shut
    first = d_grad * open_part + grad * slope * d_gate
    second = (d_grad * value + grad * d_value) * slope + grad * value * slope * (1 - 2 * open_part) * d_gate
    return hlo.concatenate([first, second], dim)


@lowering("_prelu_kernel_backward", promote=RESULT)
def prelu_backward(ctx: Context, grad: Value, x: Value, weight: Value) -> list[Value]:
    positive = hlo.greater(x, 0)
    return [hlo.select(positive, grad, weight * grad), hlo.select(positive, 0, x * grad)]


@lowering("rrelu_with_noise_backward", promote=RESULT)
def randomized_leaky_relu_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    noise: Value,
    lower: Value,
    upper: Value,
    training: bool,
    self_is_result: bool,
) -> Value:
    mean = (lower + upper) / 2
    if not training:
        _require_positive(ctx, mean, self_is_result, "rrelu")
        return hlo.select(hlo.greater(x, 0), grad, grad * mean)
    slope = hlo.select(hlo.greater(upper - lower, 1e-6), noise, hlo.select(hlo.greater(x, 0), 1, mean))
    return grad * slope
