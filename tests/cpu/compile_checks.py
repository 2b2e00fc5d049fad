"""Comparing a compiled function with itself on the CPU, and counting its programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_tpu.stats import counters


class Counts(NamedTuple):
    """What one call needed; a program found in a cache is made as well."""

    made: int
    run: int
    in_between: int


def to_cpu(values: Any) -> Any:
    return pytree.tree_map(lambda x: x.detach().cpu() if isinstance(x, torch.Tensor) else x, values)


def _copies(args: tuple[Any, ...], device: str) -> list[Any]:
    def one(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        return arg.detach().clone().to(device).requires_grad_(arg.requires_grad)

    return [one(arg) for arg in args]


def check(function: Callable[..., Any], *args: Any, gradients: bool = False, **options: Any) -> tuple[Counts, Counts]:
    """Calls a function twice, compiled on the device and as it is on the CPU, and compares results, what becomes of
    the arguments, and gradients if asked. Nothing may fall back.

    Returns:
        What the first call and the second one needed, without that of the gradients.
    """
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tpu", **options)
    found = []
    for _ in range(2):
        host, device = _copies(args, "cpu"), _copies(args, "tpu")
        wanted = function(*host)
        counters.reset()
        given = compiled(*device)
        made = counters.compiles + counters.disk_hits + counters.memory_hits
        found.append(Counts(made, counters.executions, counters.calls_in_between))
        if gradients:
            for results in (wanted, given):
                sum(x.sum() for x in pytree.tree_leaves(results)).backward()
            for x, y in zip(host, device, strict=True):
                if isinstance(x, torch.Tensor) and x.requires_grad:
                    torch.testing.assert_close(y.grad.cpu(), x.grad)
        torch.testing.assert_close(to_cpu(given), to_cpu(wanted))
        torch.testing.assert_close(to_cpu(device), to_cpu(host))
        assert not counters.fallbacks
    return found[0], found[1]


def one_program(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    """As `check`; the function is one program, made at the first call."""
    first, second = check(function, *args, **options)
    assert first == (1, 1, 0) and second == (0, 1, 0)


def no_program(function: Callable[..., Any], *args: Any, **options: Any) -> None:
    """As `check`; the function computes nothing."""
    first, second = check(function, *args, **options)
    assert first == second == (0, 0, 0)
