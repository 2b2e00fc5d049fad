"""`torch_tpu.lint`: what the TPU compiler makes of a function, with Python lines. The numbers are the compiler's own."""

from __future__ import annotations

import inspect
import json
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan
from typer.testing import CliRunner

import torch_tpu
from torch_tpu import hlo
from torch_tpu.linter import capture


def line_of(function, text: str) -> int:
    """The line of a function's source that contains a text."""
    lines, start = inspect.getsourcelines(function)
    return start + next(number for number, line in enumerate(lines) if text in line)


def rules(report) -> set[str]:
    return {finding.rule for finding in report}


def only(report, rule: str):
    (found,) = [finding for finding in report if finding.rule == rule]
    assert found.file == __file__
    return found


def attention(x, heads):
    batch, length, width = x.shape
    q, k, v = x.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.transpose(-1, -2), -1)
    return (weights @ v).transpose(1, 2).reshape(batch, length, width // 3)


def test_narrow_heads_and_relayouts_are_found():
    x = torch.zeros(4, 256, 3 * 256, dtype=torch.bfloat16)
    narrow = torch_tpu.lint(attention, x, 8)
    found = [finding for finding in narrow if finding.rule == "TPU103"]
    assert {finding.line for finding in found} == {line_of(attention, "q @ k"), line_of(attention, "weights @ v")}
    assert any("32 elements are contracted, a head, of 128 lanes" in finding.reason for finding in found)
    assert any(finding.rule == "TPU101" for finding in narrow)
    wide = torch_tpu.lint(attention, x, 2)
    assert "TPU103" not in rules(wide)
    assert 0 < wide.cycles < narrow.cycles and narrow.bytes_accessed > 0


def clean(x, w):
    return torch.relu(x @ w)


def test_aligned_products_have_no_findings():
    x, w = torch.zeros(1024, 1024, dtype=torch.bfloat16), torch.zeros(1024, 1024, dtype=torch.bfloat16)
    report = torch_tpu.lint(clean, x, w)
    assert report.findings == () and report.num_programs == 1
    assert str(report).startswith("no findings: 1 programs, ")


def wide_dtypes(x):
    y = x.double().exp().sum(0)
    return y, (x > 0).long().cumsum(0)


def test_emulated_dtypes():
    found = {finding.line: finding for finding in torch_tpu.lint(wide_dtypes, torch.zeros(256, 512))}
    first, second = (found[line_of(wide_dtypes, text)] for text in ("double()", "long()"))
    assert first.rule == second.rule == "TPU105"
    assert first.reason.startswith("float64 is emulated; this line takes") and first.suggestion == "use float32"
    assert second.reason.startswith("int64 is emulated") and second.suggestion == "use int32"


def remainder(x):
    return x.long() * 3 % 7


def test_a_line_is_named_once_with_what_was_written():
    """The remainder computes with the bits of an int64 as uint64."""
    found = only(torch_tpu.lint(remainder, torch.zeros(4096, dtype=torch.int32)), "TPU105")
    assert found.reason.startswith("int64 is emulated") and found.suggestion == "use int32"
    both = only(torch_tpu.lint(lambda x: (x.double().sum(0), x.long() + 1), torch.zeros(256, 512)), "TPU105")
    assert both.reason.startswith("float64 and int64 are") and both.suggestion == "use float32 and int32"


@pytest.mark.parametrize(
    "function", [lambda x: x.cumsum(1), torch.fft.fft, lambda x: torch.linalg.qr(x).Q, F.dropout, torch.sort]
)
def test_layouts_within_an_operator_are_not_the_users(function):
    assert rules(torch_tpu.lint(function, torch.zeros(512, 512))) <= {"TPU105"}


def test_scalars_are_not_padding():
    network = nn.GRU(128, 128, batch_first=True)
    assert not any("[]" in finding.reason for finding in torch_tpu.lint(network, torch.zeros(8, 32, 128)))


def padded(x):
    return (x * 2).reshape(4096, 5, 5).exp().transpose(1, 2) + 1


def test_padding():
    found = only(torch_tpu.lint(padded, torch.zeros(4096, 25)), "TPU102")
    assert found.line == line_of(padded, "reshape")
    assert found.reason.startswith("an array of f32[4096,5,5] in {0,2,1:T(8,128)}: 400.0 KiB take 640.0 KiB")


def small(parts, w):
    return [torch.mm(part, w) for part in parts]


def test_small_products():
    w = torch.zeros(16, 16)
    assert only_of(torch_tpu.lint(small, [torch.zeros(16, 16)], w), "TPU104") == []
    found = only(torch_tpu.lint(small, [torch.zeros(16, 16) for _ in range(5)], w), "TPU104")
    assert found.line == line_of(small, "torch.mm") and found.reason.startswith("small products, 5 of them: [16, 16]")


def reads(x):
    total = 0.0
    for part in x:
        total += part.sum().item()
    if x.sum() > 0:
        total += 1
    return total


def test_values_that_are_read():
    report = torch_tpu.lint(reads, torch.zeros(3, 4))
    lines = [finding.line for finding in report if finding.rule == "TPU107"]
    assert lines == [line_of(reads, "item()"), line_of(reads, "if x.sum()")]
    assert "float32[] is read on the host" in only_of(report, "TPU107")[0].reason


def only_of(report, rule):
    return [finding for finding in report if finding.rule == rule]


def endless(x):
    try:
        while not (x > 0).any():
            x = x.exp()
    except Exception:
        pass


def test_a_function_that_waits_for_a_value_is_stopped():
    report = torch_tpu.lint(endless, torch.zeros(3))
    assert report.stopped_at == f"{__file__}:{line_of(endless, 'while')}"
    assert {finding.line for finding in report if finding.rule == "TPU107"} == {line_of(endless, "while")}
    assert "stopped at" in str(report) and report.num_programs > 0
    assert torch_tpu.lint(reads, torch.zeros(3, 4)).stopped_at == ""


def falls_back(x):
    return torch._dirichlet_grad(x, x + 1, x + 2)


def test_fallbacks_are_found_and_counted_once():
    report = torch_tpu.lint(falls_back, torch.zeros(4, 4))
    found = only(report, "TPU106")
    assert found.line == line_of(falls_back, "_dirichlet_grad") and "runs on the CPU: " in found.reason
    assert "TPU107" not in rules(report)  # what the fallback itself reads


def compressed(x):
    y = x.double().exp().sum(0)
    return x.to_sparse_csr().to_dense() + y


@pytest.mark.parametrize("function", [compressed, torch.compile(compressed, backend="tpu")], ids=["eager", "compiled"])
def test_what_cannot_run_ends_the_report_with_its_line(function):
    report = torch_tpu.lint(function, torch.zeros(256, 512))
    found = only(report, "TPU110")
    assert found.line == line_of(compressed, "to_sparse_csr") and found.severity == "error"
    assert "makes a sparse_csr tensor: the device has dense and sparse COO tensors only" in found.reason
    assert "to the CPU" in found.suggestion and "TPU107" not in rules(report)
    assert report.stopped_at == f"{__file__}:{found.line}" and f"{found.line}, which cannot run" in str(report)
    assert {finding.line for finding in only_of(report, "TPU105")} == {line_of(compressed, "double()")}


def handles(x):
    try:
        return x.to_sparse_csr()
    except NotImplementedError:
        return x.exp()


def test_what_a_function_expects_to_be_refused_is_no_finding():
    report = torch_tpu.lint(handles, torch.zeros(256, 512))
    assert "TPU110" not in rules(report) and report.stopped_at == ""


def growing(x):
    total = 0
    for length in range(1, 8):
        total = total + x[:length].exp().sum()
    return total


def test_many_sizes():
    found = only_of(torch_tpu.lint(growing, torch.zeros(8, 8)), "TPU108")
    assert {finding.line for finding in found} == {line_of(growing, "exp()")}
    assert "aten::exp is called with 7 different sizes" in found[0].reason
    layers = nn.Sequential(*(nn.Linear(n, n + 1) for n in range(1, 9)))
    assert only_of(torch_tpu.lint(layers, torch.zeros(2, 1)), "TPU108") == []


def train(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hidden = model[0](x).sigmoid()
    loss = F.cross_entropy(model[1](hidden), y)
    loss.backward()
    optimizer.step()
    return loss


def test_the_backward_pass_has_the_lines_of_the_forward_one():
    """Autograd runs on a thread without a frame of the user's."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10))
    captured, _ = capture.capture(train, (model, torch.zeros(4, 64), torch.zeros(4, dtype=torch.int64)), {}, "v6e-1")
    text = "".join(run.text for run in captured.runs)
    lines = {}
    for name, file, line in re.findall(r'loc\("([^"]*)"\("([^"]*)":(\d+):', text):
        assert file == __file__
        lines.setdefault(name, set()).add(int(line))
    assert lines["aten::sigmoid_backward"] == lines["aten::sigmoid"] == {line_of(train, "sigmoid()")}
    assert lines["aten::_log_softmax_backward_data"] == {line_of(train, "cross_entropy")}
    assert lines["aten::mm"] == {line_of(train, "sigmoid()"), line_of(train, "cross_entropy")}
    assert line_of(train, "optimizer.step()") in set().union(*lines.values())
    assert all(parameter.device.type == "cpu" and parameter.grad is None for parameter in model.parameters())


@torch.compile(backend="tpu")
def compiled(x):
    y = x.double()
    return y.exp().sum()


def test_compiled_functions_have_lines_too():
    found = only_of(torch_tpu.lint(compiled, torch.zeros(256, 256)), "TPU105")
    assert {finding.line for finding in found} <= {line_of(compiled, "double()"), line_of(compiled, "exp()")}
    assert found


@torch.library.custom_op("lint_tests::add_on_host", mutates_args={"x"})
def add_on_host(x: torch.Tensor, y: torch.Tensor) -> None:
    x.copy_(x.cpu() + y.cpu())


@torch.compile(backend="tpu", dynamic=False)
def split(x):
    y = x * 2
    add_on_host(y, x)
    lower = torch.linalg.cholesky(y)
    return torch._dirichlet_grad(lower, x + 1, x + 2)


def test_calls_between_the_programs_of_a_compiled_function_have_lines():
    """They are called by higher-order operators, where they write to their arguments or raise errors."""
    report = torch_tpu.lint(split, torch.zeros(64, 64))
    called = {
        "lint_tests::add_on_host": "add_on_host(",
        "aten::_linalg_check_errors": "cholesky(",
        "aten::_dirichlet_grad": "_dirichlet_grad",
    }
    splits = {finding.reason.partition(" ")[0]: finding for finding in only_of(report, "TPU109")}
    lines = {name: line_of(split._torchdynamo_orig_callable, text) for name, text in called.items()}
    assert {name: splits[name].line for name in called} == lines
    assert "_ex, which does not check" in splits["aten::_linalg_check_errors"].suggestion
    assert {finding.line for finding in only_of(report, "TPU106")} == {lines.popitem()[1]}
    assert {finding.line for finding in only_of(report, "TPU107")} == set(lines.values())


def test_nothing_is_left_behind(counters):
    """Afterwards programs have no places in their text, and the device is the one it was."""
    x = torch.ones(3, device="tpu")
    torch_tpu.lint(clean, torch.zeros(8, 8), torch.zeros(8, 8))
    assert (x + 1).tolist() == [2, 2, 2]
    (program,) = torch_tpu.explain(torch.exp, x).programs
    assert "loc(" not in program.stablehlo


def test_places_are_written_only_when_asked_for():
    def text(place):
        function = hlo.Function("f")
        with function, hlo.core.placed(place):
            x = function.argument((2,), torch.float32)
            y = hlo.add(x, x)
        return function.module([y])

    place = hlo.core.Place("aten::add.Tensor", 'odd "name\\.py', 3, 4)
    assert "loc(" not in text(None)
    assert text(None) == text(place).replace(""" loc("aten::add.Tensor"("odd 'name\\\\.py":3:4))""", "")
    from torch_tpu.runtime import mlir

    mlir.parse(text(place))


def test_topologies_are_checked():
    with pytest.raises(ValueError, match="no TPU generation 'v1'"):
        torch_tpu.lint(clean, torch.zeros(8, 8), torch.zeros(8, 8), topology="v1-1")


PROGRAM = """
import torch

def step(x):
    return x.double().exp().sum()

def example():
    return step, torch.zeros(256, 256)

def wrong():
    return 3

def prints():
    def printing(x):
        y = x * 2
        print(y)
        return y.exp()
    return printing, (torch.zeros(4, 4),)

def hosted():
    return lambda x: x.to_sparse_csr(), {"x": torch.zeros(4, 4)}
"""


def test_the_command_looks_at_programs(tmp_path, monkeypatch):
    from torch_tpu.cli.__main__ import app

    (tmp_path / "linted_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["lint", "--program", "linted_program:example", "--json", "--select", "TPU105"])
    (found,) = json.loads(done.stdout)
    assert done.exit_code == 1 and (found["rule"], found["line"]) == ("TPU105", 5)
    done = CliRunner().invoke(app, ["lint", "--program", "linted_program:prints", "--json", "--select", "TPU107"])
    assert [found["rule"] for found in json.loads(done.stdout)] == ["TPU107"] and "tensor(" in done.stderr
    done = CliRunner().invoke(app, ["lint", "--program", "linted_program:hosted", "--json"])
    assert [(found["rule"], found["line"]) for found in json.loads(done.stdout)] == [("TPU106", 21), ("TPU110", 21)]
    for name, message in (
        ("linted_program:wrong", "must return a function and its arguments"),
        ("linted_program:nothing", "has no function 'nothing'"),
        ("linted_program", "write module:function"),
        ("../linted_program:example", "write module:function"),
        ("nowhere:f", "No module named 'nowhere'"),
    ):
        done = CliRunner().invoke(app, ["lint", "--program", name])
        assert done.exit_code == 2 and message in done.output, done.output


@pytest.mark.parametrize("topology", ["v5e-1", "v5p-1", "v7x-1"])
def test_programs_are_read_for_every_generation(topology):
    report = torch_tpu.lint(clean, *[torch.zeros(1024, 1024, dtype=torch.bfloat16)] * 2, topology=topology)
    assert report.cycles > 0 and report.bytes_accessed > 2 * 1024 * 1024


def repeated(x, w):
    def step(carry, weight):
        return (carry @ weight).relu(), carry.new_zeros(1)

    return scan(step, x, w)[0]


def test_bodies_of_loops_count_as_often_as_they_run():
    """The compiler's text does not say how often: it is found from what the loop counts."""
    run = torch.compile(repeated, fullgraph=True, dynamic=False)
    x = torch.zeros(512, 512, dtype=torch.bfloat16)
    few, many = (
        torch_tpu.lint(run, x, torch.zeros(steps, 512, 512, dtype=torch.bfloat16)).cycles for steps in (10, 100)
    )
    assert 8 < many / few < 11


def test_what_does_not_compile_is_an_error():
    with pytest.raises(torch_tpu.errors.CompileError, match="HBM"):
        torch_tpu.lint(lambda x: x.sin().cumsum(0), torch.empty(1 << 17, 1 << 17, device="meta"), topology="v5e-1")
