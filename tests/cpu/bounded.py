"""Running what builds a program once for bounded sizes, with rubbish in the padding, and once for the sizes themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from torch_tpu import hlo
from torch_tpu.eager.program import Program
from torch_tpu.hlo import Value, dims, layout
from torch_tpu.runtime import platform

Build = Callable[..., Value | Sequence[Value]]
SYMBOLS = {name: sympy.Symbol(name, positive=True, integer=True) for name in ("b", "s", "t", "u")}
BOUNDS = {"b": 4, "s": 7, "t": 8, "u": 6}


def exact(build: Build, tensors: Sequence[torch.Tensor], extra: Sequence[int]) -> list[torch.Tensor]:
    with hlo.Function("exact") as function:
        arguments = [function.argument(tuple(t.shape), t.dtype) for t in tensors]
        results = _list(build(*arguments, *extra))
        program = Program("exact", function, results)
    return run(program, tensors)


def bounded(
    build: Build, tensors: Sequence[torch.Tensor], shapes: Sequence[Sequence[Any]], sizes: Mapping[str, int],
    extra: Sequence[Any],
) -> list[torch.Tensor]:  # fmt: skip
    """The results cut to their real sizes; shapes name the dimensions that vary."""
    inputs = [torch.tensor(size) for size in sizes.values()]
    with hlo.Function("bounded") as function:
        for name in sizes:
            dims.declare(function, SYMBOLS[name], function.argument((), torch.int64), BOUNDS[name], 1)
        arguments = []
        for tensor, names in zip(tensors, shapes, strict=True):
            shape = [dims.plain(SYMBOLS[n], BOUNDS[n]) if isinstance(n, str) else n for n in names]
            arguments.append(layout.retag(function.argument([dims.bound(n) for n in shape], tensor.dtype), shape))
            inputs.append(padded(tensor, [dims.bound(n) for n in shape]))
        given = [dims.dim(SYMBOLS[item]) if isinstance(item, str) else item for item in extra]
        results = [layout.compact(x, range(x.ndim)) for x in _list(build(*arguments, *given))]
        values = {SYMBOLS[name]: size for name, size in sizes.items()}
        cuts = [[int(dims.as_expr(size).subs(values)) for size in x.shape] for x in results]
        raw = [layout.retag(x, [dims.bound(size) for size in x.shape]) for x in results]
        program = Program("bounded", function, raw)
    found = run(program, inputs)
    return [one[tuple(slice(size) for size in cut)] for one, cut in zip(found, cuts, strict=True)]


def padded(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """A larger tensor that holds this one and, behind it, what would show in any result."""
    rubbish: Any = True
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        rubbish = float("nan")
    elif tensor.dtype is not torch.bool:
        rubbish = torch.iinfo(tensor.dtype).max // 3
    whole = torch.full(shape, rubbish, dtype=tensor.dtype)
    whole[tuple(slice(size) for size in tensor.shape)] = tensor
    return whole


def run(program: Program, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    client = platform.client()
    arrays = program.run([client.put(t) for t in tensors], None)
    return [client.get(a, v.dtype, copy=True) for a, v in zip(arrays, program.results, strict=True)]


def _list(results: Value | Sequence[Value]) -> list[Value]:
    return [results] if isinstance(results, Value) else list(results)


def check(
    build: Build, *shapes: Sequence[Any], sizes: Mapping[str, int], extra: Sequence[Any] = (),
    dtypes: Sequence[torch.dtype] | None = None, limit: int = 100,
) -> None:  # fmt: skip
    """Asserts that the bounded program gives what the exact one does, for random inputs of the given shapes."""
    generator = torch.Generator().manual_seed(sum(sizes.values()) + len(shapes))
    tensors = []
    for index, names in enumerate(shapes):
        shape = [sizes[n] if isinstance(n, str) else n for n in names]
        dtype = dtypes[index] if dtypes else torch.float32
        if dtype.is_floating_point:
            tensors.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            tensors.append(torch.randint(0, 2 if dtype is torch.bool else limit, shape, generator=generator).to(dtype))
    used = {n: sizes[n] for n in sizes}
    wanted = exact(build, tensors, [sizes[item] if isinstance(item, str) else item for item in extra])
    found = bounded(build, tensors, shapes, used, extra)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
