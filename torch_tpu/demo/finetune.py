"""A few steps of AdamW on real text that ships with Python: the topics of `pydoc`, about the language itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_tpu.demo.modes import Mode, running

BATCH = 2
LENGTH = 64
"""Tokens a row. Every batch has the same shape, so that all steps run the same programs."""
NUM_BATCHES = 4
"""Different batches; training goes over them again and again."""
STEPS: dict[Mode, int] = {"strict": 4, "fused": 4, "compiled": 8}
"""How many in each mode, one after the other: weights and the optimizer's state carry on."""
NUM_STEPS = sum(STEPS.values())
LEARNING_RATE = 5e-5


@dataclass(frozen=True)
class Training:
    """What came of it."""

    losses: list[float]
    seconds: dict[Mode, list[float]]
    """Of each step; the first two in each mode compile."""

    @property
    def first(self) -> float:
        """Mean loss of the first pass over the batches."""
        return sum(self.losses[:NUM_BATCHES]) / NUM_BATCHES

    @property
    def last(self) -> float:
        """Mean loss of the last pass over the batches."""
        return sum(self.losses[-NUM_BATCHES:]) / NUM_BATCHES

    def tokens_per_second(self, mode: Mode) -> float:
        """From the median time of a step, without those that compile."""
        return BATCH * LENGTH / statistics.median(self.seconds[mode][2:])


def batches(tokenizer: Any) -> torch.Tensor:
    """Token ids of shape [NUM_BATCHES, BATCH, LENGTH], cut from the longest topics."""
    from pydoc_data.topics import topics

    texts = sorted(topics.values(), key=len, reverse=True)
    needed = NUM_BATCHES * BATCH * LENGTH
    ids: list[int] = []
    for text in texts:
        if len(ids) >= needed:
            break
        ids += tokenizer(text, truncation=True, max_length=needed)["input_ids"]
    return torch.tensor(ids[:needed]).view(NUM_BATCHES, BATCH, LENGTH)


def train(tokenizer: Any, model: Any, progress: Callable[[int, float, Mode], None]) -> Training:
    """Trains all weights.

    Args:
        progress: told the step's number, its loss and the mode it ran in.
    """
    data = batches(tokenizer).to(model.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    seconds: dict[Mode, list[float]] = {mode: [] for mode in STEPS}
    model.train()
    for mode, count in STEPS.items():
        update = optimizer.step
        if mode == "compiled":
            for block in model.model.layers:
                block.compile()  # one graph serves all of them, as they are alike
            update = torch.compile(update)
        with running(mode):
            for _ in range(count):
                start = time.perf_counter()
                batch = data[len(losses) % NUM_BATCHES]
                loss = model(input_ids=batch, labels=batch, use_cache=False).loss
                loss.backward()
                update()
                optimizer.zero_grad()
                losses.append(loss.item())
                seconds[mode].append(time.perf_counter() - start)
                progress(len(losses), losses[-1], mode)
    model.eval()
    return Training(losses, seconds)
