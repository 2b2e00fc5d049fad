"""The analysis of source files: what each rule finds, what it leaves alone, and the tables of other devices' APIs.

The scripts in tests/data/lint say in comments (`# expect TPU001`) what is to be found in a line, and nothing else is.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torch_tpu.linter import apis
from torch_tpu.linter.rules import RULES, Selection
from torch_tpu.linter.source import check_paths, check_text

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "lint"
HEAD = "import numpy as np\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def found(text: str, **options) -> list[str]:
    return [finding.rule for finding in check_text(HEAD + text, **options)]


def in_loop(line: str, before: str = "") -> list[str]:
    """What is found in a line of a training loop, where x and loss are tensors on the device."""
    text = f"""
def train(model, loader, x: torch.Tensor):
    {before or "pass"}
    for step, batch in enumerate(loader):
        loss = F.mse_loss(model(x), x)
        loss.backward()
        {line}
"""
    return found(text)


def in_forward(line: str) -> list[str]:
    return found(f"class M(nn.Module):\n    def forward(self, x: torch.Tensor, n: int):\n        {line}\n")


@pytest.mark.parametrize("script", ["cuda_training.py", "xla_training.py", "clean_training.py"])
def test_scripts_have_the_findings_that_they_announce(script):
    text = (DATA / script).read_text()
    expected = [
        (number, rule)
        for number, line in enumerate(text.splitlines(), start=1)
        if (comment := re.search(r"# expect (.*)", line))
        for rule in comment[1].split()
    ]
    assert sorted((finding.line, finding.rule) for finding in check_text(text)) == expected
    assert bool(expected) == (script != "clean_training.py")


@pytest.mark.parametrize(
    "line",
    [
        "loss.item()",
        "total = total + loss.detach().cpu().numpy()",
        "float(loss)",
        "int((x > 0).sum())",
        "x.tolist()",
        "x.to('cpu')",
        "torch.equal(x, x)",
        "[part.item() for part in x]",
    ],
)
def test_values_that_are_read_in_a_loop(line):
    assert in_loop(line) == ["TPU001"]


@pytest.mark.parametrize(
    "line",
    [
        "if step % 100 == 0: print(loss.item())",
        "if step == 10: print(loss.item())",
        "if step > 3: raise ValueError(loss.item())",
        "float(x.shape[0]); x.size(0); len(x); x.numel()",
        "x.is_contiguous() and x.dim() == 2",
        "np.zeros(3)[0].item(); np.zeros(3).tolist()",
        "torch.ones(3).sum().item()",  # a tensor on the host
        "torch.tensor(step).item()",
        "print(step, x.shape, 'loss')",
        "import logging; logging.info(f'{step}: {x.shape}'); logging.info('%s', x.dtype)",
        "print('%s' % (x.shape,) + str(step)); cache.write(loss); torch.log(loss)",
        "loss = loss if x is None else x",
        "x[step]; x[:, 0]; x[x.shape[0] - 1]",
        "x[x > 0] = 0",
        "batch['size'].item()",  # comes from a loader, on the host
        "batch.size.item()",
        "(batch > 0).long()",
    ],
)
def test_what_may_be_in_a_loop(line):
    assert in_loop(line, "loader = torch.utils.data.DataLoader(loader)") == []


PROOFS = (
    "out = model(**batch); loss = out.loss",
    "out = model(**batch); loss = out['loss']",
    "loss = model(batch)[0]; loss.backward()",
    "loss, logits = self.model(batch); (loss / 4).backward()",
    "loss = step_of(batch)\n        if scaler: scaler.scale(loss).backward()\n        else: loss.mean().backward()",
    "loss = step_of(batch); accelerator.backward(loss)",
    "loss = step_of(batch); total = total + loss.detach()",
)


@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize(
    "rule, line",
    [
        ("TPU001", "float(loss)"),
        ("TPU001", "loss.numpy()"),
        ("TPU002", "print(loss)"),
        ("TPU002", "print(f'{loss}')"),
        ("TPU002", "logger.info('%s', loss)"),
        ("TPU003", "if loss > 3: step = 1"),
    ],
)
def test_values_that_a_line_shows_to_be_tensors(proof, rule, line):
    text = (
        f"def train(self, model, loader):\n    for step, batch in enumerate(loader):\n        {proof}\n        {line}\n"
    )
    assert found(text) == [rule]


def test_a_line_before_the_proof_is_of_the_tensor_too():
    text = "def f(model, batches):\n  for x in batches:\n    loss = step_of(x)\n    print(loss)\n    loss.backward()\n"
    assert found(text) == ["TPU002"]


@pytest.mark.parametrize(
    "line",
    [
        "args = parser.parse_args(); print(args.loss); print(config(batch).loss)",
        "value = step_of(batch); value.backward(); value = reduced(value); print(value); float(value)",
        "value = step_of(batch)\n        print(value)\n        if isinstance(value, torch.Tensor): value.backward()",
        "gradient = layer.backward(gradient); print(gradient)",
        "out = model(batch); print(out.loss.shape, out.name)",
    ],
)
def test_what_no_line_shows_to_be_a_tensor(line):
    assert in_loop(line) == []


def test_collections_may_be_copied_once():
    line = "state = {name: value.cpu() for name, value in model.state_dict().items()}"
    assert found(f"def save(model):\n    {line}\n") == []
    assert in_loop(line) == ["TPU001"]


def test_an_outer_loop_may_read_and_the_inner_one_may_not():
    text = """
def train(model, loader, x: torch.Tensor):
    for epoch in range(100):
        for batch in loader:
            loss = F.mse_loss(model(x), x)
            loss.backward()
        print(loss.item())
"""
    assert found(text) == []
    assert found(text.replace("        print", "            print")) == ["TPU001"]


def test_functions_that_a_loop_calls_run_in_every_step():
    text = """
def step(model, x: torch.Tensor):
    return model(x).sum().item()

def train(model, x):
    for _ in range(100):
        step(model, x)
"""
    (finding,) = check_text(HEAD + text)
    assert finding.rule == "TPU001" and "in step, which a loop calls" in finding.reason
    assert found(text.replace("for _ in range(100):", "if True:")) == []


def test_methods_that_forward_calls_run_in_every_step():
    text = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.look(self.layer(x))

    def look(self, x):
        return float(self.scale.sum())
"""
    (finding,) = check_text(HEAD + text)
    assert finding.rule == "TPU001" and finding.reason.startswith("float(tensor) waits for the device in look")


@pytest.mark.parametrize(
    "rule, line",
    [
        ("TPU002", "print(loss)"),
        ("TPU002", "print(f'loss {loss}')"),
        ("TPU002", "logger.info(loss)"),
        ("TPU002", "import logging; logging.info(f'loss {loss}')"),
        ("TPU002", "import logging as log; log.warning('%d: %s', step, loss)"),
        ("TPU002", "from logging import info; info(f'{step}: {loss:.3f}')"),
        ("TPU002", "from loguru import logger; logger.info('{}', loss)"),
        ("TPU002", "print('loss %s' % loss)"),
        ("TPU002", "print('{}: {x}'.format(step, x=loss))"),
        ("TPU002", "print('loss ' + str(loss))"),
        ("TPU002", "file.write(f'{loss}')"),
        ("TPU003", "if loss > 3: x = x + 1"),
        ("TPU003", "assert (x > 0).all()"),
        ("TPU003", "y = 1 if loss > 3 else 2"),
        ("TPU003", "while not (x > 0).all(): x = x + 1"),
        ("TPU004", "x = torch.cat([x, x[:, :1]], dim=1)"),
        ("TPU004", "x = torch.cat((x[-1:], x))"),
        ("TPU005", "x.nonzero()"),
        ("TPU005", "torch.masked_select(x, x > 0)"),
        ("TPU005", "x[x > 0].sum()"),
        ("TPU005", "torch.where(x > 0)"),
        ("TPU005", "F.one_hot(x)"),
        ("TPU006", "y = torch.tensor([1.0, 2.0], device='tpu')"),
        ("TPU007", "y = torch.zeros(3).to(x.device)"),
        ("TPU030", "x.double()"),
        ("TPU030", "torch.zeros(3, dtype=torch.float64, device='tpu')"),
        ("TPU030", "y = torch.ones(3, dtype=torch.float64); y.to('tpu')"),
        ("TPU030", "y = torch.randn(3).double() * 2; y[0].to(x.device)"),
        ("TPU030", "y = torch.ones(3, dtype=torch.complex128).sum(); y.to(device=x.device)"),
        ("TPU031", "torch.zeros(10, dtype=torch.int64, device='tpu')"),
        ("TPU031", "torch.ones((4, 128), dtype=torch.long, device=x.device)"),
        ("TPU031", "(x > 0).long()"),
        ("TPU031", "(x > 0).long().sum()"),
        ("TPU031", "(x > 0).to(torch.long)"),
        ("TPU031", "y = torch.arange(x.shape[0], dtype=torch.long, device=x.device)"),
        ("TPU031", "y = torch.arange(x.shape[0], dtype=torch.int64, device=x.device)"),
    ],
)
def test_rules_for_loops(rule, line):
    assert in_loop(line) == [rule]


@pytest.mark.parametrize(
    "line",
    [
        "y = torch.cat([x, loss[None]])",
        "x = x * 2; y = torch.stack([x, x])",
        "torch.where(x > 0, x, 0)",
        "F.one_hot(x, 10); F.one_hot(x, num_classes=10)",
        "torch.bincount(x, minlength=10)",
        "y = torch.tensor([step], device='tpu')",
        "torch.zeros(3, device=x.device)",
        "torch.zeros(3).double()",
        "y = torch.ones(3, dtype=torch.float64); y.float().to('tpu')",
        "y = torch.ones(3, dtype=torch.float64); y.to('tpu', torch.float32)",
        "y = torch.ones(3, dtype=torch.float64); (y > 2).to(x.device); y.to('cpu'); y.argmax().to('tpu')",
        "x.long()",
        "x[(x > 0).long()]",
        "x.gather(0, (x > 0).long().unsqueeze(0))",
        "y = (x > 0).long(); F.cross_entropy(x, y)",
        "y = torch.arange(x.shape[0], dtype=torch.long, device=x.device); x[y, 0]",
        "torch.arange(8, dtype=torch.long, device=x.device)",
    ],
)
def test_what_is_no_fault_in_loops(line):
    assert in_loop(line) == []


def test_int64_in_what_a_loop_calls():
    """Whether or not it is known that the parameter is a tensor."""
    text = """
def helper(x):
    mask = torch.arange(x.shape[0], dtype=torch.long, device=x.device) < 3
    return (x > 0).long().sum() + mask

def train(model, loader):
    for batch in loader:
        model(batch).backward()
        helper(batch)
"""
    assert found(text) == ["TPU031", "TPU031"]


def test_growth_that_starts_anew_in_each_turn_is_none():
    assert found("def f(x: torch.Tensor):\n  for i in range(99):\n    y = x\n    y = torch.cat([y, x])\n") == []
    assert found("def f(x: torch.Tensor):\n  for y in x:\n    y = torch.cat([y, x])\n") == []
    assert found("def f(x: torch.Tensor):\n  y = x\n  for i in range(99):\n    y = torch.cat([y, x])\n") == ["TPU004"]
    cache = "c = None\nfor i in range(99):\n  k = torch.ones(1, 8, device='tpu')\n  c = k if c is None else torch.cat((c, k))\n"
    assert found(cache) == ["TPU004"]


@pytest.mark.parametrize(
    "line",
    [
        "past = (torch.cat([past[0], x], 1),)",
        "past, y = torch.cat([past, x], 1), x * 2",
        "past[0] = torch.cat([past[0], x], 1)",
        "past = (torch.cat([past[0], x], 1), past[1]) if step else past",
    ],
)
def test_growth_within_tuples(line):
    assert found(f"def f(x: torch.Tensor, past):\n  for step in range(99):\n    {line}\n") == ["TPU004"]


def test_slots_of_a_list_that_grow_once_are_no_growth():
    line = "parts[i] = torch.cat([parts[i], x])"
    assert found(f"def f(x: torch.Tensor, parts):\n  for i in range(99):\n    {line}\n") == []


@pytest.mark.parametrize(
    "lines, count",
    [
        ("k = torch.cat([cache, k], dim=1); return k", 1),
        ("k = torch.cat([past[0], k], dim=1); present = (k, k); k = k * 2; return x, present", 1),
        ("k = torch.cat([cache, k], dim=1); self.cache = k; return x", 1),
        ("self.k = torch.cat([self.k, k], 1); return x", 1),
        ("k = torch.cat([cache, k], dim=1); k = self.conv(k); return k, x", 0),  # a fixed part is kept
        ("k = torch.cat([cache, k], dim=1); return self.conv(k), k[:, -3:]", 0),
        ("x = torch.cat([x, k], dim=1); return x", 0),
    ],
)
def test_caches_that_grow_in_forward(lines, count):
    head = "class M(nn.Module):\n  def forward(self, x: torch.Tensor, k: torch.Tensor, cache=None, past=None):\n    "
    assert found(head + lines.replace("; ", "\n    ") + "\n") == ["TPU004"] * count


@pytest.mark.parametrize(
    "text, count",
    [
        ("model.generate(ids, max_new_tokens=20)", 1),
        ("model.generate(**inputs, max_length=20, use_cache=True)", 1),
        ("model.generate(ids, cache_implementation='dynamic')", 1),
        ("from transformers import DynamicCache\ncache = DynamicCache()", 1),
        ("model.generate(ids, max_new_tokens=20, cache_implementation='static')", 0),
        ("from transformers import StaticCache\nmodel.generate(ids, max_length=9, past_key_values=StaticCache(c))", 0),
        ("model.generation_config.cache_implementation = 'static'\nmodel.generate(ids, max_new_tokens=20)", 0),
        ("model.generate(ids, max_new_tokens=20, **generation_kwargs)", 0),
        ("generator.generate(3)", 0),
        ("def generate(ids, max_length): pass\ngenerate(ids, max_length=20)", 0),
    ],
)
def test_caches_of_transformers(text, count):
    assert found(text + "\n") == ["TPU004"] * count


@pytest.mark.parametrize("rule", ["TPU003", "TPU005"])
def test_forward_is_a_step(rule):
    line = {"TPU003": "return x if x.sum() > 0 else -x", "TPU005": "return x[x > n]"}[rule]
    assert in_forward(line) == [rule]
    assert found(f"def helper(x: torch.Tensor, n: int):\n    {line}\n") == []


@pytest.mark.parametrize(
    "rule, text",
    [
        ("TPU010", "torch.cuda.synchronize()"),
        ("TPU010", "from torch.cuda import amp\nwith amp.autocast(): pass"),
        ("TPU010", "model = nn.Linear(1, 1)\nmodel.cuda()"),
        ("TPU010", "cuda = torch.cuda.nvtx\n"),
        ("TPU011", "torch.zeros(3, device='cuda')"),
        ("TPU011", "device = 'cuda:1'"),
        ("TPU011", "def f(device='cuda'): pass"),
        ("TPU011", "rank = 0\nx = torch.zeros(3).to(f'cuda:{rank}')"),
        ("TPU011", "device = 'cuda' if torch.cuda.is_available() else 'cpu'"),
        ("TPU011", "if torch.cuda.is_available():\n  device = 'cuda'\nelse:\n  device = 'cpu'"),
        ("TPU012", "import triton.language as tl"),
        ("TPU012", "from xformers.ops import memory_efficient_attention"),
        ("TPU013", "torch.backends.cudnn.deterministic = True"),
        ("TPU013", "from torch.backends import cudnn\ncudnn.enabled, x = False, 1"),
        ("TPU013", "torch.backends.cuda.enable_flash_sdp(False)"),
        ("TPU013", "torch.backends.cuda.preferred_linalg_library('magma')"),
        ("TPU013", "with torch.backends.cudnn.flags(enabled=False): pass"),
        ("TPU013", "import os\nos.environ.setdefault('CUDA_VISIBLE_DEVICES', '0')"),
        ("TPU013", "torch.compile(print, backend='inductor')"),
        ("TPU013", "load(attn_implementation='flash_attention_2')"),
        ("TPU014", "torch.distributed.init_process_group('nccl')"),
        ("TPU015", "x = torch.zeros(3).to(torch.float16)"),
        ("TPU015", "load(torch_dtype='float16')"),
        ("TPU015", "scaler = torch.amp.GradScaler()"),
        ("TPU030", "torch.ones(3, dtype=torch.float64).to('tpu')"),
        ("TPU030", "torch.set_default_dtype(torch.float64)"),
        ("TPU040", "nn.MultiheadAttention(768, 12)"),
        ("TPU040", "from transformers import LlamaConfig\nLlamaConfig(hidden_size=64 * 12, num_attention_heads=12)"),
        ("TPU040", "q = x.view(2, length, 8, 512 // 8).transpose(1, 2)"),
        ("TPU040", "width, heads = 768, 12\ndef f(x):\n  return x.view(2, 4, heads, width // heads)"),
        ("TPU040", "q, k, v = x.reshape((b, t, 3, 8, 64)).permute(2, 0, 3, 1, 4)"),
        ("TPU040", "q, k, v = x.view(b, t, 3, 8, 64).unbind(2)"),
        (
            "TPU040",
            "class A(nn.Module):\n  def __init__(self):\n    self.width = 64\n"
            "  def forward(self, x):\n    return x.view(1, 2, 8, self.width).transpose(1, 2)",
        ),
    ],
)
def test_other_devices(rule, text):
    assert found(text + "\n") == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "if torch.cuda.is_available():\n  torch.cuda.empty_cache()",
        "if not torch.cuda.is_available():\n  pass\nelse:\n  torch.cuda.empty_cache()",
        "def f():\n  if not torch.cuda.is_available():\n    return\n  torch.cuda.empty_cache()",
        "def f(x):\n  if x.is_cuda:\n    x = x.cuda()",
        "def f(device):\n  if device.type == 'cuda':\n    torch.cuda.synchronize()",
        "device = 'tpu' if torch.tpu.is_available() else 'cuda'",
        "device = torch.accelerator.current_accelerator() or 'cuda'",
        "parser.add_argument('--device', choices=['cuda', 'cpu'])",
        "try:\n  import flash_attn\nexcept ImportError:\n  flash_attn = None",
        "from transformers.utils import is_flash_attn_2_available\nif is_flash_attn_2_available():\n  import flash_attn",
        "names = {'cuda': 1}\nif 'cuda' in names: pass",
        "DTYPES = (torch.float16, torch.bfloat16)",
        "if x.dtype == torch.float16: pass",
        "nn.MultiheadAttention(1024, 8)",
        "nn.MultiheadAttention(width, heads)",
        "x.view(2, length, 4, 128).transpose(1, 2)",
        "x.view(2, length, 8, width // 8).transpose(1, 2)",
        "x.view(2, length, 8, 1024 // 8)",
        "x.view(2, 8, 512 // 8)  # groups of features",
        "x.view(2, 16, 16, 64).permute(0, 3, 1, 2)  # an image",
        "torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, torch.backends.cudnn.enabled)",
        "old = torch.backends.cuda.matmul.allow_tf32",
        "print(torch.backends.cudnn.version(), torch.backends.cuda.flash_sdp_enabled())",
        "torch.backends.cuda.preferred_linalg_library()",
        "torch.compile(print, backend='tpu')",
        "torch.distributed.init_process_group()",
        "import torch_xla_helper",
    ],
)
def test_what_says_nothing_against_a_tpu(text):
    assert found(text + "\n") == []


def test_names_are_followed_through_scopes():
    assert found("def f(torch):\n    torch.cuda.synchronize()\n") == []
    assert found("def f():\n    import torch.cuda as c\n    c.synchronize()\n") == ["TPU010"]
    assert found("class cuda:\n    pass\ncuda.synchronize()\n") == []


def test_imports_that_depend_on_a_condition_are_known():
    text = "from transformers.utils import is_torch_available, is_flash_attn_2_available\n"
    text += "if is_torch_available():\n    import torch as t\nif is_flash_attn_2_available():\n    import flash_attn\n"
    assert found(text + "t.cuda.synchronize()\n") == ["TPU010"]
    assert found(text + "flash_attn.flash_attn_func()\n") == []


def test_a_finding_says_where_and_what_to_do():
    (finding,) = check_text("import torch_xla.core.xla_model as xm\n\nxm.mark_step()\n", "a.py", Selection(["TPU02"]))[
        1:
    ]
    assert (finding.file, finding.line, finding.column, finding.severity) == ("a.py", 3, 1, "error")
    assert finding.reason == "xm.mark_step is PyTorch/XLA's"
    assert finding.suggestion.startswith("remove it: operators start as they are called")
    assert str(finding).startswith("a.py:3:1: TPU020 xm.mark_step")


@pytest.mark.parametrize(
    "comment, left", [("# noqa", 0), ("# noqa: TPU010", 0), ("#noqa:E501, TPU010", 0), ("# noqa: TPU001", 1), ("", 1)]
)
def test_comments_excuse_lines(comment, left):
    assert len(found(f"torch.cuda.synchronize()  {comment}\n")) == left


def test_a_comment_at_the_end_of_a_long_call_excuses_it():
    assert found("torch.nn.MultiheadAttention(\n    768,\n    12,\n)  # noqa: TPU040\n") == []


def test_rules_are_selected_by_their_beginnings():
    text = "torch.cuda.synchronize()\ntorch.backends.cudnn.enabled = False\n"
    assert found(text, selection=Selection(["TPU010"])) == ["TPU010"]
    assert found(text, selection=Selection(["TPU01"])) == ["TPU010", "TPU013"]
    assert found(text, selection=Selection(ignore=["TPU01"])) == []
    with pytest.raises(ValueError, match="no rule begins with 'E501'; there are: TPU000"):
        Selection(["E501"])


def test_what_is_not_python_is_a_finding():
    (finding,) = check_text("def f(:\n", "a.py")
    assert (finding.rule, finding.line) == ("TPU000", 1)
    (finding,) = check_text("x = " + " + ".join(["y"] * 3000) + "\n", "a.py")
    assert finding.rule == "TPU000" and "nested too deeply" in finding.reason


def test_directories_are_read_without_what_is_hidden(tmp_path):
    for name in ("a.py", "b/c.py", ".venv/d.py", "b/__pycache__/e.py", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import triton\n")
    findings, count = check_paths([tmp_path])
    assert [Path(finding.file).name for finding in findings] == ["a.py", "c.py"] and count == 2
    with pytest.raises(FileNotFoundError, match="neither a file nor a directory"):
        check_paths([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no Python files or notebooks"):
        check_paths([tmp_path / "empty"])


def test_notebooks(tmp_path):
    cells = [
        ("markdown", ["# x.cuda()"]),
        (
            "code",
            ["%matplotlib inline\n", "import torch\n", "files = !ls\n", "if files:\n", "    !pip list\n", "torch?"],
        ),
        ("code", ["%%bash\n", "for x in a; do"]),
        ("code", ["x = torch.zeros(3)\n", "x.cuda()"]),
    ]
    notebook = {"cells": [{"cell_type": kind, "source": source} for kind, source in cells], "metadata": None}
    file = tmp_path / "train.ipynb"
    file.write_text(json.dumps(notebook))
    (finding,), count = check_paths([tmp_path])
    assert (finding.file, finding.line, count) == (f"{file}[cell 4]", 2, 1) and "cuda" in finding.reason
    for text in ("{", "[]", '{"cells": [{"source": "x"}]}'):
        file.write_text(text)
        (finding,), _ = check_paths([file])
        assert "this is no notebook" in finding.reason


def test_the_projects_own_examples_are_clean():
    findings, count = check_paths([ROOT / "examples"], Selection(ignore=["TPU040"]))
    assert findings == [] and count > 0


def test_models_of_transformers_are_clean():
    """Models that torch_tpu runs as one program have nothing to be found."""
    import transformers

    models = Path(transformers.__file__).parent / "models"
    findings, _ = check_paths([models / name / f"modeling_{name}.py" for name in ("llama", "gpt2", "mistral", "vit")])
    assert [finding for finding in findings if finding.severity != "note"] == []


def test_no_torch_is_needed():
    code = (
        "import sys; sys.argv = ['torch-tpu', 'lint', 'examples']\n"
        "from torch_tpu.cli.__main__ import app\n"
        "try: app()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'jaxlib', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("table", [apis.torch_xla(), apis.cuda()], ids=["torch_xla", "cuda"])
def test_every_entry_names_a_rule_and_says_why(table):
    for entry in table.entries:
        assert entry.rule in RULES, entry
        assert entry.note or entry.do == "use", entry
        assert (entry.rule == "TPU021") == (entry.do == "none" and table is apis.torch_xla()), entry


@pytest.mark.parametrize("table", [apis.torch_xla(), apis.cuda()], ids=["torch_xla", "cuda"])
def test_replacements_exist(table):

    checked = 0
    for entry in table.entries:
        for name in entry.names:
            code = entry.suggestion(name)
            for path in re.findall(r"\b(torch(?:_tpu)?(?:\.\w+)+)", code.partition(":")[0] + " " + entry.note):
                checked += 1
                assert _exists(path), f"{path}, for {name}"
    assert checked > 50


def _exists(path: str) -> bool:
    """Whether a dotted name is there, a module or something of one."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            if not hasattr(value, name):
                return False
            value = getattr(value, name)
        return True
    return False


def test_the_longest_name_is_taken():
    table = apis.torch_xla()
    assert table.find("torch_xla.core.xla_model.mark_step").do == "remove"
    assert table.find("torch_xla.distributed.spmd.Mesh").do == "use"
    assert table.find("torch_xla.distributed.spmd.anything.below").do == "none"
    assert table.find("torch_xla.nothing").note.startswith("not in the table")
    assert table.find("torch.nothing") is None


def test_tables_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="not of the form"):
        apis._entry({"names": ["a"], "do": "use", "note": ""}, "a.toml")
    with pytest.raises(ValueError, match="not of the form"):
        apis._entry({"names": ["a"], "do": "remove", "note": "", "because": ""}, "a.toml")
    entry = apis._entry({"names": ["a", "b"], "do": "remove", "note": "why"}, "a.toml")
    with pytest.raises(ValueError, match="a is in two entries"):
        apis.Apis((entry, entry))
