"""What `aot.compile` returns: a step's programs, and what the compiler made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch_tpu import errors
from torch_tpu.aot import report
from torch_tpu.aot.prices import price_of
from torch_tpu.aot.report import Report
from torch_tpu.aot.utilization import ModelFlops
from torch_tpu.runtime import compile_only
from torch_tpu.runtime.compile_only import Planned
from torch_tpu.runtime.topology import Topology


@dataclass(frozen=True)
class Compiled:
    """The programs that one call runs, in order; one that runs several times is there several times."""

    topology: Topology
    runs: tuple[Planned, ...]
    name: str
    """Of the module or function."""
    tokens: int | None = None
    """That one call handles on each device, if that is known."""
    samples: int | None = None
    """The same."""
    model: ModelFlops | None = None
    """FLOPs of a token by the model's definition, if they are known."""
    notes: tuple[str, ...] = ()
    """What a reader of the report has to know of how it was captured."""

    @cached_property
    def report(self) -> Report:
        """What the compiler says of it: memory, work, time, utilization, throughput and cost; or why it does not compile.

        Made when it is first asked for, with the prices that are set then (`settings.chip_prices`).
        """
        return report.make(self, price_of(self.topology.generation))

    @property
    def programs(self) -> tuple[Planned, ...]:
        """The different ones among them."""
        return tuple(dict.fromkeys(self.runs))

    @property
    def stablehlo(self) -> str:
        """What is handed to XLA."""
        return "\n".join(program.text for program in self.programs)

    @property
    def optimized_hlo(self) -> str | None:
        """What XLA made of it, where this jaxlib can read what this libtpu wrote.

        Raises:
            CompileError: the compiler refused a program.
        """
        texts = [program.built.optimized_text() for program in self.programs]
        return "\n".join(text for text in texts if text) or None

    def retarget(self, topology: str | Topology) -> Compiled:
        """The same programs for other TPUs; nothing is traced again.

        Raises:
            ValueError: a program is of another number of devices, as data-parallel ones are; or as `aot.compile`.
            PlatformError: as `aot.compile`.
        """
        other = Topology.parse(topology)
        counts = {len(program.processes) for program in self.programs if program.processes}
        if counts - {other.devices}:
            raise ValueError(
                f"{self.name} is of {max(counts)} devices; capture it for the {other.devices} of {other.name}"
            )
        client = compile_only.client(other)
        made = {program: client.adopt(program) for program in self.programs}
        return replace(self, topology=other, runs=tuple(made[program] for program in self.runs))

    def save(self, directory: str | Path) -> Path:
        """Writes each program's StableHLO, optimized HLO and executable, and the report, into a directory, which is made.

        `torch-tpu cache export` makes a file of executables that another machine can import.

        Raises:
            CompileError: the compiler refused a program; then nothing is written.
        """
        failure = self.report.failure
        if failure is not None:
            raise errors.CompileError(
                errors.message(
                    f"{self.name} does not compile for {self.topology.name}", why=failure.headline, do=failure.do
                )
            )
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        about = []
        for number, program in enumerate(self.programs):
            name = f"{number}_{program.name}"
            built = program.built
            (place / f"{name}.mlir").write_text(program.text, encoding="utf-8")
            optimized = built.optimized_text()
            if optimized is not None:
                (place / f"{name}.hlo").write_text(optimized, encoding="utf-8")
            (place / f"{name}.executable").write_bytes(built.serialize())
            about.append({"name": name, "key": program.key, "runs": self.runs.count(program)})
        described = {"topology": self.topology.name, "programs": about}
        (place / "report.json").write_text(self.report.to_json(), encoding="utf-8")
        (place / "programs.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        return place
