"""`torch_tpu.explain(fn, *args)`: every stage of what a function runs on the device.

The function runs once, while a dispatch mode sees each ATen call. Before each call the call cache is emptied, so that
the call is traced again and whoever makes its programs tells this module about them; XLA's work is not repeated, since
compiled programs stay in the runtime's table. No other thread may use the device meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _plug
from torch_tpu.eager import fallback
from torch_tpu.eager.observe import CallWatcher, observers
from torch_tpu.eager.program import Program
from torch_tpu.eager.served import Served, served
from torch_tpu.errors import describe
from torch_tpu.ops import registry
from torch_tpu.ops.registry import Lowering
from torch_tpu.stats import counters, stats


@dataclass(frozen=True)
class Compiled:
    """One program of XLA's."""

    name: str
    stablehlo: str
    """What the lowerings wrote."""
    optimized_hlo: str
    """What XLA made of it."""


@dataclass(frozen=True)
class Step:
    """One ATen call and how it was served."""

    op: str
    inputs: str
    outputs: str
    served: Served
    lowerings: tuple[str, ...]
    """The lowerings whose text its programs consist of, in order."""
    programs: tuple[Compiled, ...]
    fallback: str
    """Why it ran on the CPU, if it did."""

    def __str__(self) -> str:
        if self.fallback:
            how = f"CPU fallback: {self.fallback.splitlines()[0]}"
        else:
            how = f"{self.served.kind}: {self.served.by}"
            if self.served.where:
                how += f" ({self.served.where})"
        lines = [f"{self.op}({self.inputs}) -> {self.outputs}", f"    {how}"]
        if self.served.kind in ("decomposition", "composite", "compiled") and self.lowerings:
            lines.append(f"    lowered by: {', '.join(self.lowerings)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Explanation:
    """What a function ran; `print` it, or look at its parts."""

    result: Any
    steps: tuple[Step, ...]
    counts: Mapping[str, Any] = field(repr=False)
    """What `torch_tpu.stats` counted meanwhile."""

    @property
    def programs(self) -> tuple[Compiled, ...]:
        """The different programs, in the order of their first use."""
        return tuple({program.stablehlo: program for step in self.steps for program in step.programs}.values())

    def text(self, stages: Sequence[str] = ("calls", "stablehlo", "hlo", "counts")) -> str:
        """The stages as text."""
        made = {"calls": self._calls, "stablehlo": self._stablehlo, "hlo": self._hlo, "counts": self._counts}
        unknown = [stage for stage in stages if stage not in made]
        if unknown:
            raise ValueError(f"there is no stage {unknown[0]!r}; there are: {', '.join(made)}")
        return "\n\n".join(made[stage]() for stage in stages)

    def __str__(self) -> str:
        return self.text()

    def _calls(self) -> str:
        return "\n".join([f"== ATen calls ({len(self.steps)})", *map(str, self.steps)])

    def _stablehlo(self) -> str:
        shown = [program.stablehlo.rstrip() for program in self.programs]
        return "\n\n".join([f"== StableHLO ({len(shown)} different programs)", *shown])

    def _hlo(self) -> str:
        shown = [program.optimized_hlo.rstrip() for program in self.programs]
        return "\n\n".join([f"== HLO after XLA's passes ({len(shown)} programs)", *shown])

    def _counts(self) -> str:
        shown = [f"{name:<22} {value}" for name, value in self.counts.items() if value]
        return "\n".join(["== Counts", *shown])


class _Recorder(CallWatcher):
    """Sees the calls, and is told of the programs that each makes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._programs: list[Compiled] = []
        self._lowerings: list[str] = []

    def program_made(self, program: Program) -> None:
        self._programs.append(Compiled(program.name, program.text, program.executable.optimized_text()))

    def lowered(self, rule: Lowering) -> None:
        self._lowerings.append(rule.op)

    def node_traced(self, node: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def node_run(self, node: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def graph_called(self, graph: Any, args: list[Any], call: Callable[[list[Any]], Any]) -> Any:
        self._programs, self._lowerings = [], []
        _plug.clear_table()
        with _disable_current_modes():
            result = call(args)
        calls = [node for node in graph.module.graph.nodes if node.op == "call_function"]
        self.steps.append(
            Step(
                graph.name,
                ", ".join(map(describe, args)),
                describe(result),
                Served(graph.name, "compiled", f"{graph.kind} graph of {len(calls)} calls, one program", ""),
                tuple(self._lowerings),
                tuple(self._programs),
                "",
            )
        )
        return result

    def call(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        self._programs, self._lowerings = [], []
        name = registry.overload_name(op)
        fallbacks = dict(counters.fallbacks)
        _plug.clear_table()
        result = op(*args, **kwargs)
        if _on_device([args, kwargs, result]):
            changed = [op for op, count in counters.fallbacks.items() if count != fallbacks.get(op)]
            reasons = [fallback.reasons.get(op, "") or "no lowering" for op in changed]
            named = [f"{key}={describe(value)}" for key, value in kwargs.items()]
            self.steps.append(
                Step(
                    name,
                    ", ".join([*map(describe, args), *named]),
                    describe(result),
                    served(op),
                    tuple(self._lowerings),
                    tuple(self._programs),
                    "; ".join(reasons),
                )
            )
        return result

    def finish(self) -> None:
        """Runs what fused mode recorded and has not run yet."""
        self._programs, self._lowerings = [], []
        _plug.flush()
        if self._programs:
            how = Served("fused", "fused", "the operators recorded before it, as one program", "")
            self.steps.append(Step("recorded operators", "", "", how, (), tuple(self._programs), ""))


def _on_device(values: Any) -> bool:
    if isinstance(values, torch.Tensor):
        return values.device.type == "tpu"
    if isinstance(values, torch.device):
        return values.type == "tpu"
    if isinstance(values, dict):
        values = values.values()
    return isinstance(values, (list, tuple, type({}.values()))) and any(map(_on_device, values))


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """Runs `fn(*args, **kwargs)` once and says what it ran: ATen calls, StableHLO, optimized HLO, counts.

    >>> print(torch_tpu.explain(torch.add, x, 1))    # x.device is tpu
    """
    recorder = _Recorder()
    before = stats()
    observers.append(recorder)
    try:
        _plug.flush()
        with recorder:
            result = fn(*args, **kwargs)
        recorder.finish()
    finally:
        observers.remove(recorder)
    after = stats()
    counts = {name: after[name] - before[name] for name in after if name != "fallbacks"}
    counts["fallbacks"] = {
        op: count - before["fallbacks"].get(op, 0)
        for op, count in after["fallbacks"].items()
        if count != before["fallbacks"].get(op, 0)
    }
    return Explanation(result, tuple(recorder.steps), counts)


def fallback_reasons() -> dict[str, str]:
    """Why each operator that ran on the CPU instead did so, the last time it did."""
    return dict(fallback.reasons)
