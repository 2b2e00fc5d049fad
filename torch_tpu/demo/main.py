"""The demo from beginning to end: load, answer, compare with the CPU, fine-tune, say what ran where."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import torch_tpu
from torch_tpu.demo import chat, finetune, model, report
from torch_tpu.demo.chat import Answer
from torch_tpu.demo.finetune import Training
from torch_tpu.demo.modes import MODES, Mode
from torch_tpu.demo.report import Row

console = Console(highlight=False)


def run(report_path: Path) -> int:
    """Runs everything and writes the report; the exit status is 0 if all checks hold."""
    start = time.perf_counter()
    torch_tpu.reset_stats()
    model.quiet()
    console.print(f"[bold]torch_tpu {torch_tpu.__version__}[/], torch {torch.__version__}, on {_device()}\n")
    tokenizer, language_model = model.load("tpu")
    console.print(f"[dim]{model.NAME} loaded in {time.perf_counter() - start:.1f} s[/]")
    answers = [_ask(tokenizer, language_model, question) for question in chat.QUESTIONS]
    by_mode = _in_each_mode(tokenizer, language_model, answers[0])
    equal = _compare(tokenizer, language_model, answers) and all(
        answer.tokens == answers[0].tokens for answer in by_mode.values()
    )
    training = _train(tokenizer, language_model)
    torch.tpu.synchronize()
    counts = torch_tpu.stats()
    learned = training.last < training.first
    sections = [
        ("What ran where", _where(counts)),
        ("The three modes side by side", _modes(by_mode, training)),
        ("Checks", _checks(equal, learned, counts)),
        ("Time", [("all", f"{time.perf_counter() - start:.0f} s")]),
    ]
    for heading, rows in sections:
        _show(heading, rows)
    _say_about_the_cache(counts)
    title = f"{model.NAME} on {_device()}"
    texts = [(answer.question, answer.text) for answer in answers]
    report_path.write_text(report.page(title, texts, training.losses, sections), encoding="utf-8")
    console.print(f"Report: {report_path.resolve()}", soft_wrap=True)
    return 0 if equal and learned and not counts["fallbacks"] else 1


def _device() -> str:
    return f"tpu:0 ({torch.tpu.get_device_name()})"


def _ask(tokenizer: Any, language_model: Any, question: str) -> Answer:
    console.print(f"\n[bold]{question}[/]")
    answer = chat.answer(tokenizer, language_model, question)
    console.print(f"[dim]{len(answer.tokens)} tokens in {answer.seconds:.1f} s[/]")
    return answer


def _in_each_mode(tokenizer: Any, language_model: Any, first: Answer) -> dict[Mode, Answer]:
    """The first question again, twice in every mode: the first time compiles."""
    console.print("\n[bold]The first question in every mode[/]")
    found: dict[Mode, Answer] = {}
    for mode in MODES:
        for _ in range(2):
            found[mode] = chat.answer(tokenizer, language_model, first.question, mode, silent=True)
        equal = chat.num_equal(found[mode].tokens, first.tokens)
        console.print(f"{mode}: {equal} of {len(first.tokens)} tokens are equal")
    return found


def _compare(tokenizer: Any, language_model: Any, answers: list[Answer]) -> bool:
    """Whether the CPU gives the same tokens, one by one."""
    console.print("\n[bold]The same questions on the CPU device of PyTorch[/]")
    reference = chat.on_the_cpu(language_model)
    same = True
    for answer in answers:
        expected = chat.answer(tokenizer, reference, answer.question, silent=True)
        equal = chat.num_equal(answer.tokens, expected.tokens)
        same &= answer.tokens == expected.tokens
        color = "green" if answer.tokens == expected.tokens else "red"
        console.print(f"[{color}]{equal} of {len(expected.tokens)} tokens are equal[/]")
    return same


def _train(tokenizer: Any, language_model: Any) -> Training:
    console.print("\n[bold]Fine-tuning with torch.optim.AdamW on the topics of pydoc[/]")
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("the first steps compile", total=finetune.NUM_STEPS)

        def advance(step: int, loss: float, mode: Mode) -> None:
            progress.update(task, advance=1, description=f"{mode}: loss {loss:.3f}")

        training = finetune.train(tokenizer, language_model, advance)
    console.print(f"loss {training.first:.3f} in the first pass, {training.last:.3f} in the last\n")
    return training


def _where(counts: Mapping[str, Any]) -> list[Row]:
    made = counts["compiles"] + counts["disk_hits"]
    fallbacks = ", ".join(f"{op} ({count})" for op, count in counts["fallbacks"].items())
    return [
        ("platform", f"{torch.tpu.get_device_properties().platform}: {torch.tpu.get_device_name()}"),
        ("programs compiled", f"{counts['compiles']} in {counts['compile_seconds']:.1f} s"),
        ("programs loaded from disk", str(counts["disk_hits"])),
        ("programs run", str(counts["executions"])),
        ("of these from the cache in memory", str(counts["executions"] - made)),
        ("copies to the device", _copies(counts, "host_to_device")),
        ("copies to the host, weights for the comparison too", _copies(counts, "device_to_host")),
        ("CPU fallbacks", fallbacks or "none"),
        ("peak memory of tensors", f"{torch.tpu.max_memory_allocated() / 2**20:.0f} MiB"),
    ]


def _copies(counts: Mapping[str, Any], name: str) -> str:
    return f"{counts[name]} ({counts[f'{name}_bytes'] / 2**20:.1f} MiB)"


def _modes(answers: Mapping[Mode, Answer], training: Training) -> list[Row]:
    rows = []
    for mode in MODES:
        rows.append((f"{mode}: answering, tokens per second", f"{answers[mode].tokens_per_second:.1f}"))
        rows.append((f"{mode}: training, tokens per second", f"{training.tokens_per_second(mode):.0f}"))
    return rows


def _checks(equal: bool, learned: bool, counts: Mapping[str, Any]) -> list[Row]:
    return [
        ("tokens equal to those of the CPU", "yes" if equal else "NO"),
        ("the loss falls", "yes" if learned else "NO"),
        ("nothing ran on the CPU instead", "NO" if counts["fallbacks"] else "yes"),
    ]


def _show(heading: str, rows: list[Row]) -> None:
    table = Table(title=heading, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _say_about_the_cache(counts: Mapping[str, Any]) -> None:
    if counts["compiles"]:
        console.print("The programs are on disk now: [bold]run it again, and nothing is compiled.[/]")
    else:
        console.print(f"[bold]Nothing was compiled:[/] all {counts['disk_hits']} programs came from the disk cache.")
