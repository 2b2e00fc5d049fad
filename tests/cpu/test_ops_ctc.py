"""The CTC loss: lengths as numbers and tensors, blanks, repeated labels, impossible alignments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from op_checks import F32, F64, check


def loss(target, inputs, targets, **named):
    def run(x):
        return F.ctc_loss(x.log_softmax(-1), target.to(x.device), inputs, targets, **named)

    return run


def test_lengths():
    target = torch.tensor([[1, 2, 2], [3, 1, 1]])
    check(loss(target, (6, 5), (3, 2)), (6, 2, 4), dtypes=(F32, F64))
    check(loss(target, (6, 5), (3, 2), reduction="none"), (6, 2, 4))
    check(loss(target, (6, 5), (3, 2), reduction="sum", blank=0), (6, 2, 4))
    check(loss(target, torch.tensor([6, 5]), torch.tensor([3, 2])), (6, 2, 4))
    check(loss(torch.tensor([1, 2, 2, 3, 1]), (6, 5), (3, 2)), (6, 2, 4))


def test_no_alignment():
    target = torch.tensor([[2, 2, 2]])
    check(loss(target, (3,), (3,), zero_infinity=True), (3, 1, 4))
    check(loss(target, (3,), (3,), reduction="none"), (3, 1, 4), grad=False)
    check(loss(target, (3,), (0,), reduction="none"), (3, 1, 4))
