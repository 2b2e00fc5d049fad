"""Operations that exchange data between the replicas of a program, which are the processes of a group in order.

All groups are the whole program: a smaller group runs a program of its own. Data moves along dimension 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_tpu.hlo.core import Value, emit, region
from torch_tpu.hlo.types import tensor_type


def _everyone(num_replicas: int) -> str:
    members = ", ".join(map(str, range(num_replicas)))
    return f"replica_groups = dense<[[{members}]]> : tensor<1x{num_replicas}xi64>"


def replica_id() -> Value:
    """The place in the group of the process that runs it, as a 0-d uint32."""
    return emit("stablehlo.replica_id : tensor<ui32>", (), torch.uint32)


def all_reduce(x: Value, combine: Callable[[Value, Value], Value], num_replicas: int) -> Value:
    """Element by element the combination of every replica's x; XLA knows sums, products, minima and maxima."""
    scalar = Value("", (), x.dtype)
    body, _ = region([scalar, scalar], combine)
    return emit(
        f'"stablehlo.all_reduce"({x.name}) ({body}) {{{_everyone(num_replicas)}}} : ({x.type}) -> {x.type}',
        x.shape,
        x.dtype,
    )


def reduce_scatter(x: Value, combine: Callable[[Value, Value], Value], num_replicas: int) -> Value:
    """As `all_reduce`, of which each replica gets its own part of dimension 0."""
    scalar = Value("", (), x.dtype)
    body, _ = region([scalar, scalar], combine)
    shape = (x.shape[0] // num_replicas, *x.shape[1:])
    return emit(
        f'"stablehlo.reduce_scatter"({x.name}) ({body}) {{scatter_dimension = 0 : i64, {_everyone(num_replicas)}}} : '
        f"({x.type}) -> {tensor_type(shape, x.dtype)}",
        shape,
        x.dtype,
    )


def all_gather(x: Value, num_replicas: int) -> Value:
    """Every replica's x, concatenated along dimension 0."""
    shape = (x.shape[0] * num_replicas, *x.shape[1:])
    return emit(
        f'"stablehlo.all_gather"({x.name}) {{all_gather_dim = 0 : i64, {_everyone(num_replicas)}}} : '
        f"({x.type}) -> {tensor_type(shape, x.dtype)}",
        shape,
        x.dtype,
    )


def all_to_all(x: Value, num_replicas: int) -> Value:
    """Part i of dimension 0 goes to replica i; what arrives is concatenated in the order of the senders."""
    return emit(
        f'"stablehlo.all_to_all"({x.name}) {{split_dimension = 0 : i64, concat_dimension = 0 : i64, '
        f"split_count = {num_replicas} : i64, {_everyone(num_replicas)}}} : ({x.type}) -> {x.type}",
        x.shape,
        x.dtype,
    )
