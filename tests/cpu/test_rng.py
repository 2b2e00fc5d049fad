"""Random numbers: seeds, generators, states, and what must draw the same."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

F = torch.nn.functional


def draw(generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.rand(4, device="tpu", generator=generator)


def test_manual_seed_reaches_the_device(counters):
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first) and torch.equal(draw(), second) and not torch.equal(first, second)
    compiled = counters.compiles + counters.disk_hits
    torch.manual_seed(4)
    assert not torch.equal(draw(), first)
    assert counters.compiles + counters.disk_hits == compiled  # a seed is data
    torch.tpu.manual_seed_all(3)
    assert torch.equal(draw(), first) and torch.tpu.initial_seed() == 3
    torch.tpu.manual_seed(3)
    assert torch.equal(draw(), first)
    assert torch.tpu.seed() != 3
    torch.seed()


def test_state():
    state = torch.tpu.get_rng_state()
    assert state.device.type == "cpu" and state.dtype is torch.uint8
    first = draw()
    torch.tpu.set_rng_state(state)
    assert torch.equal(draw(), first)
    torch.tpu.set_rng_state_all([state])
    assert torch.equal(draw(), first) and len(torch.tpu.get_rng_state_all()) == 1
    with pytest.raises(TypeError, match=r"must be a torch\.ByteTensor"):
        torch.tpu.set_rng_state(torch.zeros(3))
    with pytest.raises(ValueError, match="16 bytes"):
        torch.tpu.set_rng_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="there is no tpu:1"):
        torch.tpu.get_rng_state(1)


def test_generators():
    generator = torch.Generator(device="tpu").manual_seed(5)
    assert generator.device.type == "tpu" and generator.initial_seed() == 5 and generator.get_offset() == 0
    first = draw(generator)
    assert generator.get_offset() > 0
    saved = generator.get_state()
    second = draw(generator)
    generator.set_state(saved)
    assert torch.equal(draw(generator), second)
    generator.set_offset(0)
    assert torch.equal(draw(generator), first)
    clone = generator.clone_state()
    assert torch.equal(draw(clone), draw(generator))
    shared = generator.graphsafe_get_state()
    assert shared.get_offset() == generator.get_offset()
    restored = pickle.loads(pickle.dumps(generator))
    assert torch.equal(draw(restored), draw(generator))
    torch.manual_seed(0)
    before = draw()
    torch.manual_seed(0)
    draw(generator)
    assert torch.equal(draw(), before)  # generators do not disturb each other
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        draw(torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.rand(2, generator=generator)


def test_default_generators():
    (generator,) = torch.tpu.default_generators
    generator.manual_seed(8)
    first = draw()
    torch.tpu.manual_seed(8)
    assert torch.equal(draw(generator), first)


def test_fork_rng():
    for arguments in ({}, {"devices": [0]}):
        torch.manual_seed(1)
        expected = draw()
        torch.manual_seed(1)
        with torch.random.fork_rng(device_type="tpu", **arguments):
            draw()
            torch.manual_seed(9)
        assert torch.equal(draw(), expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_repeats_the_same_dropout(reentrant):
    x = torch.ones(64, device="tpu", requires_grad=True)
    y = checkpoint(lambda value: F.dropout(value * 2, 0.5), x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()) and 0 < (y == 0).sum() < 64


def test_one_seed_for_host_and_device():
    torch.manual_seed(2)
    host = torch.rand(3)
    draw()
    torch.manual_seed(2)
    draw()
    draw()
    assert torch.equal(torch.rand(3), host)  # the device's numbers do not use up the host's


def test_threads_draw_different_numbers():
    torch.manual_seed(0)
    drawn = []

    def work() -> None:
        drawn.extend(draw() for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(x.tolist()) for x in drawn}) == 40


def test_modules_draw_their_weights_alike_when_copied():
    torch.manual_seed(0)
    with torch.device("tpu"):
        first = torch.nn.Linear(3, 3)
        torch.manual_seed(0)
        second = torch.nn.Linear(3, 3)
    assert torch.equal(first.weight, second.weight) and torch.equal(copy.deepcopy(first).weight, first.weight)


def test_dropout_hides_nothing():
    """What is dropped is multiplied by zero, which NaN and infinity survive."""
    x = torch.tensor([float("nan"), float("inf")], device="tpu").repeat(50)
    for _ in range(2):
        dropped = F.dropout(x, 0.5).cpu()
        assert dropped[::2].isnan().all() and not dropped[1::2].isfinite().any() and dropped[1::2].isnan().any()
