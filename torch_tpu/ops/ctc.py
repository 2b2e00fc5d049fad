"""Connectionist temporal classification (Graves et al. 2006, section 4): the loss and its gradient.

T steps, N sequences, C classes; a target of S labels becomes L = 2 S + 1 states, with blanks around every label.
alpha[t, n, s] is the log probability of the prefixes that are in state s at step t, beta the same of the suffixes.
The lengths are constants in one overload and tensors in the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.ops.registry import Context, lowering

Lengths = Value | Sequence[int]


@dataclass(frozen=True)
class Problem:
    """What both directions need."""

    emissions_TNL: Value
    """Log probability of each state's label at each step."""
    labels_NL: Value
    skip_NL: Value
    """Whether a state may be entered from the one two before it: another label, not a blank."""
    input_N1: Value
    target_N1: Value
    state_NL: Value
    """0, 1, ... L - 1."""


def _column(lengths: Lengths) -> Value:
    values = lengths if isinstance(lengths, Value) else hlo.literal(list(lengths), torch.int32)
    return hlo.reshape(hlo.convert(values, torch.int32), (values.numel, 1))


def _padded(targets: Value, target_N1: Value, num_labels: int) -> Value:
    """Targets as (N, S): the rows as they are, or cut out of the concatenation of all targets."""
    targets, num_rows = hlo.convert(targets, torch.int32), target_N1.shape[0]
    if num_labels == 0:
        return hlo.full((num_rows, 0), 0, torch.int32)
    if targets.ndim == 2:
        return hlo.slice_in_dim(targets, 1, 0, num_labels)
    square = (num_rows, num_rows)
    earlier = hlo.less(hlo.iota(square, 0, torch.int32), hlo.iota(square, 1, torch.int32))
    starts = hlo.reduce_sum(hlo.select(earlier, target_N1, 0), [0])
    places = hlo.iota((num_rows, num_labels), 1, torch.int32) + hlo.expand_dims(starts, [1])
    return hlo.take(targets, places)


def _shifted(x: Value, count: int, filling: float | bool) -> Value:
    """x moved by a number of states; a negative one moves toward the first state."""
    return hlo.pad(x, [0, count], [0, -count], filling)


def _problem(
    log_probs: Value, targets: Value, inputs: Lengths, lengths: Lengths, num_labels: int, blank: int
) -> Problem:
    target_N1 = _column(lengths)
    padded = _padded(targets, target_N1, num_labels)
    num_rows, num_states = target_N1.shape[0], 2 * num_labels + 1
    if num_labels:
        labels = hlo.pad(padded, [0, 1], [0, 1], blank, [0, 1])
    else:
        labels = hlo.full((num_rows, 1), blank, torch.int32)
    before = hlo.pad(labels, [0, 2], [0, -2], blank)
    emissions = hlo.gather(
        log_probs,
        hlo.expand_dims(labels, [2]),
        offset_dims=[0],
        collapsed_slice_dims=[2],
        start_index_map=[2],
        slice_sizes=[log_probs.shape[0], 1, 1],
        operand_batching_dims=[1],
        start_indices_batching_dims=[0],
    )
    skip = hlo.not_equal(labels, blank) & hlo.not_equal(labels, before)
    states = hlo.iota((num_rows, num_states), 1, torch.int32)
    return Problem(emissions, labels, skip, _column(inputs), target_N1, states)


def _log_sum_exp(*values: Value) -> Value:
    """log(sum of e^x), which is -inf where all are."""
    top = values[0]
    for value in values[1:]:
        top = hlo.maximum(top, value)
    shift = hlo.select(hlo.equal(top, -math.inf), 0, top)
    total = hlo.exponential(values[0] - shift)
    for value in values[1:]:
        total = total + hlo.exponential(value - shift)
    return hlo.log(total) + shift


def _at_step(x_TNL: Value, step: Value) -> Value:
    zero = hlo.scalar(0, torch.int32)
    return hlo.reshape(hlo.dynamic_slice(x_TNL, [step, zero, zero], (1, *x_TNL.shape[1:])), x_TNL.shape[1:])


def _stored(buffer_TNL: Value, x_NL: Value, step: Value) -> Value:
    return hlo.dynamic_update_slice(buffer_TNL, hlo.expand_dims(x_NL, [0]), [step, 0, 0])


def _alphas(problem: Problem) -> tuple[Value, Value]:
    """All alphas (-inf after the end of an input), and each sequence's last one."""
    emissions, states = problem.emissions_TNL, problem.state_NL
    first = hlo.less(states, 2) & hlo.less_equal(states, problem.target_N1)  # state 1 exists if there is a label
    buffer = hlo.full_like(emissions, -math.inf)

    def body(step: Value, alpha: Value, buffer: Value) -> list[Value]:
        jumped = hlo.select(problem.skip_NL, _shifted(alpha, 2, -math.inf), -math.inf)
        reached = _log_sum_exp(alpha, _shifted(alpha, 1, -math.inf), jumped)
        start = hlo.select(first, 0, hlo.full_like(alpha, -math.inf))
        new = hlo.select(hlo.equal(step, 0), start, reached) + _at_step(emissions, step)
        inside = hlo.less(step, problem.input_N1)
        return [hlo.select(inside, new, alpha), _stored(buffer, hlo.select(inside, new, -math.inf), step)]

    none = hlo.full(states.shape, -math.inf, emissions.dtype)
    last, buffer = hlo.fori_loop(emissions.shape[0], [none, buffer], body)
    return buffer, last


def _betas(problem: Problem) -> Value:
    """All betas; -inf after the end of an input."""
    emissions, states = problem.emissions_TNL, problem.state_NL
    num_steps = emissions.shape[0]
    ends = hlo.equal(states, problem.target_N1 * 2) | hlo.equal(states, problem.target_N1 * 2 - 1)
    may_jump = _shifted(problem.skip_NL, -2, False)

    def body(index: Value, beta: Value, buffer: Value) -> list[Value]:
        step = num_steps - 1 - index
        jumped = hlo.select(may_jump, _shifted(beta, -2, -math.inf), -math.inf)
        reached = _log_sum_exp(beta, _shifted(beta, -1, -math.inf), jumped)
        is_last = hlo.equal(step, problem.input_N1 - 1)
        last = hlo.select(ends, 0, hlo.full_like(beta, -math.inf))
        new = hlo.select(is_last, last, reached) + _at_step(emissions, step)
        new = hlo.select(hlo.less(step, problem.input_N1), new, -math.inf)
        return [new, _stored(buffer, new, step)]

    none = hlo.full(states.shape, -math.inf, emissions.dtype)
    return hlo.fori_loop(num_steps, [none, hlo.full_like(emissions, -math.inf)], body)[1]


def _num_labels(targets: Value, lengths: Lengths) -> int:
    """The longest target, or a bound on it where the lengths are data."""
    if isinstance(lengths, Value):
        return targets.shape[-1]
    return max(lengths, default=0)


@lowering("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(
    ctx: Context,
    log_probs: Value,
    targets: Value,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> list[Value]:
    """The negative log likelihoods (N) and the alphas (N, T, L)."""
    num_labels = _num_labels(targets, target_lengths)
    problem = _problem(log_probs, targets, input_lengths, target_lengths, num_labels, blank)
    alphas, last = _alphas(problem)

    def chosen(state: Value) -> Value:
        return hlo.reduce_max(hlo.select(hlo.equal(problem.state_NL, state), last, -math.inf), [1])

    loss = -_log_sum_exp(chosen(problem.target_N1 * 2), chosen(problem.target_N1 * 2 - 1))
    nothing = hlo.equal(problem.input_N1, 0) & hlo.equal(problem.target_N1, 0)
    loss = hlo.select(hlo.reshape(nothing, loss.shape), 0, loss)
    return [loss, hlo.transpose(alphas, (1, 0, 2))]


@lowering("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    ctx: Context,
    grad: Value,
    log_probs: Value,
    targets: Value,
    input_lengths: Lengths,
    target_lengths: Lengths,
    loss: Value,
    log_alpha: Value,
    blank: int,
    zero_infinity: bool = False,
) -> Value:
    """grad (p - share of the paths that emit the class here), as log_probs come from a log_softmax."""
    problem = _problem(log_probs, targets, input_lengths, target_lengths, (log_alpha.shape[2] - 1) // 2, blank)
    num_steps, num_rows, num_classes = log_probs.shape
    paths = hlo.transpose(log_alpha, (1, 0, 2)) + _betas(problem) - problem.emissions_TNL
    share = hlo.exponential(paths + hlo.expand_dims(loss, [1]))
    steps = hlo.iota((num_steps, num_rows, 1), 0, torch.int32)
    inside = hlo.less(steps, problem.input_N1)
    share = hlo.select(inside & hlo.less_equal(problem.state_NL, problem.target_N1 * 2), share, 0)
    occupied = hlo.scatter(
        hlo.full((num_rows, num_classes, num_steps), 0, share.dtype),
        hlo.expand_dims(problem.labels_NL, [2]),
        hlo.transpose(share, (1, 2, 0)),
        hlo.add,
        update_window_dims=[2],
        inserted_window_dims=[1],
        scatter_dims_to_operand_dims=[1],
        input_batching_dims=[0],
        scatter_indices_batching_dims=[0],
    )
    slope = hlo.exponential(log_probs) - hlo.transpose(occupied, (2, 0, 1))
    impossible = hlo.equal(hlo.expand_dims(loss, [1]), math.inf)
    slope = hlo.select(impossible, 0 if zero_infinity else math.nan, slope * hlo.expand_dims(grad, [1]))
    return hlo.select(inside, slope, 0)
