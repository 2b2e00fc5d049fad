"""Recurrent cells and networks with CPU weights copied: LSTM, GRU, RNN; layers, directions, projections, packing."""

from __future__ import annotations

import copy

import pytest
import torch
from op_checks import check
from torch import nn


def run(module):
    twin = copy.deepcopy(module).to("tpu")
    return lambda *inputs: (twin if inputs[0].is_tpu else module)(*inputs)


@pytest.mark.parametrize("kind", (nn.LSTMCell, nn.GRUCell, nn.RNNCell))
def test_cells(kind):
    check(run(kind(3, 4)), (2, 3))


@pytest.mark.parametrize("kind", (nn.LSTM, nn.GRU, nn.RNN))
def test_networks(kind):
    check(run(kind(3, 4, num_layers=2)), (5, 2, 3))
    check(run(kind(3, 4, bidirectional=True, batch_first=True)), (2, 4, 3))
    check(run(kind(3, 4, bias=False)), (3, 3))


def test_weights_get_gradients():
    torch.manual_seed(0)
    host = nn.LSTM(3, 4)
    device = copy.deepcopy(host).to("tpu")
    x = torch.randn(4, 2, 3)
    host(x)[0].sum().backward()
    device(x.to("tpu"))[0].sum().backward()
    for one, other in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_packed():
    host = nn.GRU(3, 4)
    device = copy.deepcopy(host).to("tpu")
    x = torch.randn(4, 2, 3)

    def pack(module, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, [4, 2])
        return nn.utils.rnn.pad_packed_sequence(module(packed)[0])[0]

    torch.testing.assert_close(pack(device, x.to("tpu")).cpu(), pack(host, x))


def test_projection():
    check(run(nn.LSTM(3, 4, proj_size=2)), (3, 2, 3))
