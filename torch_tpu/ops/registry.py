"""Declaring and finding lowerings.

A lowering is a pure function `(ctx, *values, **attributes) -> Value | sequence of Values` that writes StableHLO for
one functional ATen overload. In-place, `out=`, view and foreach forms are derived from it (see `ops/schema.py`), and
every mode of execution calls it.

What it is called with: the overload's arguments in schema order and keyword-only ones by name, as far as given;
  tensors are Values (logical shape: views are already applied), lists of tensors are lists, None stays None;
  `Scalar` arguments are weak 0-d Values, so that one program serves all their values, unless named in `static`;
  `float` arguments are Python numbers, unless named in `data`; ints, bools, strings and dtypes are Python's; those that
  are `varying` or in `drawn_from` may be either;
  layout, device, pin_memory, memory_format, generator and out arguments are never passed;
  an argument equal to its default is not passed, so the function's own defaults must be the schema's.
What it returns is cast to the dtypes of `ctx.outs`; the shapes must agree with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from torch_tpu import hlo
from torch_tpu._registry import Registry
from torch_tpu.hlo import Value


class Spec(NamedTuple):
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


ANY = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
"""For `varying`."""


class Promote(Enum):
    """What happens to the tensors and scalars of a call before the lowering sees them."""

    NONE = "as they are"
    RESULT = "converted to the dtype the result is computed in (float32 for bfloat16 and float16)"
    COMMON = "converted to PyTorch's result_type of the inputs, as comparisons need it"


NONE, RESULT, COMMON = Promote.NONE, Promote.RESULT, Promote.COMMON


@dataclass(slots=True)
class Context:
    """What a lowering may want to know besides its arguments."""

    op: str
    """For example "aten::add.Tensor"."""
    outs: tuple[Spec, ...] = ()
    """The results, as PyTorch's meta kernel says; empty where it has none."""
    platform: str = "cpu"
    """"cpu", "tpu" or "cuda"."""
    rng_source: Callable[[], Value] | None = None
    """Makes the operand that `rng` returns; for lowerings declared `random`."""

    state: Value | None = None
    """What `rng` returned."""
    contiguous: bool = True
    """Whether the first tensor argument is contiguous, for gradients whose formula in PyTorch depends on it."""

    @property
    def out(self) -> Spec:
        return self.outs[0]

    @property
    def rng(self) -> Value:
        """ui64[2]: the generator's seed and offset. Asking for it makes the program take random numbers."""
        if self.state is None:
            assert self.rng_source is not None, f"{self.op} is not declared random"
            self.state = self.rng_source()
        return self.state


Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Lowering:
    """One lowering and the facts about it."""

    op: str
    function: Function
    promote: Promote = NONE
    static: frozenset[str] = frozenset()
    """Scalar arguments that are constants of the program."""
    static_integral: frozenset[str] = frozenset()
    """Scalar arguments that are constants when they are whole numbers or 0.5 (an exponent, say), else data."""
    data: frozenset[str] = frozenset()
    """`float` arguments that are operands of the program."""
    varying: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """`int` and `float` arguments that are operands of the program while each lies between its two numbers. Otherwise, and
    in graphs, they are constants, which the lowering may refuse."""
    drawn_from: tuple[str, str] | None = None
    """The arguments between which numbers are drawn ("": from 0), operands of the program while the first is less than
    the second. Whole ones are only where the result is int64 and one uint64 holds their span times 32 random bits, and
    not where the span is a power of two, for which fewer random bits are drawn."""
    counted: bool = False
    """`start`, `end` and `step` come first, and decide how many elements there are; the first and the last of them are
    operands of the program, so that it serves all ranges of one length."""
    fitted: frozenset[str] = frozenset()
    """`Scalar` arguments that are operands of the result's dtype; one too large for an integer dtype is refused."""
    random: bool = False
    """Takes random numbers from ctx.rng."""
    dynamic: bool = False
    """The number of rows depends on the data: returns its results padded to a bound along dimension 0 and, last, a
    0-d int64 Value with the number of rows that are real. `ctx.outs` is empty."""
    padded: tuple[int, ...] | None = None
    """For `dynamic`: which results are padded, all of them if None; the others have their true shapes. A padded
    result with no rows at all is one that was not asked for."""
    padded_along: str | None = None
    """For `dynamic`: the int argument that names the dimension along which a result of several dimensions is padded,
    if that is given and not None; otherwise it is dimension 0."""
    column_major: bool = False
    """For `dynamic`: the columns of its result are contiguous, so that each is a vector of indices."""
    inferred: bool = False
    """PyTorch's meta kernel is wrong for it: shapes and dtypes are those the lowering returns, and `ctx.outs` is
    empty."""
    writes: tuple[str, ...] = ()
    """Arguments that the operator updates although its schema does not say so (running statistics, say): their new
    values follow the declared results, in this order, for those that are given."""
    format_of: tuple[str, ...] = ()
    """Arguments of which one that is channels_last makes the first result so, where PyTorch's meta kernel does not."""
    platforms: frozenset[str] = field(default_factory=lambda: frozenset({"cpu", "tpu", "cuda"}))


LOWERINGS: Registry[str, Lowering] = Registry("lowering")


def lowering(
    *ops: str,
    promote: Promote = NONE,
    static: Sequence[str] = (),
    static_integral: Sequence[str] = (),
    data: Sequence[str] = (),
    varying: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    drawn_from: tuple[str, str] | None = None,
    counted: bool = False,
    fitted: Sequence[str] = (),
    random: bool = False,
    dynamic: bool = False,
    padded: Sequence[int] | None = None,
    padded_along: str | None = None,
    column_major: bool = False,
    inferred: bool = False,
    writes: Sequence[str] = (),
    format_of: Sequence[str] = (),
    platforms: Sequence[str] = ("cpu", "tpu", "cuda"),
) -> Callable[[Function], Function]:
    """Registers a function as the lowering of functional overloads: "add.Tensor", or "relu" for its default.

    Raises:
        ValueError: an overload that ATen does not have, that writes an argument, or that has a lowering already.
    """

    def register(function: Function) -> Function:
        for name in ops:
            overload = resolve(name)
            if overload._schema.is_mutable:
                raise ValueError(f"{name} writes to an argument; declare its functional form and let it be derived")
            key = overload_name(overload)
            LOWERINGS[key] = Lowering(
                key,
                function,
                promote,
                frozenset(static),
                frozenset(static_integral),
                frozenset(data),
                varying,
                drawn_from,
                counted,
                frozenset(fitted),
                random,
                dynamic,
                None if padded is None else tuple(padded),
                padded_along,
                column_major,
                inferred,
                tuple(writes),
                tuple(format_of),
                frozenset(platforms),
            )
        return function

    return register


def adding_to(
    table: dict[str, Callable[..., Any]],
) -> Callable[..., Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """A decorator with names of ATen overloads, under which it puts functions into a table."""

    def named(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            table.update(dict.fromkeys((name if "::" in name else f"aten::{name}" for name in names), function))
            return function

        return register

    return named


def resolve(name: str) -> torch._ops.OpOverload:
    """ "add.Tensor" -> torch.ops.aten.add.Tensor; a name with a namespace ("prims::x") is taken as it is."""
    namespace, _, rest = name.rpartition("::")
    packet, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), overload or "default")
    except AttributeError:
        raise ValueError(f"PyTorch {torch.__version__} has no operator {name!r}") from None


def overload_name(op: torch._ops.OpOverload) -> str:
    """ "aten::add.Tensor"; the default overload has no suffix: "aten::relu"."""
    return op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")


def result_dtype(values: Sequence[Value]) -> torch.dtype:
    """torch.result_type for values: tensors with dimensions before 0-d ones before Python numbers."""
    ranked: list[tuple[int, torch.dtype]] = []
    for value in values:
        dtype = value.dtype
        if value.weak:  # a Python number only says which kind it is
            default = torch.get_default_dtype()
            if dtype.is_complex:
                dtype = hlo.complex_dtype(default)
            elif dtype.is_floating_point:
                dtype = default
        ranked.append((0 if value.weak else 1 if value.ndim == 0 else 2, dtype))
    result: torch.dtype | None = None
    kind = -1
    for rank in (2, 1, 0):
        dtypes = [dtype for where, dtype in ranked if where == rank]
        if not dtypes:
            continue
        joined = dtypes[0]
        for dtype in dtypes[1:]:
            joined = torch.promote_types(joined, dtype)
        if result is None:
            result, kind = joined, _kind(joined)
        elif _kind(joined) > kind:
            if joined.is_complex and result.is_floating_point:
                joined = hlo.complex_dtype(result)
            result, kind = joined, _kind(joined)
    assert result is not None, "no values to find a dtype for"
    return result


def number(x: Value | float, dtype: torch.dtype) -> Value:
    """An argument that may be a constant or data, in the given dtype."""
    return hlo.convert(x, dtype) if isinstance(x, Value) else hlo.scalar(x, dtype)


def _kind(dtype: torch.dtype) -> int:
    if dtype is torch.bool:
        return 0
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def _convert_all(argument: Any, dtype: torch.dtype) -> Any:
    if isinstance(argument, Value):
        converted = hlo.convert(argument, dtype)
        return Value(converted.name, converted.shape, converted.dtype)
    if isinstance(argument, (list, tuple)) and any(isinstance(item, Value) for item in argument):
        return [_convert_all(item, dtype) for item in argument]
    return argument


def values_in(arguments: Sequence[Any]) -> list[Value]:
    found = []
    for argument in arguments:
        if isinstance(argument, Value):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found += [item for item in argument if isinstance(item, Value)]
    return found


def apply(rule: Lowering, ctx: Context, arguments: Sequence[Any], attributes: dict[str, Any]) -> list[Value | None]:
    """Promotes the inputs, calls the lowering and casts its results to `ctx.outs`."""
    common = None
    hlo.current().narrow = ctx.platform == "tpu"
    if rule.promote is not NONE:
        if rule.promote is COMMON or not ctx.outs:
            common = result_dtype(values_in([*arguments, *attributes.values()]))
        dtype = common if common is not None and rule.promote is COMMON else hlo.compute_dtype(common or ctx.out.dtype)
        arguments = [_convert_all(argument, dtype) for argument in arguments]
        attributes = {name: _convert_all(argument, dtype) for name, argument in attributes.items()}
    returned = rule.function(ctx, *arguments, **attributes)
    results: list[Value | None] = [returned] if isinstance(returned, Value) else list(returned)
    if not ctx.outs:
        known = common if rule.promote is RESULT else None
        return [hlo.convert(v, known) if v is not None and known is not None else v for v in results]
    if not len(ctx.outs) <= len(results) <= len(ctx.outs) + len(rule.writes):
        raise AssertionError(f"the lowering of {ctx.op} returned {len(results)} values, not {len(ctx.outs)}")
    for index, (value, spec) in enumerate(zip(results, ctx.outs, strict=False)):
        if value is None:
            continue
        if value.shape != spec.shape:
            raise AssertionError(
                f"the lowering of {ctx.op} returned shape {value.shape} for result {index}, PyTorch says {spec.shape}"
            )
        results[index] = hlo.convert(value, spec.dtype)
    return results
