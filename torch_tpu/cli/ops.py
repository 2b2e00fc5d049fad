"""`torch-tpu ops`: is this operator supported, and by what?"""

from __future__ import annotations

import difflib
import fnmatch
from collections import Counter

from rich.console import Console
from rich.table import Table

import torch_tpu

console = Console(highlight=False, markup=False)


def run(pattern: str, dtype: str) -> int:
    """Prints how each matching overload is served; the exit status is 1 if none matches or a sample fails."""
    import torch

    torch_tpu._autoload()
    if dtype and not isinstance(getattr(torch, dtype, None), torch.dtype):
        console.print(f"torch has no dtype {dtype!r}")
        return 2
    from torch_tpu.eager.served import KINDS, overloads, served

    if not pattern:
        counts = Counter(served(op).kind for op in overloads())
        table = Table("served as", "overloads", "what that is")
        for kind, text in KINDS.items():
            table.add_row(kind, str(counts[kind]), text)
        console.print(table)
        return 0
    names = [str(op).removeprefix("aten.").removesuffix(".default") for op in overloads()]
    found = matching(pattern, names)
    if not found:
        near = difflib.get_close_matches(pattern.partition(".")[0], {name.partition(".")[0] for name in names}, 6)
        console.print(f"PyTorch has no operator {pattern!r}" + (f"; near: {', '.join(near)}" if near else ""))
        return 1
    table = Table("operator", "served as", "by", "where")
    from torch_tpu.ops import registry

    for name in found:
        how = served(registry.resolve(name))
        table.add_row(name, how.kind, how.by, how.where)
    console.print(table)
    return _samples(found, dtype) if dtype else 0


def matching(pattern: str, names: list[str]) -> list[str]:
    """The overloads of a packet ("add", in all its forms), one overload ("add.Tensor"), or a pattern as in ls."""
    pattern = pattern.removeprefix("aten::").removeprefix("torch.").removeprefix("aten.")
    if any(letter in pattern for letter in "*?["):
        return [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if pattern in names and "." in pattern:
        return [pattern]
    forms = (pattern, f"_{pattern}", f"native_{pattern}", f"_foreach_{pattern}")
    packets = {form + end for form in forms for end in ("", "_", "_backward", "_backward_data")}
    return [name for name in names if name.partition(".")[0] in packets]


def _samples(names: list[str], dtype: str) -> int:
    """Runs PyTorch's samples of the operators whose packets are named."""
    from torch_tpu.conformance import catalog, runner

    packets = {name.partition(".")[0] for name in names}
    infos = [info for info in catalog.operators() if catalog.packet(info) in packets]
    if not infos:
        console.print("there are no samples of it")
        return 0
    status = 0
    for info in infos:
        case = catalog.Case(catalog.full_name(info), dtype, "forward")
        result = runner.run_case(info, case, "tpu", limit=8)
        status |= result.status not in ("passed", "skipped")
        console.print(f"{case.op} {dtype}: {result.status}" + (f": {result.reason}" if result.reason else ""))
    return status
