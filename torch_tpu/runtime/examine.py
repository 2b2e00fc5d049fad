"""What the TPU compiler says of a program: its figures, its optimized HLO and where it put each buffer.

The compiler is asked to dump its text into a directory, which it does even where the program does not fit, and in a form
that needs no jaxlib of the same age to be read. Executables made in this way name that directory, and are thrown away: what is
kept on disk is what was said, under the program's key. `Planned.built` makes executables for TPUs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxlib import xla_client

from torch_tpu.runtime import cache, mlir
from torch_tpu.runtime.compile_only import Built, Memory, Planned

log = logging.getLogger("torch_tpu")

_GROUPS = re.compile(r"replica_groups = dense<([^>]*)>")

FORMAT = "1"
"""Changes when what is stored changes its meaning."""


@dataclass(frozen=True)
class Examination:
    """Of one program on one kind of TPU."""

    error: str
    """Why it does not compile, in the compiler's words; empty where it does."""
    cost: Mapping[str, float]
    """As `Built.cost`; empty where it does not compile."""
    memory: Memory | None
    hlo: str
    """Optimized HLO with the compiler's estimates; without them where the compiler gave up before; or empty."""
    assignment: str
    """The buffers and where they are, as the compiler prints them; or empty."""
    live_ranges: str
    """Which buffers are alive when most memory is in use, as the compiler prints it; or empty."""
    seconds: float
    """How long the compiler took."""

    def pack(self) -> bytes:
        return zlib.compress(json.dumps(asdict(self)).encode(), 6)

    @staticmethod
    def unpack(content: bytes) -> Examination:
        read = json.loads(zlib.decompress(content))
        memory = Memory(*read.pop("memory")) if read["memory"] is not None else read.pop("memory")
        return Examination(memory=memory, **read)


def examine(planned: Planned) -> Examination:
    """Asks the compiler about a program, or the disk cache what it has said before.

    Raises:
        CompileError: the program wants more devices than the topology has.
        ValueError: the program is no legal StableHLO.
    """
    planned.check_devices()
    key = hashlib.sha256(f"examination {FORMAT} {planned.key} {planned.processes}".encode()).hexdigest()
    disk = cache.disk()
    stored = disk.get(key) if disk is not None else None
    if stored is not None:
        return Examination.unpack(stored)
    found = _ask(planned)
    if disk is not None:
        disk.put(key, found.pack(), {"name": planned.name, "kind": cache.EXAMINATION, **planned.environment})
    return found


def _ask(planned: Planned) -> Examination:
    module = mlir.parse(planned.text)
    error, cost, memory = "", {}, None
    with tempfile.TemporaryDirectory(prefix="torch_tpu_") as directory:
        start = time.perf_counter()
        try:
            _check_devices(planned)
            built = Built(planned.compile_raw(module, (("xla_dump_to", directory), ("xla_dump_hlo_as_text", True))))
        except (xla_client.XlaRuntimeError, _UnknownDeviceError) as refusal:
            error = str(refusal)
        else:
            cost = {name: float(value) for name, value in built.cost.items() if "{" not in name}
            memory = built.memory
        seconds = time.perf_counter() - start
        return Examination(
            error=error,
            cost=cost,
            memory=memory,
            hlo=_dumped(directory, "after_codegen") or _dumped(directory, "after_optimizations"),
            assignment=_dumped(directory, "after_optimizations-buffer-assignment"),
            live_ranges=_dumped(directory, "after_optimizations-live-range"),
            seconds=seconds,
        )


class _UnknownDeviceError(Exception):
    """A collective is of devices that the program is not compiled for."""


def _check_devices(planned: Planned) -> None:
    """Refuses what libtpu may end the process for."""
    known = len(planned.processes) or 1
    for number, line in enumerate(planned.text.splitlines(), 1):
        groups = _GROUPS.search(line)
        last = max(map(int, re.findall(r"\d+", groups[1])), default=0) if groups else 0
        if last >= known:
            raise _UnknownDeviceError(
                f"a collective names device {last}, and the program is compiled for {known}\n\n"
                f"Suspected Python Code Location:\n  -:{number}"
            )


def _dumped(directory: str, stage: str) -> str:
    """The text of a stage of the program's module."""
    for path in sorted(Path(directory).glob(f"module_*.{stage}.txt")):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
