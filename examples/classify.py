"""Trains a small network on two interleaved spirals, on the device, and prints its accuracy on points it has not seen.

python examples/classify.py
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor, nn

import torch_tpu

DEVICE = "tpu"
NUM_STEPS = 400


def spirals(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points of two spirals and which of them each belongs to: float32 [count, 2], int64 [count]."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % 2
    distance = torch.rand(count, generator=generator).sqrt()
    angle = 2 * math.pi * distance * 1.25 + math.pi * label
    points = torch.stack([distance * angle.cos(), distance * angle.sin()], dim=1)
    return points + 0.01 * torch.randn(count, 2, generator=generator), label


def main() -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    points, labels = (tensor.to(DEVICE) for tensor in spirals(1024, seed=1))
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.tpu.synchronize()
    seconds = time.perf_counter() - start
    points, labels = (tensor.to(DEVICE) for tensor in spirals(1024, seed=2))
    with torch.no_grad():
        accuracy = (model(points).argmax(1) == labels).float().mean().item()
    counts = torch_tpu.stats()
    print(f"accuracy on new points {accuracy:.1%}, loss {loss.item():.4f}")
    print(f"{NUM_STEPS / seconds:.0f} steps per second, {counts['compiles']} programs compiled, "
          f"{counts['disk_hits']} from disk, CPU fallbacks: {dict(counts['fallbacks']) or 'none'}")  # fmt: skip
    return accuracy


if __name__ == "__main__":
    main()
