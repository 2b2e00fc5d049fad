"""`torch-tpu` and `python -m torch_tpu.cli`: the subcommands. Their modules are imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="torch-tpu",
    help="PyTorch on TPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The compiled programs on disk.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")
conformance_app = typer.Typer(help="Compares a device with the CPU.", invoke_without_command=True)
app.add_typer(conformance_app, name="conformance")


@app.command()
def doctor() -> None:
    """Looks for the usual problems of an environment, and says what to do."""
    from torch_tpu.cli import doctor

    raise typer.Exit(doctor.run())


@app.command()
def demo(
    report: Annotated[Path, typer.Option(help="Where the HTML report goes.")] = Path("torch-tpu-demo.html"),
) -> None:
    """A language model answers on the device, is checked against the CPU, and is fine-tuned."""
    from torch_tpu.cli import demo

    raise typer.Exit(demo.run(report))


@app.command()
def ops(
    pattern: Annotated[
        str, typer.Argument(help='A name such as "add.Tensor" or "softmax", or a pattern: "*pool*".')
    ] = "",
    dtype: Annotated[str, typer.Option(help="Also run PyTorch's samples for this dtype on the device.")] = "",
) -> None:
    """Is this operator supported, and by what? Without a name: how many are served in which way."""
    from torch_tpu.cli import ops

    raise typer.Exit(ops.run(pattern, dtype))


@conformance_app.callback()
def conformance(
    context: typer.Context,
    ops: Annotated[str, typer.Option(help="Operators, separated by commas; patterns as in ls. Empty: all.")] = "",
    dtypes: Annotated[str, typer.Option(help="Dtypes, separated by commas.")] = "",
    phases: Annotated[str, typer.Option(help="forward, backward, inplace, out, errors, separated by commas.")] = "",
    modes: Annotated[str, typer.Option(help="strict, fused, compiled, separated by commas.")] = "",
    places: Annotated[
        str, typer.Option(help="here, or what only compiles, for TPUs that need not be there: v5e, v5p, v6e, v7x.")
    ] = "",
    matrix: Annotated[
        bool, typer.Option("--matrix", help="What the support matrix needs: all dtypes, modes and places; 2 samples.")
    ] = False,
    missing: Annotated[bool, typer.Option("--missing", help="Only what the stored matrix does not know yet.")] = False,
    device: Annotated[str, typer.Option(help="Any device of PyTorch that compares with its CPU.")] = "tpu",
    limit: Annotated[int | None, typer.Option(help="At most so many samples of each case; 0: all.")] = None,
    shard: Annotated[str, typer.Option(help="I/N: every N-th operator from the I-th, counted from 0.")] = "0/1",
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds a case may take before it counts as hanging.")] = 120.0,
    output: Annotated[
        Path | None, typer.Option(help="A file for results, one JSON line a case; resumed if there.")
    ] = None,
    gaps: Annotated[Path | None, typer.Option(help="The declared gaps. Default: this package's gaps.toml.")] = None,
    write_gaps: Annotated[
        Path | None, typer.Option(help="A file for the failures that are not declared, as entries of such a file.")
    ] = None,
) -> None:
    """Runs PyTorch's operator tests on a device; fails unless exactly the declared gaps fail."""
    if context.invoked_subcommand is not None:
        return
    from torch_tpu.cli import conformance

    chosen = conformance.Chosen(
        ops, dtypes, phases, modes, places, matrix, missing, device, limit, shard, workers, timeout
    )
    raise typer.Exit(conformance.run(chosen, output, gaps, write_gaps))


@conformance_app.command("matrix")
def conformance_matrix(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Files that `conformance --matrix --output` wrote, from all shards.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="The matrix. Default: this version's, in the package.")] = None,
    html: Annotated[Path | None, typer.Option(help="Where a page to filter it in a browser goes.")] = None,
) -> None:
    """Shows the support matrix, after putting results into it."""
    from torch_tpu.cli import conformance

    raise typer.Exit(conformance.show_matrix(results or [], file, html))


@conformance_app.command("models")
def conformance_models(
    names: Annotated[str, typer.Option(help='Models, separated by commas; patterns such as "qwen*". Empty: all.')] = "",
    libraries: Annotated[str, typer.Option(help="transformers, timm, weights.")] = "transformers,timm,weights",
    modes: Annotated[str, typer.Option(help="strict, fused, compiled, separated by commas.")] = "strict",
    device: Annotated[str, typer.Option(help="Any device of PyTorch that compares with its CPU.")] = "tpu",
    shard: Annotated[str, typer.Option(help="I/N: every N-th model from the I-th, counted from 0.")] = "0/1",
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds a model may take before it counts as hanging.")] = 300.0,
    output: Annotated[
        Path | None, typer.Option(help="A file for results, one JSON line a model and mode; resumed if there.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Where a table of all results goes.")] = None,
) -> None:
    """Runs tiny models of every architecture on a device: training step and generation as on the CPU."""
    from torch_tpu.cli import conformance

    raise typer.Exit(conformance.run_models(names, libraries, modes, device, shard, workers, timeout, output, html))


@cache_app.command("info")
def cache_info() -> None:
    """Where it is, how large, and whether it can be used."""
    from torch_tpu.cli import cache

    raise typer.Exit(cache.info())


@cache_app.command("list")
def cache_list(
    limit: Annotated[int, typer.Option(help="At most so many; 0: all.")] = 20,
) -> None:
    """The programs, those used last first."""
    from torch_tpu.cli import cache

    raise typer.Exit(cache.list_programs(limit))


@cache_app.command("verify")
def cache_verify() -> None:
    """Checks every program against its checksum and deletes those that are damaged."""
    from torch_tpu.cli import cache

    raise typer.Exit(cache.verify())


@cache_app.command("export")
def cache_export(file: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Writes all programs into one file, for another machine to start from."""
    from torch_tpu.cli import cache

    raise typer.Exit(cache.export_to(file))


@cache_app.command("import")
def cache_import(file: Annotated[Path, typer.Argument(help="A file that export has written.")]) -> None:
    """Takes over the programs of a file that fit this machine. They are machine code: trust who sent it."""
    from torch_tpu.cli import cache

    raise typer.Exit(cache.import_from(file))


@cache_app.command("clear")
def cache_clear() -> None:
    """Deletes all programs; they are compiled again when they are needed."""
    from torch_tpu.cli import cache

    raise typer.Exit(cache.clear())


def main() -> None:
    """The entry point of the package's script."""
    app()


if __name__ == "__main__":
    main()
