"""Convolutions: ranks, strides, padding, dilation, groups, transposed; layouts; gradients of all three."""

from __future__ import annotations

import copy

import pytest
import torch
from op_checks import BF16, C64, F32, F64, channels_last, check, check_error, strided


def test_ranks():
    check("conv1d", (2, 3, 8), (4, 3, 3), (4,), dtypes=(F32, BF16))
    check("conv2d", (2, 3, 6, 5), (4, 3, 3, 2), (4,), dtypes=(F32, F64))
    check("conv3d", (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), (3,))
    check("conv2d", (3, 6, 5), (4, 3, 3, 2))
    check("conv1d", (1, 2, 5), (3, 2, 2), dtypes=(C64,))


def test_options():
    check("conv2d", (2, 4, 7, 7), (6, 2, 3, 3), (6,), stride=2, padding=1, groups=2)
    check("conv2d", (1, 2, 8, 8), (3, 2, 3, 3), padding=(2, 0), dilation=2)
    check("conv2d", (1, 4, 6, 6), (8, 1, 3, 3), groups=4)
    check("conv1d", (1, 2, 7), (3, 2, 4), padding="same")
    check("conv1d", (1, 2, 7), (3, 2, 3), stride=3)


def test_transposed():
    check("conv_transpose1d", (2, 3, 4), (3, 2, 3), (2,), stride=2, dtypes=(F32, BF16))
    check("conv_transpose2d", (1, 4, 3, 3), (4, 2, 3, 2), (4,), stride=2, padding=1, output_padding=1, groups=2)
    check("conv_transpose2d", (1, 2, 3, 3), (2, 2, 2, 2), dilation=2)
    check("conv_transpose3d", (1, 2, 2, 3, 2), (2, 2, 2, 2, 2), (2,))
    check("conv_tbc", (5, 2, 3), (2, 3, 4), (4,), 1)


def test_layouts_and_empty():
    check("conv2d", channels_last(2, 3, 6, 5), channels_last(4, 3, 3, 2), (4,))
    check("conv2d", strided(1, 2, 4, 4), (3, 2, 2, 2))
    check("conv2d", (0, 3, 6, 5), (4, 3, 3, 2), (4,))


def test_errors():
    check_error("conv2d", (1, 3, 4, 4), (4, 2, 3, 3), match="expected input.*channels")
    check_error("conv2d", (1, 3, 2, 2), (4, 3, 3, 3), match="Kernel size can't be greater")
    check_error("conv1d", (2, 3), (4, 3, 2, 2))


@pytest.mark.parametrize("training", [True, False])
def test_channels_last_stays(training):
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.ConvTranspose2d(4, 5, 3)]
    model = torch.nn.Sequential(*layers, torch.nn.MaxPool2d(2)).train(training)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    found = []
    for device in ("cpu", "tpu"):
        y = x.to(device)
        made = []
        for layer in copy.deepcopy(model).to(device):
            y = layer(y)
            made.append((y.stride(), y.detach().cpu()))
        found.append(made)
    for (stride, expected), (other, actual) in zip(*found):
        assert stride == other and expected.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(actual, expected)
    weight = torch.randn(5, 3, 2, 2, device="tpu").to(memory_format=torch.channels_last)
    made = torch.nn.functional.conv2d(x.contiguous().to("tpu"), weight)
    assert made.is_contiguous(memory_format=torch.channels_last)
