"""The error of one matrix product against float64: PyTorch's CPU, and the device at each precision.

    python benchmarks/matmul_error.py                # 1024 x 1024, normal numbers: the table of docs/numerics.md
    python benchmarks/matmul_error.py --size 4096

On the CPU platform the MXU's three settings are emulated. Each row has the dtype of the operands; results are float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import torch

from torch_tpu import numerics

SEED = 0


class Row(NamedTuple):
    """One way to compute it."""

    where: str
    precision: str
    dtype: torch.dtype
    errors: numerics.Errors


def rows(size: int) -> Iterator[Row]:
    """The errors of x @ y, with x and y of [size, size] normal numbers, the same in every row."""
    torch.manual_seed(SEED)
    x, y = torch.randn(size, size), torch.randn(size, size)
    exact = x.double() @ y.double()
    yield Row("PyTorch's CPU", "-", torch.float32, numerics.measure(x @ y, exact, wider=True))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        names = numerics.available() if dtype is not torch.bfloat16 else numerics.available()[-1:]
        for precision in names:
            with numerics.at(precision):
                found = torch.mm(x.to("tpu", dtype), y.to("tpu", dtype), out_dtype=torch.float32)
            yield Row(
                "device",
                "any" if dtype is torch.bfloat16 else precision,
                dtype,
                numerics.measure(found, exact, wider=True),
            )


def table(size: int) -> str:
    """The rows as Markdown."""
    lines = ["| | precision | operands | SNR | largest error | root mean square |", "|---" * 6 + "|"]
    for row in rows(size):
        rms = (row.errors.noise / row.errors.count) ** 0.5
        dtype = str(row.dtype).removeprefix("torch.")
        numbers = f"{row.errors.snr_db:.0f} dB | {row.errors.max_abs:.1e} | {rms:.1e}"
        lines.append(f"| {row.where} | {row.precision} | {dtype} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024)
    print(table(parser.parse_args().size))


if __name__ == "__main__":
    main()
