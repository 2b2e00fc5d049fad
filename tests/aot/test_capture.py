"""The TPU compiler on a machine without a TPU: what is captured, that it compiles, and that nothing else notices."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import torch_tpu
import torch_tpu.cache
from torch_tpu import aot
from torch_tpu.errors import NoValueError
from torch_tpu.runtime import cache, client, compile_only, platform
from torch_tpu.runtime.examine import examine
from torch_tpu.runtime.topology import Topology
from torch_tpu.stats import counters

GENERATIONS = ("v5e-1", "v5p-1", "v6e-1", "v7x-1")


def network(device="meta"):
    layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]
    return torch.nn.Sequential(*layers).to(device)


def squares(output):
    return output.square().mean()


@pytest.mark.parametrize("topology", GENERATIONS)
def test_a_module_is_one_program_and_compiles(topology):
    compiled = aot.compile(network(), (torch.empty(8, 64, device="meta"),), topology)
    (program,) = compiled.runs
    assert program.built.cost["flops"] >= 2 * 8 * 64 * 256 * 2
    weights = 4 * (64 * 256 + 256 + 256 * 64 + 64 + 8 * 64)
    assert program.built.memory.arguments >= weights
    assert "fusion" in compiled.optimized_hlo
    assert "func.call" in compiled.stablehlo


def test_an_input_may_be_given_by_itself():
    x = torch.empty(8, 64, device="meta")
    assert aot.compile(network(), x).stablehlo == aot.compile(network(), (x,)).stablehlo


def test_the_compiler_says_nothing_on_the_way():
    code = "import torch; from torch_tpu import aot; aot.compile(torch.tanh, torch.zeros(4)).report"
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_training_step_is_one_program_that_updates_in_place():
    compiled = aot.compile(network(), (torch.empty(8, 64, device="meta"),), optimizer=torch.optim.AdamW, loss=squares)
    (program,) = compiled.runs
    weights = 4 * (64 * 256 + 256 + 256 * 64 + 64)
    memory = program.built.memory
    assert memory.aliased >= 3 * 2 * 4 * 64 * 256, "weights and both moments of the large ones stay in their memory"
    assert memory.outputs - memory.aliased < weights, "gradients are no results"


def test_what_the_module_returns_besides_the_loss_is_no_result():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 4096)

        def forward(self, x):
            logits = self.layer(x)
            return SimpleNamespace(loss=logits.square().mean(), logits=logits)

    compiled = aot.compile(Model(), (torch.empty(512, 64, device="meta"),), optimizer=torch.optim.SGD)
    memory = compiled.programs[0].built.memory
    assert memory.outputs - memory.aliased < 512 * 4096


def test_data_parallel_training_averages_gradients_over_every_device():
    compiled = aot.compile(
        network(),
        (torch.empty(8, 64, device="meta"),),
        "v6e-8",
        optimizer=torch.optim.SGD,
        loss=squares,
        data_parallel=True,
    )
    together = [program for program in compiled.runs if program.processes]
    assert {program.name for program in together} == {"all_reduce"}
    assert all(program.processes == tuple(range(8)) for program in together)
    assert sum(program.built.memory.arguments for program in together) >= 4 * 2 * 64 * 256
    assert not torch.distributed.is_initialized()


def test_the_device_of_the_process_is_not_touched():
    model, x = network("tpu"), torch.randn(8, 64, device="tpu")
    before, state = model(x), torch.tpu.get_rng_state()
    values = [p.detach().cpu().clone() for p in model.parameters()]
    compiled = aot.compile(model, (x,), optimizer=torch.optim.SGD, loss=squares)
    assert len(compiled.runs) == 1
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    assert all(torch.equal(p.detach().cpu(), value) for p, value in zip(model.parameters(), values, strict=True))
    assert torch.equal(torch.tpu.get_rng_state(), state)
    assert platform.client().platform != "tpu"


def test_the_same_programs_for_other_tpus_are_not_traced_again():
    compiled = aot.compile(network(), (torch.empty(8, 64, device="meta"),), "v6e-1")
    traced = counters.executions
    other = compiled.retarget("v5e-4")
    assert counters.executions == traced
    assert other.stablehlo == compiled.stablehlo
    assert other.programs[0].key != compiled.programs[0].key
    assert other.programs[0].built.cost["optimal_seconds"] > compiled.programs[0].built.cost["optimal_seconds"]


def test_a_function_in_the_current_mode_is_several_programs():
    with aot.device("v6e-1"):
        weight = aot.stand_in(torch.empty(32, 32, device="meta"))
    compiled = aot.compile(lambda x: (x @ weight).relu(), (torch.empty(4, 32),), whole=False)
    assert [program.name for program in compiled.runs] == ["aten_mm", "aten_relu"]


def test_compiled_functions_are_captured():
    with aot.device("v6e-1"):
        weight = aot.stand_in(torch.empty(32, 32, device="meta"))
    compiled = aot.compile(torch.compile(lambda x: (x @ weight).relu().sum()), (torch.empty(4, 32),))
    assert len(compiled.runs) == 1


def test_large_models_take_no_memory():
    with torch.device("meta"):
        model = torch.nn.Linear(1 << 17, 1 << 17, bias=False, dtype=torch.bfloat16)  # 32 GiB
    compiled = aot.compile(model, (torch.empty(8, 1 << 17, dtype=torch.bfloat16, device="meta"),), "v7x-1")
    assert compiled.programs[0].built.memory.arguments > 32 << 30


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="a function or a module, and then its arguments, not 3"):
        aot.compile(3, ())


def test_an_optimizer_that_calls_the_model_is_refused():
    with pytest.raises(TypeError, match="LBFGS calls the model several times a step"):
        aot.compile(torch.nn.Linear(4, 4), torch.empty(2, 4, device="meta"), optimizer=torch.optim.LBFGS)


def test_what_does_not_fit_is_refused_with_the_compilers_reason():
    x = torch.empty(1 << 17, 1 << 17, device="meta")
    compiled = aot.compile(lambda x: x.sin().cumsum(0), (x,), "v5e-1")
    with pytest.raises(torch_tpu.errors.CompileError, match="HBM"):
        compiled.programs[0].built  # noqa: B018


@pytest.mark.parametrize("optimizer", [torch.optim.Adafactor, torch.optim.ASGD])
def test_optimizers_that_read_values_are_captured_compiled(optimizer):
    compiled = aot.compile(network(), (torch.empty(8, 64, device="meta"),), optimizer=optimizer, loss=squares)
    (program,) = compiled.runs
    assert program.built.memory.aliased >= 2 * 4 * 64 * 256, "weights stay in their memory"
    assert any(note.startswith(f"{optimizer.__name__} reads values") for note in compiled.report.notes)


class Printing(torch.optim.SGD):
    def step(self, closure=None):
        print(self.param_groups[0]["params"][0])
        return super().step(closure)


def test_an_optimizer_that_needs_values_is_named():
    with pytest.raises(NoValueError, match="the optimizer reads the values of a tensor: Printing"):
        aot.compile(network(), (torch.empty(8, 64, device="meta"),), optimizer=Printing, loss=squares)


def asserted(x):
    torch._assert_async(x.sum() > 0)
    return x.exp()


@pytest.mark.parametrize(
    "function",
    [torch.linalg.cholesky, torch.linalg.inv, lambda x: torch.linalg.solve(x, x), torch.linalg.ldl_factor, asserted],
)
def test_checks_of_results_pass_where_there_are_no_values(function):
    x = torch.empty(64, 64, device="meta")
    for captured in (aot.compile(function, (x,)), aot.compile(torch.compile(function, dynamic=False), (x,))):
        assert captured.runs and captured.report.compiled


@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.nonzero, bool, print])
def test_values_that_are_not_there_are_not_read(read):
    with pytest.raises(NoValueError, match="v6e-1"):
        aot.compile(lambda x: read(x.sum()), (torch.empty(4, device="meta"),))


def test_small_values_from_the_host_are_known():
    with aot.device("v6e-1"):
        assert torch.tensor([1, 2, 3], device="tpu").tolist() == [1, 2, 3]


def test_shared_parameters_stay_shared():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model[1].weight = model[0].weight
    with aot.device("v6e-1"):
        made = aot.stand_in(model)
        assert made[0].weight is made[1].weight
        assert made[0].bias.device.type == "tpu"
    assert model[0].weight.device.type == "cpu"


def test_a_loss_is_needed():
    with pytest.raises(ValueError, match="pass loss="):
        aot.compile(network(), (torch.empty(8, 64, device="meta"),), optimizer=torch.optim.SGD)


def test_programs_are_kept_under_the_names_that_a_tpu_looks_up(tmp_path):
    """A client on the TPU itself makes its keys by the same function of text, options and environment."""
    with torch_tpu.settings.override(cache_dir=str(tmp_path)):
        compiled = aot.compile(network(), (torch.empty(8, 64, device="meta"),), "v6e-8")
        program, here = compiled.programs[0], compile_only.client(compiled.topology)
        there = object.__new__(client.Client)  # it cannot start without the TPU
        there.platform = "tpu"
        there.environment = cache.environment("tpu", here.device_kind, here.raw.platform_version)
        effort, key = there.identify(program.text, program.results, "normal")
        assert (effort, key) == (program.effort, program.key)
        assert cache.disk().get(key) is None
        executable = program.built.serialize()
        assert cache.disk().get(key) == executable


def test_compiled_functions_have_the_same_names_after_others(tmp_path):
    """How many graphs there were before is nothing that a TPU machine has in common with this one."""

    def square(x):
        return (x * x).sin()

    x = torch.empty(8, 64, device="meta")
    first = aot.compile(torch.compile(square), (x,), whole=False)
    aot.compile(torch.compile(lambda x: x.cos() + 1), (x,), whole=False)
    torch._dynamo.reset()
    again = aot.compile(torch.compile(square), (x,), whole=False)
    assert first.runs == again.runs


def test_what_the_compiler_said_is_no_program(tmp_path):
    model = torch.nn.Linear(24, 48, device="meta")
    compiled = aot.compile(model, (torch.empty(8, 24, device="meta"),), "v6e-8")
    with torch_tpu.settings.override(cache_dir=str(tmp_path / "cache")), aot.device("v6e-8"):
        assert compiled.report.compiled
        assert torch_tpu.cache.entries() == [] and torch_tpu.cache.verify() == (0, 0, {})
        compiled.save(tmp_path / "saved")
        assert [entry.key for entry in torch_tpu.cache.entries()] == [compiled.programs[0].key]
        assert torch_tpu.cache.export_to(tmp_path / "file") == 1


def test_programs_of_several_devices_are_for_as_many():
    options = {"optimizer": torch.optim.SGD, "loss": lambda output: output.square().mean(), "data_parallel": True}
    compiled = aot.compile(torch.nn.Linear(8, 8), (torch.empty(8, 8, device="meta"),), "v5e-4", **options)
    assert compiled.report.devices == 4
    assert compiled.retarget("v6e-4").topology.name == "v6e-4"
    for other in ("v5e-1", "v5e-8"):
        with pytest.raises(ValueError, match=r"Linear is of 4 devices; capture it for the \d of v5e-"):
            compiled.retarget(other)
    program = next(program for program in compiled.programs if program.processes)
    with pytest.raises(torch_tpu.errors.CompileError, match="name a larger topology"):
        examine(compile_only.client(Topology.parse("v5e-1")).adopt(program))


def test_nothing_is_saved_of_what_does_not_compile(tmp_path):
    x = torch.empty(1 << 17, 1 << 17, device="meta")
    with pytest.raises(torch_tpu.errors.CompileError, match=r"does not compile for v5e-1\n.*too much"):
        aot.compile(lambda x: x.sin().cumsum(0), (x,), "v5e-1").save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_compiled_programs_travel_to_a_machine_with_that_tpu_and_to_no_other(tmp_path):
    compiled = aot.compile(network(), (torch.empty(8, 64, device="meta"),), "v6e-8")
    with torch_tpu.settings.override(cache_dir=str(tmp_path / "here")):
        executable = compiled.retarget("v6e-16").programs[0].built.serialize()
        assert torch_tpu.cache.export_to(tmp_path / "file") == 1
        on_cpu = torch_tpu.cache.verify()
        assert (on_cpu.sound, list(on_cpu.unfit)) == (1, ["made with platform tpu; here it is cpu"])
    with torch_tpu.settings.override(cache_dir=str(tmp_path / "there")), aot.device("v5e-1"):
        assert torch_tpu.cache.import_from(tmp_path / "file").added == 0
    with torch_tpu.settings.override(cache_dir=str(tmp_path / "there")), aot.device("v6e-8"):
        assert torch_tpu.cache.import_from(tmp_path / "file").added == 1
        assert torch_tpu.cache.verify().unfit == {}
        assert cache.disk().get(compiled.programs[0].key) == executable


def test_a_result_is_saved(tmp_path):
    compiled = aot.compile(network(), (torch.empty(8, 64, device="meta"),))
    place = compiled.save(tmp_path / "saved")
    about = json.loads((place / "programs.json").read_text())
    (program,) = about["programs"]
    assert about["topology"] == "v6e-1"
    assert (place / f"{program['name']}.mlir").read_text() == compiled.stablehlo
    assert (place / f"{program['name']}.executable").stat().st_size > 1000
    assert json.loads((place / "report.json").read_text()) == json.loads(compiled.report.to_json())


SCRIPT = """
import torch, torch_tpu
model = torch.nn.Linear(16, 16, device="tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 16, device="tpu")).square().sum().backward()
    optimizer.step()
assert torch.tpu.get_device_name() == "TPU v5e", torch.tpu.get_device_name()
assert torch.tpu.mem_get_info()[1] == 16 << 30
print(torch_tpu.stats()["compiles"], torch_tpu.stats()["fallbacks"])
"""


def test_a_script_fills_the_cache_without_a_tpu(tmp_path):
    where = {"TORCH_TPU_TOPOLOGY": "v5e-1", "TORCH_TPU_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=os.environ | where, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    compiles, fallbacks = run.stdout.split(maxsplit=1)
    assert int(compiles) > 5
    assert fallbacks.strip() == "{}"
    assert sum(path.is_file() for path in tmp_path.rglob("*")) >= int(compiles)


LOOP = """
import torch
from torch_tpu.runtime import platform
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
x = torch.ones(4, 64).to("tpu")
for _ in range(3):
    torch.tpu.synchronize()
    platform.client().started.clear()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    torch.tpu.synchronize()
    print(*(program.key for program in platform.client().started))
"""


def test_a_loop_runs_the_programs_that_were_captured():
    """On the device that is not there: the keys are those of the disk cache."""
    where = {"TORCH_TPU_TOPOLOGY": "v5e-1", "TORCH_TPU_DEFER_AND_FUSE": "1"}
    run = subprocess.run([sys.executable, "-c", LOOP], env=os.environ | where, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    captured = [
        aot.compile(model, (torch.ones(4, 64),), "v5e-1", optimizer=torch.optim.AdamW, loss=mean, warm_up=number).runs
        for number in range(3)
    ]
    assert [line.split() for line in run.stdout.splitlines()] == [
        [program.key for program in runs] for runs in captured
    ]
    assert captured[0] and captured[1] == captured[2] != captured[0]


def mean(answer):
    return answer.square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_save_memory(reentrant):
    """What a checkpoint computes again is computed again, not found by the compiler among what was there before."""

    class Blocks(torch.nn.Module):
        def __init__(self, again):
            super().__init__()
            self.blocks = torch.nn.ModuleList([network() for _ in range(6)])
            self.again = again

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant) if self.again else block(x)
            return x

    def reported(again):
        x = torch.empty(65536, 64, device="meta", requires_grad=True)
        return aot.compile(Blocks(again), (x,), "v6e-1", optimizer=torch.optim.SGD, loss=squares).report

    kept, again = reported(False), reported(True)
    assert again.work.flops > 1.1 * kept.work.flops
    assert again.memory.temporaries < 0.6 * kept.memory.temporaries
