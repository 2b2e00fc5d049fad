"""A model on the device against the same model on the CPU: runs both, and measures layers and gradients."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from torch_tpu import settings
from torch_tpu.conformance.models.recipe import loss_of, short, tensors
from torch_tpu.errors import message
from torch_tpu.numerics.measures import Errors, ShapeDiffers, Tolerance, measure
from torch_tpu.numerics.record import Call, Move, StableSorts, call_alone, copied, moved, own_results, record, watched
from torch_tpu.numerics.results import GradientResult, LayerResult, PrecisionResult, Report
from torch_tpu.runtime import platform

PRECISIONS = ("exact", "medium", "high", "highest")
Loss = Callable[[Any], torch.Tensor]


def available(device: str = "tpu") -> tuple[str, ...]:
    """The settings that a device has: "exact" where it can do without rounding, and the MXU's three."""
    if torch.device(device).type != "tpu":
        return ("exact",)
    return PRECISIONS if platform.client().platform == "cpu" else PRECISIONS[1:]


def compare(
    model: nn.Module,
    inputs: Any,
    *,
    device: str = "tpu",
    precisions: Sequence[str] = (),
    rtol: float | None = None,
    atol: float | None = None,
    backward: bool = False,
    loss: Loss = loss_of,
    train: bool = False,
    alone: bool = True,
    name: str = "",
    progress: Callable[[str], None] = lambda what: None,
) -> Report:
    """Compares every layer of a model on a device with PyTorch's CPU.

    Args:
        model: on the CPU; copies of it run, in evaluation mode.
        inputs: a tensor, a tuple of arguments, or a mapping of arguments by name.
        precisions: "exact", "medium", "high", "highest"; empty: all that the device has (see `available`). On the CPU
            platform the last three are emulated.
        rtol, atol: of an element, by default those of `torch.testing.assert_close` for its dtype.
        backward: compare the parameters' gradients as well.
        loss: a number made of what the model returns; its own if it returns one, else a weighted sum.
        train: run in training mode instead.
        alone: call each layer by itself as well, with the CPU's inputs, to tell errors made from errors handed on.
        name: of the report; the class's by default.
        progress: told what is being done.

    Raises:
        ValueError: there is no such device or it has no such precision, a tolerance is negative, or the model has no values
            or draws random numbers.
    """
    tolerance = Tolerance(rtol, atol)
    tolerance.check()
    _check(model, device)
    chosen = tuple(precisions) or available(device)
    for precision in chosen:
        if precision not in available(device):
            raise ValueError(f"{device} has no precision {precision!r} here; it has {', '.join(available(device))}")
    model = copy.deepcopy(model).train(train)
    wanted_loss = loss if backward else None
    progress("cpu")
    calls, gradients = _recorded(copy.deepcopy(model), inputs, wanted_loss)
    exact = _in_float64(model, calls) if alone else [None] * len(calls)
    results = []
    for precision in chosen:
        progress(precision)
        with at(precision, device):
            twin = copy.deepcopy(model).to(device)
            layers, found = _whole(twin, moved(inputs, _to(device)), calls, wanted_loss, tolerance)
            if alone:
                modules, move = dict(twin.named_modules()), _to(device)
                layers = [_alone(modules, move, *given, tolerance) for given in zip(calls, exact, layers, strict=True)]
            results.append(PrecisionResult(precision, tuple(layers), _gradients(found, gradients, tolerance)))
    return Report(name or type(model).__name__, device, tolerance, tuple(results))


def _check(model: nn.Module, device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch is built without it
        raise ValueError(f"nothing can be compared on the device {device!r}: {str(error).splitlines()[0]}") from None
    missing = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if missing:
        raise ValueError(f"{missing[0]} is on the device meta and has no values to compare; build the model on the CPU")


@contextlib.contextmanager
def at(precision: str, device: str = "tpu") -> Iterator[None]:
    """Runs a block at one of `available(device)`."""
    if torch.device(device).type != "tpu":
        yield
        return
    exact = precision == "exact"
    with settings.override(matmul_precision="highest" if exact else precision, emulate_matmul_rounding=not exact):
        yield


def _to(device: str) -> Move:
    return lambda x: x.detach().to(device, copy=True)


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to(torch.float64 if x.is_floating_point() else x.dtype, copy=True)


def _run(model: nn.Module, inputs: Any, loss: Loss | None) -> dict[str, torch.Tensor]:
    """Forward and, with a loss, backward; returns the gradients."""
    with torch.set_grad_enabled(loss is not None):
        if isinstance(inputs, Mapping):
            result = model(**inputs)
        else:
            result = model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)
        if loss is not None:
            loss(result).backward()
    return {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}


def _recorded(model: nn.Module, inputs: Any, loss: Loss | None) -> tuple[list[Call], dict[str, torch.Tensor]]:
    """The CPU's run.

    Raises:
        ValueError: the model draws random numbers.
    """
    gradients: dict[str, torch.Tensor] = {}
    calls = record(model, lambda: gradients.update(_run(model, moved(inputs, copied), loss)))
    drawn = next((call for call in calls if call.draws), None)
    if drawn is not None:
        raise ValueError(
            message(
                f"{drawn.name or 'the model'} ({drawn.kind}) draws random numbers, which differ between devices",
                why="dropout or noise is on" + (": the model is in training mode" if model.training else ""),
                do="compare in evaluation mode (train=False), or set the probability to 0",
            )
        )
    return calls, gradients


def _in_float64(model: nn.Module, calls: Sequence[Call]) -> list[dict[str, torch.Tensor] | None]:
    """What each layer's own code gives in float64; None where it does not run so."""
    modules = dict(copy.deepcopy(model).double().named_modules())
    found: list[dict[str, torch.Tensor] | None] = []
    for call in calls:
        try:
            with StableSorts():
                found.append(call_alone(modules, call, _widened))
        except Exception:  # noqa: BLE001 - code may name its dtypes
            found.append(None)
    return found


def _whole(
    model: nn.Module, inputs: Any, calls: Sequence[Call], loss: Loss | None, tolerance: Tolerance
) -> tuple[list[LayerResult], dict[str, torch.Tensor]]:
    """The device's run: each layer's accumulated errors, measured as the layer ends, and the gradients."""
    expected = {(call.name, call.index): dict(tensors(call.output)) for call in calls}
    seen: dict[tuple[str, int], Errors | str] = {}

    def after(name: str, index: int, output: Any) -> None:
        wanted = expected.get((name, index))
        if wanted is not None:
            seen[name, index] = _measured(dict(tensors(output)), wanted, tolerance)

    with watched(model, after):
        gradients = _run(model, inputs, loss)
    layers = []
    for call in calls:
        errors = seen.get((call.name, call.index), "not called on the device")
        shape = next((tuple(x.shape) for _, x in tensors(call.output)), ())
        known, note = (errors, "") if isinstance(errors, Errors) else (None, errors)
        layers.append(LayerResult(call.name, call.index, call.kind, shape, not call.inside, known, note=note))
    return layers, gradients


def _alone(
    modules: Mapping[str, nn.Module],
    move: Move,
    call: Call,
    truth: Mapping[str, torch.Tensor] | None,
    layer: LayerResult,
    tolerance: Tolerance,
) -> LayerResult:
    """The layer with the errors of its own code on the device, against the CPU and against float64."""
    expected, passed = own_results(call)
    try:
        found: Any = call_alone(modules, call, move)
        altered = _measured(found, passed, tolerance)
        if isinstance(altered, str) or altered.noise or not altered.within:
            expected = {**passed, **expected}  # the device's code made anew what the CPU's passes on
        errors = _measured(found, expected, tolerance)
    except Exception as error:  # noqa: BLE001 - a layer may need what only the whole model gives it
        errors = short(error)
    if isinstance(errors, str):
        return replace(layer, note="; ".join(filter(None, [layer.note, f"alone: {errors}"])))
    if truth is None or not expected.keys() <= truth.keys():
        return replace(layer, isolated=errors)
    exact = {name: truth[name] for name in expected}
    cpu, device = (_measured(x, exact, tolerance, wider=True) for x in (expected, found))
    if isinstance(cpu, str) or isinstance(device, str):
        return replace(layer, isolated=errors)
    return replace(layer, isolated=errors, cpu_error=cpu, device_error=device)


def _measured(
    found: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    tolerance: Tolerance,
    *,
    wider: bool = False,
) -> Errors | str:
    """The errors of all tensors of a result, or why they cannot be compared."""
    total = Errors()
    for name, wanted in expected.items():
        if name not in found:
            return f"without {name}"
        try:
            total += measure(found[name], wanted, tolerance, wider=wider)
        except ShapeDiffers as error:
            return str(error)
    return total


def _gradients(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], tolerance: Tolerance
) -> tuple[GradientResult, ...]:
    results = []
    for name, wanted in reversed(list(expected.items())):
        errors = measure(found[name], wanted, tolerance) if name in found else None
        results.append(GradientResult(name, tuple(wanted.shape), errors))
    extra = [GradientResult(name, tuple(x.shape), None) for name, x in found.items() if name not in expected]
    return (*results, *extra)
