"""How often the loops of optimized HLO run, as far as their text says."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch_tpu.aot.hlo_text import Computation, Instruction, Module

_KNOWN = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_MEANS_SAME = ("copy", "bitcast", "convert", "copy-done", "reshape")


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """How often a while loop's body runs, or None where that is not a constant.

    The compiler's annotation is taken where it is. Otherwise the loop has to count: its condition compares an element of
    its state with a constant, the element starts at a constant, and the body adds a constant to it.
    """
    known = _KNOWN.search(loop.attributes)
    if known:
        return int(known[1])
    condition = module.computations[loop.attribute("condition") or ""]
    body = module.computations[loop.attribute("body") or ""]
    compare = _comparison(module, condition)
    if compare is None:
        return None
    direction, left, right = compare
    index = _element(condition, left)
    if index is None:  # the counter is on the other side
        index, right, direction = _element(condition, right), left, mirrored(direction)
    limit = _constant(condition, right)
    if limit is None and (place := _element(condition, right)) is not None:
        limit = _initial(computation, loop, place)  # a constant that the loop carries along
    if index is None or limit is None:
        return None
    start, step = _initial(computation, loop, index), _increment(module, body, index)
    if start is None or not step:
        return None
    return count(direction, start, limit, step)


def executed(module: Module) -> Iterator[tuple[Computation, int]]:
    """The entry, and the bodies of loops, branches and calls, with how often each runs.

    Loops whose steps are not a constant count once, and all branches of a conditional as if they were taken.
    """
    todo = [(module.entry, 1)]
    while todo:
        computation, times = todo.pop()
        yield computation, times
        for instruction in computation.instructions:
            if instruction.opcode in ("while", "conditional", "call"):
                trips = trip_count(module, computation, instruction) if instruction.opcode == "while" else 1
                todo += [(module.computations[name], times * (trips or 1)) for name in instruction.called]


def mirrored(direction: str) -> str:
    """The comparison of the same two values the other way round."""
    return {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)


def count(direction: str, start: int, limit: int, step: int) -> int | None:
    """Steps until the comparison with the limit fails; None where it never does, or where that is not known."""
    if direction in ("GT", "GE"):
        start, limit, step, direction = -start, -limit, -step, "LT" if direction == "GT" else "LE"
    if direction == "NE":
        whole, rest = divmod(limit - start, step)
        return whole if rest == 0 and whole >= 0 else None
    if direction not in ("LT", "LE") or step <= 0:
        return None
    last = limit if direction == "LE" else limit - 1
    return max(0, (last - start) // step + 1)


def _comparison(module: Module, condition: Computation) -> tuple[str, Instruction, Instruction] | None:
    """The direction and both sides of the comparison that a condition returns, in terms of the condition."""
    root = _through(condition, condition.root)
    given, scope = [condition.by_name[name] for name in root.operands], condition
    if root.opcode == "fusion":  # a comparison of the fusion's operands, or of constants in it
        scope = module.computations[root.called[0]]
        root = _through(scope, scope.root)
    if root.opcode == "or":
        root = _low_words(scope, root) or root
    if root.opcode != "compare":
        return None
    sides = [_through(scope, scope.by_name[name]) for name in root.operands]
    if scope is not condition:
        sides = [given[int(side.operand_text)] if side.opcode == "parameter" else side for side in sides]
    return root.attribute("direction") or "", sides[0], sides[1]


def _low_words(computation: Computation, root: Instruction) -> Instruction | None:
    """The comparison that decides between numbers of 64 bits below 2**32, which the compiler compares as pairs of words:
    `high < limit or (high == 0 and low < limit)`."""
    for both in (computation.by_name[name] for name in root.operands):
        if both.opcode == "and":
            high, low = (computation.by_name[name] for name in both.operands)
            if (
                high.attribute("direction") == "EQ"
                and _constant(computation, computation.by_name[high.operands[1]]) == 0
            ):
                return low
    return None


def _through(computation: Computation, instruction: Instruction) -> Instruction:
    """What an instruction is a copy of."""
    while instruction.opcode in _MEANS_SAME:
        instruction = computation.by_name[instruction.operands[0]]
        if instruction.opcode == "copy-start":
            instruction = computation.by_name[instruction.operands[0]]
    return instruction


def _element(computation: Computation, instruction: Instruction) -> int | None:
    """Which element of the loop's state an instruction is."""
    if instruction.name not in computation.by_name:
        return None
    found = _through(computation, instruction)
    return int(found.attribute("index") or 0) if found.opcode == "get-tuple-element" else None


def _constant(computation: Computation, instruction: Instruction) -> int | None:
    found = _through(computation, instruction) if instruction.name in computation.by_name else instruction
    if found.opcode == "constant" and re.fullmatch(r"\{?-?\d+\}?", found.operand_text):
        return int(found.operand_text.strip("{}"))
    return None


def _initial(computation: Computation, loop: Instruction, index: int) -> int | None:
    state = _through(computation, computation.by_name[loop.operands[0]])
    if state.opcode != "tuple":
        return None
    return _constant(computation, computation.by_name[state.operands[index]])


def _increment(module: Module, body: Computation, index: int) -> int | None:
    """What the body adds to an element of the state."""
    state = _through(body, body.root)
    if state.opcode != "tuple":
        return None
    new = _through(body, body.by_name[state.operands[index]])
    operands = [body.by_name[name] for name in new.operands]
    if new.opcode == "fusion":
        inner = module.computations[new.called[0]]
        new = _through(inner, inner.root)
        sides = [_through(inner, inner.by_name[name]) for name in new.operands]
        operands = [operands[int(side.operand_text)] if side.opcode == "parameter" else side for side in sides]
    if new.opcode not in ("add", "subtract") or len(operands) != 2:
        return None
    sign = -1 if new.opcode == "subtract" else 1
    for counter, other in (operands, operands[::-1]):
        step = _constant(body, other)
        if step is not None and _element(body, counter) == index:
            return sign * ((step + 2**31) % 2**32 - 2**31)  # words without sign: 2**32 - 1 more is 1 less
    return None
