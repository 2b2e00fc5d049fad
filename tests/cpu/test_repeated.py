"""Layers as a loop."""

import copy

import pytest
import torch

import torch_tpu.aot
from torch_tpu.compile.repeated import Repeated, alike, fold_layers


class Block(torch.nn.Module):
    def __init__(self, width, index=0, act="gelu"):
        super().__init__()
        self.layer_idx = index
        self.act = act
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x, scale=1.0):
        return (x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * scale, None)


class Model(torch.nn.Module):
    def __init__(self, depth=6, width=16):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(width, i) for i in range(depth)])
        self.head = torch.nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            found = layer(x, scale=0.5)
            x = found[0] if isinstance(found, tuple) else found
        return self.head(x)


def gradients(model, x):
    model(x).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_folded_model_computes_the_same(compiled):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 5, 16)
    folded = fold_layers(copy.deepcopy(model)).to("tpu")
    expected = gradients(model, x)
    called = torch.compile(folded, fullgraph=True, dynamic=False) if compiled else folded
    torch.testing.assert_close(called(x.to("tpu")).cpu(), model(x))
    got = gradients(called, x.to("tpu"))
    got = {name.removeprefix("_orig_mod."): value.cpu() for name, value in got.items()}
    stacked = torch.stack([expected[f"layers.{i}.up.weight"] for i in range(6)])
    torch.testing.assert_close(got["layers.0.up__weight"], stacked)
    torch.testing.assert_close(got["head.weight"], expected["head.weight"])


def test_a_deeper_model_is_no_larger_program():
    sizes = []
    for depth in (4, 16):
        folded = fold_layers(Model(depth)).to("meta")
        called = torch.compile(folded, fullgraph=True, dynamic=False)
        step = torch_tpu.aot.compile(called, (torch.empty(3, 5, 16),), optimizer=torch.optim.SGD, loss=torch.sum)
        sizes.append(len(step.stablehlo))
        torch._dynamo.reset()
    assert sizes[1] < 1.1 * sizes[0]


def test_only_layers_that_are_alike_are_folded():
    assert alike([Block(8, 0), Block(8, 1)])
    assert not alike([Block(8), Block(16)])
    assert not alike([Block(8), Block(8, act="relu")])
    assert not alike([torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)])
    assert not alike([torch.nn.GELU(), torch.nn.GELU()])
    with pytest.raises(ValueError, match="same class"):
        Repeated([Block(8), Block(16)])
    with pytest.raises(ValueError, match="Linear has no list"):
        fold_layers(torch.nn.Linear(2, 2))
