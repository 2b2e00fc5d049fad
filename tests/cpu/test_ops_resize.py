"""Resizing: nearest, linear, cubic, antialiased; by size and by scale; up and down."""

from __future__ import annotations

import pytest
from op_checks import BF16, F32, U8, channels_last, check, check_error


@pytest.mark.parametrize("mode", ("nearest", "nearest-exact", "linear"))
def test_one_dimension(mode):
    check("interpolate", (1, 2, 5), size=8, mode=mode)
    check("interpolate", (1, 2, 5), scale_factor=0.5, mode=mode)


@pytest.mark.parametrize("mode", ("nearest", "nearest-exact", "bilinear", "bicubic", "area"))
def test_two_dimensions(mode):
    check("interpolate", (1, 2, 4, 5), size=(7, 3), mode=mode)
    check("interpolate", (1, 2, 4, 5), scale_factor=(1.5, 2.3), mode=mode)
    check("interpolate", channels_last(2, 3, 4, 4), size=(6, 6), mode=mode)


def test_three_dimensions():
    check("interpolate", (1, 1, 3, 4, 2), size=(5, 2, 3), mode="trilinear")
    check("interpolate", (1, 1, 3, 4, 2), scale_factor=2, mode="nearest")


def test_options():
    for mode in ("bilinear", "bicubic"):
        check("interpolate", (1, 2, 4, 5), size=(7, 3), mode=mode, align_corners=True)
        check("interpolate", (1, 2, 6, 5), size=(3, 4), mode=mode, antialias=True)
    check("interpolate", (1, 1, 3, 3), scale_factor=1.7, mode="bilinear", recompute_scale_factor=True)
    check("interpolate", (1, 1, 3, 3), size=(1, 1), mode="bilinear", align_corners=True)
    check("interpolate", (1, 2, 4, 4), size=(6, 6), mode="bilinear", dtypes=(BF16,))
    check("interpolate", (1, 2, 4, 4), size=(6, 6), mode="nearest", dtypes=(U8,))
    check("interpolate", (0, 2, 4, 4), size=(6, 6), mode="bilinear", dtypes=(F32,))
    check_error("interpolate", (1, 2, 4), size=(3, 3), mode="nearest")
