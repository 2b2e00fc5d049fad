"""The support matrix: modes and places of cases, how results become rows, what is stored, and the page."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torch_tpu
from torch_tpu import ops
from torch_tpu.conformance import abroad, catalog, joined, matrix, modes, runner, support_page
from torch_tpu.conformance.catalog import Case
from torch_tpu.conformance.gaps import Gap, Gaps
from torch_tpu.conformance.matrix import Matrix, Row
from torch_tpu.conformance.runner import Result
from torch_tpu.ops import registry

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def run(op: str, mode: str = "strict", place: str = catalog.HERE, dtype: str = "float32", phase: str = "forward"):
    with torch_tpu.settings.override(fallback="count"):
        return runner.run_case(catalog.by_name()[op], Case(op, dtype, phase, mode, place), "tpu", limit=1)


# ------------------------------------------------------------------------------------------------- modes and places


@pytest.mark.parametrize("phase", catalog.MATRIX_PHASES)
@pytest.mark.parametrize("mode", catalog.MODES)
def test_a_case_passes_in_all_modes_and_says_by_what(mode, phase):
    result = run("nn.functional.gelu", mode, phase=phase)
    assert (result.status, result.by) == ("passed", "lowering")
    assert "aten::gelu" in result.lowerings
    assert ("aten::gelu_backward" in result.lowerings) == (phase == "backward")


def test_a_decomposition_is_told_apart(monkeypatch):
    from torch_tpu.ops import schema

    find = schema.lowering_of
    monkeypatch.setattr(schema, "lowering_of", lambda op: None if "addcmul" in str(op) else find(op))
    result = run("addcmul")
    assert (result.status, result.by) == ("passed", "decomposition")


def test_compiled_cases_are_graphs():
    with modes.entered("compiled") as seen:
        compiled = modes.operator(catalog.by_name()["add"], "compiled")
        compiled(torch.ones(3, device="tpu"), 1)
    assert seen.num_graphs == 1 and not compiled.breaks
    with modes.entered("compiled") as seen:  # the database seeds the generator first, which is left out here
        modes.operator(catalog.by_name()["nn.functional.dropout"], "compiled")(torch.ones(3, device="tpu"), 0.5)
    assert seen.num_graphs == 1


def test_what_dynamo_makes_no_graph_of_is_not_judged():
    result = run("nn.functional.ctc_loss", "compiled")
    assert (result.status, result.reason) == ("skipped", modes.NO_GRAPH)


@pytest.mark.parametrize("mode", catalog.MODES)
def test_a_case_is_compiled_for_a_place(mode):
    for place in ("v5e", "v7x"):
        assert run("nn.functional.gelu", mode, place=place, phase="backward").status == "passed"
        assert run("mm", mode, place=place, dtype="int64").status == "passed"
    for op in ("nonzero", "to_sparse"):  # whose sizes nobody knows
        found = run(op, mode, place="v6e")
        assert found.status == "passed" or (found.status, mode) == ("skipped", "compiled")


@pytest.mark.parametrize("mode", catalog.MODES)
def test_what_is_compiled_for_a_place_is_what_a_mode_runs(mode):
    """One program an operator in strict mode, one in all where they are fused."""
    case = Case("nn.functional.gelu", "float32", "backward", mode)
    found = abroad._capture(catalog.by_name()[case.op], case, limit=1)
    assert found.num_samples == 1 and len(found.programs) == {"strict": 2, "fused": 1, "compiled": 2}[mode]
    assert (found.seen.num_graphs > 0) == (mode == "compiled")


def test_a_refused_program_is_told_by_operator_dtype_and_generation(monkeypatch):
    from torch_tpu.ops import fft

    monkeypatch.setattr(fft, "_fft", lambda platform, *args: torch_tpu.hlo.fft(*args))
    result = run("fft.fft", place="v6e", dtype="complex128")
    assert result.status == "failed"
    assert "XLA could not compile aten::_fft_c2c (complex128) for TPU v6e" in result.reason
    assert "Traceback" not in result.reason


def test_what_the_compiler_refuses_is_told_of_its_own_case_only(monkeypatch):
    """Though the programs of the cases that follow are compiled with it."""
    compiled = []

    def build(client, planned):
        compiled.append(planned.text)
        if "divide" in planned.text:
            raise torch_tpu.errors.CompileError("XLA could not compile it")

    monkeypatch.setattr(torch_tpu.runtime.compile_only.CompileOnlyClient, "build", build)
    monkeypatch.setattr(abroad, "_compiled", set())
    for op, status in (("sub", "passed"), ("true_divide", "failed")):
        info, case = catalog.by_name()[op], Case(op, "float32", "forward", place="v5e")
        others = [case, replace(case, phase="backward"), replace(case, mode="fused")]
        assert runner.run_case(info, case, "tpu", 1, others).status == status
    case = Case("sub", "float32", "backward", place="v5e")
    compiled.clear()
    assert runner.run_case(catalog.by_name()["sub"], case, "tpu", 1).status == "passed" and not compiled


def test_programs_that_the_stored_matrix_knows_to_compile_are_not_compiled_again(monkeypatch):
    compiled = []

    def build(client, planned):
        compiled.append(planned.text)

    monkeypatch.setattr(torch_tpu.runtime.compile_only.CompileOnlyClient, "build", build)
    monkeypatch.setattr(abroad, "_compiled", set())
    info, case = catalog.by_name()["sub"], Case("sub", "float32", "forward", "fused", "v5e")
    strict = [Result(replace(case, mode="strict", place=place), "passed", 1) for place in ("v5e", "v5p")]
    stored = matrix.merge(Matrix(), [*strict, Result(replace(case, place="v6e"), "failed", 1)], Gaps(), [])
    known = matrix.passing(stored, case)
    assert known == [replace(case, mode="strict")]
    assert runner.run_case(info, case, "tpu", 1, [case], known).status == "passed" and not compiled
    for other in (replace(case, place="v7x"), replace(case, place="v5p", dtype="float16")):
        assert not matrix.passing(stored, other)
    assert runner.run_case(info, replace(case, phase="backward"), "tpu", 1, [], known).status == "passed" and compiled


def test_cases_follow_each_other_by_operator_dtype_and_phase():
    found = catalog.cases(["add"], ["float32"], catalog.PHASES, (0, 1), catalog.MODES, catalog.PLACES)
    assert len(found) == 2 * len(catalog.MODES) * len(catalog.PLACES) + 3  # inplace, out, errors: strict and here
    assert [(case.mode, case.place) for case in found[:6]] == [
        ("strict", "here"), ("strict", "v5e"), ("strict", "v5p"), ("strict", "v6e"), ("strict", "v7x"), ("fused", "here"),
    ]  # fmt: skip
    assert all(Case.from_json(case.to_json()) == case for case in found)
    for wrong in ({"modes": ["loose"]}, {"places": ["v9"]}):
        with pytest.raises(ValueError, match="there is no"):
            catalog.cases(["add"], ["float32"], ["forward"], (0, 1), **wrong)


def test_gaps_are_of_a_place():
    here, tpu, both = (Gap("add", "*", "*", "because", place=place) for place in ("here", "tpu", "*"))
    for case, covering in (
        (Case("add", "bool", "out"), [here, both]),
        (Case("add", "bool", "out", place="v5p"), [tpu, both]),
    ):
        assert [gap for gap in (here, tpu, both) if gap.covers(case)] == covering


def test_gaps_are_of_a_mode():
    gap = Gap("add", "*", "forward", "because", mode="compiled")
    assert gap.covers(Case("add", "bool", "forward", "compiled"))
    assert not gap.covers(Case("add", "bool", "forward")) and not gap.covers(
        Case("add", "bool", "forward", place="v5e")
    )
    assert str(gap) == 'op = "add", dtype = "*", phase = "forward", mode = "compiled"'


@pytest.mark.parametrize(("number", "right"), [(1.5, True), (2.5, True), (2.75, False), (torch.inf, False)])
def test_an_ill_conditioned_result_may_be_as_far_from_the_exact_one_as_the_cpus(number, right):
    found, expected, exact = (torch.tensor([value]) for value in (number, 1.5, 2.0))
    assert runner.as_near([found], [expected], [exact.double()]) == right
    assert not runner.as_near([found, torch.tensor(1)], [expected, torch.tensor(2)], [exact.double(), torch.tensor(2)])


def test_samples_are_taken_evenly():
    assert runner._evenly(range(10), 2) == [2, 7]
    assert runner._evenly(range(2), 5) == [0, 1]
    assert runner._evenly([], 3) == []


def test_one_operator_is_the_same_program_in_strict_and_fused_mode():
    def bodies(op, mode):
        captured = abroad._capture(catalog.by_name()[op], Case(op, "float32", "forward", mode), limit=1)
        return {joined.body(program.text) for program in captured.programs}

    for op in ("asinh", "frexp"):  # with one result, and with two
        assert bodies(op, "strict") == bodies(op, "fused") == bodies(op, "compiled")
    assert bodies("asinh", "strict") != bodies("acosh", "strict")


@pytest.mark.parametrize("changed", [("%arg0, %arg1", "%arg1, %arg0"), ("return %1#0, %1#1", "return %1#1, %1#0")])
def test_a_main_function_that_does_more_than_call_is_another_program(changed):
    kind = "(tensor<f32>, tensor<f32>)"
    text = f"""module @m {{
func.func public @main(%arg0: tensor<f32>, %arg1: tensor<f32>) -> {kind} {{
%1:2 = func.call @f0(%arg0, %arg1) : {kind} -> {kind}
return %1#0, %1#1 : tensor<f32>, tensor<f32>
}}
func.func private @f0(%arg0: tensor<f32>, %arg1: tensor<f32>) -> {kind} {{
return %arg0, %arg1 : tensor<f32>, tensor<f32>
}}
}}
"""
    alone = text.partition("private @f0")[2]
    assert joined.body(text) == "func.func public @main" + alone
    other = text.replace(*changed)
    assert other != text and joined.body(other) == other.partition("\n")[2]


def test_programs_are_joined():
    one = "module @a {\nfunc.func public @main(%arg0: tensor<2xcomplex<f32>> {tf.aliasing_output = 0 : i32}) -> (tensor<2xcomplex<f32>>) {\nreturn %arg0 : tensor<2xcomplex<f32>>\n}\n}\n"
    two = "module @b {\nfunc.func public @main() -> (tensor<f32>, tensor<f32>) {\n%1 = stablehlo.constant dense<1.0> : tensor<f32>\nreturn %1, %1 : tensor<f32>, tensor<f32>\n}\n}\n"
    from torch_tpu.runtime import mlir

    text = joined.join([one, two])
    mlir.parse(text)
    assert "@main(%a0_0: tensor<2xcomplex<f32>>) -> (tensor<2xcomplex<f32>>, tensor<f32>, tensor<f32>)" in text
    with pytest.raises(ValueError, match="not a module whose main function comes first"):
        joined.join([text])
    called = one.replace(
        "return", "%1 = func.call @main_2(%arg0) : (tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>>\nreturn", 1
    )
    other = "func.func private @main_2(%arg0: tensor<2xcomplex<f32>>) -> (tensor<2xcomplex<f32>>) {\nreturn %arg0 : tensor<2xcomplex<f32>>\n}\n}\n"
    parts = joined.join([called.removesuffix("}\n") + other] * 2)
    mlir.parse(parts)
    assert parts.count("call @part_1_main_2(") == 1 and parts.count("func.func public") == 1


# ------------------------------------------------------------------------------------------------------------- data


def row(
    op: str, dtype: str, letter: str, cells: Mapping[str, str] | None = None, reasons: Mapping[str, str] | None = None
) -> Row:
    """A row of the same letter everywhere but in some columns, by their names; the last word of one may stand alone."""
    names = map(matrix.name_of, matrix.COLUMNS)
    letters = [next((its for end, its in (cells or {}).items() if name.endswith(end)), letter) for name in names]
    return Row(op, dtype, "".join(letters), reasons or {})


def result(status: str, mode: str = "strict", place: str = "here", phase: str = "forward", **more) -> Result:
    return Result(Case("add", "float32", phase, mode, place), status, 1, **more)


def test_results_become_cells(tmp_path):
    gaps = Gaps([Gap("add", "*", "backward", "a known one")])
    results = [
        result("passed", by="lowering", lowerings=("aten::add.Tensor",)),
        result("passed", "fused", by="decomposition"),
        result("fallback", "compiled", reason="aten::add"),
        result("failed", phase="backward", reason="not close"),
        result("crashed", place="v5e", reason="the process ended with -11"),
        result("skipped", "fused", place="v5p", reason="it needs values"),
    ]
    made = matrix.merge(Matrix(), results, gaps, ["aten::add.Tensor", "aten::frob"])
    known = {"strict forward": "P", "strict backward": "G", "strict v5e forward": "W"}
    known |= {"fused forward": "D", "fused v5p forward": "-", "compiled forward": "F"}
    assert made.rows[0].cells == row("add", "float32", ".", known).cells
    reasons = made.rows[0].reasons
    assert reasons["strict backward"] == "a known one" and reasons["strict v5e forward"].startswith("crashed: ")
    assert made.lowerings == {"aten::add.Tensor": ("add",), "aten::frob": ()}
    matrix.store(made, tmp_path / "m.jsonl")
    assert matrix.load(tmp_path / "m.jsonl") == made
    again = matrix.merge(made, [result("passed", place="v5e")], gaps, made.lowerings)
    assert again.rows[0].cells == row("add", "float32", ".", known | {"strict v5e forward": "P"}).cells
    assert "strict v5e forward" not in again.rows[0].reasons
    assert matrix.missing(again, [Case("add", "float32", "forward"), Case("sub", "float32", "forward")]) == [
        Case("sub", "float32", "forward")
    ]


def test_what_cannot_be_captured_is_what_it_is_here():
    gaps = Gaps()
    for status, letter in (("fallback", "F"), ("passed", "-")):
        for mode in catalog.MODES:
            found = [result(status, mode), result("skipped", mode, place="v6e")]
            made = matrix.merge(Matrix(), found, gaps, [])
            assert made.rows[0].cell((mode, "v6e", "forward")) == letter


def test_the_share_that_compiles_everywhere():
    rows = (
        row("a", "float32", "P", {"fused backward": "-"}),  # compiles
        row("b", "float32", "P", {"fused v6e backward": "W"}),  # forward compiles, backward does not for v6e
        row("c", "float32", "P", {"fused forward": "W", "backward": "-"}),  # does not count
        row("d", "float32", "D", {"fused v7x forward": ".", "backward": "-"}),  # not compiled for v7x yet
    )
    found = Matrix({}, rows).compiled_everywhere("fused")
    assert found == (2, 3, 1) and str(found) == "50.00% of 4 (2 of the 3 tried)"
    assert Matrix({}, rows).compiled_everywhere("strict") == (6, 6, 0)


def test_the_stored_matrix_is_of_operators_that_exist():
    found = matrix.load()
    assert found.rows and len({(row.op, row.dtype) for row in found.rows}) == len(found.rows)
    for row in found.rows:
        assert row.op in catalog.by_name() and row.dtype in catalog.DTYPES
        assert len(row.cells) == len(matrix.COLUMNS) and set(row.cells) <= set(matrix.STATUSES)
        told = {matrix.name_of(column) for column in matrix.COLUMNS if row.cell(column) in "FGW"}
        assert told <= set(row.reasons)


def test_every_lowering_of_the_registry_is_reached_by_a_cell():
    """Where this fails: `torch-tpu conformance --matrix --ops NAME`, and a sample in overloads.py if none reaches it."""
    ops.load()
    reached = {name for name, by in matrix.load().lowerings.items() if by}
    assert reached == set(registry.LOWERINGS)


def test_what_falls_back_is_told():
    name = "aten::_fused_moving_avg_obs_fq_helper"
    for place in (catalog.HERE, "v5e"):
        assert run(name, place=place).status == "fallback"
    (found,) = (its for its in matrix.load().rows if (its.op, its.dtype) == (name, "float32"))
    assert {found.cell(column) for column in matrix.COLUMNS} == {"F"}


# ------------------------------------------------------------------------------------------------------------- page

SMALL = Matrix(
    {"torch": "2.13.0"},
    (
        row("add", "bfloat16", "P"),
        row("add", "float32", "P", {"compiled forward": "W"}, {"compiled forward": "</script><b>not close"}),
        row("nonzero", "float32", "P", {"backward": "-"}),
    ),
    {"aten::add.Tensor": ("add",), "aten::frob": ()},
)


def test_the_page_holds_the_data_and_nothing_that_ends_its_script():
    page = support_page.as_html(SMALL)
    assert page.count("</script>") == 1 and "src=" not in page and "http" not in page
    data = json.loads(re.search(r"const DATA = (.*);\n", page)[1])
    assert data["rows"].splitlines()[2] == f"nonzero\tfloat32\t{'P-' * 15}\t"
    assert data["reasons"] == ["</script><b>not close"]


PROBE = """<script>
function count() { return document.querySelectorAll("#rows tbody tr").length }
function set(name, value) { const box = document.querySelector(`input[name=${name}][value="${value}"]`); box.click() }
const seen = [count()];
$("op").value = "add"; $("op").dispatchEvent(new Event("input", { bubbles: true })); seen.push(count());
set("dtypes", "float32"); seen.push(count());
set("phases", "forward"); seen.push(count());
set("statuses", "W"); seen.push(count());
set("modes", "strict"); seen.push(count());
set("modes", "strict"); set("modes", "compiled"); seen.push(count());
set("places", "v5e"); seen.push(count());
set("places", "v5e"); set("places", "here"); seen.push(count());
document.querySelector("#rows td.why").click(); seen.push($("reason").textContent.includes("<b>not close"));
seen.push(document.querySelectorAll("b").length, decodeURIComponent(location.hash));
set("statuses", "W"); $("op").value = "aten::add"; $("op").dispatchEvent(new Event("input", { bubbles: true }));
seen.push(count(), document.querySelectorAll("#lowerings tbody tr").length);
document.title = JSON.stringify(seen);
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_page_filters_in_a_browser(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(support_page.as_html(SMALL).replace("</html>", PROBE + "</html>"), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += ["--virtual-time-budget=5000", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    seen = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom)[1]))
    marks = "#op=add&modes=compiled&places=here&phases=forward&dtypes=float32&statuses=W"
    assert seen == [5, 4, 2, 1, 1, 0, 1, 0, 1, True, 3, marks, 1, 1]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_this_versions_page_opens_in_a_browser(tmp_path):
    page = ROOT / "docs" / "support-matrix.html"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    command += ["--virtual-time-budget=20000", "--dump-dom", f"{page.as_uri()}#op=add&dtypes=float32"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert re.search(r'<span id="shown">\d+ of \d+ items', dom)
    assert "<td>add</td><td>float32</td><td>forward</td>" in dom
