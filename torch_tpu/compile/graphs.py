"""Graphs at run time: a graph is called like an operator, and its programs are in the call cache.

A call of a graph with new shapes, views or numbers has no entry there; `miss_graph` then interprets the graph and
installs one. What cannot be lowered after all is found out at that moment: the graph is then split around it.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import get_metrics_context
from torch._guards import TracingContext

from torch_tpu import _plug, ops, recompiles, settings
from torch_tpu.compile import aliases, bounded, bounded_trace, splitting
from torch_tpu.compile.bounds import Bounds
from torch_tpu.compile.interpreter import CannotLower, Interpreter
from torch_tpu.compile.options import CompiledProgram, Options
from torch_tpu.compile.saved import SavedGraph
from torch_tpu.eager import configure, signature
from torch_tpu.eager.call import Call, Codes
from torch_tpu.eager.observe import observers
from torch_tpu.eager.program import Program
from torch_tpu.errors import BoundedError
from torch_tpu.hlo import Value
from torch_tpu.hlo.dims import DifferentSizes
from torch_tpu.runtime import platform
from torch_tpu.stats import counters
from torch_tpu.tensor import views

log = logging.getLogger(__name__)

_graphs: weakref.WeakValueDictionary[int, Graph] = weakref.WeakValueDictionary()
_pool = ThreadPoolExecutor(2, thread_name_prefix="torch_tpu compile")
_compiling: dict[bytes, Future[None]] = {}
"""For graphs with `async_compile`, by the signature of the call."""


class NotCompiledYet(Exception):
    """A program is being compiled in the background."""


def why_compiled() -> str:
    """While Dynamo compiles a function again: which guard of which earlier time did not hold. Else nothing."""
    noted: dict[str, Any] = getattr(get_metrics_context(), "_metrics", {})
    reason = noted.get("recompile_reason")
    if not reason or not get_metrics_context().in_progress():
        return ""
    traced = getattr(TracingContext.try_get(), "traced_code", None)
    name = traced[0].co_qualname if traced else "a function"
    return f"{name} was compiled again, since a guard failed: {' '.join(reason.split())}"


class Graph(SavedGraph):
    """A compiled graph: called with a list of arguments, returns its outputs.

    It is one program for each set of shapes. Where a call of it cannot be lowered it is several, with that call in
    between.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        options: Options,
        kind: str,
        name: str,
        bounds: Bounds | None = None,
        between: Collection[int] = (),
    ):
        """
        Args:
            bounds: of sizes that vary, which graphs of one function share.
            between: the inputs that other parts of a split graph make.
        """
        self.bounds = bounds or Bounds(options)
        super().__init__(module, options, kind, name, self.bounds)
        ops.load()
        self._boxed_call = True  # in the instance, because wrappers copy what is there
        self.module = module
        self.kind = kind
        """"forward", "backward" or "inference"."""
        self.name = name
        self.reason = why_compiled()
        """Why Dynamo compiled the function again, until it is told."""
        self.between = between
        self.bounded: bounded.BoundedRun | None = None
        """How it runs with sizes that vary, if it can."""
        self._first_sizes: tuple[int, ...] | None = None
        aliases.look_at_inputs(module)
        self.attributes = lift_attributes(module)
        """Device tensors that the graph holds itself: further arguments."""
        self.holds_tensors = bool(self.attributes)
        self._run: Callable[[list[Any]], Any] = self._call_program
        apart = splitting.refused(module, platform.choose())
        self.needs_values = bool(apart) or not splitting.is_plain(module)
        if apart:
            self._split(apart)
        else:
            inputs = module.graph.find_nodes(op="placeholder")
            kinds, written = [_kind(node) for node in inputs], splitting.written_inputs(module)
            self.number = _plug.define_graph(kinds, written, kind)
            _graphs[self.number] = self
            self._plan(written, {})

    def _plan(self, written: set[int], same: bounded.Same) -> None:
        """Prepares for sizes that vary."""
        try:
            plan = bounded.plan(self.module, same, self.between)
        except BoundedError as error:
            self.specialize(str(error))
            return
        if plan is not None:
            self.needs_values = True
            self.bounded = bounded.BoundedRun(self.module, plan, self.bounds, written, self.kind)
            _graphs[self.bounded.number] = self
            self._run = self._call_bounded

    def __call__(self, args: list[Any]) -> Any:  # type: ignore[override]
        configure.configure()  # here, so that the device does not start where a graph is read
        return self._run(args)

    def _call_program(self, args: list[Any]) -> Any:
        args += self.attributes
        try:
            if observers:
                return observers[-1].graph_called(self, args, partial(_plug.call_graph, self.number))
            return _plug.call_graph(self.number, args)
        except CannotLower as error:
            self._split({error.node})
            del args[len(args) - len(self.attributes) :]
        except NotCompiledYet:
            return fx.Interpreter(self.module).run(*args)
        return self._run(args)

    def _has_first_sizes(self, args: list[Any]) -> bool:
        """Whether a training graph is called with the sizes of its first call.

        They have a program of their own, without padding: often training goes on with them, and they only seem to vary
        because something else called the same code before.
        """
        if self.kind == "inference" or self.bounded is None:
            return False
        try:
            sizes = tuple(self.bounded.plan.bind(args))
        except BoundedError:
            return False
        if self._first_sizes is None:
            self._first_sizes = sizes
        return sizes == self._first_sizes

    def _call_bounded(self, args: list[Any]) -> Any:
        if self._has_first_sizes(args):
            return self._call_program(args)
        assert self.bounded is not None
        args += self.attributes
        try:
            if observers:
                return observers[-1].graph_called(self, args, self.bounded)
            return self.bounded(args)
        except BoundedError as error:
            same = bounded.equate(self.bounded.plan, error.sizes, args) if isinstance(error, DifferentSizes) else None
            if same is None:
                self.specialize(str(error))
            else:
                self._plan(self.bounded.all_written, same)
            del args[len(args) - len(self.attributes) :]
        except NotCompiledYet:
            return fx.Interpreter(self.module).run(*args)
        return self._run(args)

    def specialize(self, reason: str) -> None:
        """From now on makes a program for each set of sizes."""
        counters.specialized += 1
        log.info("%s is compiled for each set of sizes: %s", self.name, reason)
        self.bounded = None
        self._run = self._call_program

    def _split(self, apart: Collection[fx.Node]) -> None:
        """From now on runs programs for the parts that can be lowered, and the nodes `apart` in between."""
        whole, programs = splitting.split(self.module, apart)
        inputs = whole.graph.find_nodes(op="placeholder")
        given = set(inputs) - {inputs[place] for place in self.between}
        for call in whole.graph.find_nodes(op="call_module"):
            name = str(call.target)
            part = getattr(whole, name)
            assert isinstance(part, fx.GraphModule)
            delattr(whole, name)
            if name in programs:
                between = {place for place, source in enumerate(call.args) if source not in given}
                part_name = f"{self.name}_{name.rpartition('_')[2]}"
                graph = Graph(part, self.options, self.kind, part_name, self.bounds, between)
                graph.reason = self.reason
                setattr(whole, name, _Unboxed(graph))
            else:
                setattr(whole, name, _InBetween(part))
        count = len(apart)

        def run(args: list[Any]) -> Any:
            counters.calls_in_between += count
            return whole(*args, *self.attributes)

        self._run = run


class _Unboxed:
    """A part of a split graph, called as a module is."""

    def __init__(self, graph: Graph):
        self.graph = graph

    def __call__(self, *args: Any) -> Any:
        return self.graph(list(args))


class _InBetween(fx.Interpreter):
    """The calls between two programs of a split graph. Who watches is told of each."""

    def __call__(self, *args: Any) -> Any:
        return self.run(*args) if observers else self.module(*args)

    def run_node(self, n: fx.Node) -> Any:
        with observers[-1].node_run(n):
            return super().run_node(n)


def _kind(node: fx.Node) -> str:
    value = node.meta.get("val")
    return "tensor" if value is None or isinstance(value, torch.Tensor) else "other"


def miss_graph(
    number: int, args: list[Any], codes: Codes, avals: list[int], donated: list[int], key: bytes | None
) -> None:
    """Makes the entry for a call of a graph with a new signature; the arguments are those of `dispatch.miss`.

    Raises:
        CannotLower: a node is not in a program's power.
        NotCompiledYet: the option `async_compile` is set, and the call's program is not ready.
        BoundedError: nor is it with sizes that vary.
    """
    graph = _graphs[number]
    assert key is not None, "the plug refuses a call that has no key"
    if key in _compiling:
        if not _compiling[key].done():
            raise NotCompiledYet
        _compiling.pop(key).result()  # raises what the compiler raised; the entry was there, and forgotten since
    call = Call(graph.name, args, codes, avals, wide=True)
    with call.function:
        if graph.bounded is not None and graph.bounded.number == number:
            interpreter = bounded_trace.BoundedInterpreter.of(call, graph.bounded)
            answers = interpreter.run(graph.module, call.meta_args[: graph.bounded.num_inputs])
            graph.bounded.takes_random(call.trace.random_taken)
            returns, results = bounded_trace.describe(call, interpreter, answers)
        else:
            run = Interpreter(call.trace)
            given = [run.settle(arg) for arg in call.meta_args]
            returns, results = _describe(call, given, run.run(graph.module, given))
        writes, written = call.written()
        outputs = results + written
        program, inputs = call.finish(outputs, call.donate(outputs, writes, written, donated))

    names = [node.name for node in graph.module.graph.find_nodes(op="placeholder")]
    names += ["a size"] * (len(args) - len(names))
    parts = signature.of_call(names, args, codes, avals, donated)

    if settings.eager_mode == "fused":  # recorded, and compiled together with what follows
        _plug.install(key, None, False, inputs, returns, writes, program)
        return

    def install() -> None:
        if program.computes:
            reason, graph.reason = graph.reason, ""
            recompiles.record("graph", graph.name, parts, program=program.compile("normal").key, reason=reason)
            _report(graph, program)
        _plug.install(key, program.entry(), False, inputs, returns, writes, program)

    if not graph.options.async_compile:
        install()
        return
    _compiling[key] = _pool.submit(install)
    raise NotCompiledYet


def _describe(call: Call, args: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], list[Value]]:
    """The entry's returns, and the values of the new tensors in order.

    What shares the storage of an argument, or of a result that is all of its storage, is returned as a view of that: it
    costs nothing, and AOTAutograd makes views of inputs anew from the strides and the offset that it finds.
    """
    places = {id(arg): place for place, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
    owners: dict[int, tuple[str, int, torch.Tensor]] = {}
    bases: dict[int, tuple[str, int, torch.Tensor]] = {}
    for place, (arg, given) in enumerate(zip(args, call.meta_args, strict=True)):
        if isinstance(arg, torch.Tensor):
            if arg.stride() == given.stride():
                owners.setdefault(_storage(arg), ("argument", place, arg))
            bases[id(given)] = ("argument", place, given)
            owners.setdefault(_storage(given), bases[id(given)])
    for place, item in enumerate(outputs):
        if isinstance(item, torch.Tensor) and id(item) not in places and views.is_whole(item):
            owners.setdefault(_storage(item), ("result", place, item))
    returns: list[Any] = []
    results: list[Value] = []
    for place, item in enumerate(outputs):
        if item is None:
            returns.append(None)
        elif not isinstance(item, torch.Tensor):
            returns.append(("constant", item))
        elif id(item) in places:
            returns.append(places[id(item)])
        else:
            kind, source, base = bases.get(id(item._base)) or owners.get(_storage(item), ("result", place, item))
            if (kind, source) != ("result", place):
                offset = item.storage_offset() * item.dtype.itemsize - base.storage_offset() * base.dtype.itemsize
                flips = item.is_conj() != base.is_conj(), item.is_neg() != base.is_neg()
                returns.append((kind, source, list(item.shape), list(item.stride()), item.dtype, offset, *flips))
                continue
            made, value = call.new_tensor(item)
            returns.append(made)
            results.append(value)
    return returns, results


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _report(graph: Graph, program: Program) -> None:
    """Tells the option `debug_callback` of a program."""
    if graph.options.debug_callback is not None:
        graph.options.debug_callback(
            CompiledProgram(
                name=graph.name,
                kind=graph.kind,
                graph=graph.module.print_readable(print_output=False),
                stablehlo=program.text,
                optimized_hlo=program.executable.optimized_text(),
            )
        )


def lift_attributes(module: fx.GraphModule) -> list[torch.Tensor]:
    """Turns device tensors among a graph's attributes into arguments behind the others, and returns them."""
    lifted: list[torch.Tensor] = []
    inputs = module.graph.find_nodes(op="placeholder")
    for node in module.graph.find_nodes(op="get_attr"):
        value: Any = module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
            continue
        before = next(iter(module.graph.nodes))
        with module.graph.inserting_after(inputs[-1]) if inputs else module.graph.inserting_before(before):
            made = module.graph.placeholder(node.name)
        made.meta = {"val": value, **node.meta}
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
        inputs.append(made)
        lifted.append(value)
    if lifted:
        module.recompile()
    return lifted
