"""Embeddings and bags: padding rows, scaled gradients, renormalisation, modes, offsets, weights."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from op_checks import BF16, F32, I32, I64, check, check_error, random, values

IDS = values([[0, 2, 2], [1, 4, 0]], I64)
FLAT = values([0, 2, 2, 1, 4, 0], I64)
OFFSETS = values([0, 2, 2, 5], I64)


def test_embedding():
    check(lambda w, i: F.embedding(i, w), (5, 3), IDS, dtypes=(F32, BF16))
    check(lambda w, i: F.embedding(i, w), (5, 3), values([1, 2], I32))
    check(lambda w, i: F.embedding(i, w, padding_idx=2), (5, 3), IDS)
    check(lambda w, i: F.embedding(i, w, padding_idx=-1, scale_grad_by_freq=True), (5, 3), IDS)
    check(lambda w, i: F.embedding(i, w), (5, 3), values([], I64))
    check(lambda w, i: F.embedding(i, w), (5, 3), values(1, I64))
    check(lambda w, i: (F.embedding(i, w, max_norm=0.5), w), (5, 3), IDS, grad=False)
    check_error(lambda w, i: F.embedding(i, w), (5, 3), values([0.5]), match="Long, Int|scalar type")


@pytest.mark.parametrize("mode", ("sum", "mean", "max"))
def test_bags(mode):
    check(lambda w, i: F.embedding_bag(i, w, mode=mode), (5, 3), IDS)
    check(lambda w, i, o: F.embedding_bag(i, w, o, mode=mode), (5, 3), FLAT, OFFSETS)
    check(lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=2), (5, 3), FLAT, OFFSETS)


def test_weighted_bags():
    weights = random(6, dtype=F32)
    check(lambda w, i, o, p: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=p), (5, 3), FLAT, OFFSETS, weights)
    check(
        lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", include_last_offset=True),
        (5, 3),
        FLAT,
        values([0, 2, 6], I64),
    )


def test_one_hot():
    check(lambda i: F.one_hot(i, 5), IDS)
    check(lambda i: F.one_hot(i), IDS)
