"""PJRT through jaxlib: the only module that touches jaxlib's private names.

They move between releases, so the range of jaxlib versions is pinned and everything used is here: making a client,
compiling text, putting and reading arrays, running executables. Knows bytes, dtypes and shapes; knows no ATen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
from jaxlib import _jax, xla_client  # noqa: E402

Array = Any
"""A PJRT array: one buffer on one device."""

NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DLPACK = {torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.int16, torch.uint8,
           torch.bool, torch.bfloat16, torch.float16, torch.complex64, torch.complex128}


class Aval:
    """The few attributes jaxlib asks of an abstract value."""

    __slots__ = ("shape", "dtype")
    weak_type = False

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]):
        self.shape, self.dtype = shape, dtype


class _Sharding(_jax.SingleDeviceSharding):
    """One device, with the method that `batched_device_put` asks for (jax adds it in Python)."""

    memory_kind = None

    def __init__(self, device: Any):
        super().__init__(device)
        self._one = device

    @property
    def _device_assignment(self) -> tuple[Any, ...]:
        return (self._one,)

    def _to_xla_hlo_sharding(self, ndim: int) -> Any:
        return xla_client.HloSharding.replicate()


class Executable:
    """A loaded program: `run(arrays) -> arrays`."""

    __slots__ = ("_execute", "_handlers", "loaded")

    def __init__(self, loaded: Any, handlers: list[Any]):
        self.loaded = loaded
        self._execute = loaded.execute_sharded
        self._handlers = handlers

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Starts the program and returns at once with arrays that will hold its results."""
        return self._execute(arrays).consume_with_handlers(self._handlers)


class Client:
    """One PJRT client and the device this process computes on."""

    def __init__(self, raw: Any, platform: str):
        self.raw = raw
        self.platform = platform
        self.device = raw.local_devices()[0]
        self._sharding = _Sharding(self.device)
        self._devices = [self.device]
        self._device_list = xla_client.DeviceList((self.device,))

    def options(self) -> Any:
        return xla_client.CompileOptions()

    def handlers(self, results: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Any]:
        return [
            xla_client.array_result_handler(Aval(tuple(shape), NUMPY[dtype]), self._sharding, True, True)
            for shape, dtype in results
        ]

    def compile(self, text: str, results: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> Executable:
        """Compiles a StableHLO module whose results have the given shapes and dtypes."""
        from torch_tpu.runtime import mlir

        loaded = self.raw.compile_and_load(mlir.parse(text), self._device_list, self.options(), [])
        return Executable(loaded, self.handlers(results))

    def put(self, tensor: torch.Tensor, *, owned: bool = False) -> Array:
        """Copies a contiguous CPU tensor to the device.

        Args:
            owned: nobody else will write to its memory, so that it need not be copied where XLA can use it.
        """
        dtype = NUMPY[tensor.dtype]
        tensor = tensor.detach()
        if tensor.dtype in (torch.complex64, torch.complex128):
            host = tensor.resolve_conj().numpy()
        else:
            host = tensor.view(_BYTES[tensor.dtype.itemsize]).numpy().view(dtype)
        semantics = xla_client.HostBufferSemantics
        return xla_client.batched_device_put(
            Aval(tuple(tensor.shape), dtype),
            self._sharding,
            [host],
            self._devices,
            host_buffer_semantics=semantics.ZERO_COPY if owned else semantics.IMMUTABLE_ONLY_DURING_CALL,
            enable_x64=True,
        )

    def get(self, array: Array, dtype: torch.dtype) -> torch.Tensor:
        """A CPU tensor of an array's values, after waiting for them. It may share the array's memory: do not write."""
        if dtype in _DLPACK and self.platform == "cpu" and 0 not in array.aval.shape:
            return torch.utils.dlpack.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(array))
        host = np.asarray(array)
        shape = host.shape
        result = torch.empty(shape, dtype=dtype)
        if result.numel():
            result.view(-1).view(torch.uint8).numpy()[:] = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        return result


def cpu_client() -> Client:
    return Client(xla_client.make_cpu_client(), "cpu")
