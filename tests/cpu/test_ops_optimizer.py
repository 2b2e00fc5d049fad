"""Optimizers over several steps against the CPU: for-loop, foreach and fused; schedules, groups, state, scaling."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import torch_tpu

CASES = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.1},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Adadelta": {"lr": 1.0},
    "Adamax": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "ASGD": {"lr": 0.01},
    "Rprop": {"lr": 0.01},
}


def train(model, optimizer, device, steps=4):
    torch.manual_seed(1)
    for _ in range(steps):
        x = torch.randn(5, 3).to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def pair(kind, device_options, **options):
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    device = copy.deepcopy(host).to("tpu")
    optimizer = getattr(torch.optim, kind)
    return (host, optimizer(host.parameters(), **options)), (
        device,
        optimizer(device.parameters(), **options, **device_options),
    )


@pytest.mark.parametrize("kind", CASES)
def test_several_steps(kind):
    torch_tpu.reset_stats()
    ways = [{}] + ([{"fused": True}] if kind in ("SGD", "Adam", "AdamW", "Adagrad") else [])
    for way in ways:
        (host, one), (device, other) = pair(kind, way, **CASES[kind])
        train(host, one, "cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(device, other, "tpu")
        for found, expected in zip(device.parameters(), host.parameters(), strict=True):
            assert_close(found.detach().cpu(), expected.detach())
    assert not torch_tpu.stats()["fallbacks"]


def test_a_new_learning_rate_compiles_nothing():
    (_, _), (device, optimizer) = pair("AdamW", {}, lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    train(device, optimizer, "tpu", 3)
    before = torch_tpu.stats()
    for _ in range(3):
        schedule.step()
        train(device, optimizer, "tpu", 1)
    after = torch_tpu.stats()
    assert after["compiles"] + after["disk_hits"] == before["compiles"] + before["disk_hits"]


def test_state_moves_between_devices():
    (host, one), (device, other) = pair("AdamW", {}, lr=0.01)
    train(host, one, "cpu", 2)
    device.load_state_dict(host.state_dict())
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert other.state[next(device.parameters())]["exp_avg"].is_tpu
    train(host, one, "cpu", 2)
    train(device, other, "tpu", 2)
    for found, expected in zip(device.parameters(), host.parameters(), strict=True):
        assert_close(found.detach().cpu(), expected.detach())


def test_scaled_gradients_that_overflow_are_skipped():
    parameter = nn.Parameter(torch.ones(3, device="tpu"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0)
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [0, 0, 0]
    parameter.grad = torch.full((3,), float("inf"), device="tpu")
    scaler._per_optimizer_states.clear()
    scaler.scale(torch.ones((), device="tpu"))
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [0, 0, 0] and scaler.get_scale() == 2.0


def test_lists_of_results_are_as_long_as_the_lists_they_stand_for():
    numbers = {"weight_decay": 0.0, "momentum": 0.5, "lr": 0.5, "dampening": 0.0, "nesterov": False, "maximize": False}
    columns = [[torch.ones(3, device="tpu"), torch.ones(2, device="tpu")] for _ in range(3)]
    for call in (torch.ops.aten._fused_sgd, torch.compile(torch.ops.aten._fused_sgd, backend="tpu")):
        params, grads, buffers = call(*columns, **numbers, is_first_step=True)
        assert [[list(t.shape) for t in part] for part in (params, grads, buffers)] == [[[3], [2]]] * 3
        assert params[1].tolist() == [0.5, 0.5] and buffers[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_what_schedules_change_makes_no_new_programs_of_fused_optimizers(kind):
    options = {"momentum": 0.9, "lr": 0.1} if kind == "SGD" else {}
    both = pair(kind, {}, weight_decay=0.01, fused=True, **options)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9) for _, optimizer in both]

    def steps(count):
        for (model, optimizer), schedule, device in zip(both, schedules, ("cpu", "tpu"), strict=True):
            for _ in range(count):
                train(model, optimizer, device, steps=1)
                optimizer.param_groups[0]["weight_decay"] += 0.001
                schedule.step()

    steps(3)
    before = torch_tpu.stats()
    steps(4)
    after = torch_tpu.stats()
    assert all(after[name] == before[name] for name in ("compiles", "disk_hits"))
    for found, expected in zip(both[1][0].parameters(), both[0][0].parameters(), strict=True):
        assert_close(found.cpu(), expected)
