"""The front door: thirty short programs end to end, in under a minute. Run first."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import torch_tpu


def test_a_tensor():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="tpu")
    assert x.is_tpu and x.device == torch.device("tpu", 0) and (x + x).tolist() == [[2, 4], [6, 8]]


def test_there_and_back():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        x = torch.randn(3, 4).to(dtype)
        assert torch.equal(x.to("tpu").cpu(), x)


def test_numbers_out():
    x = torch.tensor([1.5, 2.5], device="tpu")
    assert x.sum().item() == 4.0 and float(x[0]) == 1.5 and int(x.argmax()) == 1 and bool((x > 0).all())


def test_the_device_is_reported():
    assert torch.tpu.is_available() and torch.tpu.device_count() >= 1 and torch.accelerator.is_available()


def test_printing():
    assert repr(torch.tensor([1.0, -2.5], device="tpu")) == "tensor([ 1.0000, -2.5000], device='tpu:0')"
    assert "size=(0, 2)" in repr(torch.zeros(0, 2, device="tpu"))


def test_views_share_memory():
    x = torch.zeros(3, 4, device="tpu")
    x.t()[1] = 1
    x[2:].mul_(5)
    assert x.sum(0).tolist() == [0, 7, 0, 0]


def test_in_place_through_an_alias():
    x = torch.arange(4, device="tpu")
    y = x.view(2, 2)
    x += 1
    assert y.tolist() == [[1, 2], [3, 4]]


def test_channels_last():
    x = torch.rand(1, 2, 3, 3).to("tpu", memory_format=torch.channels_last)
    assert (x * 2).is_contiguous(memory_format=torch.channels_last)


def test_promotion():
    x = torch.arange(3, device="tpu")
    assert (x / 2).dtype is torch.float32 and (x * 2).dtype is torch.int64 and (x + 1.5).tolist() == [1.5, 2.5, 3.5]


def test_errors():
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(3, device="tpu") + torch.ones(4, device="tpu")


def test_matmul():
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    assert_close((x.to("tpu") @ y.to("tpu")).cpu(), x @ y)


def test_reductions():
    x = torch.randn(3, 4)
    for call in (torch.sum, torch.mean, torch.amax, torch.std):
        assert_close(call(x.to("tpu"), 1).cpu(), call(x, 1))


def test_autograd():
    x = torch.tensor([1.0, 2.0], device="tpu", requires_grad=True)
    (x**3).sum().backward()
    assert x.grad.tolist() == [3, 12]


def test_second_derivative():
    x = torch.tensor(2.0, device="tpu", requires_grad=True)
    (first,) = torch.autograd.grad(x**3, x, create_graph=True)
    assert torch.autograd.grad(first, x)[0].item() == 12


def test_index_put():
    x = torch.zeros(3, 4, device="tpu")
    x[torch.tensor([0, 2]), 1] = torch.tensor([5.0, 7.0], device="tpu")
    x[x > 6] = -1
    assert x[:, 1].tolist() == [5, 0, -1]


def test_nonzero():
    x = torch.tensor([0, 3, 0, 4], device="tpu")
    assert x.nonzero().tolist() == [[1], [3]] and x[x > 3].tolist() == [4]


def test_sort_and_unique():
    x = torch.tensor([3, 1, 2, 1], device="tpu")
    assert x.sort()[0].tolist() == [1, 1, 2, 3] and x.unique().tolist() == [1, 2, 3] and x.topk(1)[1].item() == 0


def test_random_numbers_are_reproducible():
    torch.manual_seed(3)
    x = torch.rand(4, device="tpu")
    state = torch.tpu.get_rng_state()
    y = torch.randn(4, device="tpu")
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.randn(4, device="tpu"), y)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4, device="tpu"), x)


def network():
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return host, copy.deepcopy(host).to("tpu")


def train(model, optimizer, steps=5):
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(6, 4).to(model[0].weight.device), torch.randint(2, (6,)).to(model[0].weight.device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ("SGD", "AdamW"))
def test_training_equals_the_cpu(kind):
    host, device = network()
    optimizers = [getattr(torch.optim, kind)(model.parameters(), lr=0.1) for model in (host, device)]
    assert train(device, optimizers[1]) == pytest.approx(train(host, optimizers[0]), rel=1e-4)
    for one, other in zip(device.parameters(), host.parameters(), strict=True):
        assert_close(one.detach().cpu(), other.detach())


def test_a_second_step_compiles_nothing():
    _, device = network()
    optimizer = torch.optim.SGD(device.parameters(), lr=0.1)
    train(device, optimizer, 2)
    before = torch_tpu.stats()
    train(device, optimizer, 2)
    after = torch_tpu.stats()
    assert after["compiles"] + after["disk_hits"] == before["compiles"] + before["disk_hits"]


def test_save_and_load():
    host, device = network()
    file = io.BytesIO()
    torch.save(device.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    assert all(t.is_tpu for t in loaded.values())
    file.seek(0)
    host.load_state_dict(torch.load(file, map_location="cpu"))
    assert torch.equal(host[0].weight, device[0].weight.cpu())


def test_a_convolutional_step():
    torch.manual_seed(0)
    host = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)
    )
    device = copy.deepcopy(host).to("tpu")
    x = torch.randn(2, 1, 6, 6)
    for model in (host, device):
        model(x.to(model[0].weight.device)).square().sum().backward()
    for one, other in zip(device.parameters(), host.parameters(), strict=True):
        assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-4)
    assert_close(device[1].running_var.cpu(), host[1].running_var)


def test_attention():
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    found = F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), v.to("tpu"), is_causal=True)
    assert_close(found.cpu(), F.scaled_dot_product_attention(q, k, v, is_causal=True))


def test_an_embedding_and_a_norm():
    torch.manual_seed(0)
    host = nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4))
    device = copy.deepcopy(host).to("tpu")
    ids = torch.tensor([[1, 2, 1]])
    for model, where in ((host, "cpu"), (device, "tpu")):
        model(ids.to(where)).square().sum().backward()
    assert_close(device[0].weight.grad.cpu(), host[0].weight.grad)


def test_linear_algebra_and_transforms():
    x = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
    assert_close(
        torch.linalg.solve(x.to("tpu"), torch.ones(2, device="tpu")).cpu(), torch.linalg.solve(x, torch.ones(2))
    )
    assert_close(torch.fft.rfft(x.to("tpu")).cpu(), torch.fft.rfft(x))


def test_autocast():
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="tpu") @ torch.ones(2, 2, device="tpu")).dtype is torch.bfloat16


def test_copies():
    x = torch.arange(3.0, device="tpu")
    y, z = copy.deepcopy(x), x.clone()
    x.zero_()
    assert y.tolist() == z.tolist() == [0, 1, 2] and x.numpy(force=True).sum() == 0


def test_empty_tensors():
    x = torch.empty(0, 3, device="tpu")
    assert x.sum().item() == 0 and torch.cat([x, torch.ones(1, 3, device="tpu")]).shape == (1, 3)


def test_nothing_ran_on_the_cpu():
    torch_tpu.reset_stats()
    x = torch.rand(8, 8, device="tpu")
    (x @ x).softmax(-1).cumsum(0).sort()[0].sum().item()
    stats = torch_tpu.stats()
    assert stats["executions"] > 0 and not stats["fallbacks"]


def test_events_and_memory():
    event = torch.tpu.Event()
    held = torch.ones(1 << 16, device="tpu")
    event.record()
    event.synchronize()
    assert event.query() and torch.tpu.memory_allocated() >= held.nbytes
