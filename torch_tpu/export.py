"""`torch.export` to StableHLO: as text, as bytecode, or as the portable artifact that other versions of XLA read.

    exported = torch.export.export(model, (x,))            # on any device; the weights stay where they are
    mlir = torch_tpu.export.exported_to_mlir(exported)
    Path("model.mlir.bc").write_bytes(mlir.serialize_portable_artifact())

The program is a function of the weights and the inputs, in the order of `inputs`. The lowerings are those of every other
mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument

from torch_tpu import errors, hlo, ops
from torch_tpu.compile import control_flow
from torch_tpu.compile.interpreter import CannotLower, Interpreter
from torch_tpu.eager.trace import RandomState, Trace
from torch_tpu.runtime import mlir

assert control_flow  # registers its handlers


@dataclass(frozen=True)
class Argument:
    """An argument or a result of the exported function."""

    kind: str
    """As `torch.export` says: "user_input", "parameter", "buffer", "constant_tensor"; "user_output", "buffer_mutation".
    "random_state" is ui64[2], the seed and the offset of a generator, and comes last."""
    name: str
    """The input's or output's name in the graph; for weights, where they are in the module ("layer.weight")."""
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class ExportedMlir:
    """A StableHLO module."""

    text: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    random_taken: int
    """How many random numbers it takes: what a generator's offset advances by."""

    def serialize_text(self) -> str:
        return self.text

    def serialize_bytecode(self) -> bytes:
        """MLIR's bytecode, for the version of StableHLO that is installed."""
        return mlir.bytecode(self.text)

    def serialize_portable_artifact(self, version: str | None = None) -> bytes:
        """Bytecode that StableHLO keeps compatible between versions.

        Args:
            version: the oldest StableHLO that should read it, such as "1.0.0"; the installed one if None.
        """
        return mlir.portable_artifact(self.text, version)


def exported_to_mlir(program: ExportedProgram, *, name: str = "exported", platform: str = "tpu") -> ExportedMlir:
    """Lowers an exported program with static shapes.

    Args:
        name: of the module.
        platform: "tpu", "cpu" or "cuda": which lowerings to take where they differ. On "cpu" programs check indices by
            a call back into this process, and so cannot be run elsewhere.

    Raises:
        UnsupportedOpError: a call has no lowering, or a size is symbolic; the message names it.
    """
    ops.load()
    program = program.run_decompositions({})
    module = program.graph_module
    _prepare(module)
    function = hlo.Function(name)
    random_state = RandomState(function)
    trace = Trace(platform, random_state)
    specs = program.graph_signature.input_specs
    inputs: list[Argument] = []
    with function:
        args: list[Any] = []
        for node, spec in zip(module.graph.find_nodes(op="placeholder"), specs, strict=True):
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                args.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else value)
                continue
            inputs.append(_argument(spec.kind.name.lower(), spec.target or node.name, value))
            meta = torch.empty(inputs[-1].shape, dtype=value.dtype, device="meta")
            trace.bind(meta, function.argument(inputs[-1].shape, value.dtype))
            args.append(meta)
        try:
            returned = Interpreter(trace).run(module, args)
        except CannotLower as error:
            raise errors.UnsupportedOpError(f"the exported program has a call without a lowering: {error}") from error
        outputs, results = [], []
        for item, out in zip(returned, program.graph_signature.output_specs, strict=True):
            if isinstance(item, torch.Tensor):
                results.append(trace.read(item))
                outputs.append(_argument(out.kind.name.lower(), out.target or getattr(out.arg, "name", ""), item))
    if random_state.value is not None:
        inputs.append(Argument("random_state", "", (2,), torch.uint64))
    return ExportedMlir(function.module(results), tuple(inputs), tuple(outputs), trace.random_taken)


def _prepare(module: fx.GraphModule) -> None:
    """Makes a graph that was traced on another device independent of it."""
    for node in module.graph.nodes:
        if "device" in node.kwargs:  # what the graph makes itself is made by the program
            node.kwargs = {**node.kwargs, "device": torch.device("tpu")}
        if node.target is torch.ops.aten.view.default:  # which was legal for that device's strides
            with module.graph.inserting_before(node):
                options: dict[str, Any] = {"memory_format": torch.contiguous_format}
                dense = module.graph.call_function(torch.ops.aten.clone.default, (node.args[0],), options)
            node.args = (dense, *node.args[1:])


def _argument(kind: str, name: str, value: torch.Tensor) -> Argument:
    symbolic = [size for size in value.shape if not isinstance(size, int)]
    if symbolic:
        raise errors.UnsupportedOpError(
            errors.message(
                f"{name} has the symbolic size {symbolic[0]}",
                why="exported StableHLO has static shapes in this version",
                do="export without dynamic_shapes, once for each size",
            )
        )
    return Argument(kind, name, tuple(value.shape), value.dtype)
