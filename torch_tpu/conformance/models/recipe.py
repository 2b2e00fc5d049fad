"""A model with what it is called with, and a first run of it on the CPU."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

SEED = 1234
MAX_PARAMETERS = 30_000_000
PRIMARY = (
    "logits",
    "last_hidden_state",
    "sample",
    "reconstruction",
    "waveform",
    "audio",
    "sequences",
    "prediction_logits",
)
"""The output that stands for all, the first of these that a model has."""


class NotApplicable(Exception):
    """The CPU itself cannot run the model as it is built here; the text says why."""


@dataclass
class Recipe:
    """A model on the CPU with what it is called with."""

    model: torch.nn.Module
    inputs: dict[str, Any]
    labels: dict[str, Any]
    family: str
    generate: bool = False
    name: str = ""
    """More than the name of the class says, if anything."""


def try_out(recipe: Recipe) -> None:
    """Runs forward, loss and backward on the CPU; without labels where they are not accepted."""
    model = copy.deepcopy(recipe.model)  # which may keep states of this run
    try:
        loss = loss_of(model(**recipe.inputs, **recipe.labels))
    except Exception:
        if not recipe.labels:
            raise
        recipe.labels = {}
        loss = loss_of(model(**recipe.inputs))
    if not torch.isfinite(loss):
        raise ValueError(f"the loss on the CPU is {loss.item()}")
    if loss.requires_grad:
        loss.backward()


def scatter(model: torch.nn.Module, seed: int = SEED) -> None:
    """Adds small numbers to all weights: what is initialized with zeros or ones would hide errors behind it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.nan_to_num_(0.0).add_(torch.randn(parameter.shape, generator=generator), alpha=0.02)


def short(error: BaseException) -> str:
    """One line that says what went wrong, the same on every machine: without folders and addresses."""
    text = re.sub(r"/\S*/(?=\S+\.py\b)| at 0x[0-9a-f]+", "", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:200]}"


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a model's output, by a path."""
    if torch.is_tensor(value):
        yield name or "output", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from tensors(item, f"{name}.{i}" if name else str(i))


def primary(outputs: Any) -> tuple[str, torch.Tensor]:
    """The output that stands for all.

    Raises:
        ValueError: there is no tensor of floating-point numbers.
    """
    found = {name: value for name, value in tensors(outputs) if value.is_floating_point() and value.dim() > 0}
    for name in PRIMARY:
        if name in found:
            return name, found[name]
    for name, value in found.items():
        if name != "loss":
            return name, value
    raise ValueError("the output has no tensor of floating-point numbers")


def loss_of(outputs: Any) -> torch.Tensor:
    """The model's own loss, or a weighted sum of its output with fixed weights."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if torch.is_tensor(loss) and loss.numel() == 1:
        return loss.reshape(())
    _, value = primary(outputs)
    weights = torch.cos(torch.arange(value.numel(), dtype=torch.float32)).to(value.device).reshape(value.shape)
    return (value.float() * weights).sum() / max(1, value.numel()) ** 0.5
