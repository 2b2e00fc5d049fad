"""Recurrent cells and networks with CPU weights copied: LSTM, GRU, RNN; layers, directions, projections, packing."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo
from op_checks import check
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

import torch_tpu
from torch_tpu import settings

NETWORKS = {
    "lstm": lambda *args, **options: nn.LSTM(*args, **options),
    "projecting lstm": lambda *args, **options: nn.LSTM(*args, proj_size=2, **options),
    "gru": lambda *args, **options: nn.GRU(*args, **options),
    "rnn": lambda *args, **options: nn.RNN(*args, **options),
    "rnn of relu": lambda *args, **options: nn.RNN(*args, nonlinearity="relu", **options),
}
every_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


def run(module):
    twin = copy.deepcopy(module).to("tpu")
    return lambda *inputs: (twin if inputs[0].is_tpu else module)(*inputs)


def results(module, x, lengths=None, states=None, sort=True):
    """The output, the last states and the gradients of the input and of all weights, on the CPU."""
    device = next(module.parameters()).device
    x = x.to(device).requires_grad_()
    if lengths is None:
        out, last = module(x, states)
    else:
        packed = pack_padded_sequence(x, lengths, batch_first=module.batch_first, enforce_sorted=sort)
        out, last = module(packed, states)
        out = pad_packed_sequence(out, batch_first=module.batch_first)[0]
    found = [out, *(last if isinstance(last, tuple) else [last])]
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape).to(device) for y in found]
    total = sum((y * weight).abs().sum() for y, weight in zip(found, weights, strict=True))
    grads = torch.autograd.grad(total, [x, *(weight for weight in module.parameters() if weight.requires_grad)])
    return [y.detach().cpu() for y in (*found, *grads)]


def compare(module, *shape, states=False, **options):
    torch.manual_seed(0)
    device, dtype = copy.deepcopy(module).to("tpu"), next(module.parameters()).dtype
    x = torch.randn(*shape, dtype=dtype)
    given = [None, None]
    if states:
        last = module(x)[1]
        drawn = tuple(map(torch.randn_like, last)) if isinstance(last, tuple) else torch.randn_like(last)
        given = [tuple(y.to("tpu") for y in drawn) if isinstance(drawn, tuple) else drawn.to("tpu"), drawn]
    with settings.override(fallback="error"):
        found = results(device, x, states=given[0], **options)
    assert_close(found, results(module, x, states=given[1], **options))


@pytest.mark.parametrize("kind", (nn.LSTMCell, nn.GRUCell, nn.RNNCell))
def test_cells(kind):
    check(run(kind(3, 4)), (2, 3))


@every_network
def test_networks(make):
    compare(make(3, 4, num_layers=3, bidirectional=True), 5, 2, 3, states=True)
    compare(make(3, 4, batch_first=True, bias=False), 2, 4, 3)


@every_network
def test_unusual_sizes(make):
    compare(make(3, 4), 5, 3)  # no batch
    compare(make(3, 4, bidirectional=True), 1, 2, 3)
    compare(make(3, 4), 4, 0, 3)


@every_network
def test_packed(make):
    network = make(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    compare(network, 3, 5, 3, lengths=[5, 3, 1])
    compare(network, 3, 5, 3, lengths=[2, 5, 3], sort=False, states=True)


@pytest.mark.parametrize("kind", (nn.LSTM, nn.GRU, nn.RNN))
def test_other_dtypes(kind):
    compare(kind(3, 4).double(), 4, 2, 3)
    narrow = kind(3, 4).bfloat16()
    x = torch.randn(4, 2, 3, dtype=torch.bfloat16)
    found, exact = results(copy.deepcopy(narrow).to("tpu"), x), results(copy.deepcopy(narrow).double(), x.double())
    assert all(y.dtype is torch.bfloat16 for y in found)
    for y, truth in zip(found, exact, strict=True):
        assert_close(y.double(), truth, rtol=0.02, atol=0.02 * truth.abs().max().item())


def test_complex_numbers():
    compare(nn.RNN(3, 4, bidirectional=True, dtype=torch.complex64), 4, 2, 3)


def test_only_some_weights_have_gradients():
    network = nn.LSTM(3, 4, num_layers=2)
    for weight in (network.weight_ih_l0, network.bias_hh_l1, network.weight_hh_l1):
        weight.requires_grad_(False)
    compare(network, 4, 2, 3)


def test_hooks_see_the_gradients():
    seen = []
    network = nn.GRU(3, 4).to("tpu")
    network.weight_hh_l0.register_hook(lambda grad: seen.append(grad.shape))
    network.register_full_backward_hook(lambda module, into, out: seen.append(out[0].shape))
    network(torch.randn(5, 2, 3, device="tpu", requires_grad=True))[0].sum().backward()
    assert sorted(seen) == [(5, 2, 4), (12, 4)]


@every_network
def test_gradients_of_gradients(make):
    """The lengths and the direction matter, and one argument that is computed from another."""
    host = make(3, 3, bidirectional=True).double()
    device = copy.deepcopy(host).to("tpu")
    x = torch.randn(4, 2, 3, dtype=torch.float64)

    def twice(module, x):
        x = x.requires_grad_() * module.weight_ih_l0[:3].sum(0)
        out = module(pack_padded_sequence(x, [4, 2]))[0]
        weights = list(module.parameters())
        first = torch.autograd.grad(out.data.square().sum(), weights, create_graph=True)
        return [y.cpu() for y in torch.autograd.grad(sum(grad.square().sum() for grad in first), weights)]

    assert_close(twice(device, x.to("tpu")), twice(host, x))


def test_transforms():
    host = nn.GRU(3, 4).double()
    device, x = copy.deepcopy(host).to("tpu"), torch.randn(4, 2, 3, dtype=torch.float64)

    def gradients(module, x):
        weights = dict(module.named_parameters())
        return torch.func.grad(lambda w: torch.func.functional_call(module, w, (x,))[0].square().sum())(weights)

    def forward(module, x):
        return torch.func.jvp(lambda x: module(x)[0], (x,), (torch.ones_like(x),))[1]

    assert_close({name: y.cpu() for name, y in gradients(device, x.to("tpu")).items()}, gradients(host, x))
    assert_close(forward(device, x.to("tpu")).cpu(), torch.autograd.functional.jvp(
        lambda x: host(x)[0], x, torch.ones_like(x)
    )[1])  # fmt: skip


def test_autocast():
    network = nn.LSTM(3, 4, proj_size=2).to("tpu")
    with torch.autocast("tpu"):
        out, last = network(torch.randn(4, 2, 3, device="tpu"))
    assert {y.dtype for y in (out, *last)} == {torch.bfloat16}
    out.float().sum().backward()
    assert all(weight.grad.dtype is torch.float32 for weight in network.parameters())


def test_dropout_is_between_layers():
    """All of it is dropped: then the host and the device draw the same."""
    compare(nn.GRU(3, 4, num_layers=2, dropout=1.0), 5, 2, 3)
    network = nn.GRU(3, 4, num_layers=2, dropout=0.5).to("tpu")
    x = torch.randn(5, 2, 3, device="tpu")
    assert not torch.equal(network(x)[0], network(x)[0])
    network.eval()
    assert torch.equal(network(x)[0], network(x)[0])


def test_inference_mode():
    host = nn.LSTM(3, 4)
    device, x = copy.deepcopy(host).to("tpu"), torch.randn(5, 2, 3)
    with torch.inference_mode():
        report = torch_tpu.explain(device, x.to("tpu"))
        assert_close(device(x.to("tpu"))[0].cpu(), host(x)[0])
    assert report.text(["stablehlo"]).count("stablehlo.while") == 1


@pytest.mark.parametrize("mode", ["fused", "debug"])
def test_modes(mode):
    with settings.override(eager_mode=mode):
        compare(nn.LSTM(3, 4, bidirectional=True), 5, 3, 3, lengths=[5, 3, 1])


class Compiled(nn.Module):
    """A network in a graph of Dynamo, which makes none of the modules of PyTorch itself."""

    def __init__(self, network):
        super().__init__()
        self.network, self.batch_first = network, network.batch_first
        self.call = torch.compile(lambda *args: network(*args), fullgraph=True)

    def forward(self, *args):
        with torch._dynamo.config.patch(allow_rnn=True):
            return self.call(*args)


@every_network
def test_compiled(make):
    host = make(3, 4, num_layers=2, bidirectional=True)
    device, x = Compiled(copy.deepcopy(host).to("tpu")), torch.randn(5, 2, 3)
    with settings.override(fallback="error"):
        assert_close(results(device, x), results(host, x))


def lines(module, x):
    """How long the programs of a forward and backward pass are."""

    def step(x):
        module(x)[0].sum().backward()

    return torch_tpu.explain(step, x.to("tpu")).text(["stablehlo"]).count("\n")


@every_network
@pytest.mark.parametrize("compiled", [False, True])
def test_programs_do_not_grow_with_the_steps(make, compiled):
    torch._dynamo.reset()
    found = []
    for steps in (5, 50):
        network = make(3, 4).to("tpu")
        found.append(lines(Compiled(network) if compiled else network, torch.randn(steps, 2, 3)))
    assert found[0] == found[1] > 0


def test_lengths_are_data():
    """Packed sequences of other lengths run the same programs, if they have as many elements, steps and sequences."""
    network, rows = nn.GRU(3, 4, bidirectional=True).to("tpu"), torch.randn(11, 3, device="tpu")

    def step(*batch_sizes):
        network(PackedSequence(rows, torch.tensor(batch_sizes)))[0].data.sum().backward()
        network.zero_grad()
        return torch_tpu.stats()["compiles"]

    assert step(3, 3, 2, 2, 1) == step(3, 2, 2, 2, 2)


def test_errors():
    network = nn.LSTM(3, 4).to("tpu")
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
        network(torch.randn(0, 2, 3, device="tpu"))
    state = torch.zeros(1, 2, 4, device="tpu", dtype=torch.float64)
    with pytest.raises(RuntimeError, match="one dtype"):
        network(torch.randn(5, 2, 3, device="tpu"), (state, state))
