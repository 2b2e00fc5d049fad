"""The tables of other devices' APIs and of what takes their place: torch_xla.toml and cuda.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Do = Literal["use", "remove", "none"]


@dataclass(frozen=True)
class Api:
    """One entry: APIs that have the same replacement."""

    names: tuple[str, ...]
    """In full; "a.b.*" is all below a.b. "text:..." is a string, "backend:..." a backend of
    torch.compile, "env:..." an environment variable."""
    rule: str
    do: Do
    replacement: str
    """The code to write; empty unless `do` is "use"."""
    note: str
    group: str
    """The section of the page that it is in."""

    def suggestion(self, name: str) -> str:
        """What to do, for the name that was found."""
        code = self.replacement.replace("{last}", name.rpartition(".")[2])
        head = {"use": f"use {code}", "remove": "remove it", "none": "there is no replacement yet"}[self.do]
        return f"{head}: {self.note}" if self.note else head


class Apis:
    """Entries, found by name.

    Raises:
        ValueError: an entry has a key that does not exist, or a name is in two entries.
    """

    def __init__(self, entries: tuple[Api, ...]):
        self.entries = entries
        self._by_name: dict[str, Api] = {}
        for entry in entries:
            for name in entry.names:
                if name in self._by_name:
                    raise ValueError(f"{name} is in two entries")
                self._by_name[name] = entry

    def find(self, name: str) -> Api | None:
        """The entry of a name, or of the longest "a.b.*" that it is below."""
        found = self._by_name.get(name)
        while found is None and "." in name:
            name = name.rpartition(".")[0]
            found = self._by_name.get(f"{name}.*")
        return found


_KEYS = {"names", "rule", "do", "with", "note", "group"}


@cache
def load(file: str) -> Apis:
    """The table of a file beside this one."""
    path = Path(__file__).with_name(file)
    return Apis(tuple(_entry(item, file) for item in tomllib.loads(path.read_text(encoding="utf-8"))["api"]))


def _entry(item: dict[str, object], file: str) -> Api:
    unknown = item.keys() - _KEYS
    if unknown or item["do"] not in ("use", "remove", "none") or ("with" in item) != (item["do"] == "use"):
        raise ValueError(f"{file}: an entry that is not of the form described there: {item}")
    do: Do = item["do"]
    rule = str(item.get("rule", "TPU021" if do == "none" else "TPU020"))
    names = tuple(str(name) for name in item["names"])  # type: ignore[attr-defined]
    return Api(names, rule, do, str(item.get("with", "")), str(item["note"]), str(item.get("group", "")))


def torch_xla() -> Apis:
    return load("torch_xla.toml")


def cuda() -> Apis:
    return load("cuda.toml")


def as_markdown() -> str:
    """The table of torch_xla's APIs, one section a group."""
    groups: dict[str, list[Api]] = {}
    for entry in torch_xla().entries:
        groups.setdefault(entry.group, []).append(entry)
    parts = []
    for group, entries in groups.items():
        rows = [f"## {group}\n", "| PyTorch/XLA | here | |", "| --- | --- | --- |"]
        rows += [f"| {_names(entry)} | {_here(entry)} | {entry.note} |" for entry in entries]
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def _here(entry: Api) -> str:
    return {"use": f"`{entry.replacement}`", "remove": "nothing: remove it", "none": "**nothing yet**"}[entry.do]


_SHORT = {
    "torch_xla.core.xla_model.": "xm.",
    "torch_xla.runtime.": "xr.",
    "torch_xla.distributed.spmd.": "xs.",
    "torch_xla.distributed.xla_multiprocessing.": "xmp.",
    "torch_xla.distributed.parallel_loader.": "pl.",
    "torch_xla.debug.metrics.": "met.",
    "torch_xla.debug.profiler.": "xp.",
}
"""The names that its documentation imports these modules by."""


def _names(entry: Api) -> str:
    shown = []
    for name in entry.names:
        kind, _, rest = name.partition(":")
        if kind == "text":
            shown.append(f'`"{rest}"`')
        elif kind == "backend":
            shown.append(f'`torch.compile(backend="{rest}")`')
        elif kind == "env":
            shown.append(f"`{rest}`")
        else:
            long = next((module for module in _SHORT if name.startswith(module)), "")
            shown.append(f"`{_SHORT.get(long, '')}{name.removeprefix(long)}`")
    return ", ".join(shown)
