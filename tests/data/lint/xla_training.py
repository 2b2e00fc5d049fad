"""A training script for PyTorch/XLA. Test data of tests/pure/test_lint_source.py; it is read, not run."""

import os

import torch
import torch_xla  # expect TPU020
import torch_xla.core.xla_model as xm  # expect TPU020
import torch_xla.debug.metrics as met  # expect TPU020
import torch_xla.distributed.parallel_loader as pl  # expect TPU020
import torch_xla.distributed.spmd as xs  # expect TPU020
import torch_xla.distributed.xla_multiprocessing as xmp  # expect TPU020
import torch_xla.runtime as xr  # expect TPU020
from torch_xla.amp import autocast  # expect TPU020
from torch_xla.experimental.custom_kernel import paged_attention  # expect TPU020

os.environ["PJRT_DEVICE"] = "TPU"  # expect TPU020
xr.use_spmd()  # expect TPU020


def train(index, flags):
    device = xm.xla_device()  # expect TPU020
    torch_xla.manual_seed(42)  # expect TPU020
    model = torch.nn.Linear(8, 8).to(device)
    mesh = xs.Mesh(range(4), (4, 1), ("data", "model"))  # expect TPU020
    xs.mark_sharding(model.weight, mesh, ("data", None))  # expect TPU020
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = pl.MpDeviceLoader(flags["loader"], device)  # expect TPU020
    for step, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        with autocast(device):  # expect TPU020
            loss = torch.nn.functional.mse_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)  # expect TPU020
        xm.mark_step()  # expect TPU020
        if step % 10 == 0:
            xm.add_step_closure(print, args=(loss,))  # expect TPU020
    xm.master_print(met.metrics_report())  # expect TPU020 TPU020
    xm.save(model.state_dict(), "model.pt")  # expect TPU020
    xm.rendezvous("end")  # expect TPU020
    step_fn = torch.compile(model, backend="openxla")  # expect TPU020
    return step_fn(torch.ones(8, device="xla")), paged_attention(model)  # expect TPU021


if __name__ == "__main__":
    xmp.spawn(train, args=({},))  # expect TPU020
    print(xm.xrt_world_size(), xr.global_ordinal(), xm.this_does_not_exist())  # expect TPU020 TPU020 TPU021
