"""Functions that a command line names: "module:function"."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def function(name: str) -> Callable[..., Any]:
    """The function of that name; its module may lie in the current directory.

    Raises:
        ValueError: the name is not of that form, or the module has no such function.
        ImportError: the module cannot be imported.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ValueError(f"{name!r} names no function; write module:function, such as train:example")
    if "" not in sys.path:  # a command's path does not begin with where it is called
        sys.path.insert(0, "")
    found = getattr(importlib.import_module(module), attribute, None)
    if not callable(found):
        raise ValueError(f"the module {module} has no function {attribute!r}")
    made: Callable[..., Any] = found
    return made
