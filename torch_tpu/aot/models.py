"""What is planned: a model from a Transformers config file, or anything a Python function returns, without its weights.

Models are built on the device "meta" and stand in on the TPU as arrays without values, so that a model of any size takes no
memory. A workload is one step: a training step with AdamW, the prefill of a batch of prompts, or the decoding of one token
for each sequence with a static cache.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
import torch._dynamo

from torch_tpu import _named, errors
from torch_tpu.aot import capture
from torch_tpu.aot.compiled import Compiled
from torch_tpu.aot.utilization import model_flops
from torch_tpu.compile.repeated import can_fold, fold_layers

Mode = Literal["train", "prefill", "decode"]
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Workload:
    """One step of a model on one device."""

    model: str
    """A config file, or "module:function"."""
    mode: Mode = "train"
    batch: int = 1
    """Sequences on each device."""
    seq: int = 2048
    """Tokens of each; in decoding, the length of the cache."""
    dtype: str = "bfloat16"
    """Of the parameters of a config file's model; a function's are as it makes them."""
    recompute: bool = False
    """Keep no activations of a layer but its input, where a config file's model supports that."""
    data_parallel: bool = False
    """Train under DistributedDataParallel on all devices of the topology."""
    unrolled: bool = False
    """In training, compile each layer by itself. By default layers that are alike are one loop, of which the compiler sees
    one layer, unless activations are recomputed."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"there is no mode {self.mode!r}; there are: {', '.join(MODES)}")
        if self.batch < 1 or self.seq < 1:
            raise ValueError(f"batch and seq are at least 1, not {self.batch} and {self.seq}")
        if self.mode != "train" and (self.data_parallel or self.recompute or self.unrolled):
            raise ValueError(f"data_parallel, recompute and unrolled are for training, not for {self.mode}")
        if getattr(torch, self.dtype, None) not in DTYPES:
            raise ValueError(f"parameters are not of dtype {self.dtype!r} but {', '.join(map(str, DTYPES))}")

    @property
    def tokens(self) -> int:
        """That a step handles on each device."""
        return self.batch * (1 if self.mode == "decode" else self.seq)


def trace(workload: Workload, topology: str) -> Compiled:
    """The programs of a workload, with what its model needs by definition where that is known.

    Raises:
        ValueError: the model is not known, or not of a kind that has this mode.
        OSError: its file cannot be read.
        ImportError: its module, or Transformers, is not there.
        NoValueError, FallbackError: as `aot.compile`.
    """
    model, compiled = (_trace_config if _is_config(workload) else _trace_function)(workload, topology)
    known = model_flops(model, workload.seq, workload.mode) if isinstance(model, torch.nn.Module) else None
    sizes = sizes_of(workload)
    tokens = workload.tokens if workload.mode == "decode" or "seq" in sizes else None
    samples = workload.batch if "batch" in sizes else None
    return replace(compiled, name=workload.model, tokens=tokens, samples=samples, model=known)


def sizes_of(workload: Workload) -> set[str]:
    """Which of "batch" and "seq" the model's inputs depend on.

    Raises:
        ValueError, ImportError: as `trace`.
    """
    if _is_config(workload):
        return {"batch", "seq"}
    return {"batch", "seq"} & set(_parameters(_named.function(workload.model)))


def _is_config(workload: Workload) -> bool:
    if Path(workload.model).suffix == ".json":
        return True
    if ":" in workload.model:
        return False
    raise ValueError(f"{workload.model!r} is neither a config file (.json) nor a function, such as my_module:model")


_OFFERED = ("batch", "seq", "mode")


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Those of what is offered that a function takes."""
    try:
        wanted = inspect.signature(function).parameters
        inspect.signature(function).bind(**{name: None for name in _OFFERED if name in wanted})
    except TypeError as error:
        raise ValueError(f"a function to plan is called with any of {', '.join(_OFFERED)}: {error}") from None
    return [name for name in _OFFERED if name in wanted]


def _trace_function(workload: Workload, topology: str) -> tuple[Any, Compiled]:
    if workload.recompute or workload.dtype != Workload.dtype:
        asked = "recompute" if workload.recompute else "dtype"
        raise ValueError(f"{asked} is for config files; {workload.model} makes its model as it is to be")
    function = _named.function(workload.model)
    with torch.device("meta"):
        made = function(**{name: getattr(workload, name) for name in _parameters(function)})
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (None, None)
    if not callable(model) or not isinstance(inputs, (tuple, list, dict)):
        raise ValueError(f"{workload.model} returned no module and its inputs, such as `return model, (x,)`")
    if workload.mode == "train" and not isinstance(model, torch.nn.Module):
        raise ValueError(f"{workload.model} returned a {type(model).__name__}; a training step needs a module")
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (tuple(inputs), {})
    training = {"optimizer": torch.optim.AdamW, "data_parallel": workload.data_parallel}
    options: dict[str, Any] = training if workload.mode == "train" else {}
    return model, capture.compile(cast(Any, model), args, topology, kwargs=kwargs, **options)


def _trace_config(workload: Workload, topology: str) -> tuple[Any, Compiled]:
    model = from_config(workload.model, getattr(torch, workload.dtype))
    if workload.recompute:
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable  # older
        enable()
    make = {"train": _train, "prefill": _prefill, "decode": _decode}[workload.mode]
    positions = getattr(model.config, "max_position_embeddings", None)
    told = f"sequences of {workload.seq} tokens are longer than the {positions} positions that the config file gives"
    too_long = isinstance(positions, int) and 0 < positions < workload.seq
    try:
        with _without_looking_for_packed_sequences():
            compiled = make(model, workload, topology)
    except Exception as error:
        if too_long and not isinstance(error, errors.TpuError):  # such as those of a table of positions
            raise ValueError(f"{told}, and the model does not take them: {error}") from error
        raise
    return model, replace(compiled, notes=(*compiled.notes, told)) if too_long else compiled


def from_config(path: str, dtype: torch.dtype) -> Any:
    """A Transformers model with the weights that its config file describes, on the device "meta".

    Raises:
        ValueError: the file describes no language model that Transformers can build.
        OSError: it cannot be read.
        ImportError: Transformers is not installed.
    """
    content = _read(path)
    try:
        import transformers
    except ImportError as error:
        raise ImportError("config files need Transformers: pip install 'torch_tpu[demo]'") from error
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{path} has the model_type {kind!r}, which Transformers {transformers.__version__} has not")
    name = str((content.get("architectures") or [""])[0])
    named: Any = getattr(transformers, name, None) if name.endswith("ForCausalLM") else None
    made = named or transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(transformers.CONFIG_MAPPING[kind], None)
    if made is None or not (name == made.__name__ or name.endswith("Model") or not name):
        raise ValueError(
            f"{path} is of {name or kind}, no causal language model; plan it as a function, such as my_module:model"
        )
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(content)
        attention = {"attn_implementation": "sdpa"} if made._supports_sdpa else {}
        with torch.device("meta"):
            return made._from_config(config, dtype=dtype, **attention)
    except Exception as error:  # raised again: whatever Transformers raises is about what is in the file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} describes no model that Transformers can build: {reason}") from error


def _read(path: str) -> dict[str, Any]:
    """A config file's content."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no configuration: it holds a {type(content).__name__} where an object should be")
    return content


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.empty(batch, length, dtype=torch.long, device="meta")


def _train(model: Any, workload: Workload, topology: str) -> Compiled:
    tokens = _tokens(workload.batch, workload.seq)
    model.train()
    kwargs = {"input_ids": tokens, "labels": tokens, "use_cache": False}
    options: dict[str, Any] = {"optimizer": torch.optim.AdamW, "data_parallel": workload.data_parallel}
    notes: tuple[str, ...] = ()
    if not workload.unrolled and not workload.recompute and can_fold(model):
        folded = torch.compile(fold_layers(copy.deepcopy(model)), dynamic=False)
        try:
            with torch._dynamo.config.patch(capture.UNLIMITED_RECOMPILES):
                return capture.compile(folded, (), topology, kwargs=kwargs, **options)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split("\n", 1)[0].split())
            notes = (f"the layers are not one loop but unrolled, since PyTorch does not capture that loop: {reason}",)
    return replace(capture.compile(model, (), topology, kwargs=kwargs, **options), notes=notes)


def _prefill(model: Any, workload: Workload, topology: str) -> Compiled:
    """The logits that follow each prompt, and the cache."""
    kwargs = {"input_ids": _tokens(workload.batch, workload.seq), "use_cache": True}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        kwargs["logits_to_keep"] = 1
    return capture.compile(model.eval(), (), topology, kwargs=kwargs)


def _decode(model: Any, workload: Workload, topology: str) -> Compiled:
    """The next token of each sequence, from the last one and a cache of `seq` tokens."""
    import transformers

    taken = inspect.signature(getattr(model, "model", model).forward).parameters
    name = "cache" if "cache" in taken else "past_key_values"
    with capture.device(topology), torch.no_grad():
        on_device = capture.stand_in(model.eval())
        cache = transformers.StaticCache(config=model.config, max_cache_len=workload.seq)

        def step(tokens: torch.Tensor) -> torch.Tensor:
            logits = on_device(input_ids=tokens, use_cache=True, **{name: cache}).logits
            return cast(torch.Tensor, logits[:, -1].argmax(-1))

        return capture.compile(step, (_tokens(workload.batch, 1),), topology)


@torch._dynamo.dont_skip_tracing
def _whole_sequences(position_ids: torch.Tensor) -> None:
    """Which sequence each token belongs to: there is one in a row."""


@contextlib.contextmanager
def _without_looking_for_packed_sequences() -> Iterator[None]:
    """Each sequence is whole, and its mask causal. Transformers would read the positions to find that out, or, where it may
    not, build a mask for sequences of several parts."""
    from transformers import masking_utils

    before: Callable[..., Any] | None = getattr(masking_utils, "find_packed_sequence_indices", None)
    if before is None:
        yield
        return
    masking_utils.find_packed_sequence_indices = _whole_sequences
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = before
