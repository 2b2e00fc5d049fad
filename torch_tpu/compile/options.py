"""The options of the backend: `torch.compile(backend="tpu", options={...})`."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""What `mode=` may be; all are the same here, since XLA always optimizes and there are no CUDA graphs."""


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """What `debug_callback` is called with, once for each program."""

    name: str
    """The program's name."""
    kind: str
    """"forward", "backward" or "inference"."""
    graph: str
    """The ATen graph, as Python."""
    stablehlo: str
    """What the lowerings wrote."""
    optimized_hlo: str
    """What XLA made of it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options, checked."""

    async_compile: bool = False
    """XLA compiles in the background: until a program is there, its graph's operators run one by one."""
    num_dynamic_buckets: int = 1
    """How many bounds a dimension that varies has, each half of the next: smaller sizes need less padding."""
    bucket_size: int = 128
    """Up to it bounds are powers of two, above it multiples of it."""
    serializable: bool = True
    """Whether compiled graphs may be kept by PyTorch's caches between processes."""
    debug_callback: Callable[[CompiledProgram], Any] | None = None
    """Called with a `CompiledProgram` when a program was made."""
    custom_module_name: str | None = None
    """The programs' name, for profiles and dumps."""

    def __post_init__(self) -> None:
        for name in ("async_compile", "serializable"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "True or False")
        for name in ("num_dynamic_buckets", "bucket_size"):
            if not _is_int(getattr(self, name)) or getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "a positive int")
        if self.debug_callback is not None and not callable(self.debug_callback):
            raise _wrong("debug_callback", self.debug_callback, "a function of one argument")
        called = self.custom_module_name
        if called is not None and not (isinstance(called, str) and re.fullmatch(r"[A-Za-z_][\w.]*", called, re.ASCII)):
            raise _wrong("custom_module_name", called, "letters, digits, dots and underscores")


NAMES = tuple(field.name for field in dataclasses.fields(Options))


def parse(options: Mapping[str, Any] | None, mode: str | None) -> Options:
    """Checks what `torch.compile` was given; `name` is short for `custom_module_name`.

    Raises:
        ValueError: an option or mode that does not exist, or a value out of range.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile(backend='tpu') has no mode {mode!r}; it has {', '.join(MODES)}")
    given = dict(options or {})
    if "name" in given:
        given.setdefault("custom_module_name", given.pop("name"))
    for option in given:
        if option not in NAMES:
            close = difflib.get_close_matches(option, NAMES, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(
                f"torch.compile(backend='tpu') has no option {option!r}; {hint}it has {', '.join(NAMES)} (or name)"
            )
    return Options(**given)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"the option {name!r} of torch.compile(backend='tpu') is {value!r}; it must be {wanted}")
