"""Values that PyTorch refuses, in strict eager mode: the program that reads them fails, at once or where its result is
read. Indices out of range, weights that are no distribution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_device_debug import CALLS, on_device, x

from torch_tpu import _plug
from torch_tpu.errors import ExecutionError, IndexOutOfRangeError
from torch_tpu.runtime import platform

OUT_OF_RANGE = "index 3 is out of bounds for"


@pytest.mark.parametrize("call", CALLS)
def test_a_small_program_refuses_at_once(call, counters):
    table, good, bad = on_device(x, torch.tensor([2, 0]), torch.tensor([1, 3]))
    CALLS[call](table, good)
    compiles = counters.compiles + counters.disk_hits + counters.memory_hits
    with pytest.raises(IndexOutOfRangeError, match=OUT_OF_RANGE) as caught:
        CALLS[call](table, bad)
    assert str(caught.value).startswith("aten::") and call.rstrip("_") in str(caught.value)
    assert counters.compiles + counters.disk_hits + counters.memory_hits == compiles, "the indices are data"
    assert counters.device_to_host == 0 and sum(counters.fallbacks.values()) == 0
    assert table.tolist() == x.tolist()


def test_errors_of_running_programs_name_the_inputs():
    (table,) = on_device(x)
    inputs = [f"inputs: Tensor[{', '.join(map(str, x.shape))}] float32", "Tensor[1] int64"]
    for call in (lambda index: table[index], lambda index: table.index_select(0, index)):
        with pytest.raises(IndexError) as caught:
            call(torch.tensor([9], device="tpu"))
        assert all(part in str(caught.value) for part in inputs)
    with pytest.raises(ExecutionError, match=r"inputs: Tensor\[2\] float32, 1"):
        torch.tensor([0.0, 0], device="tpu").multinomial(1)


def test_indices_from_the_end():
    (table,) = on_device(x)
    for low in (-4, -100, -(2**40)):
        with pytest.raises(IndexError, match=f"index {low} is out of bounds for dimension 0 with size 3"):
            table[torch.tensor([0, low], device="tpu")]
    with pytest.raises(IndexError, match="index -1 is out of bounds for dimension 0 with size 3"):
        table.index_select(0, torch.tensor([-1], device="tpu"))
    assert table[torch.tensor([-1, -3], device="tpu")].tolist() == x[[-1, -3]].tolist()


def test_classes_that_are_ignored():
    scores, target = on_device(x, torch.tensor([1, -100, 2]))
    expected = torch.nn.functional.cross_entropy(x, target.cpu())
    torch.testing.assert_close(torch.nn.functional.cross_entropy(scores, target).cpu(), expected)
    with pytest.raises(IndexError, match="index -1 is out of bounds for 4 classes"):
        torch.nn.functional.cross_entropy(scores, on_device(torch.tensor([1, -100, -1]))[0])


def test_a_program_that_waits_refuses_where_its_result_is_read():
    square = torch.ones(1500, 1500, device="tpu")
    rows = torch.arange(1500)
    rows[7] = 1500
    rows = rows.to("tpu")
    with pytest.raises(IndexOutOfRangeError, match="index 1500 is out of bounds for dimension 0 with size 1500"):
        (square @ square)[rows].sum().item()  # at the latest: it may have been refused by the indexing itself
    assert square.sum().item() == 1500**2, "the device is usable afterwards"


def test_a_program_from_the_disk_refuses(counters, empty_cache):
    table, good, bad = on_device(torch.ones(3, 11), torch.tensor([2, 0]), torch.tensor([1, 3]))
    for _ in range(2):
        _plug.clear_table()
        platform.client()._programs.clear()
        table.index_select(0, good)
    assert (counters.compiles, counters.disk_hits) == (1, 1)
    with pytest.raises(IndexOutOfRangeError, match=OUT_OF_RANGE):
        table.index_select(0, bad)
    assert (counters.compiles, counters.disk_hits) == (1, 1)


@pytest.mark.parametrize("replacement", [False, True])
def test_weights_that_are_no_distribution(replacement):
    torch.ones(2, 3, device="tpu").multinomial(2, replacement)
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ExecutionError, match="multinomial: a probability is infinite, NaN or less than 0"):
            torch.tensor([[1.0, 1, 1], [1, wrong, 1]], device="tpu").multinomial(2, replacement)
    with pytest.raises(ExecutionError, match="multinomial: the probabilities of a row add up to 0"):
        torch.tensor([[1.0, 1, 1], [0, 0, 0]], device="tpu").multinomial(2, replacement)


COMPLEX = {
    "maximum": lambda z: torch.maximum(z, z * 2),
    "floor": torch.floor,
    "trunc": torch.trunc,
    "round": lambda z: z.round(decimals=1),
    "atan2": lambda z: torch.atan2(z, z),
    "hardtanh": torch.nn.functional.hardtanh,
    "median": torch.median,
    "sort": torch.sort,
    "less": lambda z: z < z,
}


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_complex_numbers_have_no_order(name, mode):
    """The CPU's own error, in every mode; XLA would return something, or end the process."""
    host = torch.tensor([1.5 + 2.5j, -2 + 1j])
    with pytest.raises((RuntimeError, NotImplementedError)) as wanted:
        COMPLEX[name](host)
    with torch.tpu.set_eager_mode(mode), pytest.raises(wanted.type) as found:
        COMPLEX[name](host.to("tpu"))
    assert str(wanted.value).splitlines()[0] in str(found.value)


def _put(x, index, value):
    x[index] = value


FLOATS, INDEX = torch.zeros(3), torch.tensor([0])
REFUSED = {
    "float indices": lambda d: _put(FLOATS.to(d), INDEX.to(d).float(), 7.0),
    "short indices": lambda d: FLOATS.to(d)[INDEX.to(d).short()],
    "index_select": lambda d: FLOATS.to(d).index_select(0, INDEX.to(d).float()),
    "index_fill": lambda d: FLOATS.to(d).index_fill(0, INDEX.to(d).float(), 1),
    "index_put of another dtype": lambda d: _put(torch.zeros(3, dtype=torch.int64, device=d), INDEX.to(d), torch.ones(1).to(d)),
    "index_add of another dtype": lambda d: FLOATS.to(d).index_add(0, INDEX.to(d), torch.ones(1).double().to(d)),
    "scatter of another dtype": lambda d: FLOATS.to(d).scatter(0, INDEX.to(d), torch.ones(1).half().to(d)),
    "masked_scatter of another dtype": lambda d: FLOATS.to(d).masked_scatter(FLOATS.to(d) == 0, FLOATS.double().to(d)),
    "addmm": lambda d: torch.addmm(FLOATS.double().to(d), torch.ones(3, 3).to(d), torch.ones(3, 3).to(d)),
    "baddbmm": lambda d: torch.baddbmm(torch.ones(1, 3, 3).double().to(d), *[torch.ones(1, 3, 3).to(d)] * 2),
    "integer power": lambda d: torch.arange(3).to(d) ** -1,
    "a mask of integers": lambda d: FLOATS.to(d).masked_select(torch.ones(3, dtype=torch.int32, device=d)),
    "short classes": lambda d: F.nll_loss(torch.ones(3, 3).to(d), torch.ones(3, dtype=torch.int32, device=d)),
    "integer targets": lambda d: F.binary_cross_entropy(FLOATS.to(d), INDEX.expand(3).to(d)),
    "a grid of another dtype": lambda d: F.grid_sample(torch.ones(1, 1, 2, 2).to(d), torch.ones(1, 1, 1, 2).double().to(d)),
    "complex coins": lambda d: torch.zeros(3, dtype=torch.complex64, device=d).bernoulli_(0.5),
    "complex integers": lambda d: torch.randint(3, (2,), dtype=torch.complex64, device=d),
    "complex range": lambda d: torch.arange(3, dtype=torch.complex64, device=d),
    "range of bools": lambda d: torch.arange(3, dtype=torch.bool, device=d),
    "spaced bools": lambda d: torch.linspace(0, 1, 3, dtype=torch.bool, device=d),
    "permuted bools": lambda d: torch.randperm(2, dtype=torch.bool, device=d),
    "too many for the dtype": lambda d: torch.randperm(257, dtype=torch.uint8, device=d),
    "unknown driver": lambda d: torch.linalg.lstsq(torch.ones(2, 2).to(d), torch.ones(2, 2).to(d), driver="gelz"),
}  # fmt: skip


def check_refused(call, mode):
    """By the CPU's type of error and its words."""
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        call("cpu")
    with torch.tpu.set_eager_mode(mode), pytest.raises(wanted.type) as found:
        call("tpu")
    assert str(wanted.value).splitlines()[0] in str(found.value)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_dtypes_are_refused_as_on_the_cpu(name, mode):
    check_refused(REFUSED[name], mode)


def zeros(d, *size):
    return torch.zeros(size, device=d)


SHAPES = {
    "diagonal_scatter": lambda d: zeros(d, 3, 3).diagonal_scatter(zeros(d, 2)),
    "diagonal_scatter dim1": lambda d: zeros(d, 3, 3).diagonal_scatter(zeros(d, 3), 0, 2),
    "select_scatter": lambda d: zeros(d, 3, 3).select_scatter(zeros(d, 1), 0, 0),
    "slice_scatter": lambda d: zeros(d, 3, 3).slice_scatter(zeros(d, 1, 3), 0, 0, 2),
    "slice_scatter dim": lambda d: zeros(d, 3, 3).slice_scatter(zeros(d, 1, 3), 2, 0, 2),
    "as_strided_scatter": lambda d: zeros(d, 3, 3).as_strided_scatter(zeros(d, 2, 1), (2, 2), (1, 2)),
    "as_strided_scatter outside": lambda d: zeros(d, 3, 3).as_strided_scatter(zeros(d, 2), (2,), (9,)),
    "as_strided_copy": lambda d: torch.as_strided_copy(zeros(d, 3, 3), (2,), (9,)),
    "view_copy": lambda d: torch.view_copy(zeros(d, 3, 3).t(), (2, -1)),
    "sort": lambda d: zeros(d, 2, 2).sort(dim=5),
    "stable sort": lambda d: zeros(d, 2, 2).sort(dim=-3, stable=True),
    "sort of a number": lambda d: zeros(d).sort(dim=1),
    "argsort": lambda d: zeros(d, 2, 2).argsort(dim=-9),
    "cummax": lambda d: zeros(d).cummax(1),
    "cummin": lambda d: zeros(d).cummin(1),
    "_logcumsumexp": lambda d: torch._logcumsumexp(zeros(d, 2), 1),
    "unique": lambda d: zeros(d).unique(dim=0),
    "unique_consecutive": lambda d: zeros(d).unique_consecutive(dim=0),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_dimensions_and_sizes_are_refused_as_on_the_cpu(name, mode):
    check_refused(SHAPES[name], mode)


@pytest.mark.parametrize("name", ["diagonal_scatter", "select_scatter", "slice_scatter", "as_strided_scatter", "sort"])
def test_compiled_functions_refuse_them_too(name):
    with pytest.raises((RuntimeError, IndexError)):
        torch.compile(SHAPES[name], backend="tpu")("tpu")


POSITIONS = {
    "multi_margin_loss": lambda i: F.multi_margin_loss(zeros("tpu", 1, 3), i),
    "multilabel_margin_loss": lambda i: F.multilabel_margin_loss(zeros("tpu", 1, 3), torch.cat([i, -i, -i])[None]),
    "lu_unpack": lambda i: torch.lu_unpack(zeros("tpu", 2, 2), torch.cat([i, i]).int()),
    "searchsorted": lambda i: torch.searchsorted(zeros("tpu", 2), zeros("tpu", 1), sorter=torch.cat([i, i])),
    "segment_reduce": lambda i: torch.segment_reduce(zeros("tpu", 2), "sum", lengths=torch.cat([i, i])),
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_targets_pivots_orders_and_lengths(name, mode):
    good, bad = on_device(torch.tensor([1]), torch.tensor([9]))
    with torch.tpu.set_eager_mode(mode):
        POSITIONS[name](good)
        with pytest.raises(ExecutionError, match=name):
            answer = POSITIONS[name](bad)
            (answer if isinstance(answer, torch.Tensor) else answer[0]).cpu()


def test_lengths_of_other_sums():
    lengths = torch.tensor([1, 2], device="tpu")
    with pytest.raises(ExecutionError, match="lengths do not add up to 4"):
        torch.segment_reduce(ones(4), "sum", lengths=lengths).cpu()
    assert torch.segment_reduce(ones(4), "sum", lengths=lengths, unsafe=True).tolist() == [1, 2]


DOMAINS = {
    "binary_cross_entropy": lambda x: torch.nn.functional.binary_cross_entropy(x + 1, x),
    "bernoulli": lambda x: torch.bernoulli(x + 1),
    "bernoulli: expected probabilities": lambda x: x.bernoulli_(1.5),
    "poisson": lambda x: torch.poisson(-x),
    "masked_scatter": lambda x: torch.zeros_like(x).masked_scatter(x > 0, x[:1]),
    "histc": lambda x: torch.histc(x / 0, 3),
}


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_values_outside_of_an_operators_domain(name, mode):
    with torch.tpu.set_eager_mode(mode), pytest.raises(RuntimeError, match=name):
        DOMAINS[name](torch.tensor([1.0, 2.0], device="tpu")).cpu()


@pytest.mark.parametrize("name", ["svd", "svdvals", "eig", "eigvals", "eigh", "pinv", "matrix_rank"])
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_matrices_that_have_no_decomposition(name, mode):
    """LAPACK writes no results then; others that do not depend on them are there."""
    with torch.tpu.set_eager_mode(mode):
        good = torch.ones(3, device="tpu") * 2
        with pytest.raises(torch.linalg.LinAlgError, match="failed to converge"):
            answer = getattr(torch.linalg, name)(torch.full((3, 3), float("nan"), device="tpu"))
            (answer if isinstance(answer, torch.Tensor) else answer[0]).cpu()
        assert good.tolist() == [2.0] * 3


def ones(*size, **kwargs):
    return torch.ones(*size, device="tpu", **kwargs)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.heaviside(ones(3, dtype=torch.int32), ones(3, dtype=torch.bool)),
        lambda: torch.all(ones(3, 3), 0, out=ones(3)),
        lambda: torch.mode(ones(9), out=(ones(()).double(), ones((), dtype=torch.int64))),
        lambda: torch.nn.functional.celu(ones(2), 0.0),
        lambda: torch.nn.functional.max_unpool2d(ones(1, 1, 1, 1), ones(1, 1, 1, 1, dtype=torch.int64) * 100, 2),
        lambda: torch.nn.functional.multi_margin_loss(ones(2, 3), torch.tensor([0, 5], device="tpu")),
        lambda: torch.normal(ones(2), -ones(2)),
        lambda: torch.linalg.lstsq(ones(3, 3), ones(3, 1).double()),
        lambda: torch.linalg.eigvals(ones(2, 2), out=ones(2)),
        lambda: ones(3, dtype=torch.int16).random_(0, 2**20),
        lambda: ones(3, dtype=torch.uint8).random_(-1, 3),
    ],
)
def test_calls_that_pytorch_refuses(call):
    with pytest.raises(RuntimeError):
        call()
