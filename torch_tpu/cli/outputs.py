"""What commands have in common: files that they write at their end, and what they say where they cannot answer."""

from __future__ import annotations

from pathlib import Path

from torch_tpu import _frames
from torch_tpu.errors import TpuError


def check(*files: Path | None) -> None:
    """Refuses, before the work is done, what could not be written after it.

    Raises:
        ValueError: a file's directory is not there, or the file is a directory.
    """
    for file in filter(None, files):
        if file.is_dir() or not file.parent.is_dir():
            raise ValueError(f"{file} cannot be written: it is a directory, or its directory is not there")


def explain(error: Exception) -> str:
    """An error in words, with the user's line where it comes from the user's code.

    Raises:
        Exception: the error itself, where it comes from neither the question nor the user's code.
    """
    line = _frames.raised_at(error)
    if not line and not isinstance(error, (ValueError, OSError, ImportError, TpuError)):
        raise error
    if isinstance(error, FileNotFoundError) and not line:
        return f"{error.filename} is not there" if error.filename else str(error)
    kind = "" if isinstance(error, (ValueError, TpuError)) else f"{type(error).__name__}: "
    return f"{kind}{error}" + (f"\n  at {line}" if line else "")
