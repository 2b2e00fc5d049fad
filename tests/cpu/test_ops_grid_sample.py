"""Sampling a grid: modes, paddings, corners, points outside and nan, two and three dimensions."""

from __future__ import annotations

import pytest
from op_checks import F32, F64, check, nan, random


@pytest.mark.parametrize("padding", ("zeros", "border", "reflection"))
@pytest.mark.parametrize("mode", ("bilinear", "nearest", "bicubic"))
def test_two_dimensions(mode, padding):
    grid = random(2, 3, 4, 2, low=-1.4, high=1.4)
    for corners in (False, True):
        check("grid_sample", (2, 2, 4, 5), grid, mode=mode, padding_mode=padding, align_corners=corners)


@pytest.mark.parametrize("mode", ("bilinear", "nearest"))
def test_three_dimensions(mode):
    check("grid_sample", (1, 2, 3, 4, 3), random(1, 2, 2, 2, 3, low=-1.2, high=1.2), mode=mode, align_corners=False)


def test_awkward():
    check("grid_sample", (1, 1, 3, 3), [[[[nan, 0.0], [0.0, 5.0]]]], align_corners=False, grad=False)
    check("grid_sample", (1, 1, 3, 3), (1, 2, 2, 2), dtypes=(F64,), align_corners=False)
    check("affine_grid", (2, 2, 3), size=[2, 1, 3, 4], align_corners=False, dtypes=(F32,))
