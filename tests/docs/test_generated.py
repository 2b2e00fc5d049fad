"""Pages of docs/ that come from declarations are up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_generated_pages_are_up_to_date():
    path = Path(__file__).resolve().parents[2] / "tools" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.outdated() == [], "run: make docs"
