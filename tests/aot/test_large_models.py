"""Plans of models of the size that people train and serve: without weights, in minutes."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from torch_tpu import settings
from torch_tpu.aot import models, plans

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"
GIB = 2**30
FIVE_MINUTES_OF_TWO_CORES = 600.0


def used_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.slow
def test_a_training_step_of_llama_3_8b():
    start = used_seconds()
    with settings.override(cache=False):
        (made,) = plans.plan(models.Workload(str(CONFIGS / "llama-3-8b.json"), "train", 1, 2048), ["v7x-1"])
    assert used_seconds() - start < FIVE_MINUTES_OF_TWO_CORES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20, "in KiB: no weights are anywhere"
    assert made.compiled
    assert made.model.parameters == 8_030_261_248
    assert made.work.requested_flops == pytest.approx(made.model.full * 2048, rel=0.02)
    assert made.work.flops == pytest.approx(made.work.requested_flops, rel=0.02)
    assert set(made.time.loops.values()) == {32}, "the layers, forwards and backwards"
    assert made.memory.arguments == pytest.approx(3 * 2 * made.model.parameters, rel=0.01), "weights and both moments"
    assert made.memory.total < 94 * GIB
    assert 0.05 < made.rates.mfu_causal < made.rates.mfu < 0.9


@pytest.mark.slow
def test_decoding_with_qwen3_8b_is_bound_by_memory():
    (made,) = plans.plan(models.Workload(str(CONFIGS / "qwen3-8b.json"), "decode", 4, 4096), ["v6e-1"])
    assert made.compiled and made.rates.bound == "memory"
    weights, cache = 2 * made.model.active, 2 * 36 * 4 * 8 * 4096 * 128 * 2
    assert made.work.hbm_bytes == pytest.approx(weights + cache, rel=0.02), "all of both is read once, and no more"
    assert made.time.least == pytest.approx((weights + cache) / 1638e9, rel=0.02)
    assert made.time.estimate < 1.5 * made.time.least
