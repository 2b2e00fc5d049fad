"""Ahead of time: what a TPU would run, compiled by the real TPU compiler on a machine that has none.

compiled = torch_tpu.aot.compile(model, (x,), topology="v6e-8")
step = torch_tpu.aot.compile(model, (x,), topology="v7x-8", optimizer=torch.optim.AdamW)
"""

from torch_tpu.aot.capture import compile, device, stand_in
from torch_tpu.aot.compiled import Compiled
from torch_tpu.aot.models import Workload
from torch_tpu.aot.plans import plan
from torch_tpu.aot.report import Report

__all__ = ["Compiled", "Report", "Workload", "compile", "device", "plan", "stand_in"]
