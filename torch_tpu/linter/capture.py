"""Running a function on a TPU that is not there, and writing down where in Python everything that it runs comes from.

A dispatch mode sees each ATen call and says to the builder of StableHLO where it is (`hlo.placed`), so that the compiler's
own output names Python lines. Calls of the backward pass are those of the forward call that autograd's anomaly mode
remembers. Values that are read are zeros, since nothing is computed, and the place that reads is written down.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from torch_tpu import _plug, aot, errors, settings
from torch_tpu._frames import is_users, users_frame
from torch_tpu.aot.capture import UNLIMITED, stand_in
from torch_tpu.aot.hlo_text import Spot
from torch_tpu.eager import fallback
from torch_tpu.eager.observe import CallWatcher, observers
from torch_tpu.eager.program import Program
from torch_tpu.hlo.core import Place, placed
from torch_tpu.ops import registry, schema
from torch_tpu.ops.registry import Lowering
from torch_tpu.runtime.compile_only import Absent, CompileOnlyClient, Planned
from torch_tpu.stats import counters

MOST_READS = 16
"""After a line has read so many values, it is taken to wait for one that never comes, and the function is stopped."""


@dataclass
class Captured:
    """What a function ran."""

    runs: tuple[Planned, ...] = ()
    """Its programs, in the order they ran."""
    reads: list[tuple[Spot | None, str]] = field(default_factory=list)
    """Where values were read, and what array it was."""
    fallbacks: list[tuple[Spot | None, str, str]] = field(default_factory=list)
    """Operators that ran on the CPU: where, which, and why."""
    shapes: dict[tuple[Spot, str], set[tuple[Any, ...]]] = field(default_factory=dict)
    """The different sizes and dtypes that an operator was called with at a place, which is where it is written: the layers
    of a model share a line of torch.nn."""
    stopped_at: Spot | None = None
    """Where the function waited for a value that never came, or could not go on, if it did."""
    refused: tuple[str, str, str] | None = None
    """What could not run at all, if that is why the function stopped there: what it is, why, and what to do."""
    between: list[tuple[Spot | None, str]] = field(default_factory=list)
    """Calls in compiled graphs that no program can do: where, and which."""


class _Stopped(BaseException):
    """Ends the function; not caught by its own handlers."""


class _Recorder(CallWatcher):
    """Sees the calls, and says where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.captured = Captured()
        self._spot: Spot | None = None
        self._node_spot: Spot | None = None
        """Of the call between a compiled graph's programs that runs."""
        self._failed: tuple[BaseException, Spot | None] | None = None
        """The last error of a call, and where it was."""

    def program_made(self, program: Program) -> None: ...

    def lowered(self, rule: Lowering) -> None: ...

    def node_traced(self, node: Any) -> AbstractContextManager[None]:
        return _at(_spot_of(node), registry.overload_name(node.target))

    @contextlib.contextmanager
    def node_run(self, node: Any) -> Iterator[None]:
        if node.op != "call_function" or node.target is operator.getitem:
            yield
            return
        self._node_spot = _spot_of(node)
        self.captured.between.append((self._node_spot, _called(node)))
        try:
            yield
        finally:
            self._node_spot = None

    def graph_called(self, graph: Any, args: list[Any], call: Callable[[list[Any]], Any]) -> Any:
        _plug.clear_table()
        with _disable_current_modes():
            return call(args)

    def call(self, op: OpOverload, args: Any, kwargs: Any) -> Any:
        name = registry.overload_name(op)
        before, self._spot = self._spot, self._node_spot or _forward_frame() or _user_frame()
        fallbacks = dict(counters.fallbacks)
        num_reads = len(self.captured.reads)
        _plug.clear_table()  # so that the call is traced here, though it was traced elsewhere before
        try:
            with _at(self._spot, name):
                return op(*args, **kwargs)
        except errors.UnsupportedOpError as error:
            self._failed = error, self._spot
            raise
        finally:
            changed = [key for key, count in counters.fallbacks.items() if count != fallbacks.get(key)]
            if changed:
                del self.captured.reads[num_reads:]  # the fallback's own
            self.captured.fallbacks += [(self._spot, key, fallback.reasons.get(key, "")) for key in changed]
            if self._spot is not None and not schema.returns_view(op) and _is_called_by_user():
                self.captured.shapes.setdefault((self._spot, name), set()).add(_described((args, kwargs)))
            self._spot = before

    def stopped_by(self, error: errors.UnsupportedOpError) -> None:
        """The function could not go on after what no program does and the CPU cannot do instead."""
        failed, spot = self._failed or (None, None)
        if failed is not error:
            spot = _last_frame("".join(traceback.format_tb(error.__traceback__)))
        self.captured.stopped_at = spot
        what, *lines = str(error).splitlines()
        labels = {label: text.strip() for label, _, text in (line.strip().partition(":") for line in lines)}
        self.captured.refused = what, labels.get("why", ""), labels.get("do", "")

    def value_read(self, array: Absent, dtype: torch.dtype) -> torch.Tensor:
        """What the device answers where it has no value."""
        shown = f"{str(dtype).removeprefix('torch.')}{list(array.shape)}"
        spot = self._spot or _user_frame()
        self.captured.reads.append((spot, shown))
        if sum(other == spot for other, _ in self.captured.reads) > MOST_READS:
            self.captured.stopped_at = spot
            raise _Stopped
        return torch.zeros(array.shape, dtype=dtype)


def capture(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], topology: str
) -> tuple[Captured, CompileOnlyClient]:
    """Runs `function(*args, **kwargs)` once on a device that only compiles.

    Args:
        function: a module, which is called without gradients, or a function. Modules and tensors among the arguments are
            replaced by ones on the device.

    Raises:
        ValueError: there is no such topology.
        PlatformError: the TPU compiler is not installed.
    """
    recorder = _Recorder()
    options: dict[str, Any] = {
        "fallback": "count", "eager_mode": "fused", "fuse_least": UNLIMITED, "fuse_most": UNLIMITED,
        "fuse_bytes": UNLIMITED**2,
    }  # fmt: skip
    with aot.device(topology) as client, settings.override(**options):
        is_module = isinstance(function, torch.nn.Module)
        target = torch.no_grad()(stand_in(function)) if is_module else function
        given, named = stand_in(list(args)), stand_in(dict(kwargs))
        _plug.flush()
        client.started.clear()
        client.assume = recorder.value_read
        observers.append(recorder)
        try:
            with contextlib.suppress(_Stopped), _remembering_forward(), recorder:
                answer = target(*given, **named)
                _plug.flush()  # with the answer alive: it is what the last program returns
                del answer
            _plug.flush()
        except errors.UnsupportedOpError as error:  # which keeps what the function has made alive
            recorder.stopped_by(error)
            _plug.flush()
        finally:
            observers.remove(recorder)
            client.assume = None
        recorder.captured.runs = tuple(client.started)
        client.started.clear()
        _plug.clear_table()  # what was traced here has places in its text
    return recorder.captured, client


@contextlib.contextmanager
def _remembering_forward() -> Iterator[None]:
    """Autograd's nodes know the lines that made them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            yield


def _at(spot: Spot | None, name: str) -> AbstractContextManager[None]:
    return placed(None if spot is None else Place(name, spot.file, spot.line, spot.column))


def _user_frame() -> Spot | None:
    """The innermost frame outside torch and torch_tpu."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            column = 0
            for index, positions in enumerate(code.co_positions()):
                if index == frame.f_lasti // 2:
                    column = (positions[2] or 0) + 1
                    break
            return Spot(code.co_filename, frame.f_lineno, column)
        frame = frame.f_back  # type: ignore[assignment]
    return None


_SHARED = tuple(
    os.path.join(os.path.dirname(torch.__file__ or ""), *parts) + os.sep for parts in (("nn", "modules"), ("optim",))
)
"""What runs for many layers and parameters on a single line of the user's."""


def _is_called_by_user() -> bool:
    """Whether the call is for what is written in the user's frame, and not for each layer or parameter of a model."""
    frame = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_SHARED):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _forward_frame() -> Spot | None:
    """In the backward pass, the user's frame that made the node of autograd's graph which runs."""
    node = torch._C._current_autograd_node()
    remembered = node.metadata.get("traceback_") if node is not None else None
    return _last_frame("".join(remembered)) if remembered else None


def _spot_of(node: Any) -> Spot | None:
    """The line that a call of a compiled graph comes from."""
    return _last_frame(str(node.meta.get("stack_trace") or ""))


def _called(node: Any) -> str:
    """The operator that a node calls, by itself or through a higher-order operator."""
    target = next((item for item in (node.target, *node.args) if isinstance(item, OpOverload)), None)
    return str(node.target) if target is None else registry.overload_name(target)


def _last_frame(trace: str) -> Spot | None:
    """The innermost frame of the user's in the text of a traceback."""
    found = users_frame(trace)
    return None if found is None else Spot(found[0], found[1], 0)


def _described(value: Any) -> tuple[Any, ...]:
    """The sizes and dtypes of the tensors in an argument list."""
    if isinstance(value, torch.Tensor):
        return ((tuple(value.shape), value.dtype),) if value.device.type == "tpu" else ()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return tuple(part for item in items for part in _described(item))
