"""Whole training steps: programs, the learning rate as data, memory given away."""

from __future__ import annotations

import pytest
import torch
from torch import nn

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def trainer(name, device):
    torch.manual_seed(0)
    bias = name != "Muon"  # which takes matrices only
    model = nn.Sequential(nn.Linear(8, 16, bias), nn.ReLU(), nn.Linear(16, 4, bias)).to(device)
    optimizer = OPTIMIZERS[name](model.parameters())

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_three_programs(name, counters):
    """Forward, backward and optimizer; PyTorch's optimizers break the graph. A schedule compiles nothing."""
    (host, host_optimizer), (device, optimizer) = trainer(name, "cpu"), trainer(name, "tpu")
    programs = []
    config = torch._dynamo.config.patch(capture_scalar_outputs=name == "Adafactor")  # it asks for norms as floats
    compiled = torch.compile(device, backend="tpu", options={"debug_callback": programs.append})
    x = torch.randn(5, 8)
    with config:
        for step in range(6):
            for each in (host_optimizer, optimizer):
                each.param_groups[0]["lr"] *= 0.8
            counters.reset()
            given, wanted = compiled(x.to("tpu")), host(x)
            torch.testing.assert_close(given.detach().cpu(), wanted.detach(), rtol=1e-3, atol=1e-4)
            assert not counters.calls_in_between
            if step >= 2:
                assert counters.compiles == counters.disk_hits == counters.memory_hits == 0
                assert counters.executions == 4, "with the ones that backward starts from"
            assert not counters.fallbacks
    assert {p.kind for p in programs} == {"forward", "backward", "inference"}


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Muon"])
def test_in_fused_mode_a_step_is_one_program(name, counters):
    """The graphs and what runs between them are recorded, and the step's end cuts. The first step also fills the state."""
    (host, host_optimizer), (device, optimizer) = trainer(name, "cpu"), trainer(name, "tpu")
    compiled = torch.compile(device)
    x = torch.randn(5, 8)
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        for step in range(6):
            for each in (host_optimizer, optimizer):
                each.param_groups[0]["lr"] *= 0.8
            counters.reset()
            given, wanted = compiled(x.to("tpu")), host(x)
            torch.testing.assert_close(given.detach().cpu(), wanted.detach(), rtol=1e-3, atol=1e-4)
            assert not counters.calls_in_between and not counters.fallbacks
            assert counters.executions == (2 if step == 0 and name != "SGD" else 1)
            if step >= 2:
                assert counters.compiles == counters.disk_hits == counters.memory_hits == 0


def test_in_fused_mode_accumulated_gradients_are_a_program_for_each_pass(counters):
    model = nn.Linear(4, 4).to("tpu")
    compiled = torch.compile(lambda x: model(x).sum())
    x = torch.ones(2, 4, device="tpu")
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        for _ in range(2):
            model.zero_grad()
            counters.reset()
            for _ in range(3):
                compiled(x).backward()
            assert model.bias.grad.tolist() == [6.0] * 4
            assert counters.executions == 3


def test_parameters_and_state_are_donated():
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(256, 256, device="tpu"))
    optimizer = torch.optim.AdamW([parameter])
    programs = []
    compiled = torch.compile(optimizer.step, backend="tpu", options={"debug_callback": programs.append})
    for _ in range(3):
        parameter.grad = torch.ones_like(parameter)
        compiled()
    (program,) = programs
    assert program.stablehlo.count("tf.aliasing_output") == 3, "the parameter and both moments"


def test_gradients_accumulate(counters):
    model = nn.Linear(4, 4).to("tpu")
    compiled = torch.compile(lambda x: model(x).sum(), backend="tpu")
    x = torch.ones(2, 4, device="tpu")
    for count in (1, 2, 3):
        compiled(x).backward()
        assert model.bias.grad.tolist() == [2.0 * count] * 4
    assert not counters.fallbacks


def test_higher_order_gradients():
    """AOTAutograd has them where `torch.autograd.grad` is inside of what is compiled."""

    def penalty(x):
        (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return grad.square().sum()

    x = torch.tensor([1.0, 2.0], device="tpu", requires_grad=True)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        torch.compile(penalty, backend="tpu")(x).backward()
    assert x.grad.tolist() == [36.0, 288.0]


def test_the_backward_graph_computes_gates_again():
    """Of a gated layer the two products are kept, and not what only costs a pass over them."""

    def gated(x, up, gate, down):
        return ((torch.nn.functional.silu(x @ gate) * (x @ up)) @ down).sum()

    weights = [torch.randn(64, 1024) / 8, torch.randn(64, 1024) / 8, torch.randn(1024, 64) / 32]
    host = [weight.requires_grad_() for weight in weights]
    device = [weight.detach().to("tpu").requires_grad_() for weight in weights]
    x = torch.randn(256, 64)
    compiled, given = torch.compile(gated, backend="tpu"), x.to("tpu")
    compiled(given, *device)
    before = torch.tpu.memory_allocated()
    loss = compiled(given, *device)
    assert torch.tpu.memory_allocated() - before - loss.nbytes == 2 * 256 * 1024 * 4
    loss.backward()
    gated(x, *host).backward()
    for mine, theirs in zip(device, host, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
