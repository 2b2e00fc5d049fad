"""Convolutions of one to three spatial dimensions, transposed ones, and their gradients.

Layouts stay PyTorch's (NCHW, OIHW): XLA brings them into the order its kernels want, and doing it
by hand measured the same. Three things matter for XLA:CPU (jaxlib 0.10.2), which otherwise takes
loops 50 to 300 times slower:
  kernels are reversed by `hlo.reverse`, never in the convolution's window;
  the weight's gradient of a grouped convolution uses feature groups, never batch groups;
  depthwise kernels are a fused sum over the kernel's places, and 1x1 kernels are batched dots.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.matmul import contract, is_wide_integer
from torch_tpu.ops.registry import Context, lowering

_MOST_PLACES = 64
"""Depthwise kernels with more places go through the general convolution, to keep programs short."""


class Geometry:
    """How the windows of a (not transposed) convolution lie on its input."""

    def __init__(
        self,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        rank: int,
        platform: str,
    ):
        self.stride, self.padding, self.dilation = (_expand(given, rank) for given in (stride, padding, dilation))
        self.groups, self.rank = groups, rank
        self.platform = platform

    def output_size(self, size: Sequence[int], kernel: Sequence[int]) -> list[int]:
        found = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(size, kernel, self.stride, self.padding, self.dilation, strict=True)
        ]
        return [n if isinstance(n, hlo.Dim) else max(0, n) for n in found]

    def input_size(self, size: Sequence[int], kernel: Sequence[int], extra: Sequence[int]) -> list[int]:
        """The input's size that a transposed convolution makes from an output's."""
        return [
            (n - 1) * s - 2 * p + d * (k - 1) + e + 1
            for n, k, s, p, d, e in zip(
                size, kernel, self.stride, self.padding, self.dilation, _expand(extra, self.rank), strict=True
            )
        ]

    def pointwise(self, kernel: Sequence[int]) -> bool:
        """A product of channels alone, on the platform where that is better done by a dot."""
        return self.platform == "cpu" and self.groups == 1 and prod(kernel) == 1 and not any(self.padding)

    def depthwise(self, channels: int, kernel: Sequence[int]) -> bool:
        """One input channel a group, on the platform where that is better written out."""
        return self.platform == "cpu" and 1 < self.groups == channels and prod(kernel) <= _MOST_PLACES

    def by_places(self, dtype: torch.dtype) -> bool:
        """Whether the platform has no convolution of a dtype, so that it is written out."""
        return self.platform == "tpu" and is_wide_integer(dtype)

    def places(self, kernel: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Every index of a kernel."""
        return itertools.product(*(range(k) for k in kernel))

    def reach(self, size: Sequence[int]) -> list[int]:
        """How many inputs the same kernel place meets, from its first to its last window."""
        return [(n - 1) * s + 1 for n, s in zip(size, self.stride, strict=True)]


def _expand(values: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


def _pad(x: Value, pads: Sequence[tuple[int, int]], interior: Sequence[int] | None = None) -> Value:
    """Pads (or cuts) the spatial dimensions."""
    low, high = [0, 0, *(pad[0] for pad in pads)], [0, 0, *(pad[1] for pad in pads)]
    return hlo.pad(x, low, high, 0, [0, 0, *interior] if interior is not None else None)


def _cut(x: Value, size: Sequence[int]) -> Value:
    """The first places of the spatial dimensions."""
    return hlo.slice(x, [0] * x.ndim, [*x.shape[:2], *size])


def _real_parts(function: Callable[..., Value], x: Value, y: Value) -> Value:
    """A bilinear function of complex values from four of real ones."""
    a, b, c, d = hlo.real(x), hlo.imag(x), hlo.real(y), hlo.imag(y)
    return hlo.make_complex(function(a, c) - function(b, d), function(a, d) + function(b, c))


# The three products: each takes and gives [N, C, ...] and [K, C / groups, ...] in the compute dtype


def forward(x: Value, weight: Value, geometry: Geometry) -> Value:
    if x.dtype.is_complex:
        return _real_parts(lambda a, b: forward(a, b, geometry), x, weight)
    kernel = weight.shape[2:]
    size = geometry.output_size(x.shape[2:], kernel)
    shape = (x.shape[0], weight.shape[0], *size)
    dtype = hlo.compute_dtype(x.dtype)
    if 0 in shape or not x.numel or not weight.numel:
        return hlo.full(shape, 0, dtype)
    if geometry.pointwise(kernel):
        return _mix_channels(weight, _strided(x, geometry), (1, 1))
    if geometry.depthwise(x.shape[1], kernel):
        return hlo.in_passes(lambda a, b: _depthwise(a, b, geometry, size), x, weight)
    if geometry.by_places(dtype):
        return _by_places(_pad(x, [(p, p) for p in geometry.padding]), weight, geometry, size)
    return hlo.convolution(
        x,
        weight,
        stride=geometry.stride,
        padding=[(p, p) for p in geometry.padding],
        rhs_dilation=geometry.dilation,
        groups=geometry.groups,
        dtype=dtype,
    )


def input_gradient(grad: Value, weight: Value, size: Sequence[int], geometry: Geometry) -> Value:
    """The input's gradient, of the given spatial size; also the forward pass of a transposed convolution."""
    if grad.dtype.is_complex:
        return _real_parts(lambda a, b: input_gradient(a, b, size, geometry), grad, weight)
    kernel, groups = weight.shape[2:], geometry.groups
    shape = (grad.shape[0], weight.shape[1] * groups, *size)
    dtype = hlo.compute_dtype(grad.dtype)
    if 0 in shape or not grad.numel or not weight.numel:
        return hlo.full(shape, 0, dtype)
    pads = []
    for n, m, k, s, p, d in zip(
        size, grad.shape[2:], kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True
    ):
        low = d * (k - 1) - p
        high = n - (m - 1) * s - 1 - low + d * (k - 1)
        pads.append((low, low + s - 1 if isinstance(high, hlo.Dim) else high))  # at most, of a convolution's gradient
    spread = [s - 1 for s in geometry.stride]
    if geometry.pointwise(kernel):
        return _cut(_pad(_mix_channels(weight, grad, (0, 1)), pads, spread), size)
    reversed_weight = hlo.reverse(weight, range(2, weight.ndim))
    plain = Geometry([1], [0], geometry.dilation, groups, geometry.rank, geometry.platform)
    if weight.shape[:2] == (groups, 1) and geometry.depthwise(shape[1], kernel):
        return hlo.in_passes(lambda a, b: _depthwise(_pad(a, pads, spread), b, plain, size), grad, reversed_weight)
    if groups > 1:
        grouped = hlo.reshape(reversed_weight, (groups, weight.shape[0] // groups, *weight.shape[1:]))
        moved = hlo.move_dim(grouped, 0, 1)
        reversed_weight = hlo.reshape(moved, (moved.shape[0], moved.shape[1] * moved.shape[2], *kernel))
    if geometry.by_places(dtype):
        return _by_places(_pad(grad, pads, spread), hlo.move_dim(reversed_weight, 0, 1), plain, size)
    spatial = "".join(map(str, range(geometry.rank)))
    found = hlo.convolution(
        grad,
        reversed_weight,
        stride=plain.stride,
        padding=pads,
        lhs_dilation=geometry.stride,
        rhs_dilation=geometry.dilation,
        groups=groups,
        rhs_spec=f"io{spatial}",
        dtype=dtype,
    )
    return _cut(found, size)


def weight_gradient(x: Value, grad: Value, kernel: Sequence[int], geometry: Geometry) -> Value:
    """The weight's gradient: a convolution over the batch, in which the outputs' gradient is the
    (dilated) kernel.
    """
    if x.dtype.is_complex:
        return _real_parts(lambda a, b: weight_gradient(a, b, kernel, geometry), x, grad)
    groups, channels = geometry.groups, x.shape[1] // geometry.groups
    shape = (grad.shape[1], channels, *kernel)
    dtype = hlo.compute_dtype(x.dtype)
    if 0 in shape or not x.numel or not grad.numel:
        return hlo.full(shape, 0, dtype)
    if geometry.pointwise(kernel):
        return _channel_products(_cut(_strided(x, geometry), grad.shape[2:]), grad, shape)
    pads = [
        (p, (k - 1) * d + reach - n - p)
        for n, k, p, d, reach in zip(
            x.shape[2:],
            kernel,
            geometry.padding,
            geometry.dilation,
            geometry.reach(grad.shape[2:]),
            strict=True,
        )
    ]
    if hlo.varies(x.shape[2:]):  # what is cut off at the end varies, too
        reached = geometry.reach(grad.shape[2:])
        ends = [reach + (k - 1) * d for reach, k, d in zip(reached, kernel, geometry.dilation, strict=True)]
        x = _cut(_pad(x, [(p, p) for p in geometry.padding]), ends)
        pads = [(0, 0)] * geometry.rank
    if geometry.depthwise(x.shape[1], kernel):
        return hlo.in_passes(lambda a, b: _depthwise_weight(_pad(a, pads), b, kernel, geometry), x, grad)
    x = _pad(x, [(0, min(high, 0)) for _, high in pads])
    pads = [(low, max(high, 0)) for low, high in pads]
    spatial = "".join(map(str, range(geometry.rank)))
    if groups > 1:
        split = hlo.reshape(x, (x.shape[0], groups, channels, *x.shape[2:]))
        x = hlo.transpose(split, (2, 1, 0, *range(3, split.ndim)))
        x = hlo.reshape(x, (channels, groups * x.shape[2], *x.shape[3:]))
        grad = hlo.move_dim(grad, 0, 1)
    return hlo.convolution(
        x,
        grad,
        stride=geometry.dilation,
        padding=pads,
        rhs_dilation=geometry.stride,
        groups=groups,
        lhs_spec=f"bf{spatial}" if groups > 1 else f"fb{spatial}",
        rhs_spec=f"oi{spatial}" if groups > 1 else f"io{spatial}",
        out_spec=f"fb{spatial}",
        dtype=dtype,
    )


# Kernels of one place


def _strided(x: Value, geometry: Geometry) -> Value:
    return hlo.slice(x, [0] * x.ndim, x.shape, [1, 1, *geometry.stride])


def _mix_channels(weight: Value, x: Value, contracted: tuple[int, int]) -> Value:
    """A [K, C, 1, ...] kernel by [N, C, ...], as one dot a sample, which leaves both in their order."""
    matrix = hlo.reshape(weight, weight.shape[:2])
    batched = hlo.broadcast_in_dim(matrix, (x.shape[0], *matrix.shape), [1, 2])
    flat = hlo.reshape(x, (*x.shape[:2], prod(x.shape[2:])))
    product = contract(batched, flat, ([contracted[0] + 1], [contracted[1]]), ([0], [0]))
    return hlo.reshape(product, (*product.shape[:2], *x.shape[2:]))


def _channel_products(x: Value, grad: Value, shape: Sequence[int]) -> Value:
    """The weight's gradient of a kernel of one place: a dot a sample, summed over samples."""
    left, right = (hlo.reshape(v, (*v.shape[:2], prod(v.shape[2:]))) for v in (grad, x))
    return hlo.reshape(hlo.reduce_sum(contract(left, right, ([2], [2]), ([0], [0])), [0]), shape)


# Kernels written out


def _meets(padded: Value, place: Sequence[int], geometry: Geometry, size: Sequence[int]) -> Value:
    """The inputs [N, C, ...] that a place of the kernel meets, one for each output."""
    start = [index * d for index, d in zip(place, geometry.dilation, strict=True)]
    limit = [low + n for low, n in zip(start, geometry.reach(size), strict=True)]
    return hlo.slice(padded, [0, 0, *start], [*padded.shape[:2], *limit], [1, 1, *geometry.stride])


def _by_places(padded: Value, weight: Value, geometry: Geometry, size: Sequence[int]) -> Value:
    """The sum over the kernel's places of dots over channels; [N, C, ...] (padded) to [N, K, ...]."""
    groups, samples = geometry.groups, padded.shape[0]
    matrices = hlo.reshape(weight, (groups, weight.shape[0] // groups, *weight.shape[1:]))
    total = None
    for place in geometry.places(weight.shape[2:]):
        part = _meets(padded, place, geometry, size)
        part = hlo.reshape(part, (samples, groups, part.shape[1] // groups, prod(size)))
        matrix = hlo.slice(matrices, [0, 0, 0, *place], [*matrices.shape[:3], *(index + 1 for index in place)])
        matrix = hlo.reshape(matrix, matrices.shape[:3])
        term = contract(matrix, part, ([2], [2]), ([0], [1]), platform=geometry.platform)
        total = term if total is None else total + term
    assert total is not None, "a kernel has a place"
    return hlo.reshape(hlo.move_dim(total, 2, 0), (samples, weight.shape[0], *size))


def _depthwise(x: Value, weight: Value, geometry: Geometry, size: Sequence[int]) -> Value:
    """The sum over the kernel's places of shifted inputs by that place's weights; [N, C, ...] to
    [N, K, ...].
    """
    dtype = hlo.compute_dtype(x.dtype)
    channels, multiple = x.shape[1], weight.shape[0] // x.shape[1]
    padded = _pad(hlo.convert(x, dtype), [(p, p) for p in geometry.padding])
    weight = hlo.convert(weight, dtype)
    total = None
    for place in geometry.places(weight.shape[2:]):
        part = _meets(padded, place, geometry, size)
        factor = hlo.slice(weight, [0, 0, *place], [weight.shape[0], 1, *(index + 1 for index in place)])
        part = hlo.expand_dims(part, [2]) if multiple > 1 else part
        lead = (1, channels, multiple) if multiple > 1 else (1, channels)
        term = part * hlo.reshape(factor, (*lead, *(1 for _ in place)))
        total = term if total is None else total + term
    assert total is not None, "a kernel has a place"
    return hlo.reshape(total, (x.shape[0], weight.shape[0], *size))


def _depthwise_weight(padded: Value, grad: Value, kernel: Sequence[int], geometry: Geometry) -> Value:
    """For each place of the kernel in turn, the sum of the gradient by the shifted (and padded) input."""
    dtype = hlo.compute_dtype(padded.dtype)
    padded, grad = hlo.convert(padded, dtype), hlo.convert(grad, dtype)
    samples, channels = padded.shape[:2]
    multiple, size = grad.shape[1] // channels, grad.shape[2:]
    grad = hlo.reshape(grad, (samples, channels, multiple, *size))
    reach, zero = geometry.reach(size), hlo.scalar(0, torch.int32)

    def body(index: Value, total: Value) -> list[Value]:
        rest = index
        start: list[Value] = []
        for k, d in zip(reversed(kernel), reversed(geometry.dilation), strict=True):
            start.insert(0, hlo.remainder(rest, k) * d)
            rest = hlo.divide(rest, k)
        part = hlo.dynamic_slice(padded, [zero, zero, *start], [samples, channels, *reach])
        part = hlo.slice(part, [0] * part.ndim, part.shape, [1, 1, *geometry.stride])
        summed = hlo.reduce_sum(hlo.expand_dims(part, [2]) * grad, [0, *range(3, grad.ndim)])
        return [hlo.dynamic_update_slice(total, hlo.expand_dims(summed, [0]), [index, zero, zero])]

    count = prod(kernel)
    sums = hlo.fori_loop(count, [hlo.full((count, channels, multiple), 0, dtype)], body)[0]
    return hlo.reshape(hlo.move_dim(sums, 0, 2), (channels * multiple, 1, *kernel))


# What PyTorch calls


def convolve(
    ctx: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
) -> Value:
    if min(padding, default=0) < 0:
        raise RuntimeError("negative padding is not supported")
    geometry = Geometry(stride, padding, dilation, groups, x.ndim - 2, ctx.platform)
    if transposed:
        size = geometry.input_size(x.shape[2:], weight.shape[2:], output_padding)
        out = input_gradient(x, weight, size, geometry)
    else:
        out = forward(x, weight, geometry)
    if bias is not None:
        out = out + hlo.reshape(hlo.convert(bias, out.dtype), (1, bias.numel, *(1 for _ in out.shape[2:])))
    return hlo.convert(out, x.dtype)


@lowering("convolution", "convolution_overrideable", format_of=("input", "weight"))
def convolution(
    ctx: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    return convolve(ctx, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@lowering("_convolution")
def convolution_with_hints(
    ctx: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    cudnn_enabled: bool,
    allow_tf32: bool,
) -> Value:
    return convolve(ctx, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def gradients(
    ctx: Context,
    grad: Value,
    x: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    """Of input, weight and bias, those that are asked for. A transposed convolution swaps the roles
    of its ends.
    """
    geometry = Geometry(stride, padding, dilation, groups, x.ndim - 2, ctx.platform)
    results: list[Value | None] = [None, None, None]
    if output_mask[0]:
        kernel = hlo.conj(weight)
        if transposed:  # with an output padding of a stride or more there may be windows too many
            gradient = _cut(forward(grad, kernel, geometry), x.shape[2:])
        else:
            gradient = input_gradient(grad, kernel, x.shape[2:], geometry)
        results[0] = hlo.convert(gradient, x.dtype)
    if output_mask[1]:
        source = hlo.conj(x)
        ends = (grad, source) if transposed else (source, grad)
        results[1] = hlo.convert(weight_gradient(*ends, weight.shape[2:], geometry), weight.dtype)
    if output_mask[2]:
        wide = hlo.convert(grad, hlo.compute_dtype(grad.dtype))
        results[2] = hlo.convert(hlo.reduce_sum(wide, [dim for dim in range(grad.ndim) if dim != 1]), grad.dtype)
    return results


@lowering("convolution_backward")
def convolution_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    return gradients(ctx, grad, x, weight, stride, padding, dilation, transposed, groups, output_mask)


@lowering("convolution_backward_overrideable")
def convolution_backward_overrideable(
    ctx: Context,
    grad: Value,
    x: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    return gradients(ctx, grad, x, weight, stride, padding, dilation, transposed, groups, output_mask)


# Named kernels of other backends, and the time-batch-channel form


@lowering("_slow_conv2d_forward", "slow_conv3d_forward")
def slow_convolution(
    ctx: Context,
    x: Value,
    weight: Value,
    kernel_size: Sequence[int],
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
) -> Value:
    return convolve(ctx, x, weight, bias, stride, padding, [1])


@lowering("_slow_conv2d_backward.output_mask")
def slow_convolution_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    weight: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_mask: Sequence[bool],
) -> list[Value | None]:
    return gradients(ctx, grad, x, weight, stride, padding, [1], False, 1, output_mask)


@lowering("slow_conv_dilated2d", "slow_conv_dilated3d")
def dilated_convolution(
    ctx: Context,
    x: Value,
    weight: Value,
    kernel_size: Sequence[int],
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
) -> Value:
    return convolve(ctx, x, weight, bias, stride, padding, dilation)


@lowering("slow_conv_transpose2d", "slow_conv_transpose3d")
def transposed_convolution(
    ctx: Context,
    x: Value,
    weight: Value,
    kernel_size: Sequence[int],
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
) -> Value:
    return convolve(ctx, x, weight, bias, stride, padding, dilation, True, output_padding)


@lowering("_conv_depthwise2d", "conv_depthwise3d")
def depthwise_convolution(
    ctx: Context,
    x: Value,
    weight: Value,
    kernel_size: Sequence[int],
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Value:
    return convolve(ctx, x, weight, bias, stride, padding, dilation, groups=x.shape[1])


@lowering("conv_tbc")
def conv_tbc(ctx: Context, x: Value, weight: Value, bias: Value, pad: int = 0) -> Value:
    """[time, batch, channels] by [width, channels, outputs]."""
    out = convolve(ctx, hlo.transpose(x, (1, 2, 0)), hlo.transpose(weight, (2, 1, 0)), bias, [1], [pad], [1])
    return hlo.transpose(out, (2, 0, 1))
