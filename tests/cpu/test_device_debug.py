"""Debug eager mode: indices are checked, and errors name the operator, its inputs and the Python line."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import pytest
import torch

from torch_tpu import errors, settings

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _debug():
    with settings.override(eager_mode="debug"):
        yield


def on_device(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to("tpu") for tensor in tensors]


x = torch.arange(12.0).view(3, 4)
CALLS = {
    "gather": lambda x, i: x.gather(0, i.view(1, 2)),
    "scatter": lambda x, i: x.scatter(0, i.view(1, 2), 1.0),
    "scatter_": lambda x, i: x.clone().scatter_(0, i.view(1, 2), x),
    "scatter_add": lambda x, i: x.scatter_add(0, i.view(1, 2), x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i.view(1, 2), x, "sum"),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index": lambda x, i: x[i],
    "index_put_": lambda x, i: x.clone().__setitem__(i, 1.0),
    "take": lambda x, i: x[:1, :3].take(i),
    "embedding": lambda x, i: F.embedding(i, x),
    "nll_loss": lambda x, i: F.cross_entropy(x[:2, :3], i),
}


@pytest.mark.parametrize("call", CALLS)
def test_indices_are_checked(call):
    table, good, bad = on_device(x, torch.tensor([2, 0]), torch.tensor([1, 3]))
    CALLS[call](table, good)
    with pytest.raises(IndexError, match="index 3 is out of bounds") as caught:
        CALLS[call](table, bad)
    text = str(caught.value)
    assert text.startswith("aten::") and call.rstrip("_") in text
    assert "Tensor[" in text and f"{__file__}:" in text


def test_indices_from_the_end():
    table, index = on_device(x, torch.tensor([-1, -3]))
    assert table[index].shape == (2, 4) and table.take(index).tolist() == [11, 9]
    with pytest.raises(IndexError, match="index -1 is out of bounds for dimension 0 with size 3"):
        table.index_select(0, index)
    with pytest.raises(IndexError, match="index -4 is out of bounds"):
        table[index - 1]
    assert F.cross_entropy(table, on_device(torch.tensor([1, -100, 2]))[0]).isfinite()


def test_masks_are_not_indices():
    (table,) = on_device(x)
    assert table[table > 10].tolist() == [11]


def test_errors_name_the_operator_and_the_line():
    a, b = torch.ones(2, 3, device="tpu"), torch.ones(2, 4, device="tpu")
    with pytest.raises(RuntimeError) as caught:
        torch.mm(a, b)
    text = "".join(traceback.format_exception(caught.value))
    assert "raised by aten::mm" in text and "Tensor[2, 3] float32, Tensor[2, 4] float32" in text
    assert f"called at {__file__}:" in text and "in test_errors_name_the_operator_and_the_line" in text


def test_errors_of_programs_do_not_advise_what_is_on_already():
    with pytest.raises(errors.ExecutionError, match="a probability is infinite, NaN or less than 0") as caught:
        torch.multinomial(torch.tensor([-1.0, 1.0], device="tpu"), 1)
    assert "TPU_LAUNCH_BLOCKING" not in str(caught.value)
    assert f"called at {__file__}:" in "".join(traceback.format_exception(caught.value))


def test_it_waits_for_each_operator():
    big = torch.ones(500, 500, device="tpu")
    for _ in range(5):
        big = big @ big * 0.001
        assert torch.tpu.current_stream().query()


def test_everything_else_is_as_in_strict_mode():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    (inputs,) = on_device(x)
    before = F.cross_entropy(model(inputs), torch.tensor([0, 1, 2], device="tpu"))
    before.backward()
    optimizer.step()
    with settings.override(eager_mode="strict"):
        after = F.cross_entropy(model(inputs), torch.tensor([0, 1, 2], device="tpu"))
    assert after < before


def test_switched_on_from_the_environment():
    code = (
        "import torch\nx = torch.ones(3, device='tpu')\n"
        "assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING\n"
        "x[torch.tensor([3], device='tpu')]"
    )
    environment = {**os.environ, "TPU_LAUNCH_BLOCKING": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "IndexOutOfRangeError: aten::index.Tensor: index 3 is out of bounds" in done.stderr
    assert "called at <string>:4" in done.stderr
