"""Grid sampling in two and three dimensions, and its gradients.

Per axis, a coordinate of the grid becomes a place in elements, then a few taps: whole positions with weights. A result
is the sum over all combinations of the axes' taps. Places, weights and masks are all [N, ...grid], elements are taken
from planes flattened to [N, C, elements].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Context, lowering

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


class Tap(NamedTuple):
    """One of an axis' positions: a whole number (as floating point), whether it is inside, weight and slope."""

    position: Value
    inside: Value
    weight: Value
    slope: Value
    """The weight's derivative by the grid's coordinate."""


def _unnormalize(coordinate: Value, size: int, align_corners: bool) -> Value:
    """From -1..1 to elements: to the outer elements' centers if align_corners, else to their outer edges."""
    if align_corners:
        return hlo.multiply(hlo.divide(coordinate + 1, 2), size - 1)
    return hlo.divide(hlo.multiply(coordinate + 1, size) - 1, 2)


def _clip(place: Value, size: int) -> tuple[Value, Value]:
    """Cut to the elements, NaN to the first, and the derivative (zero at both ends, as PyTorch has it)."""
    above, below = hlo.greater(place, 0), hlo.less(place, size - 1)
    clipped = hlo.minimum(hlo.select(above, place, 0), size - 1)
    return clipped, hlo.convert(above & below, place.dtype)


def _reflect(place: Value, size: int, align_corners: bool) -> tuple[Value, Value]:
    """Mirrored at the outer elements' centers (align_corners) or edges until inside, and the derivative."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span <= 0:
        return hlo.zeros_like(place), hlo.zeros_like(place)
    shifted = place - low
    distance = hlo.abs(shifted)
    extra = hlo.remainder(distance, span)
    flips = hlo.floor(hlo.divide(distance, span))
    even = hlo.equal(hlo.remainder(flips, 2), 0)
    reflected = hlo.select(even, extra + low, hlo.subtract(span + low, extra))
    forward = hlo.equal(even, hlo.greater_equal(shifted, 0))
    ones = hlo.ones_like(place)
    return reflected, hlo.select(forward, ones, hlo.negate(ones))


def _bring_inside(place: Value, size: int, padding_mode: int, align_corners: bool) -> tuple[Value, Value]:
    if padding_mode == BORDER:
        return _clip(place, size)
    if padding_mode == REFLECTION:
        reflected, turned = _reflect(place, size, align_corners)
        clipped, kept = _clip(reflected, size)
        return clipped, turned * kept
    return place, hlo.ones_like(place)


def _is_inside(position: Value, size: int) -> Value:
    return hlo.greater_equal(position, 0) & hlo.less_equal(position, size - 1)


def _cubic_weights(rest: Value) -> list[tuple[Value, Value]]:
    """Keys' convolution kernel with a = -0.75 and its derivative, for the taps -1, 0, 1 and 2."""
    a = -0.75
    results = []
    for tap, sign in ((-1, 1.0), (0, 1.0), (1, -1.0), (2, -1.0)):
        x = rest - tap if sign > 0 else hlo.subtract(tap, rest)
        if tap in (0, 1):
            weight = (x * (a + 2) - (a + 3)) * x * x + 1
            slope = (x * (3 * (a + 2)) - 2 * (a + 3)) * x
        else:
            weight = (((x - 5) * x + 8) * x - 4) * a
            slope = ((x * 3 - 10) * x + 8) * a
        results.append((weight, slope * sign))
    return results


def _taps(coordinate: Value, size: int, mode: int, padding_mode: int, align_corners: bool) -> list[Tap]:
    place = _unnormalize(coordinate, size, align_corners)
    scale = (size - 1) / 2 if align_corners else size / 2
    if mode == BICUBIC:
        low = hlo.floor(place)
        taps = []
        for step, (weight, slope) in zip(range(-1, 3), _cubic_weights(place - low), strict=True):
            position, _ = _bring_inside(low + step, size, padding_mode, align_corners)
            taps.append(Tap(position, _is_inside(position, size), weight, slope * scale))
        return taps
    place, turned = _bring_inside(place, size, padding_mode, align_corners)
    if mode == NEAREST:
        position, one = hlo.round_nearest_even(place), hlo.ones_like(place)
        return [Tap(position, _is_inside(position, size), one, hlo.zeros_like(place))]
    low, slope = hlo.floor(place), turned * scale
    high = low + 1
    return [
        Tap(low, _is_inside(low, size), high - place, hlo.negate(slope)),
        Tap(high, _is_inside(high, size), place - low, slope),
    ]


class Corner(NamedTuple):
    """One combination of the axes' taps: a flat position (0 where outside), whether inside, and the taps."""

    element: Value
    inside: Value
    taps: tuple[Tap, ...]

    def weight(self, without: int = -1) -> Value | None:
        """The product of the axes' weights, except that of one axis."""
        product = None
        for axis, tap in enumerate(self.taps):
            if axis != without:
                product = tap.weight if product is None else product * tap.weight
        return product


def _corners(
    grid: Value, sizes: Sequence[int], interpolation_mode: int, padding_mode: int, align_corners: bool
) -> list[Corner]:
    rank = len(sizes)
    axes = [
        _taps(hlo.index_in_dim(grid, -1, rank - 1 - axis), sizes[axis], interpolation_mode, padding_mode, align_corners)
        for axis in range(rank)
    ]
    corners = []
    for taps in itertools.product(*axes):
        index = inside = None
        for tap, size in zip(taps, sizes, strict=True):
            position = hlo.convert(hlo.select(tap.inside, tap.position, 0), torch.int32)
            index = position if index is None else hlo.multiply(index, size) + position
            inside = tap.inside if inside is None else inside & tap.inside
        assert index is not None and inside is not None
        corners.append(Corner(index, inside, taps))
    return corners


def _over_channels(x: Value, shape: Sequence[int]) -> Value:
    return hlo.broadcast_in_dim(x, shape, [0, *range(2, len(shape))])


def _elements(planes: Value, corner: Corner) -> Value:
    """planes [N, C, elements] at a corner [N, ...]: [N, C, ...], zero where that is outside."""
    found = hlo.gather(
        planes,
        hlo.expand_dims(corner.element, [-1]),
        offset_dims=[1],
        collapsed_slice_dims=[2],
        start_index_map=[2],
        slice_sizes=[1, planes.shape[1], 1],
        operand_batching_dims=[0],
        start_indices_batching_dims=[0],
    )
    return hlo.select(_over_channels(corner.inside, found.shape), found, 0)


def _planes(x: Value) -> Value:
    return hlo.reshape(x, (*x.shape[:2], math.prod(x.shape[2:])))


@lowering("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    ctx: Context, x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    shape = ctx.out.shape
    if 0 in shape:
        return hlo.full(shape, 0, ctx.out.dtype)
    dtype = hlo.compute_dtype(x.dtype)
    planes, grid = _planes(hlo.convert(x, dtype)), hlo.convert(grid, dtype)
    total = hlo.full(shape, 0, dtype)
    for corner in _corners(grid, x.shape[2:], interpolation_mode, padding_mode, align_corners):
        weight = corner.weight()
        assert weight is not None
        total = total + _elements(planes, corner) * _over_channels(weight, shape)
    return total


@lowering("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    dtype = hlo.compute_dtype(x.dtype)
    if 0 in x.shape or 0 in grad.shape:
        zeros = (hlo.full(x.shape, 0, dtype), hlo.full(grid.shape, 0, dtype))
        return [value if wanted else None for value, wanted in zip(zeros, output_mask, strict=True)]
    grad, grid = hlo.convert(grad, dtype), hlo.convert(grid, dtype)
    corners = _corners(grid, x.shape[2:], interpolation_mode, padding_mode, align_corners)
    return [
        _input_grad(grad, x.shape, corners) if output_mask[0] else None,
        _grid_grad(grad, _planes(hlo.convert(x, dtype)), len(x.shape) - 2, corners) if output_mask[1] else None,
    ]


def _input_grad(grad: Value, shape: Sequence[int], corners: Sequence[Corner]) -> Value:
    """Each corner's share of the gradient, added to the element it was taken from. Channels last: rows move as one."""
    batch, channels, elements = shape[0], shape[1], math.prod(shape[2:])
    updates, places = [], []
    for corner in corners:
        weight = corner.weight()
        assert weight is not None
        share = grad * _over_channels(weight, grad.shape)
        updates.append(hlo.reshape(share, (batch, channels, share.numel // (batch * channels))))
        index = hlo.select(corner.inside, corner.element, elements)  # out of range: dropped
        places.append(hlo.reshape(index, (batch, index.numel // batch, 1)))
    total = hlo.scatter(
        hlo.full((batch, elements, channels), 0, grad.dtype),
        hlo.concatenate(places, 1),
        hlo.transpose(hlo.concatenate(updates, 2), [0, 2, 1]),
        hlo.add,
        update_window_dims=[2],
        inserted_window_dims=[1],
        scatter_dims_to_operand_dims=[1],
        input_batching_dims=[0],
        scatter_indices_batching_dims=[0],
    )
    return hlo.reshape(hlo.transpose(total, [0, 2, 1]), shape)


def _grid_grad(grad: Value, planes: Value, rank: int, corners: Sequence[Corner]) -> Value:
    """For each axis the sum over corners of element * gradient * the weight's slope along that axis."""
    totals: list[Value | None] = [None] * rank
    for corner in corners:
        share = hlo.reduce_sum(_elements(planes, corner) * grad, [1])
        for axis in range(rank):
            others = corner.weight(without=axis)
            assert others is not None
            part = share * others * corner.taps[axis].slope
            before = totals[axis]
            totals[axis] = part if before is None else before + part
    columns = [total for total in reversed(totals) if total is not None]
    return hlo.stack(columns, -1)
