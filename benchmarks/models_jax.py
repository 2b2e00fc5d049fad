"""The benchmarks' models as JAX functions of a flat dictionary of arrays: what XLA can do when nothing is in between."""

from __future__ import annotations

from typing import Any

import data
import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, Any]


def linear(x: Any, weight: Any) -> Any:
    """As one product of matrices: XLA's CPU backend is slower with further dimensions."""
    return (x.reshape(-1, x.shape[-1]) @ weight.T).reshape(*x.shape[:-1], weight.shape[0])


def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + epsilon)
    return wide.astype(x.dtype) * weight


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def attention(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Grouped: query [batch, heads, length, dim], key and value with fewer heads."""
    batch, heads, length, dim = query.shape
    groups = key.shape[1]
    query = query.reshape(batch, groups, heads // groups, length, dim)
    score = jnp.einsum("bgqtd,bgsd->bgqts", query, key) * dim**-0.5
    score = jnp.where(mask, score.astype(jnp.float32), -jnp.inf)
    weight = jax.nn.softmax(score, axis=-1).astype(query.dtype)
    return jnp.einsum("bgqts,bgsd->bgqtd", weight, value).reshape(batch, heads, length, dim)


def llama_layer(sizes: data.Llama, p: Params, x: Any, cos: Any, sin: Any, mask: Any, cache: Any, position: Any) -> Any:
    """A layer's output and its cache."""
    batch, length, _ = x.shape

    def heads(name: str, h: Any) -> Any:
        return linear(h, p[f"{name}.weight"]).reshape(batch, length, -1, sizes.head_dim).swapaxes(1, 2)

    h = rms_norm(x, p["norm1.weight"], sizes.epsilon)
    query, key, value = rotate(heads("wq", h), cos, sin), rotate(heads("wk", h), cos, sin), heads("wv", h)
    if cache is not None:
        key = lax.dynamic_update_slice_in_dim(cache[0], key, position, 2)
        value = lax.dynamic_update_slice_in_dim(cache[1], value, position, 2)
    seen = attention(query, key, value, mask).swapaxes(1, 2).reshape(x.shape)
    x = x + linear(seen, p["wo.weight"])
    h = rms_norm(x, p["norm2.weight"], sizes.epsilon)
    gated = jax.nn.silu(linear(h, p["w1.weight"])) * linear(h, p["w3.weight"])
    return x + linear(gated, p["w2.weight"]), (key, value)


def _of(p: Params, prefix: str) -> Params:
    return {name.removeprefix(prefix): value for name, value in p.items() if name.startswith(prefix)}


def llama(sizes: data.Llama, p: Params, tables: Any, tokens: Any) -> Any:
    length = tokens.shape[1]
    cos, sin = tables[0][:length], tables[1][:length]
    mask = jnp.tril(jnp.ones((length, length), bool))
    x = p["embed.weight"][tokens]
    for layer in range(sizes.layers):
        x, _ = llama_layer(sizes, _of(p, f"layers.{layer}."), x, cos, sin, mask, None, None)
    return linear(rms_norm(x, p["norm.weight"], sizes.epsilon), p["head.weight"])


def decode(sizes: data.Llama, p: Params, tables: Any, token: Any, position: Any, caches: Any) -> Any:
    """The next token, the next position, the caches."""
    x = p["embed.weight"][token]
    cos, sin = (lax.dynamic_slice_in_dim(table, position, 1) for table in tables)
    mask = jnp.arange(sizes.length) <= position
    filled = []
    for layer, cache in enumerate(caches):
        x, cache = llama_layer(sizes, _of(p, f"layers.{layer}."), x, cos, sin, mask, cache, position)
        filled.append(cache)
    logits = linear(rms_norm(x, p["norm.weight"], sizes.epsilon), p["head.weight"])
    return jnp.argmax(logits[:, -1], -1)[:, None].astype(token.dtype), position + 1, filled


def cross_entropy(logits: Any, targets: Any) -> Any:
    logp = jax.nn.log_softmax(logits.astype(jnp.float32), -1)
    return -jnp.mean(jnp.take_along_axis(logp, targets[..., None], -1))


def adamw(p: Params, grads: Params, state: Any) -> Any:
    """torch.optim.AdamW(lr=1e-3): parameters and (first moments, second moments, step)."""
    first, second, step = state
    step = step + 1
    first = {name: 0.9 * first[name] + 0.1 * grad for name, grad in grads.items()}
    second = {name: 0.999 * second[name] + 0.001 * grad * grad for name, grad in grads.items()}

    def update(name: str) -> Any:
        value = p[name]
        scale1, scale2 = (1 - 0.9**step).astype(value.dtype), (1 - 0.999**step).astype(value.dtype)
        change = (first[name] / scale1) / (jnp.sqrt(second[name] / scale2) + 1e-8)
        return (value * (1 - 1e-3 * 0.01) - 1e-3 * change).astype(value.dtype)

    return {name: update(name) for name in p}, (first, second, step)


def sgd(momentum: float) -> Any:
    """torch.optim.SGD(lr=0.01): parameters and momenta."""

    def update(p: Params, grads: Params, state: Any) -> Any:
        state = {name: momentum * state[name] + grads[name] for name in p} if momentum else state
        return {name: p[name] - 0.01 * (state if momentum else grads)[name] for name in p}, state

    return update


def resnet(p: Params, x: Any) -> Any:
    """Logits and the batch statistics, of images [batch, height, width, 3]."""
    statistics = {}

    def convolution(x: Any, name: str, norm: str, stride: int, padding: int) -> Any:
        layout = ("NHWC", "OIHW", "NHWC")
        padded = [(padding, padding)] * 2
        x = lax.conv_general_dilated(x, p[f"{name}.weight"], (stride, stride), padded, dimension_numbers=layout)
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        statistics[norm] = mean, variance
        return (x - mean) * (p[f"{norm}.weight"] * lax.rsqrt(variance + 1e-5)) + p[f"{norm}.bias"]

    x = jax.nn.relu(convolution(x, "conv1", "bn1", 2, 3))
    padding = [(0, 0), (1, 1), (1, 1), (0, 0)]
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
    width = 64
    for stage, (planes, first) in enumerate(data.STAGES):
        for block in range(2):
            prefix, stride = f"stages.{stage}.{block}.", first if block == 0 else 1
            shrinks = stride != 1 or width != planes
            shortcut = convolution(x, prefix + "down", prefix + "down_bn", stride, 0) if shrinks else x
            h = jax.nn.relu(convolution(x, prefix + "conv1", prefix + "bn1", stride, 1))
            x = jax.nn.relu(convolution(h, prefix + "conv2", prefix + "bn2", 1, 1) + shortcut)
            width = planes
    return linear(jnp.mean(x, (1, 2)), p["fc.weight"]) + p["fc.bias"], statistics


def mlp(p: Params, x: Any) -> Any:
    for layer in range(3):
        x = linear(x, p[f"fc{layer}.weight"]) + p[f"fc{layer}.bias"]
        x = jax.nn.relu(x) if layer < 2 else x
    return x
