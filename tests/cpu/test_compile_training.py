"""Whole training steps: programs, the learning rate as data, memory given away."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def compiled_anew():
    """Dynamo compiles a function at most eight times: these tests share theirs."""
    torch._dynamo.reset()


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def trainer(name, device, model=None, clip=False, dtype=None):
    torch.manual_seed(0)
    bias = name != "Muon"  # which takes matrices only
    model = model or nn.Sequential(nn.Linear(8, 16, bias), nn.ReLU(), nn.Linear(16, 4, bias))
    model = model.to(device)
    optimizer = OPTIMIZERS[name](model.parameters())

    def step(x):
        with torch.autocast(device, dtype, enabled=dtype is not None):
            loss = model(x).square().mean()
        loss.backward()
        loss = loss.detach()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_whose_backward_is_traced_is_two_programs(name, counters):
    """By a flag of PyTorch, and with a loss that is detached before the optimizer breaks the graph."""
    (host, host_optimizer), (device, optimizer) = (trainer(name, device, clip=True) for device in ("cpu", "tpu"))
    programs = []
    compiled = torch.compile(device, backend="tpu", options={"debug_callback": programs.append})
    x = torch.randn(5, 8)
    with torch._dynamo.config.patch(trace_autograd_ops=True, capture_scalar_outputs=name == "Adafactor"):
        for step in range(6):
            for each in (host_optimizer, optimizer):
                each.param_groups[0]["lr"] *= 0.8
            counters.reset()
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), host(x), rtol=1e-3, atol=1e-4)
            assert not counters.fallbacks
            if step >= 2:
                assert counters.compiles == counters.disk_hits == counters.memory_hits == counters.calls_in_between == 0
                assert counters.executions == 2
    assert {p.kind for p in programs} == {"inference"}


class Checkpointed(nn.Linear):
    def forward(self, x):
        return checkpoint(lambda y: super(Checkpointed, self).forward(y).tanh(), x, use_reentrant=False)


@pytest.mark.parametrize("kind", ["normalized", "dropped", "checkpointed", "in bfloat16"])
def test_a_step_whose_backward_is_traced_trains_as_in_eager_mode(kind, counters):
    middle = {"normalized": nn.BatchNorm1d(16), "dropped": nn.Dropout(0.5), "checkpointed": Checkpointed(16, 16)}
    torch.manual_seed(1)
    eager = nn.Sequential(nn.Linear(8, 16, bias=False), middle.get(kind, nn.GELU()), nn.Linear(16, 4))
    traced, found = copy.deepcopy(eager), []
    for model in (eager, traced):
        step, _ = trainer("AdamW", "tpu", model, dtype=torch.bfloat16 if kind == "in bfloat16" else None)
        if model is traced:
            step = torch.compile(step, backend="tpu")
        torch.manual_seed(2)
        data = torch.randn(5, 8).to("tpu")
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            found.append(torch.stack([step(data) for _ in range(6)]).float().cpu())
            counters.reset()
            step(data)
    assert found[0].unique().numel() == 6
    torch.testing.assert_close(found[1], found[0], **({"rtol": 1.6e-2, "atol": 1e-3} if kind == "in bfloat16" else {}))
    for mine, theirs in zip(traced.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu())
    assert counters.executions == 2


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
