"""The settings registry: values, environment, overrides, and that every setting is used and documented."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_tpu import settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(monkeypatch):
    """Clears the variables of all settings; returns a function that sets one and reads all again."""
    for setting in settings.SETTINGS.values():
        for variable in [setting.variable, *sum(setting.switches.values(), ())]:
            monkeypatch.delenv(variable, raising=False)

    def read(**variables: str) -> dict:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return {name: setting.from_environment() for name, setting in settings.SETTINGS.items()}

    return read


def test_defaults(environment):
    assert environment() == {name: setting.default for name, setting in settings.SETTINGS.items()}


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("TORCH_TPU_PLATFORM", "cuda", "platform", "cuda"),
        ("TORCH_TPU_FALLBACK", "error", "fallback", "error"),
        ("TORCH_TPU_CACHE", "0", "cache", False),
        ("TORCH_TPU_CACHE_LIMIT", "64MiB", "cache_limit", 64 << 20),
        ("TORCH_TPU_CACHE_LIMIT", "1.5GB", "cache_limit", 1_500_000_000),
        ("TORCH_TPU_LOG", "ops, compile", "log", ("ops", "compile")),
        ("TORCH_TPU_XLA_OPTIONS", "a=1,b=true", "xla_options", ("a=1", "b=true")),
        ("TPU_LAUNCH_BLOCKING", "1", "eager_mode", "debug"),
        ("TORCH_TPU_DEFER_AND_FUSE", "1", "eager_mode", "fused"),
        ("TPU_DEFER_AND_FUSE", "1", "eager_mode", "fused"),
        ("TORCH_TPU_DEFER_AND_FUSE", "0", "eager_mode", "strict"),
    ],
)
def test_environment(environment, variable, text, name, value):
    assert environment(**{variable: text})[name] == value


def test_the_first_of_two_names_decides(environment):
    assert environment(TORCH_TPU_DEFER_AND_FUSE="0", TPU_DEFER_AND_FUSE="1")["eager_mode"] == "strict"
    assert environment(TORCH_TPU_EAGER_MODE="debug")["eager_mode"] == "debug"


@pytest.mark.parametrize(
    ("variable", "text", "match"),
    [
        ("TORCH_TPU_PLATFORM", "gpu", r"TORCH_TPU_PLATFORM='gpu': .*'auto', 'tpu', 'cpu', 'cuda'"),
        ("TORCH_TPU_CACHE", "maybe", "neither yes nor no"),
        ("TORCH_TPU_CACHE_LIMIT", "-1", "cannot be -1"),
        ("TORCH_TPU_LOG", "everything", "setting log cannot be 'everything'"),
    ],
)
def test_wrong_environment(environment, variable, text, match):
    with pytest.raises(ValueError, match=match):
        environment(**{variable: text})


def test_assignment_is_checked():
    settings.fallback = "count"
    assert settings.fallback == "count"
    with pytest.raises(ValueError, match="setting fallback cannot be 'off'; it can be 'warn', 'count', 'error'"):
        settings.fallback = "off"
    with pytest.raises(TypeError, match="setting cache is bool, not int: 1"):
        settings.cache = 1
    with pytest.raises(AttributeError, match="there is no setting 'falback'; there are: platform, "):
        settings.falback = "warn"
    assert settings.fallback == "count"


def test_override_restores_also_after_an_error():
    before = settings.current()
    with pytest.raises(RuntimeError), settings.override(fallback="error", cache=not settings.cache):
        assert settings.fallback == "error"
        raise RuntimeError
    assert settings.current() == before
    with pytest.raises(ValueError), settings.override(cache_limit=5, fallback="off"):
        pass
    assert settings.current() == before


def test_refresh_keeps_what_was_assigned(monkeypatch):
    monkeypatch.setenv("TORCH_TPU_FALLBACK", "error")
    with settings.override(fallback="count"):
        settings.refresh()
        assert settings.fallback == "count"


def test_watchers_hear_changes_only():
    heard: list[str] = []
    settings.watch("eager_mode", heard.append)
    try:
        with settings.override(eager_mode="debug"):
            settings.eager_mode = "debug"
        assert heard == ["debug", settings.eager_mode]
    finally:
        settings._watchers["eager_mode"].remove(heard.append)


def test_a_setting_is_declared_once():
    with pytest.raises(ValueError, match="declared already"):
        settings.declare("fallback", "warn", "TORCH_TPU_OTHER", "")
    with pytest.raises(ValueError, match="declared already"):
        settings.declare("other", "warn", "TORCH_TPU_FALLBACK", "")


def test_every_setting_is_read_somewhere():
    source = "\n".join(path.read_text() for path in (ROOT / "torch_tpu").rglob("*.py") if path.name != "settings.py")
    unread = [
        name for name in settings.SETTINGS if f"settings.{name}" not in source and f'watch("{name}"' not in source
    ]
    assert not unread, f"declared but not read by the package: {unread}"


def test_import_is_light():
    code = "import sys, torch_tpu.settings; assert not {'torch', 'numpy', 'jaxlib', 'logging'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("variable", ["TORCH_TPU_PLATFORM", "TPU_LAUNCH_BLOCKING", "TORCH_TPU_CACHE_LIMIT"])
def test_what_cannot_be_read_is_told_when_the_device_starts_and_breaks_no_import(variable):
    code = "import torch; assert not torch.tpu.is_available(); torch.ones(2, device='tpu')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, variable: "bogus"}, capture_output=True, text=True
    )
    assert done.returncode == 1 and "AssertionError" not in done.stderr
    assert "ValueError: environment variable" in done.stderr and variable in done.stderr.splitlines()[-1]
