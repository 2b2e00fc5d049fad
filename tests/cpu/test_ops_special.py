"""Special functions of probability: erf and its kin, entropy, xlog1py."""

from __future__ import annotations

import pytest
import torch
from op_checks import BF16, F32, F64, I64, check, check_in_place, check_out, inf, nan, random

LINE = [-30.0, -5.0, -1.0, -0.5, -0.0, 0.0, 1e-6, 0.5, 1.0, 4.0, 12.0]


@pytest.mark.parametrize("name", ("erf", "erfc", "special_erfcx", "special_ndtr", "special_log_ndtr"))
def test_error_functions(name):
    check(name, LINE, dtypes=(F32, F64))
    check(name, [nan, inf, -inf], grad=False)


@pytest.mark.parametrize("name", ("erfc", "erfcx", "sinh", "cosh"))
def test_exponentials_of_large_numbers_keep_their_digits(name):
    """Within 8 units in the last place of float32, where an exponent that is rounded first costs 24 to 65."""
    x = torch.cat([torch.linspace(-9, 9, 20001), torch.linspace(-89, 89, 2001) if name[-1] == "h" else torch.zeros(0)])
    function = getattr(torch.special, name, None) or getattr(torch, name)
    exact, found = (function(given).cpu() for given in (x.double(), x.to("tpu")))
    units = torch.exp2(exact.abs().log2().floor() - 23)
    assert torch.where(exact == 0, found.double().abs(), (found.double() - exact).abs() / units).max() < 8


def test_reduced_and_integer():
    check("erf", LINE, dtypes=(BF16,))
    check("erf", [0, 1, -2], dtypes=(I64,))


@pytest.mark.parametrize("name", ("erfinv", "special_ndtri"))
def test_inverses(name):
    check(name, random(9, low=0.02, high=0.98), dtypes=(F32, F64))
    check(name, [0.0, 1.0, -1.0, 1.5, nan], grad=False)


def test_entropy_and_logarithms():
    check("special_entr", [0.0, 0.5, 1.0, -1.0, nan, inf], grad=False)
    check("special_entr", random(4, low=0.1, high=2))
    check("special_xlog1py", [0.0, 1.0, 0.0], [-1.0, 2.0, nan], grad=False)
    check("special_xlog1py", 2.0, random(3, low=0, high=1))
    check("special_xlog1py", random(3, low=0.5, high=1), 2.0)


def test_written():
    check_in_place("erf", (3, 4), grad=True)
    check_out("erfinv", random(4, low=-0.9, high=0.9))
