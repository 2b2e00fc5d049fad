"""Automatic mixed precision: autocast regions, custom functions, gradient scaling."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn

F = nn.functional


def test_default_is_bfloat16_in_every_thread():
    x = torch.randn(4, 4, device="tpu")
    seen = []

    def look() -> None:
        with torch.autocast("tpu"):
            seen.append((x @ x).dtype)

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [torch.bfloat16] * 2 and torch.get_autocast_dtype("tpu") is torch.bfloat16


def test_regions_nest():
    x = torch.randn(4, 4, device="tpu")
    assert not torch.is_autocast_enabled("tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("tpu") and (x @ x).dtype is torch.bfloat16
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype is torch.float32
        with torch.autocast("tpu", dtype=torch.float16):
            assert (x @ x).dtype is torch.float16
        assert (x @ x).dtype is torch.bfloat16
    assert (x @ x).dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operators_by_list(dtype):
    x, half = torch.rand(4, 4, device="tpu"), torch.rand(4, 4, device="tpu").to(dtype)
    image, weight = torch.rand(1, 2, 5, 5, device="tpu"), torch.rand(3, 2, 3, 3, device="tpu")
    with torch.autocast("tpu", dtype=dtype):
        for made in (torch.mm(x, x), F.linear(x, x), F.conv2d(image, weight), torch.einsum("ij,jk", x, x)):
            assert made.dtype is dtype
        for made in (half.softmax(-1), half.exp(), half.sum(), half.cumsum(0), F.mse_loss(half, half), half.norm()):
            assert made.dtype is torch.float32
        assert torch.cat([x, half]).dtype is torch.float32 and torch.stack([half, x]).dtype is torch.float32
        assert (half + half).dtype is dtype and F.relu(half).dtype is dtype
        assert torch.mm(x.double(), x.double()).dtype is torch.float64
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(x, x)


def test_values_and_gradients_against_the_cpu():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    results = []
    for device in ("cpu", "tpu"):
        model.to(device).zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x.to(device)), torch.tensor([0, 1, 2, 3, 0], device=device))
        loss.backward()
        results.append([loss.item()] + [p.grad.cpu().clone() for p in model.parameters()])
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-2)
    for cpu, tpu in zip(results[0][1:], results[1][1:], strict=True):
        assert tpu.dtype is torch.float32
        torch.testing.assert_close(cpu, tpu, rtol=0.05, atol=0.01)


def test_a_dtype_that_is_not_supported():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for dtype in (torch.complex32, torch.int32, torch.float8_e4m3fn):
            with torch.autocast("tpu", dtype=dtype):
                assert not torch.is_autocast_enabled("tpu")
    assert len(caught) == 3 and all("the target dtype is not supported" in str(one.message) for one in caught)


def test_custom_functions():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert x.dtype is torch.float32 and not torch.is_autocast_enabled("tpu")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, grad):
            assert not torch.is_autocast_enabled("tpu")
            return grad * 2

    x = torch.ones(3, dtype=torch.bfloat16, device="tpu", requires_grad=True)
    with torch.autocast("tpu"):
        y = Double.apply(x)
    y.sum().backward()
    assert y.dtype is torch.float32 and x.grad.dtype is torch.bfloat16 and x.grad.tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("error:.*falls back")
def test_scaler():
    scaler = torch.amp.GradScaler("tpu", init_scale=256.0, growth_interval=2)
    weight = nn.Parameter(torch.ones(3, device="tpu"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    history = []
    for step in range(4):
        optimizer.zero_grad()
        loss = weight.square().sum() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([weight], 100.0)
        scaler.step(optimizer)
        scaler.update()
        history.append((round(weight[0].item(), 4), scaler.get_scale()))
    assert history == [(0.8, 256), (0.8, 128), (0.64, 128), (0.512, 256)]
    other = torch.amp.GradScaler("tpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 256
