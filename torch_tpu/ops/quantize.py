"""Fake quantization, as quantization-aware training does: each number is rounded to a level of a scale, clamped and scaled
back. Its gradient passes where nothing was clamped (the straight-through estimator: Jacob et al., arXiv:1712.05877); that
of scale and zero point is of learned step size quantization (Esser et al., arXiv:1902.08153).
"""

from __future__ import annotations

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Context, lowering


def _wide(x: Value, *others: Value) -> list[Value]:
    """All in the dtype that the first is computed in."""
    return [hlo.convert(value, hlo.compute_dtype(x.dtype)) for value in (x, *others)]


def _first(x: Value) -> Value:
    """The first number of a tensor; a scale or zero point of a whole tensor has one."""
    return hlo.reshape(hlo.slice_in_dim(hlo.reshape(x, (x.numel,)), 0, 0, 1), ())


def _along(x: Value, like: Value, axis: int) -> Value:
    """A vector with one element for each slice along the axis."""
    if not 0 <= axis < like.ndim:
        raise RuntimeError(f"`axis` must be between 0 and number of dimensions of input, not {axis} for {like.shape}")
    if x.shape != (like.shape[axis],):
        raise RuntimeError(
            f"dimensions of scale and zero-point are not consistent with input tensor: {x.shape} are "
            f"not one for each of {like.shape[axis]} along dimension {axis}"
        )
    return hlo.broadcast_in_dim(x, like.shape, [axis])


def _quantized(x: Value, scale: Value, zero_point: Value | int) -> Value:
    """The level of each number, before it is clamped."""
    return hlo.round_nearest_even(x * (1 / scale)) + zero_point


def _between(level: Value, low: int, high: int) -> tuple[Value, Value]:
    """The clamped level, NaN being the lowest, and where nothing was clamped."""
    above = hlo.greater_equal(level, low)
    return hlo.select(above, hlo.minimum(level, high), low), above & hlo.less_equal(level, high)


def _fake(x: Value, scale: Value, zero_point: Value | int, low: int, high: int) -> list[Value]:
    level, mask = _between(_quantized(x, scale, zero_point), low, high)
    return [(level - zero_point) * scale, mask]


def _check(low: int, high: int, zero_point: int | None = None) -> None:
    if low > high:
        raise RuntimeError("`quant_min` should be less than or equal to `quant_max`.")
    if zero_point is not None and not low <= zero_point <= high:
        raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")


@lowering("fake_quantize_per_tensor_affine_cachemask", data=("scale",))
def per_tensor(ctx: Context, x: Value, scale: Value, zero_point: int, quant_min: int, quant_max: int) -> list[Value]:
    _check(quant_min, quant_max, zero_point)
    wide, step = _wide(x, scale)
    made, mask = _fake(wide, step, zero_point, quant_min, quant_max)
    return [hlo.convert(made, x.dtype), mask]


@lowering("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_qparams(
    ctx: Context, x: Value, scale: Value, zero_point: Value, enabled: Value, quant_min: int, quant_max: int
) -> list[Value]:
    """Copies the tensor where `enabled` is 0."""
    _check(quant_min, quant_max)
    is_on = hlo.not_equal(_first(enabled), 0)
    wide, step, zero = _wide(x, _first(scale), _first(zero_point))
    made, mask = _fake(wide, step, zero, quant_min, quant_max)
    return [hlo.select(is_on, hlo.convert(made, x.dtype), x), mask | ~is_on]


@lowering("fake_quantize_per_channel_affine_cachemask")
def per_channel(
    ctx: Context, x: Value, scale: Value, zero_point: Value, axis: int, quant_min: int, quant_max: int
) -> list[Value]:
    """A zero point that is no integer is added before the rounding."""
    _check(quant_min, quant_max)
    wide, step, zero = _wide(x, _along(scale, x, axis), _along(zero_point, x, axis))
    if zero_point.dtype.is_floating_point:
        level, mask = _between(hlo.round_nearest_even(wide * (1 / step) + zero), quant_min, quant_max)
        made = (level - zero) * step
    else:
        made, mask = _fake(wide, step, zero, quant_min, quant_max)
    return [hlo.convert(made, x.dtype), mask]


def _learned_zero(zero_point: Value, low: int, high: int) -> Value:
    """A learned zero point as the level it stands for in the forward pass."""
    return hlo.floor(hlo.clamp(low, zero_point + 0.5, high))


@lowering("_fake_quantize_learnable_per_tensor_affine")
def learnable_per_tensor(
    ctx: Context,
    x: Value,
    scale: Value,
    zero_point: Value,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Value:
    _check(quant_min, quant_max)
    wide, step, zero = _wide(x, _first(scale), _learned_zero(_first(zero_point), quant_min, quant_max))
    return hlo.convert(_fake(wide, step, zero, quant_min, quant_max)[0], x.dtype)


@lowering("_fake_quantize_learnable_per_channel_affine")
def learnable_per_channel(
    ctx: Context,
    x: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Value:
    _check(quant_min, quant_max)
    zero = _along(_learned_zero(zero_point, quant_min, quant_max), x, axis)
    wide, step, zero = _wide(x, _along(scale, x, axis), zero)
    return hlo.convert(_fake(wide, step, zero, quant_min, quant_max)[0], x.dtype)


def _learned_slopes(
    grad: Value, x: Value, scale: Value, zero: Value, low: int, high: int, factor: float
) -> tuple[Value, Value, Value]:
    """Gradients of the input and, for each element, of the scale and the zero point; not in fewer than 32 bits."""
    x, grad, scale, zero = _wide(x, grad, scale, zero)
    level = _quantized(x, scale, zero)
    clamped, inside = _between(level, low, high)
    made = (clamped - zero) * scale
    edge = hlo.select(hlo.less(level, low), low - zero, high - zero)
    of_scale = hlo.select(inside, (made - x) * (1 / scale), edge)
    return (
        hlo.select(inside, grad, 0),
        grad * of_scale * factor,
        hlo.select(inside, 0, -grad * scale * factor),
    )


@lowering("_fake_quantize_learnable_per_tensor_affine_backward")
def learnable_per_tensor_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    scale: Value,
    zero_point: Value,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> list[Value]:
    zero = hlo.clamp(quant_min, hlo.round_nearest_even(_first(zero_point)), quant_max)
    of_x, *others = _learned_slopes(grad, x, _first(scale), zero, quant_min, quant_max, grad_factor)
    dims = range(x.ndim)
    return [of_x, *(hlo.reshape(hlo.reduce_sum(slope, dims), (1,)) for slope in others)]


@lowering("_fake_quantize_learnable_per_channel_affine_backward")
def learnable_per_channel_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    scale: Value,
    zero_point: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> list[Value]:
    zero = _along(hlo.clamp(quant_min, hlo.round_nearest_even(zero_point), quant_max), x, axis)
    of_x, *others = _learned_slopes(grad, x, _along(scale, x, axis), zero, quant_min, quant_max, grad_factor)
    dims = [dim for dim in range(x.ndim) if dim != axis]
    return [of_x, *(hlo.reduce_sum(slope, dims) for slope in others)]
