"""The random lowerings against the exact distributions, and the generator's promises about seed and offset."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops import random, registry, sampling  # noqa: F401 - registers their lowerings
from torch_tpu.ops.registry import Context, Spec
from torch_tpu.runtime.client import cpu_client

NUM_SAMPLES = 40_000
CLIENT = cpu_client()


def draw(
    op: str,
    *args: Any,
    shape: tuple[int, ...] = (NUM_SAMPLES,),
    dtype: torch.dtype = torch.float32,
    seed: int = 42,
    offset: int = 0,
    more: tuple[Spec, ...] = (),
    **attributes: Any,
) -> Any:
    """Runs one random lowering; floats become operands as the core makes them, tensors too."""
    rule = registry.LOWERINGS[registry.overload_name(registry.resolve(op))]
    names = [argument.name for argument in registry.resolve(op)._schema.arguments]
    operands: list[torch.Tensor] = []
    with hlo.Function() as function:

        def operand(tensor: torch.Tensor, weak: bool = False) -> Value:
            operands.append(tensor)
            return function.argument(tuple(tensor.shape), tensor.dtype, weak)

        values = [
            operand(arg)
            if isinstance(arg, torch.Tensor)
            else operand(torch.tensor(arg), True)
            if isinstance(arg, float) and names[index] in rule.data
            else arg
            for index, arg in enumerate(args)
        ]
        ctx = Context(rule.op, (Spec(shape, dtype), *more))
        state = operand(torch.tensor([seed, offset], dtype=torch.uint64))
        ctx.rng_source = lambda: state
        results = [value for value in registry.apply(rule, ctx, values, attributes) if value is not None]
    program = CLIENT.compile(function.module(results), [(value.shape, value.dtype) for value in results])
    arrays = program.run([CLIENT.put(tensor) for tensor in operands])
    tensors = [CLIENT.get(array, value.dtype).clone() for array, value in zip(arrays, results, strict=True)]
    return tensors[0] if len(tensors) == 1 else tensors


def assert_continuous(sample: torch.Tensor, distribution: Any) -> None:
    """Kolmogorov and Smirnov's test; the seeds are fixed, so that it either always passes or never."""
    assert torch.isfinite(sample).all()
    assert stats.kstest(sample.double().numpy().ravel(), distribution.cdf).pvalue > 1e-3


def assert_discrete(sample: torch.Tensor, distribution: Any) -> None:
    """Pearson's test over the values expected at least 10 times."""
    values = sample.double().numpy().ravel()
    assert (values == np.round(values)).all()
    support = np.arange(values.min(), values.max() + 1)
    seen = np.array([(values == k).sum() for k in support])
    expected = distribution.pmf(support) * len(values)
    frequent = expected >= 10
    seen = np.append(seen[frequent], len(values) - seen[frequent].sum())
    expected = np.append(expected[frequent], max(len(values) - expected[frequent].sum(), 1e-9))
    kept = expected >= 5
    statistic = ((seen[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    assert stats.chi2.sf(statistic, max(kept.sum() - 1, 1)) > 1e-3


def like(dtype: torch.dtype = torch.float32, size: int = NUM_SAMPLES) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype)


# -- the generator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers(key: tuple[int, int], counter: tuple[int, int], words: tuple[int, int]):
    """The vectors published with Random123."""
    operands = [torch.tensor(word, dtype=torch.uint32) for word in (*key, *counter)]
    with hlo.Function() as function:
        a, b, c, d = (function.argument((), torch.uint32) for _ in operands)
        results = random.threefry((a, b), (c, d))
    program = CLIENT.compile(function.module(results), [((), torch.uint32)] * 2)
    arrays = program.run([CLIENT.put(tensor) for tensor in operands])
    assert tuple(int(CLIENT.get(array, torch.uint32)) for array in arrays) == words


def test_a_draw_depends_on_seed_and_offset():
    first = draw("rand", [64], shape=(64,))
    assert torch.equal(first, draw("rand", [64], shape=(64,)))
    assert (first != draw("rand", [64], shape=(64,), seed=43)).all()
    assert (first != draw("rand", [64], shape=(64,), seed=42 + (1 << 32))).all()
    assert not np.isin(first, draw("rand", [64], shape=(64,), offset=64)).any()


def test_an_element_depends_on_its_position_alone():
    long, short = draw("rand", [64], shape=(64,)), draw("rand", [4, 8], shape=(4, 8))
    assert torch.equal(long[:32], short.reshape(-1))
    assert torch.equal(long[8:], draw("rand", [56], shape=(56,), offset=8))


def test_counters_carry_into_the_upper_word():
    near = (1 << 32) - 4
    across = draw("rand", [8], shape=(8,), offset=near)
    assert torch.equal(across[4:], draw("rand", [4], shape=(4,), offset=1 << 32))
    assert not np.isin(across[4:], draw("rand", [4], shape=(4,))).any()


def test_offsets_cover_the_results():
    spec = Spec((3, 5), torch.float32)
    assert random.offsets([spec]) == 16
    assert random.offsets([spec, Spec((), torch.bool)]) == 16
    assert random.offsets([Spec((0,), torch.float32)]) == 4


def test_seeds_and_successive_calls_are_uncorrelated():
    rows = [draw("randn", [20_000], shape=(20_000,), seed=seed) for seed in range(4)]
    rows += [draw("randn", [20_000], shape=(20_000,), offset=20_000 * turn) for turn in (1, 2)]
    rows += [rows[0].roll(1), rows[0].roll(2)]
    correlation = np.corrcoef(torch.stack(rows).numpy())
    assert np.abs(correlation - np.eye(len(rows))).max() < 4.5 / math.sqrt(20_000)


# -- continuous distributions ---------------------------------------------------------------------------------------

CONTINUOUS: list[tuple[str, tuple[float, ...], Any]] = [
    ("uniform", (-1.0, 3.0), stats.uniform(-1, 4)),
    ("normal_functional", (1.0, 2.0), stats.norm(1, 2)),
    ("exponential", (2.0,), stats.expon(scale=0.5)),
    ("cauchy", (1.0, 2.0), stats.cauchy(1, 2)),
    ("log_normal", (0.5, 0.25), stats.lognorm(0.25, scale=math.exp(0.5))),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("op", "parameters", "distribution"), CONTINUOUS, ids=[row[0] for row in CONTINUOUS])
def test_in_place_distributions(op: str, parameters: tuple[float, ...], distribution: Any, dtype: torch.dtype):
    sample = draw(op, like(dtype), *parameters, dtype=dtype)
    assert sample.dtype is dtype
    assert_continuous(sample, distribution)


def test_moments_of_normal_numbers():
    sample = draw("randn", [400_000], shape=(400_000,)).double()
    scaled = math.sqrt(400_000)
    assert abs(sample.mean()) * scaled < 4
    assert abs(sample.var() - 1) * scaled < 4 * math.sqrt(2)
    assert abs((sample**3).mean()) * scaled < 4 * math.sqrt(15)
    assert abs((sample**4).mean() - 3) * scaled < 4 * math.sqrt(96)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_normal_numbers_have_variance_one(dtype: torch.dtype):
    sample = draw("randn", [NUM_SAMPLES], dtype=dtype)
    for part in (sample.real, sample.imag):
        assert_continuous(part, stats.norm(scale=math.sqrt(0.5)))
    assert abs(np.corrcoef(sample.real, sample.imag)[0, 1]) < 0.02


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_uniform_numbers_stay_below_the_end(dtype: torch.dtype):
    digits = random.MANTISSA_BITS[dtype]
    sample = draw("rand", [NUM_SAMPLES], dtype=dtype).double()
    assert sample.min() >= 0
    assert sample.max() <= 1 - 2.0**-digits
    assert (sample * 2.0**digits == (sample * 2.0**digits).round()).all()
    assert abs(sample.mean() - (0.5 - 2.0**-digits / 2)) < 4 * math.sqrt(1 / 12 / NUM_SAMPLES)
    shifted = draw("uniform", like(dtype), 1.0, 2.0, dtype=dtype)
    assert shifted.min() >= 1
    assert shifted.max() < 2


def test_logarithms_are_taken_of_positive_numbers():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        sample = draw("exponential", like(dtype), 1.0, dtype=dtype)
        assert sample.min() > 0
        assert torch.isfinite(sample).all()


def test_normal_with_tensors_broadcasts():
    mean, std = torch.tensor([[-100.0], [100.0]]), torch.tensor([1.0, 2.0, 3.0])
    shape = (2, 3)
    assert (draw("normal.Tensor_Tensor", mean, std, shape=shape).sign() == mean.sign()).all()
    assert draw("normal.float_Tensor", 5.0, torch.zeros(3), shape=(3,)).tolist() == [5.0] * 3
    assert draw("normal.Tensor_float", mean, 0.0, shape=(2, 1)).equal(mean)


# -- integers and coins ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [1, 2, 7, 1000, 1 << 20])
def test_randint_is_uniform(span: int):
    sample = draw("randint.low", -3, span - 3, [NUM_SAMPLES], dtype=torch.int64)
    assert sample.min() >= -3
    assert sample.max() < span - 3
    if span > 1:
        cells = min(span, 64)
        counts = torch.bincount((sample + 3) * cells // span, minlength=cells).double()
        edges = [-(-cell * span // cells) for cell in range(cells + 1)]
        expected = torch.tensor([float(b - a) for a, b in itertools.pairwise(edges)]) * NUM_SAMPLES / span
        assert stats.chi2.sf(float(((counts - expected) ** 2 / expected).sum()), cells - 1) > 1e-3


@pytest.mark.parametrize("span", [3 << 61, (1 << 63) - 1, (1 << 32) + 12345])
def test_randint_of_large_ranges_is_unbiased(span: int):
    low = -(span // 2)
    sample = draw("randint.low", low, low + span, [NUM_SAMPLES], dtype=torch.int64).double()
    assert_continuous(sample, stats.uniform(low, span))


def test_random_fills_the_range_of_the_dtype():
    assert draw("random", like(torch.uint8), dtype=torch.uint8).unique().numel() == 256
    assert draw("random", like(torch.bool), dtype=torch.bool).unique().numel() == 2
    whole = draw("random.from", like(torch.int64), -(1 << 63), None, dtype=torch.int64)
    assert_continuous(whole, stats.uniform(-(2.0**63), 2.0**64))
    floats = draw("random", like())
    assert floats.max() <= 1 << 24
    assert floats.equal(floats.round())


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.3, 0.999, 1.0])
def test_coins(p: float):
    sample = draw("bernoulli.p", like(), p)
    assert abs(sample.mean() - p) <= 4 * math.sqrt(p * (1 - p) / NUM_SAMPLES)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        given = torch.full((NUM_SAMPLES,), p, dtype=dtype)
        exact = float(given[0])
        deviation = math.sqrt(exact * (1 - exact) / NUM_SAMPLES)
        assert abs(draw("bernoulli", given, dtype=dtype).double().mean() - exact) <= 4 * deviation


def test_rare_coins_are_not_rounded_up():
    size = 1 << 22
    assert draw("bernoulli.p", like(size=size), 1e-9, shape=(size,)).sum() == 0


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_geometric(p: float):
    assert_discrete(draw("geometric", like(), p), stats.geom(p))
    assert draw("geometric", like(torch.int64), p, dtype=torch.int64).min() >= 1


def test_permutations():
    for n in (0, 1, 2, 1000):
        sample = draw("randperm", n, shape=(n,), dtype=torch.int64)
        assert sample.sort().values.equal(torch.arange(n))
    orders = [tuple(draw("randperm", 3, shape=(3,), dtype=torch.int64, offset=4 * k).tolist()) for k in range(240)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


# -- dropout and rrelu ----------------------------------------------------------------------------------------------


def test_dropout_scales_what_it_keeps():
    x, mask_spec = torch.full((NUM_SAMPLES,), 3.0), (Spec((NUM_SAMPLES,), torch.bool),)
    out, mask = draw("native_dropout", x, 0.25, True, more=mask_spec)
    assert out.equal(torch.where(mask, 3.0 / 0.75, 0.0))
    assert abs(mask.double().mean() - 0.75) < 4 * math.sqrt(0.1875 / NUM_SAMPLES)
    for p, kept in ((0.0, True), (1.0, False)):
        out, mask = draw("native_dropout", x, p, True, more=mask_spec)
        assert (mask == kept).all()
        assert out.equal(x * kept)
    out, mask = draw("native_dropout", x, 0.25, False, more=mask_spec)
    assert out.equal(x)
    assert mask.all()


def test_rrelu_slopes():
    x = torch.full((NUM_SAMPLES,), -2.0)
    lower, upper = torch.tensor(0.25), torch.tensor(0.5)
    spec = (Spec((NUM_SAMPLES,), torch.float32),)
    out, noise = draw("rrelu_with_noise_functional", x, torch.empty_like(x), lower, upper, True, more=spec)
    assert out.equal(x * noise)
    assert_continuous(noise, stats.uniform(0.25, 0.25))
    out, noise = draw("rrelu_with_noise_functional", -x, torch.empty_like(x), lower, upper, True, more=spec)
    assert out.equal(-x)
    assert (noise == 1).all()


# -- samplers with rejection ----------------------------------------------------------------------------------------


def full(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((NUM_SAMPLES,), value, dtype=dtype)


def test_gamma():
    for alpha in (0.3, 1.0, 2.5, 1e4):
        assert_continuous(draw("_standard_gamma", full(alpha)), stats.gamma(alpha))
    assert_continuous(draw("_standard_gamma", full(0.7).double(), dtype=torch.float64), stats.gamma(0.7))
    assert draw("_standard_gamma", torch.zeros(3), shape=(3,)).tolist() == [0.0] * 3


def test_gamma_gradient_is_the_implicit_one():
    alpha = torch.linspace(0.1, 30, 200, dtype=torch.float64)
    sample = torch._standard_gamma(alpha)
    grad = draw("_standard_gamma_grad", alpha, sample, shape=(200,), dtype=torch.float64)
    torch.testing.assert_close(grad, torch._standard_gamma_grad(alpha, sample), rtol=2e-3, atol=1e-6)


def test_dirichlet():
    alpha = torch.tensor([0.3, 2.0, 1.0]).expand(NUM_SAMPLES, 3).contiguous()
    sample = draw("_sample_dirichlet", alpha, shape=(NUM_SAMPLES, 3))
    torch.testing.assert_close(sample.sum(1), torch.ones(NUM_SAMPLES))
    assert_continuous(sample[:, 0], stats.beta(0.3, 3.0))
    tiny = draw("_sample_dirichlet", torch.full((100, 3), 1e-3), shape=(100, 3))
    torch.testing.assert_close(tiny.sum(1), torch.ones(100))


def test_poisson():
    for mean in (0.1, 3.0, 9.9, 10.0, 300.0, 1e5):
        assert_discrete(draw("poisson", full(mean)), stats.poisson(mean))
    assert draw("poisson", torch.zeros(3), shape=(3,)).tolist() == [0.0] * 3


def test_binomial():
    for count, prob in ((1, 0.3), (20, 0.1), (20, 0.9), (100, 0.2), (1000, 0.7), (10**6, 1e-5)):
        assert_discrete(draw("binomial", full(count), full(prob)), stats.binom(count, prob))
    assert (draw("binomial", full(10), full(0.0)) == 0).all()
    assert (draw("binomial", full(10), full(1.0)) == 10).all()


WEIGHTS = torch.tensor([0.1, 0.0, 0.4, 0.2, 0.0, 0.3, 0.0])


def frequencies_agree(sample: torch.Tensor, expected: torch.Tensor) -> bool:
    counts = torch.bincount(sample.reshape(-1), minlength=len(expected)).double() / sample.numel()
    return bool(((counts - expected).abs() <= 4 * (expected * (1 - expected) / sample.numel()).sqrt()).all())


def test_multinomial_with_replacement():
    sample = draw("multinomial", WEIGHTS * 7, NUM_SAMPLES, True, dtype=torch.int64)
    assert frequencies_agree(sample, WEIGHTS)


def test_multinomial_without_replacement():
    rows = WEIGHTS.expand(NUM_SAMPLES, 7).contiguous()
    single = draw("multinomial", rows, 1, shape=(NUM_SAMPLES, 1), dtype=torch.int64)
    assert frequencies_agree(single, WEIGHTS)
    pair = draw("multinomial", rows, 2, shape=(NUM_SAMPLES, 2), dtype=torch.int64)
    second = torch.stack([(WEIGHTS * w / (1 - w)).where(torch.arange(7) != i, 0) for i, w in enumerate(WEIGHTS)])
    assert frequencies_agree(pair[:, 0], WEIGHTS)
    assert frequencies_agree(pair[:, 1], second.sum(0))
    assert (pair[:, 0] != pair[:, 1]).all()


def test_successive_multinomials_are_independent():
    """One draws more numbers than its result has elements, for which the offset does not advance."""
    calls = [draw("multinomial", torch.ones(1000), 3, shape=(3,), dtype=torch.int64, offset=4 * k) for k in range(60)]
    gaps = torch.stack(calls).diff(dim=0)
    assert (gaps.abs() > 4).double().mean() > 0.9
