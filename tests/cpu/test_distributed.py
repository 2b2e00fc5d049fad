"""The backend `tpu_dist`: two processes run distributed_checks.py, once in each eager mode."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from torch_tpu import errors
from torch_tpu.distributed import bring_up
from torch_tpu.runtime import platform

CHECKS = Path(__file__).with_name("distributed_checks.py")
NAMES = re.findall(r"^def (check_\w+)\(rank\)", CHECKS.read_text(encoding="utf-8"), re.MULTILINE)


def start(arguments, world=2, **environment):
    """Starts the same program as every rank of a job."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), **environment}
    return [
        subprocess.Popen(
            [sys.executable, *[argument.format(rank=rank) for argument in arguments]],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]


def finish(processes, timeout=240):
    """Exit status and output of each."""
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return [(process.returncode, output) for process, output in zip(processes, outputs)]


def run(code, **environment):
    head = "import os, sys, time, torch, torch.distributed as dist\nrank = int(os.environ['RANK'])\n"
    return finish(start(["-c", head.replace("{", "{{") + textwrap.dedent(code)], **environment))


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """What failed: {mode: [{check: traceback} of each rank]}."""
    folder = tmp_path_factory.mktemp("distributed")
    jobs = {
        mode: start([str(CHECKS), str(folder / f"{mode}_{{rank}}.json")], TORCH_TPU_EAGER_MODE=mode)
        for mode in ("strict", "fused")
    }
    for mode, processes in jobs.items():
        for status, output in finish(processes):
            assert status == 0, f"{mode}:\n{output}"
    return {
        mode: [json.loads((folder / f"{mode}_{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
        for mode in jobs
    }


@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_collectives(failures, mode, name):
    for rank, failed in enumerate(failures[mode]):
        assert name not in failed, f"rank {rank}:\n{failed[name]}"


def test_ranks_leave_in_any_order_and_make_groups_again(tmp_path):
    """Rank 0, which has the service, is first to end; the other ends without a goodbye.

    The second group meets in a file: at the first one's address, a rank could still find the store of that group.
    """
    code = """
        again = dict(init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2)
        for value in (1.0, 2.0):
            dist.init_process_group() if value == 1 else dist.init_process_group("cpu:gloo,tpu:tpu_dist", **again)
            assert dist.group.WORLD.name() == "tpu_dist"
            t = torch.full((3,), value, device="tpu")
            dist.all_reduce(t)
            assert t.tolist() == [2 * value] * 3
            if value == 1 or rank == 0:
                dist.destroy_process_group()
        time.sleep(1.5 * rank)
        print("done", flush=True)
    """
    ended = run(code, MEETING=str(tmp_path / "meeting"))
    assert all(status == 0 and "done" in output for status, output in ended), ended


def test_programs_on_disk_serve_jobs_and_single_processes(counters, empty_cache):
    """Devices have other numbers in a job, and in each of its processes."""
    torch.full((617,), 2.0, device="tpu").mul_(3)
    assert counters.compiles == 2
    code = """
        import torch_tpu
        dist.init_process_group("tpu_dist")
        t = torch.full((617,), 2.0, device="tpu").mul_(3)
        assert t[0].item() == 6, t
        made = torch_tpu.stats()
        assert made["disk_hits"] == 2 and made["compiles"] == made["disk_errors"] == 0, made
        t = torch.full((619,), 2.0, device="tpu")
        dist.all_reduce(t)
        assert t[0].item() == 4, t
        dist.destroy_process_group()
    """
    for status, output in run(code, TORCH_TPU_CACHE_DIR=str(empty_cache.parent)):
        assert status == 0, output
    counters.reset()
    torch.full((619,), 2.0, device="tpu")
    assert (counters.compiles, counters.disk_hits) == (0, 1)


def test_the_group_comes_before_the_first_tensor():
    torch.ones(1, device="tpu")
    options = SimpleNamespace(
        store=dist.HashStore(), group_rank=0, group_size=2, global_ranks_in_group=[], timeout=timedelta(seconds=5)
    )
    with pytest.raises(errors.PlatformError, match=r"call torch.distributed.init_process_group before"):
        bring_up.create(options)


def test_one_process_alone_needs_no_job():
    t = torch.full((3,), 2.0, device="tpu")
    dist.init_process_group("tpu", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(t)
        assert t.tolist() == [2.0] * 3 and platform.job() is None
    finally:
        dist.destroy_process_group()


def test_a_rank_that_dies_ends_the_others():
    code = """
        dist.init_process_group("tpu_dist")
        t = torch.ones(3, device="tpu")
        dist.all_reduce(t)
        t.cpu()
        if rank == 1:
            os._exit(3)
        dist.all_reduce(t)
        t.cpu()
    """
    (status, output), (died, _) = run(code)
    assert died == 3 and status != 0 and "failed on the device" in output, output
