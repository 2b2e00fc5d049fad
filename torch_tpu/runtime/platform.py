"""Which hardware the device is, and starting its PJRT client once per process.

`settings.platform` (TORCH_TPU_PLATFORM) decides: "auto" takes a TPU where this machine has one and else XLA's CPU
client; "tpu", "cpu" and "cuda" take that one or raise. Looking reads file names and package metadata only: it starts
nothing, waits for nothing and never raises.
"""

from __future__ import annotations

import atexit
import glob
import importlib.util
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_tpu import errors, settings

if TYPE_CHECKING:
    from torch_tpu.runtime.client import Client
    from torch_tpu.runtime.job import Job

log = logging.getLogger("torch_tpu")

_GOOGLE = "0x1ae0"
_NO_TPU_CLASSES = ("0x01", "0x02")
"""PCI classes of Google's virtual disks and network cards, which have the same vendor number."""
_CUDA_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")

when_changed: list[Callable[[], None]] = []
"""What to do when the client starts, or another one takes its place."""
before_stop: list[Callable[[], None]] = []
"""What to do before the client is stopped at exit, such as ending threads that use it."""

_lock = threading.Lock()
_client: Client | None = None
_job: Job | None = None
_process = 0


def tpu_devices() -> list[str]:
    """The device files of this machine's TPUs; empty where it has none."""
    found = sorted(glob.glob("/dev/accel[0-9]*"))
    if found:
        return found
    return sorted(glob.glob("/dev/vfio/[0-9]*")) if _tpu_functions() else []


def _tpu_functions() -> list[str]:
    """The PCI addresses of Google's accelerators."""
    found = []
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        function = Path(vendor).parent
        if _read(vendor) == _GOOGLE and not _read(function / "class").startswith(_NO_TPU_CLASSES):
            found.append(function.name)
    return sorted(found)


def libtpu_path() -> str | None:
    """Where libtpu is: TPU_LIBRARY_PATH, else the package of that name; None where there is neither."""
    path = os.environ.get("TPU_LIBRARY_PATH") or _in_package("libtpu", "libtpu.so")
    return path if path and os.path.exists(path) else None


def cuda_plugin_path() -> str | None:
    """Where the CUDA plug-in of PJRT is; None where no package has one."""
    for package in _CUDA_PLUGINS:
        path = _in_package(package, "xla_cuda_plugin.so")
        if path:
            return path
    return None


def cuda_devices() -> list[str]:
    """The device files of this machine's NVIDIA GPUs."""
    return sorted(glob.glob("/dev/nvidia[0-9]*")) or glob.glob("/dev/dxg")


def choose() -> str:
    """The platform that `client` starts or has started: "tpu", "cpu" or "cuda"."""
    if _client is not None:
        return _client.platform
    if settings.topology:
        return "tpu"
    if settings.platform != "auto":
        return settings.platform
    return "tpu" if tpu_devices() and libtpu_path() else "cpu"


def is_available() -> bool:
    """Whether the chosen platform can be expected to start. Starts nothing and never raises."""
    if _client is None:
        try:
            settings.refresh()
        except ValueError:  # which the start of the device raises
            return False
    chosen = choose()
    if _client is not None or chosen == "cpu":
        return True
    if chosen == "tpu":
        return bool((settings.topology or tpu_devices()) and libtpu_path())
    return bool(cuda_devices() and cuda_plugin_path())


def is_started() -> bool:
    """Whether this process has a client."""
    return _client is not None and _process == os.getpid()


def in_bad_fork() -> bool:
    """Whether a parent process started the client, so that this one cannot use it."""
    return _client is not None and _process != os.getpid()


def client() -> Client:
    """The process's client, started at the first call.

    Raises:
        PlatformError: the platform that was asked for is not there or does not start.
        ForkError: the client was started by a parent process.
    """
    if _client is not None and _process == os.getpid():
        return _client
    return _start()


def job() -> Job | None:
    """The job that this process's client is part of, if it is."""
    return _job


def join(job: Job) -> Client:
    """Starts this process's client as one of a job's. `is_started()` must be false.

    Raises:
        PlatformError: as `client`.
    """
    global _job
    _job = job
    return _start()


def _start() -> Client:
    global _client, _process
    with _lock:
        if _client is not None:
            if _process != os.getpid():
                raise errors.forked()
            return _client
        settings.refresh()
        chosen = choose()
        if settings.platform == "auto" and chosen == "cpu" and tpu_devices():
            log.warning("this machine has a TPU, but the package libtpu is not installed: running on the CPU")
        started = {"cpu": _start_cpu, "tpu": _start_tpu, "cuda": _start_cuda}[chosen]()
        _client, _process = started, os.getpid()
        atexit.register(_stop)
    _tell_of_change()
    return started


def _start_cpu() -> Client:
    from torch_tpu.runtime.client import cpu_client

    return cpu_client(_job)


def _start_tpu() -> Client:
    if settings.topology:
        return _start_compile_only()
    devices, path = tpu_devices(), libtpu_path()
    if not devices:
        raise errors.platform_missing(
            "tpu",
            "looked for /dev/accel0 and for a Google accelerator bound to /dev/vfio",
            "run on a TPU machine, or set TORCH_TPU_PLATFORM=cpu",
        )
    if path is None:
        raise errors.platform_missing(
            "tpu",
            f"found {', '.join(devices)}, but neither the package libtpu nor TPU_LIBRARY_PATH",
            "pip install 'torch_tpu[tpu]'",
        )
    return _start_plugin("tpu", path, {})


def _start_compile_only() -> Client:
    from torch_tpu.runtime import compile_only
    from torch_tpu.runtime.topology import Topology

    try:
        topology = Topology.parse(settings.topology)
    except ValueError as error:
        raise errors.platform_missing(settings.topology, str(error), "correct TORCH_TPU_TOPOLOGY") from error
    return compile_only.client(topology, lazy=False)


def _start_cuda() -> Client:
    devices, path = cuda_devices(), cuda_plugin_path()
    if not devices:
        raise errors.platform_missing(
            "cuda", "looked for /dev/nvidia0", "run on a machine with an NVIDIA GPU, or set TORCH_TPU_PLATFORM=cpu"
        )
    if path is None:
        raise errors.platform_missing(
            "cuda",
            f"found {', '.join(devices)}, but none of the packages {', '.join(_CUDA_PLUGINS)}",
            "pip install 'torch_tpu[gpu]'",
        )
    # As PyTorch does on GPUs, memory is taken when it is needed instead of most of it at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jaxlib import xla_client

    plugin_options: dict[str, Any] = dict(xla_client.generate_pjrt_gpu_plugin_options())
    if _job is not None:
        plugin_options |= {"node_id": _job.process, "num_nodes": len(_job.ranks)}
    return _start_plugin("cuda", path, plugin_options)


def _start_plugin(name: str, path: str, plugin_options: dict[str, Any]) -> Client:
    from torch_tpu.runtime.client import Client, xla_client

    try:
        load_plugin(name, path)
        connection = _job.connection if _job is not None else None
        return Client(xla_client.make_c_api_client(name, plugin_options, connection), name, _job)
    except (RuntimeError, ValueError) as error:
        raise errors.PlatformError(
            errors.message(
                f"the platform {name!r} did not start",
                why=f"{path} says: {error}",
                do="see whether another process uses the device, or set TORCH_TPU_PLATFORM=cpu",
                see=errors.page(errors.PlatformError),
            )
        ) from error


def load_plugin(name: str, path: str) -> None:
    """Loads a platform's library into this process, once.

    Raises:
        RuntimeError, ValueError: what the library says.
    """
    from jaxlib import xla_client

    if not xla_client.pjrt_plugin_loaded(name):
        xla_client.load_pjrt_plugin_dynamically(name, path)
    if not xla_client.pjrt_plugin_initialized(name):
        xla_client.initialize_pjrt_plugin(name)


@contextmanager
def using(other: Client) -> Iterator[None]:
    """Meanwhile this process's client is another one, for all threads."""
    global _client, _process
    before = _client, _process
    _client, _process = other, os.getpid()
    try:
        _tell_of_change()
        yield
    finally:
        _client, _process = before
        _tell_of_change()


def _tell_of_change() -> None:
    for function in when_changed:
        function()


def _stop() -> None:
    # XLA's threads must be idle when the process's static objects are destroyed. The client itself stays: tensors that
    # are alive until the very end hold it, and their destructors must find it.
    if _client is not None and _process == os.getpid():
        for function in before_stop:
            function()
        _client.close()
        if _job is not None:
            _job.leave()


def _in_package(package: str, file: str) -> str | None:
    """A file of an installed package, found without importing that package."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = os.path.join(location, file)
        if os.path.exists(path):
            return path
    return None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
