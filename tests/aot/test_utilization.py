"""FLOPs by definition: the published conventions, on published sizes."""

import json

import pytest
import torch

from torch_tpu.aot import models, utilization

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
LARGE = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
QWEN = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
EXPERTS = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "tie_word_embeddings": False,
}


def flops(tmp_path, config, seq, mode="train"):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = models.from_config(str(path), torch.bfloat16)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    return utilization.model_flops(model, seq, mode)


@pytest.mark.parametrize(
    ("config", "seq", "parameters", "gflops"),
    [
        (LLAMA, 2048, 8_030_261_248, 48.25),
        (LLAMA, 8192, 8_030_261_248, 57.91),
        (LLAMA | LARGE, 4096, 70_553_706_496, 449.23),
        (QWEN, 2048, 8_190_735_360, 49.03),
        (QWEN, 4096, 8_190_735_360, 52.66),
        (EXPERTS, 4096, 30_532_122_624, 27.92),
    ],
)
def test_flops_a_token_as_torchtitan_counts_them(tmp_path, config, seq, parameters, gflops):
    found = flops(tmp_path, config, seq)
    assert found.parameters == parameters
    assert found.full / 1e9 == pytest.approx(gflops, abs=0.006)


def test_both_conventions_differ_by_half_of_attention(tmp_path):
    found = flops(tmp_path, QWEN, 4096)
    assert found.full - found.causal == 0.5 * 6 * 36 * 32 * (128 + 128) * 4096


def test_a_forward_pass_is_a_third_and_decoding_looks_at_everything(tmp_path):
    train, prefill, decode = (flops(tmp_path, LLAMA, 2048, mode) for mode in models.MODES)
    output = 4096 * 128256
    assert prefill.full == pytest.approx(train.full / 3 - 2 * output * 2047 / 2048), "logits of the last token only"
    assert prefill.causal < prefill.full
    assert decode.full == decode.causal == pytest.approx(train.full / 3)


def test_a_table_that_is_the_output_layer_too_counts(tmp_path):
    apart, tied = (flops(tmp_path, LLAMA | {"tie_word_embeddings": value}, 2048) for value in (False, True))
    assert tied.parameters == apart.parameters - 4096 * 128256
    assert tied.active == apart.active


def test_windows_shorten_attention(tmp_path):
    kinds = ["full_attention", "sliding_attention"] * 18
    found = flops(tmp_path, QWEN | {"layer_types": kinds, "use_sliding_window": True, "sliding_window": 1024}, 4096)
    assert found.attention == 2 * 32 * 256 * (18 * 4096 + 18 * 1024)


def test_other_modules_have_no_definition():
    assert utilization.model_flops(torch.nn.Linear(2, 2), 8, "train") is None


def test_published_rates(tmp_path):
    """6,700 tokens a second of Qwen3 8B on a v6e chip at 2,048 are reported as 35.8%."""
    found = flops(tmp_path, QWEN, 2048)
    assert utilization.utilization(found.full * 6700, 1.0, 918e12) == pytest.approx(0.358, abs=0.0005)
