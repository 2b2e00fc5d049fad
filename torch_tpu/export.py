"""`torch.export` to StableHLO: as text, as bytecode, or as the portable artifact that other versions of XLA read.

    exported = torch.export.export(model, (x,))            # on any device; the weights stay where they are
    mlir = torch_tpu.export.exported_to_mlir(exported)
    Path("model.mlir.bc").write_bytes(mlir.serialize_portable_artifact())

The program is a function of the weights and the inputs, in the order of `inputs`. The lowerings are those of every other
mode. A dimension that `dynamic_shapes` lets vary has the largest size that it may have: its arrays are padded, behind the
elements, to that size, and the real size of each such variable is one more input. As PyTorch's graph, the program is made
for sizes of at least 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument

from torch_tpu import errors, hlo, ops
from torch_tpu.compile import control_flow, exported
from torch_tpu.compile.bounded_trace import fitted
from torch_tpu.compile.interpreter import CannotLower
from torch_tpu.eager.trace import RandomState, Trace
from torch_tpu.runtime import mlir

assert control_flow  # registers its handlers


@dataclass(frozen=True)
class Argument:
    """An argument or a result of the exported function."""

    kind: str
    """As `torch.export` says: "user_input", "parameter", "buffer", "constant_tensor"; "user_output", "buffer_mutation".
    "size" is the value of a variable in the sizes, behind all others; "random_state" is ui64[2], the seed and the offset
    of a generator, and comes last."""
    name: str
    """The input's or output's name in the graph; for weights, where they are in the module ("layer.weight"); of a size
    the variable."""
    shape: tuple[int, ...]
    """Of the array: where a size varies, the most that it can be."""
    dtype: torch.dtype
    sizes: tuple[int | str, ...] = ()
    """Where some vary, the tensor's sizes: numbers, and expressions of the variables, such as "s0" or "2*s0 + 1"."""


@dataclass(frozen=True)
class ExportedMlir:
    """A StableHLO module."""

    text: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    random_taken: int | str
    """How many random numbers it takes: what a generator's offset advances by. An expression where that varies."""

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
    """Lowers an exported program.

    Args:
        name: of the module.
        platform: "tpu", "cpu" or "cuda": which lowerings to take where they differ. On "cpu" programs check indices by
            a call back into this process, and so cannot be run elsewhere.

    Raises:
        UnsupportedOpError: a call has no lowering, a size that varies has no upper bound, or a call cannot be lowered
            with sizes that vary; the message names it.
    """
    ops.load()
    program = program.run_decompositions(exported.decompositions_of(program))
    module = program.graph_module
    lowering = exported.Lowering(program)
    function = hlo.Function(name)
    random_state = RandomState(function)
    trace = Trace(platform, random_state)
    specs = program.graph_signature.input_specs

    def described(kind: str, name: str, value: torch.Tensor, shape: Sequence[int]) -> Argument:
        sizes = tuple(size if isinstance(size, int) else str(size) for size in lowering.sizes_of(value))
        return Argument(kind, name, tuple(shape), value.dtype, sizes if sizes != tuple(shape) else ())

    inputs: list[Argument] = []
    with function:
        args: list[Any] = []
        for node, spec in zip(module.graph.find_nodes(op="placeholder"), specs, strict=True):
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                args.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else value)
                continue
            shape = [lowering.bound(size) for size in lowering.sizes_of(value)]
            meta = torch.empty(shape, dtype=value.dtype, device="meta")
            inputs.append(described(spec.kind.name.lower(), spec.target or node.name, value, meta.shape))
            trace.bind(meta, function.argument(inputs[-1].shape, value.dtype))
            args.append(meta)
        try:
            returned, trace, variables = lowering.lower(trace, function, args)
        except CannotLower as error:
            raise errors.UnsupportedOpError(f"the exported program has a call without a lowering: {error}") from error
        except errors.BoundedError as error:
            raise errors.UnsupportedOpError(
                errors.message(
                    f"the exported program cannot be lowered with sizes that vary: {error}",
                    do="export without dynamic_shapes, once for each size",
                )
            ) from error
        inputs += [Argument("size", variable, (), torch.int64) for variable in variables]
        outputs, results = [], []
        for item, out in zip(returned, program.graph_signature.output_specs, strict=True):
            if isinstance(item, torch.Tensor):
                value = trace.read(item)
                results.append(fitted(value, [hlo.dims.bound(size) for size in value.shape]))
                named = out.target or getattr(out.arg, "name", "")
                outputs.append(described(out.kind.name.lower(), named, item, results[-1].shape))
    if random_state.value is not None:
        inputs.append(Argument("random_state", "", (2,), torch.uint64))
    taken = trace.random_taken if isinstance(trace.random_taken, int) else str(hlo.dims.as_expr(trace.random_taken))
    return ExportedMlir(function.module(results), tuple(inputs), tuple(outputs), taken)
