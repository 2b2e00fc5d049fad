"""Tiny models of four kinds end to end: what `torch-tpu conformance models` does with all architectures."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_tpu
from torch_tpu.conformance.models import judge, sweep
from torch_tpu.conformance.models.judge import ModelCase
from torch_tpu.conformance.models.recipe import short


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


def test_limits_follow_the_rounding_of_the_cpu(monkeypatch):
    """A model in which errors add up may differ by twice what the CPU's float32 does from float64, and by no more."""
    recipe, reference = judge._prepared("transformers", "llama")
    kinds = []
    hook = recipe.model.lm_head.register_forward_hook(lambda module, args, out: kinds.append(out.float().dtype))
    assert judge._limits_of_rounding(recipe, reference) == judge.TIGHT
    hook.remove()
    assert kinds == [torch.float64], "a cast to float32 must not round what is exact"
    monkeypatch.setattr(judge, "TIGHT", dict.fromkeys(judge.TIGHT, 1e-12))
    limits = judge._limits_of_rounding(recipe, reference)
    assert all(1e-12 <= limit < 1e-5 for limit in limits.values())
    assert limits["output"] > 1e-8 and limits["gradient"] > 1e-8
    near, far = copy.deepcopy(reference), copy.deepcopy(reference)
    near.outputs["logits"] *= 1 + 0.5 * limits["output"]
    far.outputs["logits"] *= 1 + 2 * limits["output"]
    judge.compare(near, reference, limits=limits)
    with pytest.raises(AssertionError, match="output logits"):
        judge.compare(far, reference, limits=limits)


def test_a_model_that_pytorch_does_not_compile_is_told_apart():
    result = judge.judge(ModelCase("transformers", "parakeet_tdt", "compiled"), "tpu")
    assert result.status == "n/a" and "for the CPU either" in result.reason


def test_a_sweep_runs_in_processes_and_is_continued(tmp_path):
    plan = sweep.ModelPlan(names=("sam_prompt_encoder", "sam_mask_decoder"), output=tmp_path / "results.jsonl")
    cases = sweep.cases(plan)
    assert [result.status for result in sweep.run(plan, cases)] == ["n/a", "n/a"]
    lines = plan.output.read_text().splitlines()
    sweep.run(plan, cases)
    assert plan.output.read_text().splitlines() == lines and len(lines) == 3


def test_reasons_are_the_same_on_every_machine():
    error = RuntimeError('no <function f at 0x7fbc146e> in\n  File "/somewhere/lib/generic.py", line 3')
    assert short(error) == 'RuntimeError: no <function f> in File "generic.py", line 3'
