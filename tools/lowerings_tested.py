"""Notes in the support matrix which tests make programs with which lowering: for those that no operator of PyTorch's
database reaches.

    python tools/lowerings_tested.py                # all files tests/cpu/test_ops_*.py
    python tools/lowerings_tested.py tests/cpu/test_amp.py

What an earlier run noted of other files is kept.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import torch_tpu

ROOT = Path(__file__).resolve().parent.parent


class Watcher:
    """A plugin of pytest, and an observer of programs."""

    def __init__(self):
        self.seen: set[str] = set()
        self.files: dict[str, set[str]] = defaultdict(set)

    def lowered(self, rule):
        self.seen.add(rule.op)

    def program_made(self, program):
        """Says nothing about lowerings."""

    def graph_called(self, graph, args, call):
        return call(args)

    def pytest_runtest_logstart(self, nodeid):
        from torch_tpu import _plug

        _plug.clear_table()
        self.seen.clear()

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            for name in self.seen:
                self.files[name].add(Path(report.nodeid.partition("::")[0]).name)


def main() -> int:
    torch_tpu._autoload()
    from torch_tpu.conformance import matrix
    from torch_tpu.eager.observe import observers

    chosen = sys.argv[1:] or [str(path) for path in sorted((ROOT / "tests" / "cpu").glob("test_ops_*.py"))]
    watcher = Watcher()
    observers.append(watcher)
    code = pytest.main(["-q", "-p", "no:cacheprovider", "--durations=0", *chosen], plugins=[watcher])
    found = matrix.load()
    run = {Path(name).name for name in chosen}
    kept = {name: set(files) - run for name, files in found.tests.items()}
    for name, files in watcher.files.items():
        kept[name] = kept.get(name, set()) | files
    tests = {name: tuple(sorted(files)) for name, files in sorted(kept.items()) if files and name in found.lowerings}
    matrix.store(dataclasses.replace(found, tests=tests))
    print(f"{len(watcher.files)} lowerings were seen; {len(tests)} are noted")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
