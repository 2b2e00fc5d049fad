"""nn.LSTM, nn.GRU and nn.RNN: ATen's `lstm`, `gru`, `rnn_tanh` and `rnn_relu` by one operator a layer and direction.

PyTorch's own definitions call a cell for each step, hundreds of operators. Here a direction of a layer is one operator,
`torch_tpu::recurrence`, whose lowering is a loop; layers, directions, dropout and packed sequences are built around it from
ordinary operators. `unrolled` says what it means; it is how complex numbers are served, and how it is differentiated a
second time or in forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

_LAYER = (
    "Tensor input, Tensor hx, Tensor? cx, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, "
    "Tensor? weight_hr, Tensor? lengths, str mode, bool reverse"
)
SCHEMAS = (
    f"recurrence({_LAYER}, bool keep) -> (Tensor states, Tensor hy, Tensor cy, Tensor cells, Tensor gates)",
    "recurrence_backward(Tensor? grad_states, Tensor? grad_hy, Tensor? grad_cy, Tensor states, Tensor cells, "
    f"Tensor gates, {_LAYER}, bool[8] output_mask) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
"""Steps are along dimension 0 and sequences along dimension 1. A sequence that has ended keeps its state. What does not
exist, and what is not asked for, is an empty tensor among the results."""

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Defines the operators, and puts networks that consist of them in the place of PyTorch's on the device."""
    own, aten = torch.library.Library("torch_tpu", "DEF"), torch.library.Library("aten", "IMPL")
    _libraries.extend((own, aten))  # which last as long as they are referred to
    for schema, meta in zip(SCHEMAS, (_recurrence_meta, _backward_meta), strict=True):
        name = own.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        own.impl(name, meta, "Meta")
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        mode = name.removeprefix("rnn_")
        for key in ("AutogradPrivateUse1", "PrivateUse1"):  # the second serves inference mode
            aten.impl(f"{name}.input", partial(_padded_network, mode), key)
            aten.impl(f"{name}.data", partial(_packed_network, mode), key)


# ----------------------------------------------------------------------------------------------------- networks


def _padded_network(
    mode: str,
    x: Tensor,
    states: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    torch._check(x.dim() == 3, lambda: f"a recurrent network takes 3 dimensions, not {x.dim()}")
    layers = _layers(states, params, has_biases, num_layers, bidirectional)
    out, *last = _network(mode, x.transpose(0, 1) if batch_first else x, None, layers, dropout if train else 0)
    return (out.transpose(0, 1) if batch_first else out, *last)


def _packed_network(
    mode: str,
    data: Tensor,
    batch_sizes: Tensor,
    states: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """The rows of a packed sequence are those elements of a padded one, step by step, that sequences have."""
    layers = _layers(states, params, has_biases, num_layers, bidirectional)
    hx = states[0] if isinstance(states, (list, tuple)) else states
    shape = batch_sizes.size(0), hx.size(1)
    has_element = torch.arange(shape[1], device=batch_sizes.device) < batch_sizes.unsqueeze(1)
    rows = (has_element.flatten().cumsum(0) - 1).to(data.device)  # padding repeats the row before it
    elements = torch.nonzero_static(has_element.flatten(), size=data.size(0)).squeeze(1).to(data.device)
    lengths = has_element.sum(0).to(data.device)
    padded = data.index_select(0, rows).unflatten(0, shape)
    out, *last = _network(mode, padded, lengths, layers, dropout if train else 0)
    return (out.flatten(0, 1).index_select(0, elements), *last)


Direction = tuple[Tensor | None, ...]
"""The arguments of `recurrence` from hx to weight_hr."""


def _layers(
    states: Any, params: Sequence[Tensor], has_biases: bool, num_layers: int, bidirectional: bool
) -> list[list[Direction]]:
    """The directions of each layer."""
    hx, cx = states if isinstance(states, (list, tuple)) else (states, None)
    directions = 2 if bidirectional else 1
    projects = cx is not None and hx.size(2) != cx.size(2)
    width = 2 + 2 * has_biases + projects
    count = num_layers * directions
    torch._check(
        len(params) == count * width, lambda: f"got {len(params)} weights, not {width} for each of {count} directions"
    )
    found: list[list[Direction]] = [[] for _ in range(num_layers)]
    for place in range(count):
        weights: list[Tensor | None] = [*params[place * width : (place + 1) * width]]
        projection = weights.pop() if projects else None
        biases = weights[2:] or [None, None]
        state = hx[place], None if cx is None else cx[place]
        found[place // directions].append((*state, *weights[:2], *biases, projection))
    return found


def _network(
    mode: str, x: Tensor, lengths: Tensor | None, layers: Sequence[Sequence[Direction]], dropout: float
) -> tuple[Tensor, ...]:
    """The states of the last layer, and the last states of all directions."""
    torch._check(x.size(0) > 0, lambda: "Expected sequence length to be larger than 0 in RNN")
    if torch.is_autocast_enabled(x.device.type) and x.dtype is not torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        x = x.to(dtype)
        layers = [[tuple(t if t is None else t.to(dtype) for t in direction) for direction in row] for row in layers]
    last = []
    for index, layer in enumerate(layers):
        if index and dropout:
            x = F.dropout(x, dropout)
        outs = []
        for reverse, direction in enumerate(layer):
            others = {t.dtype for t in direction if t is not None} - {x.dtype}
            if others:
                raise RuntimeError(
                    f"a recurrent network takes tensors of one dtype, not of {x.dtype} and {others.pop()}"
                )
            states, *final = _recurrence(x, *direction, lengths, mode, bool(reverse))
            outs.append(states)
            last.append(final)
        x = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    return (x, *map(torch.stack, zip(*last, strict=True)))


# --------------------------------------------------------------------------------------- one direction of a layer


def _recurrence(*args: Any) -> list[Tensor]:
    """The states, and the last h and c if there is one."""
    form: Callable[..., Any] = partial(torch.ops.torch_tpu.recurrence, keep=False)
    x: Tensor = args[0]
    if x.is_complex() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        form = unrolled
    elif torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
        form = _Recurrence.apply
    states, hy, cy = form(*args)[:3]
    return [states, hy] if args[2] is None else [states, hy, cy]


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        states, hy, cy, cells, gates = torch.ops.torch_tpu.recurrence(*args, True)
        *tensors, ctx.mode, ctx.reverse = args
        ctx.save_for_backward(states, cells, gates, *tensors)
        ctx.set_materialize_grads(False)
        if args[2] is None:
            ctx.mark_non_differentiable(cy)
        return states, hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:8]
        args = *ctx.saved_tensors[3:], ctx.mode, ctx.reverse
        if torch.is_grad_enabled():
            found = _differentiable_gradients(args, wanted, grads)
        else:
            found = torch.ops.torch_tpu.recurrence_backward(*grads, *ctx.saved_tensors[:3], *args, wanted)
        return *(grad if asked else None for grad, asked in zip(found, wanted, strict=True)), None, None, None


def _differentiable_gradients(
    args: Sequence[Any], wanted: Sequence[bool], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients that have gradients: those of `unrolled`, of aliases, so that none goes through another argument."""
    args = [arg.view_as(arg) if isinstance(arg, Tensor) else arg for arg in args]
    inputs = [arg for arg, asked in zip(args, wanted, strict=False) if asked]
    pairs = [pair for pair in zip(unrolled(*args), grads, strict=True) if pair[1] is not None]
    outs, of_outs = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outs, inputs, of_outs, create_graph=True, allow_unused=True))
    return [next(found) if asked else None for asked in wanted]


def unrolled(
    x: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    weight_hr: Tensor | None,
    lengths: Tensor | None,
    mode: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The states, and the last h and c, by operators for each step."""
    inputs = F.linear(x, weight_ih, bias_ih).unbind()
    states = []
    for step in reversed(range(len(inputs))) if reverse else range(len(inputs)):
        hidden, cell = _cell(mode, inputs[step], F.linear(hx, weight_hh, bias_hh), hx, cx)
        if weight_hr is not None:
            hidden = F.linear(hidden, weight_hr)
        if lengths is not None:
            inside = (step < lengths).unsqueeze(1)
            hidden = torch.where(inside, hidden, hx)
            cell = None if cell is None or cx is None else torch.where(inside, cell, cx)
        hx, cx = hidden, cell
        states.append(hx)
    return torch.stack(states[::-1] if reverse else states), hx, cx


def _cell(mode: str, inputs: Tensor, hidden: Tensor, hx: Tensor, cx: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if mode == "gru":
        (reset, update, new), (of_reset, of_update, of_new) = inputs.chunk(3, 1), hidden.chunk(3, 1)
        new = (new + (reset + of_reset).sigmoid() * of_new).tanh()
        return new + (update + of_update).sigmoid() * (hx - new), None
    total = inputs + hidden
    if cx is None:
        return total.tanh() if mode == "tanh" else total.relu(), None
    entry, forget, cell, output = total.chunk(4, 1)
    cx = forget.sigmoid() * cx + entry.sigmoid() * cell.tanh()
    return output.sigmoid() * cx.tanh(), cx


# ---------------------------------------------------------------------------------------------------------- meta


def _recurrence_meta(
    x: Tensor, hx: Tensor, cx: Tensor | None, weight_ih: Tensor, weight_hh: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    *_, mode, _, keep = rest
    shape, size = x.shape[:2], weight_hh.size(0)
    cells = (*shape, size // 4) if keep and mode == "lstm" else (0,)
    gates = (*shape, size if mode == "lstm" else size // 3 * 4) if keep and mode in ("lstm", "gru") else (0,)
    states = x.new_empty((*shape, hx.size(1)))
    return states, *(x.new_empty(size) for size in (hx.shape, (0,) if cx is None else cx.shape, cells, gates))


def _backward_meta(*args: Any) -> tuple[Tensor, ...]:
    *given, mask = args
    inputs = given[6:14]
    empty = given[6].new_empty
    return tuple(empty(x.shape if wanted else (0,)) for x, wanted in zip(inputs, mask, strict=True))
