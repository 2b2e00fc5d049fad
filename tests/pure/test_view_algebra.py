"""tensor/views.py against PyTorch's as_strided: random sizes, strides and offsets are read and written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_tpu import hlo
from torch_tpu.runtime.client import cpu_client
from torch_tpu.tensor import views
from torch_tpu.tensor.views import View

NUMEL = 24
SHAPES = ((24,), (4, 6), (2, 3, 4), (2, 12), (24, 1))
"""Arrays that a storage of 24 elements may hold."""

few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


@st.composite
def any_view(draw, overlap=True):
    """Sizes, strides and an offset that stay within the storage."""
    for _ in range(50):
        ndim = draw(st.integers(0, 3))
        size = tuple(draw(st.integers(0, 4)) for _ in range(ndim))
        stride = tuple(draw(st.sampled_from((0, 1, 2, 3, 4, 5, 6, 8, 12))) for _ in range(ndim))
        last = sum(max(n - 1, 0) * s for n, s in zip(size, stride, strict=True))
        if last >= NUMEL:
            continue
        offset = draw(st.integers(0, NUMEL - 1 - last))
        view = View(torch.float32, size, stride, offset)
        if overlap or not overlaps(view):
            return view
    return View(torch.float32, (), (), 0)


@st.composite
def nested_view(draw):
    """What slicing, stepping, selecting and permuting an array make: no overlap."""
    x = torch.empty(draw(st.sampled_from(SHAPES)))
    for dim in range(x.dim() - 1, -1, -1):
        first = draw(st.integers(0, x.shape[dim] - 1))
        kind = draw(st.sampled_from(("all", "slice", "select", "step")))
        if kind == "select":
            x = x.select(dim, first)
        elif kind != "all":
            step = 2 if kind == "step" else 1
            part = [slice(None)] * x.dim()
            part[dim] = slice(first, draw(st.integers(first, x.shape[dim])), step)
            x = x[tuple(part)]
    x = x.permute(draw(st.permutations(range(x.dim()))))
    return View(torch.float32, tuple(x.shape), x.stride(), x.storage_offset())


def places(view):
    return torch.arange(NUMEL).as_strided(view.size, view.stride, view.offset).flatten().tolist()


def overlaps(view):
    found = places(view)
    return len(set(found)) != len(found)


def run(body, *inputs):
    """Compiles and runs `body(values) -> value` on CPU tensors."""
    client = cpu_client()
    with hlo.Function() as function:
        result = body(*(function.argument(tuple(x.shape), x.dtype) for x in inputs))
        text = function.module([result])
    program = client.compile(text, [(result.shape, result.dtype)])
    (array,) = program.run([client.put(x) for x in inputs])
    return client.get(array, result.dtype).clone()


def check(shape, view, dtype=torch.float32, write=True):
    """Reads a view of an array, and writes one, as PyTorch does."""
    base = torch.arange(NUMEL, dtype=dtype).reshape(shape)
    flat = base.flatten() if base.dtype is view.dtype else base.flatten().view(view.dtype)
    seen = run(lambda x: views.read(x, view), base)
    assert torch.equal(seen, flat.as_strided(view.size, view.stride, view.offset))
    if not write or overlaps(view):
        return
    value = torch.arange(view.numel, dtype=view.dtype).reshape(view.size) + 100
    expected = flat.clone()
    expected.as_strided(view.size, view.stride, view.offset).copy_(value)
    after = run(lambda x, v: views.write(x, flat.numel(), view, v), base, value)
    assert torch.equal(after.flatten().view(view.dtype)[: flat.numel()], expected)


@few
@given(st.sampled_from(SHAPES), any_view())
def test_any_view(shape, view):
    check(shape, view)


@few
@given(st.sampled_from(SHAPES), nested_view())
def test_views_of_slices(shape, view):
    check(shape, view)


@settings(parent=few, max_examples=20)
@given(any_view(overlap=False))
def test_a_first_write(view):
    """Into a storage without values: what is not written is zero."""
    value = torch.arange(view.numel, dtype=torch.float32).reshape(view.size) + 1
    expected = torch.zeros(NUMEL)
    expected.as_strided(view.size, view.stride, view.offset).copy_(value)
    after = run(lambda v: views.write(None, NUMEL, view, v), value)
    assert torch.equal(after.flatten(), expected)


@pytest.mark.parametrize(
    ("dtype", "other"),
    (
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.int64, torch.float32),
        (torch.int16, torch.int64),
        (torch.bfloat16, torch.int16),
        (torch.uint8, torch.float32),
        (torch.int64, torch.complex64),
        (torch.float32, torch.complex64),
    ),
)
def test_other_dtypes(dtype, other):
    count = NUMEL * dtype.itemsize // other.itemsize
    whole = View(other, (count,), (1,), 0)
    part = View(other, (count // 3,), (2,), 1)
    for view in (whole, part):
        base = torch.arange(NUMEL).to(dtype)
        expected = base.view(other).as_strided(view.size, view.stride, view.offset)
        found = run(lambda x, view=view: views.read(x, view), base)
        assert torch.equal(bits(found), bits(expected))
        value = torch.arange(view.numel).to(other)
        after = run(lambda x, v, view=view: views.write(x, count, view, v), base, value)
        memory = base.view(other).clone()
        memory.as_strided(view.size, view.stride, view.offset).copy_(value)
        assert torch.equal(bits(after.flatten()), bits(memory))


def bits(x):
    return (torch.view_as_real(x) if x.is_complex() else x).contiguous().view(torch.uint8)


def test_conjugates_and_negatives():
    base = torch.tensor([1 + 2j, 3 - 1j])
    view = View(torch.complex64, (2,), (1,), 0, conj=True)
    assert torch.equal(run(lambda x: views.read(x, view), base), base.conj().resolve_conj())
    assert torch.equal(run(lambda x, v: views.write(x, 2, view, v), base, base * 2), (base * 2).conj().resolve_conj())
    negative = View(torch.float32, (2,), (1,), 0, neg=True)
    assert run(lambda x: views.read(x, negative), torch.tensor([1.0, -2.0])).tolist() == [-1, 2]


def test_overlapping_writes_are_refused():
    with hlo.Function() as function, pytest.raises(views.OverlapError, match="single memory location"):
        views.write(None, 4, View(torch.float32, (2, 2), (0, 1), 0), function.argument((2, 2), torch.float32))


@pytest.mark.parametrize(
    ("shape", "view", "ops"),
    (
        ((4, 6), View(torch.float32, (4, 6), (6, 1), 0), ()),
        ((4, 6), View(torch.float32, (6, 4), (1, 6), 0), ("transpose",)),
        ((4, 6), View(torch.float32, (2, 6), (6, 1), 6), ("slice",)),
        ((4, 6), View(torch.float32, (6,), (1,), 12), ("slice",)),
        ((4, 6), View(torch.float32, (5,), (5,), 0), ("slice",)),
        ((4, 6), View(torch.float32, (3, 3), (2, 3), 0), ("gather",)),
    ),
)
def test_the_text_of_a_read(shape, view, ops):
    """Views that slice and permute become slices and transposes; only the others gather."""
    with hlo.Function() as function:
        text = function.module([views.read(function.argument(shape, torch.float32), view)])
    for name in ("gather", "slice", "transpose"):
        assert (f"stablehlo.{name}" in text) == (name in ops), text


def test_the_text_of_a_write():
    with hlo.Function() as function:
        base, row = function.argument((4, 6), torch.float32), function.argument((6,), torch.float32)
        text = function.module([views.write(base, 24, View(torch.float32, (6,), (1,), 6), row)])
    assert "dynamic_update_slice" in text and "scatter" not in text


@pytest.mark.parametrize(
    ("size", "stride", "order"),
    (
        ((2, 3), (3, 1), (0, 1)),
        ((2, 3), (1, 2), (1, 0)),
        ((2, 3), (4, 1), None),
        ((2, 3), (0, 1), None),
        ((1, 3), (7, 1), (0, 1)),
        ((2, 0), (9, 9), (0, 1)),
        ((), (), ()),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
    ),
)
def test_physical_order(size, stride, order):
    assert views.physical_order(size, stride) == order
