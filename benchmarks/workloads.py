"""What is measured: small operators, training steps, decoding. A workload is a function that does one unit of work.

`start(name, subject)` makes the models and returns the workload: a function without arguments that returns its result
(a loss, tokens, or nothing) when all work is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import data
import numpy as np
from subjects import Torch

CHAIN = 200
"""Operators of a chain."""
BATCH, NEW = 8, 128
"""Sequences decoded at once, and new tokens of each."""

SIZES = data.Llama()


@dataclass(frozen=True)
class Workload:
    """A function to time, and what one call of it is."""

    run: Callable[[], Any]
    unit: str
    count: int = 1
    """Units in a call."""
    higher_is_better: bool = False
    issue: Callable[[], Any] | None = None
    """Only the part that Python waits for, where that is of interest."""


# ------------------------------------------------------------------------------------------ PyTorch programs


def operators(subject: Torch) -> Workload:
    """A chain of additions, multiplications, products and relu on 8x8 tensors, without reading a result."""
    import torch

    x = torch.full((8, 8), 0.5).to(subject.device)
    y, w = torch.ones(8, 8).to(subject.device), torch.eye(8).to(subject.device)

    def chain(x: Any, y: Any, w: Any) -> Any:
        for _ in range(CHAIN // 4):
            x = torch.relu((x + y) * y) @ w
        return x

    function = subject.compile_whole(subject.compile(chain))

    def issue() -> Any:
        with torch.no_grad():
            return function(x, y, w)

    def run() -> None:
        kept = issue()
        subject.end_of_step()
        subject.wait()
        del kept

    return Workload(run, "us an operator", CHAIN, issue=issue)


def _training(subject: Torch, loss: Callable[[], Any], optimizer: Any) -> Workload:
    forward, step = subject.compile(loss), subject.compile(optimizer.step)

    def train() -> Any:
        result = forward()
        result.backward()
        result = result.detach()
        step()
        optimizer.zero_grad(set_to_none=True)
        return result

    whole = subject.compile_whole(train)

    def run() -> Any:
        result = whole()
        subject.end_of_step()
        subject.wait()
        return result

    return Workload(run, "ms a step")


def mlp(subject: Torch) -> Workload:
    """A perceptron's training step, plain SGD."""
    import models
    import torch
    import torch.nn.functional as F

    model = models.load(models.MLP(), data.mlp()).to(subject.device)
    x, y = (torch.from_numpy(array).to(subject.device) for array in data.vectors())
    return _training(subject, lambda: F.cross_entropy(model(x), y), torch.optim.SGD(model.parameters(), lr=0.01))


def llama(subject: Torch, dtype: str) -> Workload:
    """A Llama's training step on [4, 256] tokens, AdamW."""
    import models
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    model = models.load(models.Llama(SIZES), data.llama(SIZES)).to(getattr(torch, dtype)).to(subject.device)
    ids, targets = (torch.from_numpy(array).to(subject.device) for array in data.tokens(SIZES))

    def loss() -> Any:
        return F.cross_entropy(model(ids).float().view(-1, SIZES.vocab), targets.view(-1))

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=subject.captures)
    return _training(subject, loss, optimizer)


def resnet(subject: Torch) -> Workload:
    """A ResNet-18's training step on [8, 3, 112, 112] images, SGD with momentum."""
    import models
    import torch
    import torch.nn.functional as F

    model = models.load(models.ResNet18(), data.resnet()).to(subject.device).train()
    x, y = (torch.from_numpy(array).to(subject.device) for array in data.images())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _training(subject, lambda: F.cross_entropy(model(x), y), optimizer)


def decode(subject: Torch, dtype: str) -> Workload:
    """Greedy decoding with a static cache: the tokens stay on the device until the end."""
    import models
    import torch

    kind = getattr(torch, dtype)
    model = models.load(models.Llama(SIZES), data.llama(SIZES)).to(kind).to(subject.device).eval()
    shape = (BATCH, SIZES.kv_heads, SIZES.length, SIZES.head_dim)
    caches = [tuple(torch.zeros(shape, dtype=kind).to(subject.device) for _ in range(2)) for _ in range(SIZES.layers)]
    first = torch.from_numpy(_first_tokens()).to(subject.device)

    def step(token: Any, position: Any) -> Any:
        return model.decode(token, position, caches), position + 1

    one = subject.compile_whole(subject.compile(step))

    def run() -> Any:
        token, position, found = first, torch.zeros(1, dtype=torch.int64).to(subject.device), []
        with torch.no_grad():
            for _ in range(NEW):
                token, position = one(token, position)
                subject.end_of_step()
                found.append(token)
            return torch.cat(found, 1).cpu()[0].sum()

    return Workload(run, "tokens a second", BATCH * NEW, higher_is_better=True)


def _first_tokens() -> data.Array:
    return np.arange(BATCH, dtype=np.int64)[:, None] * 17 + 1


# ------------------------------------------------------------------------------------------------- JAX programs


def jax_operators() -> Workload:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def chain(x: Any, y: Any, w: Any) -> Any:
        for _ in range(CHAIN // 4):
            x = jnp.maximum((x + y) * y, 0) @ w
        return x

    x, y, w = jnp.full((8, 8), 0.5), jnp.ones((8, 8)), jnp.eye(8)

    def run() -> None:
        chain(x, y, w).block_until_ready()

    return Workload(run, "us an operator", CHAIN, issue=lambda: chain(x, y, w))


def _jax_training(
    loss: Callable[..., Any], update: Callable[..., Any], params: Any, state: Any, *inputs: Any
) -> Workload:
    import jax

    def step(params: Any, state: Any, *inputs: Any) -> Any:
        (value, aside), grads = jax.value_and_grad(loss, has_aux=True)(params, *inputs)
        return value, aside, *update(params, grads, state)

    compiled = jax.jit(step, donate_argnums=(0, 1))
    box = [params, state]

    def run() -> Any:
        value, _, *box[:] = compiled(*box, *inputs)
        return jax.block_until_ready((value, box))[0]

    return Workload(run, "ms a step")


def jax_mlp() -> Workload:
    import jax.numpy as jnp
    import models_jax

    params = {name: jnp.asarray(value) for name, value in data.mlp().items()}
    x, y = (jnp.asarray(array) for array in data.vectors())

    def loss(p: Any, x: Any, y: Any) -> Any:
        return models_jax.cross_entropy(models_jax.mlp(p, x), y), ()

    return _jax_training(loss, models_jax.sgd(0), params, (), x, y)


def jax_llama(dtype: str) -> Workload:
    import jax.numpy as jnp
    import models_jax

    params, tables = _jax_llama(dtype)
    ids, targets = (jnp.asarray(array, jnp.int32) for array in data.tokens(SIZES))

    def loss(p: Any, ids: Any, targets: Any) -> Any:
        return models_jax.cross_entropy(models_jax.llama(SIZES, p, tables, ids), targets), ()

    moments = [{name: jnp.zeros_like(value) for name, value in params.items()} for _ in range(2)]
    return _jax_training(loss, models_jax.adamw, params, (*moments, jnp.zeros(())), ids, targets)


def _jax_llama(dtype: str) -> Any:
    import jax.numpy as jnp

    params = {name: jnp.asarray(value, dtype) for name, value in data.llama(SIZES).items()}
    return params, tuple(jnp.asarray(table, dtype) for table in data.rotary(SIZES))


def jax_resnet() -> Workload:
    import jax.numpy as jnp
    import models_jax

    params = {name: jnp.asarray(value) for name, value in data.resnet().items()}
    images, labels = data.images()
    x, y = jnp.asarray(images.transpose(0, 2, 3, 1).copy()), jnp.asarray(labels, jnp.int32)

    def loss(p: Any, x: Any, y: Any) -> Any:
        logits, statistics = models_jax.resnet(p, x)
        return models_jax.cross_entropy(logits, y), statistics

    momenta = {name: jnp.zeros_like(value) for name, value in params.items()}
    return _jax_training(loss, models_jax.sgd(0.9), params, momenta, x, y)


def jax_decode(dtype: str) -> Workload:
    import jax
    import jax.numpy as jnp
    import models_jax

    params, tables = _jax_llama(dtype)
    shape = (BATCH, SIZES.kv_heads, SIZES.length, SIZES.head_dim)
    step = jax.jit(lambda t, i, c, p: models_jax.decode(SIZES, p, tables, t, i, c), donate_argnums=(2,))
    first = jnp.asarray(_first_tokens(), jnp.int32)

    def run() -> Any:
        caches = [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(SIZES.layers)]
        token, position, found = first, jnp.zeros((), jnp.int32), []
        for _ in range(NEW):
            token, position, caches = step(token, position, caches, params)
            found.append(token)
        return np.concatenate([np.asarray(token) for token in found], 1)[0].sum()

    return Workload(run, "tokens a second", BATCH * NEW, higher_is_better=True)


TORCH: dict[str, Callable[[Torch], Workload]] = {
    "operators": operators,
    "mlp": mlp,
    "llama_float32": lambda subject: llama(subject, "float32"),
    "llama_bfloat16": lambda subject: llama(subject, "bfloat16"),
    "resnet": resnet,
    "decode_float32": lambda subject: decode(subject, "float32"),
    "decode_bfloat16": lambda subject: decode(subject, "bfloat16"),
}
JAX: dict[str, Callable[[], Workload]] = {
    "operators": jax_operators,
    "mlp": jax_mlp,
    "llama_float32": lambda: jax_llama("float32"),
    "llama_bfloat16": lambda: jax_llama("bfloat16"),
    "resnet": jax_resnet,
    "decode_float32": lambda: jax_decode("float32"),
    "decode_bfloat16": lambda: jax_decode("bfloat16"),
}


def start(name: str, subject: Torch) -> Workload:
    """The workload of that name for a subject, its weights on the device and nothing run yet."""
    return JAX[name]() if subject.is_jax else TORCH[name](subject)
