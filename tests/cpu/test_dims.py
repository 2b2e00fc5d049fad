"""Bounded dimensions: every primitive gives what it gives for the exact sizes, whatever is in the padding."""

from __future__ import annotations

import itertools

import pytest
import torch
from bounded import check

from torch_tpu import hlo
from torch_tpu.errors import BoundedError

FLOAT, INT, BOOL = torch.float32, torch.int64, torch.bool
SIZES = [{"b": 3, "t": 5, "s": 2}, {"b": 4, "t": 8, "s": 7}, {"b": 2, "t": 2, "s": 6}, {"b": 1, "t": 7, "s": 1}]
BT, BTH = ("b", "t"), ("b", "t", 3)


def merged(x):
    """[B, T, ...] -> [B T, ...]: the real rows are no longer the first ones."""
    return hlo.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def swapped(x):
    return merged(hlo.transpose(x, (1, 0, *range(2, x.ndim))))


CASES = {
    "elementwise": (lambda x, y: x * y + 1, BTH, BTH),
    "broadcast": (lambda x, y: x + y, BTH, ("t", 1)),
    "compare with a size": (lambda x: hlo.select(hlo.less(x, x.shape[1]), x, 0), BT),
    "size as number": (lambda x: x * x.shape[0] + hlo.scalar(x.shape[1] * 2 + 1, x.dtype), BT),
    "sum": (lambda x: hlo.reduce_sum(x, [1]), BTH),
    "sum all": (lambda x: hlo.reduce_sum(x, [0, 1, 2]), BTH),
    "mean": (lambda x: hlo.reduce_sum(x, [0, 1]) / (x.shape[0] * x.shape[1]), BTH),
    "max": (lambda x: hlo.reduce_max(x, [1], keep_dim=True), BTH),
    "min of rows": (lambda x: hlo.reduce_min(merged(x), [0]), BTH),
    "prod": (lambda x: hlo.reduce_prod(x, [0]), BT),
    "and": (lambda x: hlo.reduce_and(hlo.greater(x, -9), [0, 1]), BT),
    "merge": (merged, BTH),
    "merge and sum": (lambda x: hlo.reduce_sum(merged(x), [0]), BTH),
    "merge and split": (lambda x: hlo.reshape(merged(x) * 2, x.shape), BTH),
    "split off": (lambda x: hlo.reshape(x, (x.shape[0], x.shape[1], 2, 2)), ("b", "t", 4)),
    "merge inner": (lambda x: hlo.reshape(x, (x.shape[0], x.shape[1] * 3)), BTH),
    "heads": (
        lambda x: hlo.transpose(hlo.reshape(x, (x.shape[0], x.shape[1], 2, 2)), (0, 2, 1, 3)),
        ("b", "t", 4),
    ),
    "grouped heads": (
        lambda x: hlo.reshape(x, (x.shape[0] * 2, 2 * x.shape[2], 3)) * 2,
        ("b", 4, "t", 3),
    ),
    "moves elements": (lambda x: hlo.reshape(x, (x.shape[1], x.shape[0])), BT),
    "moves elements inside": (lambda x: hlo.reshape(x, (2, x.shape[1], x.shape[0] * 2)), ("b", "t", 4)),
    "two layouts": (lambda x, y: merged(x) + swapped(y), BTH, ("t", "b", 3)),
    "two layouts meet": (lambda x, y: hlo.reduce_sum(merged(x) * swapped(y), [0]), BTH, BTH),
    "flatten": (lambda x: hlo.flatten(x) * 2, BTH),
    "transpose": (lambda x: hlo.transpose(x, (2, 1, 0)), BTH),
    "iota": (lambda x: hlo.iota(x.shape, 1, torch.int32), BT),
    "iota of rows": (lambda x: hlo.iota(merged(x).shape, 0, torch.int32), BTH),
    "iota times rows": (lambda x: merged(x) * hlo.iota((x.shape[0] * x.shape[1], 1), 0, torch.float32), BTH),
    "linear index": (lambda x: hlo.linear_index(x.shape, torch.int32), BTH),
    "causal": (
        lambda x: hlo.select(
            hlo.greater_equal(hlo.iota(x.shape, 0, torch.int32), hlo.iota(x.shape, 1, torch.int32)), x, 0
        ),
        ("s", "t"),
    ),
    "dot": (lambda x, y: hlo.dot_general(x, y, contract=([1], [0])), ("b", "t"), ("t", 3)),
    "dot free": (lambda x, y: hlo.dot_general(merged(x), y, contract=([1], [0])), BTH, (3, 2)),
    "dot of rows": (lambda x, y: hlo.dot_general(merged(x), merged(y), contract=([0], [0])), BTH, BTH),
    "dot of rows in two layouts": (lambda x, y: hlo.dot_general(merged(x), swapped(y), contract=([0], [0])), BTH, BTH),
    "dot batch": (
        lambda x, y: hlo.dot_general(x, y, contract=([2], [2]), batch=([0], [0])),
        ("b", "s", 3),
        ("b", "t", 3),
    ),
    "slice": (lambda x: hlo.slice_in_dim(x, 1, 1, x.shape[1]), BTH),
    "slice to": (lambda x: hlo.slice_in_dim(x, 1, 0, x.shape[1] - 1), BTH),
    "slice static by size": (lambda x, y: hlo.slice_in_dim(y, 0, 0, x.shape[1]) * 2, BT, (9, 3)),
    "slice short static by size": (lambda x, y: hlo.slice_in_dim(y, 0, 0, x.shape[1]) * 2, BT, (8, 3)),
    "slice from size": (lambda x, y: hlo.slice_in_dim(y, 0, x.shape[1], 9), BT, (9, 3)),
    "slice between": (lambda x, y: hlo.slice_in_dim(y, 0, x.shape[1], x.shape[1] + x.shape[0]), BT, (14, 3)),
    "slice step": (lambda x: hlo.slice_in_dim(x, 1, 0, x.shape[1], 2), BTH),
    "slice other dim": (lambda x: hlo.slice_in_dim(x, 2, 1, 3), BTH),
    "slice of rows": (lambda x: hlo.slice_in_dim(merged(x), 0, 1, x.shape[0] * x.shape[1]), BTH),
    "last": (lambda x: hlo.index_in_dim(x, 1, -1), BTH),
    "first": (lambda x: hlo.index_in_dim(x, 0, 0), BTH),
    "pad": (lambda x: hlo.pad(x, (0, 2, 0), (0, 1, 1), 7.0), BTH),
    "pad inside": (lambda x: hlo.pad(x, (0, 1), (0, 1), 7.0, (0, 2)), BT),
    "pad cuts": (lambda x: hlo.pad(x, (0, -1), (0, 3), 7.0), BT),
    "pad to size": (lambda x, y: hlo.pad(y, (0,), (x.shape[1],), 7.0), BT, (4,)),
    "pad before by size": (lambda x, y: hlo.pad(y, (x.shape[1],), (1,), 7.0), BT, ("s",)),
    "concatenate": (lambda x, y: hlo.concatenate([x, y], 1), ("b", "s", 3), BTH),
    "concatenate with static": (lambda x, y: hlo.concatenate([y, x, y], 0), ("t", 3), (2, 3)),
    "concatenate itself": (lambda x: hlo.concatenate([x, x, x], 1), BT),
    "concatenate others": (lambda x: hlo.concatenate([merged(x), merged(x)], 1), BTH),
    "concatenate rows": (lambda x: hlo.concatenate([merged(x), merged(x)], 0), BTH),
    "stack": (lambda x: hlo.stack([x, x + 1], 1), BT),
    "rotate half": (
        lambda x: hlo.concatenate([-hlo.slice_in_dim(x, 2, 2, 4), hlo.slice_in_dim(x, 2, 0, 2)], 2),
        ("b", "t", 4),
    ),
    "tile": (lambda x: hlo.reduce_sum(hlo.tile(x, (2, 3)), [0, 1]), BT),
    "tile of sizes": (lambda x: hlo.tile(x, (1, 2)), BT),
    "reverse": (lambda x: hlo.reverse(x, [1, 2]), BTH),
    "update": (lambda x, y: hlo.dynamic_update_slice(x, y, [0, 1, 0]), (4, 10, 3), ("b", "t", 3)),
    "update at size": (lambda x, y: hlo.dynamic_update_slice(x, y, [0, hlo.scalar(y.shape[1], torch.int32), 0]),
                       (4, 16, 3), ("b", "t", 3)),
    "sort": (lambda x: hlo.sort([x], 1)[0], BT),
    "sort pairs": (
        lambda x: hlo.sort([x, hlo.iota(x.shape, 1)], 1, lambda a, b, *rest: hlo.greater(a, b)),
        BT,
    ),
    "sort rows": (lambda x: hlo.sort([merged(x)], 0)[0], BTH),
    "sort other": (lambda x: hlo.sort([x], 2)[0], BTH),
    "top_k": (lambda x: list(hlo.top_k(x, 1)), BT),
    "cumulative": (
        lambda x: hlo.reduce_window(hlo.flatten(x), 0, hlo.add, window=[x.numel], padding=[(x.numel - 1, 0)]),
        BT,
    ),
    "window": (lambda x: hlo.reduce_window(x, 0, hlo.add, window=[1, 2, 1], padding=[(0, 0), (1, 1), (0, 0)]), BTH),
    "convolution": (
        lambda x, w: hlo.convolution(x, w, stride=(1,), padding=((1, 1),)),
        ("b", 3, "t"),
        (5, 3, 3),
    ),
    "convolution with strides": (
        lambda x, w: hlo.convolution(x, w, stride=(2,), padding=((1, 1),)),
        ("b", 3, "t"),
        (5, 3, 3),
    ),
    "loop": (
        lambda x: hlo.fori_loop(3, [x], lambda i, y: [y + hlo.reduce_sum(y, [1], keep_dim=True)])[0],
        BT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
@pytest.mark.parametrize("name", CASES)
def test_primitive(name, sizes):
    build, *shapes = CASES[name]
    check(build, *shapes, sizes=sizes)


TABLES = {
    "take": (lambda x, i: hlo.take(x, i), ((9, 3), BT), (FLOAT, INT), 9),
    "take from varying": (lambda x, i: hlo.take(x, i), (("s", 3), BT), (FLOAT, INT), 1),
    "take from rows": (lambda x, i: hlo.take(merged(x), i), (BTH, ("s",)), (FLOAT, INT), 1),
    "take along": (lambda x, i: hlo.take(x, i, 1), (("b", 6, "t"), ("s",)), (FLOAT, INT), 6),
    "gather in batches": (
        lambda x, i: hlo.gather(
            merged(x), hlo.reshape(i, (i.shape[0] * i.shape[1], 1)), offset_dims=[], collapsed_slice_dims=[1],
            start_index_map=[1], slice_sizes=[1, 1], operand_batching_dims=[0], start_indices_batching_dims=[0],
        ),
        (BTH, BT), (FLOAT, INT), 3,
    ),
    "scatter add": (
        lambda x, i, u: hlo.scatter(
            x, hlo.flatten(i), merged(u), hlo.add, update_window_dims=[1], inserted_window_dims=[0],
            scatter_dims_to_operand_dims=[0], index_vector_dim=1,
        ),
        ((9, 3), BT, BTH), (FLOAT, INT, FLOAT), 9,
    ),
    "scatter windows": (
        lambda x, i, u: hlo.scatter(
            x, hlo.expand_dims(i, [1]), u, lambda old, new: new, update_window_dims=[1],
            inserted_window_dims=[0], scatter_dims_to_operand_dims=[0],
        ),
        ((9, "t"), ("b",), BT), (FLOAT, torch.uint8, FLOAT), 1,
    ),
    "any": (lambda x: hlo.reduce_or(x, [1]), (BT,), (BOOL,), 2),
    "integer max": (lambda x: hlo.reduce_max(x, [0]), (BT,), (torch.int32,), 50),
    "sort integers": (lambda x: hlo.sort([x], 1)[0], (BT,), (torch.int8,), 50),
}  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
@pytest.mark.parametrize("name", TABLES)
def test_indexing(name, sizes):
    build, shapes, dtypes, limit = TABLES[name]
    check(build, *shapes, sizes=sizes, dtypes=dtypes, limit=limit)


REFUSED = {
    "numbers": lambda x: hlo.full((2,), int(x.shape[0]), FLOAT),
    "loops": lambda x: [hlo.index_in_dim(x, 0, i) for i in range(x.shape[0])],
    "comparisons": lambda x: x if x.shape[1] > 4 else x + 1,
    "transforms": lambda x: hlo.fft(hlo.make_complex(x, x), "FFT", [x.shape[1]]),
    "other sizes": lambda x: x + hlo.full((4, 8), 1, FLOAT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises((BoundedError, RuntimeError)) as caught:
        check(REFUSED[name], BT, sizes={"b": 4, "t": 8})
    assert isinstance(caught.value, BoundedError) or "broadcast" in str(caught.value)


def test_sizes_behave_as_numbers():
    from bounded import BOUNDS, SYMBOLS

    from torch_tpu.hlo import dims

    with hlo.Function() as function:
        for name, symbol in SYMBOLS.items():
            dims.declare(function, symbol, function.argument((), INT), BOUNDS[name])
        b, t = (dims.dim(SYMBOLS[name]) for name in "bt")
        assert b * t // t == b and b * t % t == 0 and t + 1 - 1 == t and (2 * t) // 2 == t
        assert b >= 2 and b != 1 and t < 9 and not t > 8 and max(b, 1) is b and min(t, 100) is t and t
        assert dims.bound(b * t + 3) == 35 and str(t - 1) == "7"
        assert {b * t, t * b} == {b * t}
        for left, right in itertools.permutations((b, t), 2):
            with pytest.raises(BoundedError, match="differs from call to call"):
                assert left < right
