"""Sparse COO tensors, by the CPU's results."""

from __future__ import annotations

import copy
import io
from functools import partial

import pytest
import torch
from torch import nn

import torch_tpu

DEVICE = "tpu"
INDICES = torch.tensor([[0, 2, 0, 1], [1, 0, 1, 3]])
VALUES = torch.tensor([1.0, -2.0, 3.0, 0.5])
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


@pytest.fixture(autouse=True)
def no_fallbacks():
    with torch_tpu.settings.override(fallback="error"):
        yield


def sparse(device, *, coalesced=False, dense=(), dtype=torch.float32, values=None):
    values = VALUES if values is None else values
    values = values.reshape(-1, *[1] * len(dense)).expand(-1, *dense).to(dtype)
    made = torch.sparse_coo_tensor(INDICES, values, (3, 4, *dense), check_invariants=True).to(device)
    return made.coalesce() if coalesced else made


def table(device, *size, dtype=torch.float32):
    return (torch.arange(torch.Size(size).numel(), dtype=torch.float32).reshape(size) - 3).to(device, dtype)


def compare(found, wanted):
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted
        return
    assert found.device.type == DEVICE and found.layout is wanted.layout and found.dtype is wanted.dtype
    if wanted.is_sparse:
        assert (found.sparse_dim(), found.dense_dim()) == (wanted.sparse_dim(), wanted.dense_dim())
        found, wanted = found.to_dense(), wanted.to_dense()  # elements may be there and zero
    torch.testing.assert_close(found.cpu(), wanted, equal_nan=True)


def gradients(result, given):
    """Of all that has one, or nothing where PyTorch has no gradient for sparse tensors."""
    try:
        (result.to_dense() if result.is_sparse else result).pow(2).sum().backward()
    except NotImplementedError:
        return []
    return [x.grad for x in given if x.grad is not None]


def check(function, *arguments):
    """Compares the results, and gradients, of calls with tensors that are made for each device."""
    results, grads = [], []
    for device in (DEVICE, "cpu"):
        given = [argument(device).detach().requires_grad_() for argument in arguments]
        results.append(function(*given))
        grads.append(gradients(results[-1], given) if results[-1].requires_grad else [])
    compare(*(result.detach() for result in results))
    for pair in zip(*grads, strict=True):
        compare(*pair)


def test_construction():
    x = torch.sparse_coo_tensor(INDICES.to(DEVICE), VALUES.to(DEVICE))
    assert x.is_sparse and x.layout is torch.sparse_coo and x.device == torch.device("tpu:0") and x.shape == (3, 4)
    assert (x.sparse_dim(), x.dense_dim(), x._nnz(), x.is_coalesced()) == (2, 0, 4, False)
    compare(x._indices(), INDICES)
    compare(x._values(), VALUES)
    done = x.coalesce()
    assert done.is_coalesced() and done.indices().tolist() == [[0, 1, 2], [1, 3, 0]]
    assert done.values().tolist() == [4.0, 0.5, -2.0]
    assert torch.sparse_coo_tensor(done.indices(), done.values(), (3, 4), is_coalesced=True).is_coalesced()
    for empty in (
        torch.sparse_coo_tensor((2, 3), device=DEVICE),
        torch.zeros(2, 3, layout=torch.sparse_coo, device=DEVICE),
    ):
        assert empty._nnz() == 0 and empty.to_dense().tolist() == [[0.0] * 3] * 2
    with pytest.raises(RuntimeError, match="size is inconsistent"):
        torch.sparse_coo_tensor(INDICES.to(DEVICE), VALUES.to(DEVICE), (2, 2), check_invariants=True)
    assert "layout=torch.sparse_coo" in repr(x) and "device='tpu:0'" in repr(x)


@pytest.mark.parametrize("dtype", (torch.bool, torch.int64, torch.bfloat16, torch.float64, torch.complex64))
def test_dtypes(dtype):
    compare(sparse(DEVICE, dtype=dtype).coalesce(), sparse("cpu", dtype=dtype).coalesce())
    compare(sparse(DEVICE, dtype=dtype).to_dense(), sparse("cpu", dtype=dtype).to_dense())
    compare(sparse(DEVICE).to(dtype), sparse("cpu").to(dtype))


@pytest.mark.parametrize("sparse_dim", (1, 2, 3))
def test_of_dense_tensors(sparse_dim):
    check(lambda x: x.to_sparse(sparse_dim), lambda device: table(device, 2, 3, 2))


def test_copies():
    x = sparse(DEVICE)
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for copied in (x.clone(), x.detach(), copy.deepcopy(x), torch.load(file), x.cpu().to(DEVICE)):
        compare(copied, sparse("cpu"))
    target = torch.sparse_coo_tensor((3, 4), device=DEVICE)
    compare(target.copy_(x), sparse("cpu"))
    assert target.zero_()._nnz() == 0
    compare(torch.zeros_like(x), torch.zeros_like(sparse("cpu")))


ARITHMETIC = {
    "dense + sparse": lambda x, y, d: d + x,
    "dense.add": lambda x, y, d: d.add(x, alpha=2),
    "dense.add_": lambda x, y, d: d.clone().add_(x, alpha=-1),
    "sparse + sparse": lambda x, y, d: x + y,
    "sparse - sparse": lambda x, y, d: x - y,
    "+=": lambda x, y, d: x.clone().add_(y, alpha=3),
    "* number": lambda x, y, d: x * 3,
    "/ number": lambda x, y, d: x / 3,
    "* 0-d": lambda x, y, d: x * d[0].sum(),
    "* dense": lambda x, y, d: x * d,
    "* row": lambda x, y, d: x * d[0],
    "sparse * sparse": lambda x, y, d: x * y,
    "*=": lambda x, y, d: x.clone().mul_(2),
    "neg": lambda x, y, d: -x,
    "sparse_mask": lambda x, y, d: d.sparse_mask(x.detach().coalesce()),
    "sparse mask": lambda x, y, d: x.coalesce().sparse_mask(y.detach().coalesce()),
    "sum": lambda x, y, d: x.sum(),
    "sum of a dimension": lambda x, y, d: torch.sparse.sum(x, 0),
    "sum of sparse dimensions": lambda x, y, d: torch.sparse.sum(x, (0, 1)),
    "transpose": lambda x, y, d: x.transpose(0, 1),
    "cat": lambda x, y, d: torch.cat([x, y], 1),
    "narrow_copy": lambda x, y, d: x.coalesce().narrow_copy(1, 0, 2),
    "index_select": lambda x, y, d: x.index_select(1, torch.tensor([3, 1, 1], device=x.device)),
    "select": lambda x, y, d: x.select(0, 1),
    "unsqueeze": lambda x, y, d: x.unsqueeze(0),
}


@pytest.mark.parametrize("dense", ((), (2,)), ids=("scalars", "rows"))
@pytest.mark.parametrize("coalesced", (False, True), ids=("repeated", "coalesced"))
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name, coalesced, dense):
    check(
        ARITHMETIC[name],
        lambda device: sparse(device, coalesced=coalesced, dense=dense),
        lambda device: torch.ones(3, 4, *dense, device=device).tril().to_sparse(2),
        lambda device: table(device, 3, 4, *dense),
    )


PRODUCTS = {
    "mm": lambda x, d: torch.sparse.mm(x, d),
    "@": lambda x, d: x @ d,
    "dense @": lambda x, d: d.mT @ x.mT,
    "vector": lambda x, d: x @ d[:, 0],
    "addmm": lambda x, d: torch.sparse.addmm(torch.ones(3, 2, device=d.device), x, d, beta=0.5, alpha=2),
    "sparse mm": lambda x, d: torch.sparse.mm(x, x.t()),
    "bmm": lambda x, d: torch.bmm(x.detach().unsqueeze(0), d.unsqueeze(0)),
    "hspmm": lambda x, d: torch.hspmm(x.detach(), d.detach()),
}


@pytest.mark.parametrize("coalesced", (False, True), ids=("repeated", "coalesced"))
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, coalesced):
    check(PRODUCTS[name], lambda device: sparse(device, coalesced=coalesced), lambda device: table(device, 4, 2))


@pytest.mark.parametrize(
    "name",
    (
        "abs",
        "sqrt",
        "sin",
        "tanh",
        "sign",
        "floor",
        "log1p",
        "relu",
        "isnan",
        "isinf",
        "signbit",
        "square",
        "nan_to_num",
    ),
)
def test_elements(name):
    for coalesced in (False, True):
        compare(
            getattr(sparse(DEVICE, coalesced=coalesced), name)(), getattr(sparse("cpu", coalesced=coalesced), name)()
        )
    if name in ("abs", "sin"):
        x = sparse(DEVICE, coalesced=True)
        compare(getattr(x, f"{name}_")(), getattr(sparse("cpu", coalesced=True), name)())


@pytest.mark.parametrize("p", (1, 2, float("inf")))
def test_norms(p):
    compare(sparse(DEVICE).norm(p), sparse("cpu").norm(p))


def keyed(device, dense=(), count=9):
    """Elements at random places of three sparse dimensions, some of them twice."""
    random = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 3, (3, count), generator=random)
    values = torch.randn(count, *dense, generator=random)
    return torch.sparse_coo_tensor(indices, values, (3, 3, 4, *dense)).to(device)


@pytest.mark.parametrize("function", (torch.sparse.softmax, torch.sparse.log_softmax), ids=("softmax", "log_softmax"))
@pytest.mark.parametrize("dense", ((), (2, 3)), ids=("scalars", "matrices"))
def test_softmax(function, dense):
    last = 2 + len(dense)
    for dim in range(last + 1):
        check(lambda x, dim=dim: function(x, dim), partial(keyed, dense=dense))
        check(lambda x, dim=dim: function(x, dim), partial(keyed, dense=dense, count=0))
        check(lambda x, dim=dim: function(x.coalesce(), dim, dtype=torch.float64), partial(keyed, dense=dense))
    # Counted from the end: PyTorch's gradient on the CPU is then wrong.
    check(lambda x: function(x, -1 if x.device.type == DEVICE else last), partial(keyed, dense=dense))
    with pytest.raises(IndexError, match="out of range"):
        function(keyed(DEVICE), 3)
    with pytest.raises(NotImplementedError, match="not implemented"):
        function(keyed(DEVICE).long(), 0)


def test_softmax_of_gradients_with_fewer_elements():
    for function in (torch.sparse.softmax, torch.sparse.log_softmax):
        grads = []
        for device in (DEVICE, "cpu"):
            x = keyed(device).coalesce().requires_grad_()
            out = function(x, 1)
            indices = out._indices()[:, ::2]
            grad = torch.sparse_coo_tensor(indices, table(device, indices.shape[1]), out.shape)
            out.backward(grad)
            grads.append(x.grad)
        compare(*grads)


def test_values_have_gradients():
    grads = []
    for device in (DEVICE, "cpu"):
        values = VALUES.to(device, copy=True).requires_grad_()
        x = torch.sparse_coo_tensor(INDICES.to(device), values, (3, 4))
        (torch.sparse.mm(x, table(device, 4, 2)) ** 2).sum().backward()
        grads.append(values.grad)
    compare(*grads)


def trained(device, kind, optimizer, steps=3, **options):
    torch.manual_seed(0)
    layer = kind(6, 3, sparse=True, **options).to(device)
    optimizer = optimizer(layer.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for tokens in ([[1, 2, 1], [0, 3, step]], [[4, 4, 1], [step, 3, 0]]):  # gradients add up
            (layer(torch.tensor(tokens, device=device)) ** 2).sum().backward()
        assert layer.weight.grad.is_sparse
        optimizer.step()
    return layer.weight.detach()


@pytest.mark.parametrize(
    "optimizer",
    (
        partial(torch.optim.SGD, lr=0.1),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        partial(torch.optim.Adagrad, lr=0.1),
        partial(torch.optim.SparseAdam, lr=0.1),
    ),
    ids=("SGD", "momentum", "Adagrad", "SparseAdam"),
)
@pytest.mark.parametrize(
    ("kind", "options"),
    ((nn.Embedding, {"padding_idx": 0}), (nn.EmbeddingBag, {"mode": "sum"}), (nn.EmbeddingBag, {"mode": "mean"})),
    ids=("embedding", "sum", "mean"),
)
def test_training(kind, options, optimizer):
    compare(trained(DEVICE, kind, optimizer, **options), trained("cpu", kind, optimizer, **options))


def test_what_is_not_served_is_named():
    x = sparse(DEVICE)
    for case, name in (
        (lambda: x.exp(), "aten::exp"),
        (lambda: x.to_sparse_csr(), "aten::_to_sparse_csr"),
        (lambda: x.to_dense().to_sparse_csr(), "aten::_to_sparse_csr"),
        (lambda: sparse("cpu").to_sparse_csr().to(DEVICE).sum(), "dense and sparse COO tensors only"),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 3)]).to(DEVICE), "dense and sparse COO tensors only"),
    ):
        with pytest.raises(NotImplementedError, match=name):
            case()
    for mixed in (
        lambda: x + sparse("cpu"),
        lambda: torch.sparse.mm(x, torch.ones(4, 2)),
        lambda: torch.ones(3, 4) * x,
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
