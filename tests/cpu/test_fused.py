"""Fused eager: the results of strict mode, few programs, and none made once a training loop is under way."""

from __future__ import annotations

import io
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_tpu
from torch_tpu import _plug, errors, settings
from torch_tpu.stats import num_compiles

FUSE = torch.tpu.EagerMode.DEFER_AND_FUSE
STRICT = torch.tpu.EagerMode.DEFER_NEVER


@pytest.fixture
def fused():
    with torch.tpu.set_eager_mode(FUSE):
        yield


def waiting():
    return _plug.recording_stats()["waiting"]


def test_operators_wait_and_run_as_one_program(fused, counters):
    x = torch.rand(4, 4).to("tpu")
    y = x
    for _ in range(10):
        y = (y * 2).relu() + x
    assert waiting() == 30 and counters.executions == 0
    result = y.cpu()
    assert waiting() == 0 and counters.executions == 1
    expected = x.cpu()
    for _ in range(10):
        expected = (expected * 2).relu() + x.cpu()
    torch.testing.assert_close(result, expected)


def test_a_value_that_needs_little_is_read_without_running_the_rest(fused, counters):
    x, steps = torch.rand(4, 4).to("tpu"), torch.zeros((), device="tpu")
    torch.tpu.synchronize()
    y = (x * 2).relu()
    steps += 1
    y = y @ x
    executions = counters.executions
    assert steps.item() == 1 and counters.executions == executions + 1
    assert waiting() == 3
    torch.testing.assert_close(y.cpu(), (x.cpu() * 2).relu() @ x.cpu())


def test_what_a_read_value_shares_with_the_rest_is_computed_once(fused):
    x = torch.arange(4.0).to("tpu")
    shared = x + 1
    other = shared * 3
    assert (shared * 2).tolist() == [2, 4, 6, 8]
    assert waiting() == 1
    assert other.tolist() == [3, 6, 9, 12] and shared.tolist() == [1, 2, 3, 4]


def test_a_storage_that_was_written_again_before_it_is_read(fused):
    x = torch.arange(4.0).to("tpu")
    x += 1
    before = x * 2  # needs the value that is written over
    x.zero_()
    x.fill_(5)
    assert x.tolist() == [5, 5, 5, 5]
    x += 1
    assert before.tolist() == [2, 4, 6, 8] and x.tolist() == [6, 6, 6, 6]


def test_a_resumed_optimizer_ends_exactly_where_the_unbroken_one_does(fused):
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to("tpu")
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            model(torch.full((3, 6), step + 1.0).to("tpu")).square().sum().backward()
            optimizer.step()

    model, optimizer = build()
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    train(model, optimizer, range(3, 6))
    resumed, its_optimizer = build()
    weights, state = torch.load(io.BytesIO(file.getvalue()), map_location="tpu")
    resumed.load_state_dict(weights)
    its_optimizer.load_state_dict(state)
    assert all(values["step"].device.type == "tpu" for values in its_optimizer.state.values())
    train(resumed, its_optimizer, range(3, 6))
    for theirs, ours in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(theirs.cpu(), ours.cpu())


def test_leaving_the_mode_runs_what_waits():
    x = torch.ones(3, device="tpu")
    with torch.tpu.set_eager_mode(FUSE):
        y = x + 1
        assert waiting() > 0
    assert waiting() == 0
    assert y.tolist() == [2, 2, 2]


def test_synchronize_events_and_memory_statistics_see_what_waits(fused):
    held = torch.tpu.memory_allocated()
    x = torch.ones(1 << 18, device="tpu")
    assert torch.tpu.memory_allocated() - held == 1 << 20
    for wait in (torch.tpu.synchronize, torch.tpu.Event().record, torch.accelerator.synchronize):
        x = x + 1
        assert waiting()
        wait()
        assert not waiting()


def test_other_numbers_are_data(fused):
    x = torch.rand(8).to("tpu")

    def f(number):
        return (x * number + number).sigmoid().sum().item()

    f(1.5)
    before = num_compiles()
    assert f(2.5) == pytest.approx((x.cpu() * 2.5 + 2.5).sigmoid().sum().item(), rel=1e-6)
    f(0.1)
    assert num_compiles() == before


def test_views_and_writes_through_them(fused):
    x = torch.zeros(4, 6, device="tpu")
    view = x[1:3].t()
    view.add_(1)
    x[:, 2] = torch.arange(4.0).to("tpu")
    row = x[3]
    row.mul_(0).sub_(7)
    x.t_()
    expected = torch.zeros(4, 6)
    expected[1:3].t().add_(1)
    expected[:, 2] = torch.arange(4.0)
    expected[3].mul_(0).sub_(7)
    assert waiting()
    torch.testing.assert_close(x.cpu(), expected.t(), rtol=0, atol=0)


def test_a_copy_shares_a_result_that_waits(fused):
    x = torch.arange(5.0, device="tpu") + 1
    y = x.clone()
    x.add_(10)
    assert y.tolist() == [1, 2, 3, 4, 5] and x.tolist() == [11, 12, 13, 14, 15]


def test_a_tensor_on_the_cpu_is_read_when_the_operator_is_called(fused):
    x, number = torch.ones(2, device="tpu"), torch.tensor(3.0)
    y = x * number
    number.fill_(100)
    assert y.tolist() == [3, 3]


def test_random_numbers_are_those_of_strict_mode(fused):
    def draw():
        torch.manual_seed(3)
        x = torch.rand(5, device="tpu")
        return (x + torch.randn(5, device="tpu") + F.dropout(torch.ones(5, device="tpu"))).cpu(), torch.rand(
            2, device="tpu"
        ).cpu()

    ours = draw()
    with torch.tpu.set_eager_mode(STRICT):
        strict = draw()
    torch.testing.assert_close(ours, strict)
    assert not torch.equal(torch.rand(5, device="tpu").cpu(), torch.rand(5, device="tpu").cpu())


def test_results_nobody_holds_are_not_computed(fused, counters):
    x = torch.rand(1000, 1000).to("tpu")
    for _ in range(5):
        x.exp()
    torch.tpu.synchronize()
    assert counters.executions == 0
    torch.tpu.reset_peak_memory_stats()
    before = torch.tpu.memory_allocated()
    y = x
    for _ in range(20):
        y = y * 1.5
    y = y.sum()
    y.item()
    assert torch.tpu.max_memory_allocated() - before < 1000


def test_the_old_value_of_a_written_tensor_is_donated(fused):
    x = torch.zeros(1 << 16, device="tpu")
    torch.tpu.synchronize()
    addresses = set()
    for _ in range(4):
        x.add_(1).mul_(2)
        torch.tpu.synchronize()
        addresses.add(_plug.get_value(x).unsafe_buffer_pointer())
    assert len(addresses) == 1 and x[0].item() == 30


def test_what_is_too_small_to_be_donated_is_the_setting_s_to_say(fused):
    with settings.override(donation_threshold=1 << 20):
        x = torch.zeros(1 << 17, device="tpu")  # 512 KiB
        torch.tpu.synchronize()
        before = _plug.get_value(x).unsafe_buffer_pointer()
        x.sub_(1)
        torch.tpu.synchronize()
        assert _plug.get_value(x).unsafe_buffer_pointer() != before and x[0].item() == -1


def test_a_value_that_somebody_holds_is_not_donated(fused):
    x = torch.zeros(1 << 16, device="tpu")
    kept = x.clone()
    torch.tpu.synchronize()
    host = x.cpu()
    x.add_(1)
    torch.tpu.synchronize()
    assert host.sum().item() == 0 and kept.sum().item() == 0 and x.sum().item() == 1 << 16


def test_what_waits_is_cut_before_memory_runs_out(fused):
    with settings.override(fuse_bytes=10 << 20):
        held = [torch.ones(1 << 20, device="tpu") for _ in range(8)]
        assert waiting() < 4 and len(held) == 8


@pytest.mark.parametrize("before", [0, 3, 50, 123])
def test_the_same_operators_are_cut_alike_whatever_came_before(before):
    w = torch.rand(16, 16).to("tpu")

    def block(x):
        for i in range(1, 9):
            x = torch.tanh(x @ w) * i + x.softmax(-1)
        return x

    with settings.override(fuse_most=64, fuse_least=16), torch.tpu.set_eager_mode(FUSE):
        x = w
        for _ in range(24):
            x = block(x)
        x.sum().item()
        known = num_compiles()
        held = w
        for i in range(before):  # waits in the same recording
            held = held.sin() if i % 2 else held.cos()
        x = w
        for _ in range(24):
            x = block(x)
        x.sum().item()
        assert num_compiles() - known <= 3 + before // 16  # the head of the stream, and what follows it


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 32),
            nn.LayerNorm(32),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(32, 32),
            nn.GELU(),
            nn.Linear(32, 4),
        )

    def forward(self, x):
        return self.layers(x)


def train(steps, device="tpu", watch=lambda step: None):
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.rand(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)) for _ in range(5)
    ]
    losses = []
    for step in range(steps):
        x, y = (part.to(device) for part in batches[step % 5])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 7 == 0:
            losses.append(loss.item())
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                losses.append(F.cross_entropy(model(x), y).item())
            model.train()
        watch(step)
    return losses, [p.detach().cpu() for p in model.parameters()]


def test_training_compiles_nothing_after_its_first_steps(fused, counters):
    made = []
    losses, parameters = train(50, watch=lambda step: made.append(num_compiles()))
    assert made[12] == made[-1]
    assert not counters.fallbacks
    assert counters.executions < 3 * 50
    with torch.tpu.set_eager_mode(STRICT):
        strict_losses, strict_parameters = train(50)
    torch.testing.assert_close(losses, strict_losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parameters, strict_parameters, rtol=1e-3, atol=1e-4)


def encoder(layers):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to("tpu")


def programs_of(layers):
    model, x = encoder(layers), torch.rand(2, 8, 16).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    _plug.clear_fused()
    made = []
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        made.append(_plug.recording_stats()["programs"])
    assert made[-1] == made[-2]
    return made[-1]


def test_a_deeper_model_needs_few_more_programs(fused):
    programs_of(2)  # PyTorch's own imports hold tensors of the first step alive
    assert programs_of(16) <= 1.2 * programs_of(8)
    with settings.override(fuse_most=128):  # every kind of cut occurs in 12 layers
        assert programs_of(24) <= 1.2 * programs_of(12)


class Residual(nn.Linear):
    def forward(self, x):
        return x + super().forward(x).tanh()


def steps_of(optimizer, kinds, batch=8):
    """Trains a deep, narrow model, whose gradients are sums; yields how many programs each step compiles."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Residual(12, 12) for _ in range(24)]).to("tpu")
    chosen = optimizer(model.parameters(), lr=1e-2, **kinds)
    x = torch.rand(batch, 12).to("tpu")
    while True:
        before = num_compiles()
        chosen.zero_grad()
        model(x).square().mean().backward()
        chosen.step()
        torch.tpu.synchronize()
        yield num_compiles() - before


@pytest.mark.parametrize("donation_threshold", [0, 1 << 16])
def test_the_first_step_of_an_optimizer_is_the_program_of_all_others(fused, counters, donation_threshold):
    with settings.override(donation_threshold=donation_threshold):
        steps = steps_of(torch.optim.AdamW, {})
        assert 0 < next(steps) <= 3, "the state, and the step"
        counters.reset()
        assert [next(steps) for _ in range(3)] == [0, 0, 0]
        assert counters.executions == 3


def test_momentum_that_begins_with_the_second_step_stays_in_its_program(fused, counters):
    steps = steps_of(torch.optim.SGD, {"momentum": 0.9}, batch=9)
    assert [next(steps) for _ in range(2)] == [1, 1]
    counters.reset()
    assert [next(steps) for _ in range(3)] == [0, 0, 0]
    assert counters.executions == 3


def test_errors_come_where_the_operator_is_called(fused):
    x = torch.rand(2, 3).to("tpu")
    y = x + 1
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        y @ y
    assert (y - x).cpu().round().eq(1).all()


def test_a_program_that_xla_refuses_names_the_operator(fused, monkeypatch):
    from torch_tpu.eager import fused as module

    def refuse(*args):
        raise errors.CompileError("no")

    x = torch.rand(3).to("tpu")
    monkeypatch.setattr(module.Program, "compile", refuse)
    y = x.sin() * 2.5
    with pytest.raises(errors.CompileError):
        y.cpu()
    monkeypatch.undo()
    with pytest.raises(errors.ExecutionError, match="no value"):
        y.cpu()
    assert (x + 1).cpu().gt(0.9).all()


def test_several_threads_record(fused):
    results = [None] * 4

    def work(i):
        x = torch.full((8,), float(i), device="tpu")
        for _ in range(100):
            x = x * 1.01 + 0.5
        results[i] = x.cpu()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    for i, result in enumerate(results):
        expected = torch.full((8,), float(i))
        for _ in range(100):
            expected = expected * 1.01 + 0.5
        torch.testing.assert_close(result, expected)


def test_operators_with_sizes_from_data_and_fallbacks_run_in_between(fused):
    x = torch.tensor([0.0, 2.0, 0.0, 3.0]).to("tpu") * 2
    assert torch.nonzero(x).tolist() == [[1], [3]]
    assert x[x > 0].tolist() == [4, 6]
    with settings.override(fallback="count"):
        assert torch.linalg.lstsq((torch.eye(2).to("tpu") * 2), torch.ones(2, 1).to("tpu")).solution.tolist() == [
            [0.5],
            [0.5],
        ]


def test_a_program_with_another_set_of_results_is_reused(fused):
    def run(keep):
        held, x = [], torch.ones(4, device="tpu")
        for i in range(8):
            x = x * 1.25 + i
            if i in keep:
                held.append(x)
        assert torch.isfinite(x.sum()).item()

    sets = [(i, j) for i in range(7) for j in range(i)]
    start = num_compiles()
    for keep in sets:
        run(keep)
    before = num_compiles()
    assert before - start <= 8 < len(sets)
    for keep in sets:
        run(keep)
    assert num_compiles() == before


def test_the_variables_that_choose_the_mode(tmp_path):
    import os
    import subprocess
    import sys

    for name in ("TORCH_TPU_DEFER_AND_FUSE", "TPU_DEFER_AND_FUSE"):
        code = "import torch; print(torch.tpu.eager_mode); print((torch.ones(2, device='tpu') + 1).tolist())"
        answer = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {name: "1"}, capture_output=True, text=True, check=True
        )
        assert answer.stdout.split("\n")[:2] == ["EagerMode.DEFER_AND_FUSE", "[2.0, 2.0]"]
    assert torch_tpu.settings.eager_mode == "strict"


@pytest.mark.parametrize("mode", [FUSE, STRICT])
def test_out_of_memory_costs_only_what_depends_on_it(mode):
    """As in a loop that halves the batch: state that was updated before is kept, and later work goes on."""
    with torch.tpu.set_eager_mode(mode):
        weight = torch.ones(4, device="tpu")
        weight.cpu()
        weight.mul_(2)
        column = torch.ones(300_000, 1, device="tpu")
        with pytest.raises(torch.OutOfMemoryError, match="out of memory for aten_mm"):
            (column @ column.t()).sum().item()
        weight.mul_(3)
        assert weight.tolist() == [6.0] * 4
    with pytest.raises(torch.OutOfMemoryError):
        torch.compile(lambda x: (x @ x.t()).sort(-1)[0].sum(), backend="tpu")(column)


def test_calls_beside_a_failing_one_have_results(fused):
    """In one recording: what was recorded after the call that needs too much memory, and does not need it."""
    with settings.override(fuse_bytes=1 << 60):
        weight, column = torch.ones(4, device="tpu"), torch.ones(300_000, 1, device="tpu")
        before = weight * 2
        torch.sort(column @ column.t())
        after = before + 1
        lost = column @ column.t()
        with pytest.raises(torch.OutOfMemoryError):
            lost.sum().item()
        assert before.tolist() == [2.0] * 4 and after.tolist() == [3.0] * 4
        with pytest.raises(errors.ExecutionError, match="failed"):
            lost[0, 0].item()


MANY_NUMBERS = """
import resource, torch
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE
x = torch.zeros(8, device="tpu")
x.cpu()
for i in range(700):
    x.add_(i % 8 / 2)
assert x.tolist() == [1221.0] * 8
"""


def test_many_numbers_do_not_take_all_memory():
    subprocess.run([sys.executable, "-c", MANY_NUMBERS], check=True)


@pytest.fixture
def lengths(fused, monkeypatch):
    """How many calls each program has that is made."""
    from torch_tpu.eager import fused as module

    made = []

    def compile(program, effort):
        made.append(int(program.name.split("_")[1]))
        return original(program, effort)

    original = module._Fused.compile
    monkeypatch.setattr(module._Fused, "compile", compile)
    return made


def test_numbers_that_are_equal_in_all_alike_calls_are_one_operand(lengths):
    def run(numbers):
        x = torch.ones(3, device="tpu")
        x.cpu()
        for number in numbers:
            x = x * number
        return x.cpu()

    _plug.clear_fused()
    for same in (2.0, 0.5, 4.0):
        assert run([same] * 20).tolist() == [same**20] * 3
    assert lengths.count(20) == 1, "another number for all runs the same program"
    for other in (1.0, 4.0):
        assert run([2.0] * 19 + [other]).tolist() == [2.0**19 * other] * 3
    assert lengths.count(20) == 2, "and so do numbers that differ"
    zeros = run([2.0, -0.0])
    assert zeros.tolist() == [0.0] * 3 and zeros.signbit().all()
    zeros = run([0.0, -1.0])
    assert zeros.signbit().all()
    assert run([float("nan")] * 2).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64])
def test_numbers_of_a_program_are_cast_as_those_of_an_operator(dtype):
    numbers = [True, 3, 2] if not dtype.is_floating_point else [0.1, 3, 1e-3, 65504.0, 7]
    if dtype.is_complex:
        numbers = [1 + 2j, 0.5, -0.0, 3]
    results = []
    for mode in (STRICT, FUSE):
        with torch.tpu.set_eager_mode(mode):
            x = torch.ones(4, device="tpu").to(dtype)
            values = [x] + [x + number for number in numbers] + [torch.full_like(x, number) for number in numbers]
            results.append([value.cpu() for value in values])
    for strict, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, strict, rtol=0, atol=0)


def grow(lengths, steps):
    """As where tokens are generated: the sequence grows, and what looks at it is new each time; the layers are not."""
    x = torch.ones(3)
    device = x.to("tpu")
    for length in range(1000, 1000 + steps):
        lengths.clear()
        y, wanted = device + torch.ones(length, device="tpu").sum(), x + length
        for _ in range(150):
            y, wanted = (y + 0.5).sin(), (wanted + 0.5).sin()
        torch.testing.assert_close(y.cpu(), wanted)
        yield list(lengths)


def test_a_few_new_calls_do_not_make_a_new_program_of_all(lengths):
    _plug.clear_fused()
    made = list(grow(lengths, 6))
    assert max(made[0]) > 100, "all calls are new at first"
    for lately in made[2:]:
        assert lately and max(lately) < 10, "only what is new is compiled"


def test_calls_that_are_new_in_each_layer_stay_in_one_program(lengths):
    _plug.clear_fused()
    for scale in (1.0, 2.0):
        for rounds in range(2):
            lengths.clear()
            x = torch.ones(3, device="tpu")
            for layer in range(150):
                x = (x + 0.5).sin()
                if scale == 2.0 and layer % 15 == 0:
                    x = x.cos()
            x.cpu()
            assert rounds or max(lengths) > 250


def test_threads_that_grow_sequences_run_their_own_calls(lengths):
    failed = []

    def work():
        try:
            for _ in grow([], 8):
                pass
        except BaseException as error:
            failed.append(error)

    _plug.clear_fused()
    with torch.tpu.set_eager_mode(FUSE):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=300)
    assert not failed and not any(thread.is_alive() for thread in threads)
