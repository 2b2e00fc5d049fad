"""Ctrl-C while XLA compiles: Python goes on at once, XLA cannot be stopped.

Its threads must be idle when the process's static objects are destroyed, or the process crashes at its end. So what is
left behind is known, and waited for at exit.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger("torch_tpu")

EXIT_STATUS = 130
"""Of a process that is interrupted once more while it waits: as of one that SIGINT ends."""
_left: list[threading.Thread] = []


def interruptible(work: Callable[[], T]) -> T:
    """What long work in C++ returns. An exception that a signal's handler raises meanwhile leaves it to go on alone."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return work()  # Python's signal handlers run in the main thread only, and while it ends no thread starts
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            done.set_exception(error)

    thread = threading.Thread(target=run, name="torch_tpu compilation", daemon=True)
    try:
        thread.start()  # which waits as well, until the thread runs
        return done.result()
    finally:
        if not done.done():
            if not _left:
                atexit.register(_wait)
            _left.append(thread)


def _wait() -> None:
    try:
        for thread in _left:
            if thread.ident is None:
                continue  # it never started
            thread.join(1)
            if thread.is_alive():
                log.warning("waiting for XLA to end an interrupted compilation; Ctrl-C leaves at once")
                thread.join()
    except KeyboardInterrupt:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_STATUS)
