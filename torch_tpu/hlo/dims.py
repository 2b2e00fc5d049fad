"""Sizes that are known when a program runs, not before: bounded dimensions.

An array of a program has a fixed shape. Where the size of a dimension varies, the array is as large as the size may
become, its *bound*; the elements behind the real size are *padding*, which may hold anything, NaN too. A shape then has
a `Dim` in the place of the int. Every operation of this package keeps the rule that no real element of a result depends
on padding.

Where the real elements are is the Dim's *layout*. Those of a dimension of size n are its first n, but when two
dimensions become one, those of the result are not: of [B, T] with T up to 8, row b starts at 8 b. Such a Dim has
several *factors*, major first, and an element is real if each of its factors' indices is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torch_tpu.errors import BoundedError
from torch_tpu.hlo.core import Function, Value, current
from torch_tpu.hlo.lazily import Lazily

if TYPE_CHECKING:
    import sympy
    from torch.utils._sympy import functions, value_ranges
else:  # 0.3 s, which programs without bounded dimensions need not wait for
    sympy = Lazily("sympy")
    functions = Lazily("torch.utils._sympy.functions")
    value_ranges = Lazily("torch.utils._sympy.value_ranges")


class Symbol(NamedTuple):
    """What a function knows of a variable that sizes are made of."""

    least: int
    most: int
    value: Value
    """Its value, a scalar integer."""


class Factor(NamedTuple):
    """A part of a dimension: its real indices are the first `size` of `bound`."""

    size: sympy.Expr
    bound: int

    @property
    def varies(self) -> bool:
        return not self.size.is_Integer


Factors = tuple[Factor, ...]


def declare(function: Function, symbol: sympy.Symbol, value: Value, most: int, least: int = 2) -> None:
    """Tells a function of a variable before a Dim is made of it."""
    function.sizes[symbol] = Symbol(least, most, value)


def interval(size: Any) -> tuple[int, int]:
    """The least and the most that a size (an expression, a Dim, an int) can be."""
    expr = as_expr(size)
    if expr.is_Integer:
        return int(expr), int(expr)
    function = current()
    found: tuple[int, int] | None = function.intervals.get(expr)
    if found is None:
        ranges = {symbol: value_ranges.ValueRanges(known.least, known.most) for symbol, known in function.sizes.items()}
        unknown = expr.free_symbols - ranges.keys()
        if unknown:
            raise BoundedError(f"the size {expr} depends on {', '.join(map(str, unknown))}, of which nothing is known")
        got = value_ranges.bound_sympy(expr, ranges)
        try:
            found = int(got.lower), int(got.upper)
        except (TypeError, OverflowError):
            raise BoundedError(f"the size {expr} has no bound") from None
        function.intervals[expr] = found
    return found


def bound(size: int) -> int:
    """The most that a size can be: that of its array's dimension."""
    return size.bound if isinstance(size, Dim) else size


def as_expr(size: Any) -> Any:
    return size.expr if isinstance(size, Dim) else size if isinstance(size, sympy.Expr) else sympy.Integer(size)


def simplified(expr: Any) -> Any:
    """An expression of sizes in the form in which equal ones are the same: (s0 ** 2) // s0 is s0."""
    if expr.has(functions.FloorDiv):
        expr = expr.replace(functions.FloorDiv, quotient)
    return sympy.expand(expr)


def dim(expr: Any, factors: Factors | None = None) -> int:
    """The size that an expression stands for: an int if it is one."""
    expr = simplified(expr)
    return int(expr) if expr.is_Integer else Dim(expr, factors)


class _Dim:
    """A size that varies. To lowerings it is an int of at least 2, of which the number cannot be had.

    Arithmetic with it gives a Dim, and where `hlo` takes a number (`hlo.scalar`, `x / size`) it stands for its value in
    the program. A lowering that needs the number itself, or a comparison that sizes within the bounds would answer
    differently, raises BoundedError; the graph is then compiled for each set of sizes. Two Dims are equal if their
    sizes are, whatever their layouts.
    """

    __slots__ = ("_bound", "expr", "factors")

    def __init__(self, expr: Any, factors: Factors | None = None):
        self.expr = expr
        self.factors = factors
        """The layout; None where it is not decided, because the elements along it are all alike."""
        self._bound = -1

    @property
    def bound(self) -> int:
        if self._bound < 0:
            self._bound = 1
            if self.factors is None:
                self._bound = interval(self.expr)[1]
            else:
                for factor in self.factors:
                    self._bound *= factor.bound
        return self._bound

    def laid_out(self) -> Factors:
        """The factors; those of a plain dimension where the layout is not decided."""
        return (Factor(self.expr, self.bound),) if self.factors is None else self.factors

    @property
    def is_plain(self) -> bool:
        """The real elements are the first ones."""
        return self.factors is None or len(self.factors) == 1

    def __str__(self) -> str:
        return str(self.bound)

    def __format__(self, spec: str) -> str:
        return format(self.bound, spec)

    def __repr__(self) -> str:
        return f"Dim({self.expr})"

    def __hash__(self) -> int:
        return hash(self.expr)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dim) and bool(self.expr == other.expr)

    def __bool__(self) -> bool:
        return True

    def _refuse(self, *_: object) -> NoReturn:
        raise BoundedError(f"the number of a size that varies ({self.expr}) is needed to make the program")

    __index__ = __int__ = __float__ = __trunc__ = __round__ = __iter__ = __complex__ = _refuse

    def _less(self, other: Any, least: int) -> bool:
        """Whether other - self is at least `least`."""
        low, high = interval(sympy.expand(as_expr(other) - self.expr))
        if low >= least:
            return True
        if high < least:
            return False
        raise BoundedError(f"whether the size {self.expr} exceeds {as_expr(other)} differs from call to call")

    def __lt__(self, other: Any) -> bool:
        return self._less(other, 1) if _is_size(other) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return self._less(other, 0) if _is_size(other) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return not self._less(other, 0) if _is_size(other) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return not self._less(other, 1) if _is_size(other) else NotImplemented

    def __add__(self, other: Any) -> Any:
        return dim(self.expr + as_expr(other)) if _is_size(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return dim(self.expr - as_expr(other)) if _is_size(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return dim(as_expr(other) - self.expr) if _is_size(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if _is_size(other) and not isinstance(other, _Dim) and other == 1:
            return self
        return dim(self.expr * as_expr(other)) if _is_size(other) else NotImplemented

    def __floordiv__(self, other: Any) -> Any:
        if _is_size(other) and not isinstance(other, _Dim) and other == 1:
            return self
        return dim(quotient(self.expr, as_expr(other))) if _is_size(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return dim(quotient(as_expr(other), self.expr)) if _is_size(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        if not _is_size(other):
            return NotImplemented
        divisor = as_expr(other)
        return 0 if exact_quotient(self.expr, divisor) is not None else dim(functions.Mod(self.expr, divisor))

    def __rmod__(self, other: Any) -> Any:
        if not _is_size(other):
            return NotImplemented
        least, _ = interval(self)
        if -least <= other < least:
            return other if other >= 0 else self + other
        return dim(functions.Mod(as_expr(other), self.expr))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __truediv__(self, other: Any) -> Any:
        return Computed(functions.ToFloat(self.expr)) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / Computed(functions.ToFloat(self.expr))

    def __neg__(self) -> Any:
        return dim(-self.expr)

    def __pos__(self) -> Any:
        return self

    __radd__, __rmul__ = __add__, __mul__


if TYPE_CHECKING:

    class Dim(int):
        """As `_Dim`: lowerings are typed for ints, and a Dim is what they may get in an int's place."""

        expr: Any
        factors: Factors | None
        bound: int
        is_plain: bool

        def __new__(cls, expr: Any, factors: Factors | None = None) -> Dim: ...

        def laid_out(self) -> Factors: ...

else:
    Dim = _Dim
    Dim.__name__ = Dim.__qualname__ = "Dim"


class Computed:
    """A float that is computed from sizes, such as 1 / size. What takes a number for a program takes it.

    A lowering that needs the number itself raises TypeError; the graph is then compiled for each set of sizes.
    """

    __slots__ = ("expr",)

    def __init__(self, expr: sympy.Expr):
        self.expr = expr

    def __repr__(self) -> str:
        return f"Computed({self.expr})"

    def __add__(self, other: Any) -> Computed:
        return Computed(self.expr + _as_float(other))

    def __sub__(self, other: Any) -> Computed:
        return Computed(self.expr - _as_float(other))

    def __rsub__(self, other: Any) -> Computed:
        return Computed(_as_float(other) - self.expr)

    def __mul__(self, other: Any) -> Computed:
        return Computed(self.expr * _as_float(other))

    def __truediv__(self, other: Any) -> Computed:
        return Computed(functions.FloatTrueDiv(self.expr, _as_float(other)))

    def __rtruediv__(self, other: Any) -> Computed:
        return Computed(functions.FloatTrueDiv(_as_float(other), self.expr))

    def __neg__(self) -> Computed:
        return Computed(-self.expr)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the number {self.expr} is known when the program runs, not before")

    __radd__, __rmul__ = __add__, __mul__


def _as_float(number: Any) -> Any:
    if isinstance(number, Computed):
        return number.expr
    if isinstance(number, Dim):
        return functions.ToFloat(number.expr)
    if not isinstance(number, (int, float)):
        raise TypeError(f"a number computed from sizes and {type(number).__name__}")
    return sympy.Float(number)


def _is_size(other: Any) -> bool:
    return isinstance(other, (int, Dim)) and not isinstance(other, bool)


def exact_quotient(size: Any, divisor: Any) -> Any | None:
    """size / divisor if that is a polynomial with whole coefficients, else None."""
    if divisor == 1:
        return size
    if size.is_Integer and divisor.is_Integer:
        return size // divisor if size % divisor == 0 else None
    opaque = {atom: sympy.Dummy(positive=True, integer=True) for atom in (size / divisor).atoms(sympy.Function)}
    ratio = sympy.expand(sympy.cancel((size / divisor).xreplace(opaque)))
    if not ratio.is_polynomial(*ratio.free_symbols):
        return None
    whole = all(coefficient.is_Integer for coefficient in ratio.as_coefficients_dict().values())
    return ratio.xreplace({dummy: atom for atom, dummy in opaque.items()}) if whole else None


def quotient(size: Any, divisor: Any) -> Any:
    """size // divisor. What the divisor divides is taken out, so that (s0 - 1) // 2 + 1 is (s0 + 1) // 2."""
    exact = exact_quotient(size, divisor)
    if exact is not None:
        return exact
    if not divisor.is_Integer:
        return functions.FloorDiv(size, divisor)
    outside, inside = sympy.Integer(0), sympy.Integer(0)
    for term, factor in sympy.expand(size).as_coefficients_dict().items():
        whole, rest = divmod(factor, divisor) if factor.is_Integer else (0, factor)
        if term != 1 and rest:
            whole, rest = 0, factor
        outside, inside = outside + whole * term, inside + rest * term
    return outside + functions.FloorDiv(inside, divisor)


def varies(shape: Sequence[int]) -> bool:
    return any(isinstance(size, Dim) for size in shape)


class DifferentSizes(BoundedError):
    """Sizes meet of which it is not known that they are the same."""

    def __init__(self, sizes: Sequence[Any]):
        self.sizes = [as_expr(size) for size in sizes]
        super().__init__(f"sizes {', '.join(map(str, self.sizes))} are not known to be the same")


def require_whole(shape: Sequence[int], what: str) -> None:
    """Refuses bounded dimensions.

    Raises:
        BoundedError: there is one.
    """
    for size in shape:
        if isinstance(size, Dim):
            raise BoundedError(f"{what} of a size that varies ({size.expr})")


def plain(expr: Any, most: int) -> int:
    """A dimension whose first elements are the real ones."""
    return dim(expr, (Factor(sympy.expand(expr), most),))


def decided(size: int) -> int:
    """A size that arithmetic gave, as that of a dimension whose first elements are the real ones."""
    return plain(size.expr, size.bound) if isinstance(size, Dim) and size.factors is None else size


def joined(factors: Sequence[Factor]) -> list[Factor]:
    """Factors without those that do not vary: the real indices of such a one and the one before are the first ones."""
    found: list[Factor] = []
    for factor in factors:
        if found and not factor.varies:
            last = found.pop()
            factor = Factor(sympy.expand(last.size * factor.size), last.bound * factor.bound)
        found.append(factor)
    return found


def merge(factors: Sequence[Factor]) -> int:
    """One dimension from factors, major first."""
    size: Any = sympy.Integer(1)
    for factor in factors:
        size = size * factor.size
    return dim(size, tuple(joined(factors)))
