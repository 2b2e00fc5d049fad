"""Autograd on the device: graphs, views, custom functions, modes, and several threads."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch
from torch import nn


def test_gradients():
    x = torch.tensor([1.0, 2.0, 3.0], device="tpu", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.is_tpu and x.grad.tolist() == [2, 4, 6]
    (x * x).sum().backward()
    assert x.grad.tolist() == [4, 8, 12]
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6, 12, 18]


def test_in_place_and_views():
    x = torch.ones(4, device="tpu", requires_grad=True)
    y = x * 1
    y[1:3].mul_(torch.tensor([2.0, 5.0], device="tpu"))
    y.sum().backward()
    assert x.grad.tolist() == [1, 2, 5, 1]
    z = torch.ones(2, device="tpu", requires_grad=True)
    squared = z * z
    product = squared * squared
    squared.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        z.add_(1)


def test_modes():
    x = torch.ones(2, device="tpu", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        y.add_(1)
    assert y.is_inference() and y.tolist() == [3, 3]
    assert x.detach().data_ptr() == x.data_ptr()
    version = x._version
    with torch.no_grad():
        x.add_(1)
    assert x._version == version + 1


def test_custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    x = torch.tensor([2.0], device="tpu", requires_grad=True)
    Cube.apply(x).backward()
    assert x.grad.item() == 12
    double = torch.randn(3, dtype=torch.float64, device="tpu", requires_grad=True)
    assert torch.autograd.gradcheck(Cube.apply, (double,))


def test_saved_tensor_hooks():
    x = torch.ones(3, device="tpu", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = x.exp() * x
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx([2 * 2.7182817] * 3)


def test_transforms():
    x = torch.arange(3.0, device="tpu")
    assert torch.func.grad(lambda v: (v**2).sum())(x).tolist() == [0, 2, 4]
    assert torch.func.vmap(lambda v: v * 2 + x.sum())(x).tolist() == [3, 5, 7]
    assert torch.func.jacrev(lambda v: v**2)(x).diagonal().tolist() == [0, 2, 4]
    _, tangent = torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))
    assert torch.allclose(tangent, x.cos())


def test_backward_from_several_threads():
    shared = nn.Parameter(torch.ones(20, 20, device="tpu"))
    failures: list[BaseException] = []
    results: dict[int, float] = {}

    def work(number: int) -> None:
        try:
            x = torch.full((20, 20), float(number), device="tpu", requires_grad=True)
            for _ in range(20):
                y = (x @ shared).sum()
            y.backward()
            results[number] = x.grad[0, 0].item()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and results == dict.fromkeys(range(8), 20.0)
    assert shared.grad[0, 0].item() == 20 * sum(range(8))


def test_a_failing_backward_raises_in_the_caller():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("mine")

    x = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(KeyError, match="mine"):
        Fails.apply(x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_anomaly_mode():
    x = torch.zeros(1, device="tpu", requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="returned nan values"):
        (x.sqrt() * 0).sum().backward()


def test_tensors_go_when_nobody_holds_them():
    """Also those of a program that had to be made, and of a backward pass that is differentiated itself."""

    def remaining(size):
        x = torch.randn(size, 3, device="tpu", requires_grad=True)
        y = x.exp()
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        return [weakref.ref(tensor) for tensor in (x, y, grad)]

    remaining(29)  # PyTorch loads modules in its first call
    gc.collect()
    gc.disable()
    try:
        left = [tensor for size in (31, 37) for tensor in remaining(size)]
        end = time.monotonic() + 5  # autograd's thread may still be at the end of its work
        while any(tensor() is not None for tensor in left) and time.monotonic() < end:
            time.sleep(0.01)
        assert [tensor() for tensor in left] == [None] * 6
    finally:
        gc.enable()
