"""The text of public errors: what failed, with which inputs, why, what to do, where to read more."""

from __future__ import annotations

import inspect

import pytest
import torch

from torch_tpu import errors


def test_unsupported():
    inputs = [torch.zeros(8, 8, dtype=torch.complex64, device="meta"), [torch.zeros(8, device="meta")], 2, None]
    assert str(errors.unsupported("aten::ormqr", inputs, why="a declared gap")) == (
        "aten::ormqr has no lowering for torch.complex64 on tpu:0\n"
        "  inputs: Tensor[8, 8] complex64, [Tensor[8] float32], 2, None\n"
        "  why:    a declared gap\n"
        '  do:     run this op on the CPU, or set torch_tpu.settings.fallback = "warn"\n'
        "  see:    docs/errors.md#unsupportedoperror"
    )


def test_fallback_refused():
    assert str(errors.fallback_refused("aten::frobnicate", [torch.zeros(2)], why="it has no lowering")) == (
        "aten::frobnicate would run on the CPU instead of tpu:0\n"
        "  inputs: Tensor[2] float32 on cpu\n"
        "  why:    it has no lowering\n"
        '  do:     set torch_tpu.settings.fallback = "warn", or move this part of the program to the CPU\n'
        "  see:    docs/errors.md#fallbackerror"
    )


def test_compile_failed():
    assert str(errors.compile_failed("add", "first\nsecond", "module @add {\n}")) == (
        "XLA could not compile add\n"
        "  why:    first\n"
        "          second\n"
        "  do:     set torch_tpu.settings.dump_dir to keep the whole program, and report both\n"
        "  see:    docs/errors.md#compileerror\n"
        "  program:\n"
        "module @add {\n"
        "}"
    )


def test_a_refused_program_is_told_by_operator_dtypes_and_target():
    reason = "no\nSuspected Python Code Location:\n -:4"
    said = str(errors.compile_failed("aten_mm", reason, "", ["int64", "bool"], "TPU v6e"))
    assert said.startswith("XLA could not compile aten::mm (int64, bool) for TPU v6e\n  why:    no\n  do:")


def test_platform_missing():
    assert str(errors.platform_missing("tpu", "looked for /dev/accel0", "run on a TPU machine")) == (
        "the platform 'tpu' was asked for (TORCH_TPU_PLATFORM) and is not there\n"
        "  why:    looked for /dev/accel0\n"
        "  do:     run on a TPU machine\n"
        "  see:    docs/errors.md#platformerror"
    )


def test_forked():
    assert str(errors.forked()) == (
        "tpu:0 cannot be used in a forked child process\n"
        "  why:    the parent had started XLA before the fork, and its threads do not exist here\n"
        '  do:     start processes by "spawn", for example torch.multiprocessing.set_start_method("spawn")\n'
        "  see:    docs/errors.md#forkerror"
    )


def test_without_inputs_there_is_no_such_line():
    assert errors.message("what", why="why") == "what\n  why:    why"
    assert errors.message("what", inputs=[]) == "what\n  inputs: none"


def test_long_arguments_are_shortened():
    assert errors.describe("x" * 100) == "'" + "x" * 56 + "..."
    assert errors.describe(list(range(9))) == "[0, 1, 2, 3, ...]"


ERRORS = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.TpuError)]


@pytest.mark.parametrize("error", ERRORS)
def test_the_docstring_is_a_page(error):
    assert issubclass(error, RuntimeError)
    text = inspect.cleandoc(error.__doc__ or "")
    assert text.split("\n\n")[0].replace("\n", " ").endswith(".")
    assert error is errors.TpuError or "What to do:" in text
