"""Ahead of time: what a TPU would run, compiled by the real TPU compiler on a machine that has none.

compiled = torch_tpu.aot.compile(model, (x,), topology="v6e-8")
step = torch_tpu.aot.compile(model, (x,), topology="v7x-8", optimizer=torch.optim.AdamW)
"""

from torch_tpu.aot.capture import compile, device, stand_in
from torch_tpu.aot.compiled import Compiled

__all__ = ["Compiled", "compile", "device", "stand_in"]
