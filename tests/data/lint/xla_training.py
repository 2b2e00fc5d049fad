"""A training script for PyTorch/XLA. Test data of tests/pure/test_lint_source.py; it is read, not run."""

import os

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla.amp import autocast
from torch_xla.experimental.custom_kernel import paged_attention

os.environ["PJRT_DEVICE"] = "TPU"
xr.use_spmd()


def train(index, flags):
    device = xm.xla_device()
    torch_xla.manual_seed(42)
    model = torch.nn.Linear(8, 8).to(device)
    mesh = xs.Mesh(range(4), (4, 1), ("data", "model"))
    xs.mark_sharding(model.weight, mesh, ("data", None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = pl.MpDeviceLoader(flags["loader"], device)
    for step, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        with autocast(device):
            loss = torch.nn.functional.mse_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)
        xm.mark_step()
        if step % 10 == 0:
            xm.add_step_closure(print, args=(loss,))
    xm.master_print(met.metrics_report())
    xm.save(model.state_dict(), "model.pt")
    xm.rendezvous("end")
    step_fn = torch.compile(model, backend="openxla")
    return step_fn(torch.ones(8, device="xla")), paged_attention(model)


if __name__ == "__main__":
    xmp.spawn(train, args=({},))
    print(xm.xrt_world_size(), xr.global_ordinal(), xm.this_does_not_exist())
