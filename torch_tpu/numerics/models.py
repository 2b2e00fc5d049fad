"""A model by what names it: a function that makes one, a configuration of Transformers, or an architecture's name."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from torch_tpu import _named
from torch_tpu.conformance.models import build, sweep
from torch_tpu.conformance.models.recipe import NotApplicable, Recipe
from torch_tpu.conformance.models.shrink import shrink
from torch_tpu.errors import message


class Found(NamedTuple):
    """A model on the CPU and what to call it with."""

    name: str
    model: nn.Module
    inputs: Any


def find(text: str, *, tiny: bool = False) -> Found:
    """The model that a text names.

    Args:
        text: "module:function", where the function takes nothing and returns (model, inputs); the path of a
            configuration of Transformers, a JSON file; or an architecture that `torch-tpu conformance models` knows,
            such as "llama", of which a tiny model is made. Weights are random.
        tiny: make a model of a configuration tiny by the same rules.

    Raises:
        ValueError: nothing has this name, or it cannot be run on the CPU.
        ImportError: the function's module cannot be imported.
    """
    if text.endswith(".json"):
        return _of_recipe(_from_json(Path(text), tiny), Path(text).stem)
    if ":" in text:
        return _from_function(text)
    known: list[str] = []
    for library in sweep.LIBRARIES:
        names = sweep.names(library)
        if text in names:
            try:
                return _of_recipe(build.recipe(library, text), text)
            except NotApplicable as error:
                raise ValueError(f"{text} does not run on the CPU as it is built here: {error}") from None
        known += names
    near = difflib.get_close_matches(text, known, 5)
    raise ValueError(
        message(
            f"there is no model {text!r}",
            why="it is neither module:function, nor a .json file, nor an architecture that is installed",
            do=f"near: {', '.join(near)}"
            if near
            else "name one of those, or install transformers for its architectures",
        )
    )


def _from_function(text: str) -> Found:
    made = _named.function(text)()
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise ValueError(f"{text} must return (model, inputs), not {type(made).__name__}")
    return Found(text, *made)


def _from_json(path: Path, tiny: bool) -> Recipe:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    from transformers import CONFIG_MAPPING

    if data.get("model_type") not in CONFIG_MAPPING:
        raise ValueError(f"{path} has the model_type {data.get('model_type')!r}, which Transformers does not know")
    config = CONFIG_MAPPING[data["model_type"]].from_dict(data)
    rules = build.exceptions().get("transformers", {}).get(data["model_type"], {})
    wanted, reasons = data.get("architectures") or [], []
    try:
        kinds = build.classes(type(config))
        for kind in [kind for kind in kinds if kind.__name__ in wanted] or kinds:
            try:
                chosen = shrink(config, rules.get("config", {})) if tiny else config
                return build.recipe_of(kind, chosen, rules.get("inputs", {}), limit=None)
            except NotApplicable as error:
                reasons.append(str(error))
    except NotApplicable as error:
        reasons.append(str(error))
    raise ValueError(f"no model of {path} runs on the CPU: {'; '.join(reasons)}")


def _of_recipe(recipe: Recipe, name: str) -> Found:
    for part in recipe.model.modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False  # layers write into a cache, which goes with them through the model
    return Found(name, recipe.model, {**recipe.inputs, **recipe.labels})
