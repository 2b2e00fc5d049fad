"""Why programs were made: how the signature of each one differs from the nearest earlier one of the same name.

Whoever makes a program says so by `record`: the call cache for operators, the recorder of fused eager, the backend of
`torch.compile`. `explain_recompiles` answers from what was recorded. Memory is bounded: for each name the last
signatures are kept to compare with, and of all programs the last ones.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Signature = Mapping[str, object]
"""What decided that a new program was needed, by what it is called: {"argument self: size": (8, 8), ...}. Values are
compared by `==`; long tuples, such as a sequence of operators, are compared item by item. Where what is before the
colon has a value of its own ({"argument self:": "a tensor"}) and that differs, the rest about it is not compared."""

_EVENTS = 2048
_NAMES = 4096
_SIGNATURES = 32
_SHOWN_WHOLE = 6
"""Up to this many items, a tuple is shown whole."""


@dataclass(frozen=True)
class Made:
    """One program that was made."""

    kind: str
    """Who made it: "operator", "fused" or "graph"."""
    name: str
    """The operator or function; signatures are compared within a name."""
    signature: Signature
    changes: tuple[str, ...] | None
    """What differs from the nearest earlier signature of that name; None for the first."""
    reason: str
    """What its maker said, such as the guard that failed."""
    shared: bool
    """Whether another signature had this very program already, so that nothing was compiled."""

    def __str__(self) -> str:
        parts = [self.reason] if self.reason else []
        if self.changes is None and not self.reason:
            parts += [f"first: {_brief(self.signature)}" if self.signature else "first"]
        elif self.changes is not None:
            parts += self.changes or ["nothing that is recorded differs: its program had been forgotten"]
        return "; ".join(parts) + (" (the same program as before)" if self.shared else "")


@dataclass(frozen=True)
class Recompiles:
    """The programs that were made, in order; `print` it, or look at its items."""

    made: tuple[Made, ...]

    def __iter__(self) -> Iterator[Made]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)

    def of(self, name: str) -> tuple[Made, ...]:
        """Those of one operator or function."""
        return tuple(item for item in self.made if item.name == name)

    @property
    def again(self) -> tuple[Made, ...]:
        """Those that were not the first of their name."""
        return tuple(item for item in self.made if item.changes is not None)

    def __str__(self) -> str:
        counts = Counter((item.kind, item.name) for item in self.made)
        lines = [f"{_count(len(self.made), 'program')} for {_count(len(counts), 'name')}, {len(self.again)} made again"]
        for (kind, name), count in counts.most_common():
            if count > 1 or any(item.changes is not None for item in self.of(name)):
                lines.append(f"{name} ({kind}): {_count(count, 'program')}")
                lines += [f"    {item}" for item in self.made if (item.kind, item.name) == (kind, name)]
        return "\n".join(lines)


_lock = threading.Lock()
_made: deque[Made] = deque(maxlen=_EVENTS)
_earlier: OrderedDict[tuple[str, str], deque[Signature]] = OrderedDict()
_programs: OrderedDict[str, None] = OrderedDict()


def record(kind: str, name: str, signature: Signature, *, program: str = "", reason: str = "") -> None:
    """Notes that a program was made, or found, for a signature that had none.

    Args:
        kind: who makes it: "operator", "fused" or "graph".
        name: the operator or function.
        program: its key in the caches: two signatures may need the very same program.
        reason: why, where its maker knows more than the signature says.
    """
    with _lock:
        earlier = _earlier.setdefault((kind, name), deque(maxlen=_SIGNATURES))
        _earlier.move_to_end((kind, name))
        if len(_earlier) > _NAMES:
            _earlier.popitem(last=False)
        nearest = min((differences(old, signature) for old in reversed(earlier)), key=len, default=None)
        shared = program in _programs
        if program:
            _programs[program] = None
            _programs.move_to_end(program)
            if len(_programs) > _NAMES:
                _programs.popitem(last=False)
        earlier.append(signature)
        _made.append(Made(kind, name, signature, nearest, reason, shared))


def explain_recompiles() -> Recompiles:
    """Which programs were made since the start or the last `reset_stats`, and what made each one necessary.

    >>> print(torch_tpu.explain_recompiles())
    2 programs for 1 name, 1 made again
    aten::add.Tensor (operator): 2 programs
        first: argument self: a tensor, dtype float32, size (8, 8), layout contiguous, storage its own; ...
        argument self: size (8, 8) -> (8, 9); argument other: size (8, 8) -> (8, 9)
    """
    with _lock:
        return Recompiles(tuple(_made))


def reset() -> None:
    """Forgets which programs were made, but not their signatures: what is made later is still compared with them."""
    with _lock:
        _made.clear()


def differences(old: Signature, new: Signature) -> tuple[str, ...]:
    """What differs between two signatures, in words."""
    differing = [label for label in dict.fromkeys([*new, *old]) if old.get(label) != new.get(label)]
    other = {label for label in differing if label.endswith(":")}
    return tuple(
        _change(label, old.get(label), new.get(label))
        for label in differing
        if label in other or f"{label.partition(': ')[0]}:" not in other
    )


def _change(label: str, old: object, new: object) -> str:
    if isinstance(old, tuple) and isinstance(new, tuple) and max(len(old), len(new)) > _SHOWN_WHOLE:
        place = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        sizes = f"{len(old)} items" if len(old) == len(new) else f"{len(old)} items -> {len(new)}"
        return f"{label} {sizes}, from item {place} on: {_item(old, place)} -> {_item(new, place)}"
    return f"{label} {_text(old)} -> {_text(new)}"


def _item(values: tuple[object, ...], place: int) -> str:
    return _text(values[place]) if place < len(values) else "end"


def _text(value: object) -> str:
    return "none" if value is None else str(value)


def _brief(signature: Signature) -> str:
    """A signature in one line."""
    text, last = "", ""
    for label, value in signature.items():
        part, _, facet = label.partition(":")
        joint = ", " if part == last else "; " if text else ""
        shown = f"{len(value)} items" if isinstance(value, tuple) and len(value) > _SHOWN_WHOLE else _text(value)
        text += f"{joint}{facet.strip() if facet and part == last else label} {shown}"
        last = part
    return text if len(text) <= 400 else text[:397] + "..."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
