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

import torch_tpu

torch_tpu._autoload()

from torch_tpu import _plug  # noqa: E402
from torch_tpu.eager import dispatch  # noqa: E402
from torch_tpu.eager.observe import observers  # noqa: E402

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


def least(function: Callable[[], Any], repeats: int = 40) -> float:
    """Microseconds of one call; results are kept until the loop ends, as a chain keeps its last."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(LOOP):
            function()
        found.append((time.perf_counter() - start) * 1e6 / LOOP)
        torch.tpu.synchronize()
    return min(found)


def parts() -> dict[str, float]:
    """Row -> microseconds."""
    x, y = torch.ones(8, 8, device="tpu"), torch.ones(8, 8, device="tpu")
    host_x, host_y = torch.ones(8, 8), torch.ones(8, 8)
    program = program_of(lambda: x + y)
    executable = program.executable
    arrays = [_plug.get_value(x), _plug.get_value(y)]
    whole = least(lambda: torch.add(x, y))
    started = least(lambda: executable.loaded.execute_sharded(arrays))
    run = least(lambda: executable.run(arrays))
    called = least(lambda: dispatch.execute(program, list(arrays), None))
    viewed = least(lambda: x.view(8, 8))
    made = least(lambda: torch.empty(8, 8, device="tpu"))
    empty_host = least(lambda: torch.empty(8, 8))
    rest = whole - called - viewed
    return {
        "torch.add on the device": whole,
        "  XLA: start the program": started,
        "  XLA: results as arrays, counted": run - started,
        "  Python: the call from the plug": called - run,
        "  PyTorch: binding, dispatcher, autograd (as x.view)": viewed,
        "  plug: key, lookup, operands, new tensor and storage": rest,
        "for comparison: torch.empty on the device": made,
        "for comparison: torch.empty on the CPU": empty_host,
        "for comparison: torch.add on the CPU": least(lambda: torch.add(host_x, host_y)),
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
