"""Initial weights and inputs of the benchmarks' models, the same for every subject: numpy arrays by parameter name."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

MLP = (64, 128, 128, 10)
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and first stride of a ResNet-18's stages."""


@dataclass(frozen=True)
class Llama:
    """Sizes of a small Llama."""

    dim: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 1408
    vocab: int = 8192
    length: int = 256
    epsilon: float = 1e-5
    theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def llama(sizes: Llama) -> dict[str, Array]:
    """Weights of all linear layers and embeddings: normal with deviation 0.02, [out, in]; norms: ones."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)

    ones, kv = np.ones(sizes.dim, np.float32), sizes.kv_heads * sizes.head_dim
    found = {"embed.weight": normal(sizes.vocab, sizes.dim)}
    for layer in range(sizes.layers):
        shapes = {
            "wq": (sizes.dim, sizes.dim),
            "wk": (kv, sizes.dim),
            "wv": (kv, sizes.dim),
            "wo": (sizes.dim, sizes.dim),
            "w1": (sizes.hidden, sizes.dim),
            "w3": (sizes.hidden, sizes.dim),
            "w2": (sizes.dim, sizes.hidden),
        }
        found |= {f"layers.{layer}.{norm}.weight": ones for norm in ("norm1", "norm2")}
        found |= {f"layers.{layer}.{name}.weight": normal(*shape) for name, shape in shapes.items()}
    found["norm.weight"] = ones
    found["head.weight"] = normal(sizes.vocab, sizes.dim)
    return found


def rotary(sizes: Llama) -> tuple[Array, Array]:
    """Cosines and sines of the rotary embedding: float32 [length, head_dim / 2]."""
    half = sizes.head_dim // 2
    angle = np.outer(np.arange(sizes.length), sizes.theta ** (-np.arange(half, dtype=np.float64) / half))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def tokens(sizes: Llama, batch: int = 4) -> tuple[Array, Array]:
    """Tokens and the tokens that follow them: int64 [batch, length]."""
    ids = np.random.default_rng(1).integers(0, sizes.vocab, (batch, sizes.length + 1), dtype=np.int64)
    return ids[:, :-1].copy(), ids[:, 1:].copy()


def resnet(classes: int = 1000) -> dict[str, Array]:
    """Weights of a ResNet-18; convolutions are [out, in, height, width]."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}

    def convolution(name: str, norm: str, planes: int, width: int, size: int) -> None:
        kernel = random.standard_normal((planes, width, size, size)) * np.sqrt(2.0 / (planes * size * size))
        found[f"{name}.weight"] = kernel.astype(np.float32)
        found[f"{norm}.weight"], found[f"{norm}.bias"] = np.ones(planes, np.float32), np.zeros(planes, np.float32)

    convolution("conv1", "bn1", 64, 3, 7)
    width = 64
    for stage, (planes, stride) in enumerate(STAGES):
        for block in range(2):
            prefix = f"stages.{stage}.{block}."
            convolution(prefix + "conv1", prefix + "bn1", planes, width, 3)
            convolution(prefix + "conv2", prefix + "bn2", planes, planes, 3)
            if block == 0 and (stride != 1 or width != planes):
                convolution(prefix + "down", prefix + "down_bn", planes, width, 1)
            width = planes
    found["fc.weight"] = (random.standard_normal((classes, 512)) * 0.02).astype(np.float32)
    found["fc.bias"] = np.zeros(classes, np.float32)
    return found


def images(batch: int = 8, size: int = 112) -> tuple[Array, Array]:
    """Images, float32 [batch, 3, size, size], and labels, int64 [batch]."""
    random = np.random.default_rng(5)
    return random.standard_normal((batch, 3, size, size), dtype=np.float32), random.integers(0, 1000, batch)


def mlp() -> dict[str, Array]:
    """Weights of a perceptron of three linear layers."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for place, (width, planes) in enumerate(itertools.pairwise(MLP)):
        weight = random.standard_normal((planes, width)) / np.sqrt(width)
        found[f"fc{place}.weight"] = weight.astype(np.float32)
        found[f"fc{place}.bias"] = np.zeros(planes, np.float32)
    return found


def vectors() -> tuple[Array, Array]:
    """Inputs of the perceptron, float32 [32, 64], and classes, int64 [32]."""
    random = np.random.default_rng(3)
    return random.standard_normal((32, MLP[0])).astype(np.float32), random.integers(0, MLP[-1], 32)
