"""Caches across processes, and what `explain_recompiles` says of operators; numbers of compiles are asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters as seen

import torch_tpu
from torch_tpu import _plug, recompiles, settings
from torch_tpu.runtime import client, heap

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import json, torch, torch_tpu
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(32, 8).to("tpu"), torch.randint(4, (32,)).to("tpu")
for _ in range(3):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
found = dict(torch_tpu.stats())
print(json.dumps({"loss": loss.item(), **{k: found[k] for k in ("compiles", "disk_hits", "disk_errors")}}))
"""


def start(code: str, directory: Path) -> subprocess.Popen[str]:
    variables = {**os.environ, "TORCH_TPU_CACHE_DIR": str(directory), "TORCH_TPU_CACHE": "1"}
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True)


def train(directory: Path) -> dict[str, float]:
    output, _ = start(TRAIN, directory).communicate(timeout=300)
    return json.loads(output)


def test_another_machine_starts_warm(tmp_path, counters):
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "programs"
    cold = train(here)
    assert cold["compiles"] > 5 and not cold["disk_hits"]
    with settings.override(cache=True, cache_dir=str(here)):
        assert torch_tpu.cache.export_to(file) == cold["compiles"]
        names = {entry.name for entry in torch_tpu.cache.entries()}
        assert "aten_addmm" in names and not any(entry.unfit for entry in torch_tpu.cache.entries())
    with settings.override(cache=True, cache_dir=str(there)):
        assert torch_tpu.cache.import_from(file).added == cold["compiles"]
        assert torch_tpu.cache.import_from(file).present == cold["compiles"]
    warm = train(there)
    assert warm["compiles"] == 0 and warm["disk_hits"] == cold["compiles"] and warm["loss"] == cold["loss"]
    victims = sorted((there / "programs").rglob("*.program"))[:2]
    for path in victims:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    healed = train(there)
    assert (healed["compiles"], healed["disk_errors"], healed["loss"]) == (2, 2, cold["loss"])
    with settings.override(cache=True, cache_dir=str(there)):
        assert torch_tpu.cache.verify() == (cold["compiles"], 0, {})


COMPILE = """
import json, sys, torch, torch_tpu
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention
options = json.loads(sys.argv[1])

@torch.library.custom_op("saved::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
twice.register_fake(lambda x: torch.empty_like(x))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.BatchNorm1d(16)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(32, 8).to("tpu")
q = torch.randn(1, 2, 128, 8).to("tpu")
functions = {
    "train": lambda: model(x).square().mean(),
    "views": lambda: (x.t(), (y := x * 2), y[1:]),
    "split": lambda: twice(x.sin()) + 1,
    "scores": lambda: flex_attention(q, q, q, score_mod=lambda score, b, h, m, n: score + m - n),
    "effects": lambda: torch.linalg.inv(torch.eye(3, device="tpu") * 2),
    "loop": lambda: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
}
found = {}
for name, function in functions.items():
    counters.clear()
    result = torch.compile(function, backend="tpu", options=options)()
    if name == "train":
        result.backward()
        torch.compile(optimizer.step, backend="tpu", options=options)()
        result = [result, model(x)]
        found["inductor"] = "torch._inductor.codegen.cpp" in sys.modules
    results = [item.sum().item() for item in (result if isinstance(result, (tuple, list)) else [result])]
    kept = {key: counters["aot_autograd"][f"autograd_cache_{key}"] for key in ("hit", "miss", "saved", "bypass")}
    found[name] = results, kept

def vary(x):
    return torch.nn.functional.dropout(model[0](x)).relu().square().mean()

counters.clear()
varying, losses = torch.compile(vary, backend="tpu", options=options, dynamic=True), []
for rows in (4, 7, 9, 40):
    loss = varying(torch.linspace(-1, 1, rows * 8).view(rows, 8).to("tpu"))
    loss.backward()
    losses += loss.item(), model[0].weight.grad.sum().item()
kept = {key: counters["aot_autograd"][f"autograd_cache_{key}"] for key in ("hit", "miss", "saved", "bypass")}
found["varying"] = losses, kept
print(json.dumps(found | {name: torch_tpu.stats()[name] for name in ("compiles", "calls_in_between", "specialized")}))
"""


def test_compiled_graphs_are_kept_between_processes(tmp_path):
    variables = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs"),
        "TORCH_TPU_CACHE_DIR": str(tmp_path),
    }

    def run(**options):
        command = [sys.executable, "-c", COMPILE, json.dumps(options)]
        return json.loads(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)

    cold, warm, other, off = run(), run(), run(bucket_size=64), run(serializable=False)
    counts = {"train": 2, "views": 1, "split": 1, "scores": 1, "varying": 1}
    for name, count in counts.items():
        assert cold[name][0] == warm[name][0] == other[name][0] == off[name][0]
        assert cold[name][1] == other[name][1] == {"hit": 0, "miss": count, "saved": count, "bypass": 0}, name
        assert warm[name][1] == {"hit": count, "miss": 0, "saved": 0, "bypass": 0}, name
        assert not any(off[name][1].values())
    assert cold["loop"] == warm["loop"] and cold["loop"][1]["bypass"] == 1  # PyTorch keeps no graphs with cond
    assert cold["effects"] == warm["effects"] and warm["effects"][1]["hit"] == 0  # an error to be raised is an effect
    assert cold["compiles"] > 5 and warm["compiles"] == 0
    assert not warm["inductor"], "its code generators take a second to import"
    assert cold["calls_in_between"] == warm["calls_in_between"] == 2
    assert cold["specialized"] == warm["specialized"] == 0, "sizes that vary still have bounds"


TRACED = """
import json, sys, torch, torch_tpu
from torch._dynamo.utils import counters
from torch_tpu.runtime import platform
torch._dynamo.config.caching_precompile = True
torch_tpu.__version__ += sys.argv[2]
torch_tpu.settings.eager_mode = sys.argv[1]
torch.manual_seed(0)

@torch.compile(backend="tpu", dynamic=True)
def loss(model, x):
    return torch.nn.functional.dropout(model(x)).square().mean()

@torch.compile(backend="tpu")
def breaks(x):
    y = x.sin()
    return y * 2 if y.sum().item() > 0 else y * 3

assert not platform.is_started(), "what is read starts nothing"
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
values = [breaks(torch.ones(3, device="tpu")).sum().item()]
for rows in (4, 7, 9, 40, 4):
    one = loss(model, torch.linspace(-1, 1, rows * 8).view(rows, 8).to("tpu"))
    one.backward()
    optimizer.step()
    optimizer.zero_grad()
    values.append(one.item())
torch.compiler.save_cache_artifacts()
stats = {name: torch_tpu.stats()[name] for name in ("compiles", "specialized")}
print(json.dumps({"values": values, "traced": counters["frames"]["total"], **stats}))
"""


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_with_what_dynamo_traced_a_process_traces_and_compiles_nothing(tmp_path, mode):
    variables = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs"),
        "TORCH_TPU_CACHE_DIR": str(tmp_path),
    }

    def run(version=""):
        command = [sys.executable, "-c", TRACED, mode, version]
        return json.loads(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)

    cold, warm, other = run(), run(), run(".dev1")
    assert cold["traced"] == other["traced"] == 3 and cold["compiles"] > 3
    assert warm == {**cold, "traced": 0, "compiles": 0}
    assert other["values"] == cold["values"], "graphs of another version are not used, and do no harm"


def test_a_graph_that_is_read_runs_before_its_program_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.randn(4)
    for hits in range(2):
        torch._dynamo.reset()
        seen.clear()
        compiled = torch.compile(lambda x: x.sin() @ x, backend="tpu", options={"async_compile": True})
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), x.sin() @ x)
        assert seen["aot_autograd"]["autograd_cache_hit"] == hits


def test_the_second_value_of_a_float_does_not_find_the_graph_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def function(x, number):
        return torch.nn.functional.threshold(x, number, number), x * number

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    for rows, number in ((3, 0.5), (5, -2.25), (4, 7.0)):
        x = torch.linspace(-3, 3, rows * 4).view(rows, 4)
        torch.testing.assert_close([y.cpu() for y in compiled(x.to("tpu"), number)], list(function(x, number)))


def test_processes_that_start_together_share_a_cache(tmp_path):
    processes = [start(TRAIN, tmp_path / "cache") for _ in range(2)]
    found = [json.loads(process.communicate(timeout=300)[0]) for process in processes]
    assert len({one["loss"] for one in found}) == 1
    assert all(not one["disk_errors"] for one in found)
    assert len({one["compiles"] + one["disk_hits"] for one in found}) == 1
    with settings.override(cache=True, cache_dir=str(tmp_path / "cache")):
        assert torch_tpu.cache.verify() == (found[0]["compiles"] + found[0]["disk_hits"], 0, {})


def test_another_processor_or_version_loads_nothing(tmp_path, counters, monkeypatch, empty_cache):
    from torch_tpu.runtime import cache
    from torch_tpu.runtime.client import cpu_client

    text = "module @one { func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> } }"
    cpu_client().compile(text, [((2,), torch.float32)])
    for change in (("processor", lambda: "x86_64 avx9"), ("_version", lambda: "99")):
        with monkeypatch.context() as patch:
            patch.setattr(cache, *change)
            cpu_client().compile(text, [((2,), torch.float32)])
    assert (counters.compiles, counters.disk_hits, counters.disk_misses) == (3, 0, 3)
    found = torch_tpu.cache.verify()
    assert found.sound == 3 and sorted(found.unfit.values()) == [1, 1]
    assert "made for a processor that has avx9, which this one lacks" in found.unfit
    cpu_client().compile(text, [((2,), torch.float32)])
    assert (counters.compiles, counters.disk_hits) == (3, 1)


@pytest.fixture
def why(monkeypatch):
    """Runs a function, and says what changed in the last program that it made."""
    for name in ("_made", "_earlier"):
        kept = getattr(recompiles, name)
        monkeypatch.setattr(recompiles, name, kept.copy())
        getattr(recompiles, name).clear()
    _plug.clear_table()

    def run(function):
        before = len(torch_tpu.explain_recompiles())
        function()
        made = torch_tpu.explain_recompiles().made[before:]
        return made[-1].changes if made else "none"

    return run


def test_recompiles_of_operators_are_explained(why):
    x, y = torch.ones(8, 8, device="tpu"), torch.ones(8, 9, device="tpu")
    half, other = x.bfloat16(), torch.ones(8, 8, device="tpu")
    square = torch.ones(9, 9, device="tpu")
    assert why(lambda: torch.mul(x, other)) is None
    assert why(lambda: torch.mul(x, other)) == "none"
    assert why(lambda: torch.mul(y, y.clone()))[:2] == (
        "argument self: size (8, 8) -> (8, 9)",
        "argument other: size (8, 8) -> (8, 9)",
    )
    assert why(lambda: torch.mul(half, other)) == ("argument self: dtype float32 -> bfloat16",)
    assert why(lambda: torch.mul(x.t(), other)) == ("argument self: layout contiguous -> strides (1, 8)",)
    assert why(lambda: torch.mul(x, x)) == ("argument other: memory none -> that of argument self",)
    assert why(lambda: torch.mul(x, 2)) == ("argument other: a tensor -> a number (int)",)
    assert why(lambda: torch.mul(x, 3)) == "none"  # numbers are data
    assert why(lambda: torch.mul(x, 0.5)) == ("argument other: a number (int) -> a number (float)",)
    assert why(lambda: torch.mul(square[1:, :8], other)) == (
        "argument self: layout strides (1, 8) -> strides (9, 1)",
        "argument self: storage its own -> float32 (9, 9) at any offset",
    )


def test_recompiles_by_constants_lists_and_settings(why):
    x = torch.ones(8, 8, device="tpu")
    why(lambda: x.sum(0))
    assert why(lambda: x.sum(1)) == ("argument dim: (0,) -> (1,)",)
    assert why(lambda: x.sum(1, keepdim=True)) == ("argument keepdim: its default -> True",)
    with settings.override(xla_effort="low"):
        assert why(lambda: x.sum(1)) == ("setting xla_effort none -> low",)
    y = torch.ones(8, 8, device="tpu")
    why(lambda: torch.cat([x, y]))
    assert why(lambda: torch.cat([x, y, y.clone()]))[0] == "argument tensors: length 2 -> 3"


def test_reused_memory_is_part_of_a_signature(why):
    with settings.override(donation_threshold=256):
        x, other = torch.ones(8, 8, device="tpu"), torch.ones(8, 8, device="tpu")
        assert why(lambda: x.mul_(other)) is None
        assert torch_tpu.explain_recompiles().made[-1].signature["memory reused of"] == "self"


def test_recompiles_of_functions_are_explained():
    """By the guard that failed, and which of the earlier times it was one of; sizes within the graph by its signature."""
    scale = [2.0]

    def scaled(x):
        return x * len(scale)

    compiled = torch.compile(scaled, backend="tpu", dynamic=False)
    x = torch.ones(5, device="tpu", requires_grad=True)
    compiled(x.detach())
    torch_tpu.reset_stats()
    compiled(x.detach().double())
    scale.append(3.0)
    compiled(x).sum().backward()
    said = [str(made) for made in torch_tpu.explain_recompiles() if made.kind == "graph"]
    assert len(said) == 3, "the gradient has a graph of its own"
    for text in said:
        assert "scaled was compiled again, since a guard failed: " in text
    assert "dtype mismatch. expected Float, actual Double" in said[0]


def test_a_loop_over_sizes_shows_up(why):
    for size in range(1, 6):
        why(lambda size=size: torch.ones(size, device="tpu").exp())
    text = str(torch_tpu.explain_recompiles())
    assert "aten::exp (operator): 5 programs" in text and "argument self: size (4,) -> (5,)" in text
    assert len(torch_tpu.explain_recompiles().of("aten::exp")) == 5


@pytest.mark.parametrize("mode", [torch.tpu.EagerMode.DEFER_NEVER, torch.tpu.EagerMode.DEFER_AND_FUSE])
def test_programs_are_dropped_before_mappings_run_out(monkeypatch, counters, mode):
    monkeypatch.setattr(heap, "CROWDED", 0.0)
    monkeypatch.setattr(client, "CHECKED_EVERY", 4)
    with torch.tpu.set_eager_mode(mode):
        for _ in range(2):
            for size in range(3, 9):
                assert (torch.ones(size, device="tpu") * 3 + 1).sum().item() == 4 * size
    assert counters.crowded > 1
    before = counters.crowded
    monkeypatch.setattr(heap, "CROWDED", 1.0)
    with torch.tpu.set_eager_mode(mode):
        for size in range(13, 29):
            assert (torch.ones(size, device="tpu") * 3 + 1).sum().item() == 4 * size
    assert counters.crowded == before
