"""Losses: reductions, weights, ignored targets, class indices and probabilities, empty batches."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from op_checks import BF16, F32, check, check_error, fixed, index, random, values

REDUCTIONS = ("none", "mean", "sum")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
def test_regression(name, reduction):
    check(name, (4, 3), (4, 3), dtypes=(F32, BF16), reduction=reduction)


def test_regression_at_the_kink():
    check("smooth_l1_loss", [0.0, 0.5, 1.0, -2.0], [0.0, 0.0, 0.0, 0.0], beta=0.5)
    check("smooth_l1_loss", [0.0, 0.5], [0.0, 0.0], beta=0.0)
    check("huber_loss", [0.0, 0.5, 1.0, -2.0], [0.0, 0.0, 0.0, 0.0], delta=0.5)
    check("mse_loss", (0, 3), (0, 3), reduction="sum")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"))
def test_the_dtype_of_a_loss_of_two(name, reduction):
    loss = getattr(F, name)
    for one, other in itertools.permutations((torch.bfloat16, torch.float16, torch.float32, torch.float64), 2):
        x, target = torch.rand(4, dtype=one), torch.rand(4, dtype=other)
        expected = loss(x, target, reduction=reduction)
        torch.testing.assert_close(loss(x.to("tpu"), target.to("tpu"), reduction=reduction).cpu(), expected)


@pytest.mark.parametrize("name", ("huber_loss", "soft_margin_loss"))
def test_losses_that_their_input_cannot_hold(name):
    check_error(name, values([1, 2], torch.int64), [0.5, 2.0], match="can't be cast to the desired output type Long")


def test_the_mean_of_nothing():
    check("mse_loss", (0, 3), (0, 3))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_classification(reduction):
    check("nll_loss", (4, 5), index(4, high=5), dtypes=(F32, BF16), reduction=reduction)
    check("nll_loss", (4, 5), index(4, high=5), fixed(random(5, low=0.1, high=2)), reduction=reduction)
    check("cross_entropy", (4, 5), index(4, high=5), dtypes=(F32, BF16), reduction=reduction)
    check("cross_entropy", (2, 5, 3), index(2, 3, high=5), reduction=reduction)
    check("nll_loss", (2, 4, 3, 3), index(2, 3, 3, high=4), reduction=reduction)


def test_cross_entropy_options():
    ignored = values([0, -100, 2, -100], torch.int64)
    check("cross_entropy", (4, 3), ignored)
    check("cross_entropy", (4, 3), ignored, fixed(random(3, low=0.1, high=2)), label_smoothing=0.1)
    check("cross_entropy", (4, 3), values([-100] * 4, torch.int64))
    check("cross_entropy", (4, 3), random(4, 3, low=0, high=1), label_smoothing=0.2)
    check("cross_entropy", (3,), values(1, torch.int64))
    for dtype in (torch.int64, torch.uint8):
        check("nll_loss", (4, 3), values([0, 1, 2, 1], dtype), ignore_index=1)
    check_error("cross_entropy", (4, 3), index(5, high=3), match="batch_size|batch size")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary(reduction):
    check("binary_cross_entropy", random(4, low=0.05, high=0.95), random(4, low=0, high=1), reduction=reduction)
    check(
        "binary_cross_entropy_with_logits", (4, 3), random(4, 3, low=0, high=1), dtypes=(F32, BF16), reduction=reduction
    )
    check("soft_margin_loss", (4,), fixed(values([1.0, -1.0, 1.0, -1.0])), reduction=reduction)


def test_binary_options():
    check("binary_cross_entropy", values([0.0, 1.0, 0.0, 1.0]), values([0.0, 1.0, 1.0, 0.0]))
    target, weight, positive = (
        random(4, 3, low=0, high=1),
        fixed(random(3, low=0, high=2)),
        fixed(random(3, low=0.5, high=2)),
    )
    check("binary_cross_entropy_with_logits", (4, 3), target, weight, pos_weight=positive)
    check("binary_cross_entropy_with_logits", [-100.0, 100.0], [1.0, 0.0])


def test_margins_and_divergences():
    signs = values([1.0, -1.0, 1.0])
    check("hinge_embedding_loss", (3,), signs)
    check("margin_ranking_loss", (3,), (3,), signs)
    check("cosine_embedding_loss", (3, 4), (3, 4), signs)
    check("triplet_margin_loss", (3, 4), (3, 4), (3, 4))
    check("multi_margin_loss", (3, 4), index(3, high=4))
    check("multi_margin_loss", (3, 4), index(3, high=4), p=2, margin=0.5)
    check("multi_margin_loss", (), index(high=1))  # one class
    check("multilabel_margin_loss", (2, 4), values([[3, 0, -1, 1], [-1, 0, 1, 2]], torch.int64))
    check("multilabel_soft_margin_loss", (3, 4), random(3, 4, low=0, high=1))
    check("kl_div", (3, 4), random(3, 4, low=0, high=1), reduction="batchmean")
    check("kl_div", (3, 4), (3, 4), log_target=True, reduction="sum")
    check("gaussian_nll_loss", (3,), (3,), random(3, low=0.1, high=1))
    check("poisson_nll_loss", (3,), random(3, low=0, high=5))


def test_second_gradient():
    def norm_of_gradient(x, y):
        (first,) = torch.autograd.grad(F.mse_loss(x, y), x, create_graph=True)
        return first.square().sum()

    check(norm_of_gradient, (3,), (3,))
