"""What `torch.compile(backend="tpu")` calls with each of Dynamo's graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition

from torch_tpu.compile import control_flow, saved
from torch_tpu.compile.bounds import Bounds
from torch_tpu.compile.decompositions import table
from torch_tpu.compile.graphs import Graph
from torch_tpu.compile.options import Options, parse

_numbers = itertools.count()

assert control_flow  # registers its handlers


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The backend: a function like the graph, run by programs.

    Args:
        inputs: fake tensors and symbolic numbers like those the function will be called with.
        options: see `torch_tpu.compile.options.Options`.

    Raises:
        ValueError: an option or a mode that does not exist, or a value out of range.
    """
    chosen = parse(options, mode)
    name = chosen.custom_module_name or f"graph_{next(_numbers)}"
    bounds = Bounds(chosen)
    compiled: dict[str, Callable[..., Any]] = {
        kind: partial(_compile, kind=kind, name=f"{name}_{suffix}", options=chosen, bounds=bounds)
        for kind, suffix in (("forward", "fwd"), ("backward", "bwd"), ("inference", "inf"))
    }
    keeps = saved.can_keep(chosen, inputs)
    if keeps:
        compiled = {kind: saved.keepable(compiler) for kind, compiler in compiled.items()}
    make = aot_autograd(
        fw_compiler=compiled["forward"],
        bw_compiler=compiled["backward"],
        inference_compiler=compiled["inference"],
        partition_fn=min_cut_rematerialization_partition,
        decompositions=table(),
        keep_inference_input_mutations=True,
    )
    with saved.kept(module, chosen) if keeps else nullcontext():
        return make(module, inputs)


def _compile(
    module: fx.GraphModule, inputs: Sequence[Any], *, kind: str, name: str, options: Options, bounds: Bounds
) -> Graph:
    return Graph(module, kind, name, options, bounds)
