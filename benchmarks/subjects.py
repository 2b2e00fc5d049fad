"""Who is measured: PyTorch on a device in some mode, or JAX. One small adapter each; all run the same workloads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def _is_optimizers(function: Function) -> bool:
    """Whether it is an optimizer's step, as opposed to one of a model."""
    import torch

    return isinstance(getattr(function, "__self__", None), torch.optim.Optimizer)


class Torch:
    """PyTorch's own CPU backend, eager; the base of all that run PyTorch programs."""

    device = "cpu"
    is_jax = False
    captures = False
    """Steps are captured once and replayed: optimizers must count on the device."""

    def start(self) -> None:
        """Imports what it needs; everything before the first tensor."""
        import measuring
        import torch

        torch.set_num_threads(measuring.THREADS)

    def mode(self) -> contextlib.AbstractContextManager[None]:
        """Around everything that is measured."""
        return contextlib.nullcontext()

    def compile(self, function: Function) -> Function:
        """The forward part of a step, or an optimizer's step."""
        return function

    def compile_whole(self, step: Function) -> Function:
        """A whole training step."""
        return step

    def end_of_step(self) -> None:
        """For those that record operators until they are told."""

    def wait(self) -> None:
        """Until all work is done."""

    def keep(self) -> None:
        """After the first calls, for those that must be told to keep what they traced."""


class Inductor(Torch):
    """torch.compile on the CPU: model and loss in one function, the optimizer in another."""

    def compile(self, function: Function) -> Function:
        import torch

        return torch.compile(function)


class Strict(Torch):
    """This backend, each operator its own program."""

    device = "tpu"

    def wait(self) -> None:
        import torch

        torch.tpu.synchronize()


class Fused(Strict):
    """This backend, operators recorded and run together."""

    def mode(self) -> contextlib.AbstractContextManager[None]:
        import torch

        return torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_AND_FUSE)


class Compiled(Strict):
    """This backend by torch.compile: model and loss in one function, the optimizer in another."""

    def compile(self, function: Function) -> Function:
        import torch

        return torch.compile(function, backend="tpu")


class Whole(Strict):
    """This backend by torch.compile: the whole step, backward and optimizer included. Dynamo traces backward."""

    def mode(self) -> contextlib.AbstractContextManager[None]:
        import torch

        return torch._dynamo.config.patch(trace_autograd_ops=True)

    def compile_whole(self, step: Function) -> Function:
        import torch

        return torch.compile(step, backend="tpu")


class Traced(Fused):
    """This backend by torch.compile for model and loss, with what Dynamo traced kept on disk; the optimizer recorded."""

    def start(self) -> None:
        import logging

        import torch

        super().start()
        torch._dynamo.config.caching_precompile = True
        logging.getLogger("torch._dynamo.guards").setLevel(logging.ERROR)  # it names each guard that it leaves out

    def compile(self, function: Function) -> Function:
        import torch

        return function if _is_optimizers(function) else torch.compile(function, backend="tpu")

    def keep(self) -> None:
        import torch

        torch.compiler.save_cache_artifacts()


class Graph(Fused):
    """This backend by torch.accelerator.Graph: the first call runs a step and captures another, the others replay it."""

    captures = True

    def compile_whole(self, step: Function) -> Function:
        import torch

        graph = torch.accelerator.Graph()
        inputs: list[torch.Tensor] = []
        results: list[Any] = []

        def run(*args: torch.Tensor) -> Any:
            if not results:
                answer = step(*args)
                inputs.extend(arg.clone() for arg in args)
                with graph:
                    results.append(step(*inputs))
                return answer
            for mine, given in zip(inputs, args, strict=True):
                mine.copy_(given)
            graph.replay()
            answer = results[0]
            return tuple(item.clone() for item in answer) if isinstance(answer, tuple) else answer

        return run


class XlaLazy(Torch):
    """torch_xla, lazy: a step's operators are one graph, cut at its end."""

    def start(self) -> None:
        import os

        os.environ.setdefault("PJRT_DEVICE", "CPU")
        super().start()
        import torch_xla

        self.device = torch_xla.device()

    def end_of_step(self) -> None:
        import torch_xla

        torch_xla.sync()

    def wait(self) -> None:
        import torch_xla.core.xla_model as xm

        xm.wait_device_ops()


class XlaCompiled(XlaLazy):
    """torch_xla: model and loss by torch.compile(backend="openxla"), the optimizer lazy."""

    def compile(self, function: Function) -> Function:
        import torch

        return function if _is_optimizers(function) else torch.compile(function, backend="openxla")


class Jax(Torch):
    """JAX: a whole step in jax.jit, its state donated."""

    is_jax = True

    def start(self) -> None:
        import os

        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax  # noqa: F401


SUBJECTS: dict[str, type[Torch]] = {
    "torch": Torch,
    "inductor": Inductor,
    "strict": Strict,
    "fused": Fused,
    "compiled": Compiled,
    "whole": Whole,
    "traced": Traced,
    "graph": Graph,
    "xla_lazy": XlaLazy,
    "xla_compiled": XlaCompiled,
    "jax": Jax,
}
OURS = ("strict", "fused", "compiled", "whole", "traced", "graph")
