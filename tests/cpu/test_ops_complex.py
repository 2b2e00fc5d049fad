"""Complex numbers: parts, polar form, lazy conjugates and negatives, arithmetic and its gradients."""

from __future__ import annotations

import torch
from op_checks import C64, F32, check, check_error, check_in_place, check_out, random, strided

C128 = torch.complex128


def test_parts():
    for name in ("real", "imag", "angle", "abs", "conj", "conj_physical", "sgn", "resolve_conj"):
        check(name, (2, 3), dtypes=(C64,))
    check("angle", [0.0, -1.0, 2.0, -0.0], grad=False)
    check("isreal", (3,), dtypes=(C64,))


def test_making():
    check("complex", (3,), (3,))
    check("polar", random(3, low=0.1, high=2), (3,))
    check("view_as_complex", (3, 2))
    check("view_as_real", (3,), dtypes=(C64,))


def test_arithmetic():
    for name in ("add", "sub", "mul", "div", "pow"):
        check(name, (2, 3), (3,), dtypes=(C64,))
    check("mul", (3,), 2.5, dtypes=(C64, C128))
    check(lambda x: x * 1j, (3,))
    check(lambda x: (x.conj() * x).real, (3,), dtypes=(C64,))
    check(lambda x: x.imag.neg() + x.conj().imag, (3,), dtypes=(C64,))


def test_lazy_bits():
    check(lambda x: x.conj() @ x.mH, (2, 3), dtypes=(C64,))
    check(lambda x: x.conj().clone(), (3,), dtypes=(C64,))
    check(lambda x: torch.cat([x.conj(), x]), (3,), dtypes=(C64,))
    check(lambda x: x.t().conj()[1:].resolve_conj(), (2, 3), dtypes=(C64,))


def test_layouts_and_writes():
    check("abs", strided(3, 2), dtypes=(C64,))
    check_in_place("mul", (3,), (3,), dtypes=(C64,), grad=True)
    check_in_place("conj_physical", (3,), dtypes=(C64,))
    check_out("polar", random(3, low=0.1, high=2), (3,))
    check_out("abs", (3,), dtypes=(C64,))
    check(lambda x: x.clone().real.mul_(2), (3,), dtypes=(C64,), grad=False)
    check("abs", (0, 2), dtypes=(C64,))
    check("sum", (2, 3), dtypes=(C64, C128))
    check_error("complex", (3,), torch.zeros(3, dtype=torch.float64))
    check("exp", [0j, 1j, -1 + 2j], dtypes=(C64,))
    check("cumsum", (4,), 0, dtypes=(C64,))
    check("sqrt", [-1.0 + 0j, -1.0 - 0j, 2j], dtypes=(C64,), grad=False)
    check("isclose", (3,), (3,), dtypes=(C64, F32))
