"""Moving elements: joins, repeats, flips, rolls, pads, triangles, windows, and the copies of views."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_checks import (
    ALL,
    BF16,
    C64,
    F32,
    I64,
    channels_last,
    check,
    check_error,
    check_in_place,
    check_layouts,
    check_out,
    expanded,
    random,
    strided,
    transposed,
    values,
)


def test_cat_and_stack():
    check(lambda x, y: torch.cat([x, y]), (2, 3), (1, 3), dtypes=ALL)
    check(lambda x, y: torch.cat([x, y], -1), transposed(2, 3), strided(2, 1), strides=True)
    check(lambda x, y: torch.cat([x, y]), (2, 3), random(1, 3, dtype=BF16))
    check(lambda x, y: torch.cat([x, y]), (2, 3), random(2, 3, dtype=I64))
    check(lambda x, y: torch.cat([x, y]), (0,), (2, 3))
    check(lambda x, y: torch.cat([x, y], 1), channels_last(2, 3, 4, 5), channels_last(2, 1, 4, 5), strides=True)
    check(lambda x, y: torch.stack([x, y], 1), (2, 3), (2, 3), dtypes=(F32, I64))
    check(lambda x, y: torch.stack([x, y]), (), ())
    for join in (torch.hstack, torch.vstack, torch.dstack, torch.column_stack):
        check(lambda x, y, join=join: join([x, y]), (3,), (3,))
    check(lambda x, y: torch.block_diag(x, y), (2, 3), (1, 2))
    check_error(lambda x, y: torch.cat([x, y]), (2, 3), (2, 4), match="Sizes of tensors must match")
    check_error(lambda x: torch.cat([]), (1,))


def test_repeats():
    check(lambda x: x.repeat(2, 3), (2, 3), dtypes=ALL)
    check(lambda x: x.repeat(2, 1, 2), expanded(3, 2))
    check(lambda x: x.repeat(0, 2), (2, 3))
    check("tile", (2, 3), dims=(2,))
    check("repeat_interleave", (2, 3), 2, dim=1)
    check(lambda x: x.repeat_interleave(torch.tensor([0, 2, 1], device=x.device), 0), (3, 2))


def test_flips_and_rolls():
    check("flip", (2, 3, 4), dims=(0, -1), dtypes=ALL)
    check("flip", (2, 3), dims=())
    check("fliplr", (2, 3))
    check("roll", (3, 4), shifts=1)
    check("roll", (3, 4), shifts=(1, -6), dims=(0, -1), dtypes=(F32, I64))
    check("roll", (0, 4), shifts=1, dims=0)
    for turns in (1, 2, 3, -1, 5):
        check("rot90", (2, 3), turns)


def test_triangles():
    for name in ("tril", "triu"):
        check(name, (3, 4), dtypes=ALL)
        check(name, (2, 3, 3), 1)
        check(name, strided(4, 3), -2)
        check_in_place(name, (3, 4), 1)
        check_out(name, (3, 4))
    check("diag", (3,))
    check("diag", (3, 4), 1)
    check("diag_embed", (2, 3), 1)
    check(lambda x: x.diagonal(0, -2, -1), (2, 3, 4))
    check("trace", (3, 4))


def test_pads():
    check("pad", (2, 3), pad=[1, 2], dtypes=(F32, BF16, I64))
    check("pad", (2, 3), pad=[1, -1, 0, 2], value=2.5)
    check("pad", (2, 0), pad=[1, 1])
    for mode in ("reflect", "replicate", "circular"):
        check("pad", (2, 3, 5), pad=[2, 1], mode=mode)
        check("pad", (1, 2, 4, 5), pad=[1, 2, 3, 0], mode=mode, dtypes=(F32, BF16))
        check("pad", (1, 2, 3, 4, 3), pad=[1, 1, 2, 0, 0, 1], mode=mode)
    check_error("pad", (2, 3, 2), pad=[3, 0], mode="reflect", match="less than the corresponding input dimension")


def test_shuffles_and_windows():
    check("pixel_shuffle", (2, 8, 2, 3), 2)
    check("pixel_unshuffle", (2, 2, 4, 6), 2)
    check("channel_shuffle", (2, 4, 2, 2), 2)
    check("unfold", (2, 3, 5, 6), kernel_size=(2, 3), dilation=1, padding=1, stride=2, dtypes=(F32, BF16))
    check("fold", (2, 12, 6), output_size=(4, 5), kernel_size=(2, 3), padding=0, stride=(1, 2))
    check(lambda x: x.unfold(1, 2, 1), (2, 5))
    check(lambda x: x.unfold(0, 3, 2), (7,))


def test_views_and_their_gradients():
    check(lambda x: x.view(3, 4)[1:, ::2].t(), (12,), dtypes=ALL, strides=True)
    check(lambda x: x.expand(4, 3), (3,))
    check(lambda x: x.as_strided((2, 2), (1, 3), 1), (3, 4))
    check(lambda x: x.select(-1, -1), (2, 3))
    check(lambda x: x[None, ..., -1:], (2, 3))
    check(lambda x: list(x.split([1, 0, 2], 1)), (2, 3))
    check(lambda x: list(x.unbind(-1)), (2, 3))
    check(lambda x: list(x.chunk(2, 1)), (2, 5))
    check(lambda x: x.squeeze().unsqueeze(-1), (1, 3, 1))
    check(lambda x: x.movedim((0, 1), (-1, 0)).flatten(1), (2, 3, 4))
    check(lambda x: x.reshape(-1, 2), transposed(2, 3), strides=True)
    check(lambda x: x.contiguous(), expanded(3, 4), strides=True)
    check(lambda x: x.clone(), channels_last(2, 3, 4, 5), strides=True)
    check_layouts("clone", (2, 3, 4, 5), strides=True)
    check(lambda x: x.ravel(), strided(2, 3))


@pytest.mark.parametrize("name", ("select", "slice", "diagonal", "as_strided"))
def test_scatters(name):
    calls = {
        "select": lambda x, y: torch.select_scatter(x, y, 1, -1),
        "slice": lambda x, y: torch.slice_scatter(x, y[:, None].expand(3, 2), 1, 0, 4, 2),
        "diagonal": lambda x, y: torch.diagonal_scatter(x, y, 1),
        "as_strided": lambda x, y: torch.as_strided_scatter(x, y, (3,), (4,), 1),
    }
    check(calls[name], (3, 4), (3,), dtypes=(F32, I64))
    check(lambda x, y: calls[name](x, y.double()), (3, 4), (3,))


@pytest.mark.parametrize("view", (lambda x: x, lambda x: x[1:], lambda x: x[::2], lambda x: x.view(4, 6).t()))
def test_strides_are_those_of_the_storage(view):
    check(lambda x: torch.as_strided_copy(view(x), (2, 2), (1, 2)), (24,), dtypes=(F32, I64), grad=False)
    check(lambda x: torch.as_strided_copy(view(x), (2, 2), (1, 2), 0), (24,), grad=False)
    check(
        lambda x, y: torch.as_strided_scatter(view(x), y, (2, 2), (1, 2)), (24,), (2, 2), dtypes=(F32, I64), grad=False
    )
    check(lambda x, y: torch.as_strided_scatter(view(x), y, (2, 2), (2, 1), 1), (24,), (2, 2), grad=False)
    check(lambda x, y: torch.as_strided_scatter(x[:, None].expand(24, 2), y, (2,), (3,)), (24,), (2,), grad=False)


def test_written():
    check_out(lambda x, y, **named: torch.cat([x, y], **named), (2, 3), (1, 3))
    check_out(lambda x, y, **named: torch.stack([x, y], **named), (2, 3), (2, 3))
    check(lambda x: x.clone().swapaxes_(0, 1), (2, 3), grad=False, strides=True)
    check(lambda x: torch.roll(x, 1), values([1 + 1j, 2j, 3 + 0j], C64))
    check(lambda x: F.pad(x, (1, 1)), values([True, False]))
