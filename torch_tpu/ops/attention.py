"""Scaled dot product attention, forward and backward, and the fused forms of nn.MultiheadAttention and
nn.TransformerEncoderLayer.

Scores are float32 for bfloat16 and float16; the weights are then narrowed again for the product
with the values, so that both dots run in the narrow type. On the CPU they stay float32, as in PyTorch's
composition, whose results are compared there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops import random
from torch_tpu.ops.matmul import activate, contract, linear_product
from torch_tpu.ops.normalization import layer_norm, masked_softmax_of, safe_softmax_parts, wide
from torch_tpu.ops.registry import Context, lowering, number


def inverse_root(size: int, dtype: torch.dtype) -> float | Value:
    """1 / sqrt(size), also of one that varies."""
    if isinstance(size, hlo.Dim):
        return hlo.rsqrt(hlo.scalar(size, dtype))
    return float(size) ** -0.5 if size else 1.0


class Scores:
    """Queries and keys [..., heads, length, size], and their masked scores.

    Fewer key heads than query heads are shared by consecutive query heads (grouped queries): those
    are put behind one another along the queries, so that keys and values are not repeated. Keys and
    values keep their shape: XLA would write a decoder's cache twice, once for each shape it is seen in.
    """

    def __init__(
        self,
        query: Value,
        key: Value,
        bias: Value | None,
        is_causal: bool,
        scale: Value | float | None,
        platform: str,
    ):
        self.outer, self.batch = query.shape[:-2], key.shape[:-2]
        self.query_length, self.key_length = query.shape[-2], key.shape[-2]
        self.platform = platform
        self.query, self.key = self.join(query), key
        scores = self.split(self.dot(self.query, key, 1, 1))
        given = inverse_root(query.shape[-1], scores.dtype) if scale is None else scale
        self.scale = number(given, scores.dtype)
        self.scores = scores * self.scale
        self.is_causal = is_causal
        if bias is not None:
            self._add(bias)
        if is_causal:
            place = [hlo.iota((self.query_length, self.key_length), dim, torch.int32) for dim in (0, 1)]
            self.scores = hlo.select(hlo.greater_equal(place[0], place[1]), self.scores, float("-inf"))

    def _add(self, bias: Value) -> None:
        if bias.dtype is torch.bool:
            self.scores = hlo.select(bias, self.scores, float("-inf"))
        else:
            self.scores = self.scores + hlo.convert(bias, self.scores.dtype)

    def join(self, x: Value) -> Value:
        """[..., heads, length, size] -> [..., key heads, rows, size], where rows are queries of all heads of a group."""
        count, rows = math.prod(self.batch), x.shape[-2]
        return hlo.reshape(x, (*self.batch, math.prod(x.shape[:-1]) // count if count else rows, x.shape[-1]))

    def dot(self, x: Value, y: Value, x_dim: int, y_dim: int) -> Value:
        """The product of two joined values, summed over row (0) or column (1) of each."""
        lead = tuple(range(len(self.batch)))
        dims = [len(lead) + x_dim], [len(lead) + y_dim]
        return contract(x, y, dims, (lead, lead), platform=self.platform)

    def split(self, x: Value) -> Value:
        """The inverse for what has queries as rows."""
        return hlo.reshape(x, (*self.outer, self.query_length, x.shape[-1]))

    def product(self, weights: Value, x: Value, rows: int = 1) -> Value:
        """weights @ x, or weights.T @ x for rows=0 (the weights' rows are summed)."""
        dtype = weights.dtype if self.platform == "cpu" and not hlo.imitating() else x.dtype
        return self.dot(hlo.convert(self.join(weights), dtype), hlo.convert(x, dtype), rows, 0)


def _dropped(ctx: Context, dropout: float, shape: Sequence[int], state: Value | None = None) -> tuple[Value, Value]:
    """Factors 0 and 1 / (1 - dropout), and the state (ui64[2]) they were drawn from."""
    if state is None:
        state = ctx.rng
    bits, _ = random.words_of(state, shape, own_key=True)
    keep = hlo.greater_equal(bits, min(int(dropout * 2.0**32), 2**32 - 1))
    factor = 1.0 / (1.0 - dropout) if dropout < 1 else 0.0
    return hlo.select(keep, hlo.scalar(factor, torch.float32), 0.0), state


def attend(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    bias: Value | None,
    dropout: float,
    is_causal: bool,
    scale: Value | float | None,
) -> tuple[Value, Value, Value | None]:
    """softmax(query key.T scale + bias) value, the log of the softmax's denominators, and the
    dropout's state.

    Rows without any key give zeros, as in PyTorch.
    """
    made = Scores(query, key, bias, is_causal, scale, ctx.platform)
    last = made.scores.ndim - 1
    top, exponentials, total = safe_softmax_parts(made.scores, last)
    weights = hlo.divide(exponentials, hlo.select(hlo.equal(total, 0), 1, total))
    state = None
    if dropout > 0:
        factors, state = _dropped(ctx, dropout, weights.shape)
        weights = weights * hlo.convert(factors, weights.dtype)
    out = hlo.convert(made.split(made.product(weights, value)), query.dtype)
    return out, hlo.squeeze(top + hlo.log(total), [last]), state


def attend_backward(
    ctx: Context,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    bias: Value | None,
    out: Value,
    logsumexp: Value,
    dropout: float,
    is_causal: bool,
    scale: Value | float | None,
    state: Value | None,
    needs_bias: bool,
) -> list[Value | None]:
    """Gradients of query, key, value and bias.

    With weights P = exp(scores - logsumexp), G = grad value.T and D = sum(grad out): the scores' gradient is
    P (G - D); a dropout's factors multiply G, and P in the gradient of the values.
    """
    made = Scores(query, key, bias, is_causal, scale, ctx.platform)
    kind = made.scores.dtype
    log_total = hlo.expand_dims(hlo.convert(logsumexp, kind), [-1])
    log_total = hlo.select(hlo.equal(log_total, float("-inf")), 0, log_total)
    weights = hlo.exponential(made.scores - log_total)
    grads = made.join(hlo.convert(grad, value.dtype))
    inner = made.split(made.dot(grads, value, 1, 1))
    dropped = weights
    if dropout > 0 and state is not None:
        factors = hlo.convert(_dropped(ctx, dropout, weights.shape, state)[0], kind)
        dropped, inner = weights * factors, inner * factors
    shift = hlo.reduce_sum(wide(grad) * wide(out), [grad.ndim - 1], keep_dim=True)
    scores = weights * (inner - hlo.convert(shift, kind))
    grad_bias = None
    if needs_bias and bias is not None:
        grad_bias = hlo.convert(_sum_to(scores, bias.shape), bias.dtype)
    scores = scores * made.scale
    return [
        hlo.convert(made.split(made.product(scores, made.key)), query.dtype),
        hlo.convert(hlo.reshape(made.product(scores, made.query, rows=0), key.shape), key.dtype),
        hlo.convert(hlo.reshape(made.product(dropped, grads, rows=0), value.shape), value.dtype),
        grad_bias,
    ]


def _sum_to(x: Value, shape: Sequence[int]) -> Value:
    """Sums over the dimensions that were broadcast from a shape."""
    lead = x.ndim - len(shape)
    spread = [dim for dim in range(x.ndim) if dim < lead or shape[dim - lead] == 1 != x.shape[dim]]
    return hlo.reshape(hlo.reduce_sum(x, spread) if spread else x, shape)


@lowering("_scaled_dot_product_flash_attention_for_cpu", random=True, data=("scale",))
def flash_attention_for_cpu(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Value | None = None,
    scale: Value | float | None = None,
) -> list[Value]:
    out, logsumexp, _ = attend(ctx, query, key, value, attn_mask, dropout_p, is_causal, scale)
    return [out, logsumexp]


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward", data=("scale",))
def flash_attention_for_cpu_backward(
    ctx: Context,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Value | None = None,
    scale: Value | float | None = None,
) -> list[Value | None]:
    return attend_backward(
        ctx, grad, query, key, value, attn_mask, out, logsumexp, dropout_p, is_causal, scale, None, False
    )[:3]


@lowering("_scaled_dot_product_fused_attention_overrideable", random=True, data=("scale",))
def fused_attention(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: Value | float | None = None,
) -> list[Value | None]:
    """What F.scaled_dot_product_attention calls on a device of its own. Its two integer results,
    the lengths of queries and keys, are left to the caller; the seed and offset hold the state of
    the dropout's mask.
    """
    out, logsumexp, state = attend(ctx, query, key, value, attn_bias, dropout_p, is_causal, scale)
    if query.ndim == 3:
        logsumexp = hlo.expand_dims(logsumexp, [0])
    logsumexp = hlo.convert(logsumexp, torch.float32)
    if state is None:
        state = hlo.full((2,), 0, torch.uint64)
    words = hlo.bitcast(state, torch.int64)
    seed, offset = (hlo.index_in_dim(words, 0, index) for index in (0, 1))
    return [out, logsumexp, None, None, seed, offset, None]


@lowering("_scaled_dot_product_fused_attention_overrideable_backward", data=("scale",))
def fused_attention_backward(
    ctx: Context,
    grad: Value | None,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    grad_input_mask: Sequence[bool],
    out: Value,
    logsumexp: Value,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Value,
    philox_offset: Value,
    scale: Value | float | None = None,
) -> list[Value | None]:
    if grad is None:  # nothing depends on the output
        return [None] * 4
    state = hlo.bitcast(hlo.stack([hlo.reshape(v, ()) for v in (philox_seed, philox_offset)], 0), torch.uint64)
    logsumexp = hlo.reshape(logsumexp, query.shape[:-1])
    grads = attend_backward(
        ctx,
        grad,
        query,
        key,
        value,
        attn_bias,
        out,
        logsumexp,
        dropout_p,
        is_causal,
        scale,
        state,
        grad_input_mask[3],
    )
    return [value if wanted else None for value, wanted in zip(grads, grad_input_mask, strict=True)]


# The fused forms of nn.MultiheadAttention and nn.TransformerEncoderLayer, for evaluation


def _heads(x: Value, num_heads: int) -> Value:
    """[B, L, D] -> [B, H, L, D / H]."""
    split = hlo.reshape(x, (x.shape[0], x.shape[1], num_heads, x.shape[2] // num_heads))
    return hlo.transpose(split, (0, 2, 1, 3))


@lowering("_transform_bias_rescale_qkv")
def transform_bias_rescale_qkv(ctx: Context, qkv: Value, qkv_bias: Value, num_heads: int) -> list[Value]:
    """Splits [B, L, 3 D] into heads of queries, keys and values, with bias; queries are divided by
    sqrt(D / H).
    """
    kind, size = qkv.dtype, qkv.shape[2] // 3
    biased = wide(qkv) + wide(qkv_bias)
    parts = [hlo.slice_in_dim(biased, 2, index * size, (index + 1) * size) for index in range(3)]
    parts[0] = parts[0] * inverse_root(size // num_heads, biased.dtype)
    return [hlo.convert(_heads(part, num_heads), kind) for part in parts]


def _project(x: Value, weight: Value, bias: Value | None, platform: str) -> Value:
    product = linear_product(x, weight, platform)
    return hlo.convert(product if bias is None else product + hlo.convert(bias, product.dtype), x.dtype)


def multi_head(
    ctx: Context,
    inputs: Sequence[Value],
    num_heads: int,
    qkv: tuple[Value, Value],
    projection: tuple[Value, Value],
    mask: Value | None,
    mask_type: int | None,
) -> tuple[Value, Value]:
    """The projected attention of [B, L, D] queries, keys and values, and its weights [B, H, L, L]."""
    query, key, value = inputs
    weight, bias = qkv
    size = query.shape[2]
    if query is key and key is value:
        joined = _project(query, weight, bias, ctx.platform)
        parts = [hlo.slice_in_dim(joined, 2, index * size, (index + 1) * size) for index in range(3)]
    else:
        parts = [
            _project(
                x,
                hlo.slice_in_dim(weight, 0, index * size, (index + 1) * size),
                hlo.slice_in_dim(bias, 0, index * size, (index + 1) * size),
                ctx.platform,
            )
            for index, x in enumerate(inputs)
        ]
    heads = [_heads(part, num_heads) for part in parts]
    made = Scores(heads[0], heads[1], None, False, None, ctx.platform)
    weights = masked_softmax_of(made.scores, mask, 3, mask_type)
    mixed = hlo.convert(made.split(made.product(weights, heads[2])), query.dtype)
    merged = hlo.reshape(hlo.transpose(mixed, (0, 2, 1, 3)), query.shape)
    return _project(merged, *projection, ctx.platform), weights


@lowering("_native_multi_head_attention")
def native_multi_head_attention(
    ctx: Context,
    query: Value,
    key: Value,
    value: Value,
    embed_dim: int,
    num_head: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    mask: Value | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> list[Value | None]:
    same = query.name == key.name == value.name
    inputs = [query] * 3 if same else [query, key, value]
    out, weights = multi_head(ctx, inputs, num_head, (qkv_weight, qkv_bias), (proj_weight, proj_bias), mask, mask_type)
    if not need_weights:
        return [out, None]
    if average_attn_weights:
        weights = hlo.reduce_sum(weights, [1]) * (1.0 / num_head)
    return [out, hlo.convert(weights, query.dtype)]


@lowering("_transformer_encoder_layer_fwd", data=("eps",))
def transformer_encoder_layer(
    ctx: Context,
    src: Value,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    use_gelu: bool,
    norm_first: bool,
    eps: Value | float,
    norm_weight_1: Value,
    norm_bias_1: Value,
    norm_weight_2: Value,
    norm_bias_2: Value,
    ffn_weight_1: Value,
    ffn_bias_1: Value,
    ffn_weight_2: Value,
    ffn_bias_2: Value,
    mask: Value | None = None,
    mask_type: int | None = None,
) -> Value:
    """Attention and a two-layer network, each added to its input, with a layer norm before or after."""

    def norm(x: Value, weight: Value, bias: Value) -> Value:
        return hlo.convert(layer_norm(ctx, x, [x.shape[-1]], weight, bias, eps)[0], x.dtype)

    def attention(x: Value) -> Value:
        weights = (qkv_weight, qkv_bias), (proj_weight, proj_bias)
        return multi_head(ctx, [x] * 3, num_heads, *weights, mask, mask_type)[0]

    def network(x: Value) -> Value:
        hidden = activate(wide(_project(x, ffn_weight_1, ffn_bias_1, ctx.platform)), use_gelu)
        return _project(hlo.convert(hidden, x.dtype), ffn_weight_2, ffn_bias_2, ctx.platform)

    if norm_first:
        x = src + attention(norm(src, norm_weight_1, norm_bias_1))
        return x + network(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attention(src), norm_weight_1, norm_bias_1)
    return norm(x + network(x), norm_weight_2, norm_bias_2)
