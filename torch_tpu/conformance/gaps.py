"""Declared gaps: what is known not to work, with the reason. Anything else that fails is an error, and so is a
declared gap that works: its entry is to be deleted."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch_tpu.conformance.catalog import HERE, Case
from torch_tpu.conformance.runner import Result

DEFAULT = Path(__file__).with_name("gaps.toml")
_KEYS = ("op", "dtype", "phase", "reason")
_OPTIONAL = ("mode", "place")


@dataclass(frozen=True)
class Gap:
    """One entry. "*" as dtype or phase stands for all of them."""

    op: str
    dtype: str
    phase: str
    reason: str
    mode: str = "*"
    """In which mode it fails, if not in all of them."""
    place: str = HERE
    """Where it fails, if not here: a TPU generation, "tpu" for all of them, or "*" for everywhere."""

    def covers(self, case: Case) -> bool:
        pairs = ((self.dtype, case.dtype), (self.phase, case.phase), (self.mode, case.mode), (self.place, case.place))
        tpu = self.place == "tpu" and case.place != HERE
        return self.op == case.op and all(ours in ("*", theirs) for ours, theirs in pairs[: 3 if tpu else 4])

    def __str__(self) -> str:
        where = (f', mode = "{self.mode}"' if self.mode != "*" else "") + (
            f', place = "{self.place}"' if self.place != HERE else ""
        )
        return f'op = "{self.op}", dtype = "{self.dtype}", phase = "{self.phase}"{where}'


@dataclass(frozen=True)
class Judgement:
    """What the results mean."""

    failed: tuple[Result, ...]
    """They fail and are not declared."""
    declared: tuple[Result, ...]
    """They fail and are declared."""
    closed: tuple[Gap, ...]
    """Declared, and all their cases pass: the entries to delete."""

    @property
    def holds(self) -> bool:
        return not self.failed and not self.closed


class Gaps:
    """The entries of a file."""

    def __init__(self, gaps: Iterable[Gap] = ()):
        self.gaps = tuple(gaps)

    @staticmethod
    def load(path: Path | None = None) -> Gaps:
        """Reads a file, the package's own if none is named.

        Raises:
            ValueError: an entry is incomplete, has unknown keys, or is there twice.
        """
        path = path or DEFAULT
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("gap", [])
        found: dict[tuple[str, ...], Gap] = {}
        for row in rows:
            keys = sorted(row.keys() - {*_OPTIONAL})
            if keys != sorted(_KEYS) or not all(isinstance(value, str) and value for value in row.values()):
                raise ValueError(
                    f"{path}: an entry needs {', '.join(_KEYS)}, may have mode and place, and nothing else: {row}"
                )
            key = (row["op"], row["dtype"], row["phase"], row.get("mode", "*"), row.get("place", HERE))
            if key in found:
                raise ValueError(f"{path}: declared twice: {found[key]}")
            found[key] = Gap(**row)
        return Gaps(found.values())

    def declared(self, case: Case) -> Gap | None:
        """The entry that covers a case, if there is one."""
        return next((gap for gap in self.gaps if gap.covers(case)), None)

    def judge(self, results: Iterable[Result], *, complete: bool = True) -> Judgement:
        """Compares results with the entries.

        Args:
            complete: all samples were run. Otherwise a gap that passes may fail on another sample, and is no error.
        """
        results = list(results)
        failed: list[Result] = []
        declared: list[Result] = []
        for result in results:
            if result.fails:
                (declared if self.declared(result.case) else failed).append(result)
        closed = []
        for gap in self.gaps if complete else ():
            covered = [result for result in results if gap.covers(result.case) and result.status != "skipped"]
            if covered and not any(result.fails for result in covered):
                closed.append(gap)
        return Judgement(tuple(failed), tuple(declared), tuple(closed))
