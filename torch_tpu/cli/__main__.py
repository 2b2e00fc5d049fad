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


@app.command()
def plan(
    model: Annotated[str, typer.Option(help="A Transformers config file, or module:function.")],
    topology: Annotated[str, typer.Option(help="TPUs, such as v6e-8; several separated by commas.")] = "v6e-1",
    mode: Annotated[str, typer.Option(help="train, prefill or decode.")] = "train",
    batch: Annotated[int, typer.Option(help="Sequences on each device.")] = 1,
    seq: Annotated[int, typer.Option(help="Tokens of each; in decoding, the length of the cache.")] = 2048,
    dtype: Annotated[str, typer.Option(help="Of the parameters of a config file's model.")] = "bfloat16",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Recompute activations of a config file's model in the backward pass.")
    ] = False,
    data_parallel: Annotated[
        bool, typer.Option("--data-parallel", help="Train on all devices together, by DistributedDataParallel.")
    ] = False,
    unrolled: Annotated[
        bool,
        typer.Option("--unrolled", help="Train with each layer by itself, not with layers that are alike as a loop."),
    ] = False,
    sweep: Annotated[
        list[str] | None, typer.Option(help="What to try: batch=1,2,4 or seq=2048,4096; repeatable.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="USD for a chip-hour: v6e=1.89, or a TOML file; repeatable.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Where the report goes as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Where it goes as HTML.")] = None,
) -> None:
    """Compiles a model for TPUs that need not be here: does it fit, how fast, at what cost? Needs no network."""
    from torch_tpu.cli import plan

    workload = {"model": model, "mode": mode, "batch": batch, "seq": seq, "dtype": dtype}
    workload |= {"recompute": recompute, "data_parallel": data_parallel, "unrolled": unrolled}
    raise typer.Exit(plan.run(workload, topology, sweep or [], price or [], json, html))


@app.command()
def numerics(
    model: Annotated[
        str, typer.Argument(help="module:function returning (model, inputs), a config.json, or a name such as llama.")
    ],
    device: Annotated[str, typer.Option(help="The device to compare with the CPU.")] = "tpu",
    precisions: Annotated[
        str, typer.Option(help="exact, medium, high, highest, separated by commas. Empty: all the device has.")
    ] = "",
    rtol: Annotated[float | None, typer.Option(help="Relative tolerance. Default: PyTorch's for the dtype.")] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute tolerance. Default: PyTorch's for the dtype.")] = None,
    backward: Annotated[bool, typer.Option("--backward", help="Compare gradients as well.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Run in training mode.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Make a config.json's model small first.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all layers, not only those out of tolerance.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Where all numbers go, as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Where a page with a chart and all numbers goes.")] = None,
) -> None:
    """Where do a model's numbers part from the CPU's? Layer by layer, at each matmul precision."""
    from torch_tpu.cli import numerics

    raise typer.Exit(numerics.run(model, device, precisions, rtol, atol, backward, train, tiny, everything, json, html))


@app.command()
def lint(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files, and directories of which all files are read.")
    ] = None,
    select: Annotated[str, typer.Option(help="Only these rules, separated by commas; TPU1 is all that begin so.")] = "",
    ignore: Annotated[str, typer.Option(help="Not these rules.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    program: Annotated[
        str,
        typer.Option(help="module:function, which returns a function and its arguments: they are compiled for a TPU."),
    ] = "",
    topology: Annotated[str, typer.Option(help="Which TPU that is.")] = "v6e-1",
) -> None:
    """Finds what keeps a program from running well on a TPU: in its source, and in what the TPU compiler makes of it."""
    from torch_tpu.cli import lint

    raise typer.Exit(lint.run(paths or [], select, ignore, json, program, topology))


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
