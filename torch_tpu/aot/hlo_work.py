"""What one instruction of optimized HLO does: operations of the matrix and vector units, and bytes to and from HBM.

A fusion does what the instructions of its computation do, and moves what it reads and writes of its operands and results:
an operand that it only slices counts by its slices, and one that it updates in place by the update.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from torch_tpu.aot.hlo_text import Computation, Instruction, Module, Shape, names

FREE = names(
    "parameter constant bitcast get-tuple-element tuple after-all opt-barrier partition-id replica-id "
    "add-dependency domain while conditional call"
)
"""Opcodes that move nothing themselves."""
_SLICING = ("dynamic-slice", "slice", "gather")
_PASSING = ("bitcast", "copy", "convert", "transpose", "reshape")
"""The same elements in another layout, order or dtype."""
_UPDATING = ("dynamic-update-slice", "scatter")
_TRANSCENDENTAL = names(
    "exponential exponential-minus-one log log-plus-one tanh logistic rsqrt sqrt cbrt power sine cosine tan atan2 erf "
    "divide"
)
_ELEMENTWISE = names(
    "add subtract multiply maximum minimum negate abs compare select and or xor not clamp convert floor ceil sign "
    "remainder round-nearest-even round-nearest-afz shift-left shift-right-logical shift-right-arithmetic is-finite "
    "reduce-precision"
)
_SUM_OF_A_PRODUCT = "scalar_add_computation"
"""What XLA calls the addition where it makes a product the sum of elementwise products; other sums have their own names."""
_PASSES = {"highest": 6, "high": 3}
_DIM_LABELS = re.compile(r"dim_labels=([\w?]+)_([\w?]+)->([\w?]+)")


@dataclass
class Work:
    """Of one execution."""

    matrix: Counter[tuple[str, int]] = field(default_factory=Counter)
    """FLOPs of dots and convolutions, by the kind of operands ("bf16", "int8", "fp8") and the number of passes over the
    matrix units that a product takes (float32 at high precision takes several)."""
    vector: float = 0.0
    """Elementwise operations and reductions."""
    vector_products: int = 0
    """FLOPs among them of products with a vector, which the compiler rewrites to sums of elementwise products."""
    transcendental: float = 0.0
    nbytes: float = 0.0

    @property
    def matrix_flops(self) -> float:
        return float(sum(self.matrix.values()))


def work_of(module: Module, computation: Computation, instruction: Instruction) -> Work:
    """What an instruction does by itself; nothing for those that only refer to other computations."""
    work = Work()
    _add_operations(module, computation, instruction, work)
    work.nbytes = _bytes(module, computation, instruction)
    return work


def _add_operations(module: Module, computation: Computation, instruction: Instruction, work: Work) -> None:
    opcode = instruction.opcode
    if opcode == "fusion" or (opcode.endswith("-start") and instruction.called):
        for name in instruction.called[:1]:
            inner = module.computations[name]
            for part in inner.instructions:
                _add_operations(module, inner, part, work)
    elif opcode in ("dot", "convolution"):
        lhs = computation.by_name[instruction.operands[0]].shape
        rhs = computation.by_name[instruction.operands[1]].shape
        flops = _dot_flops(instruction, lhs) if opcode == "dot" else _convolution_flops(instruction, lhs, rhs)
        work.matrix[_kind(instruction, lhs, rhs)] += flops
    elif opcode in _TRANSCENDENTAL:
        work.transcendental += instruction.shape.numel
    elif opcode in _ELEMENTWISE:
        work.vector += instruction.shape.numel
    elif opcode in ("reduce", "reduce-window"):
        summed = computation.by_name[instruction.operands[0]].shape.numel
        work.vector += summed
        if (instruction.attribute("to_apply") or "").startswith(_SUM_OF_A_PRODUCT):
            work.vector_products += 2 * summed


def _kind(instruction: Instruction, lhs: Shape, rhs: Shape) -> tuple[str, int]:
    """The units' mode for a product, and its passes."""
    dtypes = {lhs.dtype, rhs.dtype}
    if all(name.startswith("f8") for name in dtypes):
        return "fp8", 1
    if dtypes <= {"s8", "u8", "s4", "u4"}:
        return "int8", 1
    asked = instruction.braced("operand_precision") or ""
    wide = "f32" in dtypes
    return "bf16", max(_PASSES.get(name.strip(), 1) for name in asked.split(",")) if wide else 1


def _dot_flops(instruction: Instruction, lhs: Shape) -> int:
    contracted = instruction.braced("lhs_contracting_dims") or ""
    depth = 1
    for dim in filter(None, contracted.split(",")):
        depth *= lhs.dims[int(dim)]
    return 2 * instruction.shape.numel * depth


def _convolution_flops(instruction: Instruction, lhs: Shape, rhs: Shape) -> int:
    """2 x multiply-adds that are no products with padding, as XLA's cost analysis counts: batched dots become
    convolutions with large windows in which most positions are padding."""
    labels = _DIM_LABELS.search(instruction.attributes)
    if labels is None:
        raise ValueError(f"the convolution {instruction.name} has no dimension labels")
    inputs, kernels, outputs = labels.groups()
    window = _window(instruction.braced("window") or "")
    output = instruction.shape
    positions = 1
    for index, letter in enumerate(sorted(filter(str.isdigit, inputs))):
        sizes = lhs.dims[inputs.index(letter)], rhs.dims[kernels.index(letter)], output.dims[outputs.index(letter)]
        positions *= _valid_positions(*sizes, *(values[index] for values in window))
    batch = lhs.dims[inputs.index("b")] // int(instruction.attribute("batch_group_count") or 1)
    depth = rhs.dims[kernels.index("i")]  # of one group of features
    return 2 * positions * batch * depth * output.dims[outputs.index("f")]


_Window = tuple[list[int], list[int], list[int], list[int]]


def _window(text: str) -> _Window:
    """Stride, padding before, dilation of the input and of the window, for each spatial dimension."""
    fields = dict(part.split("=", 1) for part in text.split())
    rank = len(fields["size"].split("x")) if "size" in fields else 0

    def numbers(name: str, default: int) -> list[int]:
        return [int(part.split("_")[0]) for part in fields[name].split("x")] if name in fields else [default] * rank

    return numbers("stride", 1), numbers("pad", 0), numbers("lhs_dilate", 1), numbers("rhs_dilate", 1)


@cache
def _valid_positions(
    size: int, kernel: int, output: int, stride: int, padding: int, dilation: int, kernel_dilation: int
) -> int:
    """Pairs of an output and a kernel index that meet an element of the input, in one spatial dimension."""
    if stride == dilation == kernel_dilation == 1:
        # Element o - padding + k of the input, for each k: how many o keep it inside.
        return sum(max(0, min(output, size + padding - k) - max(0, padding - k)) for k in range(kernel))
    count = 0
    for k in range(kernel):
        for o in range(output):
            place = o * stride - padding + k * kernel_dilation
            count += place >= 0 and place % dilation == 0 and place // dilation < size
    return count


def _bytes(module: Module, computation: Computation, instruction: Instruction) -> float:
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith(("-done", "-update")):
        return 0.0
    if opcode == "copy-start":  # (destination, source, context)
        return sum(shape.hbm_bytes for shape in instruction.shapes[:2])
    if opcode == "fusion":
        inner = module.computations[instruction.called[0]]
        read = sum(_read(module, inner, parameter) for parameter in inner.parameters.values())
        return read + _written(module, inner, inner.root)
    if opcode.endswith("-start") and instruction.called:
        return _called_bytes(module, instruction.called[0])
    if opcode in _SLICING:
        source = computation.by_name[instruction.operands[0]].shape
        return sum(shape.nbytes * (source.space == 0) + shape.hbm_bytes for shape in instruction.shapes)
    if opcode in _UPDATING:
        update = computation.by_name[instruction.operands[1 if opcode == "dynamic-update-slice" else -1]]
        return 2.0 * sum(shape.nbytes for shape in update.shapes) * (instruction.shape.space == 0)
    operands = (shape for name in instruction.operands for shape in computation.by_name[name].shapes)
    return sum(shape.hbm_bytes for shape in (*operands, *instruction.shapes))


def _called_bytes(module: Module, name: str) -> float:
    """Bytes of a computation that runs asynchronously, through the calls it consists of."""
    inner = module.computations[name]
    total = 0.0
    for instruction in inner.instructions:
        if instruction.opcode in ("call", "custom-call") and instruction.called:
            total += _called_bytes(module, instruction.called[0])
        else:
            total += _bytes(module, inner, instruction)
    return total


def _read(module: Module, computation: Computation, value: Instruction) -> float:
    """Bytes that a fused computation reads of one of its parameters."""
    return sum(shape.hbm_bytes for shape in value.shapes) * _share(module, computation, value)


def _share(module: Module, computation: Computation, value: Instruction) -> float:
    """The share of a value that a fused computation reads: elements that no slice takes are not computed."""
    if value is computation.root:  # what is returned is read by whoever called this
        return 1.0
    total = 0.0
    for user in computation.users.get(value.name, ()):
        if user.opcode in _SLICING and user.operands[0] == value.name:
            total += sum(shape.nbytes for shape in user.shapes) / max(1, sum(shape.nbytes for shape in value.shapes))
        elif user.opcode in _UPDATING and user.operands[0] == value.name:
            continue  # in place
        elif user.opcode in _PASSING:
            total += _share(module, computation, user)
        elif user.opcode == "fusion":
            inner = module.computations[user.called[0]]
            if _passes(inner):
                total += _share(module, computation, user)
            else:
                places = [place for place, operand in enumerate(user.operands) if operand == value.name]
                total += sum(_share(module, inner, inner.parameters[place]) for place in places)
        else:
            return 1.0
    return min(total, 1.0)


def _passes(computation: Computation) -> bool:
    """Whether a fused computation gives its only parameter in another layout or dtype, and nothing else."""
    root = computation.root
    while root.opcode in _PASSING:
        root = computation.by_name[root.operands[0]]
    return root.opcode == "parameter" and len(computation.parameters) == 1


def _written(module: Module, computation: Computation, root: Instruction) -> float:
    """Bytes that a fused computation writes of one of its results."""
    if root.opcode == "tuple":
        return sum(_written(module, computation, computation.by_name[name]) for name in root.operands)
    if not any(shape.hbm_bytes for shape in root.shapes):
        return 0.0
    if root.opcode in _UPDATING:
        update = computation.by_name[root.operands[1 if root.opcode == "dynamic-update-slice" else -1]]
        return sum(shape.nbytes for shape in update.shapes)
    origin = root
    while origin.opcode in _PASSING or (origin.opcode == "fusion" and _passes(module.computations[origin.called[0]])):
        origin = computation.by_name[origin.operands[0]]
    if origin.opcode in _UPDATING:
        return _written(module, computation, origin)
    if root.opcode == "fusion":
        inner = module.computations[root.called[0]]
        return sum(shape.hbm_bytes for shape in root.shapes) if _passes(inner) else _written(module, inner, inner.root)
    return sum(shape.hbm_bytes for shape in root.shapes)
