"""`torch-tpu doctor`: the usual problems of an environment, and what to do about each.

A check returns findings; it must work in a broken environment, so torch and XLA are imported inside the checks only,
and what needs them runs in a process of its own.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Literal, NamedTuple

from rich.console import Console

State = Literal["ok", "warning", "problem"]
_MARKS = {"ok": "[green]ok[/]     ", "warning": "[yellow]look at[/]", "problem": "[red]problem[/]"}
PYTHON = ((3, 11), (3, 14))
"""First and last version of Python that this is written for."""


class Finding(NamedTuple):
    """What a check found."""

    state: State
    text: str
    do: str = ""
    """What to do about it."""


def check_python() -> Iterator[Finding]:
    """The version of Python."""
    found = sys.version_info[:2]
    text = f"Python {sys.version.split()[0]} at {sys.executable}"
    if found < PYTHON[0]:
        yield Finding("problem", text, "use Python 3.11 or newer")
    elif found > PYTHON[1]:
        yield Finding("warning", text, f"tested up to Python {PYTHON[1][0]}.{PYTHON[1][1]}")
    else:
        yield Finding("ok", text)


def check_packages() -> Iterator[Finding]:
    """The versions of what this package needs, against its own metadata."""
    try:
        needed = [line for line in requires("torch_tpu") or [] if "extra ==" not in line]
    except PackageNotFoundError:
        yield Finding(
            "warning", "torch_tpu is used from its sources, not installed", "pip install --no-build-isolation ."
        )
        needed = ["torch>=2.11,<2.16", "jaxlib>=0.10.2,<0.11", "ml_dtypes>=0.5,<0.7", "numpy>=2.0"]
    for requirement in needed:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        limits = requirement.removeprefix(name).strip()
        try:
            found = version(name)
        except PackageNotFoundError:
            yield Finding("problem", f"{name} is not installed", f"pip install '{requirement}'")
            continue
        state: State = "ok" if satisfies(found, limits) else "problem"
        yield Finding(
            state,
            f"{name} {found} ({limits or 'any version'})",
            "" if state == "ok" else f"pip install '{requirement}'",
        )


def satisfies(found: str, limits: str) -> bool:
    """Whether a version keeps limits such as ">=2.11,<2.16"; only the numbers count."""

    def numbers(text: str) -> list[int]:
        parts = [int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3]]
        return parts + [0] * (3 - len(parts))

    for limit in filter(None, limits.split(",")):
        match = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*([\w.]+)\s*", limit)
        if match is None:
            continue
        have, want = numbers(found), numbers(match[2])
        kept = {">=": have >= want, "<=": have <= want, "==": have == want, "<": have < want, ">": have > want}
        if not kept[match[1]]:
            return False
    return True


def check_plug() -> Iterator[Finding]:
    """The extension is there and loads into this torch."""
    if importlib.util.find_spec("torch_tpu._plug") is None:
        yield Finding("problem", "the extension torch_tpu._plug is not built", "pip install --no-build-isolation .")
        return
    done = _python("import torch_tpu, torch; from torch_tpu import _plug; print(_plug.__file__)", autoload=False)
    if done.returncode == 0:
        yield Finding("ok", f"the extension loads into this torch: {done.stdout.strip()}")
    else:
        yield Finding(
            "problem",
            f"the extension does not load: {_last_line(done.stderr)}",
            "it was built for another torch: pip install --no-build-isolation --force-reinstall --no-deps .",
        )


def check_settings() -> Iterator[Finding]:
    """The environment variables of the settings."""
    from torch_tpu.settings import SETTINGS

    wrong = []
    for setting in SETTINGS.values():
        try:
            setting.from_environment()
        except ValueError as error:
            wrong.append(Finding("problem", str(error), "unset the variable, or set it to one of these values"))
    yield from wrong or [Finding("ok", "the settings in the environment can be read")]


def check_autoload() -> Iterator[Finding]:
    """`import torch` registers the device."""
    done = _python("import torch; print(torch.device('tpu').type, torch.tpu.is_available())")
    if done.returncode == 0 and done.stdout.split() == ["tpu", "True"]:
        yield Finding("ok", "import torch registers the device tpu")
    elif os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        yield Finding(
            "warning",
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading backends",
            "unset it, or write `import torch, torch_tpu`",
        )
    elif done.returncode == 0:
        yield Finding("problem", "the device is registered but not available", "see the lines on hardware below")
    else:
        yield Finding(
            "problem", f"import torch does not register the device: {_last_line(done.stderr)}",
            "pip install --no-build-isolation . (not only PYTHONPATH: the entry point must be installed)",
        )  # fmt: skip


def check_hardware() -> Iterator[Finding]:
    """What is there, and whether its package is."""
    from torch_tpu import settings
    from torch_tpu.runtime import platform

    yield Finding("ok", f"platform {platform.choose()} (TORCH_TPU_PLATFORM={settings.platform})")
    tpus, gpus = platform.tpu_devices(), platform.cuda_devices()
    if tpus and platform.libtpu_path() is None:
        yield Finding("problem", f"a TPU ({', '.join(tpus)}) without libtpu", "pip install 'torch_tpu[tpu]'")
    elif tpus:
        yield Finding("ok", f"TPU {', '.join(tpus)}, libtpu at {platform.libtpu_path()}")
    if gpus and platform.cuda_plugin_path() is None:
        state: State = "problem" if settings.platform == "cuda" else "warning"
        yield Finding(state, "an NVIDIA GPU without its PJRT plug-in", "to use it: pip install 'torch_tpu[gpu]'")
    elif gpus:
        yield Finding("ok", f"NVIDIA GPU {', '.join(gpus)}; TORCH_TPU_PLATFORM=cuda uses it")
    if not platform.is_available():
        yield Finding(
            "problem", f"the platform {settings.platform!r} is asked for and not there", "set TORCH_TPU_PLATFORM=cpu"
        )


def check_other_processes() -> Iterator[Finding]:
    """Another process that holds the TPU: libtpu serves one at a time."""
    from torch_tpu.runtime import platform

    if not platform.tpu_devices():
        return
    for maps in glob.glob("/proc/[0-9]*/maps"):
        process = int(maps.split("/")[2])
        if process != os.getpid() and "libtpu.so" in _read(maps):
            name = _read(f"/proc/{process}/comm").strip()
            yield Finding(
                "problem", f"process {process} ({name}) has loaded libtpu", f"end it, if it is yours: kill {process}"
            )
    if os.path.exists("/tmp/libtpu_lockfile") and not os.access("/tmp/libtpu_lockfile", os.W_OK):
        yield Finding("problem", "/tmp/libtpu_lockfile belongs to another user", "ask its owner, or delete it")


def check_cache() -> Iterator[Finding]:
    """The directory of compiled programs."""
    from torch_tpu.runtime import cache

    disk = cache.disk()
    if disk is None:
        yield Finding(
            "warning", "the disk cache is off (TORCH_TPU_CACHE=0)", "unset it: every process compiles everything"
        )
        return
    problem = disk.problem
    if not problem and not os.access(disk.directory, os.W_OK):
        problem = f"{disk.directory} cannot be written"
    if problem:
        yield Finding("problem", problem, "set TORCH_TPU_CACHE_DIR to a directory of your own")
        return
    usage = disk.usage()
    yield Finding("ok", f"{usage.entries} programs, {usage.num_bytes / 2**20:.0f} MiB in {disk.directory}")
    free = shutil.disk_usage(disk.directory).free
    if free < 1 << 30:
        yield Finding("warning", f"{free / 2**20:.0f} MiB are free there", "make room, or set TORCH_TPU_CACHE_DIR")


def check_memory() -> Iterator[Finding]:
    """The memory of the host."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) / 2**20
            state: State = "ok" if free >= 2 else "warning"
            yield Finding(state, f"{free:.1f} GiB of memory are available", "" if free >= 2 else "the demo needs 4 GiB")


def check_program() -> Iterator[Finding]:
    """A small program is compiled and run, in a process of its own."""
    code = (
        "import time, torch_tpu, torch; torch_tpu._autoload(); start = time.perf_counter()\n"
        "x = torch.arange(6., device='tpu').view(2, 3); y = (x @ x.t()).sum().item()\n"
        "print(y, f'{time.perf_counter() - start:.2f}', torch.tpu.get_device_name(), sep='|')"
    )
    done = _python(code)
    parts = done.stdout.strip().split("|")
    if done.returncode == 0 and parts[0] == "83.0":
        yield Finding("ok", f"a first program ran on {parts[2]} after {parts[1]} s")
    elif done.returncode == 0:
        yield Finding("problem", f"a program gave {parts[0]}, not 83.0", "report it with the output of this command")
    else:
        yield Finding("problem", f"no program runs: {_last_line(done.stderr)}", "fix what is above first")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python, check_packages, check_plug, check_settings, check_autoload, check_hardware, check_other_processes, check_cache,
    check_memory, check_program,
)  # fmt: skip


def run() -> int:
    """Prints what all checks find; the exit status is 1 if there is a problem."""
    console = Console(highlight=False)
    start = time.perf_counter()
    counts = dict.fromkeys(_MARKS, 0)
    for check in CHECKS:
        for finding in check():
            counts[finding.state] += 1
            console.print(f"{_MARKS[finding.state]} ", end="")
            console.print(finding.text, markup=False, soft_wrap=True)
            if finding.do:
                console.print(f"         -> {finding.do}", markup=False, soft_wrap=True)
    num_problems = counts["problem"]
    said = "no problems" if not num_problems else f"{num_problems} problem{'s' * (num_problems > 1)}"
    console.print(f"[bold]{said}[/], {counts['warning']} to look at, in {time.perf_counter() - start:.1f} s")
    return 1 if num_problems else 0


def _python(code: str, *, autoload: bool = True) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) if autoload else {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
