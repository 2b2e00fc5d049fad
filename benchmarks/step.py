"""Where the microseconds of a small training step go: the MLP of `suite.py`, compiled, taken apart.

    python benchmarks/step.py                  # compiled in strict mode, in fused mode, as a whole, captured
    python benchmarks/step.py --json result.json

"device" is the time in this backend's call cache, and "execute" the part of it in PJRT; the rest of a row is PyTorch's:
guards, AOTAutograd's wrappers, the autograd engine with its thread, the optimizer's Python. Medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import data
import models
import torch
import torch.nn.functional as F
from subjects import Graph, Strict, Whole

from torch_tpu import _plug
from torch_tpu.runtime.client import Executable

STEPS, WARM_UP = 300, 30
PARTS = ("forward", "backward", "optimizer", "zero_grad", "wait")

Table = dict[str, dict[str, float]]


class Clock:
    """Adds up the time spent in functions that are replaced by timed ones."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("device", "execute"), 0.0)

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return call


def setup() -> tuple[Callable[[], torch.Tensor], torch.optim.Optimizer]:
    model = models.load(models.MLP(), data.mlp()).to("tpu")
    x, y = (torch.from_numpy(array).to("tpu") for array in data.vectors())
    return lambda: F.cross_entropy(model(x), y), torch.optim.SGD(model.parameters(), lr=0.01)


def compiled(clock: Clock) -> Table:
    """The parts of a step whose loss and optimizer are compiled, in microseconds."""
    loss, optimizer = setup()
    forward, update = torch.compile(loss, backend="tpu"), torch.compile(optimizer.step, backend="tpu")
    kept: list[torch.Tensor] = []

    def run_forward() -> None:
        kept[:] = [forward()]

    calls: dict[str, Callable[[], Any]] = {
        "forward": run_forward,
        "backward": lambda: kept[0].backward(),
        "optimizer": update,
        "zero_grad": lambda: optimizer.zero_grad(set_to_none=True),
        "wait": torch.tpu.synchronize,
    }
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in PARTS}
    for step in range(WARM_UP + STEPS):
        for name in PARTS:
            before = dict(clock.seconds)
            start = time.perf_counter()
            calls[name]()
            whole = time.perf_counter() - start
            if step >= WARM_UP:
                inside = (clock.seconds[kind] - before[kind] for kind in ("device", "execute"))
                found[name].append((whole, *inside))
    return {
        name: {
            column: statistics.median(row[place] for row in rows) * 1e6
            for place, column in enumerate(("whole", "device", "execute"))
        }
        for name, rows in found.items()
    }


def in_one(subject: Strict) -> float:
    """A step that is compiled or captured as a whole, in microseconds."""
    loss, optimizer = setup()

    def step() -> torch.Tensor:
        result = loss()
        result.backward()
        result = result.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return result

    with subject.mode():
        run = subject.compile_whole(step)
        times = []
        for _ in range(WARM_UP + STEPS):
            start = time.perf_counter()
            run()
            torch.tpu.synchronize()
            times.append(time.perf_counter() - start)
    return statistics.median(times[WARM_UP:]) * 1e6


def table(title: str, parts: Table) -> str:
    step = {column: sum(row[column] for row in parts.values()) for column in ("whole", "device", "execute")}
    lines = [f"\n{title:40}{'whole':>10}{'device':>10}{'execute':>10}{'PyTorch':>10}"]
    for name, row in {**parts, "step": step}.items():
        cells = (*row.values(), row["whole"] - max(row["device"], row["execute"]))
        lines.append(f"{name:40}" + "".join(f"{value:10.0f}" for value in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="a file for the figures")
    path = parser.parse_args().json
    torch.set_num_threads(2)
    clock = Clock()
    _plug.call_graph = clock.timed(_plug.call_graph, "device")
    Executable.run = clock.timed(Executable.run, "execute")
    calls = Executable.calls.fget  # in strict mode the call cache makes the calls of `run` itself
    Executable.calls = property(lambda self: (clock.timed(calls(self)[0], "execute"), calls(self)[1]))
    found: dict[str, Any] = {}
    modes = {"strict": torch.tpu.EagerMode.DEFER_NEVER, "fused": torch.tpu.EagerMode.DEFER_AND_FUSE}
    for name, mode in modes.items():
        torch._dynamo.reset()
        with torch.tpu.set_eager_mode(mode):
            found[name] = compiled(clock)
        print(table(f"compiled, {name} mode: microseconds", found[name]))
    found["whole"] = in_one(Whole())
    print(f"\ncompiled as a whole, with backward traced: {found['whole']:.0f} microseconds a step")
    if hasattr(torch.accelerator, "Graph"):
        found["captured"] = in_one(Graph())
        print(f"\ncaptured by torch.accelerator.Graph: {found['captured']:.0f} microseconds a step")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
