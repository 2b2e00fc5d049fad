"""One line a case: an operator's result on the device against PyTorch's CPU result of the same call.

    check("logaddexp", (4, 5), (5,))                        # two random tensors, forward and gradient
    check("add", [1, inf], (2,), dtypes=REDUCED, alpha=2)   # a list is a tensor of these values
    check(lambda x: x[:, 1].mul_(2), strided(4, 6))         # a layout of one's own
    check_in_place("mul", (3, 4), (4,))                     # x.mul_(y), also on a view of a larger tensor
    check_out("mul", (3, 4), (4,))                          # out= of the right size, of a wrong one, and strided
    check_error("mul", (3,), (4,), match="must match")      # PyTorch's error type, and this text

Tolerances are `torch.testing.assert_close`'s own; where the two differ by more, the device must be at least as near to
the result in double precision. No check passes if an operator ran on the CPU in the device's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch.testing import assert_close, make_tensor

import torch_tpu

inf, nan = float("inf"), float("nan")
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
I64, I32, U8, BOOL, C64 = torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64

FLOATS = (F32, BF16)
INTS = (I64, I32, U8)
NUMBERS = (F32, BF16, I64)
ALL = (F32, BF16, I64, BOOL)

NAMESPACES = (torch.nn.functional, torch.linalg, torch, torch.special, torch.fft, torch.Tensor, torch.ops.aten)

Maker = Callable[[torch.dtype], torch.Tensor]


# ------------------------------------------------------------------------------------------------------- inputs


def random(*shape: int, low: float | None = None, high: float | None = None, dtype: torch.dtype | None = None) -> Maker:
    """Random values between two bounds, of a dtype of their own if one is given."""

    def make(given: torch.dtype) -> torch.Tensor:
        wanted = dtype or given
        bounds = (-2, 2) if low is None and (wanted.is_floating_point or wanted.is_complex) else (low, high)
        return make_tensor(shape, dtype=wanted, device="cpu", low=bounds[0], high=bounds[1])

    return make


def index(*shape: int, high: int, low: int = 0) -> Maker:
    """int64 values in [low, high)."""
    return lambda given: torch.randint(low, high, shape)


def mask(*shape: int) -> Maker:
    return lambda given: torch.rand(shape) > 0.5


def values(data: Any, dtype: torch.dtype | None = None) -> Maker:
    """These values; booleans stay booleans."""
    plain = torch.tensor(data)
    return lambda given: plain if plain.dtype is BOOL and dtype is None else torch.tensor(data, dtype=dtype or given)


def strided(*shape: int) -> Maker:
    """Every second element of a larger tensor, from the second one on."""
    wide = tuple(size * 2 + 1 for size in shape)
    return lambda given: make_tensor(wide, dtype=given, device="cpu")[tuple(slice(1, None, 2) for _ in shape)]


def transposed(*shape: int) -> Maker:
    """The last two dimensions are in the other order in memory."""
    return lambda given: make_tensor((*shape[:-2], shape[-1], shape[-2]), dtype=given, device="cpu").mT


def expanded(*shape: int) -> Maker:
    """All rows are the same memory."""
    return lambda given: make_tensor((1, *shape[1:]), dtype=given, device="cpu").expand(shape)


def channels_last(*shape: int) -> Maker:
    return lambda given: make_tensor(shape, dtype=given, device="cpu").to(memory_format=torch.channels_last)


def fixed(given: Maker) -> Maker:
    """A tensor that PyTorch has no gradient for."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        made = given(dtype)
        made.fixed = True
        return made

    return make


def host(value: float | bool | complex, dtype: torch.dtype) -> Maker:
    """A 0-dim tensor that stays on the CPU."""
    made = torch.tensor(value, dtype=dtype)
    made.stays = True
    return lambda given: made


LAYOUTS = (strided, transposed, expanded)


def _make(given: Any, dtype: torch.dtype) -> Any:
    """A shape, a list of values, a tensor or a maker as a CPU tensor; anything else as it is."""
    if isinstance(given, torch.Size) or (isinstance(given, tuple) and all(type(size) is int for size in given)):
        return random(*given)(dtype)
    if isinstance(given, list):
        return torch.tensor(given, dtype=dtype)
    return given(dtype) if callable(given) else given


def to_device(x: Any) -> Any:
    """The tensor with the same strides, offset and untouched elements between on the device."""
    if not isinstance(x, torch.Tensor) or hasattr(x, "stays"):
        return x
    count = x.untyped_storage().nbytes() // x.dtype.itemsize
    flat = x.detach().as_strided((count,), (1,), 0).to("tpu")
    return flat if count == x.numel() and x.dim() == 1 and x.is_contiguous() else _as(flat, x)


def _as(flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return flat.as_strided(x.shape, x.stride(), x.storage_offset()).detach()


def _find(call: str | Callable[..., Any]) -> Callable[..., Any]:
    if callable(call):
        return call
    for namespace in NAMESPACES:
        if callable(getattr(namespace, call, None)):
            return getattr(namespace, call)
    raise ValueError(f"no function {call!r} in {', '.join(space.__name__ for space in NAMESPACES)}")


# ------------------------------------------------------------------------------------------------------- checks


def tensors(answer: Any) -> list[torch.Tensor]:
    """All tensors of a result, in order."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    if isinstance(answer, dict):
        answer = list(answer.values())
    return [t for item in answer for t in tensors(item)] if isinstance(answer, (list, tuple)) else []


def same(found: Any, expected: Any, note: str = "") -> None:
    """Both have the same tensors (dtypes, shapes, values within PyTorch's tolerances) and other values."""
    assert type(found) is type(expected), f"{note}: {type(found).__name__} instead of {type(expected).__name__}"
    if isinstance(expected, torch.Tensor):
        assert_close(
            found.detach().cpu(),
            expected.detach(),
            equal_nan=True,
            msg=lambda text: f"{note}: {text}" if note else text,
        )
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), note
        for one, other in zip(found, expected, strict=True):
            same(one, other, note)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, nan_ok=True), note
    else:
        assert found == expected, note


def check(
    call: str | Callable[..., Any],
    *inputs: Any,
    dtypes: Iterable[torch.dtype] = (F32,),
    grad: bool = True,
    strides: bool = False,
    **named: Any,
) -> None:
    """The device computes what the CPU does.

    Args:
        call: a function, or its name in torch, torch.nn.functional, torch.special, .linalg, .fft or torch.Tensor.
        inputs: for each argument a shape, a list of values, a maker of this module, or the argument itself.
        dtypes: of the tensors that are given by shape or values; the check is repeated for each.
        grad: compare gradients as well, where PyTorch has them.
        strides: compare the results' strides as well.
        named: keyword arguments; makers of this module are made.
    """
    function = _find(call)
    for dtype in dtypes:
        torch.manual_seed(7)
        arguments = [_make(given, dtype) for given in inputs]
        keywords = {name: _make(given, dtype) if callable(given) else given for name, given in named.items()}
        _Case(function, arguments, keywords, grad, f"{_name(call)} {dtype}").compare(strides)


def _name(call: str | Callable[..., Any]) -> str:
    return call if isinstance(call, str) else call.__qualname__


class _Case:
    """One call with its inputs, for the CPU, for the device and, where these two differ, in double precision."""

    def __init__(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any], grad: bool, note: str
    ):
        self.function, self.arguments, self.keywords, self.note = function, arguments, keywords, note
        self.given = [x for x in (*arguments, *keywords.values()) if isinstance(x, torch.Tensor)]
        self.differentiable = [
            grad and (x.is_floating_point() or x.is_complex()) and not hasattr(x, "stays") and not hasattr(x, "fixed")
            for x in self.given
        ]
        self.weights: list[torch.Tensor] = []
        self.twins = self.leaves(to_device)
        self.exact = self.leaves(_widened)
        self.own = self.leaves(lambda x: x)

    def leaves(self, move: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        moved = [move(x) for x in self.given]
        return [x.detach().requires_grad_() if wanted else x for x, wanted in zip(moved, self.differentiable)]

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        rest = iter(inputs)

        def one(x: Any) -> Any:
            return next(rest) if isinstance(x, torch.Tensor) else x

        positional = [one(x) for x in self.arguments]
        return self.function(*positional, **{name: one(x) for name, x in self.keywords.items()})

    def compare(self, strides: bool) -> None:
        before = dict(torch_tpu.stats()["fallbacks"])
        with torch_tpu.settings.override(fallback="count"):
            expected, found = self.run(self.own), self.run(self.twins)
            self.same(found, expected, self.note, lambda: self.run(self.exact))
            for one, other in zip(tensors(found), tensors(expected), strict=True):
                assert one.device.type == "tpu" or hasattr(other, "stays"), f"{self.note}: a result on {one.device}"
                assert one.requires_grad == other.requires_grad, f"{self.note}: requires_grad is {one.requires_grad}"
                assert not strides or _steps(one) == _steps(other), f"{self.note}: {one.stride()}, not {other.stride()}"
            self.compare_gradients(expected, found)
        assert dict(torch_tpu.stats()["fallbacks"]) == before, f"{self.note}: {torch_tpu.fallback_reasons()}"

    def compare_gradients(self, expected: Any, found: Any) -> None:
        results = tensors(expected)
        kept = [place for place, x in enumerate(results) if x.requires_grad]
        if not kept or not any(self.differentiable):
            return
        self.weights = [random(*results[p].shape, low=-1, high=1)(results[p].dtype) for p in kept]

        def gradients(answer: Any, inputs: list[torch.Tensor], move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
            chosen = [x for x, wanted in zip(inputs, self.differentiable) if wanted]
            kept_results = [tensors(answer)[place] for place in kept]
            return torch.autograd.grad(kept_results, chosen, [move(w) for w in self.weights], allow_unused=True)

        reference = gradients(expected, self.own, lambda w: w)
        answer = gradients(found, self.twins, lambda w: w.to("tpu"))
        exact = self.leaves(_widened)
        self.same(answer, reference, f"gradient of {self.note}", lambda: gradients(self.run(exact), exact, _widened))

    def same(self, found: Any, expected: Any, note: str, exact: Callable[[], Any]) -> None:
        """They are equal within PyTorch's tolerances, or the device is at least as near to the exact result."""
        try:
            same(found, expected, note)
        except AssertionError:
            for one, other, truth in zip(tensors(found), tensors(expected), tensors(exact()), strict=True):
                if one.shape != other.shape or one.dtype is not other.dtype or not _nearer(one.cpu(), other, truth):
                    raise


def _widened(x: torch.Tensor) -> torch.Tensor:
    """In double precision."""
    wide = torch.complex128 if x.is_complex() else F64 if x.is_floating_point() else x.dtype
    return x.detach().to(wide, copy=True)


def _nearer(found: torch.Tensor, expected: torch.Tensor, truth: torch.Tensor) -> bool:
    if not (found.is_floating_point() or found.is_complex()):
        return False
    wide = torch.complex128 if found.is_complex() else F64
    ours, theirs = ((x.detach().to(wide) - truth.detach()).abs() for x in (found, expected))
    return bool(ours.isfinite().all()) and bool(ours.max() <= theirs.max())


def _steps(x: torch.Tensor) -> list[int]:
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size != 1]


def check_in_place(
    name: str, *inputs: Any, dtypes: Iterable[torch.dtype] = (F32,), grad: bool = False, **named: Any
) -> None:
    """x.name_(...) on a tensor, and on a strided view of a larger one, whose other elements stay as they are."""
    method = getattr(torch.Tensor, name + "_")

    def plain(x: Any, *rest: Any, **named: Any) -> Any:
        x = x.clone()
        assert method(x, *rest, **named) is x
        return x

    def view(x: Any, *rest: Any, **named: Any) -> Any:
        base = torch.ones([size * 2 + 1 for size in x.shape], dtype=x.dtype, device=x.device)
        part = base[tuple(slice(1, None, 2) for _ in x.shape)]
        part.copy_(x)
        method(part, *rest, **named)
        return base

    check(plain, *inputs, dtypes=dtypes, grad=grad, **named)
    check(view, *inputs, dtypes=dtypes, grad=grad, **named)


def check_out(
    name: str | Callable[..., Any], *inputs: Any, dtypes: Iterable[torch.dtype] = (F32,), **named: Any
) -> None:
    """out= of the right size, an empty one that is resized, and a strided one whose gaps stay as they are."""
    function = _find(name)

    def into(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            plain = function(*arguments, **named)
            outs = [make(x) for x in tensors(plain)]
            given = outs[0] if isinstance(plain, torch.Tensor) else tuple(outs)
            answer = function(*arguments, **named, out=given)
            assert all(one is other for one, other in zip(tensors(answer), outs, strict=True))
            return [out if out._base is None else out._base for out in outs]

        return run

    def gaps(x: torch.Tensor) -> torch.Tensor:
        return torch.ones([size * 2 for size in x.shape], dtype=x.dtype, device=x.device)[
            (slice(None, None, 2),) * x.dim()
        ]

    check(into(torch.zeros_like), *inputs, dtypes=dtypes, grad=False, **named)
    check(into(lambda x: x.new_empty(0)), *inputs, dtypes=dtypes, grad=False, strides=True, **named)
    check(into(gaps), *inputs, dtypes=dtypes, grad=False, **named)


def check_layouts(call: str | Callable[..., Any], shape: tuple[int, ...], *rest: Any, **named: Any) -> None:
    """The first argument in every layout: steps, a transposed and an expanded tensor; channels_last with 4 dims."""
    for layout in LAYOUTS + ((channels_last,) if len(shape) == 4 else ()):
        check(call, layout(*shape), *rest, **named)


def check_error(
    call: str | Callable[..., Any],
    *inputs: Any,
    error: type[BaseException] | None = None,
    match: str = "",
    dtype: torch.dtype = F32,
    **named: Any,
) -> None:
    """The device raises what the CPU raises (or `error`), with a text that matches."""
    function = _find(call)
    arguments = [_make(given, dtype) for given in inputs]
    with pytest.raises(Exception) as expected:
        function(*arguments, **named)
    with pytest.raises(error or expected.type, match=match), torch_tpu.settings.override(fallback="count"):
        function(*map(to_device, arguments), **named)
        torch.tpu.synchronize()
