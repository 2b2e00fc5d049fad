"""docs/aot.md: its Python runs, and its commands are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torch_tpu.aot import plans
from torch_tpu.cli.__main__ import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "aot.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    torch-tpu (plan .*)$", PAGE, re.MULTILINE)


def test_its_python_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = (text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "aot.compile" in text)
    exec(compile(snippet, "aot.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "Linear on v6e-1" in printed and "tokens/s/chip" in printed
    assert (tmp_path / "linear" / "report.json").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_ask_for_what_there_is(command, monkeypatch):
    asked = []
    monkeypatch.setattr(plans, "plan", lambda *args, **kwargs: asked.append((args, kwargs)) or [])
    monkeypatch.chdir(ROOT)
    CliRunner().invoke(app, shlex.split(command.partition(" --html")[0]))
    ((load, topologies), options) = asked[0]
    assert load.model.endswith(".json") is (load.model != "my_module:model")
    assert load.model == "my_module:model" or (ROOT / load.model).exists()
    assert topologies and set(options["sweep"]) <= set(plans.SWEPT)


def test_paths_exist():
    named = re.findall(r"`((?:\w+/)+\w+\.\w+)`", PAGE)
    folders = [ROOT, ROOT / "torch_tpu"]
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []
