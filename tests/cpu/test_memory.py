"""Memory statistics: what tensors hold is counted, freed and reported under PyTorch's names."""

from __future__ import annotations

import gc

import pytest
import torch

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _clean():
    gc.collect()


def test_allocated_follows_the_tensors():
    before = torch.tpu.memory_allocated()
    x = torch.ones(MIB, device="tpu")
    assert torch.tpu.memory_allocated() - before == 4 * MIB
    assert torch.tpu.memory_reserved() == torch.tpu.memory_allocated()
    view = x[10:]
    y = x + 1
    assert torch.tpu.memory_allocated() - before == 8 * MIB
    del x
    assert torch.tpu.memory_allocated() - before == 8 * MIB  # the view holds it
    del view, y
    assert torch.tpu.memory_allocated() == before


def test_peak():
    x = torch.ones(MIB, device="tpu")
    torch.tpu.reset_peak_memory_stats()
    base = torch.tpu.memory_allocated()
    y = x * 2
    del y
    assert torch.tpu.max_memory_allocated() == torch.tpu.max_memory_reserved() == base + 4 * MIB
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == base


def test_nothing_is_held_before_the_first_write():
    before = torch.tpu.memory_allocated()
    x = torch.empty(1 << 40, device="tpu")
    assert torch.tpu.memory_allocated() == before and x.untyped_storage().nbytes() == 1 << 42


def test_statistics_by_name():
    x = torch.ones(MIB, device="tpu")
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated() >= x.nbytes
    freed = stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"]
    assert freed == stats["allocated_bytes.all.current"]
    assert stats["num_ooms"] == 0
    torch.tpu.reset_accumulated_memory_stats()
    assert torch.tpu.memory_stats()["allocated_bytes.all.allocated"] == torch.tpu.memory_allocated()
    nested = torch.tpu.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["peak"] == torch.tpu.max_memory_allocated() and nested["num_ooms"] == 0
    assert torch.accelerator.memory_allocated() == torch.tpu.memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    torch.accelerator.empty_cache()
    torch.tpu.empty_cache()
    torch.tpu.ipc_collect()
    assert torch.tpu.OutOfMemoryError is torch.OutOfMemoryError


def test_there_is_one_device():
    for function in (torch.tpu.memory_allocated, torch.tpu.memory_stats, torch.tpu.memory_summary):
        with pytest.raises(ValueError, match="no tpu:2"):
            function("tpu:2")
    for function in (torch.tpu.mem_get_info, torch.tpu.reset_peak_memory_stats):
        with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
            function("cpu")


def test_device_memory():
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total == torch.tpu.get_device_properties().total_memory
    assert torch.accelerator.get_memory_info()[1] == total
    summary = torch.tpu.memory_summary()
    assert "held by tensors" in summary and "peak" in summary


def test_a_training_loop_does_not_grow():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(16, 32, device="tpu")).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    held = torch.tpu.memory_allocated()
    for _ in range(5):
        step()
    gc.collect()
    assert torch.tpu.memory_allocated() == held
