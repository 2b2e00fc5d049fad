"""torch.accelerator.Graph: a replay does what the captured calls would do, in one program, on what tensors hold by then."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torch_tpu.stats import num_compiles

pytestmark = pytest.mark.skipif(
    not hasattr(torch.accelerator, "Graph"), reason="this PyTorch has no torch.accelerator.Graph"
)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def training(model, optimizer, x, y):
    """A step on tensors whose values may be replaced between steps; returns the loss."""

    def step():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_step_replays_as_one_program(name, counters):
    host = small_model()
    model = copy.deepcopy(host).to("tpu")
    x, y = torch.rand(6, 8), torch.randint(4, (6,))
    static_x, static_y = x.to("tpu"), y.to("tpu")
    on_host = torch.optim.AdamW(host.parameters(), lr=0.01) if name == "adamw" else OPTIMIZERS[name](host.parameters())
    expected = training(host, on_host, x, y)
    step = training(model, OPTIMIZERS[name](model.parameters()), static_x, static_y)
    torch.testing.assert_close(step().cpu(), expected())
    graph = torch.accelerator.Graph()
    with graph:
        assert torch.accelerator.current_stream().is_capturing()
        loss = step()
    assert not torch.accelerator.current_stream().is_capturing()
    executions, compiles = counters.executions, num_compiles()
    for count in range(5):
        x.copy_(torch.rand(6, 8)), y.copy_(torch.randint(4, (6,)))
        static_x.copy_(x), static_y.copy_(y)
        graph.replay()
        assert counters.executions == executions + count + 1
        torch.testing.assert_close(loss.cpu(), expected())
    assert num_compiles() == compiles
    for mine, theirs in zip(model.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


def test_inputs_that_change_between_replays_are_read():
    x = torch.ones(4, device="tpu")
    graph = torch.accelerator.Graph()
    with graph:
        y = x * 2
    for value in (1.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [2 * value] * 4


def test_capturing_changes_nothing():
    x = torch.zeros(4, device="tpu")
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
        y = x * 10
    assert x.tolist() == [0] * 4
    graph.replay()
    graph.replay()
    assert x.tolist() == [2] * 4 and y.tolist() == [20] * 4


def test_a_copy_inside_is_made_in_each_replay():
    source, target = torch.zeros(4, device="tpu"), torch.zeros(4, device="tpu")
    graph = torch.accelerator.Graph()
    with graph:
        target.copy_(source)
        source += 1
    for count in range(3):
        graph.replay()
        assert target.tolist() == [count] * 4 and source.tolist() == [count + 1] * 4


def test_tensors_may_be_deleted_after_the_capture():
    x = torch.zeros(4, device="tpu")
    scale = torch.full((4,), 3.0, device="tpu")
    graph = torch.accelerator.Graph()
    with graph:
        x += scale * torch.tensor(2.0, device="tpu")
    del scale
    graph.replay()
    graph.replay()
    assert x.tolist() == [12] * 4
    graph.reset()
    with pytest.raises(RuntimeError, match="holds no capture"):
        graph.replay()


def test_memory_is_reused_unless_somebody_else_holds_it():
    x = torch.zeros(1 << 18, device="tpu")
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
    graph.replay()
    held = torch.tpu.memory_allocated()
    kept = x.clone()  # shares the array
    graph.replay()
    assert kept[:3].tolist() == [1] * 3 and x[:3].tolist() == [2] * 3
    del kept
    graph.replay()
    assert x[:3].tolist() == [3] * 3
    assert torch.tpu.memory_allocated() == held


def test_random_numbers_are_new_in_each_replay_and_those_of_the_generator():
    graph = torch.accelerator.Graph()
    torch.rand(5, device="tpu")
    with graph:
        a, b = torch.rand(5, device="tpu"), torch.rand(5, device="tpu")
    torch.tpu.manual_seed(7)
    found = []
    for _ in range(2):
        graph.replay()
        found += [a.cpu(), b.cpu()]
    torch.tpu.manual_seed(7)
    for each in found:
        torch.testing.assert_close(each, torch.rand(5, device="tpu").cpu(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "needs_value", [lambda x: (x + 1).sum().item(), lambda x: x.copy_(torch.ones(4)), lambda x: x.nonzero()]
)
def test_what_needs_a_value_is_refused_and_the_state_stays(needs_value):
    x = torch.zeros(4, device="tpu")
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="while a graph was captured"), graph:
        x += 1
        needs_value(x)
    assert x.tolist() == [0] * 4
    with pytest.raises(RuntimeError, match="holds no capture"):
        graph.replay()
    with graph:
        x += 2
    graph.replay()
    assert x.tolist() == [2] * 4


def test_optimizers_that_count_on_the_host_are_refused():
    model = nn.Linear(2, 2).to("tpu")
    optimizer = torch.optim.Adam(model.parameters())
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="capturable=True"), graph:
        model(torch.ones(1, 2, device="tpu")).sum().backward()
        optimizer.step()


def test_captures_do_not_nest():
    outer, inner = torch.accelerator.Graph(), torch.accelerator.Graph()
    x = torch.zeros(2, device="tpu")
    with pytest.raises(RuntimeError, match="captured already"), outer:
        inner.capture_begin()
    assert (x + 1).tolist() == [1, 1]


def test_a_compiled_function_can_be_captured(counters):
    model = small_model().to("tpu")
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    x, y = torch.rand(6, 8).to("tpu"), torch.randint(4, (6,)).to("tpu")
    step = torch.compile(training(model, optimizer, x, y), backend="tpu")
    first = [step().item() for _ in range(2)]
    graph = torch.accelerator.Graph()
    with graph:
        loss = step()
    before = counters.executions
    graph.replay()
    assert counters.executions == before + 1
    assert loss.item() < first[1] < first[0]


def test_the_program_can_be_dumped(tmp_path):
    x = torch.zeros(2, device="tpu")
    graph = torch.accelerator.Graph(keep_graph=True)
    with graph:
        x += 1
    graph.debug_dump(str(tmp_path / "graph.mlir"))
    assert "stablehlo.add" in (tmp_path / "graph.mlir").read_text()
    graph.replay()
    assert x.tolist() == [1, 1]
