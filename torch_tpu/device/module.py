"""`torch.tpu`: the device's module, with the names and meanings of `torch.cuda`'s for one device a process."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_tpu import _plug, settings
from torch_tpu.device import events, memory
from torch_tpu.device.modes import EagerMode, Precision, precision, set_eager_mode
from torch_tpu.device.selection import index as _index
from torch_tpu.errors import PlatformError
from torch_tpu.runtime import chips, platform
from torch_tpu.stats import counters

AMP_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""What autocast casts to."""
DTYPES = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e4m3fnuz,
    torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------- device


def is_available() -> bool:
    """Whether the device can be expected to work. Starts nothing and never raises."""
    return platform.is_available()


def is_initialized() -> bool:
    """Whether this process has started the device."""
    return platform.is_started() and not _is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return platform.in_bad_fork()


def _lazy_init() -> None:
    platform.client()


def init() -> None:
    """Starts the device; the first use does it as well."""
    platform.client()


def device_count() -> int:
    """1 where the device is available, else 0: a process drives one device."""
    return int(is_available())


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    """Checks that the device is tpu:0, the one this process drives."""
    _index(device)


class device:
    """Context manager that would select a device; there is one, so it checks its argument."""

    def __init__(self, device: Any):
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = 0

    def __exit__(self, *exc: object) -> None:
        pass


class device_of(device):
    """Context manager for the device of a tensor or storage; does nothing for those elsewhere."""

    def __init__(self, obj: Any):
        super().__init__(0 if getattr(obj, "is_tpu", False) else None)


def _exchange_device(index: int) -> int:
    return _index(index)


def _maybe_exchange_device(index: int) -> int:
    return 0


def get_device_name(device: Any = None) -> str:
    """For example "TPU v6e", or "XLA CPU" where the device is emulated. Starts nothing."""
    _index(device)
    return chips.name()


@dataclass(frozen=True)
class DeviceProperties:
    """What is known about the device; `total_memory` in bytes."""

    name: str
    total_memory: int
    multi_processor_count: int = 1
    platform: str = "cpu"


def get_device_properties(device: Any = None) -> DeviceProperties:
    _index(device)
    total = chips.memory_bytes()
    return DeviceProperties(chips.name(), total or memory.mem_get_info()[1], 1, platform.choose())


def get_device_capability(device: Any = None) -> dict[str, Any]:
    _index(device)
    return {"platform": platform.choose(), "supported_dtypes": set(DTYPES)}


def synchronize(device: Any = None) -> None:
    """Waits until all queued work is done, and raises what failed in it."""
    _index(device)
    events.synchronize()


def get_amp_supported_dtype() -> list[torch.dtype]:
    return list(AMP_DTYPES)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


# ------------------------------------------------------------------------------------------------ streams, events


class Stream(torch.Stream):
    """A stream. XLA orders programs by their data, so all streams are the same queue."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        kwargs.pop("pinned", None)
        if "stream_id" in kwargs:
            return super().__new__(cls, device_index=0, device_type=20, stream_id=kwargs["stream_id"])
        _index(device)
        return super().__new__(cls, device="tpu:0", priority=priority)

    priority = 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority: there is one."""
        return 0, 0

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Records an event, a new one unless it is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"torch.tpu.Stream(device=tpu:0, stream_id={self.stream_id})"


class Event(torch.Event):
    """A place in the queue, with its time if `enable_timing`."""

    enable_timing: bool

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: Any = None,
    ) -> Event:
        _index(device)
        if interprocess or external:
            raise ValueError("events of this device cannot be shared between processes or with other libraries")
        event = super().__new__(cls, device="tpu:0", enable_timing=enable_timing, blocking=blocking)
        event.enable_timing = enable_timing
        return event

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds between this event and a later one, after waiting for both."""
        markers = [_plug.marker_of(event.event_id) for event in (self, end_event)]
        if not self.enable_timing or not getattr(end_event, "enable_timing", True):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if None in markers:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return events.elapsed_time(*markers)

    def __repr__(self) -> str:
        state = "not recorded" if not self.event_id else "done" if self.query() else "pending"
        return f"torch.tpu.Event(device=tpu:0, {state})"


def current_stream(device: Any = None) -> Stream:
    _index(device)
    return Stream(stream_id=torch.accelerator.current_stream(0).stream_id)


def default_stream(device: Any = None) -> Stream:
    _index(device)
    return Stream(stream_id=0)


def set_stream(stream: torch.Stream | None) -> None:
    if stream is not None:
        torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Makes a stream the current one; the order of work does not change."""
    previous = current_stream()
    set_stream(stream)
    try:
        yield
    finally:
        set_stream(previous)


# ------------------------------------------------------------------------------------------------- random numbers


def _generator() -> torch.Generator:
    return default_generators[0]


def manual_seed(seed: int) -> None:
    """Seeds the device's generator."""
    _generator().manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> int:
    """Seeds the generator from the system's randomness, and returns the seed."""
    return _generator().seed()


seed_all = seed


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: Any = "tpu") -> torch.Tensor:
    """16 bytes on the CPU: seed and offset."""
    _index(device)
    return _generator().get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "tpu") -> None:
    _index(device)
    _generator().set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    for state in new_states:
        set_rng_state(state)


default_generators: tuple[torch.Generator, ...] = ()


# ------------------------------------------------------------------------------------------------------- caches


def _clear_cache() -> None:
    """Forgets every program of this process; those on disk stay."""
    _plug.clear_table()


def _get_cache_stats() -> dict[str, int]:
    """How many programs were asked for, and how many of them had not to be compiled."""
    hits = counters.memory_hits + counters.disk_hits
    return {"num_cache_reqs": hits + counters.compiles, "num_cache_hits": hits}


class _Module(types.ModuleType):
    """The class of `torch.tpu`: attributes that are switches."""

    @property
    def _initialized(self) -> bool:
        return is_initialized()

    @property
    def eager_mode(self) -> EagerMode:
        return EagerMode.of(settings.eager_mode)

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode) -> None:
        settings.eager_mode = EagerMode(mode).setting

    @property
    def allow_excess_precision(self) -> bool:
        return settings.allow_excess_precision

    @allow_excess_precision.setter
    def allow_excess_precision(self, allow: bool) -> None:
        settings.allow_excess_precision = bool(allow)


_PUBLIC = (
    is_available, is_initialized, init, device_count, current_device, set_device, device, device_of, get_device_name,
    get_device_properties, get_device_capability, synchronize, get_amp_supported_dtype, is_bf16_supported, Stream,
    Event, current_stream, default_stream, set_stream, stream, manual_seed, seed, initial_seed, get_rng_state,
    set_rng_state, get_rng_state_all, set_rng_state_all, EagerMode, set_eager_mode, Precision, precision,
    memory.memory_allocated, memory.max_memory_allocated, memory.memory_reserved, memory.max_memory_reserved,
    memory.reset_peak_memory_stats, memory.reset_accumulated_memory_stats, memory.empty_cache, memory.memory_stats,
    memory.memory_stats_as_nested_dict, memory.mem_get_info, memory.memory_summary, memory.ipc_collect,
    torch.OutOfMemoryError,
)  # fmt: skip


def make() -> types.ModuleType:
    """The module `torch.tpu`, also importable by that name."""
    global default_generators
    module = _Module("torch.tpu", __doc__)
    for item in _PUBLIC:
        setattr(module, item.__name__, item)
    module.manual_seed_all, module.seed_all = manual_seed_all, seed_all
    for name in (
        "_is_in_bad_fork",
        "_lazy_init",
        "_exchange_device",
        "_maybe_exchange_device",
        "_clear_cache",
        "_get_cache_stats",
    ):
        setattr(module, name, globals()[name])
    default_generators = (_plug.default_generator(),)
    module.default_generators = default_generators
    module.__all__ = [item.__name__ for item in _PUBLIC]
    sys.modules["torch.tpu"] = module
    return module


__all__ = ["DeviceProperties", "PlatformError", "make"]
