"""A model's inputs, made from the signature of its `forward` and from its configuration.

Each parameter's name has a maker. Where a name stands for several layouts (images of a batch, or several images each;
frames before or after bands), `VARIANTS` lists them, and `build.py` takes the first that the model accepts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tpu.conformance.models.shrink import FIRST_FREE_TOKEN, LAST_FREE_TOKEN

BATCH = 2
LENGTH = 12
PATCHES = 4
"""Patches along each side of an image for models that take patches."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "pixel_values": ("image", "images", "tiles", "patches", "pairs", "frames"),
    "pixel_values_videos": ("video", "patches"),
    "input_features": ("bands first", "frames first"),
    "input_values": ("samples", "channel", "spectrogram"),
}
GRIDS = ("image_grid_thw", "grid_thw", "image_grid_hw", "image_sizes", "target_sizes", "spatial_shapes", "merge_sizes")
"""Parameters that go with images of several sizes."""
WANTED = (
    "input_ids",
    "attention_mask",
    "pixel_values",
    "input_features",
    "input_values",
    "decoder_input_ids",
    *GRIDS,
    "mm_token_type_ids",
    "token_type_ids",
    "bbox",
    "past_values",
    "qformer_input_ids",
    "input_features_mask",
    "feature_attention_mask",
)
"""Parameters that are given wherever a model has them, besides those that it requires."""
TOWERS = {"pixel_values": "vision_config", "input_features": "audio_config", "input_features_mask": "audio_config"}
"""The nested configuration without which a model has nothing that takes an input."""
INSTEAD = ("inputs_embeds", "hidden_states", "encoder_hidden_states", "query_embeds", "pixel_values_videos")
"""Parameters that stand for others, so that they are not given unless a model requires them."""


@dataclass
class Maker:
    """Makes the inputs of one model."""

    config: Any
    forward: Callable[..., Any]
    variant: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Sizes and values from `exceptions.toml`, by the parameter's name."""
    everything: bool = False
    """Gives each input that there is a rule for, also those that a model does not require."""
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(7))

    def make(self) -> dict[str, torch.Tensor]:
        """The inputs by name, without labels.

        Raises:
            LookupError: a required parameter has a name without a maker.
        """
        found: dict[str, Any] = {}
        for name, parameter in inspect.signature(self.forward).parameters.items():
            required = parameter.default is parameter.empty and parameter.kind == parameter.POSITIONAL_OR_KEYWORD
            wanted = name in (set(_MAKERS) - set(INSTEAD) if self.everything else WANTED) and self._applies(name)
            if (
                name == "self"
                or name in self.given.get("omit", ())
                or not (required or wanted or isinstance(self.given.get(name), list))
            ):
                continue
            if isinstance(self.given.get(name), list):
                found[name] = self._of_shape(name, self.given[name])
            elif name in _MAKERS:
                found[name] = _MAKERS[name](self)
            else:
                raise LookupError(f"no rule makes the input {name!r}")
        return {name: value for name, value in found.items() if value is not None}

    def _applies(self, name: str) -> bool:
        names = inspect.signature(self.forward).parameters
        if getattr(self.config, TOWERS.get(name, ""), self) is None:
            return False
        if name == "attention_mask":
            return "input_ids" in names
        if name in ("decoder_input_ids",):
            return bool(getattr(self.config, "is_encoder_decoder", False))
        if name in ("token_type_ids", "mm_token_type_ids"):
            return "pixel_values" in names
        if name == "pixel_values":
            return self.variant not in ("text only", "") or names[name].default is inspect.Parameter.empty
        if name in GRIDS:
            return self.variant not in ("text only", "", "image") and "pixel_values" in names
        return True

    # -------------------------------------------------------------------------------------------------- sizes

    def find(self, *names: str) -> Any:
        """The first field of the configuration or a nested one that has one of the names."""
        waiting = [self.config]
        while waiting:
            config = waiting.pop(0)
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
            waiting += [value for value in vars(config).values() if hasattr(value, "to_dict")]
        return None

    @property
    def side(self) -> int:
        size = self.given.get("image_size") or self.find("image_size", "img_size", "pretrain_image_size")
        if isinstance(size, dict):
            size = size.get("height")
        size = max(size) if isinstance(size, (list, tuple)) else size
        return int(size) if size else 64

    @property
    def channels(self) -> int:
        value = self.find("num_channels", "in_channels", "in_chans")
        return value if isinstance(value, int) else 3

    @property
    def patch(self) -> int:
        value = self.find("patch_size")
        return int(max(value) if isinstance(value, (list, tuple)) else value or 8)

    @property
    def bands(self) -> int:
        return int(
            self.find("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_size", "input_dim")
            or 32
        )

    # -------------------------------------------------------------------------------------------------- values

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def ids(self) -> torch.Tensor:
        vocabulary = self.find("vocab_size")
        high = min(LAST_FREE_TOKEN, vocabulary if isinstance(vocabulary, int) else LAST_FREE_TOKEN)
        return self.integers(min(FIRST_FREE_TOKEN, high // 2), high, BATCH, self.given.get("length", LENGTH))

    def _of_shape(self, name: str, shape: list[Any]) -> torch.Tensor:
        """A shape from the table; a last entry "int:N" makes integers below N."""
        if isinstance(shape[-1], str):
            kind, _, limit = shape[-1].partition(":")
            sizes = shape[:-1]
            if kind == "bool":
                return torch.ones(sizes, dtype=torch.bool)
            return self.integers(0, int(limit), *sizes) if kind == "int" else torch.full(sizes, int(limit))
        return self.normal(*shape)

    def pixels(self) -> torch.Tensor:
        side = self.side
        match self.variant:
            case "images" | "tiles":
                return self.normal(BATCH, 1 if self.variant == "images" else 2, self.channels, side, side)
            case "patches":
                return self.patches()
            case "pairs":
                return self.normal(BATCH, 2, 3, side, side)
            case "frames":
                return self.video()
        return self.normal(BATCH, self.channels, side, side)

    def video(self) -> torch.Tensor:
        frames = self.find("num_frames", "frames_per_clip", "tubelet_size") or 4
        return self.normal(BATCH, frames if isinstance(frames, int) else 4, self.channels, self.side, self.side)

    def features(self) -> torch.Tensor:
        frames = self.given.get("frames") or 2 * (self.find("max_source_positions") or 32)
        shape = (self.bands, frames) if self.variant == "bands first" else (frames, self.bands)
        return self.normal(BATCH, *shape)

    def frames_mask(self) -> torch.Tensor:
        return torch.ones(BATCH, self.given.get("frames") or 2 * (self.find("max_source_positions") or 32)).long()

    def states(self) -> torch.Tensor:
        """Hidden states of a text, or the patches of images where a grid goes with them."""
        if "grid_thw" in inspect.signature(self.forward).parameters:
            return self.patches()
        return self.normal(BATCH, LENGTH, self.find("hidden_size", "d_model"))

    def patches(self) -> torch.Tensor:
        depth = self.find("temporal_patch_size", "patch_temporal") or 1
        depth = depth if isinstance(depth, int) else 1
        return self.normal(BATCH * PATCHES * PATCHES, self.channels * depth * self.patch**2)

    def flat_patches(self) -> torch.Tensor:
        """Patches that begin with their row and column, counted from 1."""
        places = torch.cartesian_prod(*[torch.arange(1, PATCHES + 1)] * 2).float().expand(BATCH, -1, -1)
        return torch.cat([places, self.normal(*places.shape[:2], self.find("patch_embed_hidden_size"))], -1)

    def hidden_patches(self) -> torch.Tensor:
        """Which patches of an image or video a model has to guess: the first half."""
        frames, depth = (self.find(name) or 1 for name in ("num_frames", "tubelet_size"))
        count = frames // depth * (self.side // self.patch) ** 2
        return (torch.arange(count) < count // 2).expand(BATCH, count).clone()

    def samples(self) -> torch.Tensor:
        length = self.given.get("samples", 3200)
        if self.variant == "spectrogram":
            return self.normal(BATCH, self.find("max_length") or 64, self.bands)
        return self.normal(BATCH, *([1] if self.variant == "channel" else []), length)

    def mask(self) -> torch.Tensor:
        """The last sequence is padded at its end, so that masks are needed."""
        mask = torch.ones(BATCH, self.given.get("length", LENGTH), dtype=torch.long)
        mask[-1, -2:] = 0
        return mask

    def boxes(self) -> torch.Tensor:
        corner = self.integers(0, 50, BATCH, LENGTH, 2)
        return torch.cat([corner, corner + self.integers(1, 50, BATCH, LENGTH, 2)], -1)

    def series(self) -> torch.Tensor:
        """Past values of a time series, with the lags that some models look back."""
        length = self.find("context_length") or 64
        length += max(self.find("lags_sequence") or [0])
        channels = self.find("num_input_channels")
        return self.normal(BATCH, length, *([channels] if channels else []))

    def past(self, *last: int) -> torch.Tensor:
        return torch.zeros(BATCH, self.series().shape[1], *last)


_MAKERS: dict[str, Callable[[Maker], Any]] = {
    "input_ids": Maker.ids,
    "input": Maker.ids,
    "decoder_input_ids": Maker.ids,
    "qformer_input_ids": Maker.ids,
    "attention_mask": Maker.mask,
    "token_type_ids": lambda m: torch.zeros(BATCH, m.given.get("length", LENGTH), dtype=torch.long),
    "mm_token_type_ids": lambda m: torch.zeros(BATCH, m.given.get("length", LENGTH), dtype=torch.long),
    "inputs_embeds": lambda m: m.normal(BATCH, LENGTH, m.find("hidden_size", "d_model")),
    "hidden_states": Maker.states,
    "encoder_hidden_states": lambda m: m.normal(BATCH, LENGTH, m.find("hidden_size", "d_model")),
    "query_embeds": lambda m: m.normal(BATCH, 8, m.find("hidden_size")),
    "pixel_values": Maker.pixels,
    "pixel_values_videos": Maker.video,
    "image_grid_thw": lambda m: torch.tensor([[1, PATCHES, PATCHES]] * BATCH),
    "grid_thw": lambda m: torch.tensor([[1, PATCHES, PATCHES]] * BATCH),
    "image_grid_hw": lambda m: torch.tensor([[PATCHES, PATCHES]] * BATCH),
    "target_sizes": lambda m: torch.tensor([[PATCHES, PATCHES]] * BATCH),
    "spatial_shapes": lambda m: torch.tensor([[PATCHES, PATCHES]] * BATCH),
    "merge_sizes": lambda m: torch.tensor([2] * BATCH),
    "num_patches": lambda m: PATCHES * PATCHES,
    "bool_masked_pos": Maker.hidden_patches,
    "flattened_patches": Maker.flat_patches,
    "latents": lambda m: m.normal(BATCH, m.find("hidden_size", "d_model"), LENGTH),
    "image_sizes": lambda m: torch.tensor([[m.side, m.side]] * BATCH),
    "input_features": Maker.features,
    "input_features_mask": lambda m: m.frames_mask(),
    "feature_attention_mask": lambda m: m.frames_mask(),
    "pixel_attention_mask": lambda m: None if m.variant == "image" else torch.ones(BATCH, 1, m.side, m.side).long(),
    "input_values": Maker.samples,
    "spectrogram": lambda m: m.normal(BATCH, 16, m.find("model_in_dim", "num_mel_bins") or 80),
    "bbox": Maker.boxes,
    "past_values": Maker.series,
    "past_time_features": lambda m: m.past(m.find("num_time_features") or 1),
    "past_observed_mask": lambda m: torch.ones(m.series().shape),
    "task_inputs": lambda m: m.integers(0, LAST_FREE_TOKEN, BATCH, m.find("task_seq_len") or 77),
}


def variants(config: Any, forward: Callable[..., Any]) -> Iterator[str]:
    """The layouts to try, in order."""
    names = inspect.signature(forward).parameters
    for name, layouts in VARIANTS.items():
        if name in names:
            yield from layouts
    yield "text only" if "pixel_values" in names else ""


# ------------------------------------------------------------------------------------------------------ labels


def labels(name: str, config: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What makes the model of a class name compute a loss, as far as the name says; empty: nothing known."""
    generator = torch.Generator().manual_seed(11)
    batch = next(iter(inputs.values())).shape[0] if inputs else BATCH
    count = getattr(config, "num_labels", None) or 2
    if re.search(r"For(Sequence|Image|Audio|Video)Classification", name):
        return {"labels": torch.randint(0, count, (batch,), generator=generator)}
    if re.search(r"For(CausalLM|ConditionalGeneration|MaskedLM|SpeechSeq2Seq|Generation|CTC)|LMHead", name):
        tokens = inputs.get("decoder_input_ids", inputs.get("input_ids"))
        if tokens is None:
            return {"labels": torch.randint(FIRST_FREE_TOKEN, LAST_FREE_TOKEN, (batch, 4), generator=generator)}
        return {"labels": torch.where(tokens > LAST_FREE_TOKEN, torch.tensor(-100), tokens)}
    if re.search(r"For(SemanticSegmentation)", name) and "pixel_values" in inputs:
        return {"labels": torch.randint(0, count, (batch, *inputs["pixel_values"].shape[-2:]), generator=generator)}
    if re.search(r"For(ObjectDetection|Segmentation|InstanceSegmentation)$", name):
        box = torch.tensor([[0.5, 0.5, 0.3, 0.2]])
        return {"labels": [{"class_labels": torch.tensor([1]), "boxes": box.clone()} for _ in range(batch)]}
    return {}
