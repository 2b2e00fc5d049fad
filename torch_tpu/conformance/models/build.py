"""A model and inputs that its CPU run accepts: the classes of an architecture and the layouts of its inputs in turn."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from torch_tpu.conformance.models import inputs as making
from torch_tpu.conformance.models import others
from torch_tpu.conformance.models.recipe import MAX_PARAMETERS, SEED, NotApplicable, Recipe, scatter, short, try_out
from torch_tpu.conformance.models.shrink import MANNERS, shrink

PREFERENCE = (
    r".*ForCausalLM",
    r".*LMHead(Model)?",
    r".*For(ConditionalGeneration|SpeechSeq2Seq|TextToSpeech|Generation|SpeechToText|.*Text2Text)",
    r".*For(MaskedLM|PreTraining|Pretraining)",
    r".*For(ImageClassification|VideoClassification|AudioClassification|CTC|RNNT|TDT|SequenceClassification)",
    r".*For(ObjectDetection|SemanticSegmentation|InstanceSegmentation|UniversalSegmentation|Segmentation)",
    r".*For(Depth|Keypoint|Prediction|Time|Image|Mask|Retrieval|Normal|Pose|Pointmap|Table|Text).*",
    r".*For(?!TokenClassification|QuestionAnswering|MultipleChoice|NextSentence).*",
    r".*(Model|Head)",
    r".*(Encoder|Decoder|Transformer|VQVAE|Stack)",
    r".*Backbone",
    r".*",
)
"""Classes with a loss of their own first."""


@cache
def exceptions() -> dict[str, Any]:
    """What rules cannot know, by library and model type: fields, inputs, the class, or why it is not applicable."""
    return tomllib.loads(Path(__file__).with_name("exceptions.toml").read_text(encoding="utf-8"))


def classes(config_class: Any) -> list[Any]:
    """The model classes of a configuration class, the ones to prefer first.

    Raises:
        NotApplicable: there is none.
    """
    from transformers import PreTrainedModel

    name = config_class.__module__.replace("configuration_", "modeling_")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise NotApplicable(f"no modeling code: {error}") from None
    found = [
        value
        for key, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, PreTrainedModel)
        and value.__module__ == name
        and getattr(value, "config_class", None) is config_class
        and not key.endswith(("PreTrainedModel", "DecoderWrapper"))
        and "forward" in _defined(value)
    ]
    if not found:
        raise NotApplicable("a part of another model, without a class of its own")
    return sorted(found, key=_rank)


def _defined(kind: Any) -> set[str]:
    return {name for base in kind.__mro__ if base is not torch.nn.Module for name in vars(base)}


_MODALITIES = ("input_ids", "pixel_values", "input_features", "input_values", "decoder_input_ids")


def _rank(kind: Any) -> tuple[int, int]:
    """Classes that take everything an architecture is for come first, then those with a loss of their own."""
    taken = sum(name in inspect.signature(kind.forward).parameters for name in _MODALITIES)
    return -taken, next(i for i, pattern in enumerate(PREFERENCE) if re.fullmatch(pattern, kind.__name__))


def transformers_recipe(model_type: str) -> Recipe:
    """A tiny model of an architecture of Transformers.

    Raises:
        NotApplicable: no class of it runs on the CPU with inputs made here.
    """
    others.declare_torchvision()
    from transformers import CONFIG_MAPPING

    rules = exceptions().get("transformers", {}).get(model_type, {})
    if "not_applicable" in rules:
        raise NotApplicable(rules["not_applicable"])
    config_class = CONFIG_MAPPING[model_type]
    default, reasons = rules.get("default", {}), []
    found = [kind for kind in classes(config_class) if rules.get("class") in (None, kind.__name__)]
    for kind, manner in [*((kind, "narrow") for kind in found[:4]), *((found[0], other) for other in MANNERS[1:])]:
        try:
            config = shrink(config_class(**default), default | rules.get("config", {}), manner=manner)
            return recipe_of(kind, config, rules.get("inputs", {}))
        except NotApplicable as error:
            reasons.append(str(error))
        except Exception as error:  # noqa: BLE001 - any failure to build is a reason
            reasons.append(f"{kind.__name__}: {short(error)}")
    raise NotApplicable("; ".join(dict.fromkeys(reasons)))


def recipe_of(kind: Any, config: Any, given: Mapping[str, Any], limit: int | None = MAX_PARAMETERS) -> Recipe:
    """The first layout of inputs that the class runs with on the CPU.

    Args:
        given: sizes and values of inputs, as in `exceptions.toml`.
        limit: the most parameters.

    Raises:
        NotApplicable: it has more parameters, or no layout of inputs made here fits.
    """
    for part in _nested(config):
        part.use_cache = False if part is not config else getattr(part, "use_cache", None)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in kind(copy.deepcopy(config)).parameters())
    if limit is not None and count > limit:
        raise NotApplicable(f"{kind.__name__}: {count / 1e6:.0f}M parameters, the rules do not make it small")
    torch.manual_seed(SEED)
    model = kind(config).float().eval()
    scatter(model)
    reasons = []
    layouts = [given["variant"]] if "variant" in given else list(making.variants(config, model.forward))
    for everything, variant in itertools.product((False, True), layouts):
        try:
            values = making.Maker(config, model.forward, variant, given, everything).make()
            values = _with_features(model, config, values)
            wanted = {} if given.get("labels") is False else making.labels(kind.__name__, config, values)
            if "labels" not in inspect.signature(model.forward).parameters:
                wanted = {}
            recipe = Recipe(model, values, wanted, family(values))
            try_out(recipe)
        except Exception as error:  # noqa: BLE001 - any failure is a reason to try the next layout
            reasons.append(f"{variant or 'inputs'}: {short(error)}")
            continue
        recipe.generate = model.can_generate() and given.get("generate") is not False
        return recipe
    raise NotApplicable(f"{kind.__name__}: " + "; ".join(dict.fromkeys(reasons)))


def _nested(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict"):
            yield from _nested(value)


def family(inputs: Mapping[str, Any]) -> str:
    """text, vision, audio, multimodal, or other."""
    text = "input_ids" in inputs or "inputs_embeds" in inputs
    sight = any(name.startswith("pixel") or name.endswith("_patches") for name in inputs)
    sound = any(name in inputs for name in ("input_features", "input_values", "spectrogram"))
    match (text, sight, sound):
        case (True, False, False):
            return "text"
        case (False, True, False):
            return "vision"
        case (False, False, True):
            return "audio"
        case (False, False, False):
            return "other"
    return "multimodal"


# --------------------------------------------------------------------------------- placeholders in multimodal text

_FEATURES = (
    ("get_image_features", "pixel_values", ("image_token_id", "image_token_index", "media_placeholder_token_id")),
    ("get_audio_features", "input_features", ("audio_token_id", "audio_token_index")),
    ("get_audio_features", "input_values", ("audio_token_id", "audio_token_index")),
)


def _with_features(model: Any, config: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Puts as many placeholder tokens into the text as the model makes features of the image or the sound."""
    if "input_ids" not in values:
        return values
    maker = making.Maker(config, model.forward)
    for method, source, names in _FEATURES:
        token = maker.find(*names)
        functions = [getattr(part, method) for part in model.modules() if hasattr(part, method)]
        functions = [one for one in functions if {source, "input_features"} & inspect.signature(one).parameters.keys()]
        if source not in values or token is None or not functions:
            continue
        function, accepted = functions[0], inspect.signature(functions[0]).parameters
        with torch.no_grad():
            features = function(**{name: value for name, value in values.items() if name in accepted})
        count = _count(features)
        _insert(values, token, count // values["input_ids"].shape[0])
    return values


def _count(features: Any) -> int:
    """The number of feature vectors in all."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(features, name, None) is not None:
            features = getattr(features, name)
            break
    if isinstance(features, (list, tuple)):
        tensors = [item for item in features if torch.is_tensor(item)]
        if tensors and tensors[0].dim() == 4:  # deepstack: features of several layers
            tensors = tensors[:1]
        return sum(item[..., 0].numel() for item in tensors)
    return int(features[..., 0].numel())


def _insert(values: dict[str, Any], token: int, count: int) -> None:
    """Lengthens the text by placeholders after its first token, in all inputs that go along with it."""
    ids = values["input_ids"]
    batch = ids.shape[0]
    for name, fill in (
        ("input_ids", token),
        ("attention_mask", 1),
        ("token_type_ids", 1),
        ("mm_token_type_ids", 1),
    ):
        if name in values:
            old = values[name]
            values[name] = torch.cat([old[:, :1], torch.full((batch, count), fill, dtype=old.dtype), old[:, 1:]], 1)


def recipe(library: str, name: str) -> Recipe:
    """The model of a case.

    Raises:
        NotApplicable: it cannot be run on the CPU, or what it needs is not installed.
    """
    makers = {"transformers": transformers_recipe, "timm": others.timm_recipe, "weights": others.weights_recipe}
    return makers[library](name)
