"""The rules, and what a finding is. A rule's docstring is its section of docs/lint.md.

The first line of a docstring says what is found; the rest why it matters on a TPU and what to do. Ids below TPU100 are
found in source files, the others in programs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from torch_tpu._registry import Registry

Severity = Literal["error", "warning", "note"]
SEVERITIES: dict[Severity, str] = {
    "error": "does not run on a TPU as it is written",
    "warning": "runs, and costs time or memory",
    "note": "may be better in another way",
}


@dataclass(frozen=True)
class Finding:
    """Something to change in a program."""

    rule: str
    """The rule's id, such as "TPU001"."""
    file: str
    line: int
    """From 1; 0 where no line of Python is known."""
    column: int
    """From 1; 0 where it is not known."""
    reason: str
    """What was found, and why it matters."""
    suggestion: str
    """What to do instead."""
    severity: Severity

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.rule} {self.reason}; {self.suggestion}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


RULES: Registry[str, type[Rule]] = Registry("rule")
"""All rules by their ids."""


class Rule:
    """The base of all rules."""

    id: ClassVar[str]
    severity: ClassVar[Severity]

    def __init_subclass__(cls, *, id: str, severity: Severity):
        cls.id, cls.severity = id, severity
        RULES[id] = cls

    @classmethod
    def title(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0].rstrip(".")

    @classmethod
    def text(cls) -> str:
        """The docstring without its first line."""
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[2].strip()


class Selection:
    """Which rules are wanted, by ids or beginnings of ids: "TPU001", "TPU1".

    Args:
        select: these; all if empty.
        ignore: not these.

    Raises:
        ValueError: no rule begins like this.
    """

    def __init__(self, select: Iterable[str] = (), ignore: Iterable[str] = ()):
        self.select, self.ignore = tuple(select), tuple(ignore)
        for prefix in self.select + self.ignore:
            if not any(id.startswith(prefix) for id in RULES):
                raise ValueError(f"no rule begins with {prefix!r}; there are: {', '.join(sorted(RULES))}")

    def __contains__(self, id: object) -> bool:
        name = str(id)
        wanted = not self.select or name.startswith(self.select)
        return wanted and not (self.ignore and name.startswith(self.ignore))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Each finding once, by file and line."""
    return sorted(set(findings), key=lambda found: (found.file, found.line, found.column, found.rule, found.reason))


def count(findings: Sequence[Finding]) -> str:
    """Such as "2 errors, 1 warning"."""
    parts = []
    for severity in SEVERITIES:
        number = sum(finding.severity == severity for finding in findings)
        if number:
            parts.append(f"{number} {severity}{'' if number == 1 else 's'}")
    return ", ".join(parts) or "no findings"


# ------------------------------------------------------------------------------------------------ values and sizes


class Unreadable(Rule, id="TPU000", severity="error"):
    """A file is not Python that this version of Python reads, or is nested too deeply.

    Nothing else can be said of such a file.
    """


class ReadInLoop(Rule, id="TPU001", severity="warning"):
    """A tensor's value is read in every step of a loop.

    `.item()`, `.tolist()`, `.cpu()`, `.numpy()`, `float(t)`, `int(t)` and `bool(t)` wait until the device has computed
    the value. Programs are started asynchronously: while the host waits it starts nothing, and afterwards the device
    waits for the host. In `forward` it also ends the graph that `torch.compile` captures.

    Keep sums on the device (`total += loss.detach()`) and read them after the loop, or read every so many steps
    (`if step % 100 == 0:`), which this rule leaves alone, as it does a loop around the training loop.
    """


class PrintInLoop(Rule, id="TPU002", severity="warning"):
    """A tensor is printed, logged or formatted into a text that is, in every step of a loop.

    Its values are copied to the host for that, which waits for the device as `.item()` does (TPU001).
    """


class BranchOnValue(Rule, id="TPU003", severity="warning"):
    """Python decides by a tensor's value, in a loop or in `forward`.

    `if t:`, `while t:`, `assert t`, `t and u`, `not t` and `a if t else b` read the value, as `.item()` does (TPU001),
    and `torch.compile` cannot capture both ways.

    Compute both and choose by `torch.where`, keep a mask of what is finished, or use `torch.cond`.
    """


class GrowingTensor(Rule, id="TPU004", severity="warning"):
    """A tensor grows by concatenation in a loop, as in a simple `generate`, or a cache grows with each token.

    Each step has new sizes, so that operators need programs of their own for each, and all that was there is copied
    again. In functions that `torch.compile` captures a size that varies has a bound, so that there are few programs, but the
    copies stay. Caches are those of `forward` (`k = torch.cat([cache, k])`, where `k` is returned or stored), and those that
    `generate` of Transformers takes by itself.

    Allocate the largest size once and write into it (`buffer[:, step] = token`); for attention, use a cache of a fixed
    size (`cache_implementation="static"` in Transformers). To collect results, append to a Python list and
    `torch.stack` it after the loop.
    """


class DataDependentSize(Rule, id="TPU005", severity="warning"):
    """A result's size depends on values, in a loop or in `forward`.

    `nonzero`, `masked_select`, `unique`, `x[mask]`, `torch.where(mask)`, `one_hot` without `num_classes` and
    `repeat_interleave` without `output_size`: the host must read the size before it can go on, and each new size
    needs programs of its own.

    Keep the size: `torch.where(mask, x, 0)`, sums with weights, `topk` with a fixed number, `num_classes=`,
    `output_size=`.
    """


class MadeInLoop(Rule, id="TPU006", severity="warning"):
    """A tensor is made from the same Python data in every step.

    Each time the data is copied from the host to the device. Make it once before the loop; in a module, in `__init__`
    by `register_buffer`.
    """


class MadeThenMoved(Rule, id="TPU007", severity="warning"):
    """A tensor is made on the host and moved to the device, in a loop or in `forward`.

    `torch.zeros(n).to(device)` fills host memory and copies it. `torch.zeros(n, device=device)` is computed on the
    device. Random numbers drawn on the device differ from those drawn on the host.
    """


# ------------------------------------------------------------------------------------------------------------ CUDA


class CudaCall(Rule, id="TPU010", severity="error"):
    """A call of `torch.cuda`, or `.cuda()`.

    `torch.cuda` speaks of NVIDIA's devices only. `torch.accelerator` speaks of whichever device there is, and `torch.tpu`
    has most of what `torch.cuda` has. Code that only runs where CUDA is available is not reported.
    """


class CudaDevice(Rule, id="TPU011", severity="error"):
    """The device is "cuda".

    `"cuda" if torch.cuda.is_available() else "cpu"` silently takes the CPU on a TPU machine. Use "tpu", or
    `torch.accelerator.current_accelerator()` for whichever device there is.
    """


class CudaPackage(Rule, id="TPU012", severity="error"):
    """A package that only works with CUDA is imported.

    Imports that may fail (`try: ... except ImportError:`, `if is_flash_attn_available():`) are not reported.
    """


class CudaOption(Rule, id="TPU013", severity="warning"):
    """An option that only concerns CUDA.

    It does nothing on a TPU, or asks for a kernel that is not there. What serves its purpose is named. Code that only reads
    such an option is not reported.
    """


class NcclBackend(Rule, id="TPU014", severity="error"):
    """Processes are to communicate by NCCL.

    NCCL is a library for NVIDIA's devices. `torch.distributed.init_process_group()` without a backend takes the device's
    own, `tpu_dist`.
    """


class Float16(Rule, id="TPU015", severity="warning"):
    """float16, or a scaler for its gradients.

    bfloat16 is as fast on a TPU (for a product of 2048 x 2048 on a v6e the compiler expects 3% fewer cycles than for float16)
    and has the range of float32, so that gradients need no scaling and no check for infinities, which reads a value in
    every step.
    """


# ------------------------------------------------------------------------------------------------------- torch_xla


class XlaCall(Rule, id="TPU020", severity="error"):
    """An API of PyTorch/XLA (torch_xla).

    torch_tpu is a device of PyTorch itself: most calls go away, others have a name in `torch`. The table is in
    [From PyTorch/XLA](from-torch-xla.md).
    """


class XlaCallWithoutReplacement(Rule, id="TPU021", severity="error"):
    """An API of PyTorch/XLA that has no replacement yet.

    The finding says what comes nearest, where there is something.
    """


# ---------------------------------------------------------------------------------------------------------- dtypes


class Float64(Rule, id="TPU030", severity="warning"):
    """float64 or complex128 on the device.

    A TPU has no such arithmetic: each operation is emulated by many on pairs of float32, and takes twice the memory.
    Use float32, or compute such a part on the CPU. What is made in float64 on the CPU is named where it is moved.
    """


class Int64(Rule, id="TPU031", severity="note"):
    """int64 where int32 would do, in a loop or in `forward`.

    A TPU computes in 32 bits; int64 is emulated on pairs and takes twice the memory. Masks, counters and ranges that
    are made int64 can be int32, unless they have only a few elements. Indices and targets (`x[i]`, `gather`, `scatter`,
    losses) are not reported: PyTorch wants most of them as int64.
    """


class SmallHeads(Rule, id="TPU040", severity="note"):
    """The dimension of an attention head is not a multiple of 128.

    Tiles of a TPU's memory and its vector registers have 128 lanes, and its matrix units are 128 or 256 wide: a smaller
    head leaves the rest of each empty. The number is computed from constants in the file. Fewer, wider heads have the same number of
    weights; `torch_tpu.lint(fn, *args)` says what it costs in a program.
    """


# -------------------------------------------------------------------------------------------------------- programs


class Relayout(Rule, id="TPU101", severity="warning"):
    """The compiler copies data only to lay it out in another way.

    An array of the device's memory lies in tiles of its two fastest dimensions. A view that swaps, splits or joins
    dimensions costs nothing in PyTorch; where the next operation needs another order, XLA writes the array again. Copies
    and transposes, and fusions of nothing but such, are added up for each line, with the compiler's own estimate. Those
    between the steps of an operator such as `cumsum` or `torch.fft.fft` do not count here and in TPU102.

    Keep one order of dimensions from one product to the next, split a projection before it is reshaped (three products
    in the place of one that is cut in three), and keep the dimension that is reduced or multiplied last.
    """


class Padding(Rule, id="TPU102", severity="warning"):
    """Arrays are mostly padding.

    The two fastest dimensions are padded to a tile, such as 8 x 128. An array of which most is padding takes its padded
    size in memory and in every read. The sizes are those of the layouts that the compiler chose.

    Put a large dimension last, or join small ones: of float32, [4096, 5, 5] takes 1.6 times its size and [4096, 25] 1.3
    times.
    """


class UnalignedProduct(Rule, id="TPU103", severity="warning"):
    """A matrix product leaves most of the matrix unit empty.

    The unit is 128 or 256 wide: where the dimension that is contracted (a head's, in attention) or that of the result is
    no multiple of 128, the rest of it has nothing to do. Reported where the compiler's estimate is under half of the
    rate that the hardware has.

    Choose sizes that are multiples of 128: fewer, wider heads, a vocabulary that is padded.
    """


class SmallProduct(Rule, id="TPU104", severity="note"):
    """Matrix products are so small that starting them takes longer.

    Each operation of a program takes about 2000 cycles to start, in which the matrix units of a v6e multiply matrices of
    800 x 800. Join them: a batch of products is one `torch.bmm`, and products with the same left side are one with a
    wider right side.
    """


class EmulatedDtype(Rule, id="TPU105", severity="warning"):
    """A line computes in 64 bits or in complex numbers.

    The compiler rewrites float64 and int64 to pairs of 32 bits, which takes many operations for each one. Its estimate of
    what these lines take is given.
    """


class Fallback(Rule, id="TPU106", severity="warning"):
    """An operator runs on the CPU.

    It has no lowering: its inputs are copied to the host and its results back, and the device waits meanwhile. Use
    another operator, or move that part of the program to the CPU on purpose. `torch-tpu ops NAME` says what is there.
    """


class ValueRead(Rule, id="TPU107", severity="warning"):
    """A value is read on the host in the middle of the function.

    The device's work is cut in two programs there, and the second one starts when the host has answered.
    """


class ManySizes(Rule, id="TPU108", severity="warning"):
    """A line is called with many different sizes.

    Each set of sizes needs a program of its own, which is compiled at its first use. Pad to a few sizes, or compile the
    function with `torch.compile(dynamic=True)`: one program then serves all sizes up to a bound.
    """


class CallsInBetween(Rule, id="TPU109", severity="note"):
    """A compiled function calls what no program can do.

    The graph is split there, and the call runs between its programs as in eager mode. `torch_tpu.stats()` counts such calls
    as `calls_in_between`.
    """


class Refused(Rule, id="TPU110", severity="error"):
    """An operator cannot run on the device, and the CPU cannot take its place.

    Such are operators that make what the device does not have, as sparse tensors in other layouts than COO: what the CPU
    made of it (TPU106) cannot come back. The function ends there with an `UnsupportedOpError`, here as on a TPU; the other
    findings are about what it did before.
    """
