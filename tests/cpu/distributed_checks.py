"""What test_distributed.py runs in each of two processes: python distributed_checks.py FILE.

Every function `check_*` runs on both ranks, in order; the names of those that fail, with the traceback, go to the file.
"""

import json
import sys
import threading
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional
from torch import nn
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

import torch_tpu

MOVED = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool,
    torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip


def data(rank, dtype, shape=(3, 4)):
    """Values of a rank, the same in every process."""
    generator = torch.Generator().manual_seed(rank)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, dtype=wide, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def bits(tensor):
    tensor = tensor.detach().cpu().contiguous()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.reshape(-1).view(torch.uint8)


def same(tensor, wanted):
    """Equal bit for bit."""
    assert tensor.device.type == "tpu" and tensor.dtype is wanted.dtype and tensor.shape == wanted.shape, tensor
    assert torch.equal(bits(tensor), bits(wanted)), (tensor, wanted)


def raises(error, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except error as caught:
        assert text in str(caught), caught
    else:
        raise AssertionError(f"{error.__name__} was not raised")


def check_backend(rank):
    assert dist.get_backend() == "tpu_dist" and dist.get_world_size() == 2
    assert torch.ones(1, device="tpu").device.index == 0


def check_all_reduce(rank):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8):
        a, b = data(0, dtype), data(1, dtype)
        for op, wanted in ((ReduceOp.SUM, a + b), (ReduceOp.PRODUCT, a * b), (ReduceOp.MIN, torch.minimum(a, b)),
                           (ReduceOp.MAX, torch.maximum(a, b))):  # fmt: skip
            t = data(rank, dtype).to("tpu")
            dist.all_reduce(t, op)
            same(t, wanted)
    t = data(rank, torch.float32).to("tpu")
    dist.all_reduce(t, ReduceOp.AVG)
    same(t, (data(0, torch.float32) + data(1, torch.float32)) / 2)
    for dtype in (torch.int64, torch.uint8, torch.bool):
        for op, function in ((ReduceOp.BAND, torch.bitwise_and), (ReduceOp.BOR, torch.bitwise_or),
                             (ReduceOp.BXOR, torch.bitwise_xor)):  # fmt: skip
            t = data(rank, dtype).to("tpu")
            dist.all_reduce(t, op)
            same(t, function(data(0, dtype), data(1, dtype)))
    t = data(rank, torch.complex64).to("tpu")
    dist.all_reduce(t)
    same(t, data(0, torch.complex64) + data(1, torch.complex64))
    t = torch.tensor(rank + 1.0, device="tpu")
    dist.all_reduce(t)
    assert t.item() == 3


def check_views(rank):
    base = torch.zeros(4, 6, device="tpu")
    base[1:3, ::2] = rank + 1
    alias = base.view(-1)
    dist.all_reduce(base[1:3, ::2])
    wanted = torch.zeros(4, 6)
    wanted[1:3, ::2] = 3
    same(base, wanted)
    dist.all_reduce(base.t())
    same(base, wanted * 2)
    same(alias, wanted.view(-1) * 2)
    version = base._version
    dist.broadcast(base, 1)
    assert base._version > version
    got = torch.zeros(6, 2, 4, device="tpu").movedim(0, 2)
    dist.all_gather([got[0], got[1]], (base + rank).contiguous())
    same(got.contiguous(), torch.stack([wanted * 2, wanted * 2 + 1]))


def check_moves_bit_for_bit(rank):
    for dtype in MOVED:
        own = data(rank, dtype)
        if dtype.is_floating_point and dtype.itemsize > 1:
            own[0, 0], own[0, 1] = float("nan"), -0.0
        both = [data(r, dtype) for r in range(2)]
        for each in both:
            if dtype.is_floating_point and dtype.itemsize > 1:
                each[0, 0], each[0, 1] = float("nan"), -0.0
        t = own.to("tpu")
        dist.broadcast(t, 1)
        same(t, both[1])
        outs = [torch.empty_like(t) for _ in range(2)]
        dist.all_gather(outs, own.to("tpu"))
        for out, wanted in zip(outs, both):
            same(out, wanted)
        flat = torch.empty(6, 4, dtype=dtype, device="tpu")
        dist.all_gather_into_tensor(flat, own.to("tpu"))
        same(flat, torch.cat(both))
        parts = [torch.empty(3, 2, dtype=dtype, device="tpu") for _ in range(2)]
        dist.all_to_all(parts, [part.contiguous() for part in own.to("tpu").split(2, 1)])
        for part, wanted in zip(parts, both):
            same(part, wanted[:, 2 * rank : 2 * rank + 2].contiguous())
        out = torch.empty(3, 4, dtype=dtype, device="tpu")
        dist.scatter(out, [x.to("tpu") for x in both] if rank == 1 else None, src=1)
        same(out, both[rank])


def check_reduce_gather(rank):
    t = torch.full((3,), rank + 1.0, device="tpu")
    dist.reduce(t, 1)
    same(t, torch.full((3,), 3.0 if rank == 1 else 1.0))
    outs = [torch.zeros(3, device="tpu") for _ in range(2)] if rank == 0 else None
    dist.gather(torch.full((3,), rank + 5.0, device="tpu"), outs, dst=0)
    if rank == 0:
        same(torch.stack(outs), torch.tensor([[5.0] * 3, [6.0] * 3]))


def check_reduce_scatter(rank):
    for dtype, op in ((torch.float32, ReduceOp.SUM), (torch.int64, ReduceOp.BXOR), (torch.bfloat16, ReduceOp.MAX)):
        function = {ReduceOp.SUM: torch.add, ReduceOp.BXOR: torch.bitwise_xor, ReduceOp.MAX: torch.maximum}[op]
        wanted = function(data(0, dtype, (4, 3)), data(1, dtype, (4, 3)))
        out = torch.empty(2, 3, dtype=dtype, device="tpu")
        dist.reduce_scatter_tensor(out, data(rank, dtype, (4, 3)).to("tpu"), op)
        same(out, wanted[2 * rank : 2 * rank + 2])
        out = torch.empty(2, 3, dtype=dtype, device="tpu")
        dist.reduce_scatter(out, list(data(rank, dtype, (4, 3)).to("tpu").split(2)), op)
        same(out, wanted[2 * rank : 2 * rank + 2])
    uneven = [torch.full((1,), rank + 1.0, device="tpu"), torch.full((3,), rank + 1.0, device="tpu")]
    out = torch.empty_like(uneven[rank])
    dist.reduce_scatter(out, uneven)
    same(out, torch.full((1 + 2 * rank,), 3.0))


def check_uneven(rank):
    outs = [torch.zeros(1, device="tpu"), torch.zeros(3, device="tpu")]
    dist.all_gather(outs, torch.full((1 + 2 * rank,), rank + 1.0, device="tpu"))
    same(outs[0], torch.ones(1))
    same(outs[1], torch.full((3,), 2.0))
    sizes = [[1, 3], [2, 0]]  # row r: what rank r sends
    sent = torch.arange(float(sum(sizes[rank])), device="tpu")[:, None] + 10 * rank
    received = torch.empty(sizes[0][rank] + sizes[1][rank], 1, device="tpu")
    dist.all_to_all_single(received, sent, [sizes[0][rank], sizes[1][rank]], sizes[rank])
    same(received, torch.tensor([[0.0], [10.0], [11.0]] if rank == 0 else [[1.0], [2.0], [3.0]]))
    even = torch.empty(4, device="tpu")
    dist.all_to_all_single(even, torch.arange(4.0, device="tpu") + 10 * rank)
    same(even, torch.tensor([0.0, 1, 10, 11]) + 2 * rank)


def check_async_and_futures(rank):
    t = torch.full((2000,), rank + 1.0, device="tpu")
    works = [dist.all_reduce(t, async_op=True) for _ in range(10)]
    assert all(work.wait() for work in works)
    same(t.add_(1), torch.full((2000,), 3 * 2.0**9 + 1))
    future = dist.all_reduce(torch.ones(3, device="tpu"), async_op=True).get_future()
    (value,) = future.then(lambda f: [f.value()[0] * 2]).wait()
    same(value, torch.full((3,), 4.0))


def check_programs_are_kept(rank):
    def step():
        t = torch.full((7,), rank + 1.0, device="tpu")
        dist.all_reduce(t)
        return t

    step(), step()
    torch_tpu.reset_stats()
    for _ in range(5):
        step()
    same(step(), torch.full((7,), 3.0))
    stats = torch_tpu.stats()
    assert stats["compiles"] == stats["disk_hits"] == 0 and not stats["fallbacks"], stats
    assert stats["host_to_device"] == 0 and stats["device_to_host"] == 1, stats


def check_subgroups(rank):
    alone = [dist.new_group([r]) for r in range(2)]
    both = dist.new_group([0, 1])
    t = torch.full((3,), rank + 1.0, device="tpu")
    dist.all_reduce(t, group=alone[rank])
    same(t, torch.full((3,), rank + 1.0))
    dist.all_reduce(t, group=both)
    same(t, torch.full((3,), 3.0))
    dist.destroy_process_group(both)


def check_host(rank):
    t = torch.full((3,), rank + 1)
    dist.all_reduce(t)
    assert t.tolist() == [3, 3, 3] and t.device.type == "cpu"
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()


def check_gloo_takes_device_tensors(rank):
    group = dist.new_group([0, 1], backend="gloo")
    t = torch.full((2, 3), rank + 1.0, device="tpu")
    dist.all_reduce(t[0], group=group)
    same(t, torch.tensor([[3.0] * 3, [rank + 1.0] * 3]))
    outs = [torch.empty(2, 3, device="tpu") for _ in range(2)]
    dist.all_gather(outs, t, group=group)
    same(outs[1 - rank], torch.tensor([[3.0] * 3, [2.0 - rank] * 3]))


def check_order_holds_between_threads(rank):
    """What one thread starts first comes first, even if its operand is late on one rank and another thread's is not."""
    slow = torch.ones(600, 600, device="tpu")
    results = []

    def start(value, late):
        t = torch.full((300,), value, device="tpu")
        t = t + (slow @ slow @ slow)[0, :300] * 0 if late else t
        dist.all_reduce(t)
        results.append(t)

    for turn in range(20):
        thread = threading.Thread(target=start, args=((rank + 1.0) * turn, turn % 2 == rank))
        thread.start()
        thread.join()
    for turn, t in enumerate(results):
        same(t, torch.full((300,), 3.0 * turn))


def check_messages(rank):
    t = torch.arange(4.0, device="tpu") + 10 * rank
    if rank == 0:
        dist.send(t, 1, tag=3)
        dist.recv(t[1:3], 1)
        same(t, torch.tensor([0.0, 7, 7, 3]))
    else:
        dist.recv(t, 0, tag=3)
        same(t, torch.arange(4.0))
        dist.send(torch.full((2,), 7.0, device="tpu"), 0)
    got = torch.empty(4, device="tpu")
    ops = [dist.P2POp(dist.irecv, got, 1 - rank), dist.P2POp(dist.isend, t + rank, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, torch.arange(4.0) + 1 if rank == 0 else torch.tensor([0.0, 7, 7, 3]))


def check_functional(rank):
    x = torch.full((4,), rank + 1.0, device="tpu")
    same(functional.all_reduce(x, "sum", dist.group.WORLD) + 0, torch.full((4,), 3.0))
    same(functional.all_gather_tensor(x, 0, dist.group.WORLD) + 0, torch.tensor([1.0] * 4 + [2.0] * 4))
    same(functional.reduce_scatter_tensor(x, "avg", 0, dist.group.WORLD) + 0, torch.full((2,), 1.5))
    same(functional.all_to_all_single(x, None, None, dist.group.WORLD) + 0, torch.tensor([1.0, 1, 2, 2]))
    same(functional.broadcast(x, 1, dist.group.WORLD) + 0, torch.full((4,), 2.0))
    name = dist.group.WORLD.group_name
    many = torch.ops._c10d_functional.all_reduce_coalesced([x, x + 1], "sum", name)
    waited = [torch.ops._c10d_functional.wait_tensor(each) for each in many]
    same(waited[1], torch.full((4,), 5.0))
    y = x.clone()
    torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce_(y, "max", name))
    same(y, torch.full((4,), 2.0))


def check_gradients(rank):
    x = torch.full((2,), rank + 1.0, device="tpu", requires_grad=True)
    gathered = torch.distributed.nn.functional.all_gather(x)
    (torch.stack(list(gathered)).sum() * (rank + 1)).backward()
    same(x.grad, torch.full((2,), 3.0))
    x.grad = None
    (torch.distributed.nn.functional.all_reduce(x * 2).sum() * (rank + 1)).backward()
    same(x.grad, torch.full((2,), 6.0))


def check_errors(rank):
    x = torch.ones(4, device="tpu")
    raises(ValueError, "2 times its elements", dist.all_gather_into_tensor, torch.empty(7, device="tpu"), x)
    raises(ValueError, "all on cpu", dist.all_gather, [torch.empty(4), torch.empty(4, device="tpu")], x)
    raises(TypeError, "BAND is not defined for torch.float32", dist.all_reduce, x, ReduceOp.BAND)
    raises(TypeError, "AVG is not defined for torch.bool", dist.all_reduce, x > 0, ReduceOp.AVG)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def train(model, optimizer, batches, device):
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()


def check_ddp_is_training_on_the_joint_batch(rank):
    generator = torch.Generator().manual_seed(5)
    batches = [(torch.randn(8, 8, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(4)]
    alone = network().eval()
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9), batches, "cpu")
    model = network().eval()
    if rank == 1:
        nn.init.zeros_(model[0].weight)  # the first rank's values win
    ddp = DistributedDataParallel(model.to("tpu"), bucket_cap_mb=0.0005)
    own = [(x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4]) for x, y in batches]
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9), own, "tpu")
    for ours, wanted in zip(ddp.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), wanted.detach())
    assert not torch_tpu.stats()["fallbacks"], torch_tpu.stats()["fallbacks"]


def check_fsdp_is_training_on_the_joint_batch(rank):
    from torch.distributed.fsdp import fully_shard

    generator = torch.Generator().manual_seed(6)
    batches = [(torch.randn(8, 8, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(3)]
    alone = network().eval()
    train(alone, torch.optim.AdamW(alone.parameters(), lr=0.01), batches, "cpu")
    model = network().eval().to("tpu")
    mesh = dist.device_mesh.init_device_mesh("tpu", (2,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    own = [(x[4 * rank : 4 * rank + 4], y[4 * rank : 4 * rank + 4]) for x, y in batches]
    train(model, torch.optim.AdamW(model.parameters(), lr=0.01), own, "tpu")
    for ours, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        assert ours.to_local().numel() < wanted.numel()
        torch.testing.assert_close(ours.full_tensor().detach().cpu(), wanted.detach())


def check_dtensor(rank):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("tpu", (2,))
    x, w = data(3, torch.float32, (4, 6)), data(4, torch.float32, (6, 5))
    left, right = distribute_tensor(x.to("tpu"), mesh, [Shard(1)]), distribute_tensor(w.to("tpu"), mesh, [Shard(0)])
    product = left @ right
    torch.testing.assert_close(product.full_tensor().cpu(), x @ w)
    rows = distribute_tensor(x.to("tpu"), mesh, [Shard(0)])
    same(rows.to_local(), x[2 * rank : 2 * rank + 2])
    same(rows.redistribute(mesh, [Shard(1)]).to_local(), x[:, 3 * rank : 3 * rank + 3].contiguous())
    same(rows.redistribute(mesh, [Replicate()]).to_local(), x)
    assert abs(rows.sum().full_tensor().item() - x.sum().item()) < 1e-4


def main(path):
    dist.init_process_group("tpu_dist")
    rank = dist.get_rank()
    failures = {}
    checks = [name for name in globals() if name.startswith("check_")]
    wanted = sys.argv[2].split(",") if len(sys.argv) > 2 else checks
    for name in wanted:
        try:
            globals()[name](rank)
        except Exception:
            failures[name] = traceback.format_exc()
        dist.barrier()
    with open(path, "w", encoding="utf-8") as file:
        json.dump(failures, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
