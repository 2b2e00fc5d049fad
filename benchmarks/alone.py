"""Compiled programs alone: the same StableHLO, run on arrays that are on the device already, with nothing in between.

    python benchmarks/alone.py program.mlir                          # any text that settings.dump_dir has kept
    python benchmarks/alone.py program.mlir --options xla_cpu_use_onednn=true --options "a=1,b=2"

The difference between a step and its programs alone is this backend's own cost. Each `--options` is compared with none,
in turns, so that all see the same machine. Arguments that a program takes over are made again before each run, which is
not counted. Floating-point inputs are small random numbers, integers are zero.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import measuring

measuring.fix_threads()

import torch  # noqa: E402

from torch_tpu import settings  # noqa: E402
from torch_tpu.hlo.types import NAMES  # noqa: E402
from torch_tpu.runtime import mlir, platform  # noqa: E402

_DTYPES = {name: dtype for dtype, name in NAMES.items()}


class Alone:
    """One program, compiled with some options, and its inputs."""

    def __init__(self, text: str, options: str):
        """
        Args:
            text: StableHLO, static shapes.
            options: XLA's, as `settings.xla_options` has them, separated by commas.
        """
        self.options = options
        module = mlir.parse(text)
        function = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
        inputs, results = function.type.inputs, function.type.results
        self._tensors = [_example(kind, place) for place, kind in enumerate(inputs)]
        attributes = function.attributes["arg_attrs"] if "arg_attrs" in function.attributes else []  # noqa: SIM401
        donated = [place for place, each in enumerate(attributes) if "tf.aliasing_output" in dict(_items(each))]
        self._client = platform.client()
        with settings.override(xla_options=tuple(filter(None, options.split(","))), cache=False):
            self._program, self.compile_s = measuring.timed(
                lambda: self._client.compile(text, [_spec(kind) for kind in results], donated, effort="normal")
            )
        self._arrays = [self._client.put(tensor) for tensor in self._tensors]

    def seconds(self) -> tuple[float, float]:
        """Wall and CPU seconds of one run."""
        for place in self._program.donated:
            self._arrays[place] = self._client.put(self._tensors[place])
        before = measuring.cpu_seconds()
        _, wall = measuring.timed(lambda: self._client.wait(self._program.run(self._arrays)))
        return wall, measuring.cpu_seconds() - before


def _items(attributes: Any) -> list[tuple[str, Any]]:
    return [(each.name, each.attr) for each in attributes]


def _spec(kind: Any) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(kind.shape), _DTYPES[str(kind.element_type)]


def _example(kind: Any, seed: int) -> torch.Tensor:
    shape, dtype = _spec(kind)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul_(0.02).to(dtype)


def compare(text: str, options: list[str], repeats: int) -> list[dict[str, Any]]:
    """Medians of a program under each of several options."""
    programs = [Alone(text, each) for each in options]
    times: list[list[tuple[float, float]]] = [[] for _ in programs]
    for turn in range(repeats + 1):
        for program, found in zip(programs, times, strict=True):
            taken = program.seconds()
            if turn:  # the first run touches its memory for the first time
                found.append(taken)
    return [
        {
            "options": program.options,
            "wall_s": statistics.median(wall for wall, _ in found),
            "least_s": min(wall for wall, _ in found),
            "cpu_s": statistics.median(cpu for _, cpu in found),
            "compile_s": program.compile_s,
        }
        for program, found in zip(programs, times, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=Path)
    parser.add_argument("--options", action="append", default=[], help="XLA options, as name=value, by commas")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", default="", help="also write the results here")
    arguments = parser.parse_args()
    results = {}
    for path in arguments.programs:
        results[str(path)] = found = compare(path.read_text(), ["", *arguments.options], arguments.repeats)
        print(f"{path.name}\n{'ms: median':>12} {'least':>10} {'CPU':>10} {'compile s':>10}  options")
        for row in found:
            times = [row["wall_s"] * 1e3, row["least_s"] * 1e3, row["cpu_s"] * 1e3, row["compile_s"]]
            print(
                f"{times[0]:>12.2f} {times[1]:>10.2f} {times[2]:>10.2f} {times[3]:>10.2f}  {row['options'] or 'none'}"
            )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
