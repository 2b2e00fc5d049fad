"""Random programs do on the device what they do on the CPU: values, layouts, aliases, versions, refusals, gradients.

In the gate each test tries a few programs, the same ones every time. More, and others each time:

    RANDOM_PROGRAMS=300 python -m pytest tests/cpu/test_random_programs.py [--hypothesis-seed=1]

What fails is printed as source; then it is made small as well.
"""

from __future__ import annotations

import copy
import math
import os
import re
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from program_steps import FUNCTIONAL, GRADIENTS, OUTSIDE, PURE, RANDOM, STORAGES, VIEWS, WRITES, programs
from programs import (
    F32,
    F64,
    Outcome,
    Program,
    is_leaf,
    namespace,
    run,
    run_inputs,
    same_outcome,
    same_results,
    tensors_in,
)
from torch import nn
from torch.utils._pytree import tree_leaves

WANTED = int(os.environ.get("RANDOM_PROGRAMS", "0"))
STRICT, FUSED = torch.tpu.EagerMode.DEFER_NEVER, torch.tpu.EagerMode.DEFER_AND_FUSE


def few(count: int) -> Any:
    """So many programs in the gate, or as many as the environment wants."""
    return settings(
        max_examples=WANTED or count,
        derandomize=not WANTED,
        phases=[Phase.generate, Phase.shrink] if WANTED else [Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(autouse=True)
def _fresh():
    yield
    torch._dynamo.reset()


# -------------------------------------------------------------------------------------------------------------- eager


def check_eager(program: Program, mode: torch.tpu.EagerMode) -> None:
    wanted = run(program, "cpu")
    with torch.tpu.set_eager_mode(mode):
        same_outcome(run(program, "tpu"), wanted, program)


@few(60)
@given(program=programs(VIEWS, PURE, WRITES, OUTSIDE, STORAGES))
def test_operators_one_by_one(program):
    check_eager(program, STRICT)


@few(60)
@given(program=programs(VIEWS, PURE, WRITES, OUTSIDE, STORAGES))
def test_operators_recorded_and_fused(program):
    check_eager(program, FUSED)


# ----------------------------------------------------------------------------------------------------------- compiled


def defined(program: Program) -> tuple[Any, list[str]]:
    """A program's lines as a function, and the names of its arguments."""
    space = run_inputs(program, "cpu")
    names = list(tensors_in(space))
    text = program.source(names)
    exec(compile(text, f"<program {text}>", "exec"), space)
    return space, names


def call_compiled(program: Program, device: str, **options: Any) -> dict[str, Any]:
    """The variables that a program leaves behind, its inputs among them, when its lines are compiled."""
    space, names = defined(program)
    given = run_inputs(program, device)
    space |= {name: given[name] for name in ("device", "make", "host")}
    function = torch.compile(space["program"], **options) if options else space["program"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: given[name] for name in names} | function(*(given[name] for name in names))


def same_compiled(call: Callable[..., dict[str, Any]], **options: Any) -> None:
    """What is compiled for the device is what runs on the CPU. Where Dynamo or AOTAutograd change what happens, there is
    nothing to ask."""
    wanted = call("cpu")
    torch._dynamo.reset()
    try:
        same_results(call("tpu", backend="tpu", **options), wanted, histories=False)
    except Exception:
        torch._dynamo.reset()
        try:
            same_results(call("cpu", backend="aot_eager", **options), wanted, histories=False)
        except Exception:
            return
        raise


def check_compiled(program: Program, *, dynamic: bool) -> None:
    same_compiled(partial(call_compiled, program), dynamic=dynamic)


@few(8)
@given(program=programs(VIEWS, PURE, WRITES, OUTSIDE))
def test_compiled(program):
    check_compiled(program, dynamic=False)


@few(4)
@given(program=programs(VIEWS, PURE, WRITES, OUTSIDE))
def test_compiled_for_any_size(program):
    check_compiled(program, dynamic=True)


def resized(program: Program) -> Program:
    """The program with larger inputs."""
    larger = str.maketrans("234", "357")
    lines = [re.sub(r"\([\d, ]*\), torch", lambda shape: shape[0].translate(larger), line) for line in program.inputs]
    return replace(program, inputs=lines)


def check_resized(program: Program) -> None:
    """One function, called with sizes that vary."""
    space, names = defined(program)
    others = [program, resized(program), program]

    def call(device: str, **options: Any) -> dict[str, Any]:
        space.update({name: value for name, value in namespace(device).items() if name in ("device", "make", "host")})
        function = torch.compile(space["program"], **options) if options else space["program"]
        found = {}
        for place, other in enumerate(others):
            given = run_inputs(other, device)
            answer = {name: given[name] for name in names} | function(*(given[name] for name in names))
            found |= {f"{name} of call {place}": value for name, value in answer.items()}
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call("cpu")
        except Exception:
            return  # it is for one size
        same_compiled(call, dynamic=True)


@few(4)
@given(program=programs(VIEWS, PURE, WRITES, OUTSIDE))
def test_compiled_once_for_several_sizes(program):
    check_resized(program)


# ---------------------------------------------------------------------------------------------------------- gradients


def total(space: dict[str, Any]) -> torch.Tensor:
    """A number that depends on each element of each tensor that has a gradient."""
    found = []
    for x in tensors_in(space).values():
        if x.requires_grad and is_leaf(x) is not None:
            weights = torch.arange(x.numel(), device=x.device).remainder(5).sub(1).view(x.shape)
            found.append((x * weights).sum().to(F64))
    return sum(found) if found else torch.zeros((), requires_grad=True)


def with_gradients(space: dict[str, Any]) -> dict[str, Any]:
    """The variables, and the gradients of those that keep one after a backward pass."""
    error = None
    try:
        total(space).backward()
    except RuntimeError as raised:
        error = type(raised).__name__
    grads = {f"{name}.grad": x.grad for name, x in tensors_in(space).items() if is_leaf(x) or x.retains_grad}
    return tensors_in(space) | {name: x for name, x in grads.items() if x is not None} | {"error": str(error)}


def check_gradients(program: Program, mode: torch.tpu.EagerMode) -> None:
    with warnings.catch_warnings(), torch.tpu.set_eager_mode(mode):
        warnings.simplefilter("ignore")
        found, wanted = run(program, "tpu"), run(program, "cpu")
        same_outcome(found, wanted, program)
        same_results(with_gradients(found.space), with_gradients(wanted.space), histories=False)


@few(15)
@given(program=programs(GRADIENTS, dtypes=(F32, F64), leaves=True), mode=st.sampled_from([STRICT, FUSED]))
def test_gradients(program, mode):
    check_gradients(program, mode)


def check_compiled_gradients(program: Program) -> None:
    def call(device: str, **options: Any) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return with_gradients(call_compiled(program, device, **options))

    same_compiled(call)


@few(5)
@given(program=programs(GRADIENTS, dtypes=(F32, F64), leaves=True))
def test_gradients_of_compiled_functions(program):
    check_compiled_gradients(program)


def _of_first(function: Callable[..., dict[str, Any]]) -> Callable[..., torch.Tensor]:
    return lambda *args: sum(x.square().sum().to(F64) for x in function(*args).values())


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "vmap": lambda f, args: torch.func.vmap(f)(*(torch.stack([x, x + 1]) for x in args)),
    "vmap at the end": lambda f, args: torch.func.vmap(f, in_dims=-1, out_dims=-1)(
        *(torch.stack([x, x * 2], -1) for x in args)
    ),
    "vmap of one": lambda f, args: torch.func.vmap(f, in_dims=(0, *[None] * (len(args) - 1)))(
        torch.stack([args[0], -args[0]]), *args[1:]
    ),
    "grad": lambda f, args: torch.func.grad(_of_first(f), tuple(range(len(args))))(*args),
    "jvp": lambda f, args: torch.func.jvp(f, args, tuple(x + 1 for x in args)),
    "vjp": lambda f, args: torch.func.vjp(_of_first(f), *args)[1](torch.ones((), dtype=F64, device=args[0].device)),
    "jacrev": lambda f, args: torch.func.jacrev(_of_first(f))(*args),
    "jacfwd": lambda f, args: torch.func.jacfwd(f)(*args),
    "hessian": lambda f, args: torch.func.hessian(_of_first(f))(*args),
    "grads of samples": lambda f, args: torch.func.vmap(torch.func.grad(_of_first(f)))(
        *(torch.stack([x, x + 1]) for x in args)
    ),
    "functionalize": lambda f, args: torch.func.functionalize(f)(*args),
}


def check_transform(program: Program, name: str) -> None:
    """A transform of torch.func on both devices: both refuse, or both have the same results."""
    space, names = defined(program)
    found = []
    for device in ("tpu", "cpu"):
        given = run_inputs(program, device)
        space["device"] = device
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = TRANSFORMS[name](space["program"], tuple(given[name] for name in names))
            found.append({str(place): x for place, x in enumerate(tree_leaves(answer))})
        except Exception as error:
            found.append(error)
    if isinstance(found[0], Exception) or isinstance(found[1], Exception):
        assert isinstance(found[0], type(found[1])), f"{name}: {found[0]!r} instead of {found[1]!r}"
    else:
        same_results(*found, histories=False)


@few(15)
@given(
    program=programs(FUNCTIONAL, least=3, most=7, dtypes=(F32, F64), inputs=2), name=st.sampled_from(list(TRANSFORMS))
)
def test_transforms(program, name):
    check_transform(program, name)


# ------------------------------------------------------------------------------------------------- random and threads


def check_random(program: Program) -> None:
    """What a generator gives is the same in all modes, and so is what it then gives next."""
    found = []
    for mode in (STRICT, FUSED):
        with torch.tpu.set_eager_mode(mode):
            torch.tpu.manual_seed(11)
            outcome = run(program, "tpu")
            outcome.space["next"] = torch.rand(2, device="tpu")
            found.append(outcome)
    same_outcome(*found, program)


@few(6)
@given(program=programs(RANDOM, dtypes=(F32, F64)))
def test_random_numbers(program):
    check_random(program)


@few(3)
@given(program=programs(VIEWS, PURE, WRITES))
def test_threads(program):
    wanted = run(program, "cpu")
    found: list[Outcome] = []
    threads = [threading.Thread(target=lambda: found.append(run(program, "tpu"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for outcome in found:
        same_outcome(outcome, wanted, program)


# ------------------------------------------------------------------------------------------------------------ modules


def _drawn_sizes(draw: Callable[[Any], Any], dims: int, low: int = 1, high: int = 3) -> Any:
    """A hyper-parameter for each dimension, sometimes one number for all."""
    numbers = tuple(draw(st.integers(low, high)) for _ in range(dims))
    return numbers if draw(st.booleans()) else numbers[0]


def _convolution(draw: Callable[[Any], Any], dims: int) -> tuple[nn.Module, torch.Tensor]:
    groups = draw(st.sampled_from([1, 2]))
    transposed = draw(st.booleans())
    options = {
        "kernel_size": _drawn_sizes(draw, dims),
        "stride": _drawn_sizes(draw, dims, high=2),
        "padding": _drawn_sizes(draw, dims, 0, 2),
        "dilation": _drawn_sizes(draw, dims, high=2),
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    if not transposed:
        options["padding_mode"] = draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"]))
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    return kind(2 * groups, 2 * groups, **options), _input(draw, 2 * groups, dims)


def _input(draw: Callable[[Any], Any], channels: int, dims: int) -> torch.Tensor:
    shape = (draw(st.integers(1, 2)), channels, *(draw(st.integers(3, 6)) for _ in range(dims)))
    x = torch.arange(math.prod(shape), dtype=F64).mul(7).remainder(11).sub(5).view(shape)
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    return x.to(memory_format=last) if dims > 1 and draw(st.booleans()) else x


def _pool(draw: Callable[[Any], Any], dims: int) -> tuple[nn.Module, torch.Tensor]:
    size = draw(st.integers(2, 3))
    options = {"stride": draw(st.integers(1, 2)), "padding": draw(st.integers(0, 1)), "ceil_mode": draw(st.booleans())}
    kinds = [
        getattr(nn, f"MaxPool{dims}d")(size, dilation=draw(st.integers(1, 2)), **options),
        getattr(nn, f"AvgPool{dims}d")(size, count_include_pad=draw(st.booleans()), **options),
        getattr(nn, f"AdaptiveAvgPool{dims}d")(size),
        getattr(nn, f"AdaptiveMaxPool{dims}d")(size),
        getattr(nn, f"LPPool{dims}d")(2, size, ceil_mode=options["ceil_mode"]),
    ]
    return draw(st.sampled_from(kinds)), _input(draw, 2, dims)


def _norm(draw: Callable[[Any], Any], dims: int) -> tuple[nn.Module, torch.Tensor]:
    affine, x = draw(st.booleans()), _input(draw, 4, dims)
    kinds = [
        getattr(nn, f"BatchNorm{dims}d")(4, affine=affine, momentum=draw(st.sampled_from([0.1, None]))),
        getattr(nn, f"InstanceNorm{dims}d")(4, affine=affine, track_running_stats=draw(st.booleans())),
        nn.GroupNorm(draw(st.sampled_from([1, 2, 4])), 4, affine=affine),
        nn.LayerNorm(x.shape[-1 - draw(st.integers(0, 1)) :], elementwise_affine=affine),
        nn.RMSNorm(x.shape[-1:], elementwise_affine=affine),
        nn.LocalResponseNorm(draw(st.integers(1, 3))),
    ]
    module = draw(st.sampled_from(kinds))
    return module.train(draw(st.booleans())), x


def _recurrent(draw: Callable[[Any], Any], dims: int) -> tuple[nn.Module, torch.Tensor]:
    kind = draw(st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]))
    options = {"num_layers": draw(st.integers(1, 2)), "bidirectional": draw(st.booleans()), "bias": draw(st.booleans())}
    return kind(3, 2, batch_first=draw(st.booleans()), **options), _input(draw, 4, 1)[..., :3]


def _other(draw: Callable[[Any], Any], dims: int) -> tuple[nn.Module, torch.Tensor]:
    x = _input(draw, 4, 2)
    mode, aligned = (
        draw(st.sampled_from(["nearest", "bilinear", "bicubic", "nearest-exact", "area"])),
        draw(st.booleans()),
    )
    kinds = [
        nn.Upsample(
            scale_factor=draw(st.sampled_from([2, 1.5, 0.5])),
            mode=mode,
            align_corners=aligned if mode[0] == "b" else None,
        ),
        nn.PixelShuffle(2),
        nn.Unfold(2, dilation=draw(st.integers(1, 2)), padding=1, stride=draw(st.integers(1, 2))),
        nn.PReLU(4),
        nn.Softmax2d(),
        nn.ReflectionPad2d((1, 0, 2, 1)),
        nn.CircularPad2d(draw(st.integers(0, 2))),
        nn.Sequential(
            nn.Flatten(1), nn.LazyLinear(3, bias=draw(st.booleans())), nn.GELU(draw(st.sampled_from(["none", "tanh"])))
        ),
        nn.Sequential(nn.Flatten(2), nn.Softmin(draw(st.integers(0, 2)))),
        nn.ChannelShuffle(2),
        nn.Sequential(nn.Conv2d(4, 2, 1), nn.GLU(draw(st.integers(1, 1)))),
    ]
    return draw(st.sampled_from(kinds)), x


@st.composite
def modules(draw: Callable[[Any], Any]) -> tuple[nn.Module, torch.Tensor]:
    """A layer in double precision with hyper-parameters of all kinds, and an input."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            kind = draw(st.sampled_from([_convolution, _pool, _norm, _recurrent, _other]))
            try:
                module, x = kind(draw, draw(st.integers(1, 3)))
                module = module.double()
                copy.deepcopy(module)(x) if "Lazy" not in repr(module) else module(x)
            except (RuntimeError, ValueError, AssertionError):
                continue
            return module, x


def run_module(module: nn.Module, x: torch.Tensor, device: str) -> dict[str, Any]:
    """Results, gradients and buffers of a layer."""
    module = copy.deepcopy(module).to(device)
    x = x.detach().to(device).requires_grad_()
    answers = [y for y in tree_leaves(module(x)) if isinstance(y, torch.Tensor)]
    found = {f"result {place}": y for place, y in enumerate(answers)} | {"x": x}
    total(found).backward()
    grads = {f"{name}.grad": p.grad for name, p in module.named_parameters()} | {"x.grad": x.grad}
    return found | {name: grad for name, grad in grads.items() if grad is not None} | dict(module.named_buffers())


def check_module(module: nn.Module, x: torch.Tensor, mode: torch.tpu.EagerMode) -> None:
    wanted = run_module(module, x, "cpu")
    with torch.tpu.set_eager_mode(mode):
        found = run_module(module, x, "tpu")
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name].cpu(), value, equal_nan=True, msg=lambda text, n=name: f"{n}: {text}")


@few(8)
@given(drawn=modules(), mode=st.sampled_from([STRICT, FUSED]))
def test_modules(drawn, mode):
    check_module(*drawn, mode)
