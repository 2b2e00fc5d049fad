"""Layers in a row as one loop: the program of a model then has the size of one layer's, and so has the time to compile it.

    model = torch_tpu.compile.repeated.fold_layers(model)     # each list of layers that are alike
    step = torch.compile(model)

A loop runs where the model is compiled; in eager mode it is unrolled. The parameters of the layers are stacked: one tensor
[layers, ...] for each name, which is also how the optimizer sees them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch._dynamo
from torch._higher_order_ops.scan import scan
from torch.func import functional_call

PLACES = ("layer_idx", "layer_id", "layer_number", "layer_index")
"""Attributes in which layers that do the same may differ: where they are."""


class Repeated(torch.nn.Module):
    """Layers that do the same to one tensor after the other, each with parameters of its own.

    `forward(x, *args, **kwargs)` calls each layer with the result of the one before it and with the same other arguments.

    Args:
        layers: at least one; see `alike`. Their results are tensors like `x`, or tuples that begin with one and of which
            the rest is dropped.

    Raises:
        ValueError: the layers are not alike, or have buffers.
    """

    def __init__(self, layers: Sequence[torch.nn.Module]):
        super().__init__()
        if not alike(layers):
            raise ValueError("layers that repeat have the same class, settings and parameters, and no buffers")
        self._template = (copy.deepcopy(layers[0]).to("meta"),)  # in a tuple, so that it is no part of this module
        self._names = {name.replace(".", "__"): name for name, _ in layers[0].named_parameters()}
        for attribute, name in self._names.items():
            parts = [layer.get_parameter(name) for layer in layers]
            stacked = torch.stack([part.detach() for part in parts])
            self.register_parameter(attribute, torch.nn.Parameter(stacked, parts[0].requires_grad))
        self.train(layers[0].training)

    def train(self, mode: bool = True) -> Repeated:
        self._template[0].train(mode)
        return super().train(mode)

    @torch._dynamo.dont_skip_tracing
    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        layer = self._template[0]
        stacked = {name: getattr(self, attribute) for attribute, name in self._names.items()}

        def step(carry: torch.Tensor, parameters: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            result = functional_call(layer, parameters, (carry, *args), kwargs)
            result = result[0] if isinstance(result, tuple) else result
            return result, result.new_zeros(1)  # a scan collects something of every step

        if not torch.compiler.is_dynamo_compiling():
            for index in range(next(iter(stacked.values())).shape[0]):
                x, _ = step(x, {name: tensor[index] for name, tensor in stacked.items()})
            return x
        return scan(step, x, stacked)[0]


def fold_layers(model: torch.nn.Module) -> torch.nn.Module:
    """Replaces each list of several layers that are alike by a list of one `Repeated`, in place.

    Meant for models that call the layers of a list one after the other and hand on one tensor, which is what the decoders
    of Transformers do when they use no cache.

    Returns:
        The model.

    Raises:
        ValueError: it has no such list.
    """
    found = _foldable(model)
    if not found:
        raise ValueError(f"{type(model).__name__} has no list of several layers that are alike and have no buffers")
    for name, layers in found:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, torch.nn.ModuleList([Repeated(layers)]))
    return model


def can_fold(model: torch.nn.Module) -> bool:
    """Whether `fold_layers` finds anything."""
    return bool(_foldable(model))


def _foldable(model: torch.nn.Module) -> list[tuple[str, list[torch.nn.Module]]]:
    found: list[tuple[str, list[torch.nn.Module]]] = []
    for name, layers in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer, _ in found)
        if isinstance(layers, torch.nn.ModuleList) and len(layers) > 1 and not inside and alike(list(layers)):
            found.append((name, list(layers)))
    return found


def alike(layers: Sequence[torch.nn.Module]) -> bool:
    """Whether layers differ in the values of their parameters only: same classes, settings, shapes, and no buffers."""
    first = _described(layers[0])
    has_buffers = any(True for layer in layers for _ in layer.buffers())
    return not has_buffers and any(True for _ in layers[0].parameters()) and all(_described(x) == first for x in layers)


def _described(layer: torch.nn.Module) -> list[Any]:
    found: list[Any] = []
    for name, module in layer.named_modules():
        plain = {
            key: value
            for key, value in vars(module).items()
            if key not in PLACES and isinstance(value, (bool, int, float, str, torch.dtype, type(None)))
        }
        shapes = {
            key: (tuple(value.shape), value.dtype, value.requires_grad)
            for key, value in module.named_parameters(recurse=False)
        }
        found.append((name, type(module), plain, shapes))
    return found
