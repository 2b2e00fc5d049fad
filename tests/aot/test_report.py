"""What `Compiled.report` says, held against arithmetic."""

import json

import pytest
import torch
from torch import nn

from torch_tpu import aot, settings
from torch_tpu.aot import models, tables

BATCH, WIDTH = 256, 512
FLOPS = 2 * BATCH * WIDTH * WIDTH


def linear(**options):
    model = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16, device="meta")
    return aot.compile(model, (torch.empty(BATCH, WIDTH, dtype=torch.bfloat16, device="meta"),), "v7x-4", **options)


def test_a_module():
    with settings.override(chip_prices=("v7x=3.6",)):
        report = linear(tokens=BATCH).report
    assert report.compiled and report.name == "Linear" and report.workload is None
    assert (report.chips, report.devices, report.tokens) == (4, 8, BATCH)
    assert report.work.flops == report.work.requested_flops == FLOPS
    assert report.memory.arguments == 2 * WIDTH * (WIDTH + BATCH) and report.memory.outputs == 2 * WIDTH * BATCH
    seconds, rates = report.time.estimate, report.rates
    assert 0 < report.time.least <= seconds
    assert rates.tokens_per_second_per_chip == pytest.approx(BATCH * 2 / seconds), "a chip has two devices"
    assert rates.usd_per_step == pytest.approx(4 * 0.001 * seconds)
    assert rates.usd_per_million_tokens == pytest.approx(0.001 * 1e6 / rates.tokens_per_second_per_chip)
    assert rates.mfu is None and any("no model-FLOPs utilization" in note for note in report.notes)
    text = str(report)
    assert "Linear on v7x-4" in text and "estimate; 3.60 USD a chip-hour" in text
    assert json.loads(report.to_json())["rates"]["intensity"] == rates.intensity


def test_what_runs_nothing_says_so():
    report = aot.compile(lambda x: x, torch.empty(4, device="meta")).report
    assert report.programs == 0 and any("nothing runs on the device" in note for note in report.notes)
    assert not any("nothing runs" in note for note in linear().report.notes)


def test_a_step_that_is_too_short_for_its_estimate_says_so():
    def noted(width):
        x = torch.empty(width, width, dtype=torch.bfloat16, device="meta")
        report = aot.compile(lambda x: x @ x, x, "v6e-1").report
        return report.time.estimate, any("what starting a program" in note for note in report.notes)

    (short, told), (long, silent) = noted(64), noted(8192)
    assert short < 1e-4 < long and told and not silent


def test_without_tokens_a_step_still_has_a_price():
    report = linear().report
    assert report.rates.tokens_per_second_per_chip is report.rates.usd_per_million_tokens is None
    assert report.rates.usd_per_step > 0
    other = linear(tokens=1).retarget("v6e-1").report
    (_, *rows) = tables.comparison([report, other])
    assert rows[0][0] == "v6e-1"
    assert [row.value for row in tables.best([report, other])] == ["v6e-1", "v6e-1"]


def test_a_language_model_says_how_many_tokens_it_handles(tmp_path):
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 512}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **shape, **heads}))
    model = models.from_config(str(file), torch.bfloat16)
    ids = torch.empty(2, 64, dtype=torch.long, device="meta")
    forward = aot.compile(model, (ids,), kwargs={"use_cache": False}).report
    assert (forward.tokens, forward.model.passes) == (128, 1)
    norms = 3 * 128  # whose weights the definition counts too
    assert forward.work.requested_flops == (forward.model.full - 2 * norms) * 128, "all logits, attention in full"
    step = aot.compile(model, (ids,), kwargs={"labels": ids, "use_cache": False}, optimizer=torch.optim.SGD)
    assert (step.tokens, step.model.passes, step.model.full) == (128, 3, 3 * forward.model.full)


def test_weights_that_are_updated_are_among_the_largest_buffers():
    """They are arguments and results in the same memory, and copies of them in faster memory are alive at the peak."""
    report = linear(optimizer=torch.optim.SGD, loss=lambda output: output.square().mean()).report
    largest = report.memory.largest[0]
    assert (largest.kind, largest.shape, largest.nbytes) == ("argument", "bf16[512,512]", 2 * WIDTH * WIDTH)


def test_a_function_that_runs_nothing():
    report = aot.compile(lambda x: x, (torch.empty(4, device="meta"),)).report
    assert report.compiled and report.memory.total == 0 and report.time.estimate == 0
    assert "0 us" in str(report)


def test_a_report_of_what_does_not_fit():
    rows = 1 << 21
    x = torch.empty(rows, 1 << 14, dtype=torch.bfloat16, device="meta")
    report = aot.compile(lambda x: x + 1, (x,), "v5e").report
    assert not report.compiled and report.rates is None
    assert report.failure.exceeds_by > 0 and report.memory.largest[0].shape == f"bf16[{rows},16384]"
    assert " compiles no " in " ".join(str(report).split())
