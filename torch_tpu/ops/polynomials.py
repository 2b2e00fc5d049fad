"""Lowerings of orthogonal polynomials. The degree is an operand: it may differ from element to element.

All obey a three-term recurrence p[k+1] = (alpha(k) x + beta(k)) p[k] - gamma(k) p[k-1] (DLMF 18.9, table 18.9.1),
which a loop follows up to the largest degree. Chebyshev polynomials inside (-1, 1) have a closed form, which goes
before the recurrence from the degree on where PyTorch uses it too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import RESULT, Context, lowering

Step = Callable[[Value, Value, Value, Value], Value]
"""(k, x, p[k], p[k-1]) -> p[k+1]; k is a scalar of x's dtype, at least 1."""


def _recur(x: Value, degree: Value, wanted: Value, first: Value, step: Step) -> Value:
    """p[degree], from p[0] = 1 and p[1] = first; stops once all wanted elements are reached or NaN."""

    def due(k: Value) -> Value:
        return hlo.less(hlo.broadcast_to(k, x.shape), degree)

    def going(k: Value, latest: Value, previous: Value) -> Value:
        return hlo.reduce_or(due(k) & wanted & hlo.equal(latest, latest), range(x.ndim))

    def body(k: Value, latest: Value, previous: Value) -> list[Value]:
        following = step(k, x, latest, previous)
        return [k + 1, hlo.select(due(k), following, latest), hlo.select(due(k), latest, previous)]

    result = hlo.while_loop([hlo.scalar(1.0, x.dtype), first, hlo.ones_like(x)], going, body)[1]
    return hlo.select(hlo.less(degree, 1), hlo.ones_like(x), result)


def _chebyshev_step(k: Value, x: Value, latest: Value, previous: Value) -> Value:
    return (x + x) * latest - previous


def _parity(degree: Value) -> Value:
    """1 for an even degree, -1 for an odd one."""
    half = degree * 0.5
    return hlo.select(hlo.equal(half, hlo.floor(half)), hlo.ones_like(degree), -1)


def _over(numerator: Value, denominator: Value) -> Value:
    """The quotient inside (-1, 1), where the denominator is not 0; unused elsewhere."""
    zero = hlo.equal(denominator, 0)
    return numerator / hlo.select(zero, hlo.ones_like(denominator), denominator)


@dataclass(frozen=True, slots=True)
class Chebyshev:
    """One of the four kinds: DLMF 18.5.1 to 18.5.4 and table 18.6.1."""

    first: Callable[[Value], Value]
    """x -> p[1]."""
    closed: Callable[[Value, Value], Value]
    """(degree, angle) -> p[degree](cos(angle))."""
    at_one: Callable[[Value], Value]
    """degree -> p[degree](1)."""
    at_minus_one: Callable[[Value], Value]
    """degree -> p[degree](-1), but for the sign (-1)^degree."""
    closed_from: int

    def __call__(self, x: Value, degree: Value) -> Value:
        inside = hlo.less(hlo.abs(x), 1) & hlo.greater(degree, self.closed_from)
        edge = hlo.equal(hlo.abs(x), 1)
        angle = hlo.acos(hlo.select(inside, x, hlo.zeros_like(x)))
        result = _recur(x, degree, ~inside & ~edge, self.first(x), _chebyshev_step)
        result = hlo.select(inside, self.closed(degree, angle), result)
        at_edge = hlo.select(hlo.greater(x, 0), self.at_one(degree), self.at_minus_one(degree) * _parity(degree))
        return hlo.select(edge, at_edge, result)


CHEBYSHEV: dict[str, Chebyshev] = {
    "t": Chebyshev(
        first=lambda x: x,
        closed=lambda n, angle: hlo.cosine(n * angle),
        at_one=hlo.ones_like,
        at_minus_one=hlo.ones_like,
        closed_from=6,
    ),
    "u": Chebyshev(
        first=lambda x: x + x,
        closed=lambda n, angle: _over(hlo.sine((n + 1) * angle), hlo.sine(angle)),
        at_one=lambda n: n + 1,
        at_minus_one=lambda n: n + 1,
        closed_from=8,
    ),
    "v": Chebyshev(
        first=lambda x: x + x - 1,
        closed=lambda n, angle: _over(hlo.cosine((n + 0.5) * angle), hlo.cosine(angle * 0.5)),
        at_one=hlo.ones_like,
        at_minus_one=lambda n: n + n + 1,
        closed_from=8,
    ),
    "w": Chebyshev(
        first=lambda x: x + x + 1,
        closed=lambda n, angle: _over(hlo.sine((n + 0.5) * angle), hlo.sine(angle * 0.5)),
        at_one=lambda n: n + n + 1,
        at_minus_one=hlo.ones_like,
        closed_from=8,
    ),
}
_HERMITE_LIMIT = {torch.float32: 128, torch.float64: 512}
"""PyTorch gives NaN for Hermite polynomials of higher degree."""


def _hermite(x: Value, degree: Value, twice: bool) -> Value:
    """H (the physicists') if twice, else He (the probabilists'): DLMF 18.9.2 with table 18.9.1."""
    factor = x + x if twice else x
    weight = 2.0 if twice else 1.0
    allowed = hlo.less_equal(degree, _HERMITE_LIMIT[x.dtype])
    result = _recur(x, degree, allowed, factor, lambda k, _, latest, previous: factor * latest - k * weight * previous)
    return hlo.select(allowed, result, float("nan"))


def _laguerre(x: Value, degree: Value) -> Value:
    def step(k: Value, x: Value, latest: Value, previous: Value) -> Value:
        return ((2 * k + 1 - x) * latest - k * previous) / (k + 1)

    result = _recur(x, degree, hlo.not_equal(x, 0), 1 - x, step)
    return hlo.select(hlo.equal(x, 0), hlo.ones_like(x), result)


def _legendre(x: Value, degree: Value) -> Value:
    def step(k: Value, x: Value, latest: Value, previous: Value) -> Value:
        return ((2 * k + 1) * x * latest - k * previous) / (k + 1)

    edge = hlo.equal(hlo.abs(x), 1)
    result = _recur(x, degree, ~edge, x, step)
    return hlo.select(edge, hlo.select(hlo.greater(x, 0), hlo.ones_like(x), _parity(degree)), result)


def _shifted(polynomial: Chebyshev) -> Callable[[Value, Value], Value]:
    """The same on [0, 1]."""
    return lambda x, n: polynomial(x + x - 1, n)


def _register() -> None:
    rows: dict[str, Callable[[Value, Value], Value]] = {
        "hermite_polynomial_h": lambda x, n: _hermite(x, n, True),
        "hermite_polynomial_he": lambda x, n: _hermite(x, n, False),
        "laguerre_polynomial_l": _laguerre,
        "legendre_polynomial_p": _legendre,
    }
    for kind, chebyshev in CHEBYSHEV.items():
        rows[f"chebyshev_polynomial_{kind}"] = chebyshev
        rows[f"shifted_chebyshev_polynomial_{kind}"] = _shifted(chebyshev)
    for name, function in rows.items():

        def lower(ctx: Context, x: Value, n: Value, function: Callable[..., Value] = function) -> Value:
            x, n = hlo.broadcast(x, n)
            degree = hlo.select(hlo.less(n, 0), hlo.ceil(n), hlo.floor(n))  # PyTorch converts it to an integer
            return hlo.select(hlo.less(degree, 0), hlo.zeros_like(x), function(x, degree))

        overloads = (f"special_{name}{suffix}" for suffix in ("", ".x_scalar", ".n_scalar"))
        lowering(*overloads, promote=RESULT)(lower)


_register()
