"""From a program's text to its executable: this process's table, then the disk, then XLA.

A key is the SHA-256 of everything that can change the machine code: the text, the options, the platform and kind of
device, the versions of jaxlib, of the device's runtime and of this package, XLA's flags, and on the CPU the processor's
features, since code for AVX-512 must not be loaded on a processor without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform as host
import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import jaxlib

from torch_tpu import settings
from torch_tpu.runtime.diskcache import DiskCache

V = TypeVar("V")

FORMAT = "2"
"""Changes when what is stored under a key changes its meaning."""


class Recent(Generic[V]):
    """A dictionary that forgets what was not used lately, where a hit costs one dictionary lookup.

    Two generations: a hit in the old one moves the entry to the young one; when the young one is full it becomes the
    old one. Between `capacity` / 2 and `capacity` entries are kept.
    """

    def __init__(self, capacity: int):
        self._half = max(1, capacity // 2)
        self.young: dict[Any, V] = {}
        self._old: dict[Any, V] = {}

    def get(self, key: Any) -> V | None:
        value = self.young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: Any, value: V) -> None:
        if len(self.young) >= self._half:
            self._old, self.young = self.young, {}
        self.young[key] = value

    def clear(self) -> None:
        self.young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)


def default_directory() -> Path:
    """Where programs are kept unless `settings.cache_dir` says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "torch_tpu"


_lock = threading.Lock()
_disk: dict[tuple[str, int], DiskCache] = {}


def disk() -> DiskCache | None:
    """The disk cache that the settings ask for, or None where they ask for none."""
    if not settings.cache:
        return None
    wanted = (settings.cache_dir, settings.cache_limit)
    found = _disk.get(wanted)
    if found is None:
        directory = Path(settings.cache_dir) if settings.cache_dir else default_directory()
        with _lock:
            found = _disk.setdefault(wanted, DiskCache(directory / "programs", settings.cache_limit))
    return found


_NOT_INSTRUCTIONS = (
    "acpi aperfmperf arat arch_capabilities arch_perfmon art bts bus_lock_detect cat_l2 cat_l3 cdp_l2 cdp_l3 constant_tsc "
    "cpuid cpuid_fault cqm cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc dca de ds_cpl dtes64 dtherm dts epb ept "
    "ept_ad est extd_apicid flexpriority flush_l1d hfi ht hwp hwp_act_window hwp_epp hwp_notify hwp_pkg_req hypervisor "
    "ibpb ibrs ibrs_enhanced ibt ida intel_ppin intel_pt l1d_flush mba mce md_clear monitor mtrr nonstop_tsc "
    "nonstop_tsc_s3 ospke pat pbe pcid pconfig pdcm pebs pge pln pti pts rdt_a rep_good rrsba_ctrl sdbg smap smep smx "
    "split_lock_detect ss ssbd stibp tm tm2 tme topoext tpr_shadow tsc tsc_adjust tsc_deadline_timer tsc_known_freq "
    "tsc_reliable umip user_shstk vme vmmcall vmx vnmi vpid x2apic xtopology xtpr"
)
"""What Linux lists among a processor's features and no compiler can use. What is not here counts as an instruction set,
so that a feature nobody has heard of makes two machines different and not one of them crash."""


@cache
def processor() -> str:
    """The host's instruction set: its architecture and, where the system lists them, its features."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return f"{host.machine()} {' '.join(sorted(set(value.split()) - set(_NOT_INSTRUCTIONS.split())))}"
    except OSError:
        pass  # no such file on this system: its name is all there is
    return f"{host.machine()} {host.processor()}"


def environment(platform: str, device_kind: str, runtime: str) -> Mapping[str, str]:
    """What a program's machine code depends on besides its text and options, each by its name.

    Args:
        runtime: what the platform's client calls its version, such as that of libtpu.
    """
    found = {
        "format": FORMAT,
        "platform": platform,
        "device": device_kind,
        "runtime": runtime,
        "jaxlib": jaxlib.__version__,
        "torch_tpu": _version(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "LIBTPU_INIT_ARGS": os.environ.get("LIBTPU_INIT_ARGS", ""),
    }
    if platform == "cpu":
        found["processor"] = processor()
    return found


def unfit(about: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Why a program made in one environment is of no use in another, or nothing.

    >>> unfit({"jaxlib": "0.9.0"}, {"jaxlib": "0.10.2"})
    'made with jaxlib 0.9.0; here it is 0.10.2'
    """
    for name, wanted in here.items():
        found = about.get(name, "")
        if found == wanted:
            continue
        if name == "processor":
            lacking = sorted(set(found.split()) - set(wanted.split()))
            unused = sorted(set(wanted.split()) - set(found.split()))
            what = f"has {' '.join(lacking)}, which this one lacks" if lacking else f"lacks {' '.join(unused)}"
            return f"made for a processor that {what}"
        return f"made with {name} {found or 'unset'}; here it is {wanted or 'unset'}"
    return ""


_MODULE = re.compile(r"^module @\w+")
_GRAPH = re.compile(r"(?<!custom_call )@\w*graph_\d+\w*")


def key(text: str, options: tuple[tuple[str, Any], ...], environment: Mapping[str, str]) -> str:
    """The name of a program in every cache: 64 hexadecimal digits.

    Names that compiled graphs have by the order in which they were made do not count: another process makes them in another
    order.
    """
    names: dict[str, str] = {}
    text = _MODULE.sub("module", text, count=1)
    text = _GRAPH.sub(lambda found: names.setdefault(found[0], f"@{len(names)}"), text)
    digest = hashlib.sha256(json.dumps([dict(environment), options]).encode())
    digest.update(text.encode())
    return digest.hexdigest()


PROGRAM, EXAMINATION = "program", "examination"
"""What an entry on disk is: an executable, or what the compiler said of a program."""


def is_program(about: Mapping[str, str]) -> bool:
    """Whether an entry with this description is an executable."""
    return about.get("kind", PROGRAM) == PROGRAM


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch_tpu")
    except PackageNotFoundError:
        return "source"
