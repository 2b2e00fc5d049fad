"""The exceptions that torch_tpu raises, and how their messages are built.

A message says, in this order: what failed (operator, dtypes, shapes, device), why, what to do, where to read more. The
docstring of each class is its page in `docs/errors.md`. Wrong arguments raise `ValueError`, `TypeError` or `IndexError`
as they do on PyTorch's other devices; the classes here are for what only this backend can run into.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TpuError(RuntimeError):
    """The base of all errors that come from the backend itself.

    Catch it to handle any of them. It is a `RuntimeError`, which is what PyTorch's other devices raise.
    """


class UnsupportedOpError(TpuError, NotImplementedError):
    """An operator, or one of its dtypes, has no lowering to XLA and may not run on the CPU instead.

    What to do: run that operator on the CPU (`x.cpu()`), or allow the counted fallback by
    `torch_tpu.settings.fallback = "warn"`. `torch-tpu ops NAME` says what is supported.
    """


class FallbackError(UnsupportedOpError):
    """An operator would have run on the CPU, and `torch_tpu.settings.fallback` is "error".

    A fallback copies its inputs to the host and its results back, which is slow and easy to miss; this setting makes
    each one an error that names the operator. What to do: allow it by `torch_tpu.settings.fallback = "warn"`, or move
    that part of the program to the CPU on purpose.
    """


class PlatformError(TpuError):
    """The hardware or the runtime that was asked for is not there, or did not start.

    The message says what was looked for and which package or device file was missing. What to do: install what it
    names, choose another platform by the environment variable TORCH_TPU_PLATFORM (auto, tpu, cpu, cuda), and run
    `torch-tpu doctor`.
    """


class BoundedError(TpuError):
    """A program for sizes that vary up to a bound cannot be made, because a part of it needs the sizes themselves.

    Compiled graphs catch it: such a graph is compiled for each set of sizes instead, which `torch_tpu.stats` counts as
    `specialized`. What to do: if that happens too often, mark the dimension static by `torch._dynamo.mark_static`, or
    pad the inputs to a few sizes.
    """


class CompileError(TpuError):
    """XLA refused a program.

    The message has the operator or function, its dtypes, what it was compiled for, the first lines of what XLA said, and
    the program's first lines. It comes from a gap of the compiler or a fault of a lowering, never from wrong data.
    What to do: set `torch_tpu.settings.dump_dir` to keep the whole program, and report it together with the message.
    """

    exceeds_memory = False
    """The program needs more memory than the device has."""


class ExecutionError(TpuError):
    """A program failed while it ran.

    Programs run asynchronously, so it may be raised by a later call that needs the result. What to do: set
    TPU_LAUNCH_BLOCKING=1 (debug mode), which waits for each operator and names the line that called it.
    """


class NoValueError(TpuError):
    """The value of a tensor was asked for where programs are only compiled and never run.

    This is so within `torch_tpu.aot`, and where TORCH_TPU_TOPOLOGY names TPUs that need not be there. Tensors have shapes
    and dtypes then, and no values, so nothing may depend on them: no `item()`, no printing, no `if` on a tensor, no
    sizes that depend on data, such as those of `nonzero`. What to do: take these out of what is compiled. PyTorch's own
    checks of results, such as that of `torch.linalg.cholesky`, pass there.
    """


class IndexOutOfRangeError(ExecutionError, IndexError):
    """An index is out of range for what it indexes.

    On the CPU platform each program checks its indices while it runs, so that a small one raises at once and a large
    one where its result is needed; a tensor that it was writing in place is lost. On other platforms reads are
    clamped and writes are dropped, as XLA does it, except in debug mode. What to do: set TPU_LAUNCH_BLOCKING=1 (debug
    mode), which checks before the call, on every platform, and names the line that called it.
    """


class ForkError(TpuError):
    """The device was used in a forked child of a process that had started it already.

    XLA's threads do not survive a fork. What to do: start processes with the "spawn" or "forkserver" method
    (`torch.multiprocessing.set_start_method("spawn")`, `DataLoader(..., multiprocessing_context="spawn")`), or use
    only CPU tensors in the child.
    """


def describe(value: Any) -> str:
    """A short description of an argument: "Tensor[8, 8] float32" for tensors, nested for lists, else its `repr`."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        device = getattr(value, "device", None)
        on_cpu = " on cpu" if getattr(device, "type", None) == "cpu" else ""
        return f"Tensor{list(value.shape)} {dtype}{on_cpu}"
    if isinstance(value, (list, tuple)):
        shown = [describe(item) for item in value[:4]] + (["..."] if len(value) > 4 else [])
        return f"[{', '.join(shown)}]"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def message(what: str, *, inputs: Iterable[Any] | None = None, why: str = "", do: str = "", see: str = "") -> str:
    """The text of an error: a headline, then one labelled line each for what is known.

    >>> print(message("aten::ormqr has no lowering", why="a declared gap", do="run it on the CPU"))
    aten::ormqr has no lowering
      why:    a declared gap
      do:     run it on the CPU
    """
    lines = [what]
    if inputs is not None:
        lines.append(f"  inputs: {', '.join(map(describe, inputs)) or 'none'}")
    for label, text in (("why:", why), ("do:", do), ("see:", see)):
        if text:
            lines.append(f"  {label:<7} " + text.strip().replace("\n", "\n" + " " * 10))
    return "\n".join(lines)


def page(error: type[TpuError]) -> str:
    """Where the documentation of an error class is."""
    return f"docs/errors.md#{error.__name__.lower()}"


def unsupported(op: str, inputs: Iterable[Any], *, why: str, device: str = "tpu:0", do: str = "") -> UnsupportedOpError:
    """The error for an operator that cannot run on the device."""
    inputs = list(inputs)
    first = next((value for value in _tensors(inputs)), None)
    dtype = f" for {first.dtype}" if first is not None else ""
    return UnsupportedOpError(
        message(
            f"{op} has no lowering{dtype} on {device}",
            inputs=inputs,
            why=why,
            do=do or 'run this op on the CPU, or set torch_tpu.settings.fallback = "warn"',
            see=page(UnsupportedOpError),
        )
    )


def fallback_refused(op: str, inputs: Iterable[Any], *, why: str, device: str = "tpu:0") -> FallbackError:
    """The error for an operator that would run on the CPU where the fallback is not allowed."""
    return FallbackError(
        message(
            f"{op} would run on the CPU instead of {device}",
            inputs=inputs,
            why=why,
            do='set torch_tpu.settings.fallback = "warn", or move this part of the program to the CPU',
            see=page(FallbackError),
        )
    )


def compile_failed(
    name: str, reason: str, program: str = "", dtypes: Iterable[str] = (), target: str = ""
) -> CompileError:
    """The error for a program that XLA refused.

    Args:
        name: of the program; that of an operator says so: "aten_mm".
        dtypes: of what it takes and returns.
        target: what it was compiled for, such as "TPU v6e".
    """
    head = "\n".join(program.splitlines()[:12])
    operator = f"aten::{name.removeprefix('aten_')}" if name.startswith("aten_") else name
    kinds = f" ({', '.join(dtypes)})" if dtypes else ""
    said = reason.partition("Suspected Python Code Location")[0].strip()
    error = CompileError(
        message(
            f"XLA could not compile {operator}{kinds}" + (f" for {target}" if target else ""),
            why="\n".join(said.splitlines()[:8]),
            do="set torch_tpu.settings.dump_dir to keep the whole program, and report both",
            see=page(CompileError),
        )
        + (f"\n  program:\n{head}" if head else "")
    )
    error.exceeds_memory = "RESOURCE_EXHAUSTED" in reason
    return error


def platform_missing(platform: str, looked_for: str, do: str) -> PlatformError:
    """The error for a platform that was asked for and is not there."""
    return PlatformError(
        message(
            f"the platform {platform!r} was asked for (TORCH_TPU_PLATFORM) and is not there",
            why=looked_for,
            do=do,
            see=page(PlatformError),
        )
    )


def started_alone() -> PlatformError:
    """The error for a process group that is made after the device was used."""
    return PlatformError(
        message(
            "the process group cannot use tpu:0, because this process has started the device by itself",
            why="XLA joins the processes of a job when their clients start, and tensors cannot move to another client",
            do="call torch.distributed.init_process_group before anything that uses the device",
            see=page(PlatformError),
        )
    )


def forked(device: str = "tpu:0") -> ForkError:
    """The error for using the device in a forked child."""
    return ForkError(
        message(
            f"{device} cannot be used in a forked child process",
            why="the parent had started XLA before the fork, and its threads do not exist here",
            do='start processes by "spawn", for example torch.multiprocessing.set_start_method("spawn")',
            see=page(ForkError),
        )
    )


def shutting_down(op: str, inputs: Iterable[Any]) -> ExecutionError:
    """The error for an operator that needs a program, called when Python can import nothing any more."""
    return ExecutionError(
        message(
            f"{op} cannot be compiled while Python shuts down",
            inputs=inputs,
            why="a __del__ called it after the modules were taken down, and this process had no program for it",
            do="let go of the object earlier, or do its work in a function that atexit calls",
            see=page(ExecutionError),
        )
    )


def refuse_fork() -> None:
    """Called by the plug where the device is used in a forked child."""
    raise forked()


def _tensors(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            yield value
