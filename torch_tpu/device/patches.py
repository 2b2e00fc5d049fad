"""Every change to PyTorch's internals: one function each, with what breaks without it and when it can go."""

from __future__ import annotations

import functools
import inspect
import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from torch_tpu.device import selection


def print_tensors_from_the_host() -> None:
    """`print(tensor)` formats element by element; on an asynchronous device each element is a program and a copy.

    Without it printing works, but runs some hundred small programs. To be removed when `torch._tensor_str` copies
    tensors of out-of-tree devices to the CPU first, as it does for xla.
    """
    import torch._tensor_str as tensor_str

    original = tensor_str._tensor_str

    def _tensor_str(self: torch.Tensor, indent: int) -> str:
        if self.device.type == "tpu" and not torch._C._functorch.is_functorch_wrapped_tensor(self):
            self = self.detach().cpu()
        return original(self, indent)

    tensor_str._tensor_str = _tensor_str


def set_float32_matmul_precision_reaches_the_device() -> None:
    """`torch.set_float32_matmul_precision` also sets the precision of this device's matrix products.

    Without it the call changes CPU and CUDA only. To be removed when PyTorch lets a backend observe the setting.
    """
    from torch_tpu import settings

    original = torch.set_float32_matmul_precision

    def set_float32_matmul_precision(precision: str) -> None:
        original(precision)
        settings.matmul_precision = precision  # type: ignore[assignment]

    set_float32_matmul_precision.__doc__ = original.__doc__
    torch.set_float32_matmul_precision = set_float32_matmul_precision


def autocast_starts_with_bfloat16() -> None:
    """`torch.autocast("tpu")` computes in bfloat16 unless it is told otherwise.

    PyTorch keeps the dtype in a thread-local variable that starts as float16 in every thread for out-of-tree devices.
    To be removed when a backend can name its default.
    """
    original = torch.get_autocast_dtype
    thread = threading.local()

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        if device_type == "tpu" and not hasattr(thread, "started"):
            thread.started = True
            torch.set_autocast_dtype("tpu", torch.bfloat16)
        return original(device_type)

    get_autocast_dtype.__doc__ = original.__doc__
    torch.get_autocast_dtype = get_autocast_dtype


def meta_kernels_do_not_import_dynamo() -> None:
    """PyTorch's meta kernels in Python are marked not to be traced by Dynamo, and import it to say so.

    Without it the first operator takes 1.5 s longer. While Dynamo is not imported nothing traces, so the functions can
    be called as they are; once it is, they are marked as before. To be removed when `torch._compile` does the same.
    Called at the first operator instead of at import: it walks PyTorch's table of decompositions.
    """
    from torch._decomp import decomposition_table, meta_table

    def unmarked(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            function.__dynamo_disable = torch._dynamo.disable(function, True, wrapping=False)
            return function.__dynamo_disable(*args, **kwargs)

        return call

    marker = torch._compile._disable_dynamo(lambda: None).__code__
    for first in {*decomposition_table.values(), *meta_table.values()}:
        function: Any = first
        while function is not None:
            if getattr(function, "__code__", None) is marker:
                inner = inspect.getclosurevars(function).nonlocals["fn"]
                if getattr(inner, "__dynamo_disable", None) is None:
                    inner.__dynamo_disable = unmarked(inner)
            function = getattr(function, "__wrapped__", None)


def tensors_pass_between_processes() -> None:
    """A queue of `torch.multiprocessing` sends a device tensor as a copy of its values, in shared host memory; so does
    the start of a process with its arguments, in the message that starts it: a copy in shared memory would be gone
    before the new process asks for it.

    Without it the thread that feeds the queue fails to share the storage, and the receiver waits for ever. Two tensors
    that share memory arrive as two copies. To be removed when PyTorch asks the backend how to send a tensor.
    """
    from multiprocessing.context import get_spawning_popen
    from multiprocessing.reduction import ForkingPickler

    original = torch.multiprocessing.reductions.reduce_tensor

    def reduce_tensor(tensor: torch.Tensor) -> Any:
        if tensor.device.type != "tpu" or (tensor.requires_grad and not tensor.is_leaf):
            return original(tensor)  # which refuses a tensor with a history
        host: Any = tensor.detach().cpu()
        if get_spawning_popen() is not None:
            message = io.BytesIO()
            torch.save(host, message)
            host = message.getvalue()
        return _received, (type(tensor), host, tensor.device, tensor.requires_grad)

    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, reduce_tensor)


def _received(
    kind: type[torch.Tensor], host: torch.Tensor | bytes, device: torch.device, requires_grad: bool
) -> torch.Tensor:
    tensor = (torch.load(io.BytesIO(host)) if isinstance(host, bytes) else host).to(device)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def dlpack_has_a_number_for_the_device() -> None:
    """`torch.from_dlpack(tensor)` gives a tensor that shares the device tensor's memory.

    Without it only the capsule of `torch.utils.dlpack.to_dlpack` does: `__dlpack_device__` knows an out-of-tree device
    by the name "privateuse1", and not by the name it was given. To be removed when PyTorch asks for that name.
    """
    from torch.utils.dlpack import DLDeviceType

    original = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type != "tpu":
            return original(self)
        return DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]


def inductor_leaves_graphs_on_the_device(touches: Callable[..., bool], backend: Callable[..., Any]) -> None:
    """Inductor, which `torch.compile` uses unless told otherwise, hands graphs that touch the device to its backend.

    Without it `torch.compile(fn)` works only as `torch.compile(fn, backend="tpu")`, and libraries that name inductor
    fail. `torch.compiler.set_default_backend` would serve the first but not the second, and would replace the default
    of CPU and CUDA users too. To be removed when Inductor lets a device register a compiler for graphs instead of a
    code generator. Called when Inductor is imported.

    Args:
        touches: whether a graph (and its inputs) is for the device.
        backend: compiles it.
    """
    import torch._inductor.compile_fx as inductor

    original = inductor.compile_fx

    @functools.wraps(original)
    def compile_fx(model_: Any, example_inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(model_, torch.fx.GraphModule) and touches(model_, example_inputs_):
            return backend(model_, example_inputs_)
        return original(model_, example_inputs_, *args, **kwargs)

    inductor.compile_fx = compile_fx


def flex_attention_takes_the_device() -> None:
    """`flex_attention` refuses tensors on devices that it does not list.

    Without it the call raises before it reaches the compiler. To be removed when PyTorch's list can be extended. The
    list is a constant of a function that Dynamo must be able to trace, so it is changed in place. Called when the
    module is imported.
    """
    import torch.nn.attention.flex_attention as flex

    _add_device_to_constants(flex._validate_device, frozenset({"cuda", "cpu", "xpu", "hpu", "mps"}))


def associative_scan_takes_the_device() -> None:
    """`associative_scan(..., combine_mode="pointwise")`, its default, refuses tensors on devices that it does not list.

    As `flex_attention_takes_the_device`. Here both modes are one program.
    """
    scan = sys.modules["torch._higher_order_ops.associative_scan"]
    _add_device_to_constants(scan.associative_scan, ("cuda", "xpu"))


def attention_of_jagged_tensors_is_refused() -> None:
    """`scaled_dot_product_attention` of jagged tensors ends in an error that says what to do instead.

    PyTorch composes it of strided nested tensors, which the device refuses; it takes the refusal for an operator that it
    has to look for elsewhere, and ends with a bare NotImplementedError. To be removed when the device has strided nested
    tensors, or a form of this attention. Called when the table of operators on jagged tensors is imported.
    """
    from torch.nested._internal.ops import register_jagged_func

    from torch_tpu import errors

    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise errors.UnsupportedOpError(
            errors.message(
                "the device has no attention of jagged tensors",
                do="pad them by to_padded_tensor() and mask the padding",
                see=errors.page(errors.UnsupportedOpError),
            )
        )

    name = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
    register_jagged_func(name, "query: any, ...")(refuse)


def grouped_products_are_traced_in_more_dtypes() -> None:
    """The meta kernel of `_grouped_mm`, by which graphs know its result, takes bfloat16 only; devices take more.

    To be removed when `torch._meta_registrations._meta_grouped_mm_common` takes what PyTorch's CPU takes.
    """
    module: Any = torch._meta_registrations
    original = module._meta_grouped_mm_common

    def common(
        mat_a: torch.Tensor, mat_b: torch.Tensor, scale_a: Any, scale_b: Any, offs: Any = None, **others: Any
    ) -> torch.Tensor:
        if scale_a is not None or mat_a.dtype != mat_b.dtype or mat_a.dtype not in (torch.float32, torch.float16):
            return original(mat_a, mat_b, scale_a, scale_b, offs, **others)
        dims = (mat_a.dim(), mat_b.dim())
        torch._check(set(dims) <= {2, 3}, lambda: f"_grouped_mm takes matrices or batches of them, not {dims}")
        fits = dims == (2, 2) or mat_a.size(-1) == mat_b.size(-2)
        torch._check(fits, lambda: f"_grouped_mm: {list(mat_a.shape)} and {list(mat_b.shape)} do not fit")
        torch._check((offs is None) == (dims == (3, 3)), lambda: "_grouped_mm takes offsets unless both are batches")
        return module._create_grouped_mm_output_tensor(mat_a, mat_b, offs, others.get("out_dtype"))

    module._meta_grouped_mm_common = common


def remainders_of_numbers_are_data() -> None:
    """A number that varies and is a remainder (`x * float(step % 3)`) becomes a tensor as other numbers do.

    To be removed when `TensorReferenceAnalysis`, which writes such numbers as operators, knows Python's remainder.
    """
    from torch.utils._sympy.reference import TensorReferenceAnalysis

    if not hasattr(TensorReferenceAnalysis, "python_mod"):
        TensorReferenceAnalysis.python_mod = staticmethod(torch.ops.aten.remainder.Tensor)


def cells_without_biases_are_traced() -> None:
    """The meta kernel of `_thnn_fused_lstm_cell` asks its biases for their device, also where there are none.

    To be removed when `torch._meta_registrations.rnn_cell_checkSizes` leaves them out of that check.
    """
    module: Any = torch._meta_registrations
    original = module.rnn_cell_checkSizes

    def check(
        input_gates: torch.Tensor, hidden_gates: torch.Tensor, input_bias: Any, hidden_bias: Any, *rest: Any
    ) -> None:
        if input_bias is None and hidden_bias is None:
            input_bias = hidden_bias = input_gates.new_empty(input_gates.size(-1))
        original(input_gates, hidden_gates, input_bias, hidden_bias, *rest)

    module.rnn_cell_checkSizes = check


def accelerate_finds_the_device() -> None:
    """Accelerate, and so the Trainer of Transformers, moves models to the CPU where it finds none of the devices it lists.

    To be removed when `accelerate.PartialState.default_device` asks `torch.accelerator`, as `TrainingArguments` does.
    """
    state: Any = sys.modules["accelerate.state"].PartialState
    original = state.default_device.fget

    def default_device(self: Any) -> torch.device:
        found: torch.device = original(self)
        current = torch.accelerator.current_accelerator() if found.type == "cpu" else None
        return found if current is None or current.type != "tpu" else torch.device("tpu")

    state.default_device = property(default_device, doc=state.default_device.__doc__)


def accelerate_knows_the_memory_of_the_device() -> None:
    """Accelerate's `device_map="auto"`, also that of Transformers, fills the devices it lists, and then the CPU's memory.

    Without it the whole model stays on the CPU. To be removed when `accelerate.utils.get_max_memory` asks
    `torch.accelerator`.
    """
    module: Any = sys.modules["accelerate.utils.modeling"]
    original = module.get_max_memory

    @functools.wraps(original)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> dict[Any, Any]:
        current = torch.accelerator.current_accelerator()
        if current is None or current.type != "tpu":
            found: dict[Any, Any] = original(max_memory)
            return found
        if max_memory is None:
            return {0: torch.tpu.mem_get_info()[0], **original()}
        others = original({key: size for key, size in max_memory.items() if key != 0})
        size = max_memory.get(0)
        size = module.convert_file_size_to_int(size) if isinstance(size, str) else size
        return others if size is None else {0: size, **others}

    module.get_max_memory = get_max_memory


def safetensors_loads_to_the_device() -> None:
    """`safe_open(..., device="tpu")` and `load_file`, which calls it: safetensors knows devices by name, and not this one.

    A number it hands to PyTorch, for which it is the accelerator's. To be removed when safetensors takes any device that
    PyTorch has.
    """
    module: Any = sys.modules["safetensors"]
    original = module.safe_open

    @functools.wraps(original, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        if not isinstance(device, int) and str(device).partition(":")[0] == "tpu":
            device = selection.index(device)
        return original(filename, framework, device, **kwargs)

    module.safe_open = safe_open


def operators_without_meta_kernels_are_tried_on_the_cpu() -> None:
    """PyTorch finds what an operator without a meta kernel returns by a call on zeros, made by `zeros_like` of fake tensors.

    The device's own `zeros_like` reads storages, which a fake tensor has not on the device, so such operators (`geqrf`,
    `histogram`) could not be compiled. The CPU's results have the same sizes. To be removed when PyTorch makes the zeros
    from sizes.
    """
    module: Any = sys.modules["torch._subclasses.fake_tensor"]
    original = module.run_fallback_kernel

    def run_fallback_kernel(fake_mode: Any, func: Any, flat_args: Any, args_spec: Any, error: Any) -> Any:
        fakes = [arg for arg in flat_args if fake_mode.is_our_fake(arg)]
        if torch.Tag.inplace_view in func.tags or all(fake.fake_device.type != "tpu" for fake in fakes):
            return original(fake_mode, func, flat_args, args_spec, error)
        known: dict[int, Any] = {}

        def to_cpu(arg: Any) -> Any:
            if not fake_mode.is_our_fake(arg):
                return torch.device("cpu") if isinstance(arg, torch.device) else arg
            zeros = torch.empty_strided(tuple(arg.shape), arg.stride(), dtype=arg.dtype).zero_()
            known[id(zeros)] = arg
            return zeros

        def to_fake(result: Any) -> Any:
            if not isinstance(result, torch.Tensor) or id(result) in known:
                return known.get(id(result), result)
            if result.untyped_storage()._cdata in storages:
                raise error
            meta = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")
            return fake_mode.fake_tensor_converter.from_meta_and_device(fake_mode, meta, torch.device("tpu", 0))

        with module.no_dispatch():
            given = [to_cpu(arg) for arg in flat_args]
            storages = {arg.untyped_storage()._cdata for arg in given if isinstance(arg, torch.Tensor)}
            args, kwargs = module.pytree.tree_unflatten(given, args_spec)
            results = func(*args, **kwargs)
            return module.pytree.tree_map(to_fake, results)

    module.run_fallback_kernel = run_fallback_kernel


def compiled_optimizers_keep_their_state_on_the_device() -> None:
    """Dynamo makes new optimizers `capturable` where their parameters are on CUDA or XPU devices.

    Without it the step counts of Adam and others are on the host, each is copied to the device in every step, and the
    optimizer is several programs. To be removed when PyTorch asks the device instead of its name.
    """
    from torch._dynamo.variables.optimizer import OptimizerVariable

    original = OptimizerVariable._set_capturable

    def _set_capturable(self: Any, tx: Any) -> None:
        for group in self.value.param_groups:
            fresh = all(p.device.type == "tpu" and p not in self.value.state for p in group.get("params", []))
            if "capturable" in group and fresh:
                group["capturable"] = True
        original(self, tx)

    OptimizerVariable._set_capturable = _set_capturable  # type: ignore[method-assign]


def compiled_optimizers_need_no_inductor() -> None:
    """Dynamo imports all of Inductor to ask about CUDA's graphs, for gradients on any device.

    Without it each process that compiles an optimizer takes another second of CPU. To be removed when Dynamo imports that
    for gradients on CUDA only.
    """
    optimizer: Any = sys.modules["torch._dynamo.variables.optimizer"]
    if (original := getattr(optimizer, "_is_static_for_cudagraphs", None)) is not None:
        optimizer._is_static_for_cudagraphs = lambda x: not x.is_cuda or original(x)


def graphs_end_where_the_precision_is_set() -> None:
    """Dynamo puts a call of `torch.set_float32_matmul_precision` into the graph and runs it while it traces.

    Without it what follows in the function has the precision that was set last, for every device. To be removed when
    Dynamo breaks the graph there.
    """
    rules = sys.modules["torch._dynamo.trace_rules"]
    rules.torch_non_c_binding_in_graph_functions.pop("torch.set_float32_matmul_precision", None)
    rules.get_torch_obj_rule_map().pop(torch.set_float32_matmul_precision, None)


def _add_device_to_constants(function: Any, wanted: Any) -> None:
    """Adds the device to a tuple or set of devices written in a function, or in a function inside it."""

    def changed(code: Any) -> Any:
        constants = [
            type(item)([*item, "tpu"]) if item == wanted else changed(item) if hasattr(item, "co_code") else item
            for item in code.co_consts
        ]
        return code.replace(co_consts=tuple(constants))

    function.__code__ = changed(function.__code__)


PATCHES: tuple[Any, ...] = (
    print_tensors_from_the_host,
    set_float32_matmul_precision_reaches_the_device,
    autocast_starts_with_bfloat16,
    tensors_pass_between_processes,
    dlpack_has_a_number_for_the_device,
)


def apply() -> None:
    """Applies all of them; called once, by `register`."""
    for patch in PATCHES:
        patch()
