"""The surface of `torch-tpu`: a new command or option is a decision, so this list is written by hand."""

from __future__ import annotations

import json

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from torch_tpu.cli.__main__ import app

SURFACE = {
    "doctor": set(),
    "demo": {"--report"},
    "ops": {"--dtype"},
    "plan": {
        "--model",
        "--topology",
        "--mode",
        "--batch",
        "--seq",
        "--dtype",
        "--recompute",
        "--data-parallel",
        "--unrolled",
        "--sweep",
        "--price",
        "--json",
        "--html",
    },
    "numerics": {
        "--device",
        "--precisions",
        "--rtol",
        "--atol",
        "--backward",
        "--train",
        "--tiny",
        "--all",
        "--json",
        "--html",
    },
    "lint": {"--select", "--ignore", "--json", "--program", "--topology"},
    "conformance": {
        "--ops",
        "--dtypes",
        "--phases",
        "--modes",
        "--places",
        "--matrix",
        "--missing",
        "--device",
        "--limit",
        "--shard",
        "--workers",
        "--timeout",
        "--output",
        "--gaps",
        "--write-gaps",
    },
    "conformance matrix": {"--file", "--html"},
    "conformance models": {
        "--names",
        "--libraries",
        "--modes",
        "--device",
        "--shard",
        "--workers",
        "--timeout",
        "--output",
        "--html",
    },
    "cache info": set(),
    "cache list": {"--limit"},
    "cache clear": set(),
    "cache verify": set(),
    "cache export": set(),
    "cache import": set(),
}


def surface(command, prefix=""):
    found = {}
    for name, child in command.commands.items():
        options = {option for parameter in child.params for option in parameter.opts if option.startswith("--")}
        if options or not hasattr(child, "commands"):
            found[prefix + name] = options - {"--help"}
        if hasattr(child, "commands"):
            found |= surface(child, f"{prefix}{name} ")
    return found


def test_surface_is_frozen():
    assert surface(get_command(app)) == SURFACE


@pytest.mark.parametrize("command", sorted(SURFACE))
def test_every_command_explains_itself(command):
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_lint_prints_findings_and_says_so_by_its_exit_status(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("import torch\ntorch.cuda.synchronize()\n")

    def run(*command):
        return CliRunner().invoke(app, ["lint", *map(str, command)])

    done = run(file)
    assert done.exit_code == 1
    assert (
        f"{file}:2:1 TPU010 torch.cuda.synchronize is not for this device\n    use torch.tpu.synchronize" in done.output
    )
    assert done.output.endswith("1 error in 1 file\n")
    assert json.loads(run(file, "--json").output)[0]["rule"] == "TPU010"
    assert run(file, "--ignore", "TPU01").exit_code == 0
    assert run(tmp_path, "--select", "tpu020").output == "no findings in 1 file\n"
    for wrong in ([], [tmp_path / "nothing"], [file, "--select", "E501"]):
        assert run(*wrong).exit_code == 2


@pytest.mark.parametrize(
    "found, limits, kept",
    [
        ("2.13.0+cpu", ">=2.11,<2.16", True),
        ("2.16.0", ">=2.11,<2.16", False),
        ("2.9.1", ">=2.11,<2.16", False),
        ("0.10.2", ">=0.10.2,<0.11", True),
        ("0.10.1", ">=0.10.2,<0.11", False),
        ("13", "", True),
    ],
)
def test_versions_are_compared_as_numbers(found, limits, kept):
    from torch_tpu.cli.doctor import satisfies

    assert satisfies(found, limits) is kept


def test_doctor_names_what_to_do_for_every_problem(monkeypatch, tmp_path):
    from torch_tpu.cli import doctor

    monkeypatch.setattr(doctor, "version", lambda name: "0.0.1")
    findings = list(doctor.check_packages())
    assert any(finding.state == "problem" for finding in findings)
    assert all(finding.do for finding in findings if finding.state == "problem")


def test_doctor_sees_a_cache_that_cannot_be_used(tmp_path):
    from torch_tpu import settings
    from torch_tpu.cli import doctor

    blocked = tmp_path / "file"
    blocked.write_text("")
    with settings.override(cache=True, cache_dir=str(blocked)):
        (finding,) = doctor.check_cache()
    assert finding.state == "problem" and "TORCH_TPU_CACHE_DIR" in finding.do


def test_cache_commands(empty_cache, tmp_path):
    from torch_tpu.runtime import cache, platform

    def run(*command):
        return CliRunner().invoke(app, ["cache", *map(str, command)])

    here, file = platform.client().environment, tmp_path / "file"
    cache.disk().put("ab" * 32, b"program", {"name": "aten_add", **here})
    cache.disk().put("cd" * 32, b"program", {"name": "aten_mul", **here, "jaxlib": "0.0"})
    assert "2" in run("info").output
    assert "abab" in run("list").output and "aten_add" in run("list").output
    assert "2 programs" in run("export", file).output
    (empty_cache / "ab" / f"{'ab' * 32}.program").write_bytes(b"damaged")
    done = run("verify")
    assert done.exit_code == 1 and "1 programs are sound, 1 were damaged" in done.output
    assert "1 are of no use here: made with jaxlib 0.0; here it is" in done.output
    done = run("import", file)
    assert done.exit_code == 0 and "1 programs added, 0 were here already" in done.output
    assert "1 are of no use here: made with jaxlib 0.0" in done.output
    assert "2 programs deleted" in run("clear").output
    assert cache.disk().usage().entries == 0


def test_cache_commands_say_what_is_wrong(empty_cache, tmp_path):
    from torch_tpu import settings

    (tmp_path / "file").write_text("no programs")
    done = CliRunner().invoke(app, ["cache", "import", str(tmp_path / "file")])
    assert done.exit_code == 1 and "was not written by" in done.output
    done = CliRunner().invoke(app, ["cache", "import", str(tmp_path / "nothing")])
    assert done.exit_code == 1 and done.output == f"cannot read {tmp_path / 'nothing'}: No such file or directory\n"
    with settings.override(cache=False):
        for command in (["list"], ["verify"], ["export", "x"], ["import", "x"], ["clear"]):
            done = CliRunner().invoke(app, ["cache", *command])
            assert done.exit_code == 1 and "switched off" in done.output
