"""The fused cells that nn.LSTM, nn.GRU and their cell modules call on a device of its own, and
their gradients.

Gates stand side by side along dimension 1. The workspace is what the backward pass needs, in a form
of this file's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch_tpu import hlo
from torch_tpu.hlo import Value
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


@lowering("_thnn_fused_lstm_cell", inferred=True)  # meta does not take cells without bias
def lstm_cell(
    ctx: Context,
    input_gates: Value,
    hidden_gates: Value,
    cx: Value,
    input_bias: Value | None = None,
    hidden_bias: Value | None = None,
) -> list[Value | None]:
    """Gates i, f, g, o: c = f cx + i g and h = o tanh(c). The workspace holds the gates."""
    parts = _split(_biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias), 4)
    entry, forget, output = (hlo.logistic(parts[index]) for index in (0, 1, 3))
    cell = hlo.tanh(parts[2])
    cy = forget * wide(cx) + entry * cell
    workspace = hlo.concatenate([entry, forget, cell, output], 1)
    return _narrowed([output * hlo.tanh(cy), cy, workspace], cx)


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
    entry, forget, cell, output = _split(wide(workspace), 4)
    top = hlo.tanh(wide(cy))
    of_cell = hlo.zeros_like(top) if grad_cy is None else wide(grad_cy)
    of_output = hlo.zeros_like(top)
    if grad_hy is not None:
        of_cell = of_cell + wide(grad_hy) * output * (1 - top * top)
        of_output = wide(grad_hy) * top
    gates = hlo.concatenate(
        [
            _through_logistic(of_cell * cell, entry),
            _through_logistic(of_cell * wide(cx), forget),
            _through_tanh(of_cell * entry, cell),
            _through_logistic(of_output, output),
        ],
        1,
    )
    return _narrowed([gates, of_cell * forget, hlo.reduce_sum(gates, [0]) if has_bias else None], workspace)


@lowering("_thnn_fused_gru_cell")
def gru_cell(
    ctx: Context,
    input_gates: Value,
    hidden_gates: Value,
    hx: Value,
    input_bias: Value | None = None,
    hidden_bias: Value | None = None,
) -> list[Value | None]:
    """Gates r, z, n: n = tanh(x_n + r h_n) and h = n + z (hx - n). The workspace holds r, z, n, hx
    and h_n.
    """
    inputs, hidden = (
        _split(_biased(input_gates, input_bias), 3),
        _split(_biased(hidden_gates, hidden_bias), 3),
    )
    reset, update = (hlo.logistic(x + h) for x, h in zip(inputs[:2], hidden[:2], strict=True))
    new, old = hlo.tanh(inputs[2] + reset * hidden[2]), wide(hx)
    workspace = hlo.concatenate([reset, update, new, old, hidden[2]], 1)
    return _narrowed([new + update * (old - new), workspace], hx)


@lowering("_thnn_fused_gru_cell_backward")
def gru_cell_backward(ctx: Context, grad_hy: Value, workspace: Value, has_bias: bool) -> list[Value | None]:
    """The gradients of input gates, hidden gates, hx, input bias and hidden bias."""
    reset, update, new, old, hidden = _split(wide(workspace), 5)
    grad = wide(grad_hy)
    of_new = _through_tanh(grad * (1 - update), new)
    of_reset = _through_logistic(of_new * hidden, reset)
    of_update = _through_logistic(grad * (old - new), update)
    gates = [hlo.concatenate([of_reset, of_update, last], 1) for last in (of_new, of_new * reset)]
    biases = [hlo.reduce_sum(gate, [0]) if has_bias else None for gate in gates]
    return _narrowed([*gates, grad * update, *biases], workspace)
