"""Doing something when a module has been imported, which PyTorch has no hook for.

`torch._dynamo` takes more than a second to import and PyTorch does it late, at the first `torch.compile`; what the
device tells it must wait for that.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Loader(importlib.abc.Loader):
    """A module's own loader, and then an action."""

    def __init__(self, loader: Any, action: Callable[[], None]):
        self._loader, self._action = loader, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, once, as the finders behind it do."""

    def __init__(self, name: str, action: Callable[[], None]):
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._action)
        return spec


def after(name: str, action: Callable[[], None]) -> None:
    """Calls a function once a module is imported: now, if it is already."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))
