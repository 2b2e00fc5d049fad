"""Why the TPU compiler refused a program, in words that help.

The compiler's own messages have codes (https://openxla.org/xla/errors); the one that matters most, a program that does not fit,
names no buffer, so that they are taken from its dump of where it put them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch_tpu.aot.buffers import Assignment
from torch_tpu.aot.locate import Places

_HBM = re.compile(r"E1000: CompileTimeHbmOom: .*?\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")
_CODE = re.compile(r"\b(E\d{4}): (\w+)")
_LOCATION = re.compile(r"Suspected Python Code Location:\s*\n\s*(\S+)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        r"Custom emitter for (\S+) not found",
        "the TPU has no implementation of the custom call {0}",
        "leave out the operator that makes it, or run it on the CPU (x.cpu())",
    ),
    (
        r"E1001: ",
        "one operation needs more of the chip's vector memory than there is",
        "use smaller blocks in the kernel, or raise xla_tpu_scoped_vmem_limit_kib by torch_tpu.settings.xla_options",
    ),
    (
        r"Unexpected operand type for (\w+): (\w+)",
        "the TPU has no {0} for {1}",
        "use a smaller dtype: float32, or complex64",
    ),
    (
        r"(a collective names device \d+, and the program is compiled for \d+)",
        "{0}",
        "capture the collective with all devices of its group",
    ),
    (
        r"(?:complex64|complex128|c64|c128|f64|float64)[^\n]*(?:not supported|unsupported|not implemented)",
        "an element type is not supported on TPUs",
        "use float32 or bfloat16",
    ),
)
"""What is looked for in a message, what it means, and what to do."""


@dataclass(frozen=True)
class Failure:
    """Why a program does not compile."""

    headline: str
    do: str
    """What to do about it."""
    operator: str
    """The operator and the Python line that the compiler suspects; or nothing."""
    needed: int | None
    """Bytes of HBM that the program wants; None where that is not the reason."""
    available: int | None
    message: str
    """The compiler's own words."""
    code: str
    """The compiler's code for it, such as "E1000"; or nothing."""

    @property
    def exceeds_by(self) -> int | None:
        return None if self.needed is None or self.available is None else self.needed - self.available


def explain(error: str, text: str, assignment: Assignment | None = None, *, backward: bool = False) -> Failure:
    """A compiler's message in words.

    Args:
        error: what the compiler said.
        text: the StableHLO module.
        assignment: where it put the buffers, if it got that far.
        backward: whether the step that the module is of computes gradients.
    """
    location = _LOCATION.search(error)
    suspect = Places(text).find(location[1]) if location else None
    operator = "" if suspect is None else str(suspect)
    code = _CODE.search(error)
    message = error.strip()
    common = {"operator": operator, "message": message, "code": code[1] if code else ""}
    memory = _HBM.search(error)
    if memory:
        needed, available = _bytes(memory[1], memory[2]), _bytes(memory[3], memory[4])
        if assignment is not None:
            needed = max(needed, assignment.total)
        headline = f"needs {gib(needed)} of HBM and has {gib(available)}: {gib(needed - available)} too much"
        do = _fit(assignment, available, backward=backward)
        return Failure(headline, do, needed=needed, available=available, **common)
    for pattern, meaning, do in _KNOWN:
        found = re.search(pattern, error)
        if found:
            return Failure(meaning.format(*found.groups()), do, needed=None, available=None, **common)
    first = next((line for line in message.splitlines() if line.strip()), "no reason given")
    do = "take the operator that is named out of the program, or report it with the StableHLO text"
    return Failure(first, do, needed=None, available=None, **common)


def _fit(assignment: Assignment | None, available: int, *, backward: bool) -> str:
    """What makes a program smaller, by what takes most memory."""
    more = "use chips with more HBM, or spread the model over several"
    if assignment is not None and assignment.arguments > available:
        taken = f"what it is given (weights, optimizer state, the batch) takes {gib(assignment.arguments)} by itself"
        return f"{taken}, whatever is computed: {more}; or use a smaller dtype for it, or a smaller model"
    if assignment is not None and assignment.arguments > assignment.temporaries + assignment.outputs:
        return (
            f"what it is given takes most (weights, optimizer state, the batch): use a smaller dtype for it, or {more}"
        )
    recompute = "recompute activations (torch.utils.checkpoint), " if backward else ""
    return f"use a smaller batch or shorter sequences, {recompute}or {more}"


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def gib(nbytes: float) -> str:
    """A number of bytes to read: GiB, or MiB where it is small."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 / 4 else f"{nbytes / 2**20:.1f} MiB"
