"""The rules that make configurations small and inputs fit, and what a sweep over models writes."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from torch_tpu.conformance.models import inputs, judge, recipe, report, sweep
from torch_tpu.conformance.models.build import classes, exceptions
from torch_tpu.conformance.models.inputs import Maker
from torch_tpu.conformance.models.judge import ModelCase, ModelResult, Run
from torch_tpu.conformance.models.shrink import HEADS, HIDDEN, VOCABULARY, shrink


def small(name: str, **overrides):
    return shrink(transformers.CONFIG_MAPPING[name](), overrides)


def test_widths_heads_layers_and_vocabulary_are_small():
    config = small("llama")
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (HIDDEN, HEADS, 2)
    assert config.vocab_size == VOCABULARY and config.max_position_embeddings == 128


def test_the_default_is_not_changed():
    default = transformers.LlamaConfig()
    shrink(default)
    assert default.hidden_size == 4096


def test_as_many_keys_as_queries_stays_so_and_fewer_stay_fewer():
    assert small("llama").num_key_value_heads == HEADS
    assert small("mistral").num_key_value_heads == 2


def test_each_kind_of_layer_stays():
    config = small("qwen3_next")
    assert set(config.layer_types) == {"linear_attention", "full_attention"}
    assert config.num_hidden_layers == len(config.layer_types)


def test_nested_configurations_are_small_and_share_their_token_ids():
    config = small("qwen2_vl")
    assert config.text_config.hidden_size == HIDDEN and config.vision_config.depth == 2
    assert len({config.image_token_id, config.video_token_id, config.vision_start_token_id}) == 3
    assert 20 < config.image_token_id < VOCABULARY
    assert sum(config.text_config.rope_parameters["mrope_section"]) == HIDDEN // HEADS // 2


def test_dropout_is_off_and_stages_keep_their_number():
    config = small("swin")
    assert config.hidden_dropout_prob == 0.0 and config.drop_path_rate == 0.0
    assert len(config.depths) == 4 and sum(config.depths) == 5


def test_overrides_win_also_in_nested_configurations():
    assert small("llama", hidden_size=48).hidden_size == 48
    assert small("qwen2_vl", text_config={"hidden_size": 32}).text_config.hidden_size == 32


def test_fewer_layers_of_the_original_shape():
    config = shrink(transformers.BertConfig(), manner="shallow")
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (768, 2, VOCABULARY)


def test_scaled_widths_keep_their_proportions():
    config = shrink(transformers.BertConfig(), manner="scaled")
    assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (96, 384, 12)
    hiera = shrink(transformers.CONFIG_MAPPING["sam2_hiera_det_model"](), manner="scaled")
    assert hiera.embed_dim_per_stage == [hiera.hidden_size * 2**i for i in range(4)]


def test_open_fields_are_filled_where_a_model_needs_them():
    assert small("lfm2_moe").layer_types is None
    filled = shrink(transformers.CONFIG_MAPPING["lfm2_moe"](), manner="filled")
    assert filled.layer_types == ["full_attention"] * filled.num_hidden_layers


def test_everything_that_a_rule_makes_can_be_given():
    def forward(self, input_ids, flattened_patches=None, inputs_embeds=None, unknown=None): ...

    config = small("pix2struct_vision_model")
    assert list(Maker(config, forward).make()) == ["input_ids"]
    made = Maker(config, forward, everything=True).make()
    assert list(made) == ["input_ids", "flattened_patches"]
    assert made["flattened_patches"].shape == (2, 16, 2 + config.patch_embed_hidden_size)
    assert made["flattened_patches"][0, :5, :2].tolist() == [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1]]


def test_inputs_without_a_part_that_takes_them_are_not_given():
    def forward(self, input_ids=None, pixel_values=None, input_features=None): ...

    assert list(Maker(small("gemma4"), forward, "image").make()) == ["input_ids"]
    assert list(Maker(small("llava"), forward, "image").make()) == ["input_ids", "pixel_values", "input_features"]


def test_inputs_follow_the_signature():
    def forward(self, input_ids=None, attention_mask=None, unknown=None, labels=None): ...

    made = Maker(small("llama"), forward).make()
    assert {name: list(value.shape) for name, value in made.items()} == {
        "input_ids": [2, 12],
        "attention_mask": [2, 12],
    }
    assert made["attention_mask"][-1, -2:].tolist() == [0, 0]
    assert int(made["input_ids"].max()) < VOCABULARY


def test_what_has_no_maker_is_named():
    def forward(self, molecule): ...

    with pytest.raises(LookupError, match="'molecule'"):
        Maker(small("llama"), forward).make()


def test_shapes_of_the_table():
    def forward(self, states, timesteps): ...

    given = {"states": [2, 3, 5], "timesteps": [2, 3, "int:4"]}
    made = Maker(small("llama"), forward, given=given).make()
    assert made["states"].shape == (2, 3, 5) and int(made["timesteps"].max()) < 4


def test_images_come_in_layouts():
    def forward(self, pixel_values, image_grid_thw=None): ...

    config = small("qwen2_vl")
    assert list(inputs.variants(config, forward))[:2] == ["image", "images"]
    assert Maker(config, forward, "image").make()["pixel_values"].shape[1] == 3
    patches = Maker(config, forward, "patches").make()
    assert patches["pixel_values"].shape == (32, 3 * 2 * 8 * 8)
    assert patches["image_grid_thw"].tolist() == [[1, 4, 4]] * 2


def test_labels_are_by_the_name_of_the_class():
    config, ids = small("llama"), {"input_ids": torch.tensor([[30, 150]])}
    assert inputs.labels("LlamaForCausalLM", config, ids)["labels"].tolist() == [[30, -100]]
    assert inputs.labels("BertForSequenceClassification", config, ids)["labels"].shape == (1,)
    assert inputs.labels("BertModel", config, ids) == {}


def test_the_class_that_takes_everything_comes_first():
    assert classes(transformers.CONFIG_MAPPING["llama"])[0].__name__ == "LlamaForCausalLM"
    assert classes(transformers.CONFIG_MAPPING["whisper"])[0].__name__ == "WhisperForConditionalGeneration"
    assert classes(transformers.CONFIG_MAPPING["clip"])[0].__name__ == "CLIPModel"


def test_exceptions_are_of_models_that_exist():
    for name, rules in exceptions()["transformers"].items():
        assert name in transformers.CONFIG_MAPPING
        assert set(rules) <= {"class", "default", "config", "inputs", "not_applicable"}


def run_of(value: float, **changes) -> Run:
    parts = {
        "outputs": {"logits": torch.tensor([1.0, value])},
        "loss": torch.tensor(1.0),
        "gradients": {"w": torch.tensor([1.0])},
        "parameters": {"w": torch.tensor([2.0])},
        "primary": "logits",
    }
    return Run(**(parts | changes))


def test_equal_runs_agree_and_different_ones_do_not():
    assert max(judge.compare(run_of(2.0), run_of(2.0)).values()) == 0.0
    with pytest.raises(AssertionError, match="output logits: relative error"):
        judge.compare(run_of(2.01), run_of(2.0))
    with pytest.raises(AssertionError, match="gradient w"):
        judge.compare(run_of(2.0, gradients={"w": torch.tensor([1.1])}), run_of(2.0))
    with pytest.raises(AssertionError, match="tokens"):
        judge.compare(run_of(2.0, tokens=torch.tensor([1])), run_of(2.0, tokens=torch.tensor([2])))
    with pytest.raises(AssertionError, match="have a gradient only here"):
        judge.compare(run_of(2.0, gradients={}), run_of(2.0))


def test_a_nan_in_another_place_is_a_difference():
    with pytest.raises(AssertionError, match="relative error inf"):
        judge.compare(run_of(float("nan")), run_of(2.0))


def test_the_primary_output_goes_by_priority():
    outputs = {"loss": torch.tensor(1.0), "last_hidden_state": torch.ones(2), "logits": torch.zeros(3)}
    assert recipe.primary(outputs)[0] == "logits"
    assert float(recipe.loss_of(outputs)) == 1.0


def results() -> list[ModelResult]:
    return [
        ModelResult(ModelCase("transformers", "llama", "strict"), "passed", "", "LlamaForCausalLM", "text"),
        ModelResult(ModelCase("transformers", "bert", "strict"), "failed", "<b>", "BertLMHeadModel", "text"),
        ModelResult(ModelCase("transformers", "bark", "strict"), "n/a", "no class"),
    ]


def test_rates_are_of_what_the_cpu_runs():
    text = report.as_markdown(results())
    assert "| **strict** | **all** | 1 | 1 | 0 | 0 | 0 | 1 | **50.0%** |" in text
    assert "`transformers/bert strict`: failed" in text and "- `bark`: no class" in text


def test_the_page_is_safe_and_complete():
    page = report.as_html(results())
    assert "LlamaForCausalLM" in page and "<b>" not in page and "&lt;b&gt;" in page


def test_results_are_stored_and_read_alike(tmp_path):
    path = tmp_path / "models.json"
    report.store(results(), path)
    assert sorted(report.load(path), key=lambda r: r.case) == sorted(results(), key=lambda r: r.case)
    assert len(json.loads(path.read_text())) == 3


def test_shards_and_patterns_of_models():
    plan = sweep.ModelPlan(libraries=("weights",), modes=("strict", "fused"))
    assert len(sweep.cases(plan)) == 2 * len(sweep.WEIGHTS)
    assert {case.name for case in sweep.cases(sweep.ModelPlan(names=("llam*",)))} >= {"llama", "llama4"}
    with pytest.raises(ValueError, match="no model is called"):
        sweep.cases(sweep.ModelPlan(names=("lama_of_no_kind",)))
    with pytest.raises(ValueError, match="there is no mode"):
        sweep.cases(sweep.ModelPlan(modes=("quick",)))
