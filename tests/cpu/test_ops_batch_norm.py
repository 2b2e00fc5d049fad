"""Batch normalization: training and evaluation, running statistics, without weights, channels_last, one value."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_checks import BF16, F32, F64, channels_last, check, check_error, random


def run(training, momentum=0.1):
    def call(x, mean, var, weight=None, bias=None):
        mean, var = mean.detach().clone(), var.detach().clone()
        return F.batch_norm(x, mean, var, weight, bias, training, momentum, 1e-5), mean, var

    return call


@pytest.mark.parametrize("training", (True, False))
def test_modes(training):
    spread = random(3, low=0.5, high=2)
    check(run(training), (4, 3), (3,), spread, (3,), (3,))
    check(run(training), (2, 3, 4), (3,), spread, dtypes=(F32, F64))
    check(run(training), channels_last(2, 3, 4, 5), (3,), spread, (3,), (3,))
    check(run(training, 0.5), (2, 3, 2, 2), (3,), spread, (3,), (3,), dtypes=(BF16,))


def test_without_statistics():
    check(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (4, 3), (3,), (3,))


def test_module_counts_its_batches():
    for device in ("cpu", "tpu"):
        norm = torch.nn.BatchNorm1d(2, momentum=None).to(device)
        norm(torch.arange(8.0, device=device).view(4, 2))
        assert norm.num_batches_tracked.item() == 1 and norm.running_mean.tolist() == [3, 4]


def test_errors():
    check_error(
        lambda x: F.batch_norm(x, None, None, training=True), (1, 3), error=ValueError, match="more than 1 value"
    )
    check_error(lambda x, m: F.batch_norm(x, m, m), (4, 3), (2,), match="running_mean")
