"""FLOPs that a language model needs by its definition, and model-FLOPs utilization (MFU) in both usual conventions.

For one token of a sequence of length S, with P parameters that take part in matrix products, L layers of H heads:

    forward:    2 P + 2 L H (d_qk + d_v) S
    training:   three times that, 6 P + 6 L H (d_qk + d_v) S: the backward pass costs two forward ones

The embedding table does not count (it is a lookup) unless it is the output layer too; of a mixture of experts the active part
counts. A prefill needs the output layer for the last token only. Recomputed activations never do. TorchTitan counts attention in full, as above; MaxText counts half of it, since a
causal mask leaves only half of the products to be needed. Reports state both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ModelFlops:
    """Of one token."""

    parameters: int
    """All of them, shared ones once."""
    active: float
    """Those that take part in matrix products for a token."""
    attention: float
    """Forward FLOPs of attention in full."""
    passes: int
    """Forward passes that a token costs: 3 in training, else 1."""
    causal_share: float
    """The part of attention that a causal mask leaves: half of it, or all of it for a token that comes last."""

    @property
    def full(self) -> float:
        """TorchTitan's convention."""
        return self.passes * (2 * self.active + self.attention)

    @property
    def causal(self) -> float:
        """MaxText's convention."""
        return self.passes * (2 * self.active + self.attention * self.causal_share)


def utilization(flops: float, seconds: float, peak: float) -> float:
    """The part of a device's peak that a number of FLOPs in a time is."""
    return flops / seconds / peak if seconds > 0 else 0.0


def model_flops(model: torch.nn.Module, seq: int, mode: str) -> ModelFlops | None:
    """By a Transformers model's configuration and parameters; None where it does not say what its attention is.

    Args:
        model: on any device, "meta" among them.
        seq: length of the sequences; in decoding the number of tokens that are looked back at.
        mode: "train", "forward" (logits of every token), "prefill" (of the last one) or "decode".
    """
    config = getattr(model, "config", None)
    if config is None:
        return None
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    heads, layers = getattr(config, "num_attention_heads", None), getattr(config, "num_hidden_layers", None)
    if not heads or not layers:
        return None
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope, nope = getattr(config, "qk_rope_head_dim", None), getattr(config, "qk_nope_head_dim", None)
    qk = rope + nope if rope and nope else width
    v = getattr(config, "v_head_dim", None) or width
    lengths = sum(_attended(config, layers, seq))
    total, active, output = _parameters(model, config)
    if mode == "prefill":
        active -= output * (1 - 1 / seq)
    return ModelFlops(
        parameters=total,
        active=active,
        attention=2.0 * heads * (qk + v) * lengths,
        passes=3 if mode == "train" else 1,
        causal_share=1.0 if mode == "decode" else 0.5,
    )


def _attended(config: Any, layers: int, seq: int) -> Iterable[int]:
    """For each layer how many tokens one looks at, without the causal mask: fewer where a layer has a window."""
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * layers
    window = window or seq
    for kind in kinds:
        if kind == "full_attention":
            yield seq
        elif kind in ("sliding_attention", "chunked_attention"):
            yield min(seq, window if kind == "sliding_attention" else getattr(config, "attention_chunk_size", seq))


def _is_of_experts(name: str, parameter: torch.Tensor, experts: int) -> bool:
    """Whether a parameter belongs to one of the experts, or holds those of all of them in its first dimension."""
    return ".experts." in name or (parameter.dim() == 3 and parameter.shape[0] == experts)


def _parameters(model: torch.nn.Module, config: Any) -> tuple[int, float, int]:
    """All parameters, those that take part in a token's matrix products, and those of the output layer among them."""
    parameters = dict(model.named_parameters())  # shared ones once
    total = sum(parameter.numel() for parameter in parameters.values())
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    find_output: Any = getattr(model, "get_output_embeddings", lambda: None)
    output = find_output()
    if output is not None:
        tables.pop(id(output.weight), None)  # tied: it is multiplied with after all
    active = float(total - sum(tables.values()))
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((count for name in names if (count := getattr(config, name, None))), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    if experts and chosen:
        routed = sum(p.numel() for name, p in parameters.items() if _is_of_experts(name, p, experts))
        active -= routed * (1 - chosen / experts)
    return total, active, 0 if output is None else output.weight.numel()
