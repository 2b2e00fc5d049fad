"""A client for TPUs that are not there: everything happens as on them, but that nothing runs.

The `libtpu` package carries the real TPU compiler, which needs a topology and no TPU. Arrays have shapes and no values;
a program that "runs" is written down and its results are arrays without values. Programs have the names in the caches that
they have on a machine with these TPUs and the same versions, and are compiled when somebody asks: by `Planned.built`, or
at once where the client is not `lazy`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxlib import xla_client

from torch_tpu import errors
from torch_tpu.runtime import cache, chips, options
from torch_tpu.runtime import client as clients
from torch_tpu.runtime.client import Client, Result
from torch_tpu.runtime.topology import Topology
from torch_tpu.stats import counters

KEPT_BYTES = 1 << 14
"""Arrays up to this size that came from the host keep their values, so that they can be read back."""


class Absent:
    """An array of a device that is not there."""

    __slots__ = ("dtype", "host", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any, host: Any = None):
        self.shape, self.dtype = shape, dtype
        self.host = host
        """The values, as numpy, where they are known."""

    def repeat_values(self, source: Absent) -> None:
        """The values are those of a smaller array, over and over, where those are known."""
        if source.host is not None:
            self.host = np.resize(source.host, self.shape)

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        return True

    def block_until_ready(self) -> Absent:
        return self


class Memory(NamedTuple):
    """Bytes of one device's memory that a program takes, as XLA assigned them."""

    arguments: int
    outputs: int
    """Aliased ones among them."""
    aliased: int
    """Outputs in the memory of donated arguments."""
    temporaries: int
    code: int
    peak: int

    @property
    def total(self) -> int:
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


class Built:
    """A program as the TPU compiler made it."""

    def __init__(self, raw: Any):
        self._raw = raw

    @cached_property
    def cost(self) -> Mapping[str, float]:
        """XLA's cost analysis: "flops", "bytes accessed", "optimal_seconds" and more. Loop bodies count once, and negative
        values stand for unknown ones."""
        return dict(self._raw.cost_analysis())

    @cached_property
    def memory(self) -> Memory:
        found = self._raw.get_compiled_memory_stats()
        return Memory(
            arguments=found.argument_size_in_bytes,
            outputs=found.output_size_in_bytes,
            aliased=found.alias_size_in_bytes,
            temporaries=found.temp_size_in_bytes,
            code=found.generated_code_size_in_bytes,
            peak=found.peak_memory_in_bytes,
        )

    @property
    def modules(self) -> list[Any]:
        """The optimized HLO modules, as jaxlib has them; empty where this libtpu's cannot be read by this jaxlib."""
        try:
            return list(self._raw.hlo_modules())
        except (RuntimeError, ValueError):
            return []

    def optimized_text(self) -> str | None:
        """The optimized HLO, where it can be read."""
        return "\n".join(module.to_string() for module in self.modules) or None

    def serialize(self) -> bytes:
        return bytes(self._raw.serialize())


class Planned:
    """A program as an executable that cannot run: `run(arrays) -> arrays`."""

    def __init__(
        self,
        client: CompileOnlyClient,
        text: str,
        results: Sequence[Result],
        donated: Sequence[int],
        asked: options.Effort,
        processes: Sequence[int],
    ):
        self._client = client
        self.text = text
        """Its StableHLO."""
        self.results = tuple(results)
        self.donated = tuple(donated)
        self.processes = tuple(processes)
        self.asked = asked
        self.effort, self.key = client.identify(text, results, asked)

    @property
    def name(self) -> str:
        return clients.name_of(self.text)

    def run(self, arrays: Sequence[Any]) -> list[Absent]:
        """Writes down that the program was started."""
        counters.executions += 1
        self._client.started.append(self)
        return [Absent(tuple(shape), clients.NUMPY[dtype]) for shape, dtype in self.results]

    @cached_property
    def built(self) -> Built:
        """What the compiler made of it; compiled at the first look, and kept in the disk cache.

        Raises:
            CompileError: the compiler refused it.
        """
        return self._client.build(self)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the program's machine code depends on besides its text and options."""
        return self._client.environment

    def compile_raw(self, module: Any, overrides: Sequence[tuple[str, Any]]) -> Any:
        """As `CompileOnlyClient.compile_raw`."""
        return self._client.compile_raw(self, module, overrides)

    def check_devices(self) -> None:
        """Refuses a program of more devices than there are.

        Raises:
            CompileError: it is one.
        """
        self._client.devices_of(self)

    def optimized_text(self) -> str:
        return self.built.optimized_text() or ""


class CompileOnlyClient(Client):
    """A client of one device of a topology; see the module."""

    runs = False

    def __init__(self, topology: Topology, *, lazy: bool):
        self.topology = topology
        self.lazy = lazy
        """Whether programs are compiled only where somebody asks for what the compiler says."""
        self.platform = "tpu"
        self.started: list[Planned] = []
        """Every program that was run, in order."""
        self.assume: Callable[[Absent, torch.dtype], torch.Tensor] | None = None
        """Says what values arrays have that nothing ever computed, in the place of an error."""
        self._topology_devices = _devices(topology)
        self.device = self._topology_devices[0]
        self.device_kind: str = self.device.device_kind
        self.raw = self.device.client
        self.environment = cache.environment("tpu", self.device_kind, str(self.raw.platform_version))
        self._programs = cache.Recent(8192)
        self._scalars = cache.Recent(4096)

    def compile(  # type: ignore[override]
        self,
        text: str,
        results: Sequence[Result],
        donated: Sequence[int] = (),
        effort: options.Effort = "low",
        processes: Sequence[int] = (),
    ) -> Planned:
        planned = Planned(self, text, results, donated, effort, processes)
        name = (planned.key, *planned.processes)
        found = self._programs.get(name)
        if found is not None:
            counters.memory_hits += 1
            return found
        self._programs.put(name, planned)
        if not self.lazy:
            planned.built  # noqa: B018 - compiles it
        return planned

    def adopt(self, planned: Planned) -> Planned:
        """The same program for this client's topology."""
        return self.compile(planned.text, planned.results, planned.donated, planned.asked, planned.processes)

    def build(self, planned: Planned) -> Built:
        """Compiles a program for the devices that would run it.

        Raises:
            CompileError: the compiler refused it, or it wants more devices than the topology has.
        """
        built = Built(
            self._compile(
                planned.key, planned.text, planned.effort, lambda module: self.compile_raw(planned, module, ())
            )
        )
        self._keep(planned.key, planned.text, built.serialize)
        return built

    def compile_raw(self, planned: Planned, module: Any, overrides: Sequence[tuple[str, Any]]) -> Any:
        """jaxlib's executable of a parsed program, kept nowhere.

        Args:
            overrides: further XLA options.

        Raises:
            CompileError: it wants more devices than the topology has.
            XlaRuntimeError: the compiler refused it.
        """
        devices = self.devices_of(planned)
        how = options.options(planned.effort, "tpu", [device.id for device in devices])
        how.env_option_overrides = [*how.env_option_overrides, *overrides]
        return self.raw.compile(module, xla_client.DeviceList(tuple(devices)), how)

    def devices_of(self, planned: Planned) -> list[Any]:
        """The topology's devices that a program is for.

        Raises:
            CompileError: it wants more than there are.
        """
        places = planned.processes or (0,)
        if max(places) >= len(self._topology_devices):
            raise errors.CompileError(
                errors.message(
                    f"{planned.name} is a program of {len(places)} devices",
                    why=f"{self.topology.name} has {len(self._topology_devices)}",
                    do="name a larger topology",
                )
            )
        return [self._topology_devices[place] for place in places]

    def _put(self, host: Any, semantics: Any) -> Absent:
        known = host.nbytes <= KEPT_BYTES
        return Absent(host.shape, host.dtype, np.array(host) if known else None)

    def get(self, array: Any, dtype: torch.dtype, *, copy: bool = False) -> torch.Tensor:
        """A CPU tensor of an array's values.

        Raises:
            NoValueError: nothing ever computed them.
        """
        if not isinstance(array, Absent):
            return super().get(array, dtype, copy=copy)  # of a device that is there, from before
        if array.host is None and self.assume is not None:
            return self.assume(array, dtype)
        if array.host is None:
            shape = list(array.shape)
            raise errors.NoValueError(
                errors.message(
                    f"the values of a tensor are needed: {shape} {str(dtype).removeprefix('torch.')}",
                    why=f"programs are only compiled for {self.topology.name}, and never run",
                    do="take what reads tensors (item, cpu, print, if) out of what is compiled",
                    see=errors.page(errors.NoValueError),
                )
            )
        counters.device_to_host += 1
        counters.device_to_host_bytes += array.host.nbytes
        return clients.tensor_of(array.host, dtype)

    def blank(self, shape: Sequence[int], dtype: torch.dtype) -> Absent:
        return Absent(tuple(shape), clients.NUMPY[dtype])

    def wait(self, arrays: Sequence[Any]) -> None:
        """Nothing runs, so nothing is waited for."""

    def pending(self) -> list[Any]:
        return []

    def synchronize(self) -> None:
        """As `wait`."""

    def memory_info(self) -> tuple[int, int] | None:
        """All of the device's memory is free: nothing is in it."""
        total = chips.HBM_BYTES[chips.KINDS[self.device_kind]]
        return total, total

    def close(self) -> None:
        self._programs.clear()
        self.started.clear()


def _devices(topology: Topology) -> list[Any]:
    """The devices of a topology, one a process, in the order of their ids.

    Raises:
        PlatformError: the compiler is not installed, or does not know the topology.
    """
    from torch_tpu.runtime import platform

    path = platform.libtpu_path()
    if path is None:
        raise errors.platform_missing(
            topology.name,
            "looked for the TPU compiler, in the package libtpu and at TPU_LIBRARY_PATH",
            "pip install 'torch_tpu[tpu]'; it needs no TPU",
        )
    # Otherwise libtpu asks a metadata server for what machine it is on, and waits for an answer; and it takes a lock that
    # keeps other processes from using it, which is right for chips and wrong for a compiler.
    for name, value in {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v6e-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }.items():
        os.environ.setdefault(name, value)
    try:
        platform.load_plugin("tpu", path)
        found = xla_client.make_tfrt_tpu_c_api_device_topology(topology.pjrt_name)
        return list(found._make_compile_only_devices())
    except (RuntimeError, ValueError) as error:
        raise errors.PlatformError(
            errors.message(
                f"programs cannot be compiled for {topology.name}",
                why=f"{path} says: {error}",
                do="name another number of chips, or another version of libtpu",
                see=errors.page(errors.PlatformError),
            )
        ) from error


_clients: dict[tuple[Topology, bool], CompileOnlyClient] = {}


def client(topology: Topology, *, lazy: bool = True) -> CompileOnlyClient:
    """The client of a topology; the same one every time, so that what was traced for it is found again.

    Raises:
        PlatformError: the compiler is not installed, or does not know the topology.
    """
    found = _clients.get((topology, lazy))
    if found is None:
        found = _clients.setdefault((topology, lazy), CompileOnlyClient(topology, lazy=lazy))
    return found
