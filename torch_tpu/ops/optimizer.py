"""The fused optimizers of torch.optim, and gradient scaling (torch.amp.GradScaler).

Everything is computed in float32 (float64 for float64 parameters) and rounded once at the end. What schedules change
is data: the learning rate, momentum (beta1, which `OneCycleLR` cycles) and weight decay. The other numbers are constants
of the program, so that 1 - beta2 can be rounded from the exact difference. Results follow the schemas: the parameters, the gradients (unscaled if there is a scale), then
the state, each list opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import POSITIVE, Context, lowering


class Scaling(NamedTuple):
    """What GradScaler hands to an optimizer."""

    scale: Value | None
    found_inf: Value | None

    def unscale(self, grad: Value) -> Value:
        if self.scale is None:
            return grad
        return grad / hlo.convert(hlo.reshape(self.scale, ()), grad.dtype)

    def keep(self, old: Value, new: Value) -> Value:
        """The new value in the old one's dtype, or the old one if a gradient was not finite."""
        new = hlo.convert(new, old.dtype)
        if self.found_inf is None:
            return new
        skip = hlo.equal(hlo.reshape(self.found_inf, ()), 1)
        return hlo.select(skip, old, new)


def _wide(x: Value, like: Value) -> Value:
    """In the dtype that an optimizer computes in for a parameter."""
    return hlo.convert(x, hlo.compute_dtype(like.dtype))


def _wide_number(x: Value | float, like: Value) -> Value | float:
    """`_wide` for a number that may be data."""
    return hlo.reshape(_wide(x, like), ()) if isinstance(x, Value) else x


def _is_given(x: Value | float) -> bool:
    """Whether a number is not 0; one that is data never is."""
    return isinstance(x, Value) or x != 0


def _bias_correction(beta: Value | float, step: Value) -> Value:
    """1 - beta ** step. Computed as -expm1(step * log(beta)), which keeps its digits when beta is near 1."""
    if isinstance(beta, Value):
        return hlo.negate(hlo.expm1(step * hlo.log(beta)))
    if beta <= 0:
        return hlo.ones_like(step)
    return hlo.negate(hlo.expm1(step * math.log(beta)))


def _direction(scaling: Scaling, grad: Value, param: Value, maximize: bool) -> tuple[Value, Value]:
    """The gradient to store and the one to descend along."""
    unscaled = scaling.unscale(_wide(grad, param))
    stored = scaling.keep(grad, unscaled) if scaling.scale is not None else grad
    return stored, hlo.negate(unscaled) if maximize else unscaled


def _adam(decoupled: bool) -> Callable[..., list[Value]]:
    """Adam (https://arxiv.org/abs/1412.6980), and AdamW with decoupled decay (https://arxiv.org/abs/1711.05101)."""

    def adam(
        ctx: Context,
        params: Sequence[Value],
        grads: Sequence[Value],
        exp_avgs: Sequence[Value],
        exp_avg_sqs: Sequence[Value],
        max_exp_avg_sqs: Sequence[Value],
        state_steps: Sequence[Value],
        *,
        lr: Value,
        beta1: Value | float,
        beta2: float,
        weight_decay: Value | float,
        eps: Value | float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Value | None = None,
        found_inf: Value | None = None,
    ) -> list[Value]:
        scaling = Scaling(grad_scale, found_inf)
        columns: list[list[Value]] = [[], [], [], [], []]
        for index, old in enumerate(params):
            stored, grad = _direction(scaling, grads[index], old, maximize)
            param, rate, step = _wide(old, old), _wide(lr, old), _wide(state_steps[index], old)
            rate, step = hlo.reshape(rate, ()), hlo.reshape(step, ())
            decay, momentum = _wide_number(weight_decay, old), _wide_number(beta1, old)
            if _is_given(decay) and decoupled:
                param = param * (1 - rate * decay)
            elif _is_given(decay):
                grad = grad + param * decay
            mean = _wide(exp_avgs[index], old)
            mean = mean + (grad - mean) * (1 - momentum)
            square = _wide(exp_avg_sqs[index], old) * beta2 + grad * grad * (1 - beta2)
            largest = square
            if amsgrad:
                largest = hlo.maximum(_wide(max_exp_avg_sqs[index], old), square)
                columns[4].append(scaling.keep(max_exp_avg_sqs[index], largest))
            step_size = rate / _bias_correction(momentum, step)
            denominator = hlo.sqrt(largest) / hlo.sqrt(_bias_correction(beta2, step)) + _wide_number(eps, old)
            columns[0].append(scaling.keep(old, param - step_size * (mean / denominator)))
            columns[1].append(stored)
            columns[2].append(scaling.keep(exp_avgs[index], mean))
            columns[3].append(scaling.keep(exp_avg_sqs[index], square))
        if not amsgrad:
            columns[4] = list(max_exp_avg_sqs)
        return [value for column in columns for value in column]

    return adam


_DECAY = {"weight_decay": POSITIVE}
_ADAM = {"beta1": (0.0, 1.0)} | _DECAY
lowering("_fused_adam", "_fused_adam.tensor_lr", data=("lr", "eps"), varying=_ADAM)(_adam(decoupled=False))
lowering("_fused_adamw", "_fused_adamw.tensor_lr", data=("lr", "eps"), varying=_ADAM)(_adam(decoupled=True))


@lowering(
    "_fused_sgd",
    "_fused_sgd.tensor_lr",
    data=("lr", "dampening"),
    varying={"momentum": POSITIVE, "weight_decay": POSITIVE},
)
def fused_sgd(
    ctx: Context,
    params: Sequence[Value],
    grads: Sequence[Value],
    momentum_buffer_list: Sequence[Value],
    *,
    weight_decay: Value | float,
    momentum: Value | float,
    lr: Value,
    dampening: Value | float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> list[Value]:
    """Momentum as torch.optim.SGD has it: the buffer starts as the first gradient and does not contain the rate."""
    scaling = Scaling(grad_scale, found_inf)
    columns: list[list[Value]] = [[], [], []]
    for index, old in enumerate(params):
        stored, grad = _direction(scaling, grads[index], old, maximize)
        param, rate = _wide(old, old), hlo.reshape(_wide(lr, old), ())
        decay, kept = _wide_number(weight_decay, old), _wide_number(momentum, old)
        if _is_given(decay):
            grad = grad + param * decay
        if _is_given(kept):
            before = momentum_buffer_list[index]
            buffer = grad if is_first_step else _wide(before, old) * kept + grad * (1 - _wide_number(dampening, old))
            columns[2].append(scaling.keep(before, buffer))
            grad = grad + buffer * kept if nesterov else buffer
        columns[0].append(scaling.keep(old, param - rate * grad))
        columns[1].append(stored)
    if not _is_given(momentum):
        columns[2] = list(momentum_buffer_list)
    return [value for column in columns for value in column]


def _adagrad(returns_steps: bool) -> Callable[..., list[Value]]:
    """Adagrad with a decaying rate, lr / (1 + (step - 1) lr_decay)."""

    def adagrad(
        ctx: Context,
        params: Sequence[Value],
        grads: Sequence[Value],
        state_sums: Sequence[Value],
        state_steps: Sequence[Value],
        *,
        lr: Value,
        lr_decay: float,
        weight_decay: Value | float,
        eps: Value | float,
        maximize: bool,
        grad_scale: Value | None = None,
        found_inf: Value | None = None,
    ) -> list[Value]:
        scaling = Scaling(grad_scale, found_inf)
        columns: list[list[Value]] = [[], [], []]
        for index, old in enumerate(params):
            stored, grad = _direction(scaling, grads[index], old, maximize)
            param, rate, step = _wide(old, old), _wide(lr, old), _wide(state_steps[index], old)
            rate, step = hlo.reshape(rate, ()), hlo.reshape(step, ())
            decay = _wide_number(weight_decay, old)
            if _is_given(decay):
                grad = grad + param * decay
            total = _wide(state_sums[index], old) + grad * grad
            if lr_decay:
                rate = rate / ((step - 1) * lr_decay + 1)
            columns[0].append(scaling.keep(old, param - rate * (grad / (hlo.sqrt(total) + _wide_number(eps, old)))))
            columns[1].append(stored)
            columns[2].append(scaling.keep(state_sums[index], total))
        results = [value for column in columns for value in column]
        return [*results, *state_steps] if returns_steps else results

    return adagrad


lowering("_fused_adagrad", data=("lr", "eps"), varying=_DECAY)(_adagrad(returns_steps=True))
lowering("_fused_adagrad.tensor_lr", data=("eps",), varying=_DECAY)(_adagrad(returns_steps=False))


@lowering("_amp_foreach_non_finite_check_and_unscale")
def check_and_unscale(ctx: Context, grads: Sequence[Value], found_inf: Value, inv_scale: Value) -> list[Value]:
    """Multiplies the gradients by inv_scale and sets found_inf to 1 if one of them is not finite."""
    finite = None
    results = []
    for grad in grads:
        wide = _wide(grad, grad)
        mine = hlo.reduce_and(hlo.is_finite(wide), range(wide.ndim))
        finite = mine if finite is None else finite & mine
        factor = hlo.convert(hlo.reshape(inv_scale, ()), wide.dtype)
        results.append(hlo.convert(hlo.select(hlo.equal(factor, 1), wide, wide * factor), grad.dtype))
    flag = found_inf if finite is None else hlo.select(finite, found_inf, hlo.ones_like(found_inf))
    return [*results, flag]


@lowering("_amp_update_scale")
def update_scale(
    ctx: Context,
    scale: Value,
    growth_tracker: Value,
    found_inf: Value,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> list[Value]:
    """Shrinks the scale after a step that was skipped, and grows it after growth_interval good ones in a row."""
    bad = hlo.not_equal(hlo.reshape(found_inf, ()), 0)
    good_steps = growth_tracker + 1
    grows = hlo.equal(good_steps, growth_interval)
    grown = scale * scale_growth_factor
    grown = hlo.select(hlo.is_finite(grown), grown, scale)
    good_scale = hlo.select(hlo.reshape(grows, scale.shape), grown, scale)
    zero = hlo.zeros_like(growth_tracker)
    return [
        hlo.select(bad, scale * scale_backoff_factor, good_scale),
        hlo.select(bad, zero, hlo.select(grows, zero, good_steps)),
    ]
