"""`torch.tpu`."""

from __future__ import annotations

import types

import torch

from torch_tpu import _plug


def make() -> types.ModuleType:
    module = types.ModuleType("torch.tpu")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module.current_device = lambda: 0
    module.device_count = lambda: 1
    module._lazy_init = lambda: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.memory_allocated = lambda device=None: _plug.memory_stats()["allocated"]
    return module
