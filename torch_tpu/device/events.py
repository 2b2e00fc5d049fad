"""Events, and waiting for the device.

PJRT orders programs by their data and has one queue a device, so every stream is the same stream. An event holds a
marker: the result of a tiny program that was queued behind all earlier ones. Its time is when a watching thread saw
the marker ready, which is host time (as on the original's TPUs).
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import Any

from torch_tpu import _plug, errors
from torch_tpu.runtime import platform


class Marker:
    """A place in the device's queue."""

    __slots__ = ("arrays", "done", "seconds")

    def __init__(self) -> None:
        _plug.flush()
        self.arrays: list[Any] | None = platform.client().pending() if platform.is_started() else []
        self.seconds = 0.0
        self.done = threading.Event()
        if self.arrays:
            _watch(self)
        else:
            self.finish()

    def finish(self) -> None:
        self.seconds = time.perf_counter()
        self.arrays = None
        self.done.set()


_queue: queue.SimpleQueue[Marker | None] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_lock = threading.Lock()


def _watch(marker: Marker) -> None:
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_run, name="torch_tpu-events", daemon=True)
            _thread.start()
            platform.before_stop.append(_stop)
    _queue.put(marker)


def _stop() -> None:
    """Ends the thread while the interpreter is whole."""
    if _thread is not None and _thread.is_alive():
        _queue.put(None)
        _thread.join(timeout=10)


def _run() -> None:
    while (marker := _queue.get()) is not None:
        with suppress(errors.TpuError):  # a failed program is reported where its result is read
            platform.client().wait(marker.arrays or [])
        marker.finish()


def record_event() -> Marker:
    return Marker()


def query_event(marker: Marker) -> bool:
    return marker.done.is_set()


def synchronize_event(marker: Marker) -> None:
    marker.done.wait()


def elapsed_time(start: Marker, end: Marker) -> float:
    """Milliseconds between two recorded markers, after waiting for both."""
    start.done.wait()
    end.done.wait()
    return (end.seconds - start.seconds) * 1e3


def query_stream() -> bool:
    """Whether everything queued so far is done."""
    _plug.flush()
    return not platform.is_started() or not platform.client().pending()


def synchronize(device: Any = None) -> None:
    """Waits until everything queued so far is done."""
    if platform.in_bad_fork():
        raise errors.forked()
    _plug.flush()
    if platform.is_started():
        _plug.drop_finished()  # what failed of it has been reported, or nobody asked
        try:
            platform.client().synchronize()
        finally:
            _plug.drop_finished()


__all__ = [
    "Marker",
    "elapsed_time",
    "query_event",
    "query_stream",
    "record_event",
    "synchronize",
    "synchronize_event",
]
