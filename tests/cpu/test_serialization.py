"""Copies and files: deepcopy, pickle, torch.save and torch.load, safetensors, storages."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn


def values() -> dict[str, torch.Tensor]:
    x = torch.randn(4, 4, device="tpu")
    return {
        "whole": x,
        "row": x[1],
        "transposed": x.t(),
        "bfloat16": x.to(torch.bfloat16),
        "integers": torch.arange(5, device="tpu"),
        "complex": torch.randn(2, dtype=torch.complex64, device="tpu"),
        "conjugate": torch.randn(2, dtype=torch.complex64, device="tpu").conj(),
        "bools": torch.tensor([True, False], device="tpu"),
        "float8": torch.ones(3, device="tpu").to(torch.float8_e4m3fn),
        "none": torch.empty(0, 3, device="tpu"),
    }


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride()) and torch.equal(
        x.cpu().resolve_conj().reshape(-1).view(torch.uint8), y.cpu().resolve_conj().reshape(-1).view(torch.uint8)
    )


def test_copies_are_independent():
    x = torch.randn(3, 4, device="tpu")
    assert copy.copy(x).data_ptr() == x.data_ptr()
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert made.device == x.device and same(made, x) and made.data_ptr() != x.data_ptr()
        made.zero_()
        assert x.abs().sum() > 0
    assert same(pickle.loads(pickle.dumps(x.t())), x.t())
    parameter = copy.deepcopy(nn.Parameter(x))
    assert type(parameter) is nn.Parameter and parameter.requires_grad and parameter.is_tpu
    assert type(pickle.loads(pickle.dumps(parameter))) is nn.Parameter


def test_deepcopy_keeps_sharing():
    x = torch.randn(3, 4, device="tpu")
    whole, row = copy.deepcopy([x, x[0]])
    row.fill_(3)
    assert (whole[0] == 3).all() and not (x[0] == 3).all()
    layer = nn.Linear(2, 2).to("tpu")
    layer.other = layer.weight
    copied = copy.deepcopy(layer)
    assert copied.other is copied.weight and copied.weight is not layer.weight


PLACES = {
    "same": (None, "tpu"),
    "cpu": ("cpu", "cpu"),
    "tpu": ("tpu", "tpu"),
    "tpu:0": ("tpu:0", "tpu"),
    "device": (torch.device("tpu"), "tpu"),
    "function": (lambda storage, place: storage, "cpu"),
    "mapping": ({"tpu:0": "cpu"}, "cpu"),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("place", PLACES)
def test_save_and_load(zipped, place):
    saved = values()
    if not zipped:
        del saved["float8"]  # PyTorch's old format has no such type
    buffer = io.BytesIO()
    torch.save(saved, buffer, _use_new_zipfile_serialization=zipped)
    buffer.seek(0)
    map_location, device = PLACES[place]
    loaded = torch.load(buffer, map_location=map_location)
    for name, tensor in saved.items():
        assert loaded[name].device.type == device, name
        assert same(loaded[name], tensor), name
    loaded["row"].zero_()
    assert (loaded["whole"][1] == 0).all()  # they share memory again


def test_load_to_the_device_and_elsewhere(tmp_path):
    torch.save({"x": torch.arange(3.0)}, tmp_path / "cpu.pt")
    assert torch.load(tmp_path / "cpu.pt", map_location="tpu")["x"].is_tpu
    torch.save({"x": torch.arange(3.0, device="tpu")}, tmp_path / "tpu.pt")
    assert torch.load(tmp_path / "tpu.pt", map_location="meta")["x"].is_meta
    assert torch.load(tmp_path / "tpu.pt", map_location="cpu", mmap=True)["x"].tolist() == [0, 1, 2]
    assert torch.load(tmp_path / "tpu.pt", weights_only=True)["x"].is_tpu


def test_a_checkpoint_loads_where_the_backend_is_missing(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2, device="tpu")).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.pt")
    code = (
        f"import sys, torch; loaded = torch.load({str(tmp_path / 'x.pt')!r}, map_location='cpu')\n"
        "assert 'torch_tpu' not in sys.modules\n"
        "assert all(t.device.type == 'cpu' for t in loaded['model'].values())\n"
        "print(loaded['model']['0.weight'].tolist())"
    )
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(model[0].weight.tolist())
    fresh = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("tpu")
    state = torch.load(tmp_path / "x.pt")
    fresh.load_state_dict(state["model"])
    other = torch.optim.AdamW(fresh.parameters())
    other.load_state_dict(torch.load(tmp_path / "x.pt", map_location="cpu")["optimizer"])
    assert next(iter(other.state.values()))["exp_avg"].is_tpu
    assert all(same(a, b) for a, b in zip(fresh.state_dict().values(), model.state_dict().values(), strict=True))


def test_whole_modules_are_pickled(tmp_path):
    model = nn.Linear(2, 2).to("tpu")
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert loaded.weight.is_tpu and same(loaded.weight, model.weight)


@pytest.mark.parametrize("first", ["safetensors", "safetensors.torch", "accelerate.state", "accelerate.utils.modeling"])
def test_libraries_may_be_imported_before_torch(first):
    code = f"import {first}, torch; print(torch.ones(2, device='tpu').sum().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "2.0", done.stderr


def test_safetensors(tmp_path):
    import safetensors.torch as safetensors
    from safetensors import safe_open

    saved = {"a": torch.randn(3, 3, device="tpu"), "b": torch.ones(2, dtype=torch.bfloat16, device="tpu")}
    safetensors.save_file(saved, tmp_path / "x.safetensors")
    loaded = safetensors.load_file(tmp_path / "x.safetensors")
    there = safetensors.load_file(tmp_path / "x.safetensors", device="tpu")
    assert all(value.device.type == "tpu" and torch.equal(value.cpu(), loaded[name]) for name, value in there.items())
    with safe_open(tmp_path / "x.safetensors", "pt", device="tpu:0") as file:
        assert file.get_tensor("a").is_tpu and same(file.get_tensor("a"), saved["a"])
    model, other = torch.nn.Linear(3, 2, device="tpu"), torch.nn.Linear(3, 2, device="tpu")
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    safetensors.load_model(other, tmp_path / "model.safetensors", device="tpu")
    assert torch.equal(other.weight.cpu(), model.weight.cpu())
    assert all(same(loaded[name], saved[name].cpu()) for name in saved)
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file({"a": saved["a"], "same": saved["a"]}, tmp_path / "y.safetensors")

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight

    model = Tied().to("tpu")
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    other = Tied().to("tpu")
    safetensors.load_model(other, str(tmp_path / "model.safetensors"))
    assert same(other.two.weight, model.one.weight) and other.two.weight is other.one.weight


def test_storages():
    x = torch.arange(6.0, device="tpu")
    storage = x.untyped_storage()
    assert storage.nbytes() == storage.size() == len(storage) == 24 and storage.device == x.device
    assert storage.data_ptr() == x.data_ptr() != torch.ones(3, device="tpu").data_ptr()
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert storage.cpu().tolist() == torch.arange(6.0).untyped_storage().tolist()
    made = torch.UntypedStorage(24, device="tpu")
    made.copy_(storage)
    y = torch.empty(0, device="tpu").set_(made, 0, (6,), (1,))
    assert y.tolist() == x.tolist()
    made.fill_(0)
    assert y.tolist() == [0] * 6
    host = torch.UntypedStorage(24)
    host.copy_(storage)
    assert host.tolist() == storage.tolist()
    assert torch.arange(6.0).untyped_storage().to(device="tpu").tolist() == storage.tolist()
    small = torch.arange(6, dtype=torch.uint8, device="tpu").untyped_storage()
    small[1] = 9
    assert small[1] == 9 and small.tolist() == [0, 9, 2, 3, 4, 5]
    assert x.storage().tolist() == x.tolist() and x.storage()[2] == 2


def test_addresses_tell_tensors_apart():
    x = torch.zeros(1000, device="tpu")
    y = torch.zeros(10, device="tpu")
    begin, end = x.data_ptr(), x.data_ptr() + x.nbytes
    assert x[3:].data_ptr() == begin + 12 and not begin <= y.data_ptr() < end


def test_storage_sizes():
    x = torch.arange(6.0, device="tpu")
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(24)
    x.copy_(torch.arange(6.0))
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    x.untyped_storage().resize_(48)
    assert x.resize_(12)[:6].tolist() == [0, 1, 2, 3, 4, 5]
    x.resize_(3)
    assert x.tolist() == [0, 1, 2] and x.untyped_storage().nbytes() == 48
    x.resize_(2, 2).fill_(1)
    assert x.tolist() == [[1, 1], [1, 1]]
    y = torch.arange(4.0, device="tpu")
    y.untyped_storage().resize_(8)
    assert y.resize_(2).tolist() == [0, 1]


def test_data_and_set():
    x = torch.ones(3, device="tpu")
    view = x.view(3)
    x.data = torch.zeros(5, device="tpu")
    assert x.shape == (5,) and view.tolist() == [1, 1, 1]
    x.data.add_(1)
    assert x.tolist() == [1] * 5
    parameter = nn.Parameter(torch.ones(2))
    parameter.data = parameter.data.to("tpu")
    assert parameter.is_tpu and (parameter * 2).sum().backward() is None and parameter.grad.is_tpu
    parameter.data = torch.ones(2, dtype=torch.bfloat16, device="tpu")
    assert parameter.dtype is torch.bfloat16
    y = torch.empty(0, device="tpu").set_(x)
    y.add_(1)
    assert x.tolist() == [2] * 5 and y.is_set_to(x)
    y.set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    assert y.shape == (2, 2) and y.data_ptr() == x.data_ptr() + 4
    assert y.set_().shape == (0,)
    with pytest.raises(RuntimeError, match="expected a storage on tpu, got one on cpu"):
        y.set_(torch.ones(2))
    with pytest.raises(RuntimeError, match="type int"):
        x.set_(torch.ones(2, dtype=torch.int32, device="tpu"))
