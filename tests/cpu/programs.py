"""Random programs: straight lines of Python over a few small tensors, which run on any device.

`programs(...)` is a Hypothesis strategy. It runs each line on the CPU while it makes the next one, so that lines are
mostly valid, and those that PyTorch refuses are known. Numbers are small integers, in floating point too, so that
results are exact. A program prints as its source: what fails can be pasted into a file.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

F32, F64, BF16, F16, C64 = torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64
I64, I32, I16, I8, U8, BOOL = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool
INTEGERS = (I64, I32, I16, I8, U8)
FLOATS = (F32, BF16, F64, F16)
DTYPES = (F32, I64, BOOL, I32, U8, BF16, F64, I8, F16, I16, C64)
SIZES = (2, 3, 1, 4, 0)
LARGEST = {F16: 256, BF16: 128, F32: 2**16, F64: 2**30, C64: 2**12}
"""Numbers up to which programs go on: behind these, results begin to depend on the order of sums."""


# ------------------------------------------------------------------------------------------------ what lines may use


def make(seed: int, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of small whole numbers that says which one it is."""
    count = math.prod(shape)
    numbers = [
        (seed * 3 + place * (2 * seed + 1) + place // 5) % 8 - (0 if dtype in (U8, BOOL) else 2)
        for place in range(count)
    ]
    plain = torch.tensor(numbers, dtype=I64)
    if dtype is BOOL:
        plain = plain % 3 == 1
    made = torch.complex(plain.float(), plain.roll(1).float()) if dtype is C64 else plain.to(dtype)
    return made.reshape(shape).clone().to(device)


class Doubled(torch.autograd.Function):
    """y = 2 x, whose gradient reads a saved tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x * 0


class Trebled(torch.autograd.Function):
    """x *= 3."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


def namespace(device: str) -> dict[str, Any]:
    """What lines see besides each other's tensors."""
    return {
        "torch": torch,
        "F": F,
        "device": device,
        "g": torch.Generator(device),
        "make": lambda seed, shape, dtype: make(seed, shape, dtype, device),
        "host": lambda seed, shape, dtype: make(seed, shape, dtype, "cpu"),
        "checkpoint": checkpoint,
        "Doubled": Doubled,
        "Trebled": Trebled,
    }


# ---------------------------------------------------------------------------------------------------------- programs


@dataclass
class Program:
    """Lines that make the inputs, and lines that compute."""

    inputs: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    """The places of lines that PyTorch refuses on the CPU."""

    def __repr__(self) -> str:
        numbered = [f"{line}  # refused" if place in self.refused else line for place, line in enumerate(self.lines)]
        return "\n    " + "\n    ".join([*self.inputs, "# ---", *numbered]) + "\n"

    def source(self, names: Iterable[str]) -> str:
        """The lines that are not refused as a function of the inputs that returns the tensors it makes."""
        kept = [line for place, line in enumerate(self.lines) if place not in self.refused]
        results = ", ".join(f"{name!r}: {name}" for name in names_made(kept))
        return "".join(
            f"{line}\n"
            for line in [
                f"def program({', '.join(names)}):",
                *(f"    {line}" for line in kept),
                f"    return {{{results}}}",
            ]
        )


def names_made(lines: Iterable[str]) -> list[str]:
    """The variables that lines assign, each once."""
    found: dict[str, None] = {}
    for line in lines:
        left, equals, _ = line.partition(" = ")
        if equals and left.replace(", ", "").isalnum():
            found |= dict.fromkeys(left.split(", "))
    return list(found)


def tensors_in(space: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in space.items() if isinstance(value, torch.Tensor)}


@dataclass
class Outcome:
    """What a program left behind: its variables, and what each line raised."""

    space: dict[str, Any]
    raised: list[Exception | None]


def run_line(line: str, space: dict[str, Any]) -> Exception | None:
    """Runs a line; returns the error that it raised, if it did."""
    try:
        exec(line, space)
    except Exception as error:
        return error.with_traceback(None)
    return None


def run_inputs(program: Program, device: str) -> dict[str, Any]:
    space = namespace(device)
    for line in program.inputs:
        exec(line, space)
    return space


def run(program: Program, device: str) -> Outcome:
    """Runs a program line by line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        space = run_inputs(program, device)
        return Outcome(space, [run_line(line, space) for line in program.lines])


# -------------------------------------------------------------------------------------------------------- comparison


def is_leaf(x: torch.Tensor) -> bool | None:
    """None where autograd refuses to say: for a view whose base was written in a way that it does not follow."""
    try:
        return x.is_leaf
    except RuntimeError:
        return None


def looks(x: torch.Tensor, *, is_view: bool = True) -> tuple[Any, ...]:
    """All that is the same on every device, except for values. Strides of dimensions that have one place say nothing."""
    strides = [step for step, size in zip(x.stride(), x.shape) if size > 1] if x.numel() else []
    flags = (x.is_conj(), x.is_neg(), x.requires_grad, is_leaf(x), is_view and x._is_view())
    return (x.dtype, tuple(x.shape), strides, x.storage_offset() if x.numel() else 0, *flags)


def same_tensor(found: torch.Tensor, expected: torch.Tensor, name: str, is_view: bool = True) -> None:
    given, wanted = looks(found, is_view=is_view), looks(expected, is_view=is_view)
    assert given == wanted, f"{name}: {given} instead of {wanted}"
    torch.testing.assert_close(
        found.detach().cpu(),
        expected.detach().cpu(),
        equal_nan=True,
        msg=lambda text: f"{name}: {text}\n{found}\n{expected}",
    )


def sharing(space: dict[str, torch.Tensor]) -> list[tuple[str, str]]:
    """The pairs of tensors that share memory."""
    filled = {name: x.untyped_storage()._cdata for name, x in space.items() if x.numel()}
    return [(a, b) for a, b in itertools.combinations(filled, 2) if filled[a] == filled[b]]


def same_results(found: dict[str, Any], expected: dict[str, Any], *, histories: bool = True) -> None:
    """Both spaces have the same tensors, which share memory in the same way, and other values.

    Args:
        histories: versions and bases are the same as well.
    """
    wanted, given = tensors_in(expected), tensors_in(found)
    assert given.keys() == wanted.keys(), given.keys() ^ wanted.keys()
    for name, x in wanted.items():
        same_tensor(given[name], x, name, histories)
        assert not histories or given[name]._version == x._version, (
            f"{name}: version {given[name]._version} instead of {x._version}"
        )
    assert sharing(given) == sharing(wanted), f"shared: {set(sharing(given)) ^ set(sharing(wanted))}"
    for name, value in expected.items():
        if isinstance(value, (bool, int, float, complex, list)):
            assert found[name] == value, f"{name}: {found[name]} instead of {value}"


def writes_partly(line: str) -> bool:
    """What a line that is refused has done by then is not defined: `out=` may be resized, the first of a list written."""
    return "_foreach_" in line or "out=" in line


def same_outcome(found: Outcome, expected: Outcome, program: Program) -> None:
    for line, given, wanted in zip(program.lines, found.raised, expected.raised, strict=True):
        kinds = (RuntimeError, type(wanted)) if writes_partly(line) and wanted else type(wanted)
        assert isinstance(given, kinds), f"{line}: {given!r} instead of {wanted!r}"
    if not (expected.raised and expected.raised[-1] and writes_partly(program.lines[-1])):
        same_results(found.space, expected.space)


# ------------------------------------------------------------------------------------------------------------ making


class Maker:
    """Draws a program, one line after the other, and knows the tensors that there are."""

    def __init__(self, draw: Callable[[Any], Any], dtypes: tuple[torch.dtype, ...]):
        self.draw = draw
        self.dtypes = dtypes
        self.program = Program()
        self.space = namespace("cpu")
        self.count = 0
        self.over = False

    # -- drawing

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, max(low, high)))

    def one_of(self, values: Iterable[Any]) -> Any:
        return self.draw(st.sampled_from(list(values)))

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(0, one_in - 1)) == one_in - 1

    def shape(self, dims: int = 3) -> tuple[int, ...]:
        return tuple(self.one_of(SIZES) for _ in range(self.integer(0, dims)))

    def dtype(self) -> torch.dtype:
        return self.one_of(self.dtypes)

    def number(self, of: torch.Tensor | None = None) -> str:
        """A Python number, sometimes of another kind than a tensor's; sometimes a 0-dim tensor of the CPU."""
        plain = str(self.one_of([2, 1, -1, 3, 0]))
        kind = self.integer(0, 7)
        if kind == 7:
            return f"host({self.integer(0, 5)}, (), {self.dtype()})"
        if kind == 6:
            return self.one_of(["True", "2.0", "-0.5", "1.5", "False"])
        return plain

    # -- tensors that there are

    def names(self, where: Callable[[torch.Tensor], bool] = lambda x: True) -> list[str]:
        tensors = {name: x for name, x in tensors_in(self.space).items() if not name.startswith("h")}
        return [name for name, x in tensors.items() if where(x)]

    def tensor(self, where: Callable[[torch.Tensor], bool] = lambda x: True) -> str:
        """One of the tensors; the latest are the likeliest."""
        names = self.names(where)
        if not names:
            raise NothingFits
        names = names[::-1]
        return self.one_of(names[:3] * 2 + names)

    def target(self, where: Callable[[torch.Tensor], bool] = lambda x: True, refused: bool = True) -> str:
        """A tensor to write to. What becomes of elements that share memory is not defined, except where PyTorch refuses.

        Args:
            refused: tensors that PyTorch refuses to write to will do as well.
        """
        return self.tensor(lambda x: where(x) and (not overlaps(x) or (refused and is_expanded(x))))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.space[name]

    def dim(self, name: str) -> int:
        dims = self[name].dim()
        if not dims:
            raise NothingFits
        return self.integer(0, dims - 1) - (dims if self.chance(4) else 0)

    def like(self, name: str, exact: bool = False, apart: bool = False) -> str:
        """Another operand for a tensor: mostly one that broadcasts to it, or a number.

        Args:
            apart: it shares no memory with the tensor, unless both are contiguous: PyTorch then looks where they meet.
        """
        shape = self[name].shape
        if apart:
            found = self.like(name, exact)
            x, y = self[name], self.space.get(found)
            if isinstance(y, torch.Tensor) and x.untyped_storage()._cdata == y.untyped_storage()._cdata:
                return found if x is y or (x.is_contiguous() and y.is_contiguous()) else "2"
            return found
        kind = self.integer(0, 5)
        if kind < 2 and not exact:
            return self.number(self[name])
        if kind == 5 and not exact:
            return self.tensor()
        fits = self.names(lambda x: (x.shape == shape) if exact or kind == 3 else _broadcasts(x.shape, shape))
        return self.one_of(fits[::-1])

    def slices(self, name: str) -> str:
        parts = []
        for size in self[name].shape:
            kind = self.integer(0, 5)
            if kind == 0:
                parts.append(":")
            elif kind == 1 and size:
                parts.append(str(self.integer(-size, size - 1)))
            elif kind == 2:
                parts.append(f"::{self.integer(1, 3)}")
            elif kind == 3:
                start = self.integer(0, size)
                parts.append(f"{start}:{self.integer(start, size)}")
            elif kind == 4:
                parts.append("1:")
            else:
                parts.append("None, :" if self.chance(2) else ":-1")
        if not parts:
            parts = ["None" if self.chance(2) else "..."]
        while len(parts) > 1 and self.chance(3):
            parts.pop()
        if self.chance(4):
            parts[0] = "..."
        return ", ".join(parts)

    def index(self, size: int, low: int = 1, *, from_end: bool = True) -> str:
        """An index tensor into a dimension, without doubles."""
        if not size:
            raise NothingFits
        places = self.draw(st.permutations(range(size)))[: self.integer(low, size)]
        places = [place - size if from_end and self.chance(5) else place for place in places]
        return f"torch.tensor({list(places)}, device=device)"

    # -- lines

    def line(self, text: str, *, is_input: bool = False) -> None:
        """Adds a line and runs it, unless it makes too much."""
        raised = run_line(text, self.space)
        made = [self.space[name] for name in names_made([text]) if isinstance(self.space.get(name), torch.Tensor)]
        too_large = any(x.numel() > 128 or x.dim() > 5 for x in made)
        if too_large:
            for name in names_made([text]):
                self.space.pop(name, None)
            return
        if any(not _is_exact(x) for x in tensors_in(self.space).values()):
            self.over = True
            return
        if is_input:
            assert raised is None, (text, raised)
            self.program.inputs.append(text)
            return
        if isinstance(raised, NotImplementedError) or any(
            part in str(raised) for part in ("not implemented for", " on CPU")
        ):
            self.over = names_made([text]) == []  # what the CPU has no kernel for, but may have resized
            return
        if raised is not None:
            self.over = writes_partly(text)
            self.program.refused.add(len(self.program.lines))
        self.program.lines.append(text)

    def new(self) -> str:
        self.count += 1
        return f"v{self.count}"


class NothingFits(Exception):
    """No tensor that there is suits a step."""


def is_expanded(x: torch.Tensor) -> bool:
    return any(size > 1 and step == 0 for size, step in zip(x.shape, x.stride()))


def overlaps(x: torch.Tensor) -> bool:
    """Some elements share memory."""
    places = torch.zeros((), dtype=I64)
    for size, step in zip(x.shape, x.stride()):
        places = places[..., None] + torch.arange(size) * step
    return places.unique().numel() < places.numel()


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    try:
        return torch.broadcast_shapes(shape, to) == to
    except RuntimeError:
        return False


def _is_exact(x: torch.Tensor) -> bool:
    limit = LARGEST.get(x.dtype)
    if limit is None or not x.numel():
        return True
    largest = float(x.detach().resolve_conj().resolve_neg().to(torch.complex128).abs().max())
    return largest <= limit and not math.isnan(largest)


Step = Callable[[Maker], str | list[str]]
"""Returns lines; in them "_" on the left is a new variable."""
