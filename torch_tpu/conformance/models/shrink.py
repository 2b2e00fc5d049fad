"""Any Transformers configuration, made small by rules over the names of its fields.

A field's name says what it counts (layers, heads, widths, experts), so a table of patterns serves all architectures.
Fields that are lists with one entry a layer are cut together, so that every kind of layer stays in.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

VOCABULARY = 160
FIRST_FREE_TOKEN = 20
"""Token ids below it mean something (padding, start, end); inputs are drawn from it to LAST_FREE_TOKEN."""
LAST_FREE_TOKEN = 110
HIDDEN = 64
HEADS = 4
MAX_LAYERS = 6

COUNTS: tuple[tuple[str, int], ...] = (
    # (pattern of the whole name, the largest value that is kept); the first that matches counts.
    (r"(type|task)_vocab_sizes?|num_labels|num_channels|num_codebooks|num_feature_levels", 1 << 30),
    (r"(.*_)?codebook_size", 128),
    (r".*vocab_size|vocab_size_.*|.*group_vocab|num_embeddings|emb(edding)?_num|.*_num_embeddings", VOCABULARY),
    (r"num_feat_extract_layers|num_kv_shared_layers|insert_layer_id|vision_feature_layer|num_residual_layers", 1 << 30),
    (r"(.*_)?(num_)?(hidden_|encoder_|decoder_|layers?_)?(layers?|blocks)|n_layers?|(.*_)?depth|max_window_layers", 2),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index|num_nextn_predict_layers", 1),
    (r"(.*_)?(experts_per_tok(en)?|top_?k|num_selected_experts)|moe_k|index_topk|cross_attn_k", 2),
    (r"(.*_)?shared_experts", 1),
    (r"(.*_)?(num_)?(local_|routed_)?experts|moe_num_experts|num_experts_.*", 4),
    (r"n_group|topk_group|num_expert_group", 1),
    (r"(n|num)_positions|n_ctx|(.*_)?max_(.*_)?position(s|_embeddings)|max_(seq|sequence)_len(gth)?", 128),
    (r"num_(object_)?queries|num_query_tokens|num_latents|resampler_n_latents|num_denoising", 8),
    (r"(sliding|attention|local|chunk_attention)_window(_size)?|attention_chunk_size|window_attention_size", 8),
    (r"(.*_)?chunk_size|block_size", 8),
    (
        r"(.*_)?(interval|pattern|period)|decoder_sparse_step|cross_attention_frequency|num_self_attends_per_block|full_attn_every.*",
        2,
    ),
)
SIZES: tuple[tuple[str, int], ...] = (
    (r".*(key_value|kv)_heads|num_kv_heads|multi_query_group_num", 2),
    (r"(.*_)?(num_)?(attention_)?heads|n_heads?|num_.*_heads|.*_n_heads?", HEADS),
    (r"num_conv_pos_embeddings|num_conv_pos_embedding_groups", 16),
    (r"num_position_embeddings|num_patches|num_image_tokens", 16),
    (r"pos_emb_(height|width|time)|init_pos_emb_(height|width)", 4),
    (r"mm_tokens_per_image|image_seq_len(gth)?", 4),
    (r"(.*_)?mel_bins|num_mel_bins|n_mels", 32),
    (r"patch_size|(.*_)?patch_size", 8),
    (r"(.*_)?(image|img)_size", 32),
    (r"window_size", 2),
)
WIDTHS: tuple[tuple[str, int], ...] = (
    (r"q_lora_rank", 24),
    (r"kv_lora_rank", 16),
    (r"(.*_)?qk_rope_head_dim|qk_rope_dim", 8),
    (r"qk_head_dim", 24),
    (r"(.*_)?(head_dim|dim_head|d_head|dim_per_head|d_kv|head_size|qk_nope_head_dim|v_head_dim|kv_channels)", 16),
    (r".*(moe|expert).*(intermediate|ffn|hidden).*(size|dim)", 32),
    (r"(.*_)?(intermediate|inner|ffn|ff|mlp|feed_?forward)(_hidden)?_(size|dim)|d_ff|n_inner|(.*_)?ffn_dim", 96),
    (r"rotary_dim|vision_rope_dim", 8),
    (r"num_pos_feats", HIDDEN // 2),
    (r"upsample_groups", HIDDEN),
    (r"num_groups|num_attention_groups|norm_groups", 8),
    (r"(.*_)?(state_size|d_state|state_dim|ssm_state_size)", 8),
    (r"(.*_)?(hidden|embedding|embed|emb|projection|proj|model|latent|output|query|text|fusion)_(size|dim)", HIDDEN),
    (r"(adapter|projector|vision)_(in|out|input|output)_(dim|size)", HIDDEN),
    (
        r"d_model|n_embd|emb_dim|dim|width|(.*_)?hidden_dim|(.*_)?hidden_size.*|out_hidden_size|classifier_proj_size",
        HIDDEN,
    ),
    (r"(.*_)?(feat|feature|bottleneck|compression|codebook|conv|rnn|linear|lru|per_layer)_?(dim|size|width)", HIDDEN),
    (r"(.*_)?channels?|num_filters|d_latents|(.*_)?hidden_dimension|conv_dim|xvector_output_dim", HIDDEN),
)
SCALE = 8
"""What widths are divided by where limits do not fit together: sums and products of widths stay what they were."""
_COUNTS, _SIZES, _LIMITS = (
    tuple((re.compile(pattern), limit) for pattern, limit in table) for table in (COUNTS, SIZES, WIDTHS)
)
_WIDTHS = re.compile(
    r".*(hidden_sizes|channels|_dims?|embed_dims|_dim_per_stage|conv_dim|tdnn_dim|channel_list|_dims_.*|unit_dims|hidden_size|out_features)"
)
_DEPTHS = re.compile(r"(.*_)?(depths?|block_repeats|num_blocks|blocks_per_stage|attn_blocks|block_sizes)")
_HEAD_LISTS = re.compile(r"(.*_)?(num_)?(attention_)?heads(_per_stage)?")
_TOKENS = re.compile(r".*(token_ids?|token_index|_token|suppress_tokens)|bo[sia]_.*id|eo[sia]_.*id|pad_id|.*_id_token")
_INDICES = re.compile(
    r".*(indexe?s|indices|idxs|_layers|layer_ids|hook_ids|vision_feature_layer|target_layers|extract_layers)"
)
_DROP = re.compile(r".*(drop(out)?|drop_prob|drop_rate|layerdrop|dropout_.*|drop_path_.*|drop_.*_rate)")
_DERIVED = re.compile(r"_?out_(indices|features)|stage_names|id2label|label2id|.*_backbone_(indices|features)")


@dataclass
class Tokens:
    """New ids for the special tokens of a model, the same everywhere in its nested configurations."""

    known: dict[int, int] = field(default_factory=dict)
    free: Callable[[], int] = field(default_factory=lambda: itertools.count(VOCABULARY - 1, -1).__next__)

    def small(self, token: int) -> int:
        if token < FIRST_FREE_TOKEN:
            return token
        if token not in self.known:
            self.known[token] = self.free()
        return self.known[token]


MANNERS = ("narrow", "filled", "scaled", "shallow")
"""Ways to make a configuration small, the ones to prefer first."""
FILLED: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 8,
    "layer_types": ["full_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse"],
}
"""Fields that some configurations leave open although their models need them."""


def shrink(default: Any, overrides: Mapping[str, Any] | None = None, *, manner: str = "narrow") -> Any:
    """A small configuration of the kind of `default`.

    Args:
        default: a configuration; it is not changed.
        overrides: fields and their values that the rules cannot know, nested ones as tables.
        manner: "narrow" limits the widths of layers too, "filled" also gives values to fields that have none, "scaled"
            divides all widths by the same number, and "shallow" only makes layers fewer.
    """
    return _Shrinker(manner).config(default, overrides or {})


@dataclass
class _Shrinker:
    manner: str
    tokens: Tokens = field(default_factory=Tokens)

    def config(self, default: Any, overrides: Mapping[str, Any]) -> Any:
        names = set(inspect.signature(type(default).__init__).parameters) | set(type(default).sub_configs)
        fields = {name: value for name, value in vars(default).items() if not _DERIVED.fullmatch(name)}
        layers = _layer_choice(fields, len(getattr(default, "out_indices", None) or ()))
        changed: dict[str, Any] = _given(default, names)
        for name, value in fields.items():
            given = overrides.get(name)
            if hasattr(value, "to_dict"):
                changed[name] = self.config(_native(value), given if isinstance(given, Mapping) else {})
            elif value is None and self.manner == "filled" and name in names & FILLED.keys():
                changed[name] = FILLED[name]
            elif name in names and (new := self.value(name, value, layers)) != value:
                changed[name] = new
        if len(getattr(default, "out_indices", None) or ()) > 1:
            changed |= _outputs(default, layers)
        if self.manner != "shallow":
            _reconcile(fields, changed)
            if "rope_parameters" in fields:
                changed["rope_parameters"] = _rope(default, {**fields, **changed})
        changed |= {name: value for name, value in overrides.items() if not hasattr(fields.get(name), "to_dict")}
        return type(default)(**changed)

    def value(self, name: str, value: Any, layers: _Layers) -> Any:
        """The small value of one field."""
        if isinstance(value, (bool, str, type(None))):
            return value
        if _DROP.fullmatch(name):
            return _map(value, lambda v: 0.0 if isinstance(v, (int, float)) and not isinstance(v, bool) else v)
        if _TOKENS.fullmatch(name):
            return _map(value, lambda v: self.tokens.small(v) if isinstance(v, int) and v >= 0 else v)
        if isinstance(value, float):
            return value
        if isinstance(value, (list, tuple)):
            return self.list(name, value, layers)
        if isinstance(value, dict):
            return value
        if name in layers.counts:
            return len(layers.kept)
        return self.limit(name, value)

    def limit(self, name: str, value: int) -> int:
        def of(table: tuple[tuple[re.Pattern[str], int], ...]) -> int | None:
            return next((limit for pattern, limit in table if pattern.fullmatch(name)), None)

        if (limit := of(_COUNTS)) is not None or self.manner == "shallow":
            return value if limit is None else min(value, limit)
        if (limit := of(_SIZES)) is not None:
            if limit <= HEADS and "heads" in name:
                return value if self.manner == "scaled" else 2 if value == 3 and limit == HEADS else min(value, limit)
            return min(value, limit)
        if (limit := of(_LIMITS)) is None:
            return value
        return self.scaled(value) if self.manner == "scaled" else min(value, limit)

    def scaled(self, value: int) -> int:
        return value // SCALE if value % SCALE == 0 else value

    def list(self, name: str, value: Any, layers: _Layers) -> Any:
        kind = type(value)
        if not value:
            return value
        if len(value) == layers.total and layers.total > 2 and not (_INDICES.fullmatch(name) and _is_range(value)):
            return kind(value[i] for i in layers.kept)
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return value
        if _DEPTHS.fullmatch(name):
            return kind(min(v, 2 if i == 0 else 1) for i, v in enumerate(value))
        if _INDICES.fullmatch(name) and layers.total:
            return kind(layers.place(value))
        if self.manner == "shallow":
            return value
        if _HEAD_LISTS.fullmatch(name):
            return value if self.manner == "scaled" else kind(min(2**i, 8) for i in range(len(value)))
        if _WIDTHS.fullmatch(name):
            if self.manner == "scaled":
                return kind(self.scaled(v) for v in value)
            scale = max(1.0, max(value) / HIDDEN)
            return kind(v if v <= 4 else max(8, int(v / scale) // 8 * 8) for v in value)
        if re.fullmatch(r"(image|img|train|input)_size", name):
            return kind(32 for _ in value)
        return kind(self.limit(name, v) for v in value)


def _is_range(value: Any) -> bool:
    return list(value) == list(range(len(value)))


def _native(config: Any) -> Any:
    """A backbone of Transformers in place of one that another package would build."""
    if config.model_type != "timm_backbone":
        return config
    from transformers import ResNetConfig

    stages = len(config.out_indices or (4,))
    return ResNetConfig(out_features=[f"stage{i}" for i in range(5 - min(stages, 4), 5)])


def _rope(default: Any, fields: Mapping[str, Any]) -> Any:
    """Parameters of rotary positions: what depends on the width of a head is cut with it."""

    def cut(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value and all(isinstance(inner, dict) for inner in value.values()):
            return {name: cut(inner) for name, inner in value.items()}
        new = dict(value)
        partial = 1.0 if fields.get("qk_rope_head_dim") else value.get("partial_rotary_factor") or 1.0
        half = max(1, int(_head_width(fields) * partial) // 2)
        for name in ("long_factor", "short_factor"):
            if value.get(name):
                new[name] = list(value[name])[:half]
        if value.get("mrope_section") or (
            value and _has_sections(inspect.getfile(type(default)), type(default).__name__)
        ):
            new["mrope_section"] = [half - half // 3 * 2, half // 3, half // 3]
        return new

    return cut(fields["rope_parameters"])


def _head_width(fields: Mapping[str, Any]) -> int:
    if fields.get("qk_rope_head_dim") or fields.get("head_dim"):
        return fields.get("qk_rope_head_dim") or fields["head_dim"]
    width, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 16


@cache
def _has_sections(file: str, name: str) -> bool:
    """The model splits positions into time, height and width, in sections that have defaults in its code only."""
    path = Path(file).with_name(Path(file).name.replace("configuration_", "modeling_"))
    return "Text" in name and path.exists() and '"mrope_section"' in path.read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------ layers


@dataclass(frozen=True)
class _Layers:
    """Which layers stay."""

    total: int
    kept: tuple[int, ...]
    counts: frozenset[str]
    """Fields that say how many layers there are."""

    def place(self, indices: Any) -> list[int]:
        """Indices of layers, moved to layers that exist, in order and without repetitions."""
        count = len(self.kept)
        moved = (i if i < 0 else min(i, self.total - 1) * count // self.total for i in indices)
        return sorted({max(i, -count) for i in moved})


def _layer_choice(fields: Mapping[str, Any], outputs: int) -> _Layers:
    """Two layers, as many as there are outputs, or as many as it takes to have each combination of the per-layer lists once."""
    names = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers")
    counts = [name for name in names if isinstance(fields.get(name), int)]
    total = fields[counts[0]] if counts else 0
    staged = any(_DEPTHS.fullmatch(name) and isinstance(value, (list, tuple)) for name, value in fields.items())
    if total <= 2 or staged:
        return _Layers(0 if staged else total, tuple(range(total)), frozenset())
    lists = [
        value
        for name, value in fields.items()
        if isinstance(value, (list, tuple)) and len(value) == total and not _is_range(value)
    ]
    seen: dict[str, int] = {}
    for i in range(total):
        seen.setdefault(repr([value[i] for value in lists]), i)
    kept = sorted(seen.values())[:MAX_LAYERS]
    kept += [i for i in range(total) if i not in kept][: max(0, max(2, outputs) - len(kept))]
    return _Layers(total, tuple(sorted(kept)), frozenset(counts[:1]))


def _reconcile(fields: Mapping[str, Any], changed: dict[str, Any]) -> None:
    """Fields that must fit together."""

    def now(name: str) -> Any:
        return changed.get(name, fields.get(name))

    for keys in [name for name in fields if name.endswith(("num_key_value_heads", "num_kv_heads"))]:
        queries = keys.replace("key_value_heads", "attention_heads").replace("kv_heads", "attention_heads")
        if fields[keys] is not None and fields[keys] == fields.get(queries):
            changed[keys] = now(queries)  # as many keys as queries, as before
    if fields.get("qk_rope_head_dim") and "head_dim" in changed:
        changed["head_dim"] = now("qk_rope_head_dim")
    if isinstance(now("num_heads"), (list, tuple)) and isinstance(changed.get("embed_dim"), int):
        changed["embed_dim"] = 16
    staged = any(_DEPTHS.fullmatch(name) and isinstance(value, (list, tuple)) for name, value in fields.items())
    if staged and isinstance(fields.get("image_size"), int):
        changed["image_size"] = min(fields["image_size"], 64)  # halved before each stage
    if fields.get("fullatt_block_indexes") is not None and fields.get("window_size"):
        changed["window_size"] = now("patch_size") * 4  # in pixels: two merged patches
    for count, top in (("num_experts", "num_experts_per_tok"), ("n_routed_experts", "num_experts_per_tok")):
        if isinstance(now(count), int) and isinstance(now(top), int) and now(top) > now(count) > 0:
            changed[top] = now(count)


def _given(default: Any, names: set[str]) -> dict[str, Any]:
    """What a configuration was made with that is not its class's default."""
    try:
        plain = vars(type(default)())
    except ValueError:  # its defaults do not fit together
        plain = {}
    return {
        name: value
        for name, value in vars(default).items()
        if name in names and not _DERIVED.fullmatch(name) and not hasattr(value, "to_dict") and value != plain.get(name)
    }


def _outputs(default: Any, layers: _Layers) -> dict[str, Any]:
    """The stages or layers whose outputs a backbone gives: the same stages, or as many of the last layers."""
    if not layers.total:
        return {"out_features": list(default.out_features)}
    count = len(default.out_indices)
    return {"out_indices": list(range(len(layers.kept) - count + 1, len(layers.kept) + 1))}


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(v, function) for v in value)
    return function(value)
