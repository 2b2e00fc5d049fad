"""The README works when pasted, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_python_runs(capsys, counters):
    snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippets
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    assert names["x"].device.type == "tpu"
    assert isinstance(names["torch"], type(torch))
    printed = capsys.readouterr().out
    assert "stablehlo.add" in printed and printed.rstrip().endswith("{}")


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md", "docs/add-an-operator.md"])
def test_links_and_paths_exist(page):
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    folders = [ROOT, ROOT / "torch_tpu"]
    named = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text)
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_it_fits_on_a_screen_or_two():
    assert README.count("\n") < 80
    assert README.isascii()


def test_commands_it_names_exist():
    from typer.main import get_command

    from torch_tpu.cli.__main__ import app

    known = set(get_command(app).commands)
    assert set(re.findall(r"torch-tpu (\w+)", README)) <= known
