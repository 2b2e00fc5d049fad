"""Keeps results of `torch-tpu conformance models --output FILE` with the code, where the documentation reads them.

python tools/store_models.py results.jsonl ...     # newer results of a model and mode replace older ones
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch_tpu.conformance.models import report
from torch_tpu.conformance.models.judge import ModelResult


def main() -> None:
    results = report.load() if report.RESULTS.exists() else []
    for name in sys.argv[1:]:
        for line in Path(name).read_text(encoding="utf-8").splitlines()[1:]:
            results.append(ModelResult.from_json(json.loads(line)))
    report.store(results)
    print(f"{report.RESULTS}: {len(report.load())} results")


if __name__ == "__main__":
    main()
