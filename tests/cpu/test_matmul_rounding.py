"""float32 products on the CPU that round as a TPU's do: every product, every setting, every mode.

The reference is `mxu_reference.py`. Products alone must be within the error of sums in float32; functions with more in
them must be much nearer to the reference than rounding moves them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mxu_reference as mxu
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_tpu
from torch_tpu import hlo, settings
from torch_tpu.eager import configure
from torch_tpu.stats import counters

SETTINGS = [("medium", 1), ("high", 3), ("highest", 6)]
MODES = ("strict", "fused", "compiled")


@pytest.fixture(autouse=True)
def _emulated():
    settings.emulate_matmul_rounding = True


def in_mode(mode: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if mode == "compiled":
        torch._dynamo.reset()
        return torch.compile(function, backend="tpu")
    eager = torch.tpu.EagerMode.DEFER_AND_FUSE if mode == "fused" else torch.tpu.EagerMode.DEFER_NEVER

    def call(*args: Any) -> Any:
        with torch.tpu.set_eager_mode(eager):
            return function(*args)

    return call


def made() -> int:
    """Programs that were compiled or found in a cache."""
    return counters.compiles + counters.disk_hits + counters.memory_hits


# ---------------------------------------------------------------------------------------------- products alone


def input_gradient(convolve: Callable[..., torch.Tensor], *shape: int) -> mxu.Bilinear:
    """Of a convolution of an input of this shape, by the output's gradient and the weight."""

    def function(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = torch.zeros(shape, dtype=grad.dtype, device=grad.device, requires_grad=True)
        return torch.autograd.grad(convolve(x, weight), x, grad)[0]

    return function


def weight_gradient(convolve: Callable[..., torch.Tensor], *shape: int) -> mxu.Bilinear:
    """Of a convolution with a weight of this shape, by the input and the output's gradient."""

    def function(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        weight = torch.zeros(shape, dtype=grad.dtype, device=grad.device, requires_grad=True)
        return torch.autograd.grad(convolve(x, weight), weight, grad)[0]

    return function


def no_bias(function: Callable[..., torch.Tensor], *shape: int, **named: Any) -> mxu.Bilinear:
    return lambda x, y: function(torch.zeros(shape, dtype=x.dtype, device=x.device), x, y, **named)


PRODUCTS: dict[str, tuple[mxu.Bilinear, tuple[int, ...], tuple[int, ...]]] = {
    "mm": (torch.mm, (5, 40), (40, 7)),
    "mm, transposed": (lambda x, y: torch.mm(x.t(), y.t()), (40, 5), (7, 40)),
    "bmm": (torch.bmm, (3, 5, 24), (3, 24, 4)),
    "mv": (torch.mv, (6, 30), (30,)),
    "dot": (torch.dot, (50,), (50,)),
    "vdot": (torch.vdot, (50,), (50,)),
    "matmul": (torch.matmul, (2, 1, 3, 16), (4, 16, 5)),
    "linear": (F.linear, (2, 3, 20), (6, 20)),
    "addmm": (no_bias(torch.addmm, 7, beta=0.5), (5, 16), (16, 7)),
    "addmv": (no_bias(torch.addmv, 5), (5, 16), (16,)),
    "baddbmm": (no_bias(torch.baddbmm, 2, 3, 5), (2, 3, 16), (2, 16, 5)),
    "addbmm": (no_bias(torch.addbmm, 3, 5), (2, 3, 16), (2, 16, 5)),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (2, 3, 16), (2, 5, 16)),
    "einsum over two": (lambda x, y: torch.einsum("bij,kjb->ik", x, y), (2, 3, 8), (5, 8, 2)),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=([1, 2], [1, 0])), (2, 3, 4), (4, 3, 5)),
    "conv1d": (F.conv1d, (2, 3, 20), (4, 3, 5)),
    "conv2d": (functools.partial(F.conv2d, padding=1), (2, 3, 8, 8), (4, 3, 3, 3)),
    "conv2d, strided, dilated": (functools.partial(F.conv2d, stride=2, dilation=2), (2, 3, 11, 11), (4, 3, 3, 3)),
    "conv2d, grouped": (functools.partial(F.conv2d, groups=2), (2, 4, 8, 8), (6, 2, 3, 3)),
    "conv2d, depthwise": (functools.partial(F.conv2d, groups=4, padding=1), (2, 4, 8, 8), (8, 1, 3, 3)),
    "conv2d, of one place": (F.conv2d, (2, 8, 5, 5), (4, 8, 1, 1)),
    "conv3d": (F.conv3d, (1, 2, 5, 5, 5), (3, 2, 3, 3, 3)),
    "conv_transpose2d": (functools.partial(F.conv_transpose2d, stride=2), (2, 3, 5, 5), (3, 4, 3, 3)),
    "conv2d, input": (input_gradient(functools.partial(F.conv2d, stride=2), 2, 3, 9, 9), (2, 4, 4, 4), (4, 3, 3, 3)),
    "conv2d, weight": (weight_gradient(functools.partial(F.conv2d, stride=2), 4, 3, 3, 3), (2, 3, 9, 9), (2, 4, 4, 4)),
    "grouped, input": (input_gradient(functools.partial(F.conv2d, groups=2), 2, 4, 6, 6), (2, 6, 4, 4), (6, 2, 3, 3)),
    "grouped, weight": (weight_gradient(functools.partial(F.conv2d, groups=2), 6, 2, 3, 3), (2, 4, 6, 6), (2, 6, 4, 4)),
    "depthwise, input": (input_gradient(functools.partial(F.conv2d, groups=4), 2, 4, 6, 6), (2, 4, 4, 4), (4, 1, 3, 3)),
    "depthwise, weight": (
        weight_gradient(functools.partial(F.conv2d, groups=4), 4, 1, 3, 3),
        (2, 4, 6, 6),
        (2, 4, 4, 4),
    ),
    "one place, input": (input_gradient(F.conv2d, 2, 8, 5, 5), (2, 4, 5, 5), (4, 8, 1, 1)),
    "one place, weight": (weight_gradient(F.conv2d, 4, 8, 1, 1), (2, 8, 5, 5), (2, 4, 5, 5)),
    "transposed, input": (input_gradient(F.conv_transpose2d, 2, 3, 5, 5), (2, 4, 7, 7), (3, 4, 3, 3)),
    "transposed, weight": (weight_gradient(F.conv_transpose2d, 3, 4, 3, 3), (2, 3, 5, 5), (2, 4, 7, 7)),
}


def operands(name: str) -> tuple[mxu.Bilinear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(5)
    function, left, right = PRODUCTS[name]
    return function, torch.randn(left), torch.randn(right)


def assert_within(found: torch.Tensor, function: mxu.Bilinear, x: torch.Tensor, y: torch.Tensor, passes: int) -> None:
    error = (found.cpu().double() - mxu.product(function, x, y, passes)).abs()
    assert (error <= mxu.accumulation_error(function, x, y, passes)).all(), f"off by {error.max():.3g}"


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_differ_by_sums_in_float32_only(name):
    function, x, y = operands(name)
    for setting, passes in SETTINGS:
        settings.matmul_precision = setting
        assert_within(function(x.to("tpu"), y.to("tpu")), function, x, y, passes)
    settings.matmul_precision = "medium"
    with pytest.raises(AssertionError, match="off by"):  # which is narrow enough to tell rounded products from exact
        assert_within(function(x, y), function, x, y, 1)


@pytest.mark.parametrize("mode", MODES)
def test_each_setting_has_products_of_its_own(mode):
    """With two terms a sum, the bounds of the three settings keep their products apart."""
    torch.manual_seed(6)
    x, y = torch.randn(40, 2), torch.randn(2, 40)
    run = in_mode(mode, torch.mm)
    for setting, passes in SETTINGS:
        settings.matmul_precision = setting
        found = run(x.to("tpu"), y.to("tpu"))
        for other in (1, 3, 6):
            if other == passes:
                assert_within(found, torch.mm, x, y, other)
            else:
                with pytest.raises(AssertionError, match="off by"):
                    assert_within(found, torch.mm, x, y, other)


def test_wide_ranges():
    torch.manual_seed(7)
    x, y = (torch.ldexp(torch.randn(16, 16), torch.randint(-30, 30, (16, 16))) for _ in range(2))
    for setting, passes in SETTINGS:
        settings.matmul_precision = setting
        assert_within(x.to("tpu") @ y.to("tpu"), torch.mm, x, y, passes)


@pytest.mark.parametrize("name", ["mm", "conv2d", "depthwise, weight"])
def test_more_passes_are_nearer_and_six_reach_float32(name):
    function, x, y = operands(name)
    exact = function(x.double(), y.double())

    def error() -> float:
        return float((function(x.to("tpu"), y.to("tpu")).cpu().double() - exact).norm() / exact.norm())

    found = []
    for setting, _ in SETTINGS:
        settings.matmul_precision = setting
        found.append(error())
    settings.emulate_matmul_rounding = False
    assert found[0] > 100 * found[1] > 1000 * found[2]
    assert 1e-4 < found[0] < 2**-7 and found[1] < 3 * 2**-16  # at most (1 + u)**2 - 1, and 3 u**2, with u = 2**-8
    assert found[2] <= 1.5 * max(error(), 2**-24)


def test_infinities_and_numbers_that_bfloat16_rounds_to_them():
    inf, nan, largest = math.inf, math.nan, torch.finfo(torch.float32).max
    x = torch.tensor([[1.0, inf], [1.0, -inf], [nan, 1.0], [largest, 0.0], [2.0, 3.0]])
    y = torch.tensor([[1.0], [2.0]])
    for setting, _ in SETTINGS:
        settings.matmul_precision = setting
        found = (x.to("tpu") @ y.to("tpu")).flatten().tolist()
        assert found[0] == inf and found[1] == -inf and math.isnan(found[2]) and found[3:] == [inf, 8.0]


# ------------------------------------------------------------------------------------------------ other dtypes


def test_narrower_and_wider_dtypes_are_left_alone():
    torch.manual_seed(8)
    image, kernel = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    x, y = torch.randn(8, 24), torch.randn(24, 8)
    for dtype in (torch.bfloat16, torch.float64, torch.complex128, torch.int32):
        found = []
        for emulate, setting in ((False, "medium"), (True, "medium"), (True, "highest")):
            with settings.override(emulate_matmul_rounding=emulate, matmul_precision=setting):
                results = [(x.to(dtype).to("tpu") @ y.to(dtype).to("tpu")).cpu()]
                if dtype.is_floating_point:
                    results.append(F.conv2d(image.to(dtype).to("tpu"), kernel.to(dtype).to("tpu")).cpu())
            found.append(results)
        for others in found[1:]:
            assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True)), dtype


def test_mixed_dtypes_are_refused_as_ever():
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.randn(4, 4, device="tpu") @ torch.randn(4, 4, device="tpu").bfloat16()


@pytest.mark.parametrize("setting, passes", [("medium", 1), ("high", 3), ("highest", 3)])
def test_float16_has_two_parts(setting, passes):
    """A TPU has no float16 products: they take one pass or three, which is what its compiler estimates for them."""
    torch.manual_seed(9)
    x, y = torch.randn(12, 30).half(), torch.randn(30, 12).half()
    settings.matmul_precision = setting
    assert_within(torch.mm(x.to("tpu"), y.to("tpu"), out_dtype=torch.float32), torch.mm, x, y, passes)
    image, kernel = torch.randn(2, 3, 8, 8).half(), torch.randn(4, 3, 3, 3).half()
    found = F.conv2d(image.to("tpu"), kernel.to("tpu")).cpu()
    expected = mxu.product(F.conv2d, image, kernel, passes)
    assert found.dtype is torch.float16
    torch.testing.assert_close(found.double(), expected, rtol=2**-10, atol=2**-20)


def test_complex_products_are_three_real_ones():
    """k = (a + b) c: the real part is k - b (c + d), the imaginary one k + a (d - c)."""
    torch.manual_seed(10)
    x, y = torch.randn(6, 20, dtype=torch.complex64), torch.randn(20, 6, dtype=torch.complex64)
    a, b, c, d = x.real, x.imag, y.real, y.imag
    for setting, passes in SETTINGS:
        settings.matmul_precision = setting
        of = functools.partial(mxu.product, torch.mm, passes=passes)
        shared, left, right = of(a + b, c), of(b, c + d), of(a, d - c)
        error = torch.view_as_real((x.to("tpu") @ y.to("tpu")).cpu().to(torch.complex128))
        error = (error - torch.stack([shared - left, shared + right], -1)).abs()
        bound = functools.partial(mxu.accumulation_error, torch.mm, passes=passes)
        first, last = bound(a + b, c), 2.0**-24 * shared.abs()
        allowed = [
            first + bound(*pair) + last + 2.0**-24 * value.abs()
            for pair, value in (((b, c + d), left), ((a, d - c), right))
        ]
        assert (error <= torch.stack(allowed, -1)).all()


def test_operators_that_ask_for_full_precision_get_it():
    torch.manual_seed(11)
    x = torch.randn(6, 6) / 3
    settings.matmul_precision = "medium"
    found = torch.linalg.matrix_exp(x.to("tpu")).cpu()
    torch.testing.assert_close(found, torch.linalg.matrix_exp(x.double()).float())
    image = torch.rand(1, 2, 7, 7)
    grown = F.interpolate(image.to("tpu"), size=(11, 11), mode="bicubic").cpu()
    torch.testing.assert_close(grown, F.interpolate(image, size=(11, 11), mode="bicubic"))


# ------------------------------------------------------------------------------------------ whole functions


class ReferenceAttention(torch.autograd.Function):
    """Attention by the steps of the device's: the scores' gradient is P (G - D) with D from the output."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool) -> torch.Tensor:
        ctx.scale = query.shape[-1] ** -0.5
        scores = query @ key.mT * ctx.scale
        if is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        weights = scores.softmax(-1)
        out = weights @ value
        ctx.save_for_backward(query, key, value, weights, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        query, key, value, weights, out = ctx.saved_tensors
        scores = weights * (grad @ value.mT - (grad * out).sum(-1, keepdim=True)) * ctx.scale
        return scores @ key, scores.mT @ query, weights.mT @ grad, None


def reference_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> torch.Tensor:
    assert mask is None and not dropout
    return ReferenceAttention.apply(query, key, value, is_causal)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 8), nn.GRU(8, 8, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(self.lstm(x)[0])[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1), nn.Tanh()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


FUNCTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 4)), (10, 24)),
    "recurrent": (Recurrent, (3, 3, 6)),
    "attention": (Attention, (2, 12, 16)),
    "multi-head attention": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 9, 16)),
    "convolutional": (Convolutional, (2, 3, 9, 9)),
}


def results(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Output and all gradients, in one float64 vector on the CPU."""
    x = x.detach().requires_grad_()
    out = model(x)
    inputs = [x, *model.parameters()]
    gradients = torch.autograd.grad(out.sin().sum(), inputs)
    return torch.cat([value.detach().cpu().double().flatten() for value in (out, *gradients)])


QUICK = [
    ("linear", "strict"),
    ("linear", "fused"),
    ("linear", "compiled"),
    ("recurrent", "strict"),
    ("attention", "strict"),
]


def with_speeds() -> list[Any]:
    """All functions in all modes; those that take long to compile are slow tests."""
    pairs = [(name, mode) for name in FUNCTIONS for mode in MODES]
    return [pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow]) for pair in pairs]


@pytest.mark.parametrize("name, mode", with_speeds())
def test_whole_functions(name, mode, monkeypatch):
    """The reference rounds inputs of products that it has in float64, so single roundings may fall the other way; all
    of them together are far smaller than what rounding changes."""
    torch.manual_seed(12)
    make, shape = FUNCTIONS[name]
    model, x = make(), torch.randn(shape)
    wide, reference = make().double(), {}
    wide.load_state_dict(model.state_dict())
    with monkeypatch.context() as patched:
        patched.setattr(F, "scaled_dot_product_attention", reference_attention)
        exact = results(wide, x.double())
        for _, passes in SETTINGS:
            with mxu.Mxu(passes) as seen:
                reference[passes] = results(wide, x.double())
            assert seen.count >= 6
    device = model.to("tpu")
    if mode == "compiled":
        torch._dynamo.reset()
        device.forward = torch.compile(device.forward, backend="tpu")
    errors = []
    for setting, passes in SETTINGS:
        settings.matmul_precision = setting
        eager = torch.tpu.EagerMode.DEFER_AND_FUSE if mode == "fused" else torch.tpu.EagerMode.DEFER_NEVER
        with torch.tpu.set_eager_mode(eager):
            found = results(device, x.to("tpu"))
        moved, distance = (reference[passes] - exact).norm(), (found - reference[passes]).norm()
        if passes < 6:
            assert distance < (0.05 if passes == 1 else 0.5) * moved, f"{setting}: {distance / moved:.3g}"
        errors.append(float((found - exact).norm() / exact.norm()))
    assert errors[0] > 50 * errors[1] > 100 * errors[2]
    assert errors[2] < 1e-6


# ------------------------------------------------------------------------------------- how settings reach programs


def dots(function: Callable[..., Any] = torch.mm, *args: Any) -> int:
    """How many dots the program of a product has."""
    args = args or (torch.ones(3, 4, device="tpu"), torch.ones(4, 3, device="tpu"))
    programs = torch_tpu.explain(function, *args).programs
    assert len(programs) == 1
    return programs[0].stablehlo.count("dot_general")


def test_ways_to_choose(monkeypatch):
    assert settings.matmul_precision == "default" and dots() == 1
    try:
        for setting, passes in SETTINGS:
            torch.set_float32_matmul_precision(setting)
            assert torch.backends.tpu.matmul_precision == setting and dots() == passes
    finally:
        torch.set_float32_matmul_precision("highest")  # PyTorch's own default
    torch.backends.tpu.matmul_precision = "high"
    assert dots() == 3
    with torch.tpu.precision("HIGHEST"):
        assert dots() == 6
        with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
            assert dots() == 1
    assert dots() == 3
    with pytest.raises(ValueError, match="cannot be 'low'; it can be 'default', 'medium', 'high', 'highest'"):
        torch.backends.tpu.matmul_precision = "low"
    settings._assigned.discard("matmul_precision")
    monkeypatch.setenv("TORCH_TPU_MATMUL_PRECISION", "highest")
    settings.refresh()
    assert dots() == 6
    settings.emulate_matmul_rounding = False
    assert dots() == 1


@pytest.mark.parametrize("mode", MODES)
def test_programs_of_other_settings_are_kept(mode):
    x, y = torch.randn(5, 6, device="tpu"), torch.randn(6, 5, device="tpu")
    run = in_mode(mode, lambda x, y: (x @ y).sin() @ x)
    found = {}
    for setting, _ in SETTINGS:
        settings.matmul_precision = setting
        found[setting] = run(x, y).cpu()
    assert not any(torch.equal(found["medium"], found[other]) for other in ("high", "highest"))
    assert not torch.equal(found["high"], found["highest"])
    before = made()
    for setting in ("high", "medium", "highest"):
        settings.matmul_precision = setting
        assert torch.equal(run(x, y).cpu(), found[setting])
    assert made() == before


def test_exact_products_do_not_depend_on_the_precision():
    settings.emulate_matmul_rounding = False
    x = torch.randn(5, 5, device="tpu")
    expected = (x @ x).cpu()
    before = made()
    for setting, _ in SETTINGS:
        settings.matmul_precision = setting
        assert torch.equal((x @ x).cpu(), expected)
    assert made() == before


def test_operators_recorded_under_other_settings_share_a_program():
    x = torch.randn(6, 6)
    device = x.to("tpu")
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        settings.matmul_precision = "medium"
        rough = device @ device
        settings.matmul_precision = "highest"
        fine = device @ device
        assert_within(rough, torch.mm, x, x, 1)
        assert_within(fine, torch.mm, x, x, 6)


@pytest.mark.parametrize("how", ["function", "context"])
def test_compiled_functions_may_change_it(how):
    """The graph is broken there, so that what follows is compiled at the new precision."""

    def by_function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.set_float32_matmul_precision("highest")
        fine = x @ x
        torch.set_float32_matmul_precision("medium")
        return fine, x @ x

    def by_context(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.tpu.precision("HIGHEST"):
            fine = x @ x
        return fine, x @ x

    torch._dynamo.reset()
    x = torch.randn(6, 6)
    try:
        fine, rough = torch.compile(by_function if how == "function" else by_context, backend="tpu")(x.to("tpu"))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert_within(fine, torch.mm, x, x, 6)
    assert_within(rough, torch.mm, x, x, 1)


def test_sizes_that_vary():
    torch._dynamo.reset()
    weight = torch.randn(8, 8)
    compiled = torch.compile(lambda x, w: (x @ w).t() @ x, backend="tpu", dynamic=True)
    settings.matmul_precision = "high"
    for rows in (5, 9, 13):
        x = torch.randn(rows, 8)
        with mxu.Mxu(3):
            expected = (x.double() @ weight.double()).t() @ x.double()
        found = compiled(x.to("tpu"), weight.to("tpu")).cpu().double()
        exact = (x.double() @ weight.double()).t() @ x.double()
        assert (found - expected).norm() < 0.5 * (exact - expected).norm()


def test_autocast_decides_before_the_precision_does():
    torch.manual_seed(13)
    x, y = torch.randn(6, 24), torch.randn(24, 6)
    device = x.to("tpu"), y.to("tpu")
    for setting, passes in SETTINGS:
        settings.matmul_precision = setting
        with torch.autocast("tpu"):
            narrow = torch.mm(*device)
            with torch.autocast("tpu", enabled=False):
                assert_within(torch.mm(*device), torch.mm, x, y, passes)
            assert dots(torch.mm, *(t.bfloat16() for t in device)) == 1
        assert narrow.dtype is torch.bfloat16
        assert torch.equal(narrow.cpu(), (x.bfloat16() @ y.bfloat16()))
        with torch.autocast("tpu", dtype=torch.float16):
            assert dots(torch.mm, *(t.half() for t in device)) == min(passes, 3)


def test_what_programs_for_a_tpu_say(monkeypatch):
    """There nothing is written out: the compiler is told."""

    class Client:
        platform = "tpu"

    with monkeypatch.context() as patched:
        patched.setattr(configure.platform, "client", Client)
        said = {}
        for setting in ("default", "medium", "high", "highest"):
            settings.matmul_precision = setting
            configure.programs_change()
            with hlo.Function() as function:
                x = function.argument((2, 2), torch.float32)
                said[setting] = function.define([hlo.dot_general(x, x, contract=([1], [0]))])
    configure.programs_change()
    assert "precision = [DEFAULT, DEFAULT]" in said["default"] == said["medium"]
    assert "precision = [HIGH, HIGH]" in said["high"] and "precision = [HIGHEST, HIGHEST]" in said["highest"]
    assert all(text.count("dot_general") == 1 for text in said.values())
