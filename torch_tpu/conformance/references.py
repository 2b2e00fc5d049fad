"""What overloads mean for which the CPU has no kernel: their definitions, by operators that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_tpu.device import recurrent
from torch_tpu.ops import registry

REFERENCES: dict[str, Callable[..., Any]] = {}
"""By the overload's name."""
reference = registry.adding_to(REFERENCES)


@reference("_conv_depthwise2d", "conv_depthwise3d")
@torch.no_grad()
def depthwise(x: Tensor, weight: Tensor, size: list[int], bias: Tensor | None, *window: list[int]) -> Tensor:
    stride, padding, dilation = window
    return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(size), x.shape[1])


@reference("convolution_overrideable")
def convolution(*args: Any) -> Tensor:
    return torch.convolution(*args)


@reference("convolution_backward_overrideable")
def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    return torch.ops.aten.convolution_backward(grad, x, weight, [grad.shape[1]], *rest)


@reference("linear_backward")
def linear_backward(x: Tensor, grad: Tensor, weight: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    assert all(mask)
    _floating(x)
    return grad @ weight, grad.T @ x, grad.sum(0)


@reference("_standard_gamma_grad")
@torch.no_grad()
def standard_gamma_grad(alpha: Tensor, sample: Tensor) -> Tensor:
    """-(dP / d alpha) / (dP / dx) of the distribution function P. The CPU has a kernel; it knows four digits."""
    _floating(alpha)
    a, x, step = alpha.double(), sample.double(), 1e-4
    by_alpha = (torch.special.gammainc(a + step, x) - torch.special.gammainc(a - step, x)) / (2 * step)
    return (-by_alpha / torch.exp((a - 1) * x.log() - x - torch.lgamma(a))).to(alpha.dtype)


@reference("_compute_linear_combination")
@torch.no_grad()
def linear_combination(x: Tensor, coefficients: Tensor) -> Tensor:
    """The CPU has a kernel; it takes the real parts of complex coefficients."""
    return torch.einsum("kl,l...->k...", coefficients, x)


@reference("mm.dtype", "bmm.dtype")
@torch.no_grad()
def product(one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    _only_narrow(one)
    return one.to(dtype) @ other.to(dtype)


@reference("addmm.dtype", "baddbmm.dtype")
@torch.no_grad()
def add_product(
    x: Tensor, one: Tensor, other: Tensor, dtype: torch.dtype, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    return beta * x + alpha * product(one, other, dtype)


def _only_narrow(x: Tensor) -> None:
    """
    Raises:
        NotImplementedError: the operands are not of 16-bit floats.
    """
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise NotImplementedError("products of another dtype than the operands' are of bfloat16 and float16")


@reference("_scaled_grouped_mm")
def scaled_grouped_product(
    one: Tensor, other: Tensor, scale: Tensor, factor: Tensor, ends: Tensor, *, out_dtype: torch.dtype
) -> Tensor:
    if out_dtype is not torch.bfloat16:
        raise NotImplementedError("scaled grouped products are bfloat16")
    rows, weights = one.float() * scale[:, None], other.float() * factor[:, None, :]
    parts = rows.tensor_split(ends[:-1].long())
    return torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)]).to(out_dtype)


@reference("_fused_dropout")
def dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """`p` is the probability of being kept."""
    mask = torch.rand_like(x) < p
    return x * mask / p, mask.to(torch.uint8)


def _floating(*tensors: Tensor) -> None:
    """
    Raises:
        NotImplementedError: a tensor has another dtype than the ones that networks have.
    """
    if not all(x.is_floating_point() for x in tensors):
        raise NotImplementedError("only of floating point numbers")


def _wide(x: Tensor) -> Tensor:
    _floating(x)
    return x.double() if x.dtype is torch.float64 else x.float()


def _channel(x: Tensor, like: Tensor) -> Tensor:
    return _wide(x).view(-1, *[1] * (like.dim() - 2))


def _sum(x: Tensor) -> Tensor:
    """Over all but the channels."""
    return x.sum([dim for dim in range(x.dim()) if dim != 1])


@reference("batch_norm_stats")
@torch.no_grad()
def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dims = [dim for dim in range(x.dim()) if dim != 1]
    return _wide(x).mean(dims), (_wide(x).var(dims, correction=0) + eps).rsqrt()


@reference("batch_norm_elemt")
@torch.no_grad()
def batch_norm_elemt(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, eps: float) -> Tensor:
    mean, rstd, weight, bias = (_channel(value, x) for value in (mean, rstd, weight, bias))
    return ((_wide(x) - mean) * rstd * weight + bias).to(x.dtype)


@reference("batch_norm_backward_reduce")
@torch.no_grad()
def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, *wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert all(wanted)
    total, product = _sum(_wide(grad)), _sum(_wide(grad) * (_wide(x) - _channel(mean, x)))
    return total, product, (product * rstd).to(weight.dtype), total.to(weight.dtype)


@reference("batch_norm_backward_elemt")
@torch.no_grad()
def batch_norm_backward_elemt(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, total: Tensor, product: Tensor, count: Tensor
) -> Tensor:
    mean, rstd, weight, total, product = (_channel(value, x) for value in (mean, rstd, weight, total, product))
    centered = _wide(grad) - total / count.sum() - (_wide(x) - mean) * rstd**2 * product / count.sum()
    return (centered * rstd * weight).to(x.dtype)


@reference("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
@torch.no_grad()
def batch_norm_gather_stats(
    x: Tensor, means: Tensor, rstds: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float,
    counts: Tensor | int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    share = torch.as_tensor(counts, dtype=means.dtype).expand(len(means))[:, None]
    mean = (share * means).sum(0) / share.sum()
    squares = (share * (rstds**-2 - eps + (means - mean) ** 2)).sum(0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(squares / (share.sum() - 1), momentum)
    return mean, (squares / share.sum() + eps).rsqrt()


@reference("torch_tpu::recurrence")
@torch.no_grad()
def recurrence(*args: Any) -> tuple[Tensor, ...]:
    *layer, keep = args
    assert not keep
    _floating(layer[0])
    states, hy, cy = recurrent.unrolled(*layer)
    nothing = states.new_empty(0)
    return states, hy, nothing if cy is None else cy, nothing, nothing


@reference("torch_tpu::recurrence_backward")
def recurrence_backward(*args: Any) -> tuple[Tensor, ...]:
    grads, wanted = args[:2], args[-1]
    _floating(grads[0])
    layer: list[Any] = [x.detach() if isinstance(x, Tensor) else x for x in args[6:-1]]
    leaves = [x.requires_grad_() for x, asked in zip(layer, wanted, strict=False) if asked]
    found = iter(torch.autograd.grad(recurrent.unrolled(*layer)[:2], leaves, grads))
    return tuple(next(found).detach() if asked else grads[0].new_empty(0) for asked in wanted)


@reference("_thnn_fused_lstm_cell")
def lstm_cell(inputs: Tensor, hidden: Tensor, cx: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _floating(inputs)
    entry, forget, cell, output = (inputs + hidden + one + other).chunk(4, 1)
    entry, forget, cell, output = entry.sigmoid(), forget.sigmoid(), cell.tanh(), output.sigmoid()
    cy = forget * cx + entry * cell
    return output * cy.tanh(), cy, torch.cat([entry, forget, cell, output], 1).detach()


@reference("_thnn_fused_lstm_cell_backward_impl")
@torch.no_grad()
def lstm_cell_backward(
    grad_hy: Tensor, grad_cy: Tensor, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _floating(workspace)
    entry, forget, cell, output = workspace.chunk(4, 1)
    top = cy.tanh()
    grad = grad_cy + grad_hy * output * (1 - top**2)

    def through(factor: Tensor, out: Tensor) -> Tensor:
        return factor * out * (1 - out)

    gates = [through(grad * cell, entry), through(grad * cx, forget), grad * entry * (1 - cell**2)]
    joined = torch.cat([*gates, through(grad_hy * top, output)], 1)
    return joined, grad * forget, joined.sum(0)


@reference("_thnn_fused_gru_cell")
def gru_cell(inputs: Tensor, hidden: Tensor, hx: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    _floating(inputs)
    of_input, of_hidden = (inputs + one).chunk(3, 1), (hidden + other).chunk(3, 1)
    reset, update = (of_input[0] + of_hidden[0]).sigmoid(), (of_input[1] + of_hidden[1]).sigmoid()
    new = (of_input[2] + reset * of_hidden[2]).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, of_hidden[2]], 1).detach()


@reference("_thnn_fused_gru_cell_backward")
@torch.no_grad()
def gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    _floating(workspace)
    reset, update, new, old, hidden = workspace.chunk(5, 1)
    of_new = grad * (1 - update) * (1 - new**2)
    of_reset = of_new * hidden * reset * (1 - reset)
    of_update = grad * (old - new) * update * (1 - update)
    inputs = torch.cat([of_reset, of_update, of_new], 1)
    states = torch.cat([of_reset, of_update, of_new * reset], 1)
    return inputs, states, grad * update, inputs.sum(0), states.sum(0)
