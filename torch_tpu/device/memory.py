"""`torch.tpu` memory statistics: what tensors hold, and what the device has.

The allocated bytes are those of the arrays that storages hold. PJRT owns the memory: nothing is cached, so reserved
equals allocated; temporaries of running programs are PJRT's and are only in `mem_get_info`.
"""

from __future__ import annotations

from typing import Any

from torch_tpu import _plug
from torch_tpu.device.selection import index
from torch_tpu.runtime import heap, platform


def _statistics(device: Any) -> dict[str, int]:
    """The plug's, after what was recorded has run."""
    index(device)
    _plug.flush()
    return dict(_plug.memory_stats())


def memory_allocated(device: Any = None) -> int:
    """Bytes held by tensors."""
    return int(_statistics(device)["allocated"])


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes held by tensors since the start or `reset_peak_memory_stats`."""
    return int(_statistics(device)["peak"])


def memory_reserved(device: Any = None) -> int:
    """The same as `memory_allocated`: nothing is kept in reserve."""
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    index(device)
    _plug.reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    index(device)
    _plug.reset_accumulated()


def empty_cache() -> None:
    """Returns free memory of the host to the system: memory of freed tensors goes back to PJRT at once."""
    _plug.drop_finished()
    heap.give_back()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Statistics under the names of `torch.cuda.memory_stats`, as far as they exist here."""
    raw = _statistics(device)
    stats: dict[str, int] = {}
    for kind in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"):
        stats[f"{kind}.all.current"] = raw["allocated"]
        stats[f"{kind}.all.peak"] = raw["peak"]
        stats[f"{kind}.all.allocated"] = raw["total_allocated"]
        stats[f"{kind}.all.freed"] = raw["total_allocated"] - raw["allocated"]
    stats["allocation.all.current"] = stats["active.all.current"] = raw["num_values"]
    stats["num_ooms"] = stats["num_alloc_retries"] = 0
    return stats


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats` with a dictionary for each part of a name: `["allocated_bytes"]["all"]["peak"]`."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *parts, last = name.split(".")
        level = nested
        for part in parts:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def ipc_collect() -> None:
    """Does nothing: other processes get copies of tensors, so that no memory waits for them. For programs that ask."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the device: the HBM of a TPU, the machine's memory on the CPU."""
    index(device)
    found = platform.client().memory_info() if platform.is_started() else None
    return found or heap.machine_memory()


memory_info = mem_get_info  # the name that the plug calls


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of `memory_stats` for people."""
    raw = _statistics(device)
    free, total = mem_get_info(device)
    rows = [
        ("held by tensors", raw["allocated"]),
        ("peak", raw["peak"]),
        ("allocated in total", raw["total_allocated"]),
        ("free on the device", free),
        ("the device", total),
    ]
    lines = [f"| torch.tpu memory ({platform.choose()}): {raw['num_values']} arrays"]
    lines += [f"| {label:<20} | {count / 2**20:12.1f} MiB |" for label, count in rows]
    return "\n".join(lines)
