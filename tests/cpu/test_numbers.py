"""Numbers that are arguments of an operator, not tensors: one program serves all their values, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(x[0]), torch.ones_like(x[0])


CALLS = {
    "layer_norm": lambda x, number: F.layer_norm(x, (4,), eps=number),
    "group_norm": lambda x, number: F.group_norm(x, 2, eps=number),
    "instance_norm": lambda x, number: F.instance_norm(x[None], eps=number),
    "rms_norm": lambda x, number: F.rms_norm(x, (4,), eps=number),
    "batch_norm": lambda x, number: F.batch_norm(x, *_statistics(x), training=True, momentum=number, eps=number),
    "batch_norm in evaluation": lambda x, number: F.batch_norm(x, *_statistics(x), eps=number),
    "batch_norm without statistics": lambda x, number: F.batch_norm(x, None, None, training=True, eps=number),
    "attention": lambda x, number: F.scaled_dot_product_attention(*[x[None, None]] * 3, scale=number),
    "nan_to_num": lambda x, number: (x * float("inf")).nan_to_num(number, number, -number),
    "nan_to_num, one of them": lambda x, number: x.log().nan_to_num(posinf=number),
    "logit": lambda x, number: x.abs().logit(number),
    "cdist": lambda x, number: torch.cdist(x, x * 2 + 1, p=number + 2),
    "pdist": lambda x, number: F.pdist(x, p=number + 2),
    "norm": lambda x, number: x.norm(number),
    "norm along a dimension": lambda x, number: x.norm(number + 1, dim=1),
    "vector_norm": lambda x, number: torch.linalg.vector_norm(x, number + 2, keepdim=True),
    "dist": lambda x, number: torch.dist(x, x * 2, number + 1),
    "renorm": lambda x, number: torch.renorm(x, number + 1, 0, number),
    "variance": lambda x, number: torch.var(x, 0, correction=number),
    "celu": F.celu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "leaky_relu in place": lambda x, number: F.leaky_relu_(x * 2, number),
    "elu in place": lambda x, number: F.elu_(x * 2, number),
    "rrelu": lambda x, number: F.rrelu(x, number, number + 1),
}
WITHOUT_GRADIENT = {
    "embedding_renorm": lambda x, number: F.embedding(
        torch.arange(3, device=x.device), x.clone(), max_norm=number, norm_type=number + 2
    ),
    "hamming_window": lambda x, number: torch.hamming_window(8, True, number, number, dtype=x.dtype, device=x.device),
    "kaiser_window": lambda x, number: torch.kaiser_window(8, True, number, dtype=x.dtype, device=x.device),
    "logspace": lambda x, number: torch.logspace(0, 3, 4, base=number, dtype=x.dtype, device=x.device),
}
NUMBERS = (0.3, 0.4, 0.45)


def _run(call, x: Tensor, number: float, differentiate: bool) -> list[Tensor]:
    x = x.clone().requires_grad_(differentiate)
    result = call(x, number)
    if not differentiate:
        return [result]
    (result * result).sum().backward()
    return [result.detach(), x.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*CALLS, *WITHOUT_GRADIENT])
def test_a_number_is_data(name, dtype, counters):
    call, differentiate = (CALLS | WITHOUT_GRADIENT)[name], name in CALLS
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    on_device, exact, close = x.to("tpu"), dtype, {"equal_nan": True}
    if dtype is torch.bfloat16:  # PyTorch rounds in other places, or has no kernel
        exact, close = torch.float32, close | {"rtol": 2**-5, "atol": 2**-5}
    made = []
    for number in NUMBERS:
        results = [result.cpu().to(exact) for result in _run(call, on_device, number, differentiate)]
        torch.testing.assert_close(results, _run(call, x.to(exact), number, differentiate), **close)
        made.append(counters.compiles + counters.disk_hits + counters.memory_hits)
    assert made[0] == made[-1], "another number made another program"


def test_numbers_with_a_form_of_their_own():
    x = torch.tensor([[3.0, -4.0, 0.0], [1.0, 1.0, -2.0]])
    for order in (0, 0.5, 1, 2, 3, 2.5, -1, float("inf"), -float("inf")):
        torch.testing.assert_close(x.to("tpu").norm(order, dim=1).cpu(), x.norm(order, dim=1))
        torch.testing.assert_close(torch.compile(torch.norm)(x.to("tpu"), order, dim=1).cpu(), x.norm(order, dim=1))
    for order in (0, 0.5, 1, 1.5, 2, 2.5, float("inf")):
        torch.testing.assert_close(
            torch.cdist(x.to("tpu"), x.to("tpu") + 1, p=order).cpu(), torch.cdist(x, x + 1, p=order)
        )


def test_numbers_that_are_refused():
    x = torch.ones(3, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="alpha cannot be 0 for CELU"):
        F.celu(x, 0.0)
    for call in (F.leaky_relu_, F.elu_):
        with pytest.raises(RuntimeError, match="not known for a negative slope"):
            call(x * 1, -0.5).sum().backward()
            x.grad.cpu()


@pytest.mark.parametrize(
    "kind, name",
    [("Adam", "eps"), ("AdamW", "eps"), ("SGD", "dampening"), ("Adagrad", "eps")],
)
def test_options_of_fused_optimizers_are_data(kind, name, counters):
    options = {"momentum": 0.9} if kind == "SGD" else {}
    results = {}
    for device in ("cpu", "tpu"):
        parameter = torch.arange(6.0, device=device).requires_grad_()
        optimizer = getattr(torch.optim, kind)([parameter], lr=0.1, fused=True, **options)
        made = []
        for number in (0.1, 0.2, *NUMBERS):
            optimizer.param_groups[0][name] = number
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            made.append(counters.compiles + counters.disk_hits + counters.memory_hits)
        results[device] = parameter.detach().cpu()
    torch.testing.assert_close(results["tpu"], results["cpu"])
    assert made[2] == made[-1]
