"""The benchmarks' models as plain PyTorch modules, the same for every device. Parameters are named as in `data.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import data
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Normalizes by the root mean square, in float32."""

    def __init__(self, dim: int, epsilon: float):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return wide.to(x.dtype) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, length, head_dim]."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Layer(nn.Module):
    """Attention with grouped keys and values, and a gated feed-forward part."""

    def __init__(self, sizes: data.Llama):
        super().__init__()
        self.sizes = sizes
        kv = sizes.kv_heads * sizes.head_dim
        self.norm1, self.norm2 = RMSNorm(sizes.dim, sizes.epsilon), RMSNorm(sizes.dim, sizes.epsilon)
        self.wq = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.wk, self.wv = nn.Linear(sizes.dim, kv, bias=False), nn.Linear(sizes.dim, kv, bias=False)
        self.wo = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.w1, self.w3 = (nn.Linear(sizes.dim, sizes.hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(sizes.hidden, sizes.dim, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.sizes.head_dim).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: tuple[Tensor, Tensor] | None = None,
        position: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """One layer on [batch, length, dim]; with a cache, one new position, written into it."""
        h = self.norm1(x)
        query = rotate(self._heads(self.wq(h)), cos, sin)
        key, value = rotate(self._heads(self.wk(h)), cos, sin), self._heads(self.wv(h))
        if cache is not None:
            key, value = cache[0].index_copy_(2, position, key), cache[1].index_copy_(2, position, value)
        seen = F.scaled_dot_product_attention(query, key, value, mask, is_causal=cache is None, enable_gqa=True)
        x = x + self.wo(seen.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    """A small Llama with a static cache for decoding."""

    def __init__(self, sizes: data.Llama):
        super().__init__()
        self.sizes = sizes
        self.embed = nn.Embedding(sizes.vocab, sizes.dim)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.dim, sizes.epsilon)
        self.head = nn.Linear(sizes.dim, sizes.vocab, bias=False)
        for name, table in zip(("cos", "sin"), data.rotary(sizes), strict=True):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocab] of tokens [batch, length]."""
        length = tokens.shape[1]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.head(self.norm(x))

    def decode(self, token: Tensor, position: Tensor, caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The likeliest next token [batch, 1] after token [batch, 1] at position [1]."""
        x = self.embed(token)
        cos, sin = self.cos.index_select(0, position), self.sin.index_select(0, position)
        mask = (torch.arange(self.sizes.length, device=token.device) <= position).view(1, 1, 1, -1)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cos, sin, cache, position, mask)
        return self.head(self.norm(x))[:, -1].argmax(-1, keepdim=True)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, width: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shrinks = stride != 1 or width != planes
        if self.shrinks:
            self.down = nn.Conv2d(width, planes, 1, stride, bias=False)
            self.down_bn = nn.BatchNorm2d(planes)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.down_bn(self.down(x)) if self.shrinks else x
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + shortcut)


class ResNet18(nn.Module):
    """A ResNet-18."""

    def __init__(self, classes: int = 1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        widths = [64, *(planes for planes, _ in data.STAGES)]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(Block(width, planes, stride), Block(planes, planes, 1))
                for width, (planes, stride) in zip(widths, data.STAGES, strict=False)
            )
        )
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes] of images [batch, 3, height, width]."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.stages(x).mean((2, 3)))


class MLP(nn.Module):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc0, self.fc1, self.fc2 = (nn.Linear(a, b) for a, b in zip(data.MLP[:-1], data.MLP[1:], strict=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(F.relu(self.fc0(x)))))


def load(module: nn.Module, weights: Mapping[str, data.Array]) -> nn.Module:
    """Copies weights into a module's parameters; the module's buffers keep their first values."""
    missing, unexpected = module.load_state_dict(
        {name: torch.from_numpy(value) for name, value in weights.items()}, strict=False
    )
    wrong = [*unexpected, *(name for name in missing if name in dict(module.named_parameters()))]
    if wrong:
        raise ValueError(f"parameters do not match: {', '.join(wrong)}")
    return module
