"""Which line of the user's program something comes from. Imports the standard library only."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from types import CodeType

_FRAME = re.compile(r'File "(.*)", line (\d+), in (\S+)')
_TORCH = importlib.util.find_spec("torch")
_LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (__file__, _TORCH and _TORCH.origin) if file)
_STANDARD = os.path.dirname(os.__file__) + os.sep
_PACKAGES = tuple(os.path.join(_STANDARD, name) + os.sep for name in ("site-packages", "dist-packages"))
_MADE_BY_DATACLASSES = ("<string>", "__init__")

entrances: set[CodeType] = set()
"""Functions of this package that make up a program themselves, so that what calls them is not its code."""


def is_users(file: str) -> bool:
    """Whether code is neither torch's nor torch_tpu's nor Python's own."""
    if file.startswith((*_LIBRARIES, "<frozen", "<eval_with_key>")):
        return False
    return not file.startswith(_STANDARD) or file.startswith(_PACKAGES)


def caller() -> str:
    """The user's line that led to this call: the innermost one outside torch and torch_tpu; nothing behind an entrance."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_code in entrances:
            return ""
        if is_users(name):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a thread without Python code of the user, such as autograd's"


def users_frame(trace: str) -> tuple[str, int, str] | None:
    """File, line and function of the user's innermost frame in the text of a traceback."""
    found = [
        (file, int(line), function)
        for file, line, function in _FRAME.findall(trace)
        if is_users(file) and (file, function) != _MADE_BY_DATACLASSES
    ]
    return found[-1] if found else None


def innermost(trace: str) -> str:
    """The user's innermost line in the text of a traceback; nothing if there is none."""
    found = users_frame(trace)
    return "" if found is None else f"{found[0]}:{found[1]} in {found[2]}"


def raised_at(error: BaseException) -> str:
    """The user's innermost line that an error came through; nothing if there is none."""
    return innermost("".join(traceback.format_tb(error.__traceback__)))
