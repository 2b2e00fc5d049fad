"""The recorder behind `explain_recompiles`: nearest signatures, words, bounds."""

from __future__ import annotations

import threading

import pytest

from torch_tpu import recompiles
from torch_tpu.recompiles import differences, explain_recompiles, record


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    for name in ("_made", "_earlier", "_programs"):
        kept = getattr(recompiles, name)
        monkeypatch.setattr(recompiles, name, kept.copy())
        getattr(recompiles, name).clear()


def test_the_first_of_a_name_says_what_it_is():
    record("operator", "aten::add", {"argument self:": "a tensor", "argument self: size": (8, 8), "argument dim:": 1})
    (made,) = explain_recompiles()
    assert made.changes is None
    assert str(made) == "first: argument self: a tensor, size (8, 8); argument dim: 1"
    assert str(explain_recompiles()) == "1 program for 1 name, 0 made again"


def test_the_nearest_signature_is_compared_with():
    record("operator", "add", {"size": (8, 8), "dtype": "float32", "layout": "contiguous"})
    record("operator", "add", {"size": (9, 9), "dtype": "int64", "layout": "contiguous"})
    record("operator", "add", {"size": (8, 9), "dtype": "float32", "layout": "contiguous"})
    record("operator", "add", {"size": (9, 9), "dtype": "int64", "layout": "strides (1, 9)"})
    record("operator", "mul", {"size": (9, 9), "dtype": "int8"})
    found = explain_recompiles()
    assert [made.changes for made in found.of("add")[2:]] == [
        ("size (8, 8) -> (8, 9)",),
        ("layout contiguous -> strides (1, 9)",),
    ]
    assert found.of("mul")[0].changes is None and len(found.again) == 3
    assert "add (operator): 4 programs" in str(found) and "mul" not in str(found)


def test_of_equally_near_ones_the_latest_is_taken():
    for size in (1, 2, 3):
        record("graph", "f", {"size": size})
    assert explain_recompiles().made[-1].changes == ("size 2 -> 3",)


def test_parts_that_come_and_go():
    assert differences({"a": 1}, {"a": 1, "b": 2}) == ("b none -> 2",)
    old = {"argument x:": "a tensor", "argument x: size": (1,), "argument y:": 1}
    assert differences(old, {"argument x:": "a number", "argument y:": 1}) == ("argument x: a tensor -> a number",)


@pytest.mark.parametrize(
    "new, words",
    [
        (("add",) * 19 + ("mul",), "operators 20 items, from item 19 on: add -> mul"),
        (("add",) * 18, "operators 20 items -> 18, from item 18 on: add -> end"),
        (("add",) * 21, "operators 20 items -> 21, from item 20 on: end -> add"),
    ],
)
def test_long_sequences_are_compared_by_item(new, words):
    assert differences({"operators": ("add",) * 20}, {"operators": new}) == (words,)


def test_reasons_and_shared_programs():
    record("graph", "f", {"size": 1}, program="p", reason="guard x.size(0) == 1 failed")
    record("operator", "add", {"size": 1}, program="p")
    record("operator", "add", {"size": 1}, program="q")
    first, second, third = explain_recompiles()
    assert str(first) == "guard x.size(0) == 1 failed" and not first.shared
    assert second.shared and str(second).endswith("(the same program as before)")
    assert third.changes == () and "had been forgotten" in str(third)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(recompiles, "_NAMES", 10)
    for number in range(5000):
        record("operator", f"op{number % 100}", {"size": number}, program=str(number))
    assert len(explain_recompiles()) == recompiles._EVENTS
    assert len(recompiles._earlier) == 10 and len(recompiles._programs) == 10
    for number in range(1000):
        record("operator", "one", {"size": number})
    assert len(recompiles._earlier["operator", "one"]) == recompiles._SIGNATURES


def test_reset_keeps_what_to_compare_with():
    record("operator", "add", {"size": 1})
    recompiles.reset()
    assert len(explain_recompiles()) == 0
    record("operator", "add", {"size": 2})
    assert explain_recompiles().made[0].changes == ("size 1 -> 2",)


def test_threads_may_record_at_once():
    threads = [
        threading.Thread(target=lambda: [record("operator", "add", {"size": n}) for n in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(explain_recompiles()) == 800
    assert sum(made.changes is None for made in explain_recompiles()) == 1
