"""What is known of a Python value without running it: whether it is a tensor, where it is, what torch's functions return.

Called by `flow.py`. Where nothing is known a value is `UNKNOWN`, and rules that could be wrong about it stay silent.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["unknown", "tensor", "host", "module", "instance", "name", "class", "function", "items", "many"]
"""host: no tensor. module: an instance of a torch.nn.Module. name: something imported, or a part of it. class, function:
defined in this file. items: a tuple or list of `items`. many: iterating gives `items[0]`."""
Place = Literal["unknown", "device", "host"]


@dataclass(frozen=True)
class Value:
    """What is known of a value."""

    kind: Kind = "unknown"
    place: Place = "unknown"
    """Where a tensor is; for what is unknown, where it would be if it were one."""
    is_mask: bool = False
    """A tensor of bools."""
    is_wide: bool = False
    """A tensor of float64 or complex128."""
    is_output: bool = False
    """What a model returned: a tensor, a tuple, or an object with the loss and more."""
    name: str = ""
    """What it is called where it comes from: "torch.nn.functional.softmax"; for an instance, its class."""
    items: tuple[Value, ...] = ()
    constant: Any = None
    """The value itself, if it is a constant; of a torch.device its text."""

    @property
    def is_tensor(self) -> bool:
        return self.kind == "tensor"

    @property
    def may_be_on_device(self) -> bool:
        return self.place != "host"

    def element(self) -> Value:
        """What iterating gives."""
        if self.kind in ("items", "many") and self.items:
            return merge(*self.items)
        if self.is_tensor:
            return replace(self, constant=None)
        if self.kind == "host":
            return HOST
        return Value(place=self.place) if self.kind == "unknown" else UNKNOWN


UNKNOWN = Value()
HOST = Value("host")
TENSOR = Value("tensor")
ON_DEVICE = Value("tensor", "device")
ON_HOST = Value("tensor", "host")
FROM_LOADER = Value("unknown", "host")


def merge(*values: Value) -> Value:
    """What is known of a value that is one of these."""
    first = values[0]
    for other in values[1:]:
        if first == other:
            continue
        if first.kind != other.kind or (first.kind in ("name", "class", "function") and first.name != other.name):
            return UNKNOWN
        items = first.items if first.items == other.items else ()
        if len(first.items) == len(other.items):
            items = tuple(merge(a, b) for a, b in zip(first.items, other.items))
        first = Value(
            first.kind,
            first.place if first.place == other.place else "unknown",
            first.is_mask and other.is_mask,
            first.is_wide and other.is_wide,
            first.is_output and other.is_output,
            first.name if first.name == other.name else "",
            items,
            None,
        )
    return first


def place_of(values: Sequence[Value]) -> Place:
    """Where the result of an operation on these is: PyTorch refuses tensors of several devices in one."""
    places = {value.place for value in values if value.is_tensor} or {v.place for v in values if v.kind == "unknown"}
    if "device" in places:
        return "device"
    return "host" if "host" in places and any(value.is_tensor for value in values) else "unknown"


HOST_METHODS = frozenset({
    "item", "tolist", "numpy", "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset",
    "data_ptr", "element_size", "get_device", "backward", "register_hook", "untyped_storage", "storage", "equal",
    "allclose", "is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_shared", "is_pinned",
    "is_set_to", "is_same_size", "has_names", "__len__", "ndim", "shape", "dtype", "device", "layout",
    "requires_grad", "is_cuda", "grad_fn", "itemsize", "nbytes", "is_leaf", "names", "is_sparse", "is_meta",
    "is_quantized", "output_nr", "retain_grad", "retains_grad", "dense_dim", "sparse_dim", "type_tag", "__dict__",
    "__class__",
})  # fmt: skip
"""Methods and attributes of a tensor that are no tensors."""
TENSOR_ONLY = frozenset({
    "unsqueeze", "permute", "contiguous", "detach", "masked_fill", "masked_fill_", "requires_grad_", "backward",
    "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty", "scatter_", "index_select", "type_as", "expand",
    "expand_as", "softmax", "log_softmax", "sigmoid", "matmul", "bmm", "masked_scatter", "gather", "is_cuda",
    "logsumexp", "unflatten", "movedim", "zero_", "add_", "mul_", "copy_", "clamp_", "repeat_interleave", "float",
    "half", "bfloat16", "double", "long",
})  # fmt: skip
"""Methods that only tensors have: who calls one on a parameter takes that for a tensor."""
IN_FORWARD = TENSOR_ONLY | frozenset({
    "sum", "any", "all", "max", "min", "mean", "view", "reshape", "size", "dim", "transpose", "flatten", "to", "argmax",
    "chunk", "split", "abs", "squeeze", "item", "numel",
})  # fmt: skip
"""The same for what a module's `forward` is called with."""
MASK_FUNCTIONS = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isin", "logical_and", "logical_or",
    "logical_not", "logical_xor", "bool", "isclose", "less", "greater", "less_equal", "greater_equal", "not_equal",
})  # fmt: skip
WIDE = frozenset({"torch.float64", "torch.double", "torch.complex128", "torch.cdouble"})
_OTHER_DTYPES = frozenset({
    "float", "half", "bfloat16", "cfloat", "int", "long", "short", "char", "byte", "type", "type_as", "argmax", "argmin",
    "argsort", "count_nonzero", "nonzero", "new_tensor",
})  # fmt: skip
"""Methods whose result has a dtype of its own."""
FACTORIES = frozenset({
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "logspace", "eye",
    "tensor", "as_tensor", "normal", "complex", "tril_indices", "triu_indices", "scalar_tensor", "asarray",
    "from_numpy", "frombuffer", "empty_strided", "hann_window", "hamming_window", "blackman_window", "kaiser_window",
    "bartlett_window",
})  # fmt: skip
"""Functions of `torch` that make tensors on the default device unless `device=` says otherwise."""
READING_FUNCTIONS = frozenset({"torch.equal", "torch.allclose", "torch.is_nonzero"})
_NO_TENSOR = frozenset({
    "device", "dtype", "compile", "load", "save", "no_grad", "enable_grad", "inference_mode", "set_grad_enabled",
    "is_tensor", "is_floating_point", "is_complex", "is_storage", "numel", "manual_seed", "seed", "initial_seed",
    "set_rng_state", "get_default_dtype", "set_default_dtype", "set_default_device", "get_default_device",
    "set_default_tensor_type", "finfo", "iinfo", "Size", "Generator", "Stream", "Event", "autocast", "vmap",
    "typename", "is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled",
    "are_deterministic_algorithms_enabled", "use_deterministic_algorithms", "result_type", "promote_types",
    "can_cast", "broadcast_shapes", "set_num_threads", "get_num_threads", "set_num_interop_threads",
    "set_printoptions", "set_float32_matmul_precision", "get_float32_matmul_precision", "is_same_size", "equal",
    "allclose", "is_nonzero", "cond", "while_loop", "get_autocast_dtype", "get_autocast_gpu_dtype",
    "is_warn_always_enabled", "set_warn_always", "is_conj", "is_neg", "is_signed", "set_flush_denormal",
    "get_rng_state", "fork_rng", "compiled_with_cxx11_abi", "is_inference", "set_autocast_enabled",
    "set_autocast_dtype", "set_anomaly_enabled", "set_autocast_cache_enabled",
})  # fmt: skip
_TENSOR_SPACES = ("torch.nn.functional.", "torch.linalg.", "torch.fft.", "torch.special.", "torch.ops.aten.")
_TUPLE_MODULES = frozenset({"LSTM", "GRU", "RNN", "MultiheadAttention", "AdaptiveLogSoftmaxWithLoss"})


def is_host_attribute(name: str) -> bool:
    """Whether an attribute of a tensor, or what a method of it returns, is no tensor."""
    return name in HOST_METHODS or name.startswith("is_")


def is_output_of_model(name: str) -> bool:
    """Whether an attribute of what a model returns is a tensor: `loss`, `lm_logits`, `last_hidden_state`."""
    return name.endswith(("loss", "logits", "_embeds", "last_hidden_state", "pooler_output"))


def is_dtype(name: str) -> bool:
    """Whether this names one of torch's dtypes."""
    space, _, last = name.rpartition(".")
    return space == "torch" and (
        last.rstrip("0123456789").rstrip("_") in ("float", "int", "uint", "bfloat", "complex", "bool", "float8_e4m")
        or last in ("double", "half", "long", "short", "cfloat", "cdouble")
        or last.startswith("float8")
    )


def call_result(name: str, args: Sequence[Value], keywords: Mapping[str, Value], *, default_place: Place) -> Value:
    """What calling something imported returns.

    Args:
        name: what is called, in full.
        default_place: where a factory puts tensors that it is not told where to put.
    """
    space, _, last = name.rpartition(".")
    if space == "torch":
        return _torch_result(last, args, keywords, default_place)
    if name.startswith(_TENSOR_SPACES) or name in ("torch.nn.utils.clip_grad_norm_", "torch.clip_grad_norm_"):
        return Value("tensor", place_of([*args, *keywords.values()]), last in MASK_FUNCTIONS)
    if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.Buffer"):
        return TENSOR
    if space in ("torch.nn", "torch.nn.modules") and last[:1].isupper():
        return Value("module", name=name)
    if name in ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"):
        return Value("many", "host", items=(FROM_LOADER,))
    if name.startswith(("torch_xla.distributed.parallel_loader.", "torch.distributions.")):
        return UNKNOWN
    if name.partition(".")[0] in ("numpy", "math", "random", "time", "os", "json", "pandas"):
        return HOST
    return UNKNOWN


def _torch_result(last: str, args: Sequence[Value], keywords: Mapping[str, Value], default: Place) -> Value:
    made = _made_by_torch(last, args, keywords, default)
    return replace(made, is_wide=True) if made.is_tensor and keywords.get("dtype", UNKNOWN).name in WIDE else made


def _made_by_torch(last: str, args: Sequence[Value], keywords: Mapping[str, Value], default: Place) -> Value:
    if last == "device":
        return Value("host", constant=args[0].constant if args else None)
    if last in _NO_TENSOR:
        return HOST
    if last.endswith("Tensor"):
        return ON_HOST
    if last[:1].isupper():
        return UNKNOWN
    is_mask = last in MASK_FUNCTIONS or keywords.get("dtype", UNKNOWN).name == "torch.bool"
    device = keywords.get("device")
    if device is not None:
        return Value("tensor", "host" if device.constant == "cpu" else "device", is_mask)
    if last in FACTORIES:
        given = next((value for value in args if value.is_tensor), None)
        return Value("tensor", given.place if given is not None else default, is_mask)
    return Value("tensor", place_of([*args, *keywords.values()]), is_mask)


def method_result(receiver: Value, name: str, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    """What a method of a tensor (or of a value that nothing is known of) returns."""
    if name == "to":
        return moved(receiver, args, keywords)
    if name == "cpu":
        return replace(receiver, place="host") if receiver.kind != "module" else receiver
    if name == "cuda":
        return replace(receiver, place="device") if receiver.kind != "module" else receiver
    if not receiver.is_tensor:
        return HOST if name in ("item", "tolist") else UNKNOWN
    if is_host_attribute(name):
        return HOST
    if name == "type" and not args:
        return HOST
    is_mask = name in MASK_FUNCTIONS or (name == "clone" and receiver.is_mask)
    is_wide = name in ("double", "cdouble") or (receiver.is_wide and name not in MASK_FUNCTIONS | _OTHER_DTYPES)
    return Value("tensor", place_of([receiver, *args]), is_mask, is_wide)


def moved(receiver: Value, args: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
    """`receiver.to(...)`."""
    given = [*args, *(keywords[key] for key in ("device", "dtype", "other") if key in keywords)]
    if receiver.kind == "module":
        return receiver
    place, is_mask, is_wide = receiver.place, receiver.is_mask, receiver.is_wide
    for value in given:
        if is_dtype(value.name):
            is_mask, is_wide = value.name == "torch.bool", value.name in WIDE
        elif value.constant == "cpu":
            place = "host"
        elif value.is_tensor:
            place, is_wide = value.place, value.is_wide
        elif value.constant is not None or value.kind == "host":
            place = place if isinstance(value.constant, bool) else "device"
        elif place == "host":
            place = "unknown"
    if "device" in keywords and keywords["device"].constant != "cpu":
        place = "device"
    return replace(receiver, place=place, is_mask=is_mask, is_wide=is_wide and receiver.is_tensor)


def module_result(module: Value, args: Sequence[Value]) -> Value:
    """What calling an instance of one of torch's modules returns."""
    place: Place = "device" if place_of(args) == "device" else "unknown"
    if module.name.rpartition(".")[2] in _TUPLE_MODULES:
        return Value("items", items=(Value("tensor", place), UNKNOWN))
    return Value("tensor", place) if module.name.startswith("torch.nn.") else UNKNOWN


_ANNOTATED = frozenset({
    "Tensor", "torch.Tensor", "LongTensor", "FloatTensor", "BoolTensor", "IntTensor", "torch.LongTensor",
    "torch.FloatTensor", "torch.BoolTensor", "torch.IntTensor", "nn.Parameter", "torch.nn.Parameter",
})  # fmt: skip


def annotated(node: ast.expr | None) -> Value | None:
    """What an annotation says, if it says anything of use here."""
    if node is None:
        return None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return annotated(ast.parse(node.value, mode="eval").body)
        except SyntaxError:
            return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        found = [annotated(side) for side in (node.left, node.right) if not _is_none(side)]
        return found[0] if len(found) == 1 else _common(found)
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value).rpartition(".")[2]
        if outer == "Optional":
            return annotated(node.slice)
        if outer in ("tuple", "Tuple", "list", "List") and not isinstance(node.slice, ast.Tuple):
            inner = annotated(node.slice)
            return Value("many", items=(inner,)) if inner is not None and inner.is_tensor else HOST
        if outer in ("tuple", "Tuple") and isinstance(node.slice, ast.Tuple):
            return Value("items", items=tuple(annotated(item) or UNKNOWN for item in node.slice.elts))
        return UNKNOWN if outer in ("Annotated", "Union") else HOST
    text = ast.unparse(node)
    if text in _ANNOTATED:
        return TENSOR
    return (
        HOST
        if text in ("int", "float", "bool", "str", "bytes", "dict", "None", "torch.dtype", "torch.device")
        else None
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _common(found: Sequence[Value | None]) -> Value | None:
    known = [value for value in found if value is not None]
    return merge(*known) if len(known) == len(found) and known else None
