"""`explain`, and how operators are served."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import torch_tpu
from torch_tpu.cli.__main__ import app
from torch_tpu.eager.served import KINDS, overloads, served
from torch_tpu.ops import registry


def kind(name: str) -> str:
    return served(registry.resolve(name)).kind


def test_explain_shows_every_stage():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    explanation = torch_tpu.explain(lambda t: torch.relu(t.t() + 1).add_(t.t()), x)
    calls = [step.op for step in explanation.steps]
    assert calls == ["aten::t", "aten::add.Tensor", "aten::relu", "aten::t", "aten::add_.Tensor"]
    assert [step.served.kind for step in explanation.steps] == ["view", "lowering", "lowering", "view", "derived"]
    assert explanation.steps[0].programs == () and len(explanation.steps[1].programs) == 1
    assert torch.equal(explanation.result.cpu(), (x.cpu() + 1 + x.cpu()).t())
    text = str(explanation)
    for part in ("stablehlo.transpose", "stablehlo.maximum", "HloModule", "executions", "torch_tpu/ops/"):
        assert part in text
    assert explanation.counts["executions"] == 3


def test_explain_sees_the_backward_pass():
    x = torch.ones(3, device="tpu", requires_grad=True)
    explanation = torch_tpu.explain(lambda t: torch.sin(t).sum().backward(), x)
    assert "aten::cos" in [step.op for step in explanation.steps]


def test_explain_sees_what_fused_mode_records():
    x = torch.ones(3, device="tpu")
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE):
        found = torch_tpu.explain(lambda: (x * 3).relu())
    assert [step.op for step in found.steps] == ["aten::mul.Tensor", "aten::relu", "recorded operators"]
    assert "multiply" in found.steps[-1].programs[0].stablehlo and "maximum" in found.programs[-1].stablehlo


def test_explain_sees_calls_between_the_programs_of_a_compiled_function():
    compiled = torch.compile(lambda x: torch.linalg.cholesky(x) + 1, backend="tpu", dynamic=False)
    explanation = torch_tpu.explain(compiled, torch.eye(3, device="tpu"))
    graph, check = explanation.steps
    assert (graph.served.kind, check.op) == ("compiled", "aten::_linalg_check_errors")
    assert torch.equal(explanation.result.cpu(), torch.eye(3) + 1)


def test_explaining_again_compiles_nothing(counters):
    x = torch.ones(5, device="tpu")
    torch_tpu.explain(torch.exp, x)
    counters.reset()
    explanation = torch_tpu.explain(torch.exp, x)
    assert explanation.counts["compiles"] == 0 and len(explanation.programs) == 1


def test_explain_leaves_no_observer_after_an_error():
    from torch_tpu.eager.observe import observers

    def fail(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        torch_tpu.explain(fail, torch.ones(1, device="tpu"))
    assert observers == []


def test_unknown_stages_are_refused():
    explanation = torch_tpu.explain(torch.neg, torch.ones(1, device="tpu"))
    with pytest.raises(ValueError, match="there are: calls, stablehlo, hlo, counts"):
        explanation.text(["fx"])


def test_how_operators_are_served():
    assert kind("add.Tensor") == "lowering"
    assert kind("add_.Tensor") == kind("add.out") == kind("_foreach_add_.Scalar") == "derived"
    assert kind("t") == kind("view") == "view"
    assert kind("_local_scalar_dense") == "host"
    assert kind("matmul") == "composite"
    where = served(registry.resolve("sin")).where
    assert where.startswith("torch_tpu/ops/") and where.rpartition(":")[2].isdigit()


def test_every_overload_is_classified():
    assert {served(op).kind for op in overloads()} <= set(KINDS)


def test_ops_command():
    runner = CliRunner()
    add = runner.invoke(app, ["ops", "add.Tensor"]).output
    assert "lowering" in add and "complex64" in add
    transform = runner.invoke(app, ["ops", "fft_fft"]).output
    assert "fft.fft" in transform and "complex128" in transform
    assert "bfloat16 forward: declared gap" in " ".join(
        runner.invoke(app, ["ops", "native_layer_norm"], env={"COLUMNS": "200"}).output.split()
    )
    assert "no samples" in runner.invoke(app, ["ops", "_adaptive_avg_pool3d_backward"]).output
    unknown = runner.invoke(app, ["ops", "sofmax"])
    assert unknown.exit_code == 1 and "softmax" in unknown.output
    assert runner.invoke(app, ["ops", "add", "--dtype", "float31"]).exit_code == 2
    assert runner.invoke(app, ["ops"]).exit_code == 0


def test_ops_command_runs_samples():
    result = CliRunner().invoke(app, ["ops", "sgn", "--dtype", "float32"])
    assert result.exit_code == 0 and "sgn float32: passed" in result.output
