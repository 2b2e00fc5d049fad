"""From `init_process_group` to a job: the processes agree on its address through c10d's store and start their clients."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from torch_tpu import errors
from torch_tpu.distributed.group import TpuProcessGroup
from torch_tpu.runtime import platform

_KEY = "torch_tpu/address"


def create(options: Any, _: Any = None) -> TpuProcessGroup:
    """What `torch.distributed` calls for a new group of the backend, on each of its members.

    Where programs are only compiled (torch_tpu/aot), the other members are not there, and rank 0's programs are everyone's.
    Otherwise the first group starts this process's client as part of a job of that group's ranks; later ones are parts of it.

    Args:
        options: c10d's: store, group_rank, group_size, timeout, global_ranks_in_group (empty for the default group).

    Raises:
        PlatformError: the device was used before, or the processes cannot reach each other.
        ValueError: a later group has ranks that the first one had not.
    """
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    if platform.is_started() and not platform.client().runs:  # nobody is there to talk to
        host = FakeProcessGroup._create_internal(options.group_rank, options.group_size)
        return TpuProcessGroup(options.store, options.group_rank, ranks, options.timeout, host)
    job = platform.job()
    if job is None and len(ranks) > 1:
        if platform.is_started():
            raise errors.started_alone()
        job = _join(options.store, options.group_rank, ranks, options.timeout)
    if job is None:
        processes = [0]
    else:
        missing = sorted(set(ranks) - set(job.ranks))
        if missing:
            raise ValueError(f"ranks {missing} are not among {job.ranks}, which the first tpu_dist group had")
        job.finished = False
        processes = [job.ranks.index(rank) for rank in ranks]
    return TpuProcessGroup(options.store, options.group_rank, processes, options.timeout)


def _join(store: dist.Store, rank: int, ranks: tuple[int, ...], timeout: Any) -> Any:
    from torch_tpu.runtime.job import Job, Service

    service = None
    if rank == 0:
        service = Service(_own_address(), len(ranks))
        store.set(_KEY, service.address)
    address = store.get(_KEY).decode()
    job = Job(address, rank, ranks, max(1, int(timeout.total_seconds())), service)
    platform.join(job)
    return job


def _own_address() -> str:
    """A name of this machine that the others can reach: the master's, since this is rank 0."""
    if "MASTER_ADDR" in os.environ:
        return os.environ["MASTER_ADDR"]
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "127.0.0.1"
    return name
