"""What an hour of a chip costs: a dated table of list prices, and whatever the user sets instead.

From weakest to strongest: `prices.toml` beside this file, `settings.chip_prices` (TORCH_TPU_CHIP_PRICES), the argument. Each is
a list of "v6e=1.89" or of files like that one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch_tpu import settings
from torch_tpu.runtime.topology import GENERATIONS


@dataclass(frozen=True)
class Price:
    """Of one generation."""

    usd_per_chip_hour: float
    source: str
    """Where it is from, with its date and terms where they are known."""


def price_of(generation: str, given: Sequence[str] = ()) -> Price | None:
    """The price to reckon with, or None where nobody knows one.

    Args:
        given: prices such as "v6e=1.89", or files.

    Raises:
        ValueError: what was given is no price.
        OSError: a file cannot be read.
    """
    for source, items in (("given", given), ("TORCH_TPU_CHIP_PRICES", settings.chip_prices)):
        for item in reversed(items):
            found = _read(item, source).get(generation)
            if found is not None:
                return found
    return _table(Path(__file__).with_name("prices.toml")).get(generation)


def _read(item: str, source: str) -> dict[str, Price]:
    name, equals, number = item.partition("=")
    if not equals:
        if item.lower() in GENERATIONS:
            raise ValueError(f"{item!r} is no price: write USD for a chip-hour, such as {item.lower()}=1.89")
        if not Path(item).exists():
            raise FileNotFoundError(f"{item!r} is neither a price, such as v6e=1.89, nor a file that is there")
        return _table(Path(item))
    name = name.strip().lower()
    if name not in GENERATIONS:
        raise ValueError(f"{item!r} prices no TPU generation; there are: {', '.join(GENERATIONS)}")
    try:
        return {name: _price(float(number), source)}
    except ValueError:
        raise ValueError(f"{item!r} is no price: write USD for a chip-hour, such as {name}=1.89") from None


@cache
def _table(path: Path) -> dict[str, Price]:
    """The prices in a file."""
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        prices = dict(content["usd_per_chip_hour"])
        dates = content.get("as_of", "")  # of all, or of each
        found = {}
        for name, value in prices.items():
            if name.lower() not in GENERATIONS:
                raise ValueError(f"{name} is no TPU generation")
            date = dates.get(name, "") if isinstance(dates, dict) else str(dates)
            source = " ".join(filter(None, (str(content.get("terms", "")), date)))
            found[name.lower()] = _price(float(value), source or path.name)
        return found
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no table of prices ({error}): it needs lines such as v6e = 1.89 under [usd_per_chip_hour]"
        ) from error


def _price(usd: float, source: str) -> Price:
    if not 0 <= usd < float("inf"):
        raise ValueError(usd)
    return Price(usd, source)
