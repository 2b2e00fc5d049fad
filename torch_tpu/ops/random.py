"""Random numbers: the generator, and the lowerings whose results take a fixed number of draws.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
a function of a 64-bit key and a 64-bit counter. The key is the seed and element i of a draw has the counter offset + i,
so that a result depends on seed, offset and position alone: not on the platform, on fusion, or on the tensor's size.
It is written in 32-bit operations, which XLA fuses with what uses them and which TPUs have.

Streams: a lowering that draws several times gives each draw a stream number, which takes the counter's upper 16 bits.
Counters: a call uses `offsets(outs)` of them in every stream, by which the caller advances the generator's offset. A
lowering that needs more numbers than its results have elements asks for a derived key instead (`own_key`).

Samplers with rejection are in sampling.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.bounds import require_all
from torch_tpu.ops.registry import POSITIVE, Context, Spec, lowering, number

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_OWN_KEY_STREAM = 0xFFFF
MANTISSA_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}

Size = Sequence[int]


# -- bits -----------------------------------------------------------------------------------------------------------


def offsets(outs: Sequence[Spec]) -> int:
    """How many counters a call with these results uses: the number of their elements, rounded up to 4, at least 4."""
    rounded = (sum(math.prod(spec.shape) for spec in outs) + 3) // 4 * 4
    return rounded if isinstance(rounded, hlo.Dim) else max(4, rounded)


def require(condition: bool, message: str) -> None:
    """For parameters that are constants of the program, so that wrong ones are refused."""
    if not condition:
        raise RuntimeError(message)


def threefry(key: tuple[Value, Value], counter: tuple[Value, Value]) -> tuple[Value, Value]:
    """Two words for each counter; words are uint32, low ones first."""
    keys = [*key, key[0] ^ key[1] ^ _PARITY]
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = x + y
            y = (hlo.shift_left(y, distance) | hlo.shift_right_logical(y, 32 - distance)) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + (keys[(group + 2) % 3] + (group + 1))
    return x, y


def _halves(x: Value) -> tuple[Value, Value]:
    return hlo.convert(x, torch.uint32), hlo.convert(hlo.shift_right_logical(x, 32), torch.uint32)


def _counters(offset: Value, shape: Size) -> tuple[Value, Value]:
    """offset + 0, 1, 2, ... as two words, row by row."""
    if hlo.bound(math.prod(shape)) >> 32:
        return _halves(_places(shape, torch.uint64) + offset)
    start, high = _halves(offset)
    low = _places(shape, torch.uint32) + start
    return low, hlo.convert(hlo.less(low, start), torch.uint32) + high


def _places(shape: Size, dtype: torch.dtype) -> Value:
    """0, 1, 2, ... row by row. Where a row is longer than its real elements, the others are not counted."""
    place = hlo.iota(shape, len(shape) - 1, dtype)
    for axis in range(len(shape) - 1):
        place = place + hlo.iota(shape, axis, dtype) * math.prod(shape[axis + 1 :])
    return place


def words(ctx: Context, shape: Size, stream: int | Value = 0, own_key: bool = False) -> tuple[Value, Value]:
    """`words_of` the call's random state."""
    return words_of(ctx.rng, shape, stream, own_key)


def words_of(state: Value, shape: Size, stream: int | Value = 0, own_key: bool = False) -> tuple[Value, Value]:
    """Two independent uint32 tensors of random bits, which share their counters.

    Args:
        state: ui64[2], the seed and the offset.
        stream: below 0xFFFF; a scalar int32 Value in loops.
        own_key: more numbers are drawn than the results have elements, so that the counters would reach into those of
            the next call: the key is made from seed and offset, and counters start at 0.
    """
    seed, offset = (hlo.reshape(hlo.slice_in_dim(state, 0, index, index + 1), ()) for index in (0, 1))
    key = _halves(seed)
    flat = shape if hlo.varies(shape) else (math.prod(shape),)
    if own_key:
        low, high = _halves(offset)
        fresh = threefry(key, (low, high ^ (_OWN_KEY_STREAM << 16)))
        first, second = hlo.optimization_barrier(fresh)  # else computed anew for every element
        key = (first, second)
        offset = hlo.scalar(0, torch.uint64)
    low, high = _counters(offset, flat)
    if isinstance(stream, Value):
        high = high ^ hlo.shift_left(hlo.convert(stream, torch.uint32), 16)
    elif stream:
        high = high ^ (stream << 16)
    spread = (hlo.broadcast_to(key[0], flat), hlo.broadcast_to(key[1], flat))
    first, second = threefry(spread, (low, high))
    return hlo.reshape(first, shape), hlo.reshape(second, shape)


def bits(ctx: Context, shape: Size, dtype: torch.dtype, stream: int | Value = 0, own_key: bool = False) -> Value:
    """Random bits of dtype uint32 or uint64: a function of seed, offset, stream and the element's position."""
    first, second = words(ctx, shape, stream, own_key)
    if dtype is torch.uint32:
        return first
    return hlo.convert(first, torch.uint64) | hlo.shift_left(hlo.convert(second, torch.uint64), 32)


# -- numbers --------------------------------------------------------------------------------------------------------


def from_zero(ctx: Context, shape: Size, dtype: torch.dtype, stream: int | Value = 0) -> Value:
    """Uniform in [0, 1), multiples of 2^-n for the n bits of the dtype's mantissa; in the dtype it is computed in."""
    digits, compute = MANTISSA_BITS[dtype], hlo.compute_dtype(dtype)
    integer = torch.uint64 if digits > 32 else torch.uint32
    drawn = bits(ctx, shape, integer, stream)
    shifted = hlo.shift_right_logical(drawn, 8 * integer.itemsize - digits)
    return _to_float(shifted, compute) * 2.0**-digits


def _to_float(x: Value, dtype: torch.dtype) -> Value:
    """Unsigned integers without their highest bit as floats: signed conversions are the faster ones."""
    return hlo.convert(hlo.convert(x, torch.int64 if x.dtype is torch.uint64 else torch.int32), dtype)


def _open(drawn: Value, dtype: torch.dtype) -> Value:
    """uint32 or uint64 bits -> uniform in (0, 1], with small values as finely resolved as the bits allow."""
    digits = 52 if dtype is torch.float64 else 31
    return (_to_float(hlo.shift_right_logical(drawn, 8 * drawn.dtype.itemsize - digits), dtype) + 0.5) * 2.0**-digits


def log_uniform(ctx: Context, shape: Size, dtype: torch.dtype, stream: int | Value = 0, own_key: bool = False) -> Value:
    """The logarithm of a uniform number in (0, 1), finite and below 0; finely resolved at both ends."""
    if dtype is torch.float64:
        return hlo.log(_open(bits(ctx, shape, torch.uint64, stream, own_key), dtype))
    return _log_uniform(bits(ctx, shape, torch.uint32, stream, own_key))


def _log_uniform(drawn: Value) -> Value:
    low = hlo.log(_open(drawn, torch.float32))
    high = hlo.log1p(-_open(~drawn, torch.float32))
    return hlo.select(hlo.less(drawn, 1 << 31), low, high)


def standard_normal(ctx: Context, shape: Size, dtype: torch.dtype, stream: int | Value = 0) -> Value:
    """Normal numbers of a floating point dtype by Box and Muller's transform (Ann. Math. Stat. 29, 1958)."""
    return _box_muller(ctx, shape, dtype, stream, -2.0)[0]


def _box_muller(
    ctx: Context, shape: Size, dtype: torch.dtype, stream: int | Value, factor: float
) -> tuple[Value, Value]:
    """Two independent normal numbers of variance -factor / 2. In float64 the streams `stream` and + 0x4000 are used."""
    if dtype is torch.float64:
        logarithm = log_uniform(ctx, shape, dtype, stream)
        turn = from_zero(ctx, shape, dtype, stream + 0x4000)
    else:
        first, second = words(ctx, shape, stream)
        logarithm = _log_uniform(first)
        turn = _to_float(hlo.shift_right_logical(second, 8), dtype) * 2.0**-24
    radius = hlo.sqrt(logarithm * factor)
    angle = (turn - 0.5) * (2 * math.pi)
    return radius * hlo.cosine(angle), radius * hlo.sine(angle)


def coin(ctx: Context, shape: Size, probability: Value, stream: int | Value = 0) -> Value:
    """True with a probability given in float32 or float64 (a scalar, or one an element); exact at 0 and 1."""
    if probability.dtype is torch.float64:
        return hlo.less(from_zero(ctx, shape, torch.float64, stream), probability)
    shifted = hlo.shift_right_logical(bits(ctx, shape, torch.uint32, stream), 1)
    drawn = hlo.minimum(_to_float(shifted, torch.float32) * 2.0**-31, 1 - 2.0**-24)
    return hlo.less(drawn, probability)


def integers(ctx: Context, shape: Size, low: int | Value, span: int | Value) -> Value:
    """int64 (modulo 2^64), uniform in [low, low + span).

    A span that is data is below 2^32. Up to 2^32 it is the upper part of span times a 64-bit number (probabilities are off by less than 2^-32
    of themselves); above, numbers from the incomplete last multiple of span are drawn again.
    """
    if isinstance(span, Value):
        drawn = scaled(words(ctx, shape), hlo.convert(span, torch.uint64))
    elif span & (span - 1) == 0 and span <= 1 << 32:
        drawn = hlo.convert(bits(ctx, shape, torch.uint32), torch.uint64)
        drawn = hlo.shift_right_logical(hlo.shift_left(drawn, span.bit_length() - 1), 32)
    elif span <= 1 << 32:
        drawn = scaled(words(ctx, shape), hlo.scalar(span, torch.uint64))
    else:
        drawn = _below(ctx, shape, span)
    return hlo.convert(drawn, torch.int64) + low


def scaled(drawn: tuple[Value, Value], span: Value) -> Value:
    """floor(span (first + second / 2^32) / 2^32) as uint64, for span <= 2^32."""
    first, second = (hlo.convert(half, torch.uint64) for half in drawn)
    carry = hlo.shift_right_logical(second * span, 32)
    return hlo.shift_right_logical(first * span + carry, 32)


def _below(ctx: Context, shape: Size, span: int) -> Value:
    """uint64 numbers below a span of more than 2^32, by rejection."""
    drawn = bits(ctx, shape, torch.uint64)
    rest = 2**64 % span
    if rest == 0:
        return drawn if span == 2**64 else hlo.remainder(drawn, span)

    def refused(value: Value) -> Value:
        return hlo.greater_equal(value, 2**64 - rest)

    def again(stream: Value, value: Value) -> list[Value]:
        return [stream + 1, hlo.select(refused(value), bits(ctx, shape, torch.uint64, stream), value)]

    def going(stream: Value, value: Value) -> Value:
        return hlo.reduce_or(refused(value), range(len(shape)))

    accepted = hlo.while_loop([hlo.scalar(1, torch.int32), drawn], going, again)[1]
    return hlo.remainder(accepted, span)


# -- lowerings: continuous distributions ----------------------------------------------------------------------------


@lowering("uniform", random=True, drawn_from=("from", "to"))
def uniform(ctx: Context, x: Value, *bounds: float | Value, **named: float | Value) -> Value:
    """[from, to), both parts of complex numbers: what rounds to `to` becomes `from`, as in PyTorch's CUDA kernel.

    ATen's names are no names of Python's, hence the loose signature.
    """
    low, high = [*bounds, *[named.get("from", 0.0), named.get("to", 1.0)][len(bounds) :]]
    ordered = isinstance(high, Value) or isinstance(low, Value) or low <= high
    require(ordered, f"uniform_ expects from <= to, got from={low}, to={high}")
    dtype = hlo.real_dtype(ctx.out.dtype)
    compute = hlo.compute_dtype(dtype)
    start, end = number(low, compute), number(high, compute)
    limit = hlo.convert(hlo.convert(end, dtype), compute)

    def draw(stream: int) -> Value:
        drawn = start + (end - start) * from_zero(ctx, ctx.out.shape, dtype, stream)
        rounded = hlo.convert(hlo.convert(drawn, dtype), compute)
        return hlo.select(hlo.greater_equal(rounded, limit), start, drawn)

    return hlo.make_complex(draw(0), draw(1)) if ctx.out.dtype.is_complex else draw(0)


def _standard_uniform(ctx: Context) -> Value:
    shape, dtype = ctx.out.shape, ctx.out.dtype
    if dtype.is_complex:
        part = hlo.real_dtype(dtype)
        return hlo.make_complex(from_zero(ctx, shape, part), from_zero(ctx, shape, part, 1))
    return from_zero(ctx, shape, dtype)


def _standard_normal(ctx: Context) -> Value:
    """Complex numbers have variance 1 too: 1/2 in each part."""
    shape, dtype = ctx.out.shape, ctx.out.dtype
    if dtype.is_complex:
        return hlo.make_complex(*_box_muller(ctx, shape, hlo.real_dtype(dtype), 0, -1.0))
    return standard_normal(ctx, shape, hlo.compute_dtype(dtype))


@lowering("rand", "rand.generator", random=True)
def rand(ctx: Context, size: Size, dtype: torch.dtype | None = None) -> Value:
    return _standard_uniform(ctx)


@lowering("rand_like", "rand_like.generator", random=True)
def rand_like(ctx: Context, x: Value, dtype: torch.dtype | None = None) -> Value:
    return _standard_uniform(ctx)


@lowering("randn", "randn.generator", random=True)
def randn(ctx: Context, size: Size, dtype: torch.dtype | None = None) -> Value:
    return _standard_normal(ctx)


@lowering("randn_like", "randn_like.generator", random=True)
def randn_like(ctx: Context, x: Value, dtype: torch.dtype | None = None) -> Value:
    return _standard_normal(ctx)


def _normal(ctx: Context, mean: Value | float, std: Value | float) -> Value:
    if isinstance(std, Value):
        require_all(ctx.platform, hlo.greater_equal(std, 0), "aten::normal: expects all elements of std >= 0.0")
    drawn = _standard_normal(ctx)
    return drawn * number(std, drawn.dtype) + number(mean, drawn.dtype)


@lowering("normal_functional", random=True, data=("mean", "std"))
def normal_functional(ctx: Context, x: Value, mean: Value | float = 0.0, std: Value | float = 1.0) -> Value:
    return _normal(ctx, mean, std)


@lowering("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", random=True, data=("mean", "std"))
def normal(ctx: Context, mean: Value | float, std: Value | float = 1.0) -> Value:
    return _normal(ctx, mean, std)


@lowering("normal.float_float", random=True, data=("mean", "std"))
def normal_size(ctx: Context, mean: Value | float, std: Value | float, size: Size, dtype: object = None) -> Value:
    return _normal(ctx, mean, std)


@lowering("log_normal", random=True, data=("mean",), varying={"std": POSITIVE})
def log_normal(ctx: Context, x: Value, mean: Value | float = 1.0, std: Value | float = 2.0) -> Value:
    require(isinstance(std, Value) or std > 0, f"log_normal_ expects std > 0, got {std}")
    return hlo.exponential(_normal(ctx, mean, std))


@lowering("exponential", random=True, varying={"lambd": POSITIVE})
def exponential(ctx: Context, x: Value, lambd: Value | float = 1.0) -> Value:
    """-log(u) / lambd, above 0 also where float16 would round it there."""
    require(isinstance(lambd, Value) or lambd > 0, f"exponential_ expects lambd > 0, got {lambd}")
    compute = hlo.compute_dtype(ctx.out.dtype)
    drawn = -log_uniform(ctx, ctx.out.shape, compute) / number(lambd, compute)
    infinite = isinstance(lambd, float) and math.isinf(lambd)
    return hlo.maximum(drawn, 2.0**-24) if ctx.out.dtype is torch.float16 and not infinite else drawn


@lowering("cauchy", random=True, data=("median",), varying={"sigma": POSITIVE})
def cauchy(ctx: Context, x: Value, median: Value | float = 0.0, sigma: Value | float = 1.0) -> Value:
    """median + sigma cot(pi v), v uniform in (0, 1/2], with a random sign: both tails are finely resolved."""
    require(isinstance(sigma, Value) or sigma > 0, f"cauchy_ expects sigma > 0, got {sigma}")
    compute = hlo.compute_dtype(ctx.out.dtype)
    integer = torch.uint64 if compute is torch.float64 else torch.uint32
    drawn = bits(ctx, ctx.out.shape, integer)
    half = _open(hlo.shift_left(drawn, 1), compute) * 0.5
    size = 1 / hlo.tangent(half * math.pi)
    negative = hlo.greater_equal(drawn, 1 << (8 * integer.itemsize - 1))
    return number(median, compute) + number(sigma, compute) * hlo.select(negative, -size, size)


# -- lowerings: integers, coins, permutations -----------------------------------------------------------------------


@lowering("geometric", random=True, varying={"p": (0.0, 1.0)})
def geometric(ctx: Context, x: Value, p: Value | float) -> Value:
    """The number of trials up to the first success: ceil(log(u) / log(1 - p)), at least 1."""
    require(isinstance(p, Value) or 0 < p < 1, f"geometric_ expects p in (0, 1), got {p}")
    dtype = ctx.out.dtype
    compute = hlo.compute_dtype(dtype) if dtype.is_floating_point else torch.float32
    trials = log_uniform(ctx, ctx.out.shape, compute) / hlo.log1p(-number(p, compute))
    return hlo.maximum(hlo.ceil(trials), 1)


def _integers(ctx: Context, low: int | Value, high: int | Value) -> Value:
    """Uniform in [low, high), which the result's dtype must hold; see `Lowering.drawn_from` for those that are data."""
    dtype = ctx.out.dtype
    require(not dtype.is_complex, "random_ draws no complex numbers")
    if isinstance(low, int) and isinstance(high, int) and not dtype.is_floating_point:
        first, last = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        require(first <= low and high - 1 <= last, f"random_ from {low} to {high - 1} is out of bounds for {dtype}")
    return integers(ctx, ctx.out.shape, low, high - low)


@lowering("randint", "randint.generator", random=True, drawn_from=("", "high"))
def randint(ctx: Context, high: int | Value, size: Size, dtype: torch.dtype | None = None) -> Value:
    return _integers(ctx, 0, high)


@lowering("randint.low", "randint.low_generator", random=True, drawn_from=("low", "high"))
def randint_low(
    ctx: Context, low: int | Value, high: int | Value, size: Size, dtype: torch.dtype | None = None
) -> Value:
    return _integers(ctx, low, high)


@lowering("randint_like", "randint_like.generator", random=True, drawn_from=("", "high"))
def randint_like(ctx: Context, x: Value, high: int | Value, dtype: torch.dtype | None = None) -> Value:
    return _integers(ctx, 0, high)


@lowering("randint_like.low_dtype", "randint_like.low_generator_dtype", random=True, drawn_from=("low", "high"))
def randint_like_low(
    ctx: Context, x: Value, low: int | Value, high: int | Value, dtype: torch.dtype | None = None
) -> Value:
    return _integers(ctx, low, high)


@lowering(
    "randint_like.Tensor", "randint_like.Tensor_generator", random=True, inferred=True
)  # meta wants it on the CPU
def randint_like_tensor(ctx: Context, x: Value, high: Value, dtype: torch.dtype | None = None) -> Value:
    """The bound is on the device. Larger ones than 2^32 use the remainder of 64 bits, off by less than high / 2^64."""
    span = hlo.convert(hlo.reshape(high, ()), torch.uint64)
    drawn = words(ctx, x.shape)
    wide = hlo.convert(drawn[0], torch.uint64) | hlo.shift_left(hlo.convert(drawn[1], torch.uint64), 32)
    large = hlo.broadcast_to(hlo.greater(span, 1 << 32), x.shape)
    chosen = hlo.convert(hlo.select(large, hlo.remainder(wide, span), scaled(drawn, span)), torch.int64)
    return hlo.convert(chosen, dtype or x.dtype)


def _last(dtype: torch.dtype) -> int:
    """The largest integer that Tensor.random_ draws."""
    if dtype is torch.bool:
        return 1
    return 2 ** MANTISSA_BITS[dtype] if dtype.is_floating_point else torch.iinfo(dtype).max


@lowering("random", random=True)
def random(ctx: Context, x: Value) -> Value:
    return integers(ctx, ctx.out.shape, 0, _last(ctx.out.dtype) + 1)


@lowering("random.from", random=True, drawn_from=("from", "to"))
def random_from(ctx: Context, x: Value, low: int | Value, high: int | Value | None) -> Value:
    end = _last(ctx.out.dtype) + 1 if high is None else high
    return _integers(ctx, low, end)


@lowering("random.to", random=True, drawn_from=("", "to"))
def random_to(ctx: Context, x: Value, high: int | Value) -> Value:
    return _integers(ctx, 0, high)


def _require_probability(ctx: Context, p: Value) -> None:
    inside = hlo.greater_equal(p, 0) & hlo.less_equal(p, 1)
    require_all(ctx.platform, inside, "aten::bernoulli: expected probabilities from 0 to 1")


@lowering("bernoulli", random=True)
def bernoulli(ctx: Context, probability: Value) -> Value:
    _require_probability(ctx, probability)
    return coin(ctx, ctx.out.shape, hlo.convert(probability, hlo.compute_dtype(probability.dtype)))


@lowering("bernoulli.p", random=True, data=("p",))
def bernoulli_p(ctx: Context, x: Value, p: Value | float) -> Value:
    probability = number(p, p.dtype if isinstance(p, Value) else torch.float32)
    _require_probability(ctx, probability)
    return coin(ctx, ctx.out.shape, probability)


@lowering("bernoulli.Tensor", random=True)
def bernoulli_tensor(ctx: Context, x: Value, p: Value) -> Value:
    _require_probability(ctx, p)
    dtype = torch.float64 if p.dtype is torch.float64 else torch.float32
    return coin(ctx, ctx.out.shape, hlo.broadcast_to(hlo.convert(p, dtype), ctx.out.shape))


@lowering("randperm", "randperm.generator", random=True)
def randperm(ctx: Context, n: int, dtype: torch.dtype | None = None) -> Value:
    """Sorts random numbers that carry their index in the low bits: one operand sorts five times as fast as two."""
    exact = ctx.out.dtype.is_floating_point or ctx.out.dtype.is_complex or n <= torch.iinfo(ctx.out.dtype).max + 1
    require(exact, f"randperm: {n} numbers do not fit {ctx.out.dtype}")
    mask = (1 << max(n - 1, 0).bit_length()) - 1
    drawn = hlo.bitwise_and(bits(ctx, (n,), torch.uint64), 2**64 - 1 - mask)
    (ordered,) = hlo.sort([drawn | hlo.iota((n,), 0, torch.uint64)], 0)
    return hlo.convert(hlo.bitwise_and(ordered, mask), torch.int64)


# -- lowerings: dropout and rrelu -----------------------------------------------------------------------------------


def _dropped(ctx: Context, x: Value, keep: Value) -> tuple[Value, Value]:
    """x / keep where a coin of probability `keep` says so, else x * 0, which is no number if x is none; and the coins."""
    mask = coin(ctx, x.shape, keep)
    compute = hlo.compute_dtype(x.dtype)
    scale = hlo.select(hlo.equal(keep, 0), hlo.zeros_like(keep), 1 / keep)
    return hlo.convert(x, compute) * (hlo.convert(mask, compute) * hlo.convert(scale, compute)), mask


@lowering("native_dropout", random=True, data=("p",))
def native_dropout(ctx: Context, x: Value, p: Value | float, train: bool | None) -> tuple[Value, Value]:
    if train is False:
        return x, hlo.full(x.shape, True, torch.bool)
    return _dropped(ctx, x, 1 - number(p, p.dtype if isinstance(p, Value) else torch.float32))


@lowering("_fused_dropout", random=True, data=("p",))
def fused_dropout(ctx: Context, x: Value, p: Value | float) -> tuple[Value, Value]:
    """Here p is the probability to keep."""
    return _dropped(ctx, x, number(p, p.dtype if isinstance(p, Value) else torch.float32))


@lowering("native_dropout_backward", "_masked_scale", data=("scale",))
def native_dropout_backward(ctx: Context, grad: Value, mask: Value, scale: Value | float) -> Value:
    compute = hlo.compute_dtype(ctx.out.dtype)
    factor = hlo.convert(mask, compute) * number(scale, compute)
    return hlo.convert(grad, compute) * factor


@lowering("rrelu_with_noise_functional", random=True)
def rrelu_with_noise(
    ctx: Context,
    x: Value,
    noise: Value,
    lower: Value | float = 0.125,
    upper: Value | float = 1 / 3,
    training: bool = False,
) -> tuple[Value, Value]:
    """Slopes of x <= 0 are uniform in [lower, upper) and returned as the noise; in evaluation they are the mean."""
    dtype, compute = x.dtype, hlo.compute_dtype(x.dtype)
    lower, upper, wide = number(lower, compute), number(upper, compute), hlo.convert(x, compute)
    left = hlo.less_equal(wide, 0)
    if not training:
        return hlo.select(left, wide * ((lower + upper) * 0.5), wide), noise
    drawn = lower + (upper - lower) * from_zero(ctx, x.shape, dtype)
    slope = hlo.select(left, hlo.convert(hlo.convert(drawn, dtype), compute), hlo.ones_like(wide))
    return wide * slope, slope
