"""Higher-order operators as StableHLO: branches, loops, scans, attention with user-defined scores, random state.

Their bodies are graphs, which are interpreted by the same trace inside a region. A region may read what is outside of
it; it must not write there, and AOTAutograd's graphs do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from torch_tpu import hlo
from torch_tpu.compile import splitting
from torch_tpu.compile.interpreter import HANDLERS, Handler, Interpreter
from torch_tpu.hlo import Value


def handler(*names: str) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = function
        return function

    return register


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise NotImplementedError(reason)


def _only_tensors(values: Sequence[Any], what: str) -> None:
    _require(all(isinstance(value, torch.Tensor) for value in values), f"{what} that are not tensors")


def _examples(module: fx.GraphModule) -> list[Any]:
    """What a body returns, as PyTorch traced it."""
    (output,) = module.graph.find_nodes(op="output")
    items = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    return [item.meta.get("val") if isinstance(item, fx.Node) else item for item in items]


def _results(run: Interpreter, values: Sequence[Value], examples: Sequence[Any]) -> list[torch.Tensor]:
    return [
        run.new(value, example if isinstance(example, torch.Tensor) and example.shape == value.shape else None)
        for value, example in zip(values, examples, strict=True)
    ]


@handler("cond")
def cond(run: Interpreter, predicate: Any, then: fx.GraphModule, otherwise: fx.GraphModule, operands: Any) -> Any:
    if not isinstance(predicate, torch.Tensor):
        return tuple(run.run(then if predicate else otherwise, operands))
    examples = _examples(then)
    _only_tensors(examples, "results of a branch")

    def branch(module: fx.GraphModule) -> list[Value]:
        found = run.run(module, operands)
        _only_tensors(found, "results of a branch")
        return [run.read(value) for value in found]

    condition = hlo.reshape(run.read(predicate), ())
    results = hlo.conditional(condition, partial(branch, then), partial(branch, otherwise))
    return tuple(_results(run, results, examples))


@handler("while_loop")
def while_loop(
    run: Interpreter, condition: fx.GraphModule, body: fx.GraphModule, carried: Any, additional: Any, **mutated: str
) -> Any:
    _only_tensors(carried, "carried values")
    _require(not any(mutated.values()), "a loop that mutates its inputs")
    random = splitting.takes_random_numbers(condition) or splitting.takes_random_numbers(body)
    _require(
        not random, "random numbers in a loop whose number of steps is data: the generator cannot know how many it took"
    )

    def call(module: fx.GraphModule, *state: Value) -> list[Value]:
        found = run.run(module, [*_results(run, state, carried), *additional])
        _only_tensors(found, "carried values")
        return [run.read(value) for value in found]

    init = [run.read(value) for value in carried]
    results = hlo.while_loop(
        init,
        lambda *state: hlo.reshape(call(condition, *state)[0], ()),
        lambda *state: call(body, *state),
    )
    return tuple(_results(run, results, carried))


@handler("scan")
def scan(run: Interpreter, combine: fx.GraphModule, init: Any, xs: Any, additional: Any) -> Any:
    """carry, y = combine(carry, x) along dimension 0 of xs; returns the last carry and all y.

    Two things that PyTorch does to differentiate a scan cost no copy of everything: a y that is an x with its dimensions in
    another order (the weights of each layer) is not collected step by step, and xs that were turned around for this scan
    are read from the end. Each step takes random numbers of its own.
    """
    _only_tensors([*init, *xs], "carried or scanned values")
    length = xs[0].shape[0]
    slices = [run.read(x) for x in xs]
    examples = _examples(combine)
    _only_tensors(examples, "results of a scan")
    moved = {place: found for place in range(len(init), len(examples)) if (found := _moved(combine, place, init, xs))}
    collected = [place for place in range(len(init), len(examples)) if place not in moved]
    stacked = [
        hlo.full((length, *examples[place].shape), 0, hlo.types.held_dtype(examples[place].dtype))
        for place in collected
    ]

    taken = _numbers_taken(run, combine, init, slices, additional)
    random = run.trace.random_state() if taken else None

    def step(index: Value, *state: Value) -> list[Value]:
        carry = _results(run, state[: len(init)], init)
        parts = [run.new(_step_of(x, index, length)) for x in slices]
        with nullcontext() if random is None else run.trace.random_from(_state_of(random, index, taken)):
            before = run.trace.random_taken
            found = run.run(combine, [*carry, *parts, *additional])
            assert run.trace.random_taken - before == taken, "an operator with random numbers has no tag that says so"
        _only_tensors(found, "results of a scan")
        results = [run.read(value) for value in found]
        outputs = [
            hlo.dynamic_update_slice(
                whole, hlo.expand_dims(part, [0]), [index, *[hlo.scalar(0, torch.int32)] * part.ndim]
            )
            for whole, part in zip(state[len(init) :], [results[place] for place in collected], strict=True)
        ]
        return [*results[: len(init)], *outputs]

    results = hlo.fori_loop(length, [*[run.read(value) for value in init], *stacked], step)
    run.trace.random_taken += length * taken
    carry = _results(run, results[: len(init)], init)
    returned = dict(zip(collected, results[len(init) :], strict=True))
    for place, (source, order) in moved.items():
        returned[place] = hlo.transpose(slices[source], [0, *[dim + 1 for dim in order]])
    return (*carry, *[run.new(returned[place]) for place in range(len(init), len(examples))])


def _numbers_taken(
    run: Interpreter, body: fx.GraphModule, init: Sequence[torch.Tensor], xs: Sequence[Value], additional: Sequence[Any]
) -> int:
    """How many random numbers a step of a scan takes, found by writing one and throwing it away."""
    if not splitting.takes_random_numbers(body):
        return 0
    with hlo.Function("a step") as function:
        carry = [run.new(function.argument(value.shape, run.read(value).dtype), value) for value in init]
        parts = [run.new(function.argument(x.shape[1:], x.dtype)) for x in xs]
        with run.trace.random_from(function.argument((2,), torch.uint64)):
            run.run(body, [*carry, *parts, *additional])
            return run.trace.random_taken


def _state_of(first: Value, index: Value, taken: int) -> Value:
    """The state of the generator at a step."""
    return first + hlo.literal([0, taken], torch.uint64) * hlo.convert(index, torch.uint64)


_SAME = ("alias", "alias_copy", "clone", "detach", "detach_copy")


def _moved(combine: fx.GraphModule, place: int, init: Any, xs: Any) -> tuple[int, list[int]] | None:
    """Which scanned value a result of a body is, and the order of its dimensions; None where it is computed."""
    (output,) = combine.graph.find_nodes(op="output")
    node = output.args[0][place]
    order = list(range(node.meta["val"].ndim))
    while node.op == "call_function" and isinstance(node.target, OpOverload):
        name = node.target._schema.name.removeprefix("aten::")
        source = node.args[0]
        ndim = node.meta["val"].ndim
        dims = list(range(ndim))
        if name.removesuffix("_copy") in ("t", "transpose"):
            first, second = node.args[1:3] if len(node.args) > 1 else (0, ndim - 1)
            dims[first], dims[second] = dims[second], dims[first]
        elif name.removesuffix("_copy") == "permute":
            dims = [dim % ndim for dim in node.args[1]]
        elif name not in _SAME:
            return None
        order = [dims[dim] for dim in order]
        node = source
    inputs = combine.graph.find_nodes(op="placeholder")
    index = inputs.index(node) - len(init) if node.op == "placeholder" else -1
    return (index, order) if 0 <= index < len(xs) else None


@handler("map_impl")
def map_impl(run: Interpreter, body: fx.GraphModule, xs: Any, additional: Any) -> Any:
    return scan(run, body, [], xs, additional)


def _step_of(x: Value, index: Value, length: int) -> Value:
    forward = hlo.core.current().turned.get(x.name)
    return _slice_of(x, index) if forward is None else _slice_of(forward, hlo.subtract(length - 1, index))


def _slice_of(x: Value, index: Value) -> Value:
    start = [index, *[hlo.scalar(0, torch.int32)] * (x.ndim - 1)]
    return hlo.reshape(hlo.dynamic_slice(x, start, (1, *x.shape[1:])), x.shape[1:])


def _composed(op: HigherOrderOperator, run: Interpreter, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's own definition in terms of ATen, which is traced."""
    kernel = op.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    opened = [_callable(run, arg) for arg in args]
    return run.trace.run(kernel, *opened, **kwargs)


def _callable(run: Interpreter, given: Any) -> Any:
    """A graph as a function, also inside of a tuple."""
    if isinstance(given, fx.GraphModule):
        return given.forward
    if type(given) in (tuple, list):
        return type(given)(_callable(run, item) for item in given)
    return given


for _op in (
    torch.ops.higher_order.associative_scan,
    torch.ops.higher_order.flex_attention,
    torch.ops.higher_order.out_dtype,
):
    HANDLERS[_op.name()] = partial(_composed, _op)


@handler("flex_attention_backward")
def flex_attention_backward(run: Interpreter, *args: Any) -> Any:
    """PyTorch's definition asks the tensors that a score looks up which of them get gradients; the joint graph knows."""
    joint, looked_up = args[8], args[12]
    (output,) = joint.graph.find_nodes(op="output")
    wanted = output.args[0][len(output.args[0]) - len(looked_up) :]
    marked = [
        given if grad is None else given.detach().requires_grad_()
        for given, grad in zip(looked_up, wanted, strict=True)
    ]
    return _composed(torch.ops.higher_order.flex_attention_backward, run, *args[:12], tuple(marked), *args[13:])


@handler("invoke_subgraph")
def invoke_subgraph(run: Interpreter, module: fx.GraphModule, identifier: Any, *operands: Any) -> Any:
    return tuple(run.run(module, operands))


# ------------------------------------------------------------------------------- random numbers that are drawn again


@handler("run_and_save_rng_state")
def run_and_save_rng_state(run: Interpreter, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The generator's state before the call, and the call's result. The state is ui64[2] here."""
    state = run.new(run.trace.random_state())
    return state, run.call(op, args, kwargs)


@handler("run_with_rng_state")
def run_with_rng_state(run: Interpreter, state: torch.Tensor, op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    with run.trace.random_from(run.read(state)):
        return run.call(op, args, kwargs)
