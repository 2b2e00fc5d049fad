"""Answering questions greedily, streamed, and comparing the tokens with the CPU's."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from torch_tpu.demo.modes import Mode, running

QUESTIONS = ("What is the capital of France?", "Explain in one sentence what a compiler does.")
LENGTH = 80
"""The most tokens of a question and its answer together."""
STATIC = {"cache_implementation": "static", "max_length": LENGTH}
"""Options of `generate`: keys and values have their final size from the start, so that each token runs the same
programs, and Transformers compiles the model. It is one size for all questions, whatever their length: with
`max_new_tokens` each would have its own. Without a static cache the answers are the same, and each length is compiled once.
"""


@dataclass(frozen=True)
class Answer:
    """What the model said."""

    question: str
    tokens: list[int]
    text: str
    seconds: float
    """With everything: compiling and reading the question."""
    tokens_per_second: float
    """From the median time between two tokens, so without compiling."""


def make_streamer(tokenizer: Any, times: list[float], *, silent: bool) -> Any:
    """Transformers' own streamer, which prints words as they come, noting when each token came."""
    from transformers import TextStreamer

    class Timed(TextStreamer):
        def put(self, value: Any) -> None:
            times.append(time.perf_counter())
            super().put(value)

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            if not silent:
                super().on_finalized_text(text, stream_end)

    return Timed(tokenizer, skip_prompt=True, skip_special_tokens=True)


def answer(tokenizer: Any, model: Any, question: str, mode: Mode = "compiled", *, silent: bool = False) -> Answer:
    """One answer; printed word by word unless `silent`."""
    messages = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    times: list[float] = []
    streamer = make_streamer(tokenizer, times, silent=silent)
    start = time.perf_counter()
    options = STATIC | {"do_sample": False, "disable_compile": mode != "compiled"}
    with running(mode):
        output = model.generate(**inputs, **options, streamer=streamer)
    tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
    seconds = time.perf_counter() - start
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[1:])]
    return Answer(
        question,
        tokens,
        tokenizer.decode(tokens, skip_special_tokens=True),
        seconds,
        1 / statistics.median(gaps) if gaps else 0.0,
    )


def num_equal(one: list[int], other: list[int]) -> int:
    """How many tokens agree before the first that does not."""
    for place, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return place
    return min(len(one), len(other))


def on_the_cpu(model: Any) -> Any:
    """A copy of a model on PyTorch's CPU device, with the same weights."""
    import copy

    with torch.no_grad():
        return copy.deepcopy(model).to("cpu")
