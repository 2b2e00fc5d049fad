"""Eager mode, small operators: what one costs on the device and on PyTorch's CPU, in the same run.

    python benchmarks/eager.py                    # a table; medians
    python benchmarks/eager.py --json result.json

A chain is 200 dependent operators on 8x8 tensors, timed with a synchronization at its end, after a chain that warms
up. Each number is the median of several chains; "least" is the fastest one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import torch_tpu

torch_tpu._autoload()

LENGTH = 200
ROW_BYTES = 64 << 20


class Timing(NamedTuple):
    """Microseconds for one operation."""

    median: float
    least: float


def measure(function: Callable[[], Any], operations: int, repeats: int) -> Timing:
    """Times a function that does some number of operations."""
    function()
    torch.tpu.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e6 / operations)
    return Timing(statistics.median(times), min(times))


def chain(step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[str], Callable[[], None]]:
    """A chain of one step, on a device."""

    def make(device: str) -> Callable[[], None]:
        x = torch.rand(8, 8).to(device)
        y = torch.eye(8).to(device)

        def run() -> None:
            value = x
            for _ in range(LENGTH):
                value = step(value, y)
            if device == "tpu":
                torch.tpu.synchronize()

        return run

    return make


def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Four operators."""
    return torch.relu((x @ y) * y) + x


def in_place(device: str) -> Callable[[], None]:
    x, y = torch.rand(8, 8).to(device), torch.eye(8).to(device)

    def run() -> None:
        for _ in range(LENGTH):
            x.mul_(y)
        if device == "tpu":
            torch.tpu.synchronize()

    return run


def read_item(device: str) -> Callable[[], None]:
    x = torch.ones((), device=device)

    def run() -> None:
        for _ in range(LENGTH):
            x.item()

    return run


def read_result(device: str) -> Callable[[], None]:
    x = torch.ones((), device=device)

    def run() -> None:
        for _ in range(LENGTH):
            (x + 1.5).item()

    return run


def to_device(device: str) -> Callable[[], None]:
    x = torch.rand(8, 8)

    def run() -> None:
        for _ in range(LENGTH):
            x.to(device, copy=True)
        if device == "tpu":
            torch.tpu.synchronize()

    return run


def to_host(device: str) -> Callable[[], None]:
    x = torch.rand(8, 8).to(device)

    def run() -> None:
        for _ in range(LENGTH):
            x.to("cpu", copy=True)

    return run


def large(direction: str) -> Callable[[str], Callable[[], None]]:
    """Copies 64 MiB."""

    def make(device: str) -> Callable[[], None]:
        x = torch.zeros(ROW_BYTES // 4)
        source = x if direction == "to device" else x.to(device)
        target = device if direction == "to device" else "cpu"

        def run() -> None:
            source.to(target, copy=True)
            if device == "tpu":
                torch.tpu.synchronize()

        return run

    return make


def update_row(device: str) -> Callable[[], None]:
    table = torch.zeros(ROW_BYTES // 4096, 1024, device=device)
    row = torch.ones(1024, device=device)

    def run() -> None:
        for index in range(20):
            table[index % 2] = row
        if device == "tpu":
            torch.tpu.synchronize()

    return run


BENCHMARKS: dict[str, tuple[Callable[[str], Callable[[], None]], int]] = {
    "add": (chain(lambda x, y: x + y), LENGTH),
    "mul": (chain(lambda x, y: x * y), LENGTH),
    "matmul": (chain(lambda x, y: x @ y), LENGTH),
    "add a number": (chain(lambda x, y: x + 1.5), LENGTH),
    "mixed (matmul, mul, relu, add)": (chain(mixed), 4 * LENGTH),
    "mul_ in place": (in_place, LENGTH),
    "item()": (read_item, LENGTH),
    "add a number, item()": (read_result, LENGTH),
    "8x8 to the device": (to_device, LENGTH),
    "8x8 to the host": (to_host, LENGTH),
    "64 MiB to the device": (large("to device"), 1),
    "64 MiB to the host": (large("to host"), 1),
    "one row of 64 MiB, in place": (update_row, 20),
}
"""Name -> (makes the function to time, for a device; operations in it)."""

START_UP = {
    "import torch": "import torch",
    "import torch with the backend": "import torch, torch_tpu; torch_tpu._autoload()",
    "from there to the first result": "(torch.ones(8, 8).to('tpu') + 1).cpu()",
}
"""Name -> code; the last one runs after the one before it."""


def start_up(repeats: int) -> dict[str, float]:
    """Seconds to import and to the first result, in new processes; medians."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    plain, backend, first = START_UP.values()
    times: dict[str, list[float]] = {name: [] for name in START_UP}
    for _ in range(repeats):
        for names, steps in ((list(START_UP)[:1], [plain]), (list(START_UP)[1:], [backend, first])):
            timed = "".join(f"s = time.perf_counter(); {step}; print(time.perf_counter() - s)\n" for step in steps)
            command = [sys.executable, "-c", f"import time\n{timed}"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for name, seconds in zip(names, done.stdout.split(), strict=True):
                times[name].append(float(seconds))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="benchmarks whose names contain this")
    parser.add_argument("--json", default="", help="also write the results here")
    parser.add_argument("--no-start-up", action="store_true", help="leave out what needs new processes")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"torch": torch.__version__, "platform": torch.tpu.get_device_name(), "microseconds": {}}
    print(f"{'microseconds for one operation':<34} {'tpu':>10} {'least':>10} {'torch cpu':>10} {'least':>10}")
    for name, (make, operations) in BENCHMARKS.items():
        if arguments.only not in name:
            continue
        device = measure(make("tpu"), operations, arguments.repeats)
        host = measure(make("cpu"), operations, arguments.repeats)
        results["microseconds"][name] = {"tpu": device._asdict(), "cpu": host._asdict()}
        print(f"{name:<34} {device.median:>10.1f} {device.least:>10.1f} {host.median:>10.1f} {host.least:>10.1f}")
    if not arguments.no_start_up:
        results["seconds"] = start_up(5)
        for name, seconds in results["seconds"].items():
            print(f"{name:<34} {seconds:>10.2f} s")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
