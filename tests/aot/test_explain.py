"""Programs that the TPU compiler refuses, and what is said about it: real refusals of real programs."""

import re

import pytest
import torch

from torch_tpu import aot
from torch_tpu.aot import buffers, explain, hlo_text
from torch_tpu.aot.locate import Places
from torch_tpu.runtime import compile_only
from torch_tpu.runtime.chips import CHIPS
from torch_tpu.runtime.examine import examine
from torch_tpu.runtime.topology import Topology

GIB = 2**30


def refused(program):
    said = examine(program)
    assert said.error and said.memory is None and said.cost == {}
    module = hlo_text.parse(said.hlo) if said.hlo else None
    assignment = buffers.parse(said.assignment, said.live_ranges, module)
    return explain.explain(said.error, program.text, assignment), assignment, program


def captured(function, *inputs, topology="v6e"):
    return refused(aot.compile(function, inputs, topology).programs[-1])


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("generation", ["v5e", "v6e", "v7x", "v5p"])
def test_arguments_that_do_not_fit(generation):
    rows = CHIPS[generation].hbm // (1 << 16)
    failure, assignment, _ = captured(
        lambda x, y: x + y, empty(rows, 1 << 14), empty(rows, 1 << 14), topology=generation
    )
    assert failure.code == "E1000"
    needed = 3 * rows * (1 << 15)
    assert failure.needed == pytest.approx(needed, rel=0.001)
    assert failure.available == pytest.approx(CHIPS[generation].usable_hbm, abs=0.01 * GIB)
    assert failure.exceeds_by == failure.needed - failure.available
    assert "what it is given (weights, optimizer state, the batch) takes" in failure.do
    assert "several" in failure.do and "smaller batch" not in failure.do
    assert f"{failure.exceeds_by / GIB:.2f} GiB too much" in failure.headline
    groups = {group.kind: group for group in assignment.largest}
    assert groups["argument"].count == 2 and groups["argument"].shape == f"bf16[{rows},16384]"
    assert groups["output"].nbytes == needed // 3


def test_temporaries_that_do_not_fit():
    def attend(x):
        return (x @ x.t()).softmax(-1) @ x

    failure, assignment, program = captured(attend, empty(1 << 17, 64))
    assert failure.needed > 32 * GIB
    assert "smaller batch" in failure.do and "recompute" not in failure.do
    (group,) = (group for group in assignment.largest if group.kind == "temporary")
    assert group.shape == "bf16[131072,131072]" and group.nbytes == 32 * GIB
    place = Places(program.text).find(group.source)
    assert place.operator == "aten_mm"
    line = attend.__code__.co_firstlineno + 1
    assert re.fullmatch(rf".*test_explain\.py:{line} in attend", place.line)


def test_weights_alone_do_not_fit_whatever_the_batch():
    """Also where temporaries take more: no batch is small enough."""
    arguments = 46 * GIB
    error = "E1000: CompileTimeHbmOom: Used (110.00G) exceeds available HBM (31.25G)"
    failure = explain.explain(error, "", buffers.Assignment(arguments, 0, 2 * arguments, ()))
    assert "takes 46.00 GiB by itself" in failure.do and "several" in failure.do
    assert "batch or" not in failure.do and "recompute" not in failure.do
    assert "smaller batch" in explain.explain(error, "", buffers.Assignment(GIB, 0, 109 * GIB, ())).do
    given = explain.explain(error, "", buffers.Assignment(30 * GIB, 0, 20 * GIB, ())).do
    assert "what it is given takes most (weights, optimizer state, the batch)" in given


def test_activations_are_recomputed_where_there_is_a_backward_pass():
    def attend(x):
        return (x @ x.t()).softmax(-1) @ x

    def train(x):
        attend(x).sum().backward()

    x = empty(1 << 17, 64).requires_grad_()
    assert "recompute activations" in aot.compile(train, x).report.failure.do
    assert "recompute" not in aot.compile(attend, x).report.failure.do


def module(result: str, *operation: str) -> str:
    """A program of one operation, each of its lines a line of the text."""
    body = "\n".join(operation)
    return (
        f"module @refused {{\nfunc.func public @main(%a: {result}) -> {result} {{\n{body}\nreturn %0 : {result}\n}}\n}}"
    )


REFUSED = {
    "stablehlo.fft": (
        module(
            "tensor<8x8xcomplex<f64>>",
            "%0 = stablehlo.fft %a, type = FFT, length = [8] : (tensor<8x8xcomplex<f64>>) -> tensor<8x8xcomplex<f64>>",
        ),
        torch.complex128,
        "the TPU has no FFT for c128",
        "complex64",
    ),
    "stablehlo.custom_call": (
        module(
            "tensor<8x8xf32>", "%0 = stablehlo.custom_call @no_such_kernel(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>"
        ),
        torch.float32,
        "the TPU has no implementation of the custom call no_such_kernel",
        "",
    ),
    "stablehlo.all_reduce": (
        module(
            "tensor<8x8xf32>",
            '%0 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({',
            "^bb0(%x: tensor<f32>, %y: tensor<f32>):",
            "%s = stablehlo.add %x, %y : tensor<f32>",
            "stablehlo.return %s : tensor<f32>",
            "}) : (tensor<8x8xf32>) -> tensor<8x8xf32>",
        ),
        torch.float32,
        "a collective names device 3, and the program is compiled for 1",
        "",
    ),
}
"""By operation: a program, its dtype, what is said of it, and a word of what to do."""


@pytest.mark.parametrize("operation", REFUSED)
def test_an_operation_that_is_refused(operation):
    text, dtype, headline, advice = REFUSED[operation]
    client = compile_only.client(Topology.parse("v6e"))
    failure, _, _ = refused(client.compile(text, [((8, 8), dtype)]))
    assert (failure.operator, failure.headline) == (operation, headline)
    assert advice in (failure.do or "")
    assert failure.needed is None and failure.exceeds_by is None


def test_what_the_compiler_suspects_is_found_in_the_python_program():
    def transform(x):
        return x.cumsum(0)

    (program,) = aot.compile(transform, (empty(8, 8),)).programs
    number = next(n for n, line in enumerate(program.text.splitlines(), 1) if "func.func private" in line) + 1
    failure = explain.explain(f"INTERNAL: no\n\nSuspected Python Code Location:\n  -:{number}:3", program.text)
    assert "aten_cumsum" in failure.operator and "in transform" in failure.operator


def test_what_is_refused_in_the_backward_pass_is_said_to_be():
    model = torch.nn.Linear(1 << 16, 1 << 16, bias=False, dtype=torch.bfloat16, device="meta")
    compiled = aot.compile(
        model, (empty(8, 1 << 16),), "v6e", optimizer=torch.optim.SGD, loss=lambda output: output.square().sum()
    )
    (program,) = compiled.programs
    places = Places(program.text)
    lines = [str(places.find(f"-:{number}")) for number in range(1, program.text.count("\n") + 1)]
    assert any("aten_mm (backward, MmBackward0" in line for line in lines)


def test_other_reasons_are_the_compilers_first_line():
    text, *_ = REFUSED["stablehlo.custom_call"]
    failure = explain.explain("\nINTERNAL: something\nmore", text)
    assert failure.headline == "INTERNAL: something"
    assert failure.message == "INTERNAL: something\nmore"
    assert explain.explain("", text).headline == "no reason given"


def test_the_same_call_in_several_lines_is_that_of_the_first():
    def function(x, w):
        y = x @ w
        return y @ w

    (program,) = aot.compile(function, (empty(16, 16), empty(16, 16))).programs
    places = Places(program.text)
    number = next(n for n, line in enumerate(program.text.splitlines(), 1) if "dot_general" in line)
    place = places.find(f"-:{number}:7")
    assert (place.operation, place.operator, place.calls) == ("stablehlo.dot_general", "aten_mm", 2)
    assert str(place).startswith("aten_mm (") and str(place).endswith("in function, 2 calls)")
    assert places.find("model.py:3") is None and places.describe("model.py:3") == "model.py:3"
