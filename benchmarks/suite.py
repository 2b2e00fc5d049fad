"""This backend beside PyTorch's CPU, JAX and torch_xla: the same models, weights and inputs, in one run.

    python benchmarks/suite.py                                        # PyTorch's CPU and ours
    python benchmarks/suite.py --python jax=venvs/jax/bin/python --python xla=venvs/xla/bin/python
    python benchmarks/suite.py --workloads mlp,llama_float32 --subjects torch,strict,jax --rounds 3 --json result.json

Each measurement is a process of its own; rounds are interleaved, so that all subjects see the same machine, and tables
give medians over rounds. Our first round starts with an empty disk cache (cold), the others find it filled (warm).
"CPU" is the time of all threads, which other work on the machine disturbs less than wall time. A subject's figures are
shown only if its first losses are those of the first subject.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from subjects import OURS, SUBJECTS

HERE = Path(__file__).resolve().parent
WORKLOADS = (
    "operators",
    "mlp",
    "llama_float32",
    "llama_bfloat16",
    "resnet",
    "decode_float32",
    "decode_bfloat16",
)
_PYTHON = {"jax": "jax", "xla_lazy": "xla", "xla_compiled": "xla"}
"""Which interpreter a subject needs, where it is not this one."""
_SCALE = {"us": 1e6, "ms": 1e3, "s": 1.0}

Row = dict[str, Any]


def run(workload: str, subject: str, python: str, cache: Path, quick: bool, limit: float) -> Row:
    """One measurement in a new process."""
    command = [python, str(HERE / "one.py"), workload, subject, *(["--quick"] if quick else [])]
    caches = {"TORCH_TPU_CACHE_DIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "graphs")}
    environment = {**os.environ, **caches}
    failed = {"workload": workload, "subject": subject}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {**failed, "error": f"took more than {limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {**failed, "error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    found: Row = json.loads(lines[-1])
    return found


def agree(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two subjects have computed the same: losses up to rounding, the dtype's included."""
    return len(a) == len(b) and all(abs(x - y) <= 0.02 * max(1.0, abs(x)) for x, y in zip(a, b, strict=True))


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """The figures of one subject's rounds, in the workload's unit where they are of the steady state."""
    first = rows[0]
    scale = _SCALE.get(first["unit"].partition(" ")[0], 1.0) / first["count"]

    def middle(name: str) -> float:
        return statistics.median(row[name] for row in rows)

    def steady(seconds: float) -> float:
        return first["count"] / seconds if first["higher_is_better"] else seconds * scale

    found = {
        "wall": steady(middle("median")),
        "least wall": steady(min(row["least"] for row in rows)),
        "CPU": middle("cpu") * scale if not first["higher_is_better"] else middle("cpu") / first["count"] * 1e3,
        "first step s": first["first_s"],
        "its CPU s": first["first_cpu_s"],
        "peak MiB": middle("peak_mib"),
        "above start MiB": statistics.median(row["peak_mib"] - row["base_mib"] for row in rows),
    }
    if first["subject"] in OURS and len(rows) > 1:
        found["warm first s"] = statistics.median(row["first_s"] for row in rows[1:])
        found["its CPU s (warm)"] = statistics.median(row["first_cpu_s"] for row in rows[1:])
    if "issue" in first:
        found["issue"] = min(row["issue"] for row in rows) * scale
    return found


def table(workload: str, results: dict[str, list[Row]], base: str) -> str:
    """A table of one workload: each figure, and its ratio to the base's."""
    sound: dict[str, dict[str, float]] = {}
    notes, expected = [], None
    for subject, rows in results.items():
        errors = [row["error"] for row in rows if "error" in row]
        if errors:
            notes.append(f"{subject}: {errors[0]}")
            continue
        expected = expected or rows[0]["values"]
        if not agree(expected, rows[0]["values"]):
            notes.append(f"{subject}: computes {rows[0]['values']}, not {expected}")
            continue
        sound[subject] = figures(rows)
    columns = list(dict.fromkeys(name for found in sound.values() for name in found))
    unit = next((rows[0]["unit"] for rows in results.values() if "unit" in rows[0]), "")
    lines = [f"## {workload} ({unit})", "", f"| subject | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for subject, found in sound.items():
        cells = [_cell(found.get(name), sound.get(base, {}).get(name)) for name in columns]
        lines.append(f"| {subject} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def _cell(value: float | None, base: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g} ({value / base:.2f}x)" if base else f"{value:.3g}"


def _list(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        wrong = [name for name in names if name not in allowed]
        if wrong:
            raise argparse.ArgumentTypeError(f"there is no {wrong[0]!r}; there are: {', '.join(allowed)}")
        return names

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=_list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--subjects", type=_list(list(SUBJECTS)), help="default: those whose interpreter is there")
    parser.add_argument("--python", action="append", default=[], help="NAME=PATH: an interpreter with jax or xla")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--base", default="jax", help="the subject that ratios are to")
    parser.add_argument("--limit", type=float, default=600, help="seconds that one measurement may take")
    parser.add_argument("--json", default="", help="also write all measurements here")
    arguments = parser.parse_args()
    pythons = dict(item.split("=", 1) for item in arguments.python)
    chosen = arguments.subjects or [
        name for name in SUBJECTS if name != "inductor" and (name not in _PYTHON or _PYTHON[name] in pythons)
    ]
    rows: list[Row] = []
    caches = Path(tempfile.mkdtemp())
    try:
        for workload in arguments.workloads:
            results: dict[str, list[Row]] = {subject: [] for subject in chosen}
            for turn in range(arguments.rounds):
                for subject in chosen[turn % len(chosen) :] + chosen[: turn % len(chosen)]:
                    python = pythons.get(_PYTHON.get(subject, ""), sys.executable)
                    cache = caches / f"{workload}-{subject}"
                    row = run(workload, subject, python, cache, arguments.quick, arguments.limit)
                    results[subject].append(row)
                    rows.append(row)
            print(table(workload, results, arguments.base), flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    finally:
        shutil.rmtree(caches)


if __name__ == "__main__":
    main()
