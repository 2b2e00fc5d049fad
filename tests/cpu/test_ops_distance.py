"""Pairwise distances in several norms, with their gradients, also at distance zero."""

from __future__ import annotations

import torch
from op_checks import F32, F64, check, inf


def test_cdist():
    for p in (2.0, 1.0, inf, 0.0, 3.0):
        check("cdist", (3, 4), (2, 4), p=p, dtypes=(F32, F64))
    check("cdist", (2, 3, 4), (2, 5, 4))
    check("cdist", (30, 4), (30, 4), grad=False)
    check(lambda x: torch.cdist(x, x), (3, 2), grad=False)
    check("cdist", (0, 4), (2, 4))


def test_pdist():
    for p in (2.0, 1.0, inf):
        check("pdist", (4, 3), p=p)


def test_pairwise():
    check("pairwise_distance", (3, 4), (3, 4))
    check("cosine_similarity", (3, 4), (3, 4), dim=1)
    check("cosine_similarity", [[0.0, 0.0]], [[1.0, 2.0]], dim=1, grad=False)
