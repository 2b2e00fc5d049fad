"""One model on a device: the same weights and inputs on both sides, then outputs, gradients, a step and tokens compared."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from torch_tpu.conformance.models import build
from torch_tpu.conformance.models.recipe import SEED, NotApplicable, Recipe, loss_of, primary, scatter, short, tensors
from torch_tpu.stats import counters

MODES = ("strict", "fused", "compiled")
NUM_TOKENS = 3
RATE = 1e-3

TIGHT = {"output": 1e-5, "loss": 1e-5, "gradient": 1e-4, "step": 1e-5}
"""The largest error, relative to the largest value of the tensor; see `_limits_of_rounding` for deep models."""
MEAN_SQUARE = 0.10
SMALL_SQUARE = 0.05
PERPLEXITY = 0.10


@dataclass(frozen=True, order=True)
class ModelCase:
    """What is judged as one: a model in a mode."""

    library: str
    name: str
    mode: str

    def __str__(self) -> str:
        return f"{self.library}/{self.name} {self.mode}"


@dataclass(frozen=True)
class ModelResult:
    """The outcome of a case."""

    case: ModelCase
    status: str
    """passed, failed, fallback (right, but the CPU made a part), crashed, timeout, or n/a (the CPU cannot run it)."""
    reason: str = ""
    architecture: str = ""
    """The class."""
    family: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    """The largest relative error of each phase that was run."""
    notes: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)
    compiles: int = 0
    seconds: float = 0.0
    parameters: int = 0

    @property
    def fails(self) -> bool:
        return self.status not in ("passed", "n/a")

    def to_json(self) -> dict[str, Any]:
        row = asdict(self)
        return row.pop("case") | row

    @staticmethod
    def from_json(row: dict[str, Any]) -> ModelResult:
        values = dict(row)
        case = ModelCase(values.pop("library"), values.pop("name"), values.pop("mode"))
        return ModelResult(case, **values)


@dataclass
class Run:
    """What one side computed, on the CPU."""

    outputs: dict[str, torch.Tensor]
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    primary: str
    tokens: torch.Tensor | None = None
    random: bool = False
    notes: list[str] = field(default_factory=list)


def judge(case: ModelCase, device: str) -> ModelResult:
    """Runs a model on the CPU and on the device in this process, and compares."""
    start = time.perf_counter()
    try:
        recipe, reference = _prepared(case.library, case.name)
    except NotApplicable as error:
        return ModelResult(case, "n/a", str(error)[:600])
    counted, before = counters.compiles, dict(counters.fallbacks)
    status, reason = "passed", ""
    phases: dict[str, float] = {}
    try:
        phases, reference = _judge(recipe, reference, device, case.mode)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
        status, reason = "failed", short(error)
        refused = _refused_on_the_cpu(recipe, reference) if case.mode == "compiled" else ""
        if refused:
            status, reason = "n/a", f"PyTorch does not compile it for the CPU either: {refused}"
    fallen = {op: n - before.get(op, 0) for op, n in counters.fallbacks.items() if n != before.get(op, 0)}
    if status == "passed" and fallen:
        status, reason = "fallback", ", ".join(fallen)
    return ModelResult(
        case,
        status,
        reason,
        recipe.name or type(recipe.model).__name__,
        recipe.family,
        phases,
        "; ".join(reference.notes),
        fallen,
        counters.compiles - counted,
        round(time.perf_counter() - start, 2),
        sum(parameter.numel() for parameter in recipe.model.parameters()),
    )


@lru_cache(maxsize=1)
def _prepared(library: str, name: str) -> tuple[Recipe, Run]:
    """A model and its reference, kept for the next mode."""
    recipe = build.recipe(library, name)
    return recipe, _cpu_run(recipe)


def _judge(recipe: Recipe, reference: Run, device: str, mode: str) -> tuple[dict[str, float], Run]:
    """Errors by phase, and what they were measured against.

    A difference must show with other weights too: where a rounding error moves a number over a kink (of ReLU, of a
    maximum, of the choice of an expert), both sides are right and gradients differ.
    """
    zeros = mode == "compiled"
    actual = measure(recipe, device, mode, generate=reference.tokens is not None)
    try:
        return compare(actual, reference, zeros=zeros), reference
    except AssertionError as error:
        first = short(error)
    limits = _limits_of_rounding(recipe, reference)
    if limits != TIGHT:
        with contextlib.suppress(AssertionError):
            phases = compare(actual, reference, zeros=zeros, limits=limits)
            reference.notes.append(f"{first}; within twice the CPU's own distance from float64")
            return phases, reference
    recipe = replace(recipe, model=copy.deepcopy(recipe.model))
    scatter(recipe.model, SEED + 1)
    other = _cpu_run(recipe)
    other.notes.append(f"with the first weights: {first}")
    actual = measure(recipe, device, mode, generate=other.tokens is not None)
    return compare(actual, other, zeros=zeros), other


def _limits_of_rounding(recipe: Recipe, reference: Run) -> dict[str, float]:
    """TIGHT, or twice what the CPU's float32 differs from float64, where that is more: in deep models errors add up."""

    def widen(values: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, values)

    model = copy.deepcopy(recipe.model).double()
    wide = replace(recipe, model=model, inputs=widen(recipe.inputs), labels=widen(recipe.labels))
    try:
        with _Float64():
            exact = measure(wide, "cpu", "strict", generate=False)
        for held in (exact.outputs, exact.gradients, exact.parameters):
            held.update({name: t.float() if t.is_floating_point() else t for name, t in held.items()})
        own = compare(reference, exact, limits=dict.fromkeys(TIGHT, math.inf))
    except Exception:  # noqa: BLE001 - a model may not be made for float64
        return TIGHT
    return {phase: max(limit, 2 * own.get(phase, 0.0)) for phase, limit in TIGHT.items()}


class _Float64(TorchDispatchMode):
    """Calls that ask for float32, as losses do that may be given bfloat16, get float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(
            torch.dtype, lambda d: torch.float64 if d == torch.float32 else d, (args, kwargs or {})
        )
        return func(*args, **kwargs)


def _cpu_run(recipe: Recipe) -> Run:
    """The reference; where only `generate` fails on the CPU, it is left out."""
    try:
        run = measure(recipe, "cpu", "strict", generate=recipe.generate)
        if run.random:
            run.notes.append("draws random numbers, so shapes and dtypes are compared only")
        return run
    except _GenerateError as error:
        run = measure(recipe, "cpu", "strict", generate=False)
        run.notes.append(f"generate does not run on the CPU: {error}")
        return run
    except Exception as error:
        raise NotApplicable(short(error)) from error


def _refused_on_the_cpu(recipe: Recipe, reference: Run) -> str:
    """Why PyTorch's compiler alone, without one for a device, cannot run a model; empty where it can."""
    try:
        measure(recipe, "cpu", "compiled", generate=reference.tokens is not None)
    except Exception as error:  # noqa: BLE001 - any failure to compile
        return short(error)
    return ""


class _GenerateError(Exception):
    """`generate` failed."""


def measure(recipe: Recipe, device: str, mode: str, *, generate: bool) -> Run:
    """Generation, forward, loss, backward and one step of AdamW on a copy of the model."""
    model: Any = copy.deepcopy(recipe.model).to(device)
    inputs, labels = _to(recipe.inputs, device), _to(recipe.labels, device)
    with _mode(mode, device):
        if mode == "compiled":
            torch._dynamo.reset()  # models share code of Transformers, and what is kept for each piece of code is limited
            model.forward = torch.compile(model.forward, backend="aot_eager" if device == "cpu" else "tpu")
        torch.manual_seed(SEED)
        tokens = _generate(model, inputs) if generate else None
        state = torch.get_rng_state()
        outputs = model(**inputs, **labels)
        loss = loss_of(outputs)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
        named = dict(model.named_parameters())
        return Run(
            {name: value.detach().cpu() for name, value in tensors(outputs)},
            loss.detach().cpu(),
            {name: p.grad.detach().cpu() for name, p in named.items() if p.grad is not None},
            {name: p.detach().cpu() for name, p in named.items()},
            primary(outputs)[0],
            tokens,
            device == "cpu" and not torch.equal(state, torch.get_rng_state()),
        )


@contextlib.contextmanager
def _mode(mode: str, device: str) -> Iterator[None]:
    if mode == "fused" and device != "cpu":
        with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):  # type: ignore[attr-defined]
            yield
    else:
        yield


def _generate(model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id = None, 0
    if getattr(settings, "decoder_start_token_id", 0) is None and settings.bos_token_id is None:
        settings.decoder_start_token_id = 0
    skipped = ("decoder_input_ids",)
    given = {name: value for name, value in inputs.items() if name not in skipped}
    try:
        with torch.no_grad():
            answer = model.generate(**given, max_new_tokens=NUM_TOKENS, do_sample=False, num_beams=1)
    except Exception as error:
        raise _GenerateError(short(error)) from error
    if not torch.is_tensor(answer):
        answer = getattr(answer, "sequences", None)
        if not torch.is_tensor(answer):
            raise _GenerateError("it returns no tensor")
    return answer.cpu()


# ------------------------------------------------------------------------------------------------------ outputs


def _to(value: Any, device: str) -> Any:
    if torch.is_tensor(value):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _to(item, device) for name, item in value.items()}
    return [_to(item, device) for item in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------------ criteria


def compare(
    actual: Run, expected: Run, *, zeros: bool = False, limits: Mapping[str, float] = TIGHT
) -> dict[str, float]:
    """The largest relative errors by phase.

    Args:
        zeros: weights that the loss does not depend on may have zeros for a gradient instead of none, as AOTAutograd
            gives them on every device.
        limits: the most that each phase's error may be.

    Raises:
        AssertionError: something differs by more than it may.
    """
    _same_shapes(actual, expected, zeros)
    if expected.random:  # and its notes say so
        return {}
    size = float(expected.outputs[expected.primary].abs().nan_to_num(posinf=0.0).max())
    errors = {"loss": _error(actual.loss, expected.loss, floor=min(1.0, size))}  # a sum of both signs may cancel
    for name, value in expected.outputs.items():
        if value.is_floating_point():
            errors["output"] = _worst(errors, "output", _error(actual.outputs[name], value, floor=1e-4), name, limits)
        elif not torch.equal(actual.outputs[name], value):
            raise AssertionError(f"output {name} differs")
    _check_reference(actual, expected)
    largest = max((float(g.abs().max()) for g in expected.gradients.values() if g.numel()), default=0.0)
    for name, gradient in expected.gradients.items():
        error = _error(actual.gradients[name], gradient, floor=1e-3 * largest)
        errors["gradient"] = _worst(errors, "gradient", error, name, limits)
        step = _step_error(actual, expected, name, noise=1e-3 * largest)
        errors["step"] = _worst(errors, "step", step, name, limits)
    if expected.tokens is not None:
        if actual.tokens is None or not torch.equal(actual.tokens, expected.tokens):
            raise AssertionError(f"tokens {actual.tokens} instead of {expected.tokens}")
        errors["generate"] = 0.0
    if errors["loss"] > limits["loss"]:
        raise AssertionError(f"loss {actual.loss.item()} instead of {expected.loss.item()}")
    return {name: float(f"{value:.2g}") for name, value in errors.items()}


def _worst(errors: Mapping[str, float], phase: str, error: float, name: str, limits: Mapping[str, float]) -> float:
    if not error <= limits[phase]:
        raise AssertionError(f"{phase} {name}: relative error {error:.2g}, at most {limits[phase]:.2g}")
    return max(errors.get(phase, 0.0), error)


def _error(actual: torch.Tensor, expected: torch.Tensor, floor: float) -> float:
    """The largest difference over the largest value; infinities and NaNs must be in the same places."""
    if not expected.numel():
        return 0.0
    actual, expected = actual.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()) or not torch.equal(
        actual[~finite].nan_to_num(), expected[~finite].nan_to_num()
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    actual, expected = actual[finite], expected[finite]
    return float((actual - expected).abs().max() / max(float(expected.abs().max()), floor, 1e-12))


def _step_error(actual: Run, expected: Run, name: str, noise: float) -> float:
    """The error of the new weights, where the gradient is more than rounding: AdamW's first step is its sign."""
    gradient, value = expected.gradients[name], expected.parameters[name]
    if not gradient.numel():
        return 0.0
    clear = gradient.abs() > max(1e-2 * float(gradient.abs().max()), noise)
    if not clear.any():
        return 0.0
    return _error(actual.parameters[name][clear], value[clear], floor=RATE)


def _same_shapes(actual: Run, expected: Run, zeros: bool) -> None:
    if sorted(actual.outputs) != sorted(expected.outputs):
        raise AssertionError(f"outputs {sorted(actual.outputs)} instead of {sorted(expected.outputs)}")
    for name, value in expected.outputs.items():
        got = actual.outputs[name]
        if got.shape != value.shape or got.dtype != value.dtype:
            raise AssertionError(f"output {name}: {list(got.shape)} {got.dtype}, not {list(value.shape)} {value.dtype}")
    differing = sorted(set(actual.gradients) ^ set(expected.gradients))
    if zeros:
        differing = [name for name in differing if name in expected.gradients or actual.gradients[name].any()]
    if differing:
        raise AssertionError(f"{len(differing)} weights have a gradient only here or only there: {differing[:3]}")


def _check_reference(actual: Run, expected: Run) -> None:
    """The criteria by which large sweeps of models are judged: perplexity, or the mean square error."""
    got, wanted = actual.outputs[expected.primary].double(), expected.outputs[expected.primary].double()
    if expected.loss.item() > 0 and expected.primary == "logits":
        ratio = float((actual.loss.double() - expected.loss.double()).exp())
        if not abs(ratio - 1) <= PERPLEXITY:
            raise AssertionError(f"perplexity differs by {abs(ratio - 1):.2g}")
    finite = wanted.isfinite()
    square = float((got[finite] - wanted[finite]).square().mean())
    if not (square < SMALL_SQUARE or square <= MEAN_SQUARE * float(wanted[finite].square().mean())):
        raise AssertionError(f"mean square error {square:.2g}")
