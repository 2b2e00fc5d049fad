"""From a function to the programs it runs on a TPU that is not there.

The function runs on a compile-only device (torch_tpu/runtime/compile_only.py): the dispatch, the recorder and the lowerings
are those that run on the TPU itself, and so the programs are the same ones, with the same names in the caches.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.eval_frame import OptimizedModule
from torch.utils._pytree import tree_map

from torch_tpu import _frames, _plug, errors, settings
from torch_tpu.aot.compiled import Compiled
from torch_tpu.aot.utilization import ModelFlops, model_flops
from torch_tpu.eager import origins
from torch_tpu.eager.program import aval_id, num_bytes
from torch_tpu.errors import NoValueError
from torch_tpu.runtime import client as clients
from torch_tpu.runtime import compile_only, platform
from torch_tpu.runtime.compile_only import KEPT_BYTES, Absent, CompileOnlyClient
from torch_tpu.runtime.topology import Topology
from torch_tpu.tensor import views

MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
UNLIMITED = 1 << 30
UNLIMITED_RECOMPILES = {"recompile_limit": UNLIMITED, "accumulated_recompile_limit": UNLIMITED}
"""Of Dynamo: whoever plans captures the same code many times."""


@contextlib.contextmanager
def device(topology: str | Topology) -> Iterator[CompileOnlyClient]:
    """Meanwhile the device "tpu" is one of these TPUs, which need not be there; for all threads.

    Tensors take no memory and have no values: build modules in here, or on the device "meta" and give them to `stand_in`.
    What was built on another device "tpu" before must not be written to.

    Args:
        topology: a generation (v5e, v5p, v6e, v7x) and a number of chips, such as "v6e-8".

    Raises:
        ValueError: there is no such topology.
        PlatformError: the TPU compiler (the package libtpu) is not installed.
    """
    client = compile_only.client(Topology.parse(topology))
    _plug.flush()
    state = torch.tpu.get_rng_state() if platform.is_started() else None
    recording, origins.recording = origins.recording, True
    with platform.using(client):
        try:
            yield client
        finally:
            _plug.flush()
            origins.recording = recording
    if state is not None:
        torch.tpu.set_rng_state(state)


def compile(
    function: Callable[..., Any] | torch.nn.Module,
    inputs: Sequence[Any] | torch.Tensor = (),
    topology: str | Topology = "v6e-1",
    *,
    kwargs: Mapping[str, Any] | None = None,
    optimizer: MakeOptimizer | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    data_parallel: bool = False,
    warm_up: int = 1,
    whole: bool = True,
    tokens: int | None = None,
) -> Compiled:
    """Captures what a function or a module runs on a TPU. Compiling happens when the result is asked for its figures.

    Args:
        function: a module on any device, "meta" among them, or a function. A module without `optimizer` is called without
            gradients, and sees `torch.compiler.is_compiling()`. A function is called as it is: what it uses besides its arguments must have been made within
            `device(topology)`.
        inputs, kwargs: its arguments; a tensor is the only one. Tensors in them may be of any device, and fake; only sizes, strides and dtypes
            matter. Modules in them are replaced as `function` is.
        topology: as `device`.
        optimizer: makes the captured step a training step: called with the module's parameters, such as
            `torch.optim.AdamW`. Gradients are freed before its end, by a hook of the optimizer. An optimizer that reads
            values, such as Adafactor, is captured as `torch.compile` makes it.
        loss: of the module's output; by default its `loss`, an attribute or an item, or the output itself.
        data_parallel: the module trains under DistributedDataParallel, on every device of the topology, and `inputs` are
            one device's share.
        warm_up: calls before the one that is captured: the first step of an optimizer makes its state, and the second
            one of DistributedDataParallel orders its buckets.
        whole: everything is one program, as far as nothing reads a value in between. Otherwise the current eager mode
            decides.
        tokens: how many a call handles on each device, for the report's throughput. A language model of Transformers says
            it by its inputs.

    Raises:
        TypeError: there is nothing to call.
        ValueError: there is no such topology, or the output has no loss.
        NoValueError: the function reads the value of a tensor, or the optimizer does, compiled too.
        FallbackError: an operator has no lowering.
        PlatformError: the TPU compiler is not installed.
    """
    if not callable(function):
        raise TypeError(f"what is compiled is a function or a module, and then its arguments, not {function!r}")
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    options: dict[str, Any] = {"fallback": "error"}
    if whole:
        options |= {"eager_mode": "fused", "fuse_least": UNLIMITED, "fuse_most": UNLIMITED, "fuse_bytes": UNLIMITED**2}
    with device(topology) as client, settings.override(**options), contextlib.ExitStack() as group:
        args, named = stand_in(list(inputs)), stand_in(dict(kwargs or {}))
        if data_parallel:
            group.enter_context(_world(client.topology.devices))
        notes: list[str] = []
        target = _target(function, optimizer, loss, data_parallel, notes)
        for _ in range(max(warm_up, 2) if data_parallel else warm_up):
            target(*args, **named)
            _plug.flush()
        client.started.clear()
        answer = target(*args, **named)
        _plug.flush()  # with the answer alive: it is what the last program returns
        del answer
        runs = tuple(client.started)
        client.started.clear()
    known, found = _language_model(function, [*inputs, *(kwargs or {}).values()], trained=optimizer is not None)
    name = getattr(function, "__qualname__", type(function).__name__)
    return Compiled(client.topology, runs, name, found if tokens is None else tokens, model=known, notes=tuple(notes))


def _language_model(function: Any, inputs: Sequence[Any], *, trained: bool) -> tuple[ModelFlops | None, int | None]:
    """FLOPs of a token, and the number of tokens, where a model says what it is and is given a batch of sequences."""
    sequences = [x for x in inputs if isinstance(x, torch.Tensor) and x.dim() == 2 and not x.dtype.is_floating_point]
    if not isinstance(function, torch.nn.Module) or not sequences:
        return None, None
    found = model_flops(function, sequences[0].shape[1], "train" if trained else "forward")
    return found, None if found is None else sequences[0].numel()


_frames.entrances.add(compile.__code__)


def _target(
    function: Any,
    optimizer: MakeOptimizer | None,
    loss: Callable[[Any], torch.Tensor] | None,
    data_parallel: bool,
    notes: list[str],
) -> Callable[..., Any]:
    """What is called: a training step, a module without gradients, or the function itself. It may add to the notes."""
    if not isinstance(function, torch.nn.Module):
        if optimizer is not None:
            raise TypeError(f"optimizer= trains a module, not {type(function).__name__}; do the steps in the function")
        return function
    model = stand_in(function)
    if data_parallel:
        model = torch.nn.parallel.DistributedDataParallel(model)

    def call(*args: Any, **kwargs: Any) -> Any:
        with _seen_as_compiling():
            return model(*args, **kwargs)

    if optimizer is None:
        return torch.no_grad()(call)
    made = optimizer([p for p in model.parameters() if p.requires_grad])
    if inspect.signature(made.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(made).__name__} calls the model several times a step, as its losses say; there is no one program of that: "
            "plan it with another optimizer, or capture a function of what it calls"
        )
    update = _Update(made, notes)
    return _training_step(call, update, loss)


_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.KEYWORD_ONLY, default=None)


@contextlib.contextmanager
def _world(size: int) -> Iterator[None]:
    """Meanwhile this process is rank 0 of so many, of which the others are not there."""
    dist.init_process_group("tpu_dist", store=dist.HashStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _seen_as_compiling() -> Iterator[None]:
    """Meanwhile `torch.compiler.is_compiling()`, which models ask before they look at values; torch.export does the same."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


class _Update:
    """An optimizer's step, compiled if it reads values: in a graph these are data of the program."""

    def __init__(self, optimizer: torch.optim.Optimizer, notes: list[str]):
        # Before the end of the step, where the recording is cut: gradients that live on would be results of the program.
        optimizer.register_step_post_hook(lambda stepped, *_: stepped.zero_grad())
        self._name = type(optimizer).__name__
        self._step: Callable[[], Any] = optimizer.step
        self._compiled = False
        self._notes = notes

    def __call__(self) -> None:
        if not self._compiled:
            try:
                self._step()
                return
            except NoValueError:
                self._step, self._compiled = torch.compile(self._step, dynamic=False), True
                self._notes.append(
                    f"{self._name} reads values, and so its step is captured compiled: "
                    "torch.compile(optimizer.step), with torch._dynamo.config.capture_scalar_outputs"
                )
        try:
            with torch._dynamo.config.patch({"capture_scalar_outputs": True, **UNLIMITED_RECOMPILES}):
                self._step()
        except NoValueError as error:
            raise errors.NoValueError(
                errors.message(
                    f"the optimizer reads the values of a tensor: {self._name}.step",
                    why="it does so even where torch.compile captures it",
                    do="take another one, or take what reads tensors (item, cpu, print, if) out of it",
                    see=errors.page(NoValueError),
                )
            ) from error


def _training_step(
    model: Callable[..., Any], update: _Update, loss: Callable[[Any], torch.Tensor] | None
) -> Callable[..., torch.Tensor]:
    def evaluate(*args: Any, **kwargs: Any) -> torch.Tensor:
        output = model(*args, **kwargs)  # which ends with this function, and so is no result of the program
        return _loss_of(output) if loss is None else loss(output)

    def step(*args: Any, **kwargs: Any) -> torch.Tensor:
        value = evaluate(*args, **kwargs)
        value.backward()
        update()
        return value.detach()

    return step


def _loss_of(output: Any) -> torch.Tensor:
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        shown = f"a tensor of shape {list(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise ValueError(
            f"a training step needs a loss: the module returned {shown}, where a tensor of one element was expected, or an "
            "output whose `loss` is one; give it labels, or pass loss=, a function of its output, to aot.compile"
        )
    return found


def stand_in(tree: Any) -> Any:
    """A copy, on the device "tpu", of the tensors and modules in a tree of lists, tuples and dictionaries.

    Within `device` no memory is taken and no value is copied, except of small tensors on the CPU. The modules may be on
    any device, also on "meta"; shared parameters stay shared.
    """
    made: dict[int, Any] = {}
    """By the id of an original; also the memo of `copy.deepcopy`."""

    def replace(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return _tensor(leaf, made)
        if isinstance(leaf, torch.nn.Module):
            for tensor in (*leaf.parameters(), *leaf.buffers()):
                _tensor(tensor, made)
            for module in leaf.modules():
                if isinstance(module, OptimizedModule):  # copies would lose torch.compile's `dynamic`
                    made[id(module.dynamo_ctx)] = module.dynamo_ctx
            return copy.deepcopy(leaf, made)
        return leaf

    return tree_map(replace, tree, is_leaf=lambda leaf: isinstance(leaf, torch.nn.Module))


def _tensor(tensor: torch.Tensor, made: dict[int, Any]) -> torch.Tensor:
    found: torch.Tensor | None = made.get(id(tensor))
    if found is not None:
        return found
    if (
        tensor.device.type == "cpu"
        and tensor.nbytes <= KEPT_BYTES
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    ):
        data = tensor.detach().to("tpu")
    else:
        data = _absent(tensor)
    result = torch.nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else data
    result.requires_grad_(tensor.requires_grad)
    made[id(tensor)] = result
    return result


def _absent(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of this one's size, strides and dtype whose array has no values."""
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    order = views.physical_order(shape, stride)
    if order is None:
        order, stride = tuple(range(len(shape))), views.contiguous_strides(shape)
    made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device="tpu")
    if not made.numel():
        return made
    held, physical = tensor.dtype, tuple(shape[dim] for dim in order)
    if held is torch.complex32:  # which XLA lacks: pairs
        held, physical = torch.float16, (*physical, 2)
    array = Absent(physical, clients.NUMPY[held])
    _plug.set_value(made, array, aval_id(physical, held), num_bytes(physical, held))
    return made
