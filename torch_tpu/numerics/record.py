"""One run of a model on the CPU: what each module was called with, what it returned, and how to call it again alone."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu.conformance.models.recipe import tensors

Move = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Call:
    """One call of a module. Tensors are copies, since modules may write in place what they get."""

    name: str
    """As in `named_modules`; empty for the model itself."""
    index: int
    """The how many-th call of this module it is, from 0."""
    kind: str
    """The class."""
    args: tuple[Any, ...] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    output: Any = field(repr=False, default=None)
    inside: list[Call] = field(repr=False, default_factory=list)
    """The calls that it made itself, in order."""
    draws: bool = False
    """It drew random numbers."""


def record(model: nn.Module, run: Callable[[], Any]) -> list[Call]:
    """Runs a model; returns its calls in the order they ended: a module's after those inside it, the model's last."""
    copies = _Copies()
    open_calls: list[tuple[Call, torch.Tensor]] = []
    calls: list[Call] = []

    def before(name: str, index: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        call = Call(name, index, type(module).__name__, copies(args), copies(kwargs))
        open_calls.append((call, torch.get_rng_state()))

    def after(name: str, index: int, output: Any) -> None:
        call, state = open_calls.pop()
        while (call.name, call.index) != (name, index):  # one inside has failed, which was expected
            call, state = open_calls.pop()
        call.output = copies(output)
        call.draws = not torch.equal(state, torch.get_rng_state())
        calls.append(call)
        if open_calls:
            open_calls[-1][0].inside.append(call)

    with watched(model, after, before), StableSorts():
        run()
    return calls


class StableSorts(TorchDispatchMode):
    """Sorts keep the order of equal elements, as the device's do; PyTorch leaves it open, and its CPU does not.

    Without it the tokens that a mixture of experts gathers for an expert stand in different orders on both sides.
    """

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op is torch.ops.aten.sort.default:
            names = dict(zip(("self", "dim", "descending"), args)) | kwargs
            return torch.ops.aten.sort.stable(names.pop("self"), stable=True, **names)
        return op(*args, **kwargs)


@contextlib.contextmanager
def watched(
    model: nn.Module,
    after: Callable[[str, int, Any], None],
    before: Callable[[str, int, nn.Module, Any, Any], None] | None = None,
) -> Iterator[None]:
    """Sees every call of every module: its name, the how many-th call of it, and what goes in or comes out."""
    begun: Counter[str] = Counter()
    open_indices: defaultdict[str, list[int]] = defaultdict(list)
    handles = []

    def hooks(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def start(module: nn.Module, args: Any, kwargs: Any) -> None:
            open_indices[name].append(begun[name])
            begun[name] += 1
            if before is not None:
                before(name, open_indices[name][-1], module, args, kwargs)

        def end(module: nn.Module, args: Any, output: Any) -> None:
            after(name, open_indices[name].pop(), output)

        return start, end

    for name, module in model.named_modules():
        start, end = hooks(name)
        handles.append(module.register_forward_pre_hook(start, with_kwargs=True))
        handles.append(module.register_forward_hook(end))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Copies:
    """Copies of values as they are now; a tensor that is seen again unchanged has one copy."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        return pytree.tree_map(self._one, value)

    def _one(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return _copied(x)
        if x.is_inference():  # which has no version
            return x.clone()
        key = id(x), x._version
        if key not in self._made:
            self._made[key] = x, copied(x)  # x itself too, so that no other tensor gets its id
        return self._made[key][1]


def _copied(value: Any) -> Any:
    """Objects that hold tensors, such as caches, may be written by the call that they are given to."""
    if isinstance(value, (nn.Module, str, int, float, bool, type(None), torch.dtype, torch.device)):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - what cannot be copied is shared
        return value


def moved(value: Any, move: Move) -> Any:
    """The same with copies of its tensors, moved, and the CPU where it names that as a device replaced by theirs."""

    def one(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return move(x)
        if isinstance(x, torch.device) and x.type == "cpu":
            return move(torch.empty(0)).device
        return _copied(x)

    return pytree.tree_map(one, value)


def copied(x: torch.Tensor) -> torch.Tensor:
    """A tensor with the same values, of its own."""
    return x.detach().clone()


def own_results(call: Call) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What a module's own code returned and gave to modules inside, by a path: what it made, and what it passed on."""
    known = {id(x) for value in (call.args, call.kwargs) for x in pytree.tree_leaves(value)}
    known |= {id(x) for inner in call.inside for x in pytree.tree_leaves(inner.output)}
    handed = [(inner.name, inner.args, inner.kwargs) for inner in call.inside]
    found = dict(_paths(call.output, handed))
    made = {path: x for path, x in found.items() if id(x) not in known}
    return made, {path: x for path, x in found.items() if path not in made}


def _paths(output: Any, handed: Sequence[tuple[str, Any, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    yield from tensors(output)
    for place, (name, args, kwargs) in enumerate(handed):
        for path, x in tensors({"args": args, "kwargs": kwargs}):
            yield f"{place} to {name}: {path}", x


def call_alone(modules: Mapping[str, nn.Module], call: Call, move: Move) -> dict[str, torch.Tensor]:
    """What a module's own code makes of what it was called with; modules inside answer as they did in the recording.

    Args:
        modules: by name, in another dtype or on another device.
        move: brings the recorded tensors there.

    Returns:
        The tensors of `own_results`.
    """
    handed: list[tuple[str, Any, Any]] = []
    waiting: dict[str, Iterator[Any]] = {}
    for name in dict.fromkeys(inner.name for inner in call.inside):
        waiting[name] = iter([inner.output for inner in call.inside if inner.name == name])

    def answer(name: str) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            handed.append((name, moved(args, copied), moved(kwargs, copied)))
            for output in waiting[name]:
                return moved(output, move)
            raise RuntimeError(f"{name} is called more often than on the CPU")

        return forward

    replaced = [modules[name] for name in waiting]
    try:
        for name in waiting:
            modules[name].forward = answer(name)
        with torch.no_grad():
            output = modules[call.name](*moved(call.args, move), **moved(call.kwargs, move))
    finally:
        for module in replaced:
            del module.forward
    return dict(_paths(output, handed))
