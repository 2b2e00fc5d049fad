"""Tiny models of four kinds end to end: what `torch-tpu conformance models` does with all architectures."""

from __future__ import annotations

import pytest

import torch_tpu
from torch_tpu.conformance.models import judge, sweep
from torch_tpu.conformance.models.judge import ModelCase


@pytest.mark.parametrize(
    "name, family, phases",
    [
        ("llama", "text", {"loss", "output", "gradient", "step", "generate"}),
        ("vit", "vision", {"loss", "output", "gradient", "step"}),
        ("wav2vec2", "audio", {"loss", "output", "gradient", "step"}),
    ],
)
def test_a_tiny_model_trains_and_generates_as_on_the_cpu(name, family, phases):
    with torch_tpu.settings.override(fallback="count"):
        result = judge.judge(ModelCase("transformers", name, "strict"), "tpu")
    assert (result.status, result.reason, result.fallbacks) == ("passed", "", {})
    assert result.family == family and set(result.phases) == phases


def test_what_the_cpu_cannot_run_is_not_applicable():
    result = judge.judge(ModelCase("transformers", "sam_prompt_encoder", "strict"), "tpu")
    assert result.status == "n/a" and "without a class of its own" in result.reason and not result.fails


def test_a_wrong_device_fails(monkeypatch):
    original = judge.measure

    def wrong(recipe, device, mode, *, generate):
        run = original(recipe, "cpu", "strict", generate=generate)
        if device == "tpu":
            run.outputs["logits"] = run.outputs["logits"] + 0.1
        return run

    monkeypatch.setattr(judge, "measure", wrong)
    result = judge.judge(ModelCase("transformers", "mistral", "strict"), "tpu")
    assert result.status == "failed" and "output logits" in result.reason


def test_a_sweep_runs_in_processes_and_is_continued(tmp_path):
    plan = sweep.ModelPlan(names=("sam_prompt_encoder", "sam_mask_decoder"), output=tmp_path / "results.jsonl")
    cases = sweep.cases(plan)
    assert [result.status for result in sweep.run(plan, cases)] == ["n/a", "n/a"]
    lines = plan.output.read_text().splitlines()
    sweep.run(plan, cases)
    assert plan.output.read_text().splitlines() == lines and len(lines) == 3
