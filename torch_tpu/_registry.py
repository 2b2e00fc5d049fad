"""A dictionary that refuses: duplicates and unknown names raise, and say what exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Registry(Generic[K, V]):
    """Named things, each once.

    >>> modes = Registry("eager mode")
    >>> modes["strict"] = 1
    >>> modes["strict"] = 2
    Traceback (most recent call last):
    ValueError: eager mode 'strict' is registered already
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._items: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        if key in self._items:
            raise ValueError(f"{self.kind} {key!r} is registered already")
        self._items[key] = value

    def __getitem__(self, key: K) -> V:
        try:
            return self._items[key]
        except KeyError:
            known = ", ".join(sorted(map(str, self._items)))
            raise KeyError(f"unknown {self.kind} {key!r}; there are: {known}") from None

    def get(self, key: K) -> V | None:
        return self._items.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def items(self) -> Iterator[tuple[K, V]]:
        return iter(self._items.items())
