"""`torch-tpu ops`: is this operator supported, and by what?"""

from __future__ import annotations

import difflib
import fnmatch
from collections import Counter

from rich.console import Console
from rich.table import Column, Table

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
    table = Table(*(Column(text, overflow="fold") for text in ("operator", "served as", "by", "where")))
    from torch_tpu.ops import registry

    for name in found:
        how = served(registry.resolve(name))
        table.add_row(name, how.kind, how.by, how.where)
    console.print(table)
    packets = {name.partition(".")[0] for name in found}
    if dtype:
        return _samples(packets, dtype)
    _dtypes(packets)
    return 0


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


def _dtypes(packets: set[str]) -> None:
    """Prints what the support matrix says of the operators with these packets, in strict mode."""
    from torch_tpu.conformance import matrix
    from torch_tpu.conformance.catalog import HERE

    columns = [("strict", HERE, phase) for phase in ("forward", "backward")]
    found: dict[str, list[matrix.Row]] = {}
    for row in matrix.load().rows:
        if packets & _packets(row.op):
            found.setdefault(row.op, []).append(row)
    if not found:
        console.print("the support matrix has no samples of it by itself")
        return
    table = Table(
        Column("samples, as in the support matrix", overflow="fold"),
        *(f"{phase} passes for" for _, _, phase in columns),
        "else",
    )
    for op, rows in found.items():
        passes = [", ".join(row.dtype for row in rows if row.cell(column) in matrix.PASSES) for column in columns]
        others = [
            f"{row.dtype} {column[2]}: {matrix.STATUSES[row.cell(column)]}"
            for row in rows
            for column in columns
            if row.cell(column) in "FGW"
        ]
        table.add_row(op, *passes, "\n".join(others))
    console.print(table)


def _packets(op: str) -> set[str]:
    """What an operator of the matrix may be called among overloads: "max.binary" is of max, "fft.fft" of fft_fft."""
    plain = op.removeprefix("aten::").removeprefix("nn.functional.").removeprefix("special.polygamma.")
    return {plain.partition(".")[0], plain.replace(".", "_"), plain.partition(".")[2] or plain}


def _samples(packets: set[str], dtype: str) -> int:
    """Runs PyTorch's samples of the operators with these packets."""
    from torch_tpu.conformance import catalog, runner

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
