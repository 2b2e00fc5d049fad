"""One case: PyTorch's samples on the CPU and on the device, compared with PyTorch's tolerances.

Where the CPU's results are not those of the device, the CPU's in float64 decide: it rounds between the steps of some
operators on bfloat16, and where a result is ill-conditioned, the device may be as far from the exact one as the CPU is.
Samples are made on the CPU and copied, so both sides get the same numbers. Of operators that draw random numbers on the
CPU or return uninitialized memory, shapes and dtypes are compared only. `modes.py` says how the device calls an operator,
`abroad.py` is what happens where no device is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from torch_tpu.conformance import modes
from torch_tpu.conformance.catalog import HERE, Case, dtype_of, packet

SEED = 1234
UNINITIALIZED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)


@dataclass(frozen=True)
class Result:
    """The outcome of a case."""

    case: Case
    status: str
    """passed, failed, fallback (the values are right, but the CPU made them), crashed, timeout, or skipped (the CPU
    has no such sample)."""
    samples: int = 0
    reason: str = ""
    """The first thing that went wrong."""
    by: str = ""
    """For what passed: "lowering", or "decomposition" where PyTorch's definition of an operator was traced."""
    lowerings: tuple[str, ...] = ()
    """The registry's entries that wrote its programs."""

    @property
    def fails(self) -> bool:
        return self.status not in ("passed", "skipped")

    def to_json(self) -> dict[str, Any]:
        row = self.case.to_json() | {"status": self.status, "samples": self.samples, "reason": self.reason}
        row |= {"by": self.by} if self.by else {}
        return row | ({"lowerings": list(self.lowerings)} if self.lowerings else {})

    @staticmethod
    def from_json(row: dict[str, Any]) -> Result:
        status, samples, reason = row["status"], row["samples"], row["reason"]
        return Result(Case.from_json(row), status, samples, reason, row.get("by", ""), tuple(row.get("lowerings", ())))


class Skip(Exception):
    """The CPU does not take this sample, or there is nothing to judge in it; the message says what, if it matters."""


class Far(AssertionError):
    """Values differ by more than the tolerances; shapes, dtypes and devices are right."""


@dataclass(frozen=True)
class Setting:
    """What a sample is judged on."""

    info: Any
    operator: Callable[..., Any]
    """The operator as the device calls it."""
    device: str
    limits: dict[str, float]
    """PyTorch's tolerances: rtol and atol."""

    def on(self, place: str) -> Callable[..., Any]:
        """The operator, as a place calls it."""
        return self.info if place == "cpu" else self.operator


def run_case(
    info: Any, case: Case, device: str, limit: int = 0, others: Sequence[Case] = (), known: Sequence[Case] = ()
) -> Result:
    """Runs a case in this process.

    Args:
        limit: at most so many samples; 0: all.
        others: cases of the same operator, dtype and place that will follow, for what is done best together.
        known: such cases that are known to pass, for what need not be done again.
    """
    if case.place != HERE:
        from torch_tpu.conformance import abroad

        return abroad.run_case(info, case, limit, others, known)
    count, left_out = 0, ""
    with modes.entered(case.mode) as seen:
        try:
            setting = Setting(info, modes.operator(info, case.mode), device, tolerances(info, dtype_of(case.dtype)))
            for sample in samples(info, case, device, limit):
                try:
                    _CHECKS[case.phase](sample, setting)
                    count += 1
                except Skip as skip:
                    left_out = str(skip)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the result
            return Result(case, "failed", count, f"sample {count}: {type(error).__name__}: {short(error)}")
    if seen.fallbacks and case.phase != "errors":
        return Result(case, "fallback", count, ", ".join(seen.fallbacks))
    if count and case.mode == "compiled" and not seen.num_graphs:
        count, left_out = 0, modes.NO_GRAPH
    if not count:
        return Result(case, "skipped", 0, left_out)
    by = "decomposition" if seen.decomposed else "lowering"
    return Result(case, "passed", count, by=by, lowerings=tuple(sorted(seen.lowerings)))


def samples(info: Any, case: Case, device: str, limit: int) -> Iterator[Any]:
    """PyTorch's samples of a case; the seed is the same before each one is used.

    Args:
        limit: at most so many, taken evenly from all; 0: all.
    """
    torch.manual_seed(SEED)
    if case.phase == "errors":
        made = info.error_inputs(device)
    else:
        made = info.sample_inputs("cpu", dtype_of(case.dtype), requires_grad=case.phase == "backward")
    for sample in _evenly(list(made), limit) if limit else made:
        torch.manual_seed(SEED)
        yield sample


def _evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most so many, from the middles of parts of equal length: the first samples are often the simplest.

    >>> _evenly("abcdefghij", 2)
    ['c', 'h']
    """
    if len(items) <= count:
        return list(items)
    return [items[(2 * part + 1) * len(items) // (2 * count)] for part in range(count)]


def tolerances(info: Any, dtype: torch.dtype) -> dict[str, float]:
    """PyTorch's default tolerances for the dtype, widened where the operator's entry in the database says so."""
    found = []
    for decorator in info.decorators:
        for inner in getattr(decorator, "decorators", ()):
            overrides = getattr(inner, "overrides", None)
            if isinstance(overrides, dict) and dtype in overrides and hasattr(overrides[dtype], "atol"):
                found.append((overrides[dtype].rtol, overrides[dtype].atol))
    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    return {"rtol": max([rtol, *(r for r, _ in found)]), "atol": max([atol, *(a for _, a in found)])}


# ------------------------------------------------------------------------------------------------------- phases


def _forward(sample: Any, setting: Setting) -> None:
    def call(place: str, wide: bool) -> Any:
        args, kwargs = arguments(sample, place, wide)
        return setting.on(place)(*args, **kwargs)

    _judge(setting, call, _compare_determined(sample))


def _backward(sample: Any, setting: Setting) -> None:
    def call(place: str, wide: bool) -> Any:
        args, kwargs = arguments(sample, place, wide)
        return gradients(setting.on(place), sample, args, kwargs, place)

    _judge(setting, call, _compare)


def gradients(
    operator: Callable[..., Any], sample: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: str
) -> tuple[Any, ...]:
    """The gradients of all inputs that require one, for cotangents that are the same everywhere.

    Raises:
        Skip: there is nothing to differentiate.
    """
    inputs = [leaf for leaf in tree_flatten((args, kwargs))[0] if _is_tensor(leaf) and leaf.requires_grad]
    outputs = tree_flatten(sample.output_process_fn_grad(operator(*args, **kwargs)))[0]
    outputs = [leaf for leaf in outputs if _is_tensor(leaf) and leaf.requires_grad]
    if not inputs or not outputs:
        raise Skip
    generator = torch.Generator().manual_seed(SEED)
    weights = [torch.randn(leaf.shape, generator=generator).bfloat16() for leaf in outputs]
    cotangents = [weight.to(leaf.dtype).to(place) for weight, leaf in zip(weights, outputs, strict=True)]
    return torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)


def _inplace(sample: Any, setting: Setting) -> None:
    if sample.broadcasts_input or not _is_tensor(sample.input):
        raise Skip

    def call(place: str, wide: bool) -> Any:
        (target, *args), kwargs = arguments(sample, place, wide)
        returned = setting.info.get_inplace()(target, *args, **kwargs)
        if place != "cpu" and returned is not target:
            raise AssertionError("the in-place form returned another tensor")
        return target

    _judge(setting, call, _compare_determined(sample))


def _out(sample: Any, setting: Setting) -> None:
    info = setting.info
    args, kwargs = arguments(sample, "cpu")
    like, _ = reference(info, lambda: info(*args, **kwargs))

    def call(place: str, wide: bool) -> Any:
        args, kwargs = arguments(sample, place, wide)
        if wide:
            return info(*args, **kwargs)
        out = tree_map(lambda leaf: torch.zeros_like(leaf, device=place) if _is_tensor(leaf) else leaf, like)
        out = tuple(out) if isinstance(out, (list, tuple)) else out
        where = [leaf.data_ptr() for leaf in tree_flatten(out)[0]]
        info(*args, **kwargs, out=out)
        if place != "cpu" and where != [leaf.data_ptr() for leaf in tree_flatten(out)[0]]:
            raise AssertionError("out= tensors of the right size were given other memory")
        return out

    _judge(setting, call, _compare_determined(sample))


def _errors(sample: Any, setting: Setting) -> None:
    wrong = sample.sample_input
    leaves = tree_flatten((wrong.input, wrong.args, wrong.kwargs))[0]
    if "device" not in wrong.kwargs and not any(map(_is_tensor, leaves)):
        raise Skip  # it does not reach a device
    try:
        answer = setting.info(wrong.input, *wrong.args, **wrong.kwargs)
        tree_map(lambda leaf: leaf.cpu() if _is_tensor(leaf) else leaf, answer)  # it may raise only here
    except sample.error_type:
        return
    raise AssertionError(f"no {sample.error_type.__name__} was raised; expected: {sample.error_regex}")


_CHECKS: dict[str, Callable[[Any, Setting], None]] = {
    "forward": _forward,
    "backward": _backward,
    "inplace": _inplace,
    "out": _out,
    "errors": _errors,
}


# --------------------------------------------------------------------------------------------------- comparison


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


_WIDER = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def arguments(sample: Any, place: str, wide: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Fresh arguments of a sample on a device: what a call writes must not be seen by the next.

    Args:
        wide: floating point numbers in float64, complex ones in complex128.
    """

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device(place)
        if isinstance(leaf, torch.dtype):
            return _WIDER.get(leaf, leaf) if wide else leaf
        if not _is_tensor(leaf):
            return leaf
        if leaf.layout != torch.strided:
            raise Skip
        dtype = _WIDER.get(leaf.dtype, leaf.dtype) if wide else leaf.dtype
        return leaf.detach().clone().to(place, dtype).requires_grad_(leaf.requires_grad)

    kwargs = {name: tree_map(move, value) for name, value in sample.kwargs.items()}
    if kwargs.get("device") == "cpu":
        kwargs["device"] = place
    return tuple(tree_map(move, item) for item in (sample.input, *sample.args)), kwargs


def reference(info: Any, call: Callable[[], Any]) -> tuple[Any, bool]:
    """What the CPU gives, and whether its values are determined; where it raises there is nothing to compare."""
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call()
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError):
        raise Skip from None
    return answer, torch.equal(state, torch.get_rng_state()) and not _is_random(info)


def _is_random(info: Any) -> bool:
    """The entry's function seeds a generator itself, or the values are whatever was in memory."""
    names = getattr(getattr(info.op, "__code__", None), "co_names", ())
    return "wrapper_set_seed" in names or packet(info) in UNINITIALIZED


Compare = Callable[[Any, Any, Setting, bool], None]
"""Of actual and expected results, and whether the values are determined."""


def _judge(setting: Setting, call: Callable[[str, bool], Any], compare: Compare) -> None:
    """The device gives what the CPU gives, or what it gives in float64, or something at least as near to that."""
    expected, fixed = reference(setting.info, lambda: call("cpu", False))
    actual = call(setting.device, False)
    try:
        compare(actual, expected, setting, fixed)
    except AssertionError as error:
        try:
            exact, _ = reference(setting.info, lambda: call("cpu", True))
        except Skip:
            raise error from None
        leaves, structure = tree_flatten(expected)
        pairs = list(zip(tree_flatten(exact)[0], leaves, strict=True))
        if not any(_is_tensor(leaf) and wide.dtype is not leaf.dtype for wide, leaf in pairs):
            raise
        rounded = [wide.to(leaf.dtype) if _is_tensor(leaf) else wide for wide, leaf in pairs]
        try:
            compare(actual, tree_unflatten(rounded, structure), setting, fixed)
        except Far:
            if not as_near(tree_flatten(actual)[0], leaves, [wide for wide, _ in pairs]):
                raise


def as_near(found: Sequence[Any], expected: Sequence[Any], exact: Sequence[Any]) -> bool:
    """Whether the largest errors of results are at most those of the expected ones; what is no float must be equal."""
    if len(found) != len(expected):
        return False
    for one, other, truth in zip(found, expected, exact, strict=True):
        if not _is_tensor(other):
            if one != other:
                return False
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        one, other = one.detach().cpu(), other.detach()
        if not (other.dtype.is_floating_point or other.dtype.is_complex):
            if not torch.equal(one, other):
                return False
            continue
        ours, theirs = ((value.to(truth.dtype) - truth.detach()).abs() for value in (one, other))
        if ours.numel() and not (ours.isfinite().all() and ours.max() <= theirs.max()):
            return False
    return True


def _compare_determined(sample: Any) -> Compare:
    """As `_compare`; where results differ, only what the sample says is determined: not the sign of an eigenvector."""

    def compare(actual: Any, expected: Any, setting: Setting, fixed: bool) -> None:
        try:
            _compare(actual, expected, setting, fixed)
        except AssertionError:
            process = sample.output_process_fn_grad
            _compare(process(actual), process(expected), setting, fixed)

    return compare


def _compare(actual: Any, expected: Any, setting: Setting, fixed: bool) -> None:
    got, wanted = tree_flatten(actual)[0], tree_flatten(expected)[0]
    if len(got) != len(wanted):
        raise AssertionError(f"{len(got)} results instead of {len(wanted)}")
    for one, other in zip(got, wanted, strict=True):
        if not _is_tensor(other):
            if fixed and one != other and not isinstance(other, torch.device):
                raise AssertionError(f"{one!r} instead of {other!r}")
            continue
        if one.device.type != torch.device(setting.device).type:
            raise AssertionError(f"a result is on {one.device}")
        if one.shape != other.shape or one.dtype != other.dtype:
            raise AssertionError(f"{list(one.shape)} {one.dtype} instead of {list(other.shape)} {other.dtype}")
        if fixed:
            rtol, atol = _limits_for(other.dtype, setting.limits)
            try:
                torch.testing.assert_close(one.detach().cpu(), other.detach(), equal_nan=True, rtol=rtol, atol=atol)
            except AssertionError as error:
                raise Far(str(error)) from None


def _limits_for(dtype: torch.dtype, limits: dict[str, float]) -> tuple[float, float]:
    """A result's tolerances: exact for integers, otherwise at least the defaults of its dtype."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return 0.0, 0.0
    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    return max(rtol, limits["rtol"]), max(atol, limits["atol"])


def short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
