"""Modules that take long to import and are seldom needed. Imports the standard library only."""

from __future__ import annotations

import importlib
from typing import Any


class Lazily:
    """Stands for a module, which is imported when an attribute of it is first asked for."""

    def __init__(self, module: str):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self._module), name)
        setattr(self, name, found)  # asked here no more
        return found
