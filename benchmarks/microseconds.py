"""Where the microseconds of one strict operator go: `torch.add` of two 8x8 tensors on the device, taken apart.

    python benchmarks/microseconds.py

Each part is timed alone, in a loop of its own; the last rows are what is left when the parts are subtracted from the
whole. Numbers are the least of several loops, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu import _plug
from torch_tpu.eager.observe import observers

LOOP = 200


class _Catch:
    """Keeps the program that a call is served by."""

    def __init__(self) -> None:
        self.program: Any = None

    def program_made(self, program: Any) -> None:
        self.program = program

    def lowered(self, rule: Any) -> None:
        pass


def program_of(call: Callable[[], Any]) -> Any:
    catch = _Catch()
    observers.append(catch)
    _plug.clear_table()
    call()
    observers.remove(catch)
    return catch.program


def least(functions: dict[str, Callable[[], Any]], repeats: int = 60) -> dict[str, float]:
    """Microseconds of one call of each; the functions take turns, so that all see the same machine."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(LOOP):
                function()
            found[name] = min(found[name], (time.perf_counter() - start) * 1e6 / LOOP)
            torch.tpu.synchronize()
    return found


def parts() -> dict[str, float]:
    """Row -> microseconds."""
    x, y = torch.ones(8, 8, device="tpu"), torch.ones(8, 8, device="tpu")
    host_x, host_y = torch.ones(8, 8), torch.ones(8, 8)
    program = program_of(lambda: x + y)
    execute, handlers = program.executable.calls
    arrays = [_plug.get_value(x), _plug.get_value(y)]
    found = least(
        {
            "whole": lambda: torch.add(x, y),
            "start": lambda: execute(arrays),
            "run": lambda: execute(arrays).consume_with_handlers(handlers),
            "view": lambda: x.view(8, 8),
            "empty": lambda: torch.empty(8, 8, device="tpu"),
            "empty on the CPU": lambda: torch.empty(8, 8),
            "whole on the CPU": lambda: torch.add(host_x, host_y),
        }
    )
    return {
        "torch.add on the device": found["whole"],
        "  XLA: start the program": found["start"],
        "  XLA: results as arrays": found["run"] - found["start"],
        "  PyTorch: binding, dispatcher, autograd (as x.view)": found["view"],
        "  plug: key, lookup, operands, new tensor and storage": found["whole"] - found["run"] - found["view"],
        "for comparison: torch.empty on the device": found["empty"],
        "for comparison: torch.empty on the CPU": found["empty on the CPU"],
        "for comparison: torch.add on the CPU": found["whole on the CPU"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default="", help="also write the results here")
    arguments = parser.parse_args()
    found = parts()
    for name, microseconds in found.items():
        print(f"{name:<56} {microseconds:>7.2f} us")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
