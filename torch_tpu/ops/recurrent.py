"""Recurrent networks: the recurrence of one layer in one direction as one loop, the fused cells that nn.LSTMCell and
nn.GRUCell call on a device of its own, and their gradients.

Gates stand side by side along the last dimension. The workspace of a cell, and what a recurrence keeps, is what the
backward pass needs, in a form of this file's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_tpu import hlo
from torch_tpu.hlo import Value
from torch_tpu.hlo.dims import require_whole
from torch_tpu.ops.matmul import contract, linear_product
from torch_tpu.ops.normalization import wide
from torch_tpu.ops.registry import Context, lowering


def _split(x: Value, count: int) -> list[Value]:
    size = x.shape[1] // count
    return [hlo.slice_in_dim(x, 1, index * size, (index + 1) * size) for index in range(count)]


def _biased(x: Value, bias: Value | None) -> Value:
    x = wide(x)
    return x if bias is None else x + hlo.convert(bias, x.dtype)


def _through_logistic(grad: Value, out: Value) -> Value:
    return grad * out * (1 - out)


def _through_tanh(grad: Value, out: Value) -> Value:
    return grad * (1 - out * out)


def _narrowed(values: Sequence[Value | None], like: Value) -> list[Value | None]:
    return [None if value is None else hlo.convert(value, like.dtype) for value in values]


# ------------------------------------------------------------------------------------------------------- cells


def _lstm(gates: Value, cx: Value) -> tuple[Value, Value, Value]:
    """Gates i, f, g, o: c = f cx + i g and h = o tanh(c). Returns h, c and the gates."""
    parts = _split(gates, 4)
    entry, forget, output = (hlo.logistic(parts[index]) for index in (0, 1, 3))
    cell = hlo.tanh(parts[2])
    cy = forget * cx + entry * cell
    return output * hlo.tanh(cy), cy, hlo.concatenate([entry, forget, cell, output], 1)


def _lstm_gradient(of_hidden: Value, of_cell: Value, cx: Value, cy: Value, gates: Value) -> tuple[Value, Value]:
    """The gradients of the gates (the same for input and hidden ones) and of cx."""
    entry, forget, cell, output = _split(gates, 4)
    top = hlo.tanh(cy)
    of_cell = of_cell + of_hidden * output * (1 - top * top)
    of_gates = [
        _through_logistic(of_cell * cell, entry),
        _through_logistic(of_cell * cx, forget),
        _through_tanh(of_cell * entry, cell),
        _through_logistic(of_hidden * top, output),
    ]
    return hlo.concatenate(of_gates, 1), of_cell * forget


def _gru(inputs: Value, hidden: Value, hx: Value) -> tuple[Value, list[Value]]:
    """Gates r, z, n: n = tanh(x_n + r h_n) and h = n + z (hx - n). Returns h, and r, z, n and h_n."""
    of_input, of_hidden = _split(inputs, 3), _split(hidden, 3)
    reset, update = (hlo.logistic(x + h) for x, h in zip(of_input[:2], of_hidden[:2], strict=True))
    new = hlo.tanh(of_input[2] + reset * of_hidden[2])
    return new + update * (hx - new), [reset, update, new, of_hidden[2]]


def _gru_gradient(
    grad: Value, reset: Value, update: Value, new: Value, hidden: Value, hx: Value
) -> tuple[Value, Value, Value]:
    """The gradients of input gates, hidden gates and hx."""
    of_new = _through_tanh(grad * (1 - update), new)
    of_reset = _through_logistic(of_new * hidden, reset)
    of_update = _through_logistic(grad * (hx - new), update)
    inputs, hiddens = (hlo.concatenate([of_reset, of_update, last], 1) for last in (of_new, of_new * reset))
    return inputs, hiddens, grad * update


@lowering("_thnn_fused_lstm_cell", inferred=True)  # meta does not take cells without bias
def lstm_cell(
    ctx: Context,
    input_gates: Value,
    hidden_gates: Value,
    cx: Value,
    input_bias: Value | None = None,
    hidden_bias: Value | None = None,
) -> list[Value | None]:
    """h, c and the gates."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    return _narrowed(_lstm(gates, wide(cx)), cx)


@lowering("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    ctx: Context,
    grad_hy: Value | None,
    grad_cy: Value | None,
    cx: Value,
    cy: Value,
    workspace: Value,
    has_bias: bool,
) -> list[Value | None]:
    """The gradients of the gates (the same for input and hidden ones), of cx and of either bias."""
    if grad_hy is None and grad_cy is None:
        return [None, None, None]
    of_hidden, of_cell = (hlo.zeros_like(wide(cy)) if grad is None else wide(grad) for grad in (grad_hy, grad_cy))
    gates, of_cx = _lstm_gradient(of_hidden, of_cell, wide(cx), wide(cy), wide(workspace))
    return _narrowed([gates, of_cx, hlo.reduce_sum(gates, [0]) if has_bias else None], workspace)


@lowering("_thnn_fused_gru_cell")
def gru_cell(
    ctx: Context,
    input_gates: Value,
    hidden_gates: Value,
    hx: Value,
    input_bias: Value | None = None,
    hidden_bias: Value | None = None,
) -> list[Value | None]:
    """h, and r, z, n, hx and h_n."""
    hy, (reset, update, new, hidden) = _gru(
        _biased(input_gates, input_bias), _biased(hidden_gates, hidden_bias), wide(hx)
    )
    return _narrowed([hy, hlo.concatenate([reset, update, new, wide(hx), hidden], 1)], hx)


@lowering("_thnn_fused_gru_cell_backward")
def gru_cell_backward(ctx: Context, grad_hy: Value, workspace: Value, has_bias: bool) -> list[Value | None]:
    """The gradients of input gates, hidden gates, hx, input bias and hidden bias."""
    reset, update, new, old, hidden = _split(wide(workspace), 5)
    inputs, hiddens, of_old = _gru_gradient(wide(grad_hy), reset, update, new, hidden, old)
    biases = [hlo.reduce_sum(gates, [0]) if has_bias else None for gates in (inputs, hiddens)]
    return _narrowed([inputs, hiddens, of_old, *biases], workspace)


# ------------------------------------------------------------------------------------------------- recurrences
# T steps, N sequences. A sequence that has ended keeps its state, so that the state after the last step is that of each
# sequence's own end; backward in time it keeps the initial state until its end is reached.


def _at(x_TN: Value, step: Value) -> Value:
    zero = hlo.scalar(0, torch.int32)
    return hlo.reshape(hlo.dynamic_slice(x_TN, [step, zero, zero], (1, *x_TN.shape[1:])), x_TN.shape[1:])


def _stored(buffer_TN: Value, x_N: Value, step: Value) -> Value:
    return hlo.dynamic_update_slice(buffer_TN, hlo.expand_dims(hlo.convert(x_N, buffer_TN.dtype), [0]), [step, 0, 0])


def _buffers(x_TN: Value, widths: Sequence[int]) -> list[Value]:
    return [hlo.full((*x_TN.shape[:2], width), 0, x_TN.dtype) for width in widths]


def _where(lengths: Value | None, step: Value, new: Value, old: Value | int) -> Value:
    """What is new for the sequences that have this step, and old for those that do not."""
    if lengths is None:
        return new
    column = hlo.reshape(hlo.convert(lengths, torch.int32), (lengths.numel, 1))
    return hlo.select(hlo.less(step, column), new, old)


def _previous(x_TN: Value, first_N: Value, reverse: bool) -> Value:
    """What each step starts from."""
    steps, first = x_TN.shape[0], hlo.expand_dims(first_N, [0])
    if reverse:
        return hlo.concatenate([hlo.slice_in_dim(x_TN, 0, 1, steps), first], 0)
    return hlo.concatenate([first, hlo.slice_in_dim(x_TN, 0, 0, steps - 1)], 0)


def _none(like: Value) -> Value:
    """In the place of what there is not."""
    return hlo.full((0,), 0, like.dtype)


def _step(mode: str, of_input: Value, of_hidden: Value, old: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """The next h and, of an LSTM, c; and the gates."""
    if mode == "lstm":
        hidden, cell, gates = _lstm(of_input + of_hidden, old[1])
        return [hidden, cell], [gates]
    if mode == "gru":
        hidden, parts = _gru(of_input, of_hidden, wide(old[0]))
        return [hidden], [hlo.concatenate(parts, 1)]
    total = of_input + of_hidden
    return [hlo.tanh(total) if mode == "tanh" else hlo.maximum(total, 0)], []


@lowering("torch_tpu::recurrence")
def recurrence(
    ctx: Context,
    x: Value,
    hx: Value,
    cx: Value | None,
    weight_ih: Value,
    weight_hh: Value,
    bias_ih: Value | None,
    bias_hh: Value | None,
    weight_hr: Value | None,
    lengths: Value | None,
    mode: str,
    reverse: bool,
    keep: bool,
) -> list[Value]:
    """All h; the last h and c; and for the backward pass all c and gates (of a GRU r, z, n and h_n)."""
    require_whole(x.shape, "a recurrence")
    steps, size = x.shape[0], weight_hh.shape[0]
    inputs = hlo.convert(_biased(linear_product(x, weight_ih, ctx.platform), bias_ih), x.dtype)
    start = [hx] if cx is None else [hx, wide(cx)]
    kept_widths = {"lstm": [size // 4, size], "gru": [size // 3 * 4]}.get(mode, []) if keep else []

    def body(index: Value, *carried: Value) -> list[Value]:
        step = steps - 1 - index if reverse else index
        old, buffers = carried[: len(start)], carried[len(start) :]
        of_hidden = _biased(contract(old[0], weight_hh, ([1], [1]), platform=ctx.platform), bias_hh)
        new, gates = _step(mode, wide(_at(inputs, step)), of_hidden, old)
        new[0] = hlo.convert(new[0], hx.dtype)
        if weight_hr is not None:
            new[0] = hlo.convert(contract(new[0], weight_hr, ([1], [1]), platform=ctx.platform), hx.dtype)
        new = [_where(lengths, step, *pair) for pair in zip(new, old, strict=True)]
        results = [*new, *gates][: len(buffers)]
        return [*new, *(_stored(buffer, x, step) for buffer, x in zip(buffers, results, strict=True))]

    results = hlo.fori_loop(steps, [*start, *_buffers(x, [hx.shape[1], *kept_widths])], body)
    last, (states, *kept) = results[: len(start)], results[len(start) :]
    absent = [_none(x)] * (2 - len(kept))
    return [states, last[0], last[1] if cx is not None else _none(x), *absent, *kept]


def _step_gradient(
    mode: str, grads: Sequence[Value], needed: Sequence[Value]
) -> tuple[list[Value], Value | None, list[Value]]:
    """The gradients of hidden gates and, where they differ, input gates; of the h before, but through its gates; of the
    c before.
    """
    if mode == "lstm":
        of_gates, of_cell = _lstm_gradient(*grads, *needed)  # the c before and after, and the gates
        return [of_gates], None, [of_cell]
    if mode == "gru":
        reset, update, new, hidden = _split(needed[0], 4)
        of_inputs, of_hiddens, of_old = _gru_gradient(grads[0], reset, update, new, hidden, needed[1])
        return [of_hiddens, of_inputs], of_old, []
    out = needed[0]
    of_total = _through_tanh(grads[0], out) if mode == "tanh" else hlo.select(hlo.greater(out, 0), grads[0], 0)
    return [of_total], None, []


@lowering("torch_tpu::recurrence_backward")
def recurrence_backward(
    ctx: Context,
    grad_states: Value | None,
    grad_hy: Value | None,
    grad_cy: Value | None,
    states: Value,
    cells: Value,
    gates: Value,
    x: Value,
    hx: Value,
    cx: Value | None,
    weight_ih: Value,
    weight_hh: Value,
    bias_ih: Value | None,
    bias_hh: Value | None,
    weight_hr: Value | None,
    lengths: Value | None,
    mode: str,
    reverse: bool,
    output_mask: Sequence[bool],
) -> list[Value]:
    """The gradients of x, hx, cx, weight_ih, weight_hh, bias_ih, bias_hh and weight_hr; those that are asked for."""
    require_whole(x.shape, "a recurrence")
    steps, size = x.shape[0], weight_hh.shape[0]
    before = _previous(states, hx, reverse)
    needed = [states] if mode != "gru" else [gates, before]
    start = [hlo.zeros_like(wide(hx)) if grad_hy is None else wide(grad_hy)]
    if cx is not None:
        needed = [_previous(cells, cx, reverse), cells, gates]
        start.append(hlo.zeros_like(wide(cx)) if grad_cy is None else wide(grad_cy))

    def body(index: Value, *carried: Value) -> list[Value]:
        step = index if reverse else steps - 1 - index
        later, buffers = carried[: len(start)], carried[len(start) :]
        of_state = later[0] if grad_states is None else later[0] + wide(_at(grad_states, step))
        of_hidden = of_state
        if weight_hr is not None:
            narrow = hlo.convert(of_state, x.dtype)
            of_hidden = contract(narrow, weight_hr, ([1], [0]), platform=ctx.platform)
        values = [wide(_at(value, step)) for value in needed]
        of_gates, direct, of_cells = _step_gradient(mode, [of_hidden, *later[1:]], values)
        of_state_before = contract(hlo.convert(of_gates[0], x.dtype), weight_hh, ([1], [0]), platform=ctx.platform)
        new = [of_state_before if direct is None else of_state_before + direct, *of_cells]
        new = [_where(lengths, step, *pair) for pair in zip(new, [of_state, *later[1:]], strict=True)]
        results = [*of_gates, of_state][: len(buffers)]
        results = [_where(lengths, step, result, 0) for result in results]
        return [*new, *(_stored(buffer, result, step) for buffer, result in zip(buffers, results, strict=True))]

    widths = [size] * (2 if mode == "gru" else 1) + ([] if weight_hr is None else [hx.shape[1]])
    found = hlo.fori_loop(steps, [*start, *_buffers(x, widths)], body)
    (of_hx, *of_cx), (of_hiddens, *others) = found[: len(start)], found[len(start) :]
    of_inputs = others[0] if mode == "gru" else of_hiddens
    makers: list[Callable[[], Value]] = [
        lambda: _of_input(of_inputs, weight_ih, ctx.platform),
        lambda: of_hx,
        lambda: of_cx[0],
        lambda: _of_weight(of_inputs, x, ctx.platform),
        lambda: _of_weight(of_hiddens, before, ctx.platform),
        lambda: hlo.reduce_sum(wide(of_inputs), [0, 1]),
        lambda: hlo.reduce_sum(wide(of_hiddens), [0, 1]),
        lambda: _of_weight(others[0], _unprojected(cells, gates), ctx.platform),
    ]
    return [make() if wanted else _none(x) for make, wanted in zip(makers, output_mask, strict=True)]


def _rows(x_TN: Value) -> Value:
    return hlo.reshape(x_TN, (x_TN.shape[0] * x_TN.shape[1], x_TN.shape[2]))


def _of_input(grad_TN: Value, weight: Value, platform: str) -> Value:
    product = contract(_rows(grad_TN), weight, ([1], [0]), platform=platform)
    return hlo.reshape(product, (*grad_TN.shape[:2], weight.shape[1]))


def _of_weight(grad_TN: Value, operand_TN: Value, platform: str) -> Value:
    return contract(_rows(grad_TN), _rows(operand_TN), ([0], [0]), platform=platform)


def _unprojected(cells: Value, gates: Value) -> Value:
    """An LSTM's h before its projection."""
    size = cells.shape[2]
    return hlo.convert(wide(hlo.slice_in_dim(gates, 2, 3 * size, 4 * size)) * hlo.tanh(wide(cells)), cells.dtype)
