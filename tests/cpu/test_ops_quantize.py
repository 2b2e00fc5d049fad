"""Fake quantization: per tensor and per channel, with fixed and with learned scales."""

from __future__ import annotations

import pytest
import torch
from op_checks import BF16, F16, F32, check, check_error, inf, nan, values
from torch.ao import quantization as quantize

import torch_tpu

SCALES = values([0.07, 0.1, 0.2], F32)
POINTS = values([-3, 0, 4], torch.int32)
ROUNDED = values([[-2.5, -0.35, nan], [0.25, 0.05, inf], [1.9, 0.15, -inf]])


def per_tensor(x):
    return torch.fake_quantize_per_tensor_affine(
        x, torch.tensor(0.1).to(x.device), POINTS(F32)[2].to(x.device), -15, 15
    )


def per_channel(points, axis):
    """Scale and zero point have no gradients here."""
    return lambda x: torch.fake_quantize_per_channel_affine(
        x, SCALES(F32).to(x.device), points(F32).to(x.device), axis, -8, 7
    )


def test_one_scale():
    for dtypes in ((F32, BF16), (F16,)):
        check("fake_quantize_per_tensor_affine", (4, 5), 0.1, 3, -15, 15, dtypes=dtypes)
    check("fake_quantize_per_tensor_affine_cachemask", ROUNDED, 0.1, 0, -8, 7, grad=False)
    check(per_tensor, (4, 5))
    for enabled in (0, 1):
        check(
            "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
            ROUNDED,
            values([0.1], F32),
            values([3], torch.int32),
            values([enabled]),
            -8,
            7,
            grad=False,
        )
    check_error("fake_quantize_per_tensor_affine", (4,), 0.1, 9, -8, 7, match="zero_point.* must be between")
    check_error("fake_quantize_per_tensor_affine", (4,), 0.1, 0, 8, -7, match="quant_min.* should be less")


def test_another_scale_is_data(counters):
    x = torch.linspace(-1, 1, 8, device="tpu")
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)
    before = counters.compiles + counters.disk_hits
    torch.fake_quantize_per_tensor_affine(x, 0.3, 0, -8, 7)
    assert counters.compiles + counters.disk_hits == before


def test_a_scale_for_each_channel():
    check(per_channel(POINTS, 1), (4, 3, 2))
    check(per_channel(POINTS, 0), (3,))
    check(per_channel(values([-2.5, 0.5, 1.25], F32), 0), (3, 4))
    check_error(per_channel(POINTS, 1), (3, 4), match="not consistent")
    check_error(per_channel(POINTS, -1), (4, 3), match="axis")


@pytest.mark.parametrize("point", [-30.2, -2.5, 0.4, 3.6, 30.0])
def test_learned_scales(point):
    one = values([0.1], F32), values([point], F32)
    each = SCALES, values([point, 0.0, -point], F32)
    check("_fake_quantize_learnable_per_tensor_affine", (4, 5), *one, -8, 7, 0.5)
    check("_fake_quantize_learnable_per_channel_affine", (4, 3), *each, 1, -8, 7, 0.5)


def test_a_network_trains_quantized():
    losses = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        fake = quantize.FakeQuantize.with_args(
            observer=quantize.MinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8
        )
        model.qconfig = quantize.QConfig(activation=fake, weight=fake)
        model = quantize.prepare_qat(model.train()).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(16, 6).to(device), torch.randn(16, 3).to(device)
        for _ in range(4):
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert not torch_tpu.stats()["fallbacks"]
