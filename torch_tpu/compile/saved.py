"""Compiled graphs in PyTorch's AOTAutograd cache: the next process traces with Dynamo, and finds the rest done.

PyTorch keeps the cache where Inductor's is, reads it with pickle, and looks graphs up by what Dynamo traced, the inputs,
its own version and its settings; what else they depend on is given to it here as an attribute of the graph. XLA's
programs are not in it: they are in a cache of their own (`runtime/cache.py`), which executes nothing that it reads.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from torch import SymFloat, fx
from torch._functorch import config
from torch._guards import detect_fake_mode
from torch._higher_order_ops.effects import with_effects
from torch._inductor import codecache
from torch._inductor.output_code import OutputCode

import torch_tpu
from torch_tpu.compile.decompositions import table
from torch_tpu.compile.interpreter import STRIDES, strides_of
from torch_tpu.compile.options import Options
from torch_tpu.eager import origins
from torch_tpu.eager.observe import observers
from torch_tpu.runtime import platform

try:
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch.fx import _graph_pickler
except ImportError:  # PyTorch has moved them: graphs are not kept
    SerializableAOTDispatchCompiler = None  # type: ignore[assignment,misc]


class SavedGraph(OutputCode):
    """What AOTAutograd can keep: it is pickled as what it was made from, and made anew.

    Subclasses are made from (module, options, *rest), where all but the module can be pickled.
    """

    holds_tensors = False
    """Whether arrays on the device are part of it."""
    needs_values = True
    """Whether it takes the fake tensors of its nodes to make it; they are most of what is pickled."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __init__(self, module: fx.GraphModule, options: Options, *rest: Any):
        super().__init__()
        self.options = options
        self._made_from: tuple[Any, ...] = (module, options, *rest)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """When one is read, or copied.

        Raises:
            RuntimeError: it was kept by another version of this package, or for another platform. Dynamo finds its packages
                (`caching_precompile`) by the function's source alone; it traces a function again whose package it cannot read.
        """
        if "_made_for" in state and state["_made_for"] != _depends_on(state["_made_from"][1]):
            raise RuntimeError("a compiled graph was kept by another torch_tpu, or for another platform")
        self.__dict__ = state

    def prepare_for_serialization(self) -> None:
        """Of a copy that is to be pickled."""
        module, *rest = self._made_from
        if self.holds_tensors:
            raise BypassAOTAutogradCache("the graph holds tensors on the device")
        if any(node.target is with_effects for node in module.graph.nodes):
            raise BypassAOTAutogradCache("PyTorch does not pass tokens of effects to a graph that it has read")
        kept = {"val", "stack_trace"} if self.needs_values else {STRIDES, "stack_trace"}
        for node in module.graph.nodes:
            if node.op == "call_function" and (strides := strides_of(node)) is not None:
                node.meta[STRIDES] = strides
        options = _graph_pickler.Options(ops_filter=None, node_metadata_key_filter=kept.__contains__)
        try:
            data = _graph_pickler.GraphPickler.dumps(module, options)
        except Exception as error:
            raise BypassAOTAutogradCache(f"the graph cannot be pickled: {error}") from error
        self.__dict__ = {"_made_from": (data, *rest), "_made_for": _depends_on(self.options)}

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Of one that was read."""
        data, options, *rest = self._made_from
        fake_mode = detect_fake_mode(example_inputs)
        assert fake_mode is not None, "AOTAutograd reads its cache with fake inputs"
        module: Any = _graph_pickler.GraphPickler.loads(data, fake_mode)
        for body in module.modules():  # graphs are read without their code; the whole one is only interpreted
            if body is not module and isinstance(body, fx.GraphModule):
                body.recompile()
        self.__init__(module, options, *rest)  # type: ignore[misc]

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass


def can_keep(module: fx.GraphModule, options: Options) -> bool:
    """Whether a graph can be kept: nobody looks on, and no float varies.

    PyTorch finds the graph of a float's first value for its second, with a guard that it be the first.
    """
    return (
        options.serializable
        and SerializableAOTDispatchCompiler is not None
        and options.debug_callback is None
        and not (origins.recording or observers)  # lines that are shown must be today's
        and platform.client().runs
        and not any(isinstance(node.meta.get("example_value"), SymFloat) for node in module.graph.nodes)
    )


def keepable(compiler: Callable[..., Any]) -> Any:
    """A compiler of AOTAutograd's whose results are `SavedGraph`s."""
    return SerializableAOTDispatchCompiler(SavedGraph, compiler)


@contextlib.contextmanager
def kept(module: fx.GraphModule, options: Options) -> Iterator[None]:
    """While AOTAutograd compiles one of Dynamo's graphs: it is looked up, and kept with its backward graph."""
    module.torch_tpu = _depends_on(options)  # type: ignore[assignment]
    try:
        with config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True), _without_inductor():
            yield
    finally:
        del module.torch_tpu


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """Meanwhile keys are made without Inductor's own backends, whose import takes a second of CPU."""
    none = {
        "init_backend_registration": lambda: None,
        "custom_backend_passes": {},
        "custom_backend_codegen_configs": {},
    }
    with contextlib.ExitStack() as stack:
        for name, value in none.items():
            if hasattr(codecache, name):
                stack.enter_context(mock.patch.object(codecache, name, value))
        yield


def _depends_on(options: Options) -> str:
    """A digest of what decides how a graph is decomposed and divided, besides PyTorch and its settings.

    Ours decide how its calls are lowered, which is done when it runs.
    """
    decomposed = sorted(map(str, table()))
    found = (torch_tpu.__version__, _sources(), repr(options), platform.choose(), decomposed)
    return hashlib.sha256(repr(found).encode()).hexdigest()


@cache
def _sources() -> tuple[tuple[str, int, int], ...]:
    """This package's files, for those who change them."""
    root = Path(torch_tpu.__file__).parent
    found = ((path, path.stat()) for path in sorted(root.rglob("*.py")))
    return tuple((str(path.relative_to(root)), stat.st_size, stat.st_mtime_ns) for path, stat in found)
