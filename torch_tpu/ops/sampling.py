"""Lowerings of random samplers that reject or search: gamma, Dirichlet, Poisson, binomial, multinomial.

Rejection is a loop over all elements until each has accepted; round i draws from streams of its own (see random.py),
so that what an element gets does not depend on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.gamma import log1p_deficit, stirling, until_settled
from torch_tpu.ops.random import from_zero, log_uniform, standard_normal
from torch_tpu.ops.registry import Context, lowering

_SECOND, _THIRD = 0x2000, 0x8000
"""Offsets of a round's second draw and of another loop's; float64 normal numbers also use + 0x4000."""

Trial = Callable[[Value], tuple[Value, Value]]


def _reject(wanted: Value, start: Value, trial: Trial) -> Value:
    """Repeats trial(round) -> (proposal, accepted) until every wanted element has accepted a proposal."""

    def body(turn: Value, pending: Value, value: Value) -> list[Value]:
        proposal, accepted = trial(turn)
        value = hlo.select(pending & accepted, proposal, value)
        return [turn + 1, pending & ~accepted, value]

    def going(turn: Value, pending: Value, value: Value) -> Value:
        return hlo.reduce_or(pending, range(pending.ndim)) & hlo.less(turn, _SECOND)

    return hlo.while_loop([hlo.scalar(0, torch.int32), wanted, start], going, body)[2]


# -- gamma and Dirichlet --------------------------------------------------------------------------------------------


def log_gamma_sample(ctx: Context, alpha: Value) -> Value:
    """The logarithm of gamma numbers: Marsaglia and Tsang, ACM Trans. Math. Softw. 26 (2000); a shape below 1 is
    raised by 1 and the result multiplied by u^(1 / alpha), their section 6."""
    small = hlo.less(alpha, 1)
    d = hlo.select(small, alpha + 1, alpha) - 1 / 3
    c = hlo.rsqrt(d * 9)

    def trial(turn: Value) -> tuple[Value, Value]:
        z = standard_normal(ctx, alpha.shape, alpha.dtype, turn)
        root = 1 + c * z
        log_cube = 3 * hlo.log(hlo.maximum(root, 1e-30))
        bound = z * z * 0.5 + d - d * root * root * root + d * log_cube
        drawn = log_uniform(ctx, alpha.shape, alpha.dtype, turn + _THIRD)
        return log_cube, hlo.greater(root, 0) & hlo.less(drawn, bound)

    wanted = hlo.greater(alpha, 0)
    log_cube = _reject(wanted, hlo.zeros_like(alpha), trial)
    boost = log_uniform(ctx, alpha.shape, alpha.dtype, _SECOND) / alpha
    return hlo.log(d) + log_cube + hlo.select(small, boost, 0)


@lowering("_standard_gamma", random=True, inferred=True)
def standard_gamma(ctx: Context, alpha: Value) -> Value:
    """0 for a shape of 0; else at least the smallest normal number, as in PyTorch."""
    dtype, compute = alpha.dtype, hlo.compute_dtype(alpha.dtype)
    alpha = hlo.convert(alpha, compute)
    sample = hlo.exponential(log_gamma_sample(ctx, alpha))
    sample = hlo.maximum(sample, torch.finfo(dtype).tiny)
    return hlo.convert(hlo.select(hlo.equal(alpha, 0), hlo.zeros_like(alpha), sample), dtype)


@lowering("_sample_dirichlet", random=True, inferred=True)
def sample_dirichlet(ctx: Context, alpha: Value) -> Value:
    """Gamma numbers over their sum, in logarithms: those of small shapes would all be 0."""
    dtype = alpha.dtype
    logs = log_gamma_sample(ctx, hlo.convert(alpha, hlo.compute_dtype(alpha.dtype)))
    weights = hlo.exponential(logs - hlo.broadcast_to(hlo.reduce_max(logs, [-1], True), logs.shape))
    sample = weights / hlo.broadcast_to(hlo.reduce_sum(weights, [-1], True), logs.shape)
    return hlo.convert(hlo.clamp(torch.finfo(dtype).tiny, sample, 1 - torch.finfo(dtype).eps / 2), dtype)


@lowering("_standard_gamma_grad")
def standard_gamma_grad(ctx: Context, alpha: Value, sample: Value) -> Value:
    """-(dP / d alpha) / (dP / dx) for P(alpha, x) = x^alpha exp(-x) / gamma(alpha + 1) S, with the series S of DLMF
    8.11.4 and its derivative. In float64, because the two parts of the sum cancel in the right tail."""
    a, x = hlo.convert(alpha, torch.float64), hlo.convert(sample, torch.float64)
    one, zero = hlo.ones_like(a), hlo.zeros_like(a)

    def step(n: Value, total: Value, slope: Value, term: Value, change: Value) -> list[Value]:
        change = (change - term / (a + n)) * x / (a + n)
        term = term * x / (a + n)
        return [total + term, slope + change, term, change]

    def active(total: Value, slope: Value, term: Value, change: Value) -> Value:
        return hlo.greater(term, total * 2.0**-53) | hlo.greater(hlo.abs(change), hlo.abs(slope) * 2.0**-53)

    total, slope = until_settled([one, zero, one, zero], step, active, 20000)[:2]
    return hlo.convert(-(x / a) * (total * (hlo.log(x) - hlo.digamma(a + 1)) + slope), alpha.dtype)


# -- counts ---------------------------------------------------------------------------------------------------------


def _stirling_whole(k: Value) -> Value:
    """`stirling` for whole k >= 1."""
    result = stirling(hlo.maximum(k, 6))
    for small in range(1, 6):
        exact = math.lgamma(small) - (small - 0.5) * math.log(small) + small - 0.5 * math.log(2 * math.pi)
        result = hlo.select(hlo.equal(k, small), exact, result)
    return result


def _deviance(k: Value, mean: Value) -> Value:
    """k log(k / mean) + mean - k without cancellation; mean for k = 0. Loader, "Fast and accurate computation of
    binomial probabilities" (2000)."""
    divisor = hlo.maximum(k, 1)
    return hlo.select(hlo.greater(k, 0), divisor * log1p_deficit((mean - divisor) / divisor), mean)


def _log_poisson(k: Value, mean: Value) -> Value:
    """log(mean^k exp(-mean) / k!) for whole k >= 0."""
    positive = hlo.maximum(k, 1)
    factorial = hlo.select(hlo.greater(k, 0), _stirling_whole(positive) + 0.5 * hlo.log(positive * (2 * math.pi)), 0)
    return -_deviance(k, mean) - factorial


def _ratio_of_uniforms(ctx: Context, shape: Sequence[int], dtype: torch.dtype, turn: Value) -> tuple[Value, ...]:
    """u in [-1/2, 1/2), 1/2 - |u|, and log(v), v in (0, 1), for Hormann's transformed rejection."""
    u = from_zero(ctx, shape, dtype, turn + _THIRD) - 0.5
    return u, hlo.maximum(0.5 - hlo.abs(u), 1e-7), log_uniform(ctx, shape, dtype, turn + (_THIRD + _SECOND))


def _poisson_large(ctx: Context, mean: Value, wanted: Value) -> Value:
    """Algorithm PTRS of Hormann, Insurance: Mathematics and Economics 12 (1993), for means from 10 on."""
    mean = hlo.maximum(mean, 10)
    b = 0.931 + 2.53 * hlo.sqrt(mean)
    a = -0.059 + 0.02483 * b
    log_alpha = hlo.log(1.1239 + 1.1328 / (b - 3.4))
    quick = hlo.log(0.9277 - 3.6224 / (b - 2))

    def trial(turn: Value) -> tuple[Value, Value]:
        u, rest, log_v = _ratio_of_uniforms(ctx, mean.shape, mean.dtype, turn)
        k = hlo.floor((2 * a / rest + b) * u + mean + 0.43)
        surely = hlo.greater_equal(rest, 0.07) & hlo.less_equal(log_v, quick)
        refused = hlo.less(k, 0) | (hlo.less(rest, 0.013) & hlo.greater(log_v, hlo.log(rest)))
        bound = _log_poisson(hlo.maximum(k, 0), mean)
        inside = hlo.less_equal(log_v + log_alpha - hlo.log(a / (rest * rest) + b), bound)
        return k, surely | (inside & ~refused)

    return _reject(wanted, hlo.zeros_like(mean), trial)


def _count_arrivals(ctx: Context, wanted: Value, limit: Value, gap: Callable[[Value], Value], inclusive: bool) -> Value:
    """How many gaps, drawn one a round, fit into the limit."""
    fits = hlo.less_equal if inclusive else hlo.less

    def body(turn: Value, going: Value, total: Value, count: Value) -> list[Value]:
        total = total + gap(log_uniform(ctx, limit.shape, limit.dtype, turn))
        going = going & fits(total, limit)
        return [turn + 1, going, total, count + hlo.convert(going, limit.dtype)]

    def some(turn: Value, going: Value, total: Value, count: Value) -> Value:
        return hlo.reduce_or(going, range(limit.ndim)) & hlo.less(turn, _SECOND)

    zero = hlo.zeros_like(limit)
    return hlo.while_loop([hlo.scalar(0, torch.int32), wanted, zero, zero], some, body)[3]


@lowering("poisson", random=True)
def poisson(ctx: Context, mean: Value) -> Value:
    """Means below 10: the number of exponential gaps up to the mean."""
    require_all(
        ctx.platform, hlo.greater_equal(mean, 0), "aten::poisson: invalid Poisson rate, expected it to be non-negative"
    )
    mean = hlo.convert(mean, hlo.compute_dtype(mean.dtype))
    large = hlo.greater_equal(mean, 10)
    few = _count_arrivals(ctx, hlo.less(mean, 10), mean, lambda log_u: -log_u, inclusive=False)
    return hlo.select(large, _poisson_large(ctx, mean, large), few)


def _log_binomial(k: Value, n: Value, p: Value) -> Value:
    """log of the binomial probability of k, Loader's saddle-point form."""
    q, rest = 1 - p, n - k
    middle = hlo.greater(k, 0) & hlo.greater(rest, 0)
    inner, outer, whole = hlo.maximum(k, 1), hlo.maximum(rest, 1), hlo.maximum(n, 1)
    value = _stirling_whole(whole) - _stirling_whole(inner) - _stirling_whole(outer)
    value = value - _deviance(k, n * p) - _deviance(rest, n * q)
    value = value + 0.5 * hlo.log(whole / inner / outer * (0.5 / math.pi))
    ends = hlo.select(hlo.greater(k, 0), n * hlo.log(p), n * hlo.log1p(-p))
    return hlo.select(middle, value, ends)


def _binomial_large(ctx: Context, n: Value, p: Value, wanted: Value) -> Value:
    """Algorithm BTRS of Hormann, J. Stat. Comput. Simul. 46 (1993), for p <= 1/2 and n p >= 10."""
    n, p = hlo.select(wanted, n, 40), hlo.select(wanted, p, 0.5)
    deviation = hlo.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    quick = hlo.log(0.92 - 4.2 / b)
    mode = hlo.floor((n + 1) * p)
    log_alpha = hlo.log((2.83 + 5.1 / b) * deviation)
    at_mode = _log_binomial(mode, n, p)

    def trial(turn: Value) -> tuple[Value, Value]:
        u, rest, log_v = _ratio_of_uniforms(ctx, n.shape, n.dtype, turn)
        k = hlo.floor((2 * a / rest + b) * u + n * p + 0.5)
        surely = hlo.greater_equal(rest, 0.07) & hlo.less_equal(log_v, quick)
        possible = hlo.greater_equal(k, 0) & hlo.less_equal(k, n)
        bound = _log_binomial(hlo.clamp(0, k, n), n, p) - at_mode
        inside = hlo.less_equal(log_v + log_alpha - hlo.log(a / (rest * rest) + b), bound)
        return k, possible & (surely | inside)

    return _reject(wanted, hlo.zeros_like(n), trial)


@lowering("binomial", random=True, inferred=True)
def binomial(ctx: Context, count: Value, prob: Value) -> Value:
    """Few expected successes: how many geometric gaps fit into the count. p above 1/2 counts the failures."""
    dtype, compute = count.dtype, hlo.compute_dtype(count.dtype)
    count, prob = hlo.broadcast(hlo.convert(count, compute), hlo.convert(prob, compute))
    flipped = hlo.greater(prob, 0.5)
    p = hlo.select(flipped, 1 - prob, prob)
    possible = hlo.greater(p, 0) & hlo.greater(count, 0)
    large = hlo.greater_equal(count * p, 10)
    rate = hlo.log1p(-hlo.select(possible, p, 0.5))
    few = _count_arrivals(ctx, possible & ~large, count, lambda log_u: hlo.ceil(log_u / rate), inclusive=True)
    successes = hlo.select(large, _binomial_large(ctx, count, p, large), few)
    result = hlo.select(flipped, count - successes, successes)
    return hlo.convert(hlo.select(hlo.is_nan(prob) | hlo.is_nan(count), float("nan"), result), dtype)


# -- multinomial ----------------------------------------------------------------------------------------------------


def _running_sum(x: Value) -> Value:
    size = x.shape[-1]
    window, pad = [1] * x.ndim, [(0, 0)] * x.ndim
    window[-1], pad[-1] = size, (size - 1, 0)
    return hlo.reduce_window(x, 0, hlo.add, window=window, padding=pad)  # type: ignore[return-value]


def _with_replacement(ctx: Context, weights: Value, num_samples: int) -> Value:
    """The first category whose running sum exceeds u times the total, found by bisection."""
    rows, categories = weights.shape
    sums = _running_sum(weights)
    total = hlo.slice_in_dim(sums, 1, categories - 1, categories)
    target = from_zero(ctx, (rows, num_samples), weights.dtype) * hlo.broadcast_to(total, (rows, num_samples))
    row = hlo.iota((rows, num_samples, 1), 0, torch.int32)

    def at(index: Value) -> Value:
        places = hlo.concatenate([row, hlo.expand_dims(index, [2])], 2)
        return hlo.gather(
            sums, places, offset_dims=[], collapsed_slice_dims=[0, 1], start_index_map=[0, 1], slice_sizes=[1, 1]
        )

    def halve(turn: Value, low: Value, high: Value) -> list[Value]:
        middle = hlo.shift_right_logical(low + high, 1)
        beyond = hlo.greater(at(middle), target)
        return [hlo.select(beyond, low, hlo.minimum(middle + 1, high)), hlo.select(beyond, middle, high)]

    low = hlo.full((rows, num_samples), 0, torch.int32)
    high = hlo.full((rows, num_samples), categories - 1, torch.int32)
    return hlo.fori_loop(categories.bit_length(), [low, high], halve)[0]


MOST_CATEGORIES = 2**24
"""PyTorch's limit."""


def _refuse_no_distribution(weights: Value) -> None:
    """The program fails for weights that are none: a row's total is then NaN or zero."""
    proper = hlo.greater_equal(weights, 0) & hlo.less(weights, math.inf)
    totals = hlo.reduce_sum(hlo.select(proper, weights, math.nan), [1])
    improper = hlo.reduce_or(hlo.is_nan(totals), [0])
    hlo.fail_if(improper, "aten::multinomial: a probability is infinite, NaN or less than 0")
    hlo.fail_if(hlo.reduce_or(hlo.equal(totals, 0), [0]), "aten::multinomial: the probabilities of a row add up to 0")


@lowering("multinomial", random=True)
def multinomial(ctx: Context, weights: Value, num_samples: int, replacement: bool = False) -> Value:
    """Without replacement: the largest log(weight) + Gumbel numbers (Vieira, 2014; Efraimidis and Spirakis, 2006)."""
    if ctx.out.dtype is not torch.int64 or num_samples <= 0 or weights.shape[-1] > MOST_CATEGORIES:
        raise RuntimeError(f"cannot draw {num_samples} of {weights.shape[-1]} categories as {ctx.out.dtype}")
    single = weights.ndim == 1
    weights = hlo.convert(
        hlo.reshape(weights, (1, *weights.shape) if single else weights.shape), hlo.compute_dtype(weights.dtype)
    )
    if ctx.platform == "cpu":
        _refuse_no_distribution(weights)
    if replacement:
        result = _with_replacement(ctx, weights, num_samples)
    else:
        gumbel = -hlo.log(-log_uniform(ctx, weights.shape, weights.dtype, own_key=True))
        (keys,) = hlo.optimization_barrier([hlo.log(weights) + gumbel])  # used twice
        if num_samples == 1:
            result = _largest(keys)
        else:
            index = hlo.iota(weights.shape, 1, torch.int32)
            ordered = hlo.sort([keys, index], 1, lambda a, b, *_: hlo.greater(a, b))[1]
            result = hlo.slice_in_dim(ordered, 1, 0, num_samples)
    return hlo.convert(hlo.reshape(result, ctx.out.shape), torch.int64)


def _largest(keys: Value) -> Value:
    """The index of the largest of each row."""
    best = hlo.broadcast_to(hlo.reduce_max(keys, [1], True), keys.shape)
    index = hlo.iota(keys.shape, 1, torch.int32)
    last = keys.shape[1] - 1
    return hlo.reduce_min(hlo.select(hlo.equal(keys, best), index, last), [1], True)
