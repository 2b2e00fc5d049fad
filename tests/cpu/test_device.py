"""`tpu` as a PyTorch device: discovery, `torch.tpu`, `torch.accelerator`, factories, moving modules and tensors."""

from __future__ import annotations

import time
from functools import partial

import numpy
import pytest
import torch
from torch import nn

DEVICE = "tpu"


def test_the_device_is_there():
    assert torch.tpu.is_available() and torch.accelerator.is_available()
    assert torch.tpu.device_count() == torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 0
    assert torch.ones(1, device="tpu").device == torch.device("tpu", 0)


def test_device_module():
    for asked in ("tpu", torch.device("tpu:0"), None):
        assert torch.get_device_module(asked) is torch.tpu
    import torch.tpu as imported

    assert imported is torch.tpu
    assert all(hasattr(torch.tpu, name) for name in torch.tpu.__all__)
    torch.tpu.init()
    assert torch.tpu.is_initialized() and torch.tpu._initialized


def test_names_and_properties():
    assert torch.tpu.get_device_name() == torch.tpu.get_device_name("tpu:0") == "XLA CPU"
    properties = torch.tpu.get_device_properties(0)
    assert properties.name == "XLA CPU" and properties.total_memory > 0 and properties.multi_processor_count == 1
    assert torch.tpu.get_device_capability()["platform"] == "cpu"
    assert torch.bfloat16 in torch.tpu.get_amp_supported_dtype() and torch.tpu.is_bf16_supported()


def test_only_device_0_exists():
    torch.tpu.set_device(0)
    torch.tpu.set_device("tpu")
    torch.accelerator.set_device_index(0)
    with torch.tpu.device("tpu:0"), torch.tpu.device_of(torch.ones(1)), torch.accelerator.device_index(0):
        assert torch.tpu.current_device() == 0
    with pytest.raises(ValueError, match="drives tpu:0 only; there is no tpu:1"):
        torch.tpu.set_device(1)
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        torch.tpu.synchronize("cpu")
    with pytest.raises(RuntimeError, match="there is no tpu:1"):
        torch.ones(2, device="tpu:1")
    with pytest.raises(RuntimeError, match="there is no tpu:1"):
        torch.ones(2).to("tpu:1")
    with pytest.raises(RuntimeError, match="there is no tpu:2"):
        torch.accelerator.set_device_index(2)


def test_factories_follow_the_default_device():
    with torch.device("tpu"):
        made = [torch.zeros(2), torch.tensor([1, 2]), torch.arange(3), nn.Linear(2, 2).weight, torch.randn(3)]
        made += [torch.eye(2), torch.linspace(0, 1, 3), torch.full((2,), 3), torch.empty(0), torch.as_tensor([1.0])]
    assert all(tensor.is_tpu for tensor in made)
    torch.set_default_device("tpu")
    try:
        assert torch.ones(1).is_tpu and torch.get_default_device().type == "tpu"
    finally:
        torch.set_default_device(None)
    assert not torch.ones(1).is_tpu


def test_methods_made_for_the_device():
    x = torch.arange(3.0)
    moved = x.tpu()
    assert moved.is_tpu and not x.is_tpu and moved.tpu(0) is moved
    assert nn.Linear(1, 1).tpu().weight.is_tpu
    assert x.untyped_storage().tpu().device.type == "tpu"
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]).to("tpu")
    assert packed.data.is_tpu


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(1))


def test_modules_keep_their_parameters():
    model = Tied()
    weight = model.head.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("tpu")
    assert model.head.weight is model.embedding.weight is weight and weight.is_tpu and model.scale.is_tpu
    model.embedding(torch.tensor([1], device="tpu")).sum().backward()
    before = weight.detach().cpu()
    optimizer.step()
    assert torch.allclose(before[1] - weight.detach().cpu()[1], torch.full((3,), 0.1))
    assert weight.grad.is_tpu
    model.cpu()
    assert model.head.weight is weight and not weight.is_tpu and not weight.grad.is_tpu
    assert model.tpu().to(torch.bfloat16).head.weight is model.embedding.weight
    assert Tied().to("meta").to_empty(device="tpu").scale.is_tpu
    with torch.device("tpu"):
        assert Tied().scale.is_tpu


class Packed(torch.Tensor):
    """A tensor of a library that keeps its values in another one, and implements what it is asked for."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default), func
        return cls(func(args[0].inner, **(kwargs or {})))


@pytest.mark.parametrize("home", ["cpu", DEVICE])
def test_modules_with_parameters_of_a_subclass_move(home):
    """PyTorch asks first whether a parameter could keep its identity, which no subclass answers."""
    model = nn.Linear(2, 2, bias=False, device=home)
    model.weight = nn.Parameter(Packed(model.weight.detach()), requires_grad=False)
    for device in ("cpu", DEVICE, "cpu"):
        model.to(device)
        assert type(model.weight.data) is Packed and model.weight.inner.device.type == device


def test_hooks():
    seen = []
    model = nn.Linear(2, 2).to("tpu")
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    model.weight.register_hook(lambda grad: seen.append("gradient"))
    model.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append("accumulated"))
    model(torch.ones(1, 2, device="tpu", requires_grad=True)).sum().backward()
    assert seen[0] == "forward" and set(seen) == {"forward", "backward", "gradient", "accumulated"}


def test_values_must_be_on_the_device():
    x = torch.ones(2, device="tpu")
    for call in (lambda: x + torch.ones(2), lambda: torch.ones(2) * x, lambda: nn.Linear(2, 2)(x)):
        with pytest.raises(RuntimeError, match="all tensors to be on the same device"):
            call()
    assert (x + torch.tensor(2.0)).tolist() == [3, 3]  # numbers may come from the CPU
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
        x.numpy()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.pin_memory()


def test_copies_between_host_and_device():
    source = torch.arange(100_000.0)
    moved = source.to("tpu", non_blocking=True)
    source.zero_()  # pageable memory: the values are those at the time of the call
    assert moved[5].item() == 5
    back = moved.cpu()
    back[0] = 7
    assert moved[0].item() == 0
    pinned = torch.arange(100_000.0).pin_memory()
    assert pinned.is_pinned() and not source.is_pinned()
    moved = pinned.to("tpu", non_blocking=True)
    torch.tpu.synchronize()
    target = torch.empty(100_000).pin_memory()
    target.copy_(moved, non_blocking=True)
    torch.tpu.synchronize()
    assert target[9] == 9 and moved.to("cpu", non_blocking=True)[7] == 7
    x = torch.arange(6.0, device="tpu").view(2, 3)
    assert x.t().cpu().stride() == (1, 3) and torch.equal(x.t().cpu(), torch.arange(6.0).view(2, 3).t())
    assert x.to(torch.int32).cpu().dtype is torch.int32 and x.to("cpu", torch.float64)[1, 2] == 5
    assert x.to("tpu") is x and x.to("tpu", copy=True) is not x


def test_views_are_read_without_a_program(counters):
    x = torch.arange(20, device="tpu").view(4, 5)
    torch.tpu.synchronize()
    counters.reset()
    assert x[1:, ::2].cpu().tolist() == [[5, 7, 9], [10, 12, 14], [15, 17, 19]]
    assert x[3, 4].item() == 19 and x.t()[2].tolist() == [2, 7, 12, 17]
    assert counters.executions == 0


def test_slices_share_programs(counters):
    """Minibatches: where a slice starts is data, for what reads it and for what writes to it."""
    data = torch.randn(50, 8)
    x = data.to(DEVICE)

    def step(x, start):
        batch = x[start : start + 7]
        x[start : start + 7, 2:5] += batch.t().sum() + batch[:, 1:4].sin()
        batch.mul_(0.5)
        return batch[1:] + 1

    compiled = torch.compile(lambda batch: (batch * 2, batch[2:].t()), backend=DEVICE)
    for start in (0, 1, 14, 43):
        torch.testing.assert_close(step(x, start).cpu(), step(data, start))
        for one, other in zip(
            compiled(x[start : start + 7]), (data[start : start + 7] * 2, data[start + 2 : start + 7].t())
        ):
            torch.testing.assert_close(one.cpu(), other)
        if not start:
            made = counters.compiles + counters.disk_hits + counters.memory_hits
    torch.testing.assert_close(x.cpu(), data)
    assert counters.compiles + counters.disk_hits + counters.memory_hits == made


def test_places_in_new_memory_share_programs(counters):
    """`torch.empty`, filled piece by piece along any dimension."""

    def filled(take, count):
        x = torch.empty(5, 6, 7, device=DEVICE)
        for index in range(count):
            take(x, index).copy_(torch.full_like(take(x, index), index))
        return x.cpu()

    for take, count in (
        (lambda x, i: x[i], 5),
        (lambda x, i: x[:, i], 6),
        (lambda x, i: x[:, :, i], 7),
        (lambda x, i: x[i // 6, i % 6, :4], 30),
    ):
        before = counters.compiles + counters.disk_hits + counters.memory_hits
        x = filled(take, count)
        for index in range(count):
            assert (take(x, index) == index).all()
        assert counters.compiles + counters.disk_hits + counters.memory_hits - before <= 4


def test_loaders_in_worker_processes():
    torch.ones(1, device="tpu").item()  # the device is in use when the workers are forked
    data = torch.utils.data.TensorDataset(torch.arange(20.0))
    for workers in (0, 2):
        for pin in (False, True):
            loader = torch.utils.data.DataLoader(data, batch_size=5, num_workers=workers, pin_memory=pin)
            total = 0.0
            for (batch,) in loader:
                assert batch.is_pinned() == pin
                total += batch.to("tpu", non_blocking=True).sum().item()
            assert total == 190


def test_modes():
    assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEFER_NEVER
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
        assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING
        assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]
    assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEFER_NEVER
    with torch.tpu.precision("HIGH"), torch.tpu.precision(torch.tpu.Precision.HIGHEST):
        pass
    assert torch.tpu.allow_excess_precision is torch.backends.tpu.allow_excess_precision is False
    torch.tpu.allow_excess_precision = True
    assert torch.backends.tpu.allow_excess_precision
    torch.backends.tpu.allow_excess_precision = False


def test_a_mode_is_set_from_here_on_for_a_block_or_for_calls():
    strict, debug, fused = torch.tpu.EagerMode
    try:
        torch.tpu.set_eager_mode(debug)
        assert torch.tpu.eager_mode is debug
        with torch.tpu.set_eager_mode(fused):
            with torch.tpu.set_eager_mode(strict):
                assert torch.tpu.eager_mode is strict
            assert torch.tpu.eager_mode is fused
        assert torch.tpu.eager_mode is debug

        @torch.tpu.set_eager_mode(fused)
        def decorated(again: bool) -> list[torch.tpu.EagerMode]:
            """Says so."""
            return [torch.tpu.eager_mode, *(decorated(False) if again else [])]

        assert torch.tpu.eager_mode is debug and decorated.__doc__ == "Says so."
        assert decorated(True) == [fused, fused] and torch.tpu.eager_mode is debug
        with pytest.raises(ValueError, match="is not a valid EagerMode"):
            torch.tpu.set_eager_mode("loose")
        assert torch.tpu.eager_mode is debug
    finally:
        torch.tpu.set_eager_mode(strict)


def test_backend_module():
    import torch.backends.tpu as backend

    assert backend is torch.backends.tpu and backend.is_available() and backend.is_built() and backend.version()
    assert {"is_available", "matmul_precision"} <= set(dir(backend))


def test_streams_and_events():
    first, last = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
    assert "not recorded" in repr(first)
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(last)
    first.record()
    x = torch.ones(300, 300, device="tpu")
    for _ in range(20):
        x = x @ x * 0.01
    last.record()
    last.synchronize()
    assert last.query() and first.query() and 0 < first.elapsed_time(last) < 60_000
    assert "done" in repr(first)
    plain = torch.tpu.Event()
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain.elapsed_time(last)
    generic = torch.Event("tpu", enable_timing=True)
    generic.record()
    assert first.elapsed_time(generic) > 0

    least, greatest = torch.tpu.Stream.priority_range()
    stream = torch.tpu.Stream(priority=greatest)
    assert stream.priority == least
    assert isinstance(torch.tpu.current_stream(), torch.tpu.Stream) and "stream_id=0" in repr(
        torch.tpu.default_stream()
    )
    assert stream != torch.tpu.default_stream() and torch.tpu.current_stream() == torch.tpu.default_stream()
    with torch.tpu.stream(stream):
        assert torch.tpu.current_stream() == stream
        stream.wait_event(last)
        y = x + 1
        event = stream.record_event()
        assert isinstance(event, torch.tpu.Event)
    with stream:
        assert torch.tpu.current_stream() == stream
    torch.tpu.current_stream().wait_stream(stream)
    y.record_stream(stream)
    event.wait()
    stream.synchronize()
    assert stream.query() and torch.tpu.current_stream() == torch.tpu.default_stream()
    with pytest.raises(ValueError, match="cannot be shared"):
        torch.tpu.Event(interprocess=True)


def test_event_waits_for_its_work_only():
    event = torch.tpu.Event()
    assert event.query()  # as on CUDA: nothing recorded is nothing to wait for
    x = torch.ones(400, 400, device="tpu")
    for _ in range(30):
        x = x @ x * 0.001
    event.record()
    event.synchronize()
    assert event.query() and torch.tpu.current_stream().query() in (True, False)


def test_printing():
    x = torch.arange(4.0, device="tpu")
    assert repr(x) == "tensor([0., 1., 2., 3.], device='tpu:0')"
    assert (
        repr(nn.Parameter(x)) == "Parameter containing:\ntensor([0., 1., 2., 3.], device='tpu:0', requires_grad=True)"
    )
    assert "device='tpu:0', size=(0, 2)" in repr(torch.empty(0, 2, device="tpu"))


def test_no_other_library_gets_an_address():
    x = torch.arange(6.0, device="tpu")
    for convert in (numpy.from_dlpack, numpy.asarray, memoryview):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            convert(x)


def test_another_library_gets_a_copy_on_the_host():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    array = numpy.from_dlpack(x.t(), device="cpu")
    x.zero_()
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]


def _seconds_of_products(*, keep):
    x = torch.ones(1200, 1200, device="tpu")
    (x @ x).sum().item()
    start, kept = time.perf_counter(), []
    for _ in range(8):
        product = x @ x
        if keep:
            kept.append(product)
    del product
    torch.tpu.synchronize()
    return time.perf_counter() - start


def test_synchronize_waits_for_results_that_nobody_holds():
    kept = min(_seconds_of_products(keep=True) for _ in range(3))
    dropped = min(_seconds_of_products(keep=False) for _ in range(3))
    assert dropped > kept / 3


def test_synchronize_raises_once_what_failed_unseen():
    rows, places = torch.ones(4000, 1000, device="tpu"), torch.full((20000,), 3)
    places[777] = 4000
    places = places.to("tpu")
    x = torch.ones(1200, 1200, device="tpu")
    product = x @ x  # keeps the device busy until the rows are dropped
    with pytest.raises(IndexError, match="index 4000 is out of bounds"):
        rows[places]  # which raises by itself where it takes long enough to start
        torch.tpu.synchronize()
    torch.tpu.synchronize()
    assert product[0, 0].item() == 1200


def test_dlpack_shares_memory():
    x = torch.arange(6.0, device="tpu").view(2, 3)
    y = torch.from_dlpack(x.t())
    assert y.device == x.device and y.stride() == (1, 3)
    y.zero_()
    assert not x.any()
    assert torch.from_dlpack(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.float8_e5m2])
def test_a_tensor_that_was_copied_can_be_resized(dtype):
    host, target = torch.ones(3).to(dtype), torch.empty(3, dtype=dtype, device="tpu")
    device = host.to("tpu")
    target.copy_(host)
    host.resize_(9)
    back = device.cpu()
    back.resize_(9)
    assert torch.equal(back[:3].float(), torch.ones(3)) and torch.equal(target.cpu().float(), torch.ones(3))


def _started(tensor, model, results):
    results.put((tensor.device.type, (tensor + 1).tolist(), model(torch.ones(2, device="tpu")).tolist()))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_arguments_of_a_process(method):
    context = torch.multiprocessing.get_context(method)
    results, x, model = context.SimpleQueue(), torch.arange(3.0, device="tpu"), nn.Linear(2, 2).to("tpu")
    process = context.Process(target=_started, args=(x[1:], model, results))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert results.get() == ("tpu", [2, 3], model(torch.ones(2, device="tpu")).tolist())


def test_queues_of_processes():
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    x = torch.arange(6.0, device="tpu").view(2, 3)
    for sent in (
        x,
        x.t()[1:],
        x.bfloat16(),
        torch.empty(0, 2, device="tpu"),
        nn.Parameter(x),
        x.clone().requires_grad_(),
    ):
        queue.put(sent)
        got = queue.get()
        assert type(got) is type(sent) and got.device == sent.device and got.requires_grad == sent.requires_grad
        assert got.dtype is sent.dtype and torch.equal(got, sent)
        with torch.no_grad():
            got.zero_()
    assert x.sum().item() == 15, "the receiver has a copy"
    with pytest.raises(RuntimeError, match="non-leaf"):
        queue.put(nn.Parameter(x) * 2)


def test_cache_statistics():
    x = torch.ones(3, 7, device="tpu")
    torch.tpu._clear_cache()
    before = torch.tpu._get_cache_stats()
    (x + x).sum().item()
    after = torch.tpu._get_cache_stats()
    assert after["num_cache_reqs"] > before["num_cache_reqs"] and after["num_cache_hits"] >= before["num_cache_hits"]


def test_lazy_modules(counters):
    model = nn.Sequential(nn.LazyConv2d(3, 2), nn.LazyBatchNorm2d()).tpu()
    assert model(torch.ones(1, 2, 4, 4, device=DEVICE)).device.type == DEVICE
    assert nn.LazyLinear(3).to(DEVICE)(torch.ones(2, 4, device=DEVICE)).shape == (2, 3)
    assert nn.LazyLinear(3, device=DEVICE).half().cpu().weight.dtype is torch.float16
    assert not counters.fallbacks


NUMBER_ON_THE_HOST = {
    "in place": lambda x, y: x.add_(y),
    "item": lambda x, y: x[()].mul_(y),
    "lerp": lambda x, y: x.lerp_(y, y),
    "out": lambda x, y: torch.exp(y, out=x),
    "foreach": lambda x, y: torch._foreach_add_([x], [y]),
    "one of two": lambda x, y: torch.max(y[None], 0, out=(torch.empty_like(y), x.long())),
}


@pytest.mark.parametrize("name", NUMBER_ON_THE_HOST)
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_a_number_on_the_host_is_not_written_from_the_device(name, mode):
    """As with CUDA. It may be read; and `fill_` and `copy_` take their values from anywhere."""
    x, y = torch.tensor(1.0), torch.tensor(2.0, device=DEVICE)
    with torch.tpu.set_eager_mode(mode):
        with pytest.raises(RuntimeError, match="same device"):
            NUMBER_ON_THE_HOST[name](x, y)
        assert x.item() == 1 and (y + x).item() == 3
        assert x.fill_(y).item() == 2 and x.copy_(y * 2).item() == 4


OTHER_DTYPE = {
    "tril": lambda x, out: torch.tril(x, out=out),
    "softmax": lambda x, out: torch.softmax(x, 0, out=out),
    "amax": lambda x, out: torch.amax(x, 0, keepdim=True, out=out),
    "index_add": lambda x, out: torch.index_add(x, 0, torch.tensor([0], device=x.device), x[:1], out=out),
    "solve": lambda x, out: torch.linalg.solve(x, x, out=out),
    "renorm": lambda x, out: torch.renorm(x, 1, 0, 1, out=out),
    "hardshrink": lambda x, out: torch.ops.aten.hardshrink(x, out=out),
    "take": lambda x, out: torch.take(x, torch.tensor([[0]], device=x.device), out=out),
    "logcumsumexp": lambda x, out: torch.logcumsumexp(x, 0, out=out),
    "angle in integers": lambda x, out: torch.angle(x, out=out.int()),
}


@pytest.mark.parametrize("name", OTHER_DTYPE)
@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_results_that_are_not_cast_to_the_dtype_of_out(name, device):
    with pytest.raises(RuntimeError, match=r"dtype|scalar.type|cast"):
        OTHER_DTYPE[name](torch.ones(1, 1, device=device), torch.empty(1, 1, dtype=torch.float64, device=device))


def test_results_that_are_cast_to_the_dtype_of_out(counters):
    for name in ("exp", "sum", "mean", "cumsum", "var", "logsumexp"):
        x, dim = torch.tensor([1.0, 2.0, 4.0]), () if name == "exp" else (0,)
        out = torch.zeros_like(getattr(torch, name)(x, *dim), dtype=torch.float64)
        found = getattr(torch, name)(x.to(DEVICE), *dim, out=out.to(DEVICE))
        torch.testing.assert_close(found.cpu(), getattr(torch, name)(x, *dim, out=out), rtol=1e-6, atol=1e-6)
    assert not counters.fallbacks


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_an_out_tensor_of_another_size_warns(device):
    x, mask = torch.tensor([1.0, 2.0, 4.0], device=device), torch.tensor([True, False, True], device=device)
    for call in (partial(torch.masked_select, x, mask), partial(torch.cumsum, x, 0)):
        with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
            call(out=torch.ones(5, device=device))


def test_padded_batches_in_transformer_modules(counters):
    """In evaluation mode PyTorch would make a nested tensor of them."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    mask = torch.tensor([[False, False, False, True, True], [False] * 5])
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        wanted = model(x, src_key_padding_mask=mask)
        found = model.to(DEVICE)(x.to(DEVICE), src_key_padding_mask=mask.to(DEVICE))
    torch.testing.assert_close(found.cpu()[~mask], wanted[~mask])
    assert not counters.fallbacks


def test_nested_tensors_are_refused():
    cases = [
        lambda: torch.nested.nested_tensor([torch.ones(2, 3)]).to(DEVICE),
        lambda: torch.nested.as_nested_tensor([torch.ones(2, 3, device=DEVICE)]),
    ]
    for case in cases:
        with pytest.raises(NotImplementedError, match=r"COO tensors only|no strided nested"):
            case()


def test_the_trainer_of_transformers(tmp_path):
    """Accelerate must move the model to where `TrainingArguments` puts the data."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config)
    data = [{"input_ids": torch.arange(4) + i, "labels": torch.arange(4) + i} for i in range(8)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, report_to=[], logging_steps=1, disable_tqdm=True
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert arguments.device.type == next(model.parameters()).device.type == DEVICE
    assert losses[2] < losses[0]


def test_device_maps_of_accelerate():
    """`device_map="auto"` fills the device before it takes the host's memory."""
    accelerate = pytest.importorskip("accelerate")
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
    assert accelerate.infer_auto_device_map(model) == {"": 0}
    assert list(accelerate.utils.get_max_memory()) == [0, "cpu"]
    split = accelerate.infer_auto_device_map(model, max_memory={0: "600KB", "cpu": "1GB"})
    assert split == {"0": 0, "1": "cpu", "2": "cpu"}
    with torch.no_grad():
        wanted = model(torch.ones(2, 256))
        found = accelerate.dispatch_model(model, split)(torch.ones(2, 256))
    assert model[0].weight.is_tpu
    torch.testing.assert_close(found.cpu(), wanted)


def test_sizes_are_compared_across_devices():
    """PyTorch asks so before it copies the tangents of dual tensors."""
    x = torch.ones(2, 1, device=DEVICE)
    assert torch.ops.aten.is_same_size(x, torch.ones(2, 1)) and not torch.ops.aten.is_same_size(x, torch.ones(1, 2))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2, 1), torch.ones(2, 1))
        assert x.copy_(dual).tolist() == [[1.0], [1.0]]
