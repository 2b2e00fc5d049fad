"""A training script that is well written for TPUs. Test data of tests/pure/test_lint_source.py: nothing is to be found."""

import logging
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

import torch_tpu

try:
    import flash_attn
except ImportError:
    flash_attn = None

log = logging.getLogger(__name__)
DEVICE = torch.device("tpu")


class Block(nn.Module):
    """Attention with eight heads of 128."""

    def __init__(self, width: int = 1024, num_heads: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.cache = None
        self.register_buffer("bias", torch.tensor([0.0, 1.0]))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, _ = x.shape
        if length > 4096:
            raise ValueError(f"{length} is too long: {x.max().item()}")
        if mask is not None and x.is_cuda:
            x = x[mask]
        q, k, v = (part.view(batch, length, self.num_heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        positions = torch.arange(length, device=x.device)
        if not self.training and self.cache is None:
            self.cache = positions
        weights = torch.where(positions > 3, 1.0, 0.5) + self.bias.sum()
        return self.out((F.scaled_dot_product_attention(q, k, v) * weights[:, None]).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(1024, 50304)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def train(loader: DataLoader, num_epochs: int) -> float:
    dist.init_process_group()
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total = torch.zeros((), device=DEVICE)
    for epoch in range(num_epochs):
        start = time.perf_counter()
        for step, (x, y) in enumerate(loader):
            x, y = x.to(DEVICE), y.to(DEVICE)
            with torch.autocast("tpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
            if step % 100 == 0:
                log.info("step %d: loss %.3f", step, loss.item())
        print(f"epoch {epoch}: {total.item() / len(loader)} in {time.perf_counter() - start} s")
    torch.tpu.synchronize()
    return total.item()


@torch.no_grad()
def generate(model: Model, prompt: torch.Tensor, num_tokens: int) -> torch.Tensor:
    length = prompt.shape[1]
    tokens = torch.zeros(1, length + num_tokens, dtype=torch.int32, device=DEVICE)
    tokens[:, :length] = prompt
    finished = torch.zeros(1, dtype=torch.bool, device=DEVICE)
    for place in range(length, length + num_tokens):
        token = model(tokens).argmax(-1)[:, place - 1]
        finished = finished | (token == 0)
        tokens[:, place] = torch.where(finished, 0, token)
    return tokens.cpu()


def evaluate(model: Model, loader: DataLoader) -> float:
    scores = []
    for x, y in loader:
        scores.append((model(x.to(DEVICE)).argmax(-1) == y.to(DEVICE)).float().mean())
    return torch.stack(scores).mean().item()


def save(model: Model, path: str) -> None:
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    torch.save(state, path)
    sizes = np.array([value.numel() for value in state.values()])
    for size in sizes:
        print(size.item())
    reference = torch.randn(3, dtype=torch.float64)
    for row in reference:
        if row > 0:
            print(float(row))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    names = [device for device in ("cuda", "cpu", "tpu") if device in os.environ.get("DEVICES", "")]
    print(names, torch_tpu.stats())
