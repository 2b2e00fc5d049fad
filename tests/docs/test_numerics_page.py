"""docs/numerics.md: its Python and its commands run, and its table is what the benchmark prints."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")


def test_its_python_runs(capsys):
    names: dict[str, object] = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(snippet, "numerics.md", "exec"), names)
    first, second = capsys.readouterr().out.splitlines()
    exact, ratio = second.split()
    assert first == "0 (Linear)" and exact == "True" and 40 < float(ratio) < 60


def test_its_table_is_the_benchmarks():
    """To a tenth where bfloat16 decides; the order of sums in float32 depends on the machine."""
    rows = {tuple(row[:3]): row[3:] for row in _rows(PAGE) if row[0] in ("device", "PyTorch's CPU")}
    measured = {
        tuple(row[:3]): row[3:]
        for row in _rows(runpy.run_path(str(ROOT / "benchmarks/matmul_error.py"))["table"](1024))[1:]
    }
    assert rows.keys() == measured.keys()
    for key, (ratio, largest, rms) in rows.items():
        loose = 3 if key[1:] in (("-", "float32"), ("exact", "float32"), ("highest", "float32")) else 1.1
        for told, found in ((largest, measured[key][1]), (rms, measured[key][2])):
            assert float(told) / loose <= float(found) <= float(told) * loose, key
        assert abs(float(ratio.split()[0]) - float(measured[key][0].split()[0])) <= (10 if loose > 2 else 1), key


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_its_commands_run(tmp_path, monkeypatch):
    import transformers

    from torch_tpu.cli.__main__ import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mymodel.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 4), torch.randn(2, 4)\n")
    Path("config.json").write_text(json.dumps(transformers.LlamaConfig().to_dict()))
    lines = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 4
    for line in lines:
        program, *arguments = shlex.split(line)
        result = CliRunner().invoke(app, arguments)
        assert program == "torch-tpu" and result.exit_code == 0, f"{line}: {result.output}"
        if arguments[1] == "llama":
            assert "exact: all" in result.output and "highest: all" in result.output
            assert "high, 3 passes" in result.output and "SNR dB" in result.output
    assert Path("vit.html").exists() and json.loads(Path("vit.json").read_text())["model"] == "vit"
