"""`torch-tpu plan`: from a config file or a function to the report, its JSON, its page and a comparison."""

import json
import re
import sys

import pytest
import torch
from typer.testing import CliRunner

from torch_tpu import settings
from torch_tpu.aot import models, plans, render, report, tables
from torch_tpu.aot.prices import Price
from torch_tpu.cli.__main__ import app

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}
BATCH, SEQ = 2, 64


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], terminal_width=200)


def test_prefill_on_one_chip(config, tmp_path):
    file, page = tmp_path / "plan.json", tmp_path / "plan.html"
    done = run(
        *("--model", config, "--topology", "v6e-8", "--mode", "prefill", "--batch", BATCH, "--seq", SEQ),
        *("--price", "v6e=2", "--json", file, "--html", page),
    )
    assert done.exit_code == 0, done.output
    for words in (
        "compiles",
        "arguments",
        "estimate",
        "TorchTitan",
        "MaxText",
        "tokens/s/chip",
        "USD per million tokens",
    ):
        assert words in done.output
    found = json.loads(file.read_text())
    assert found["compiled"] and found["failure"] is None
    layers = 2 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 256 + 2 * 128)
    active = 512 * 128 + layers + 128
    assert found["model"]["parameters"] == active + 512 * 128
    active -= 512 * 128 * (SEQ - 1) / SEQ
    assert found["model"]["active"] == pytest.approx(active), "logits of the last token only"
    tokens, time, rates = BATCH * SEQ, found["time"]["estimate"], found["rates"]
    assert found["tokens"] == tokens
    per_token = 2 * active + 2 * 2 * 4 * (32 + 32) * SEQ
    assert found["model"]["flops_per_token"] == pytest.approx(per_token)
    assert found["work"]["requested_flops"] == pytest.approx(per_token * tokens, rel=0.005), "norms are in the formula"
    assert rates["mfu"] == pytest.approx(per_token * tokens / time / 918e12)
    assert rates["tokens_per_second_per_chip"] == pytest.approx(tokens / time)
    assert rates["usd_per_million_tokens"] == pytest.approx(2 / 3600 * time / tokens * 1e6)
    assert rates["usd_per_step"] == pytest.approx(8 * 2 / 3600 * time)
    assert found["time"]["least"] <= time <= found["time"]["cycles"]
    memory = found["memory"]
    assert memory["arguments"] >= 2 * found["model"]["parameters"]
    assert memory["total"] == sum(memory[name] for name in ("arguments", "outputs", "temporaries", "code"))
    assert "time" in found["estimates"] and "cost" in found["estimates"] and "memory" not in found["estimates"]
    assert any("each of the 8 devices" in note for note in found["notes"])
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "<svg" in text and "http" not in text
    assert "HBM of a device" in text and "estimate" in text


def test_the_matrix_products_of_a_training_step(config):
    (made,) = plans.plan(models.Workload(config, "train", BATCH, SEQ), ["v6e-1"])
    assert made.compiled
    assert made.programs == 1
    assert made.work.requested_flops == pytest.approx(made.model.full * BATCH * SEQ, rel=0.1)
    assert made.work.flops == pytest.approx(made.work.requested_flops, rel=0.05)
    parameters = made.model.parameters
    assert made.memory.arguments >= 3 * 2 * parameters, "weights and both moments"
    assert made.memory.outputs < 2 * parameters, "which are updated in place"
    places = [part.what for part in made.heaviest]
    assert any(
        re.match(r"aten_mm \(transformers.*modeling_llama\.py:\d+ in forward, backward\)", what) for what in places
    )
    lines = {line for what in places for line in re.findall(r"\w+\.py:\d+", what)}
    assert len(lines) >= 3, "operators of the layers, which are one loop, have lines of their own"
    assert not any("test_plan.py" in what for what in places), "the optimizer's operators are not this file's"
    assert sum(part.seconds for part in made.heaviest) == pytest.approx(made.time.estimate, rel=0.1), (
        "nothing is missing"
    )
    assert sum(made.time.bounds.values()) == pytest.approx(made.time.estimate)


def test_a_long_sweep_compiles_each_step_by_itself(config):
    """More sizes than Dynamo would make of one function, and none of them is made to serve others."""
    with torch._dynamo.config.patch(recompile_limit=1):
        for batch in (1, 2):
            (program,) = models.trace(models.Workload(config, "train", batch, 8), "v6e-1").runs
            assert program.text.count("stablehlo.while") == 2, "the layers, forwards and backwards"
            forward, backward = (text for text in program.text.split("func.func") if "stablehlo.while" in text)
            assert "stablehlo.reverse" not in forward and "stablehlo.reverse" in backward, "activations are not copied"


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_sequences_longer_than_the_model_has_positions_for(tmp_path, mode):
    file = tmp_path / "short.json"
    file.write_text(json.dumps(CONFIG | {"max_position_embeddings": SEQ}))
    fits, longer = (models.trace(models.Workload(str(file), mode, 1, seq), "v6e-1") for seq in (SEQ, SEQ + 1))
    assert fits.notes == ()
    assert longer.notes == (
        f"sequences of {SEQ + 1} tokens are longer than the {SEQ} positions that the config file gives",
    )


def test_a_model_that_takes_no_longer_sequences_says_so(tmp_path):
    path = tmp_path / "bert.json"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    path.write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 32, "vocab_size": 99, **sizes}))
    done = run("--model", path, "--topology", "v6e-1", "--mode", "prefill", "--seq", 64)
    assert done.exit_code == 2
    assert "sequences of 64 tokens are longer than the 32 positions" in done.output and "must match" in done.output


def test_files_are_written_before_the_report_is_read(config, tmp_path, monkeypatch):
    """`torch-tpu plan ... | head` closes the output in the middle of it."""

    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr(render, "show", closed)
    file, page = tmp_path / "plan.json", tmp_path / "plan.html"
    given = ("--model", config, "--topology", "v6e-1", "--mode", "prefill", "--batch", 1, "--seq", SEQ)
    assert run(*given, "--json", file, "--html", page).exit_code == 1
    assert json.loads(file.read_text())["compiled"] and "<html" in page.read_text()


def test_devices_that_train_together(config):
    load = models.Workload(config, "train", BATCH, SEQ, data_parallel=True)
    one, other = plans.plan(load, ["v6e-4", "v7x-1"])
    assert one.compiled and other.compiled
    assert one.time.missing["all-reduce"] >= 1 and other.time.missing["all-reduce"] >= 1
    assert one.programs > 1
    assert any("by their bytes of HBM only" in note and "all-reduce" in note for note in one.notes)
    assert not any("by itself" in note for note in one.notes)
    assert other.devices == 2 and other.rates.tokens_per_second_per_chip == pytest.approx(
        2 * BATCH * SEQ / other.time.estimate
    )


def test_decoding_takes_the_cache_as_an_argument(config):
    (made,) = plans.plan(models.Workload(config, "decode", BATCH, 128), ["v6e-1"])
    cache = 2 * 2 * BATCH * 2 * 32 * 128 * 2
    assert made.memory.arguments >= 2 * made.model.parameters - 512 * 128 * 2 + cache
    assert made.tokens == BATCH
    assert made.work.hbm_bytes >= 2 * made.model.active + cache, "all weights and the cache are read"
    assert made.rates.bound == "memory" or made.rates.intensity < made.rates.ridge


def test_a_sweep_names_the_best(config, tmp_path):
    file, page = tmp_path / "plan.json", tmp_path / "plan.html"
    done = run(
        *("--model", config, "--topology", "v5e-4,v7x-4", "--mode", "prefill", "--seq", SEQ, "--sweep", "batch=1,2"),
        *("--json", file, "--html", page),
    )
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert [(one["topology"], one["workload"]["batch"]) for one in found] == [
        ("v5e-4", 1),
        ("v7x-4", 1),
        ("v5e-4", 2),
        ("v7x-4", 2),
    ]
    assert "best by throughput: v7x-4, batch 2 x 64" in done.output
    cheapest = min(found, key=lambda one: one["rates"]["usd_per_million_tokens"])
    assert f"best by cost: {cheapest['topology']}, batch {cheapest['workload']['batch']} x 64" in done.output
    assert found[1]["devices"] == 8, "two devices a chip"
    assert page.read_text().count("<h2>") == 4


def test_what_does_not_fit_is_explained(config, tmp_path):
    large = tmp_path / "large.json"
    wide = {"hidden_size": 16384, "intermediate_size": 65536, "num_attention_heads": 64, "num_key_value_heads": 64}
    large.write_text(json.dumps(CONFIG | wide))
    page = tmp_path / "plan.html"
    done = run("--model", large, "--topology", "v5e-1", "--mode", "prefill", "--seq", 128, "--html", page)
    assert done.exit_code == 1, done.output
    said = " ".join(done.output.split())  # lines are as wide as the terminal
    assert "too much" in said and "what it is given (weights, optimizer state, the batch) takes" in said
    assert "bf16[65536,16384]" in said
    assert "CompileTimeHbmOom" in page.read_text()


MODULE = """
import torch

def model(batch):
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1), Mean())
    return layers, (torch.empty(batch, 64),)

class Mean(torch.nn.Module):
    def forward(self, x):
        return x.mean()

def nothing():
    return None

number = 3


def wide(batch, width):
    return None


def function(batch):
    return lambda x: x, (torch.empty(batch, 8),)


def broken(batch):
    return {}["rate"]


def image(batch):
    return torch.nn.Linear(64, 64), (torch.empty(batch, 64),)


def wrapped(compute, width=8):
    class Wrapped(torch.nn.Linear):
        def forward(self, x):
            return compute(super().forward(x))
    return Wrapped(8, 8), (torch.empty(4, width),)


def reads():
    return wrapped(lambda y: y if y.sum().item() > 0 else -y)


def misfit():
    return wrapped(lambda y: y, 9)


def hosted():
    return wrapped(lambda y: y.to_sparse_csr().to_dense())


class InDictionary(Mean):
    def forward(self, x):
        return {"loss": super().forward(x)}


def fixed():
    return image(4)


def dictionary(batch):
    return torch.nn.Sequential(*image(batch)[:1], InDictionary()), image(batch)[1]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "planned_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "planned_module"
    sys.modules.pop("planned_module", None)


def test_a_function_of_ones_own(module):
    (made,) = plans.plan(models.Workload(f"{module}:model", "train", 32, 1), ["v6e-1"])
    assert made.compiled and made.model is None and made.rates.mfu is None
    assert made.work.requested_flops >= 2 * 32 * 64 * 64 * 2
    assert made.rates.hardware_utilization > 0
    assert any("not known" in note for note in made.notes)
    rows = [row for section in tables.sections(made) for row in section.rows]
    assert not any("MFU" in row.what for row in rows)


def test_a_model_without_sequences(module):
    """Nobody knows how many tokens an image is."""
    load = models.Workload(f"{module}:image", "prefill", 32)
    (made,) = plans.plan(load, ["v5e-8"])
    assert made.tokens is None and made.rates.tokens_per_second_per_chip is None
    assert tables.title(made) == "planned_module:image: prefill, batch 32, on v5e-8"
    one, two = plans.plan(load, ["v6e-1"], sweep={"batch": [8, 16]})
    assert two.work.requested_flops == 2 * one.work.requested_flops == 2 * 16 * 64 * 64
    assert two.rates.samples_per_second_per_chip == pytest.approx(16 / two.time.estimate)
    dear = two.price.usd_per_chip_hour / 3600 / two.rates.samples_per_second_per_chip * 1e6
    assert two.rates.usd_per_million_samples == pytest.approx(dear)
    assert [row.what for row in tables.best([one, two])] == ["best by throughput", "best by cost"]
    assert all(row.value == "v6e-1, batch 16" and " samples" in row.remark for row in tables.best([one, two]))
    (rest, *columns), *lines = [line.split() for line in render.text([one, two], width=80).splitlines()[2:5]]
    assert (rest, columns[:4]) == ("topology", ["batch", "seq", "HBM", "step"])
    assert [line[:3] for line in lines[1:]] == [["v6e-1", "8", "-"]], "a row is a line"
    assert "samples/s" in render.text([one, two], width=80) and "USD per million samples" in str(two)


def test_a_model_of_one_size_has_no_best(module):
    (made,) = plans.plan(models.Workload(f"{module}:fixed", "prefill"), ["v6e-1"])
    assert [(row.what, row.value) for row in tables.best([made])] == [("best", "not known")]


def test_a_loss_in_a_dictionary(module):
    (made,) = plans.plan(models.Workload(f"{module}:dictionary", "train", 32), ["v6e-1"])
    assert made.compiled


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--model", "nothing.json"), "nothing.json"),
        (("--model", "llama"), "neither a config file (.json) nor a function, such as my_module:model"),
        (("--model", "planned_module:model", "--topology", ","), "no topology is given"),
        (("--model", "no_such_module:f"), "no_such_module"),
        (("--model", "planned_module:missing"), "has no function 'missing'"),
        (("--model", "planned_module:number"), "has no function 'number'"),
        (("--model", "planned_module:nothing"), "returned no module and its inputs"),
        (("--model", "planned_module:wide"), "any of batch, seq, mode: missing a required argument: 'width'"),
        (("--model", "planned_module:function"), "returned a function; a training step needs a module"),
        (
            ("--model", "planned_module:broken", "--mode", "prefill"),
            r"KeyError: 'rate' at .*planned_module.py:\d+ in broken",
        ),
        (
            ("--model", "planned_module:image", "--sweep", "seq=1,2"),
            "'seq' cannot be swept: planned_module:image takes no",
        ),
        (
            ("--model", "planned_module:reads", "--mode", "prefill"),
            r"values of a tensor are needed.*planned_module.py:\d+ in <lambda>",
        ),
        (
            ("--model", "planned_module:misfit", "--mode", "prefill"),
            r"^cannot plan: RuntimeError: .*must have same reduction dim.*in forward",
        ),
        (
            ("--model", "planned_module:hosted", "--mode", "prefill"),
            r"aten::_to_sparse_csr would run on the CPU, and has no values.*in <lambda>",
        ),
        (("--model", "planned_module:model", "--topology", "v6e-3"), "does not come with 3 chips"),
        (("--model", "planned_module:model", "--mode", "play"), "no mode 'play'"),
        (("--model", "planned_module:model", "--batch", "0"), "at least 1"),
        (("--model", "planned_module:model", "--dtype", "float3"), "not of dtype 'float3'"),
        (("--model", "planned_module:model", "--dtype", "float64"), "dtype is for config files"),
        (("--model", "planned_module:model", "--recompute"), "recompute is for config files"),
        (("--model", "planned_module:model", "--mode", "decode", "--data-parallel"), "for training, not for decode"),
        (("--model", "planned_module:model", "--sweep", "batch=x"), "is no sweep"),
        (("--model", "planned_module:model", "--sweep", "layers=1"), "'layers' cannot be swept"),
        (("--model", "planned_module:model", "--price", "v6e"), "write USD for a chip-hour, such as v6e=1.89"),
        (
            ("--model", "planned_module:model", "--price", "/no.toml"),
            "'/no.toml' is neither a price, such as v6e=1.89,",
        ),
        (("--model", "/no.json"), "cannot plan: /no.json is not there"),
        (("--model", "planned_module:model", "--json", "/nowhere/x.json"), "/nowhere/x.json cannot be written"),
        (("--model", "planned_module:model", "--html", "."), ". cannot be written"),
    ],
)
def test_wrong_questions(module, arguments, match):
    done = run(*arguments)
    assert done.exit_code == 2
    said = " ".join(done.output.split())
    assert match in said or re.search(match, said), said


def test_wrong_configs(tmp_path):
    file = tmp_path / "config.json"
    for content, match in (
        (b"{", "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[1, 2]", "holds a list"),
        (b'{"model_type": "abacus"}', "model_type 'abacus'"),
        (b'{"model_type": ["llama"]}', "model_type"),
        (b'{"model_type": "vit"}', "no causal language model; plan it as a function"),
        (b'{"model_type": "bert", "architectures": ["BertForMaskedLM"]}', "BertForMaskedLM, no causal language model"),
        (b'{"model_type": "llama", "hidden_size": "big"}', "no model that Transformers can build: .*hidden_size"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"config\.json .*{match}"):
            models.from_config(str(file), torch.float32)


def test_experts_count_by_how_many_are_chosen(tmp_path):
    """Whether layers are one loop or not, though their parameters then have other names."""
    path = tmp_path / "experts.json"
    experts = {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 128, "head_dim": 32}
    named = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}
    path.write_text(json.dumps(CONFIG | named | experts))
    found = []
    for unrolled in (False, True):
        workload = models.Workload(str(path), batch=BATCH, seq=SEQ, unrolled=unrolled)
        found.append(models.trace(workload, "v6e-1").model)
    assert found[0] == found[1]
    attention, router = 2 * 128 * 128 + 2 * 128 * 64, 128 * 4
    per_layer = attention + router + 3 * 128 * 128 + 2 * 128 + 2 * 32
    assert found[0].active == 2 * per_layer + 128 + 512 * 128


def test_layers_that_make_no_loop_are_unrolled(tmp_path):
    path = tmp_path / "mamba.json"
    config = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "state_size": 8}
    path.write_text(json.dumps(config))
    compiled = models.trace(models.Workload(str(path), batch=1, seq=16), "v6e-1")
    assert any("unrolled" in note for note in compiled.report.notes) and compiled.report.compiled


def test_a_model_without_attention(tmp_path):
    file = tmp_path / "config.json"
    shape = {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 64, "num_heads": 4, "head_dim": 32, "n_groups": 1}
    file.write_text(json.dumps({"model_type": "mamba2", **shape}))
    assert type(models.from_config(str(file), torch.bfloat16)).__name__ == "Mamba2ForCausalLM"


def test_errors_keep_their_brackets(module, tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text("usd_per_chip_hour = 3")
    done = run("--model", "planned_module:model", "--price", str(prices))
    assert done.exit_code == 2 and "under [usd_per_chip_hour]" in " ".join(done.output.split())


def test_a_plan_needs_no_network(config, monkeypatch):
    """Nothing opens a connection to another machine: names are not even looked up."""
    import socket

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up a host"))
    with settings.override(cache=False):
        (made,) = plans.plan(models.Workload(config, "decode", 1, 32), ["v6e-1"])
    assert made.compiled


def test_numbers_to_read():
    assert [tables.seconds(value) for value in (1.5, 0.0125, 3e-7)] == ["1.5 s", "12.5 ms", "0.3 us"]
    assert [tables.count(value) for value in (8.03e9, 12, 2.5e15)] == ["8.03 G", "12 ", "2.50 P"]
    assert [tables.money(value) for value in (1234.5, 0.01234)] == ["1,234.50", "0.0123"]
    assert report.ESTIMATES and Price(1.0, "x").usd_per_chip_hour == 1
