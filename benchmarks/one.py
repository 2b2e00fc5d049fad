"""Measures one workload of one subject in this process and prints one line of JSON. `suite.py` calls it.

python benchmarks/one.py llama_float32 strict
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from typing import Any

import measuring
from subjects import OURS, SUBJECTS


def first_calls(workload: Any, calls: int) -> dict[str, Any]:
    """Results, wall and CPU seconds of the first calls, where programs are compiled."""
    values, wall, cpu = [], [], []
    for _ in range(calls):
        before = measuring.cpu_seconds()
        result, taken = measuring.timed(workload.run)
        wall.append(taken)
        cpu.append(measuring.cpu_seconds() - before)
        if result is not None:
            values.append(round(float(result), 5))
    return {"values": values, "first_s": wall[0], "first_cpu_s": cpu[0], "first_three_cpu_s": sum(cpu)}


def measure(name: str, subject_name: str, quick: bool) -> dict[str, Any]:
    measuring.fix_threads()
    subject = SUBJECTS[subject_name]()
    _, starting = measuring.timed(subject.start)
    import workloads

    with subject.mode():
        workload = workloads.start(name, subject)
        subject.wait()
        base = measuring.peak_mib()
        first = first_calls(workload, 3)
        subject.keep()
        repeats, budget = (3, 5.0) if quick else (30, 10.0)
        timing = measuring.measure(workload.run, repeats=repeats, budget=budget)
        found = {
            "workload": name,
            "subject": subject_name,
            "unit": workload.unit,
            "count": workload.count,
            "higher_is_better": workload.higher_is_better,
            "import_s": starting,
            **first,
            **timing._asdict(),
            "peak_mib": measuring.peak_mib(),
            "base_mib": base,
            "load": os.getloadavg()[0],
        }
        if workload.issue is not None:
            found["issue"] = _issue(workload, subject)
    if subject_name in OURS:
        import torch_tpu

        found["stats"] = {key: value for key, value in torch_tpu.stats().items() if key != "fallbacks" and value}
        found["fallbacks"] = dict(torch_tpu.stats()["fallbacks"])
    return found


def _issue(workload: Any, subject: Any) -> float:
    """Seconds until Python goes on, the least of several."""
    best = float("inf")
    for _ in range(20):
        kept, seconds = measuring.timed(workload.issue)
        best = min(best, seconds)
        del kept
        subject.end_of_step()
        subject.wait()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("subject", choices=list(SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="few repeats")
    arguments = parser.parse_args()
    try:
        found = measure(arguments.workload, arguments.subject, arguments.quick)
    except Exception as error:  # whatever a subject cannot do is its result
        traceback.print_exc(file=sys.stderr)
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        found = {"workload": arguments.workload, "subject": arguments.subject, "error": reason}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
