"""A few steps of AdamW on real text that ships with Python: the topics of `pydoc`, about the language itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

BATCH = 2
LENGTH = 64
"""Tokens a row. Every batch has the same shape, so that all steps run the same programs."""
NUM_BATCHES = 4
"""Different batches; training goes over them again and again."""
NUM_STEPS = 16
LEARNING_RATE = 5e-5


@dataclass(frozen=True)
class Training:
    """What came of it."""

    losses: list[float]
    seconds: list[float]
    """Of each step; the first compiles."""

    @property
    def first(self) -> float:
        """Mean loss of the first pass over the batches."""
        return sum(self.losses[:NUM_BATCHES]) / NUM_BATCHES

    @property
    def last(self) -> float:
        """Mean loss of the last pass over the batches."""
        return sum(self.losses[-NUM_BATCHES:]) / NUM_BATCHES

    @property
    def tokens_per_second(self) -> float:
        """After the first step."""
        return BATCH * LENGTH * (len(self.seconds) - 1) / sum(self.seconds[1:])


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


def train(tokenizer: Any, model: Any, progress: Callable[[int, float], None]) -> Training:
    """Trains all weights.

    Args:
        progress: told the step's number and its loss.
    """
    data = batches(tokenizer).to(model.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    seconds: list[float] = []
    model.train()
    for step in range(NUM_STEPS):
        start = time.perf_counter()
        batch = data[step % NUM_BATCHES]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        progress(step, losses[-1])
    model.eval()
    return Training(losses, seconds)
