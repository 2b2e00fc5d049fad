"""Writes the pages of docs/ that come from declarations in the code (settings.md, errors.md, ops.md, lint.md,
from-torch-xla.md), those from stored results (models.md, support-matrix.html), and the lines of README.md that sum the
support matrix up.

Without arguments it writes them; with --check it fails if one is not up to date.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
sys.path.insert(0, str(DOCS.parent))

from torch_tpu import errors, settings  # noqa: E402

README = DOCS.parent / "README.md"
_BEGIN, _END = "<!-- support -->", "<!-- /support -->"
_NOTE = "<!-- Written by tools/generate_docs.py; edit the declarations instead. -->\n"


def settings_page() -> str:
    """One row a setting."""
    rows = [
        "# Settings\n",
        _NOTE,
        "Assign `torch_tpu.settings.NAME = value`, use `with torch_tpu.settings.override(NAME=value):`, or set the",
        "environment variable before the device starts. Sizes may be written as 64MiB or 2GiB there.\n",
        "| name | default | environment variable | what it does |",
        "| --- | --- | --- | --- |",
    ]
    for setting in settings.SETTINGS.values():
        variables = [f"`{setting.variable}`"]
        for value, names in setting.switches.items():
            variables += [f"`{name}=1` ({value})" for name in names]
        choices = f" One of: {', '.join(f'`{choice}`' for choice in setting.choices)}." if setting.choices else ""
        rows.append(f"| `{setting.name}` | {_default(setting)} | {'<br>'.join(variables)} | {setting.help}{choices} |")
    return "\n".join(rows) + "\n"


def errors_page() -> str:
    """One section an exception, which is its docstring."""
    parts = ["# Errors\n", _NOTE]
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.TpuError):
            bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
            parts.append(f"## {error.__name__}\n\nA {bases}.\n\n{inspect.cleandoc(error.__doc__ or '')}\n")
    return "\n".join(parts)


def ops_page() -> str:
    """One section a family of lowerings, and PyTorch's decompositions that are refused."""
    from torch_tpu import ops
    from torch_tpu.ops import decomp, registry

    ops.load()
    families: dict[str, dict[str, list[str]]] = {}
    for name, rule in registry.LOWERINGS.items():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        families.setdefault(_family(rule), {}).setdefault(packet, []).append(overload)
    parts = [
        "# Operators\n",
        _NOTE,
        f"The {len(registry.LOWERINGS)} operators that have a lowering, by the file of `torch_tpu/ops/` that has it.",
        "In-place, `out=`, foreach and fused forms follow from these by the schema; views run nothing. Operators that",
        "are not here are traced through PyTorch's decomposition of them, or run on the CPU, counted: `torch-tpu ops NAME`",
        "says which. Overloads are in parentheses.\n",
    ]
    for family in sorted(families):
        rows = [
            f"`{packet}`"
            + (f" ({', '.join(overload or 'default' for overload in sorted(overloads))})" if any(overloads) else "")
            for packet, overloads in sorted(families[family].items())
        ]
        parts.append(f"## {family}\n\n{', '.join(rows)}.\n")
    parts.append("## Decompositions of PyTorch that are not used\n")
    parts += [f"- `{name.removeprefix('aten::')}`: {reason}" for name, reason in sorted(decomp.REFUSED.items())]
    return "\n".join(parts) + "\n"


def models_page() -> str:
    """What was found the last time that all models were run."""
    from torch_tpu.conformance.models import report

    return "\n".join(
        [
            "# Models\n",
            "<!-- Written by tools/generate_docs.py from torch_tpu/conformance/results/models.json. -->\n",
            "Tiny models of the architectures of Transformers and timm, built from their configuration classes without",
            "weights, and two models with their real ones. Each runs on the device and on PyTorch's CPU with the same",
            "weights and inputs: outputs, loss, every gradient, the weights after a step of AdamW, and the tokens that",
            "`generate` gives. All must agree in float32 within the tolerances of `conformance/models/judge.py`, and no",
            "operator may run on the CPU instead. An architecture that is in no list here has not been run yet.\n",
            "    torch-tpu conformance models --names llama,qwen* --modes strict,fused --html models.html",
            "    torch-tpu conformance models --output results.jsonl      # all; continued if ended",
            "    python tools/store_models.py results.jsonl && make docs   # keeps the results, and writes this page\n",
            report.as_markdown(report.load()),
        ]
    )


def lint_page() -> str:
    """How to use it, and one section a rule, which is its docstring."""
    from torch_tpu.linter.rules import RULES, SEVERITIES

    parts = ["# Lint\n", _NOTE, _LINT.strip() + "\n", "| severity | |", "| --- | --- |"]
    parts += [f"| {severity} | {meaning} |" for severity, meaning in SEVERITIES.items()]
    for heading, wanted in (("Rules for source files", False), ("Rules for programs", True)):
        parts.append(f"\n## {heading}\n")
        for id, rule in sorted(RULES.items()):
            if (id >= "TPU100") == wanted:
                parts.append(f"### {id}: {rule.title()}\n\nSeverity: {rule.severity}.\n\n{rule.text()}\n")
    return "\n".join(parts)


_LINT = """
What keeps a program from running well on a TPU, with lines, reasons and suggestions.

    torch-tpu lint train.py models/ notebook.ipynb        # source files and notebooks
    torch-tpu lint --program bench:example                # what the TPU compiler makes of a function
    torch-tpu lint train.py --select TPU01,TPU02 --json   # only some rules; for other programs to read

The exit status is 1 if something was found. `# noqa` or `# noqa: TPU001` at the end of a line keeps findings in it away.

**Source files** are read, not run, and torch is not imported. Values are followed through the file: what is a tensor and
where it is, what an import is called, what a function of the file returns, which code runs in every step and which only
where CUDA is. A rule that would have to guess stays silent.

**Programs.** `torch_tpu.lint(fn, *args, topology="v6e-1")` runs a function on a device that only compiles, and reads what
the real TPU compiler (the package `libtpu`; no TPU is needed) made of it: layouts, padding, its estimate of the cycles of
each operation. Every operation carries its Python line through the compiler; those of the backward pass carry the line of
the forward call. `--program module:function` names a function that returns `fn, *args`, or `fn, (args)`.
Nothing is computed, so what the function reads is zero; a line that goes on reading is taken to wait for a value, and the
function is stopped there. Parts of less than 1% of the program are left out (`least_share`).

```python
import torch, torch_tpu

print(torch_tpu.lint(model, torch.zeros(8, 256, 512, dtype=torch.bfloat16)))  # a module on any device, or a function
```

Of attention with 8 heads of 32, for example, the two products (TPU103) and the copies around them (TPU101) are named; with
2 heads of 128 TPU103 is gone, and the compiler expects fewer cycles for as many FLOPs (`tests/aot/test_lint_program.py`).
"""


def torch_xla_page() -> str:
    """The table of torch_xla's APIs."""
    from torch_tpu.linter import apis

    return "\n".join(
        [
            "# From PyTorch/XLA\n",
            "<!-- Written by tools/generate_docs.py from torch_tpu/linter/torch_xla.toml. -->\n",
            "What takes the place of each API of PyTorch/XLA (`torch_xla`). torch_tpu is a device of PyTorch itself: tensors",
            "are ordinary ones, operators start when they are called, and several processes are `torch.distributed`.",
            "`torch-tpu lint FILE` names the lines to change (TPU020, TPU021).\n",
            "Names are shortened as its documentation imports them: `xm` is `torch_xla.core.xla_model`, `xr`",
            "`torch_xla.runtime`, `xs` `torch_xla.distributed.spmd`, `xmp` `torch_xla.distributed.xla_multiprocessing`, `pl`",
            "`torch_xla.distributed.parallel_loader`, `met` and `xp` `torch_xla.debug.metrics` and `torch_xla.debug.profiler`.",
            "`a.b.*` is all below `a.b` that has no row of its own.\n",
            apis.as_markdown(),
        ]
    )


def support_page() -> str:
    """The support matrix, to filter in a browser."""
    from torch_tpu.conformance import matrix, support_page

    return support_page.as_html(matrix.load())


def readme_page() -> str:
    """README.md with the figures of the support matrix between its two marks."""
    from torch_tpu.conformance import matrix

    before, _, rest = README.read_text(encoding="utf-8").partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found, f"README.md has no {_BEGIN}...{_END}"
    return f"{before}{_BEGIN}\n{_support_summary(matrix.load())}{_END}{after}"


def _support_summary(found: Any) -> str:
    from torch_tpu.conformance.catalog import HERE, MODES
    from torch_tpu.conformance.matrix import COUNTED, PASSES

    num_reached = sum(bool(ops) for ops in found.lowerings.values())
    rates, compiled = [], []
    for mode in MODES:
        counts = found.counts((mode, HERE, "forward")) + found.counts((mode, HERE, "backward"))
        good, run = (sum(counts[letter] for letter in letters) for letters in (PASSES, COUNTED))
        others = f"{counts['F']} fall back, {counts['G']} declared gaps, {counts['W']} wrong"
        rates.append(f"{mode} {100 * good / run:.2f}% of {run} ({others})" if run else f"{mode} not run")
        compiled.append(f"{mode} {found.compiled_everywhere(mode)}")
    return (
        f"- Items (operator, dtype, forward or backward; 1 or 2 samples, which reach {num_reached} of the "
        f"{len(found.lowerings)} lowerings) that pass: {', '.join(rates)}.\n"
        f"  Of those that pass, compiled by libtpu for v5e, v5p, v6e and v7x: {', '.join(compiled)}."
    )


def _family(rule: Any) -> str:
    """The file that has a lowering."""
    from torch_tpu.eager.served import place

    return Path(place(rule)[1].partition(":")[0]).stem


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "ops.md": ops_page,
    "models.md": models_page,
    "lint.md": lint_page,
    "from-torch-xla.md": torch_xla_page,
    "support-matrix.html": support_page,
    "../README.md": readme_page,
}


def outdated() -> list[str]:
    """The pages that differ from what would be written."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]


def _default(setting: Any) -> str:
    if setting.unit == "bytes":
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if setting.default >= size and setting.default % size == 0:
                return f"{setting.default // size} {unit}"
    if setting.default in ("", ()):
        return "empty"
    return f"`{setting.default}`"


def main() -> int:
    if "--check" in sys.argv[1:]:
        found = outdated()
        print(f"not up to date: {', '.join(found)}; run make docs" if found else "docs: up to date")
        return 1 if found else 0
    for name, page in PAGES.items():
        (DOCS / name).resolve().write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
