"""PJRT through jaxlib: the only module that touches jaxlib's private names.

They move between releases, so the range of jaxlib versions is pinned and everything used is here: making a client,
compiling text, putting and reading arrays, running executables. Knows bytes, dtypes and shapes; knows no ATen.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from jaxlib import _jax, xla_client

from torch_tpu import errors, settings
from torch_tpu.runtime import cache, chips, heap, lapack, mlir, options
from torch_tpu.runtime.interrupts import interruptible
from torch_tpu.runtime.job import Job
from torch_tpu.stats import counters

log = logging.getLogger("torch_tpu")

when_crowded: list[Callable[[], None]] = []
"""Called where the process has almost as many programs as it can have, to let go of those that are not in use."""
CHECKED_EVERY = 256
"""After how many programs it is looked whether that is so."""

Array = Any
"""A PJRT array: one buffer on one device."""

Result = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of what a program returns."""

_COPY = xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
_ZERO_COPY = xla_client.HostBufferSemantics.ZERO_COPY

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
_KIND = {dtype: name.str if name.isbuiltin == 1 else f"<i{name.itemsize}" for dtype, name in NUMPY.items()}
"""What numpy's array interface calls the dtypes; those that numpy does not know are handed over as integers."""
_CASTS_ALIKE = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool})
"""The dtypes that numpy makes from a Python number exactly as torch does."""


class Aval:
    """The few attributes jaxlib asks of an abstract value."""

    __slots__ = ("dtype", "shape")
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

    __slots__ = ("_execute", "_handlers", "donated", "key", "loaded")

    def __init__(self, loaded: Any, handlers: list[Any], donated: Sequence[int] = (), key: str = ""):
        self.loaded = loaded
        self.donated = tuple(donated)
        """The arguments whose memory the program takes over: their arrays cannot be used afterwards."""
        self.key = key
        """Its name in the caches."""
        self._execute = loaded.execute_sharded
        self._handlers = handlers

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Starts the program and returns at once with arrays that will hold its results."""
        counters.executions += 1
        try:
            return self._execute(arrays).consume_with_handlers(self._handlers)
        except xla_client.XlaRuntimeError as error:
            self.explain(error)
            raise

    @property
    def calls(self) -> tuple[Callable[[Sequence[Array]], Any], list[Any]]:
        """XLA's start of the program, and the handlers that its results are consumed with: what `run` calls."""
        return self._execute, self._handlers

    def explain(self, error: Exception) -> None:
        """Raises what an error of XLA's means: no memory, or the failure of a program so small that it ran at once."""
        if isinstance(error, xla_client.XlaRuntimeError):
            raise failed(error, self.name) from None

    def refuse_above(self, limit: int) -> None:
        """Makes the program fail at its start if it takes more than so many bytes besides its arguments."""
        found = self.loaded.get_compiled_memory_stats()
        needed = found.output_size_in_bytes - found.alias_size_in_bytes + found.temp_size_in_bytes
        if needed <= limit:
            return

        def refuse(arrays: Sequence[Array]) -> Any:
            what = f"RESOURCE_EXHAUSTED: {needed} bytes for results and temporaries, of {limit} there are"
            raise xla_client.XlaRuntimeError(what)

        self._execute = refuse

    @property
    def name(self) -> str:
        """Of the program, such as "aten_mm"."""
        return str(self.loaded.hlo_modules()[0].name)

    def optimized_text(self) -> str:
        """The program after XLA's passes, as HLO."""
        return "\n".join(module.to_string() for module in self.loaded.hlo_modules())


class Client:
    """One PJRT client and the device this process computes on."""

    runs = True
    """Whether programs run, and arrays have values."""

    def __init__(self, raw: Any, platform: str, job: Job | None = None):
        self.raw = raw
        self.platform = platform
        """"cpu", "tpu" or "cuda"."""
        self.device = raw.local_devices()[0]
        self.device_kind: str = self.device.device_kind
        self.environment = cache.environment(platform, self.device_kind, str(raw.platform_version))
        """What its programs' machine code depends on besides their text."""
        self._sharding = _Sharding(self.device)
        self._devices = [self.device]
        firsts = {device.process_index: device for device in reversed(raw.devices())}
        # PJRT may number processes by where their chips are, so each one says which it is.
        self._peers = [firsts[index] for index in job.exchange(raw.process_index())] if job else self._devices
        """The device of each process of the job: its first one."""
        self._programs: cache.Recent[Any] = cache.Recent(8192)
        self._loads = 0
        self._scalars: cache.Recent[Array] = cache.Recent(4096)

    def handlers(self, results: Sequence[Result]) -> list[Any]:
        return [
            xla_client.array_result_handler(Aval(tuple(shape), NUMPY[dtype]), self._sharding, True, True)
            for shape, dtype in results
        ]

    def compile(
        self,
        text: str,
        results: Sequence[Result],
        donated: Sequence[int] = (),
        effort: options.Effort = "low",
        processes: Sequence[int] = (),
    ) -> Executable:
        """The executable of a StableHLO module, from this process's table, the disk cache or XLA.

        Args:
            results: shapes and dtypes of what its main function returns.
            donated: the arguments that the text gives away (by `tf.aliasing_output`).
            effort: how hard XLA optimizes a large program; see `options`.
            processes: those that run it together, each as one replica, in this order; by default this one alone.

        Raises:
            CompileError: XLA refused the program.
        """
        chosen, key = self.identify(text, results, effort)
        name = (key, *processes)
        program = self._programs.get(name)
        if program is not None:
            counters.memory_hits += 1
            return program
        if self.platform == "cpu" and "lapack_" in text:
            lapack.register()
        devices = [self._peers[process] for process in processes] or self._devices
        callbacks = [_fail] if "xla_ffi_python_cpu_callback" in text else []  # see hlo.fail_if
        ids = [device.id for device in devices]
        how = (xla_client.DeviceList(tuple(devices)), options.options(chosen, self.platform, ids), callbacks)
        start = time.perf_counter()
        loaded = self._load(key, how) or self._build(key, text, chosen, how)
        if time.perf_counter() - start > heap.LONG_COMPILE:
            heap.give_back()
        self._loads += 1
        if self.platform == "cpu" and self._loads % CHECKED_EVERY == 0 and heap.is_crowded():
            self._programs.clear()
            for forget in when_crowded:
                forget()
            counters.crowded += 1
            log.info("the process had as many programs as its memory mappings allow; those not in use were dropped")
        program = Executable(loaded, self.handlers(results), donated, key)
        if self.platform == "cpu":  # a TPU's client refuses it when it is started, the CPU's while others run already
            program.refuse_above(heap.total_memory())
        self._programs.put(name, program)
        return program

    def identify(self, text: str, results: Sequence[Result], asked: options.Effort) -> tuple[options.Effort, str]:
        """The effort that a program is compiled with, and its name in the caches."""
        chosen = options.choose(asked, results, text)
        return chosen, cache.key(text, options.overrides(chosen, self.platform), self.environment)

    def _load(self, key: str, how: tuple[Any, ...]) -> Any | None:
        disk = cache.disk()
        if disk is None:
            return None
        content = disk.get(key)
        if content is not None:
            try:
                loaded = self.raw.deserialize_executable(content, *how)
            except xla_client.XlaRuntimeError as error:
                log.info("the program %s in %s does not load and is deleted: %s", key, disk.directory, error)
                counters.disk_errors += 1
                disk.delete(key)
            else:
                counters.disk_hits += 1
                return loaded
        counters.disk_misses += 1
        return None

    def _build(self, key: str, text: str, effort: options.Effort, how: tuple[Any, ...]) -> Any:
        loaded = self._compile(key, text, effort, lambda module: self.raw.compile_and_load(module, *how))
        self._keep(key, text, lambda: self.raw.serialize_executable(loaded))
        return loaded

    def _compile(self, key: str, text: str, effort: options.Effort, build: Callable[[Any], Any]) -> Any:
        """What XLA makes of a module.

        Raises:
            CompileError: XLA refused it.
        """
        if settings.dump_dir:
            _dump(key, text)
        start = time.perf_counter()
        try:
            module = mlir.parse(text)
            built = interruptible(lambda: build(module))
        except (ValueError, xla_client.XlaRuntimeError) as error:
            kind = chips.KINDS.get(self.device_kind, self.platform.upper())
            dtypes = mlir.element_types(text)
            raise errors.compile_failed(name_of(text), str(error), text, dtypes, kind) from None
        seconds = time.perf_counter() - start
        counters.compiles += 1
        counters.compile_seconds += seconds
        if "compile" in settings.log:
            log.warning("compiled %s in %.1f ms (%s effort, %s)", name_of(text), seconds * 1e3, effort, key[:12])
        return built

    def _keep(self, key: str, text: str, serialize: Callable[[], bytes]) -> None:
        """Puts a program on disk, where the settings ask for it."""
        disk = cache.disk()
        if disk is None:
            return
        try:
            disk.put(key, serialize(), {"name": name_of(text), **self.environment})
        except xla_client.XlaRuntimeError as error:
            log.info("a program cannot be kept on disk: %s", error)

    def put(self, tensor: torch.Tensor, *, owned: bool = False) -> Array:
        """An array on the device with a CPU tensor's values.

        Args:
            owned: nobody will write to its memory any more, so that XLA may use it as it is where it can (on the CPU,
                contiguous and aligned to 64 bytes). Otherwise the values are copied before this returns.
        """
        host = _numpy_view(tensor)
        counters.host_to_device += 1
        counters.host_to_device_bytes += host.nbytes
        return self._put(host, _ZERO_COPY if owned else _COPY)

    def _put(self, host: Any, semantics: Any) -> Array:
        return xla_client.batched_device_put(
            Aval(host.shape, host.dtype),
            self._sharding,
            [host],
            self._devices,
            host_buffer_semantics=semantics,
            enable_x64=True,
        )

    def put_words(self, words: Sequence[int]) -> Array:
        """A ui64 array of a few numbers. Not counted as a transfer."""
        return self._put(np.array(words, dtype=np.uint64), _ZERO_COPY)

    def scalar(self, number: complex, dtype: torch.dtype) -> Array:
        """A 0-d array with a Python number, made once and shared: never donate it. Not counted as a transfer.

        Raises:
            RuntimeError: the number is too large for an integer dtype.
        """
        found = self._scalars.young.get((number, dtype))
        if found is not None and number and number.__class__ is not complex:
            return found
        return self._scalar(number, dtype)

    def _scalar(self, number: complex, dtype: torch.dtype) -> Array:
        plain = number and number.__class__ is not complex
        # Equal numbers share an entry; only zeros and complex numbers can be equal without being the same.
        key = (number if plain else repr(number), dtype)
        found = self._scalars.get(key)
        if found is None:
            found = self._put(_host_number(number, dtype), _COPY)
            self._scalars.put(key, found)
        return found

    def vector(self, numbers: Sequence[complex], dtype: torch.dtype) -> Array:
        """A 1-d array with Python numbers, kept as `scalar` keeps its own: never donate it. Not counted as a transfer.

        Raises:
            RuntimeError: a number is too large for an integer dtype.
        """
        kinds = set(map(type, numbers))
        if (dtype in _CASTS_ALIKE and complex not in kinds) or (dtype is torch.int64 and kinds == {int}):
            with np.errstate(over="ignore"):
                host = np.array(numbers, dtype=NUMPY[dtype])
        else:
            host = np.array([_host_number(number, dtype) for number in numbers])
        key = host.tobytes(), dtype, "vector"
        found = self._scalars.get(key)
        if found is None:
            found = self._put(host, _COPY)
            self._scalars.put(key, found)
        return found

    def get(self, array: Array, dtype: torch.dtype, *, copy: bool = False) -> torch.Tensor:
        """A CPU tensor of an array's values, after waiting for them.

        Args:
            copy: return memory of its own. Otherwise it may share the array's: it must not be written, and the array
                is not donated as long as it lives (XLA sees to that).

        Raises:
            ExecutionError, torch.OutOfMemoryError: the program that computes the array failed.
        """
        try:
            if self.platform == "cpu":
                result: torch.Tensor = torch.utils.dlpack.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(array))
                result = result.clone() if copy else result
            else:
                host, _ = array._single_device_array_to_np_array_did_copy()
                result = tensor_of(host, dtype)
        except xla_client.XlaRuntimeError as error:
            raise failed(error) from error
        counters.device_to_host += 1
        counters.device_to_host_bytes += result.nbytes
        return result

    def address_of(self, array: Array, num_bytes: int) -> int:
        """Where an array's values lie in the host's memory, after waiting for them; 0 where they do not.

        Raises:
            ExecutionError, torch.OutOfMemoryError: the program that computes the array failed.
        """
        if self.platform != "cpu" or not self.runs:
            return 0
        try:
            array.block_until_ready()
        except xla_client.XlaRuntimeError as error:
            raise failed(error) from error
        counters.device_to_host += 1
        counters.device_to_host_bytes += num_bytes
        return int(array.unsafe_buffer_pointer())

    def blank(self, shape: Sequence[int], dtype: torch.dtype) -> Array:
        """An array in the place of one whose values nobody knows (see `compile_only`): zeros."""
        return self.put(torch.zeros(tuple(shape), dtype=dtype), owned=True)

    def wait(self, arrays: Sequence[Array]) -> None:
        """Waits until arrays hold their values.

        Raises:
            ExecutionError, torch.OutOfMemoryError: a program that computes one of them failed.
        """
        try:
            xla_client.batched_block_until_ready(list(arrays))
        except xla_client.XlaRuntimeError as error:
            raise failed(error) from error

    def pending(self) -> list[Array]:
        """The arrays that do not hold their values yet."""
        return [array for array in self.raw.live_arrays() if not array.is_deleted() and not array.is_ready()]

    def synchronize(self) -> None:
        """Waits for everything that was started.

        Raises:
            ExecutionError, torch.OutOfMemoryError: a program failed.
        """
        self.wait([array for array in self.raw.live_arrays() if not array.is_deleted()])

    def memory_info(self) -> tuple[int, int] | None:
        """Free and total bytes of the device, where the platform says."""
        stats = self.device.memory_stats() if self.platform != "cpu" else None
        if not stats or "bytes_limit" not in stats:
            return None
        return stats["bytes_limit"] - stats["bytes_in_use"], stats["bytes_limit"]

    def close(self) -> None:
        """Waits for what runs and lets go of programs and scalars; called before the interpreter exits."""
        for array in self.raw.live_arrays():
            if not array.is_deleted():
                try:
                    array.block_until_ready()
                except xla_client.XlaRuntimeError as error:
                    log.info("a program failed and nobody asked for its result: %s", error)
        self._scalars.clear()
        self._programs.clear()


def _host_number(number: complex, dtype: torch.dtype) -> Any:
    """A 0-d numpy array of a Python number, cast as torch casts it.

    Raises:
        RuntimeError: it is too large for an integer dtype.
    """
    if dtype in _CASTS_ALIKE and number.__class__ is not complex:
        with np.errstate(over="ignore"):
            return np.array(number, dtype=NUMPY[dtype])
    # One element, for which torch makes a number that is too large for a float infinite.
    return _numpy_view(torch.full((1,), number, dtype=dtype)[0])


def _fail(message: Any, *numbers: Any) -> None:
    """What programs call that refuse their data: `hlo.fail_if`. XLA quotes the exception in the error of the program."""
    kind, _, reason = bytes(message).decode().partition(": ")
    error: Any = {"IndexError": IndexError, "LinAlgError": torch.linalg.LinAlgError}.get(kind, RuntimeError)
    raise error(reason.format(*map(int, numbers)))


_REFUSED = re.compile(r"CpuCallback error.*\n[\w.]*?(Index|Runtime|LinAlg)Error: (.*)", re.DOTALL)


def _advice(unknown: str) -> str:
    """How to learn more of a program that failed, for those who do not wait for each operator already."""
    return "" if settings.eager_mode == "debug" else f"set TPU_LAUNCH_BLOCKING=1 to see which {unknown}"


def failed(error: Exception, program: str = "a program") -> Exception:
    """The exception to raise for what XLA reports while a program runs."""
    text = str(error)
    refused = _REFUSED.search(text)
    if refused is not None:
        if refused[1] == "LinAlg":
            return torch.linalg.LinAlgError(refused[2].strip())
        kind = errors.IndexOutOfRangeError if refused[1] == "Index" else errors.ExecutionError
        return kind(errors.message(refused[2].strip(), do=_advice("line called it"), see=errors.page(kind)))
    if text.startswith("RESOURCE_EXHAUSTED") or "Out of memory" in text:
        what = f"the device is out of memory for {program}"
        return torch.OutOfMemoryError(errors.message(what, why=text, do="use smaller batches, or free tensors"))
    return errors.ExecutionError(
        errors.message(
            f"{program} failed on the device",
            why=text,
            do=_advice("operator it was"),
            see=errors.page(errors.ExecutionError),
        )
    )


class _Memory:
    """A contiguous CPU tensor as numpy's array interface has it. `Tensor.numpy` would forbid the tensor to be resized,
    for good: https://numpy.org/doc/stable/reference/arrays.interface.html"""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        self.__array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": _KIND[tensor.dtype],
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


def _numpy_view(tensor: torch.Tensor) -> Any:
    """A CPU tensor's values as numpy, in row-major order, without a copy where that is possible."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    tensor = tensor.detach().contiguous()
    dtype = tensor.dtype
    try:
        return np.asarray(_Memory(tensor)).view(NUMPY[dtype])
    except KeyError:
        raise TypeError(f"XLA has no element type for {dtype}; it has {', '.join(map(str, NUMPY))}") from None


def tensor_of(host: Any, dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor with the values of a numpy array."""
    result = torch.empty(host.shape, dtype=dtype)
    if result.numel():
        flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        np.asarray(_Memory(result)).reshape(-1).view(np.uint8)[:] = flat
    return result


def name_of(text: str) -> str:
    """The name in `module @name {`."""
    _, found, rest = text[:200].partition("module @")
    return rest.split(None, 1)[0].rstrip("{") if found else "a program"


def _dump(key: str, text: str) -> None:
    directory = Path(settings.dump_dir)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name_of(text)}_{key[:12]}.mlir").write_text(text, encoding="utf-8")


def cpu_client(job: Job | None = None) -> Client:
    """XLA's CPU client, by itself or as one of a job's processes."""
    if job is None:
        return Client(xla_client.make_cpu_client(), "cpu")
    raw = xla_client.make_cpu_client(
        distributed_client=job.connection,
        node_id=job.process,
        num_nodes=len(job.ranks),
        collectives=job.cpu_collectives(),
    )
    return Client(raw, "cpu", job)
