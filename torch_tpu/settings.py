"""What can be switched, each by one declaration: a typed attribute, an environment variable, a row of docs/settings.md.

    import torch_tpu
    torch_tpu.settings.fallback = "error"                  # checked, for the whole process
    with torch_tpu.settings.override(fallback="count"):    # and back afterwards
        ...

Values are plain attributes of this module, so reading one costs a dictionary lookup; assigning one goes through
`_Module.__setattr__`, which refuses unknown names and wrong values. Environment variables are read at import, and once
more by `refresh()` when the device starts. Imports the standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Setting(NamedTuple):
    """One declaration."""

    name: str
    default: Any
    variable: str
    """The environment variable."""
    choices: tuple[Any, ...]
    """The values allowed; empty where the type alone decides."""
    switches: Mapping[str, tuple[str, ...]]
    """Value -> on/off environment variables that select it, for the names that other versions use."""
    help: str
    unit: str
    """"bytes" for sizes, which may be written as 512MiB in the environment."""

    def check(self, value: Any) -> Any:
        """The value, converted to the declared type.

        Raises:
            ValueError, TypeError: it is not allowed.
        """
        kind = type(self.default)
        if kind is tuple and isinstance(value, (list, tuple)):
            value = tuple(value)
        if type(value) is not kind:
            raise TypeError(f"setting {self.name} is {kind.__name__}, not {type(value).__name__}: {value!r}")
        for item in value if kind is tuple else (value,):
            if self.choices and item not in self.choices:
                allowed = ", ".join(map(repr, self.choices))
                raise ValueError(f"setting {self.name} cannot be {item!r}; it can be {allowed}")
        if self.unit == "bytes" and value < 0:
            raise ValueError(f"setting {self.name} is a number of bytes and cannot be {value}")
        return value

    def parse(self, text: str) -> Any:
        """The value an environment variable's text stands for."""
        kind = type(self.default)
        if kind is bool:
            return parse_bool(text)
        if self.unit == "bytes":
            return parse_bytes(text)
        if kind is int:
            return int(text)
        if kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return text

    def from_environment(self) -> Any:
        """The value the environment asks for, or the default.

        Raises:
            ValueError: the environment asks for a value that is not allowed; the message names the variable.
        """
        text = os.environ.get(self.variable)
        if text is not None:
            try:
                return self.check(self.parse(text))
            except (ValueError, TypeError) as error:
                raise ValueError(f"environment variable {self.variable}={text!r}: {error}") from None
        for value, variables in self.switches.items():
            for variable in variables:
                if variable in os.environ:
                    try:
                        chosen = parse_bool(os.environ[variable])
                    except ValueError as error:
                        raise ValueError(f"environment variable {variable}: {error}") from None
                    if chosen:
                        return value
                    break
        return self.default


def parse_bool(text: str) -> bool:
    """1, true, yes, on; 0, false, no, off and the empty text are false."""
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither yes nor no; use 1 or 0")


def parse_bytes(text: str) -> int:
    """1048576, 512KiB, 64MiB, 2GiB, 1.5GiB; KB, MB and GB count in thousands."""
    units = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
    units |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "b": 1}
    lowered = text.strip().lower()
    for unit, factor in units.items():
        if lowered.endswith(unit):
            return int(float(lowered.removesuffix(unit)) * factor)
    return int(lowered)


SETTINGS: dict[str, Setting] = {}
"""All declarations, in the order of the documentation."""
_assigned: set[str] = set()
_watchers: dict[str, list[Callable[[Any], None]]] = {}


def declare(
    name: str,
    default: T,
    variable: str,
    help: str,
    *,
    choices: Sequence[Any] = (),
    switches: Mapping[str, tuple[str, ...]] | None = None,
    unit: str = "",
) -> T:
    """Registers a setting and returns its first value.

    An environment variable that asks for what is not allowed is told by `refresh`, when the device starts: an import
    must not fail for it.
    """
    taken = {setting.variable for setting in SETTINGS.values()}
    if name in SETTINGS or variable in taken:
        raise ValueError(f"setting {name!r} or its variable {variable} is declared already")
    setting = Setting(name, default, variable, tuple(choices), switches or {}, help, unit)
    SETTINGS[name] = setting
    with suppress(ValueError):
        return cast(T, setting.from_environment())
    return default


Platform = Literal["auto", "tpu", "cpu", "cuda"]
EagerMode = Literal["strict", "debug", "fused"]
Fallback = Literal["warn", "count", "error"]
Precision = Literal["default", "medium", "high", "highest"]
Effort = Literal["auto", "least", "low", "normal"]

platform: Platform = declare(
    "platform",
    "auto",
    "TORCH_TPU_PLATFORM",
    "What the device runs on. auto: a TPU where there is one, else XLA's CPU client. Read when the device starts.",
    choices=("auto", "tpu", "cpu", "cuda"),
)
topology: str = declare(
    "topology",
    "",
    "TORCH_TPU_TOPOLOGY",
    "TPUs to compile for that need not be there, such as v6e-8 (a generation and a number of chips). Nothing runs, and "
    "tensors have no values; the compiled programs fill the disk cache. Read when the device starts.",
)
eager_mode: EagerMode = declare(
    "eager_mode",
    "strict",
    "TORCH_TPU_EAGER_MODE",
    "How operators run outside compiled functions. strict: each as its own program, asynchronously. debug: waits for "
    "each, checks indices, names the Python line in errors. fused: several together.",
    choices=("strict", "debug", "fused"),
    switches={"debug": ("TPU_LAUNCH_BLOCKING",), "fused": ("TORCH_TPU_DEFER_AND_FUSE", "TPU_DEFER_AND_FUSE")},
)
fallback: Fallback = declare(
    "fallback",
    "warn",
    "TORCH_TPU_FALLBACK",
    "What happens at an operator without a lowering. warn: it runs on the CPU, is counted, and warns once per "
    "operator. count: the same without a warning. error: FallbackError.",
    choices=("warn", "count", "error"),
)
matmul_precision: Precision = declare(
    "matmul_precision",
    "default",
    "TORCH_TPU_MATMUL_PRECISION",
    "Precision of float32 matrix products: medium is one bfloat16 pass, high three, highest six. default: medium on a "
    "TPU, exact on the CPU. torch.set_float32_matmul_precision sets it too.",
    choices=("default", "medium", "high", "highest"),
)
emulate_matmul_rounding: bool = declare(
    "emulate_matmul_rounding",
    False,
    "TORCH_TPU_EMULATE_MATMUL_ROUNDING",
    "On the CPU, form float32, float16 and complex64 matrix products and convolutions as a TPU does at the chosen "
    "precision: in passes over bfloat16 numbers. See numerics.md.",
)
allow_excess_precision: bool = declare(
    "allow_excess_precision",
    False,
    "TORCH_TPU_ALLOW_EXCESS_PRECISION",
    "Lets XLA leave out roundings to bfloat16 and float16 between fused operations.",
)
fuse_least: int = declare(
    "fuse_least",
    32,
    "TORCH_TPU_FUSE_LEAST",
    "Fused mode: the least number of operators in a program that is cut because the recording has grown long.",
)
fuse_most: int = declare(
    "fuse_most",
    1024,
    "TORCH_TPU_FUSE_MOST",
    "Fused mode: the most operators in one program. Deep models compile faster with small ones, which layers share.",
)
fuse_bytes: int = declare(
    "fuse_bytes",
    4 << 30,
    "TORCH_TPU_FUSE_BYTES",
    "Fused mode: what was recorded runs when the results that are still held and not yet computed exceed this.",
    unit="bytes",
)
donation_threshold: int = declare(
    "donation_threshold",
    1 << 16,
    "TORCH_TPU_DONATION_THRESHOLD",
    "Smallest size at which an in-place operator reuses its input's memory for the result. Below it a copy is cheaper "
    "than a second program.",
    unit="bytes",
)
xla_effort: Effort = declare(
    "xla_effort",
    "auto",
    "TORCH_TPU_XLA_EFFORT",
    "How hard XLA optimizes. least and low compile faster, normal is XLA's own level. auto: normal for compiled "
    "functions, low for single operators, least for those on a few thousand elements.",
    choices=("auto", "least", "low", "normal"),
)
xla_options: tuple[str, ...] = declare(
    "xla_options",
    cast("tuple[str, ...]", ()),
    "TORCH_TPU_XLA_OPTIONS",
    "Further XLA options for every program, as name=value separated by commas, such as xla_cpu_use_onednn=true.",
)
cache: bool = declare(
    "cache", True, "TORCH_TPU_CACHE", "Keep compiled programs on disk, so that the next process does not compile them."
)
cache_dir: str = declare(
    "cache_dir",
    "",
    "TORCH_TPU_CACHE_DIR",
    "Where they are kept. Empty: torch_tpu in $XDG_CACHE_HOME or ~/.cache.",
)
cache_limit: int = declare(
    "cache_limit",
    2 << 30,
    "TORCH_TPU_CACHE_LIMIT",
    "Largest size of that directory; the programs used longest ago are deleted first.",
    unit="bytes",
)
chip_prices: tuple[str, ...] = declare(
    "chip_prices",
    cast("tuple[str, ...]", ()),
    "TORCH_TPU_CHIP_PRICES",
    "What plans reckon an hour of a chip with, in USD: v6e=1.89,v7x=8 or TOML files, separated by commas. Empty: dated "
    "list prices.",
)
log: tuple[str, ...] = declare(
    "log",
    cast("tuple[str, ...]", ()),
    "TORCH_TPU_LOG",
    "Topics to report on stderr, separated by commas.",
    choices=("ops", "compile", "cache", "fallback", "transfer"),
)
dump_dir: str = declare(
    "dump_dir",
    "",
    "TORCH_TPU_DUMP_DIR",
    "Write the StableHLO text of every program that is compiled into this directory.",
)


class _Module(ModuleType):
    """This module's class: assigning a setting checks it and tells those who watch it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
            return
        if name not in SETTINGS:
            raise AttributeError(f"there is no setting {name!r}; there are: {', '.join(SETTINGS)}")
        checked = SETTINGS[name].check(value)
        _assigned.add(name)
        _store(name, checked)


def _store(name: str, value: Any) -> None:
    variables = globals()
    before = variables[name]
    if before == value:
        return
    variables[name] = value
    try:
        for function in _watchers.get(name, ()):
            function(value)
    except Exception:
        variables[name] = before  # a watcher refused it
        raise


def watch(name: str, function: Callable[[Any], None]) -> None:
    """Calls a function with the new value whenever a setting changes."""
    if name not in SETTINGS:
        raise AttributeError(f"there is no setting {name!r}; there are: {', '.join(SETTINGS)}")
    _watchers.setdefault(name, []).append(function)


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Assigns settings for the length of a `with` block, for all threads."""
    module = sys.modules[__name__]
    before = {name: globals()[name] for name in values if name in SETTINGS}
    assigned = set(_assigned)
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            _store(name, value)
        _assigned.intersection_update(assigned)


def refresh() -> None:
    """Reads the environment again for the settings that nobody has assigned.

    Raises:
        ValueError: a variable asks for what is not allowed.
    """
    for name, setting in SETTINGS.items():
        if name not in _assigned:
            _store(name, setting.from_environment())


def current() -> dict[str, Any]:
    """All settings and their values."""
    return {name: globals()[name] for name in SETTINGS}


sys.modules[__name__].__class__ = _Module
