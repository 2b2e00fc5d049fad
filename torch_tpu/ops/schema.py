"""What an overload's schema says: which arguments it writes, and which functional overload does the same work.

In-place, `out=`, foreach and fused forms have no lowering of their own. `form(op)` finds the functional overload that
computes the values, and says where they go.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch._ops import OpOverload

from torch_tpu.ops import registry

DROPPED = frozenset({"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking"})
"""Arguments that lowerings never see."""

RENAMED = {
    "aten::normal_": "normal_functional",
    "aten::_native_batch_norm_legit": "_native_batch_norm_legit_functional",
    "aten::_batch_norm_with_update": "_batch_norm_with_update_functional",
    "aten::rrelu_with_noise": "rrelu_with_noise_functional",
    "aten::rrelu_with_noise_": "rrelu_with_noise_functional",
}
"""Functional packets that are not named like the overload that writes."""

ELEMENTWISE = frozenset({"complex", "copy", "cumprod", "cumsum", "masked_fill", "masked_scatter", "polar", "where"})
"""Packets that write an element where they read it, and are not tagged pointwise."""

PLACES = frozenset(
    {"index_add", "index_copy", "index_fill", "index_put", "_index_put_impl", "index_reduce", "put", "scatter"}
    | {"scatter_add", "scatter_reduce"}
)
"""Packets that write to the places which an index names."""

PICKS = frozenset({"cat", "gather", "index_select", "masked_select", "take"})
"""Packets that write what they read from other places."""

CASTS = frozenset(
    {"add", "addr", "all", "any", "argmax", "argmin", "bernoulli", "cat", "_chunk_cat", "cholesky", "cholesky_inverse"}
    | {"cholesky_solve", "complex", "cumprod", "cumsum", "floor_divide", "geqrf", "logsumexp", "max", "mean"}
    | {"min", "multinomial", "nanmean", "nansum", "norm", "normal", "polar", "prod", "stack", "std", "sum", "var"}
    | {"_fft_c2c", "_fft_c2r", "_fft_r2c", "linalg_eig", "linalg_eigvals", "linalg_householder_product", "linalg_lstsq"}
    | {"linalg_pinv"}
)
"""Packets that are not tagged pointwise and whose results PyTorch casts to the dtype of `out=`."""

UNCAST = frozenset({"bitwise_not", "frexp", "heaviside", "nan_to_num", "neg", "round"})
"""Packets that are tagged pointwise and whose results PyTorch does not cast."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an overload relates to the functional one that computes its values."""

    functional: OpOverload | None
    """None where PyTorch has no functional overload for it."""
    written: tuple[int, ...]
    """Arguments (by schema position) that receive values: `functional`'s last results, in order."""
    is_out: bool
    """The written arguments are `out=` arguments: they are resized, and their values are never read."""
    num_new: int
    """Returns that are new tensors; the other returns are written arguments."""


def is_written(argument: torch._C.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def returns_view(op: OpOverload) -> bool:
    """A result shares memory with an argument that is not written."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def overlap_of(op: OpOverload) -> dict[str, str]:
    """Which elements PyTorch lets an argument that is read share with one that is written, for those where it looks.

    Either "none", or "whole": all of them, in the same order.
    """
    name = op._schema.name.removeprefix("aten::")
    packet = name.removesuffix("_")
    read = [a.name for a in op._schema.arguments if "Tensor" in str(a.type) and not is_written(a) and a.name != "value"]
    if not op._schema.is_mutable:
        return {}
    if packet in PICKS:
        return dict.fromkeys(read, "none")
    if packet in PLACES:
        return {given: "whole" if given == "self" else "none" for given in read}
    is_elementwise = torch.Tag.pointwise in op.tags or packet in ELEMENTWISE or name.startswith("_foreach_")
    return dict.fromkeys(read, "whole") if is_elementwise else {}


def casts_out(op: OpOverload) -> bool:
    """Whether an `out=` tensor may have another dtype than the result, one to which that can be cast."""
    packet = op._schema.name.removeprefix("aten::")
    is_factory = not any("Tensor" in str(a.type) for a in op._schema.arguments if not a.is_out)
    return is_factory or (packet not in UNCAST if torch.Tag.pointwise in op.tags else packet in CASTS)


@cache
def form(op: OpOverload) -> Form:
    """The form of an overload, from its schema alone."""
    arguments = op._schema.arguments
    written = tuple(index for index, argument in enumerate(arguments) if is_written(argument))
    num_new = sum(r.alias_info is None for r in op._schema.returns)
    if not written:
        return Form(op, (), False, num_new)
    is_out = all(arguments[index].is_out for index in written)
    return Form(_functional(op, written), written, is_out, num_new)


def _signature(op: OpOverload, skip: tuple[int, ...] = ()) -> list[tuple[str, str]]:
    return [
        (argument.name, str(argument.type))
        for index, argument in enumerate(op._schema.arguments)
        if index not in skip and argument.name not in DROPPED and argument.name != "dtype"
    ]


def _functional(op: OpOverload, written: tuple[int, ...]) -> OpOverload | None:
    name = op._schema.name
    namespace, _, packet = name.partition("::")
    is_out = op._schema.arguments[written[0]].is_out
    wanted = _signature(op, written if is_out else ())
    candidates = [RENAMED.get(name, packet)]
    if packet.endswith("_") and not packet.endswith("__"):
        candidates.append(packet[:-1])
    for candidate in candidates:
        found = getattr(getattr(torch.ops, namespace), candidate, None)
        if found is None:
            continue
        overloads = [getattr(found, overload) for overload in found.overloads()]
        functional = [o for o in overloads if not o._schema.is_mutable and _signature(o) == wanted]
        if functional:
            return min(functional, key=lambda o: o._schema.overload_name != op._schema.overload_name)
    return None


def lowering_of(op: OpOverload) -> registry.Lowering | None:
    """The lowering that serves an overload, directly or through its functional form."""
    functional = form(op).functional
    return registry.LOWERINGS.get(registry.overload_name(functional)) if functional is not None else None
