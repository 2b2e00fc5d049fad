"""Dtypes that PyTorch's kernels refuse, and its meta kernels do not: a lowering would cast them without a word."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch

INDICES = ("index", "indices")
FACTORS = ("mat1", "mat2", "mat", "vec", "batch1", "batch2")


_POOLING = "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"
_RESIZING = """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa"""
_FLOATING = """hardsigmoid hardswish hardshrink _prelu_kernel igamma igammac histogram nll_loss_forward nll_loss2d_forward
    multi_margin_loss multilabel_margin_loss_forward max_pool2d_with_indices_backward
    segment_reduce binary_cross_entropy_with_logits"""
REFUSED: dict[str, frozenset[str]] = {
    kind: frozenset(" ".join(names).split())
    for kind, names in {
        "bool": (
            _RESIZING,
            _FLOATING,
            _POOLING.replace("_adaptive_avg_pool2d ", ""),
            "addmm addmv addbmm baddbmm bmm mm mv dot vdot addcmul convolution convolution_overrideable",
            "ceil floor round trunc clamp relu threshold kthvalue median nanmedian topk argmax argmin bucketize",
            "searchsorted gcd index_reduce max_pool2d_with_indices max_pool3d_with_indices reflection_pad1d",
        ),
        "uint8": (_FLOATING, _POOLING, "frac im2col"),
        "integer": (_RESIZING, _FLOATING, _POOLING, "frac im2col"),
        "floating": ("gcd lcm bitwise_left_shift bitwise_right_shift __lshift__ __rshift__",),
        "complex": (
            _RESIZING,
            "gcd lcm median nanmedian native_group_norm native_batch_norm",
            "_adaptive_avg_pool2d _adaptive_avg_pool3d avg_pool2d avg_pool3d glu mish gelu logit",
            "index_reduce hypot xlogy special_xlog1py special_spherical_bessel_j0",
            "smooth_l1_loss mse_loss huber_loss nll_loss_forward nll_loss2d_forward bernoulli",
        ),
    }.items()
}
"""What PyTorch's kernels take neither on CPUs nor on GPUs, by the kind of their first tensor's dtype."""

UNMADE = {"bool": ("arange", "range", "linspace", "logspace", "randperm"), "complex": ("arange", "range", "randint")}
"""Factories that make no numbers of a dtype, by its kind."""

WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
JOINED = ("aten::where", "aten::cat")
"""Operators that promote their tensors by themselves."""

ALIKE = {
    "aten::heaviside": ("self", "values"),
    "aten::linalg_lstsq": ("self", "b"),
    "aten::grid_sampler_2d": ("input", "grid"),
    "aten::grid_sampler_3d": ("input", "grid"),
    "aten::huber_loss_backward": ("grad_output", "self", "target"),
    "aten::binary_cross_entropy": ("self", "target", "weight"),
}
"""Operators of which the tensors with these names have one dtype."""

OF_SELF = ("aten::huber_loss", "aten::soft_margin_loss")
"""Operators whose result has the dtype of `self`, whatever they are computed in; their meta kernels promote it."""

CLASSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
"""Operators whose target is a class, int64 or uint8."""

SUBTRACTIONS = ("aten::sub", "aten::rsub")

FOREACH = "aten::_foreach_"
NUMBER_OF_LIST = {"scalar": "other", "scalars": "other"}
"""What operators over lists call the argument that is `other` elsewhere."""


@cache
def numbered(number: int) -> torch.dtype:
    """The dtype that a number stands for in an argument of the type ScalarType, as calls of the device have it."""
    dtype: torch.dtype = torch.ops.aten.empty.memory_format([0], dtype=number, device="meta").dtype
    return dtype


def check(op: str, arguments: Mapping[str, Any]) -> None:
    """Looks at the arguments of an operator ("aten::gather") by their names.

    Raises:
        TypeError: an index is no integer, tensors differ in dtype that must not, bools are subtracted, or a dtype is `REFUSED`.
    """
    if op.startswith(FOREACH):
        named = {NUMBER_OF_LIST.get(name, name): value for name, value in arguments.items()}
        lists = {name: value for name, value in named.items() if isinstance(value, (list, tuple))}
        for row in zip(*lists.values(), strict=False):
            check("aten::" + op.removeprefix(FOREACH), named | dict(zip(lists, row, strict=True)))
        return
    if op.rstrip("_") in SUBTRACTIONS and any(map(_is_bool, (arguments["self"], arguments["other"]))):
        raise TypeError("bools are not subtracted")
    first = next((value for value in arguments.values() if isinstance(value, torch.Tensor)), None)
    if first is not None and op.removeprefix("aten::").rstrip("_") in REFUSED[_kind(first.dtype)]:
        raise TypeError(f"it takes no {first.dtype}")
    if op in ("aten::all", "aten::any") and _kind(getattr(arguments.get("out"), "dtype", torch.bool)) not in (
        "bool",
        "uint8",
    ):
        raise TypeError(f"{op} gives bools, which out= is not for")
    for name in INDICES:
        given = arguments.get(name)
        if isinstance(given, torch.Tensor) and (given.is_floating_point() or given.is_complex()):
            raise TypeError(f"{name} has the dtype {given.dtype}, which is no integer")
    if op in CLASSES and arguments["target"].dtype not in (torch.int64, torch.uint8):
        raise TypeError(f"target has the dtype {arguments['target'].dtype}, which is neither int64 nor uint8")
    for names in _alike(op, arguments):
        found = [arguments[name].dtype for name in names if isinstance(arguments.get(name), torch.Tensor)]
        if len(set(found)) > 1:
            raise TypeError(f"{', '.join(names)} have different dtypes: {', '.join(map(str, found))}")


def check_promotion(operands: Sequence[torch.Tensor | None]) -> None:
    """Looks at the tensors that an operator makes one dtype of; meta kernels take wide unsigned ones for any integers.

    Raises:
        RuntimeError: PyTorch has no common dtype for them.
    """
    given = [tensor for tensor in operands if tensor is not None]
    if len({tensor.dtype for tensor in given}) > 1 and any(tensor.dtype in WIDE_UNSIGNED for tensor in given):
        for one, other in itertools.combinations(given, 2):
            torch.result_type(one, other)


def of_self(op: str, meta: Any, arguments: Mapping[str, Any]) -> Any:
    """What a meta kernel returned, with the dtype that the result has.

    Raises:
        RuntimeError: the result cannot be cast to it.
    """
    if op not in OF_SELF or not isinstance(meta, torch.Tensor):
        return meta
    dtype = arguments["self"].dtype
    if not torch.can_cast(meta.dtype, dtype):
        raise RuntimeError(f"result type {meta.dtype} can't be cast to the desired output type {dtype}")
    return meta.to(dtype)


def check_made(op: str, dtype: torch.dtype) -> None:
    """Looks at the dtype that a factory is asked for.

    Raises:
        TypeError: it is `UNMADE`.
    """
    if op.removeprefix("aten::") in UNMADE.get(_kind(dtype), ()):
        raise TypeError(f"{op} makes no {dtype}")


def _kind(dtype: torch.dtype) -> str:
    if dtype in (torch.bool, torch.uint8):
        return str(dtype).removeprefix("torch.")
    return "complex" if dtype.is_complex else "floating" if dtype.is_floating_point else "integer"


def _is_bool(operand: Any) -> bool:
    return isinstance(operand, bool) or (isinstance(operand, torch.Tensor) and operand.dtype is torch.bool)


def _alike(op: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Which tensors must have the same dtype."""
    if sum(name in arguments for name in FACTORS) > 1 and arguments.get("out_dtype") is None:
        yield ("self", *FACTORS)
    if ("index" in arguments or "mask" in arguments) and op != "aten::select_scatter":
        for source in ("source", "src"):
            if source in arguments:
                yield "self", source
    yield ALIKE.get(op, ())
