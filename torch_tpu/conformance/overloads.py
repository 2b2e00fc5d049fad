"""Samples of overloads that PyTorch's operator database does not reach: the ATen call itself, by hand.

The operators of this table and those of the database are together all of the registry, and what runs on the CPU instead.
A sample is made for the dtype of a case; the dtypes and gradients that an overload has are those that the CPU takes. What
the CPU has no kernel for is compared with its definition in `references.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from torch_tpu.conformance import references
from torch_tpu.conformance.samples import FALLBACKS, SAMPLES, Call, Maker
from torch_tpu.ops import registry


@dataclass(frozen=True)
class Direct:
    """An overload in the place of an `OpInfo`. What it is called as is the CPU's answer; `op` is what a device runs."""

    op: OpOverload
    make: Callable[[Maker], Call]
    variant_test_name: str = ""
    decorators: tuple[()] = ()
    supports_autograd: bool = True
    supports_out: bool = False
    error_inputs_func: None = None

    @property
    def name(self) -> str:
        """Such as "aten::add.Tensor", as in the registry."""
        return registry.overload_name(self.op)

    @property
    def aten_name(self) -> str:
        return str(self.op.overloadpacket.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return references.REFERENCES.get(self.name, self.op)(*args, **kwargs)

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool = False) -> list[Call]:
        return [self.make(Maker(dtype, requires_grad))]

    def supports_dtype(self, dtype: torch.dtype, device: str) -> bool:
        return _taken(self, dtype) is not None

    def supported_backward_dtypes(self, device: str) -> set[torch.dtype]:
        return {dtype for dtype in _DIFFERENTIABLE if _taken(self, dtype)}

    def get_inplace(self) -> None:
        return None


_DIFFERENTIABLE = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128
)  # fmt: skip


@cache
def _taken(info: Direct, dtype: torch.dtype) -> bool | None:
    """Whether the CPU differentiates a sample; None if it does not even take it."""
    state = torch.get_rng_state()
    found: bool | None = None
    try:
        for requires_grad in (False, True):
            (call,) = info.sample_inputs("cpu", dtype, requires_grad)
            results = tree_leaves(info(call.input, *call.args, **call.kwargs))
            found = False
            results = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
            if results:
                sum(leaf.abs().sum() for leaf in results).backward()
                found = True
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError):
        return found
    finally:
        torch.set_rng_state(state)
    return found


@cache
def overloads() -> tuple[Direct, ...]:
    """All of the tables."""
    return tuple(Direct(registry.resolve(name), make) for name, make in (SAMPLES | FALLBACKS).items())
