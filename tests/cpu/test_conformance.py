"""The conformance suite: its mechanism, and a small part of it, another one each day."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torch_tpu.conformance import catalog, report, runner, suite
from torch_tpu.conformance.catalog import Case
from torch_tpu.conformance.gaps import Gap, Gaps
from torch_tpu.conformance.runner import Result

ROOT = Path(__file__).resolve().parents[2]
NUM_SHARDS = 60


def result(status: str, op: str = "add", dtype: str = "float32", phase: str = "forward") -> Result:
    return Result(Case(op, dtype, phase), status)


def gaps(*rows: tuple[str, str, str]) -> Gaps:
    return Gaps(Gap(*row, reason="because") for row in rows)


@pytest.mark.parametrize("status", ["failed", "fallback", "crashed", "timeout"])
def test_an_undeclared_failure_fails(status):
    judgement = gaps().judge([result(status)])
    assert not judgement.holds and len(judgement.failed) == 1


@pytest.mark.parametrize("row", [("add", "float32", "forward"), ("add", "*", "forward"), ("add", "*", "*")])
def test_a_declared_failure_holds(row):
    assert gaps(row).judge([result("failed")]).holds


def test_a_declared_gap_that_passes_fails_and_names_its_entry():
    judgement = gaps(("add", "float32", "forward")).judge([result("passed")])
    assert not judgement.holds
    assert str(judgement.closed[0]) == 'op = "add", dtype = "float32", phase = "forward"'


def test_a_gap_that_passes_is_no_error_when_samples_were_left_out():
    assert gaps(("add", "float32", "forward")).judge([result("passed")], complete=False).holds


def test_a_gap_that_was_not_run_is_no_error():
    assert gaps(("mul", "float32", "forward")).judge([result("passed")]).holds
    assert gaps(("add", "float32", "forward")).judge([result("skipped")]).holds


@pytest.mark.parametrize("text", ['[[gap]]\nop = "add"', '[[gap]]\nop="a"\ndtype="b"\nphase="c"\nreason=""\n'])
def test_incomplete_entries_are_refused(tmp_path, text):
    path = tmp_path / "gaps.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="an entry needs op, dtype, phase, reason"):
        Gaps.load(path)


def test_entries_are_read_and_written_alike(tmp_path):
    path = tmp_path / "gaps.toml"
    path.write_text(report.as_toml([Result(Case("add", "bool", "out"), "failed", 1, 'says "no"')]))
    (gap,) = Gaps.load(path).gaps
    assert (gap.op, gap.dtype, gap.phase, gap.reason) == ("add", "bool", "out", "says 'no'")
    path.write_text(path.read_text() * 2)
    with pytest.raises(ValueError, match="declared twice"):
        Gaps.load(path)


def test_the_shipped_gaps_are_of_operators_that_exist():
    for gap in Gaps.load().gaps:
        assert gap.op in catalog.by_name()
        assert gap.phase in (*catalog.PHASES, "*")


def info_of(function, process=lambda output: output):
    """An operator of one sample, in place of PyTorch's."""
    sample = SimpleNamespace(
        input=torch.arange(4.0), args=(), kwargs={}, broadcasts_input=False, output_process_fn_grad=process
    )

    class Info:
        name = aten_name = "made_up"
        op = staticmethod(function)
        decorators = ()

        def sample_inputs(self, device, dtype, requires_grad):
            return [sample]

        def __call__(self, x):
            return function(x)

    return Info()


def outcome(function) -> Result:
    return runner.run_case(info_of(function), Case("made_up", "float32", "forward"), "tpu")


def test_right_values_pass():
    assert outcome(lambda x: x + 1).status == "passed"


def test_wrong_values_dtypes_and_devices_fail():
    assert "not close" in outcome(lambda x: x + (x.device.type == "tpu")).reason
    assert "instead of" in outcome(lambda x: x.double() if x.device.type == "tpu" else x).reason
    assert "a result is on cpu" in outcome(lambda x: x.cpu()).reason


def test_integer_inputs_do_not_make_float_results_exact():
    nearly = runner.run_case(
        info_of(lambda x: x + 1e-6 * (x.device.type == "tpu")), Case("made_up", "int64", "forward"), "tpu"
    )
    assert nearly.status == "passed"


def test_a_fallback_is_no_pass():
    from torch_tpu.stats import counters

    def fall(x):
        if x.device.type == "tpu":
            counters.fallback("aten::made_up")
        return x

    assert outcome(fall) == Result(Case("made_up", "float32", "forward"), "fallback", 1, "aten::made_up")


def test_what_is_not_determined_is_not_compared():
    def flip(x):
        return -x if x.device.type == "tpu" else x.clone()

    case = Case("made_up", "float32", "forward")
    assert runner.run_case(info_of(flip), case, "tpu").status == "failed"
    assert runner.run_case(info_of(flip, torch.abs), case, "tpu").status == "passed"


def test_random_values_are_not_compared():
    assert outcome(torch.rand_like).status == "passed"


def test_what_the_cpu_refuses_is_skipped():
    def refuse(x):
        raise RuntimeError("not implemented")

    assert outcome(refuse).status == "skipped"


def test_shards_cover_everything_once():
    whole = catalog.cases([], ["float32"], ["forward"], (0, 1))
    parts = [case for index in range(3) for case in catalog.cases([], ["float32"], ["forward"], (index, 3))]
    assert sorted(parts) == sorted(whole)
    with pytest.raises(ValueError, match="a shard is I/N"):
        suite.parse_shard("3/3")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no samples of 'ad'"):
        catalog.select(["ad"])
    with pytest.raises(ValueError, match="no phase"):
        catalog.cases(["add"], ["float32"], ["sideways"], (0, 1))


def test_results_are_kept_and_continued(tmp_path):
    plan = suite.Plan(ops=("sgn",), dtypes=("float32",), limit=1, output=tmp_path / "results.jsonl")
    cases = suite.cases(plan)
    first = Result(cases[0], "failed", 0, "from the file")
    plan.output.write_text("\n".join([json.dumps(plan.header()), json.dumps(first.to_json()), '{"op": "cut of']) + "\n")
    results = suite.run(plan, cases)
    assert results[0] == first
    assert [r.status for r in results[1:]] == ["passed"] * (len(cases) - 1)
    other = suite.Plan(ops=("sgn",), dtypes=("float32",), limit=2, output=plan.output)
    with pytest.raises(ValueError, match="is of another run"):
        suite.run(other, cases)


@pytest.mark.slow
def test_crashes_and_hangs_are_results(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
            import os, time
            from torch_tpu.conformance import runner
            def run_case(info, case, *rest):
                time.sleep(60) if case.op == "sgn" else os._exit(7)
            runner.run_case = run_case
        """)
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    plan = suite.Plan(ops=("sgn", "sign"), dtypes=("float32",), phases=("forward",), timeout=2)
    statuses = [r.status for r in suite.run(plan, suite.cases(plan))]
    assert statuses == ["timeout", "crashed"]


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["the parent", "all of the terminal"])
def test_an_interrupted_run_records_nothing_of_what_was_under_way(tmp_path, send):
    (tmp_path / "slow.py").write_text(
        textwrap.dedent("""
        import dataclasses, pathlib, signal, sys, time
        from torch_tpu.conformance import pool

        @dataclasses.dataclass
        class Outcome:
            case: int
            status: str = "passed"
            to_json = dataclasses.asdict

        def serve(connection, seconds):
            connection.send("ready")
            while True:
                case = connection.recv()
                if case:
                    time.sleep(seconds)
                connection.send(Outcome(case))

        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started without it
            how = pool.Pool(
                serve=serve, arguments=(float(sys.argv[1]),), failure=lambda case, status, reason: Outcome(case, status),
                parse=lambda row: Outcome(**row), workers=2, output=pathlib.Path("results"),
            )
            pool.run(how, range(4))
        """)
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "slow.py"]
    process = subprocess.Popen(
        [*command, "60"], cwd=tmp_path, env=environment, start_new_session=True, stderr=subprocess.PIPE
    )
    results = tmp_path / "results"
    until = time.monotonic() + 60
    while time.monotonic() < until and (not results.exists() or len(results.read_text().splitlines()) < 2):
        time.sleep(0.1)
    time.sleep(1)  # the other process has started by then
    send(process.pid, signal.SIGINT)
    process.communicate(timeout=20)  # until no process has the pipe
    assert process.returncode == -signal.SIGINT
    assert [json.loads(line) for line in results.read_text().splitlines()[1:]] == [{"case": 0, "status": "passed"}]
    subprocess.run([*command, "0"], cwd=tmp_path, env=environment, check=True, timeout=60)
    assert sorted(json.loads(line)["case"] for line in results.read_text().splitlines()[1:]) == [0, 1, 2, 3]


@pytest.mark.slow
def test_todays_shard_holds():
    shard = datetime.date.today().toordinal() % NUM_SHARDS
    plan = suite.Plan(dtypes=("float32", "int64"), limit=2, shard=(shard, NUM_SHARDS))
    judgement = Gaps.load().judge(suite.run(plan, suite.cases(plan)), complete=False)
    assert not judgement.failed, "\n".join(f"{r.status} {r.case}: {r.reason}" for r in judgement.failed)


@pytest.mark.parametrize("number", [1.0, 1.25])
def test_the_cpu_in_float64_decides_where_it_rounds_between_the_steps(number):
    """The CPU says 1.125 in bfloat16 and 1 in float64; a device that says 1 is right, one that says 1.25 is not."""
    info = SimpleNamespace(op=None, name="add", aten_name="add")

    def call(place, wide):
        value = 1.0 if wide else 1.125 if place == "cpu" else number
        return torch.tensor([value], dtype=torch.float64 if wide else torch.bfloat16, device=place)

    setting = runner.Setting(info, info, "tpu", {"rtol": 1.6e-2, "atol": 1e-5})
    if number == 1:
        runner._judge(setting, call, runner._compare)
    else:
        with pytest.raises(AssertionError, match="not close"):
            runner._judge(setting, call, runner._compare)


def test_a_wrong_call_without_tensors_is_left_out():
    assert (
        runner.run_case(catalog.by_name()["__rmod__"], Case("__rmod__", "float32", "errors"), "tpu").status == "skipped"
    )
