"""TPU topologies by the names people rent them under, such as "v6e-8": a generation and a number of chips."""

from __future__ import annotations

import math
from dataclasses import dataclass

FLAT = {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)}
"""Chips -> their grid, for generations whose chips are wired as a plane.

Source: Cloud TPU's pages on v5e and v6e configurations.
"""
SMALLEST_CUBE = {1: (1, 1, 1), 2: (1, 1, 2), 4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4)}
"""The same for generations whose chips are wired as a torus in three dimensions, below one cube of 64 chips."""


@dataclass(frozen=True)
class Generation:
    """What the names of a generation's topologies are made of."""

    compiler_name: str
    """How libtpu calls it."""
    dimensions: int
    """Of the grid of chips."""
    devices_per_chip: int
    most_chips: int


_ALSO_CALLED = {"tpu7x": "v7x", "v5litepod": "v5e"}
GENERATIONS: dict[str, Generation] = {
    "v5e": Generation("v5e", 2, 1, 256),
    "v5p": Generation("v5p", 3, 1, 8960),
    "v6e": Generation("v6e", 2, 1, 256),
    "v7x": Generation("tpu7x", 3, 2, 9216),
}


@dataclass(frozen=True)
class Topology:
    """Some chips of one generation.

    The number in the name counts chips, for every generation (Google's own names of v5p slices count cores, two a chip).
    """

    generation: str
    chips: int

    @staticmethod
    def parse(name: str | Topology) -> Topology:
        """From a name such as "v6e-8" or "v5p-16"; "v6e" alone is one chip. A topology is itself.

        Raises:
            TypeError: it is no name.
            ValueError: there is no such generation, or it does not come in that number of chips.
        """
        if isinstance(name, Topology):
            return name
        if not isinstance(name, str):
            raise TypeError(f"a topology is a generation and a number of chips, such as 'v6e-8', not {name!r}")
        generation, dash, count = name.strip().lower().partition("-")
        generation = _ALSO_CALLED.get(generation, generation)
        if generation not in GENERATIONS:
            raise ValueError(f"there is no TPU generation {generation!r}; there are: {', '.join(GENERATIONS)}")
        if dash and not count.isdecimal():
            raise ValueError(
                f"{name!r} is no topology: write a generation and a number of chips, such as {generation}-8"
            )
        made = Topology(generation, int(count or 1))
        made.grid()
        return made

    @property
    def name(self) -> str:
        return f"{self.generation}-{self.chips}"

    @property
    def devices(self) -> int:
        """Devices, each with its own memory: what a program runs on."""
        return self.chips * GENERATIONS[self.generation].devices_per_chip

    @property
    def pjrt_name(self) -> str:
        """What libtpu calls it, such as "v6e:2x4"."""
        return f"{GENERATIONS[self.generation].compiler_name}:{'x'.join(map(str, self.grid()))}"

    def grid(self) -> tuple[int, ...]:
        """How the chips are wired.

        Raises:
            ValueError: the generation does not come in that number of chips.
        """
        about = GENERATIONS[self.generation]
        if about.dimensions == 2:
            found: tuple[int, ...] | None = FLAT.get(self.chips)
            allowed = ", ".join(map(str, FLAT))
        else:
            found = SMALLEST_CUBE.get(self.chips) or _torus(self.chips)
            allowed = f"{', '.join(map(str, SMALLEST_CUBE))} and multiples of 64"
        if found is None or self.chips > about.most_chips:
            raise ValueError(
                f"{self.generation} does not come with {self.chips} chips; it comes with {allowed}, "
                f"up to {about.most_chips}"
            )
        return found


def _torus(chips: int) -> tuple[int, int, int] | None:
    """The most cubic grid of cubes of 4 x 4 x 4 chips."""
    if chips <= 0 or chips % 64:
        return None
    cubes = chips // 64
    grids = [
        (a, b, cubes // (a * b))
        for a in range(1, math.isqrt(cubes) + 1)
        if cubes % a == 0
        for b in range(a, cubes // a + 1)
        if (cubes // a) % b == 0 and cubes // (a * b) >= b
    ]
    a, b, c = min(grids, key=lambda grid: grid[2] - grid[0])
    return 4 * a, 4 * b, 4 * c
