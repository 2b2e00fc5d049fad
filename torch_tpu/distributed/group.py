"""The process group of device tensors: what `torch.distributed` calls, as programs on XLA.

A collective is started like any program and returns at once; whoever reads its results waits for them, so `wait()` of
its work has nothing to do. Tensors on the CPU, barriers and messages between two processes go through PyTorch's gloo.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ProcessGroupGloo, ReduceOp

from torch_tpu.device import events
from torch_tpu.distributed import arrays
from torch_tpu.distributed.programs import Kind, Programs, Reduction
from torch_tpu.ops.registry import Spec
from torch_tpu.runtime import platform

Tensors = list[torch.Tensor]

_REDUCTIONS: tuple[tuple[Any, Reduction], ...] = (
    (ReduceOp.SUM, "sum"), (ReduceOp.AVG, "avg"), (ReduceOp.PRODUCT, "product"), (ReduceOp.MIN, "min"),
    (ReduceOp.MAX, "max"), (ReduceOp.BAND, "band"), (ReduceOp.BOR, "bor"), (ReduceOp.BXOR, "bxor"),
)  # fmt: skip


class Started(dist.Work):
    """The work of a collective whose results are in their tensors already, as values still to be computed."""

    def __init__(self, results: Any):
        super().__init__()
        self._results = results

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> Any:
        return self._results

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._results)
        return future


class Message(dist.Work):
    """A message to or from another process, by way of the host's memory.

    Args:
        target: where to put what was received, once it is there; None where it is sent.
    """

    def __init__(self, work: dist.Work, host: torch.Tensor, target: torch.Tensor | None):
        super().__init__()
        self._work, self._host, self._target = work, host, target

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._work.wait() if timeout is None else self._work.wait(timeout)
        if self._target is not None:
            with torch.no_grad():
                self._target.copy_(self._host)
            self._target = None
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def _source_rank(self) -> int:
        return self._work._source_rank()


def _collective(body: Callable[..., Any]) -> Callable[..., Any]:
    """A method that starts programs and returns what it wrote, as one that returns work; gloo serves CPU tensors."""

    @functools.wraps(body)
    def start(self: TpuProcessGroup, *args: Any, **kwargs: Any) -> dist.Work:
        devices = {tensor.device.type for tensor in _tensors(args)}
        if devices == {"cpu"}:
            return getattr(self.host, body.__name__)(*args, **kwargs)
        if devices - {"tpu"}:
            raise ValueError(f"{body.__name__}: all tensors must be on tpu or all on cpu, not on {sorted(devices)}")
        with torch.no_grad():
            return Started(body(self, *args, **kwargs))

    return start


def _tensors(value: Any) -> Tensors:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, (list, tuple)) else []


class TpuProcessGroup(ProcessGroup):
    """A group of processes with a device each.

    Args:
        rank: this process's place in the group.
        processes: its members, as the job numbers them.
        timeout: of what goes through gloo. Collectives of device tensors have none; they fail when a member dies.
        host: what serves CPU tensors; by default gloo.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        processes: Sequence[int],
        timeout: timedelta,
        host: Any = None,
    ):
        super().__init__(rank, len(processes))  # type: ignore[call-arg]
        prefix = dist.PrefixStore("host/", store)
        self.host: Any = host or ProcessGroupGloo(prefix, rank, len(processes), timeout)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, self.host)
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._rank, self._size = rank, len(processes)
        self._programs = Programs(tuple(processes))

    def getBackendName(self) -> str:
        return "tpu_dist"

    # ---------------------------------------------------------------------------------------------- all of the group

    @_collective
    def allreduce(self, tensors: Tensors, opts: Any) -> Tensors:
        for tensor in tensors:
            self._reduce(tensor, opts.reduceOp, to=[tensor])
        return tensors

    @_collective
    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Tensors:
        for tensor in tensors:
            self._reduce(tensor, opts.reduceOp, to=[tensor])
        return tensors

    @_collective
    def reduce(self, tensors: Tensors, opts: Any) -> Tensors:
        for tensor in tensors:
            self._reduce(tensor, opts.reduceOp, to=[tensor] if opts.rootRank == self._rank else [])
        return tensors

    @_collective
    def broadcast(self, tensors: Tensors, opts: Any) -> Tensors:
        for tensor in tensors:
            self._broadcast(tensor, tensor, opts.rootRank)
        return tensors

    @_collective
    def allgather(self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None) -> list[Tensors]:
        for outputs, tensor in zip(output_tensors, input_tensors, strict=True):
            self._expect(
                "all_gather", len(outputs) == self._size, f"one output for each of {self._size} ranks", outputs
            )
            self._expect("all_gather", _same(outputs[self._rank], tensor), "an output like the input", outputs, tensor)
            if all(_same(output, tensor) for output in outputs):
                self._run("all_gather", [tensor], outputs, outputs)
            else:
                for source, output in enumerate(outputs):
                    self._broadcast(tensor if source == self._rank else output, output, source)
        return output_tensors

    @_collective
    def allgather_coalesced(self, output_lists: list[Tensors], input_list: Tensors, opts: Any = None) -> list[Tensors]:
        for place, tensor in enumerate(input_list):
            outputs = [output[place] for output in output_lists]
            self._run("all_gather", [tensor], outputs, outputs)
        return output_lists

    @_collective
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> torch.Tensor:
        self._expect(
            "all_gather_into_tensor",
            output.numel() == input.numel() * self._size and output.dtype is input.dtype,
            f"an output of the input's dtype and {self._size} times its elements",
            output,
            input,
        )
        self._run("all_gather", [input], [output], [output])
        return output

    @_collective
    def all_gather_single_coalesced(self, output_lists: Tensors, input_list: Tensors, opts: Any = None) -> Tensors:
        for output, tensor in zip(output_lists, input_list, strict=True):
            self.all_gather_single(output, tensor)
        return output_lists

    @_collective
    def reduce_scatter(self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any) -> Tensors:
        for output, inputs in zip(output_tensors, input_tensors, strict=True):
            self._expect(
                "reduce_scatter", len(inputs) == self._size, f"one input for each of {self._size} ranks", inputs
            )
            self._expect(
                "reduce_scatter", _same(inputs[self._rank], output), "an output like its input", inputs, output
            )
            if all(_same(tensor, output) for tensor in inputs):
                self._run("reduce_scatter", inputs, [output], [output], _reduction(opts.reduceOp))
            else:
                for rank, tensor in enumerate(inputs):
                    self._reduce(tensor, opts.reduceOp, to=[output] if rank == self._rank else [])
        return output_tensors

    @_collective
    def reduce_scatter_single(self, outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: Any) -> torch.Tensor:
        self._expect(
            "reduce_scatter_tensor",
            inputTensor.numel() == outputTensor.numel() * self._size and outputTensor.dtype is inputTensor.dtype,
            f"an input of the output's dtype and {self._size} times its elements",
            outputTensor,
            inputTensor,
        )
        self._run("reduce_scatter", [inputTensor], [outputTensor], [outputTensor], _reduction(opts.reduceOp))
        return outputTensor

    @_collective
    def reduce_scatter_single_coalesced(self, outputTensors: Tensors, inputTensors: Tensors, opts: Any) -> Tensors:
        for output, tensor in zip(outputTensors, inputTensors, strict=True):
            self.reduce_scatter_single(output, tensor, opts)
        return outputTensors

    @_collective
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> torch.Tensor:
        if output_split_sizes or input_split_sizes:
            even = [input.shape[0] // self._size] * self._size
            self._exchange(
                list(output.split(list(output_split_sizes) or [output.shape[0] // self._size] * self._size)),
                list(input.split(list(input_split_sizes) or even)),
            )
            return output
        self._expect(
            "all_to_all_single",
            output.numel() == input.numel() and output.dtype is input.dtype and not input.shape[0] % self._size,
            f"an output like the input, and a first dimension that divides by {self._size}",
            output,
            input,
        )
        self._run("all_to_all", [input], [output], [output])
        return output

    @_collective
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Tensors:
        count = len(input_tensors) == len(output_tensors) == self._size
        self._expect("all_to_all", count, f"{self._size} inputs and outputs", output_tensors, input_tensors)
        self._exchange(output_tensors, input_tensors)
        return output_tensors

    @_collective
    def gather(self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any) -> Tensors:
        (tensor,) = input_tensors
        outputs = output_tensors[0] if opts.rootRank == self._rank else []
        fits = not outputs or (len(outputs) == self._size and all(_same(output, tensor) for output in outputs))
        self._expect("gather", fits, f"{self._size} outputs like the input", outputs, tensor)
        self._run("all_gather", [tensor], [tensor] * self._size, outputs)
        return outputs

    @_collective
    def scatter(self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any) -> Tensors:
        (output,) = output_tensors
        inputs = input_tensors[0] if opts.rootRank == self._rank else [output] * self._size
        fits = len(inputs) == self._size and all(_same(tensor, output) for tensor in inputs)
        self._expect("scatter", fits, f"{self._size} inputs like the output", inputs, output)
        self._run("scatter", inputs, [output], [output], opts.rootRank)
        return output_tensors

    # The names that these had in earlier versions of PyTorch, and that its C++ code still looks for.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def shutdown(self) -> None:
        self.host.shutdown()
        job = platform.job()
        if job is not None and self._size == len(job.ranks):
            job.finished = True

    # ------------------------------------------------------------------------------------------------ through the host

    def barrier(self, opts: Any = None) -> dist.Work:
        """Waits for this process's device; the work is done when every member has come here."""
        events.synchronize()
        return self.host.barrier(dist.BarrierOptions() if opts is None else opts)

    def send(self, tensors: Tensors, dstRank: int, tag: int) -> dist.Work:
        (tensor,) = tensors
        host = tensor.detach().cpu().contiguous()
        return Message(self.host.send([host], dstRank, tag), host, None)

    def recv(self, tensors: Tensors, srcRank: int, tag: int) -> dist.Work:
        (tensor,) = tensors
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        return Message(self.host.recv([host], srcRank, tag), host, tensor)

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        (tensor,) = tensors
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        return Message(self.host.recv_anysource([host], tag), host, tensor)

    # -------------------------------------------------------------------------------------------------------- the parts

    def _run(self, kind: Kind, operands: Tensors, results: Tensors, to: Tensors, detail: str | int = "") -> None:
        """Starts a program.

        Args:
            results: tensors of the shapes and dtypes that it returns.
            to: where to write them; nowhere if empty.
        """
        if not any(tensor.numel() for tensor in results):
            return
        specs = [arrays.spec(arrays.plain(tensor)) for tensor in results]
        given: list[tuple[Any, Spec]] = [arrays.read(arrays.plain(tensor)) for tensor in operands]
        for tensor, array in zip(to, self._programs.run(kind, given, specs, detail)):
            arrays.write(arrays.plain(tensor), array)

    def _reduce(self, tensor: torch.Tensor, op: Any, to: Tensors) -> None:
        reduction = _reduction(op)
        if tensor.is_complex() and reduction not in ("sum", "avg"):
            raise TypeError(f"ReduceOp.{reduction.upper()} is not defined for {tensor.dtype}")
        self._run("all_reduce", [tensor], [tensor], to, reduction)

    def _broadcast(self, tensor: torch.Tensor, to: torch.Tensor, source: int) -> None:
        self._run("broadcast", [tensor], [tensor], [to], source)

    def _exchange(self, outputs: Tensors, inputs: Tensors) -> None:
        """All to all of parts that may differ in size: the host agrees on the largest, and smaller ones are padded."""
        longest = torch.tensor([max(tensor.numel() for tensor in [*outputs, *inputs])])
        options: Any = dist.AllreduceOptions()
        options.reduceOp = ReduceOp.MAX
        self.host.allreduce([longest], options).wait()
        # Powers of two, so that sizes that change at every step need few programs.
        length = 1 << max(int(longest) - 1, 0).bit_length()
        sent = torch.zeros(self._size, length, dtype=inputs[0].dtype, device=inputs[0].device)
        for row, tensor in zip(sent, inputs, strict=True):
            row[: tensor.numel()].copy_(tensor.reshape(-1))
        received = torch.empty_like(sent)
        self._run("all_to_all", [sent], [received], [received])
        for row, tensor in zip(received, outputs, strict=True):
            tensor.copy_(row[: tensor.numel()].view(tensor.shape))

    def _expect(self, name: str, holds: bool, wanted: str, *given: Any) -> None:
        if not holds:
            found = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in _tensors(given))
            raise ValueError(f"{name} in a group of {self._size} needs {wanted}; got {found}")


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and x.dtype is y.dtype


def _reduction(op: Any) -> Reduction:
    for known, name in _REDUCTIONS:
        if op == known:
            return name
    raise NotImplementedError(f"tpu_dist has no {op}; it has {', '.join(name.upper() for _, name in _REDUCTIONS)}")
