"""One process per device: the job that several processes form, so that their programs can exchange data.

jaxlib's distributed runtime is a small service in process 0 through which the others find each other; XLA's own
collectives then connect the processes directly. A process joins before its client starts and leaves when it exits.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from typing import Any

from jaxlib import _jax, xla_client

from torch_tpu import errors

log = logging.getLogger("torch_tpu")

LEAVE_SECONDS = 300
"""How long process 0, which has the service, waits for the others at exit after it destroyed its process group."""
CRASH_SECONDS = 30
"""The same where it exits without having done so, which is likely an error."""


class Service:
    """The meeting point of a job; lives in process 0 until it exits."""

    def __init__(self, host: str, num_processes: int):
        address = "127.0.0.1" if host in ("127.0.0.1", "localhost") else "[::]"
        for attempt in range(5):
            port = _free_port()
            try:
                self._service = _jax.get_distributed_runtime_service(f"{address}:{port}", num_processes)
                break
            except xla_client.XlaRuntimeError:  # another process took the port in the meantime
                if attempt == 4:
                    raise
        self.address = f"{host}:{port}"

    def stop(self) -> None:
        self._service.shutdown()


class Job:
    """This process's place in a job.

    Args:
        address: of the service, as "host:port".
        process: this process's number.
        ranks: what the caller calls the processes, in order.
        seconds: how long to wait for the other processes to join.

    Raises:
        PlatformError: the service cannot be reached, or some process did not join.
    """

    def __init__(self, address: str, process: int, ranks: tuple[int, ...], seconds: int, service: Service | None):
        self.process, self.ranks = process, ranks
        self.finished = False
        """Whether the caller said that it needs no more collectives."""
        self._seconds = seconds
        self._service = service
        self.connection: Any = _jax.get_distributed_runtime_client(
            address, process, init_timeout=seconds, shutdown_on_destruction=False, use_compression=True
        )
        try:
            self.connection.connect()
        except xla_client.XlaRuntimeError as error:
            raise errors.PlatformError(
                errors.message(
                    f"process {process} of {len(ranks)} could not join its job at {address}",
                    why=str(error),
                    do="see whether every process was started, and whether this one can reach the address",
                    see=errors.page(errors.PlatformError),
                )
            ) from error

    def cpu_collectives(self) -> Any:
        """What XLA's CPU client sends data with: gloo over TCP."""
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        return _jax.make_gloo_tcp_collectives(distributed_client=self.connection, interface=interface)

    def exchange(self, number: int) -> list[int]:
        """A number of each process, in order, where this one's is given."""
        key = "torch_tpu/number/{}".format
        self.connection.key_value_set(key(self.process), str(number))
        wait = self._seconds * 1000
        return [int(self.connection.blocking_key_value_get(key(p), wait)) for p in range(len(self.ranks))]

    def leave(self) -> None:
        """Says goodbye; process 0 first waits for the others, because losing the service ends them.

        It does not wait after an error that nobody caught: the others should hear of it.
        """
        try:
            if self._service is None:
                self.connection.key_value_set(f"torch_tpu/left/{self.process}", "")
            elif not hasattr(sys, "last_value"):
                self._wait_for_others()
            self.connection.shutdown()
            if self._service is not None:
                self._service.stop()
        except xla_client.XlaRuntimeError as error:
            log.info("the job was not left in order: %s", error)

    def _wait_for_others(self) -> None:
        end = time.monotonic() + (LEAVE_SECONDS if self.finished else min(CRASH_SECONDS, self._seconds))
        for process in range(1, len(self.ranks)):
            while time.monotonic() < end:
                try:
                    self.connection.key_value_try_get(f"torch_tpu/left/{process}")
                    break
                except xla_client.XlaRuntimeError:
                    time.sleep(0.02)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
