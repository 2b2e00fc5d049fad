"""From what `flow.py` comes across to findings."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence

from torch_tpu.linter import apis, rules, syntax, values
from torch_tpu.linter.expressions import Expressions
from torch_tpu.linter.guards import mentions_tpu
from torch_tpu.linter.rules import RULES, Finding, Rule
from torch_tpu.linter.scopes import Call
from torch_tpu.linter.values import UNKNOWN, Value

_CUDA_TEXT = re.compile(r"cuda(:\d+)?$")
_QUESTION = re.compile(r"_enabled$|\.(version|is_\w+|can_use_\w+)$")
"""Functions of torch.backends that only say how it is; others do when they are given nothing."""
_READS = {"item": "item()", "tolist": "tolist()", "cpu": "cpu()", "numpy": "numpy()"}
_SIZED_BY_VALUES = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"})
_JOINING = frozenset({"torch.cat", "torch.concat", "torch.concatenate", "torch.hstack", "torch.vstack", "torch.dstack"})
_CACHE = re.compile(r"^(\w*cache\w*|\w*past\w*)\b|^self\.\w*(cache|past)", re.IGNORECASE)
_LOGGING = frozenset({"info", "debug", "warning", "error", "critical", "log", "exception"})
_CACHE_OPTIONS = frozenset({"cache_implementation", "past_key_values", "generation_config"})
"""Options of `generate` that may choose another cache."""
_HEADS = {"hidden_size": "num_attention_heads", "n_embd": "n_head", "d_model": "nhead", "embed_dim": "num_heads"}
_HEAD_MODULES = frozenset({"MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer"})
_NO_GAIN = ": bfloat16 is as fast on a TPU, and needs no scaling"
LANES = 128


class Checks:
    """The `Events` of one file.

    Args:
        add: takes each finding and the first and last line of what it is about.
    """

    def __init__(self, file: str, tree: ast.Module, add: Callable[[Finding, int, int], None]):
        self.file, self.tree = file, tree
        self._add = add
        self._attributes = {item.attr for item in ast.walk(tree) if isinstance(item, ast.Attribute)}
        self._moved: set[int] = set()
        """Calls that were reported as part of another one."""

    def report(self, rule: type[Rule], node: ast.expr | ast.stmt, reason: str, suggestion: str) -> None:
        finding = Finding(
            rule.id, self.file, node.lineno, node.col_offset + 1, reason, suggestion, rule.severity
        )  # fmt: skip
        self._add(finding, node.lineno, node.end_lineno or node.lineno)

    # ------------------------------------------------------------------------------------------------- other devices

    def imported(self, flow: Expressions, node: ast.stmt, name: str) -> None:
        root = name.partition(".")[0]
        if root == "torch_xla":
            entry = apis.torch_xla().find("torch_xla")
            assert entry is not None
            self.report(rules.XlaCall, node, f"{name} is imported", entry.suggestion(root))
            return
        entry = apis.cuda().find(name)
        if entry is not None and entry.rule == rules.CudaPackage.id:
            self.report(rules.CudaPackage, node, f"{root} only works with CUDA", entry.suggestion(name))

    def used(self, flow: Expressions, node: ast.expr, name: str) -> None:
        if name.startswith("torch_xla"):
            entry = apis.torch_xla().find(name)
            if entry is not None and name != "torch_xla" and not _is_module(name):
                self.report(RULES[entry.rule], node, f"{ast.unparse(node)} is PyTorch/XLA's", entry.suggestion(name))
            return
        entry = apis.cuda().find(name)
        if entry is not None and name.startswith("torch.") and RULES[entry.rule] is not rules.CudaPackage:
            if RULES[entry.rule] is rules.CudaOption and isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                return  # to ask what an option is does nothing; `_option` has the calls
            what = (
                "is not for this device" if RULES[entry.rule] is not rules.Float16 else "scales gradients for float16"
            )
            self.report(RULES[entry.rule], node, f"{name} {what}", entry.suggestion(name))
        elif entry is not None and "cpp_extension" in name:
            self.report(rules.CudaPackage, node, f"{name} builds code for CUDA", entry.suggestion(name))
        elif name in ("torch.float16", "torch.half") and _is_dtype_role(flow):
            self.report(rules.Float16, node, f"{name}{_NO_GAIN}", "use torch.bfloat16")

    def text(self, flow: Expressions, node: ast.expr, text: str) -> None:
        if _CUDA_TEXT.match(text):
            if _is_device_role(flow) or text != "cuda":
                self.report(rules.CudaDevice, node, f'the device is "{text}"', 'use "tpu"')
        elif text in ("float16", "fp16") and _is_dtype_role(flow):
            self.report(rules.Float16, node, f'"{text}"{_NO_GAIN}', 'use "bfloat16"')
        elif flow.role != "cuda" and (text != "xla" or _is_device_role(flow)):
            for table in (apis.cuda(), apis.torch_xla()):
                entry = table.find(f"text:{text}")
                if entry is not None:
                    self.report(RULES[entry.rule], node, f'"{text}" is not for this device', entry.suggestion(text))

    def chosen(self, flow: Expressions, node: ast.If | ast.IfExp) -> None:
        """`"cuda" if torch.cuda.is_available() else "cpu"`, as an expression or by assignments."""
        if mentions_tpu(node) or not _asks_for_cuda(flow, node.test):
            return
        for item in _chosen_devices(node):
            self.report(
                rules.CudaDevice,
                item,
                "without CUDA the device is the CPU, on a TPU machine too",
                'use "tpu", or torch.accelerator.current_accelerator() for whichever device there is',
            )

    # ------------------------------------------------------------------------------------------------- calls

    def called(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        for check in (self._environment, self._backend, self._option, self._cuda_method, self._read, self._printed, self._sized, self._made,
                      self._wide, self._heads, self._split_heads, self._generated):  # fmt: skip
            check(flow, node, call)

    def _environment(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        name = call.callee.name
        if name.startswith("os.environ.") or name in ("os.getenv", "os.putenv"):
            self._variable(flow, node, call.args[0].constant if call.args else None)

    def _backend(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        if call.callee.name != "torch.compile" or flow.absent:
            return
        backend = call.keywords.get("backend", UNKNOWN).constant
        for table in (apis.cuda(), apis.torch_xla()):
            entry = table.find(f"backend:{backend}")
            if entry is not None:
                self.report(RULES[entry.rule], node, f'"{backend}" is not for this device', entry.suggestion(""))

    def _option(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """A call that sets what only concerns CUDA, or asks for it."""
        name = call.callee.name
        asks = not (call.args or call.keywords) or _QUESTION.search(name)
        entry = apis.cuda().find(name) if name.startswith("torch.") and not (asks or flow.absent) else None
        if entry is not None and RULES[entry.rule] is rules.CudaOption:
            self.report(rules.CudaOption, node, f"{name} is not for this device", entry.suggestion(name))

    def _variable(self, flow: Expressions, node: ast.expr, variable: object) -> None:
        for table in (apis.cuda(), apis.torch_xla()):
            entry = table.find(f"env:{variable}")
            if entry is not None and not flow.absent:
                self.report(RULES[entry.rule], node, f"{variable} is not for this device", entry.suggestion(""))

    def _cuda_method(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        if flow.absent or call.receiver is None or len(call.args) > 1 or call.callee.kind == "function":
            return
        if call.method == "cuda":
            self.report(rules.CudaCall, node, ".cuda() moves to a CUDA device", 'use .to("tpu")')
        elif call.method == "half" and not call.args and call.receiver.kind in ("tensor", "module"):
            self.report(rules.Float16, node, f".half(){_NO_GAIN}", "use .bfloat16()")

    def _read(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """Values that are read in every step."""
        what = self._what_is_read(flow, node, call)
        if not what or id(node) in self._moved:
            return
        where = flow.step(collections=what not in (".cpu()", ".numpy()"))
        if where:
            if isinstance(node.func, ast.Attribute):
                self._moved.update(id(item) for item in ast.walk(node.func.value) if isinstance(item, ast.Call))
            self.report(rules.ReadInLoop, node, f"{what} waits for the device {where}", _instead_of_reading(flow, node))

    def _what_is_read(self, flow: Expressions, node: ast.Call, call: Call) -> str:
        receiver = call.receiver
        if receiver is not None and call.method in _READS and call.callee.kind != "function":
            known = receiver.is_tensor or (receiver.kind == "unknown" and call.method != "tolist")
            if call.method == "numpy" and not receiver.is_tensor:
                known = False
            if known and receiver.may_be_on_device:
                return f".{_READS[call.method]}"
        if call.method == "to" and receiver is not None and receiver.is_tensor and receiver.may_be_on_device:
            return '.to("cpu")' if call.result.place == "host" else ""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("float", "int", "bool") and len(call.args) == 1:
            return f"{name}(tensor)" if _on_device(call.args[0]) else ""
        reading = call.callee.name in values.READING_FUNCTIONS or call.method in ("equal", "allclose")
        given = [*call.args, *([receiver] if receiver is not None else [])]
        if reading and any(map(_on_device, given)):
            return f"{call.callee.name or call.method}(...)"
        return ""

    def _printed(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        where, verb = flow.step(), _printing(node, call)
        for arg, value in zip(node.args, call.args) if where and verb else ():
            if (_on_device(value) and verb != "written") or _formats_tensor(flow, arg):
                self.report(
                    rules.PrintInLoop,
                    arg,
                    f"a tensor is {verb} {where}, which waits for the device",
                    "do so every so many steps, or keep values and print them after the loop",
                )

    def _sized(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """Results whose size depends on values."""
        where = flow.step()
        name = call.callee.name.removeprefix("torch.") if call.callee.name.startswith("torch.") else ""
        method = call.method if call.receiver is not None and _on_device(call.receiver) else ""
        if not where or not (name or method):
            return
        called = name.rpartition(".")[2] or method
        on_device = _on_device(call.result) or any(map(_on_device, call.args)) or bool(method)
        found = called in _SIZED_BY_VALUES
        if called == "where":
            found = len(call.args) + len(call.keywords) == 1
        elif called == "one_hot":
            found = len(call.args) < 2 and "num_classes" not in call.keywords
        elif called == "bincount":
            found = "minlength" not in call.keywords
        elif called == "repeat_interleave":
            repeats = [*call.args, call.keywords.get("repeats", UNKNOWN)][0 if method else 1 :][:1]
            found = "output_size" not in call.keywords and any(value.is_tensor for value in repeats)
        if found and on_device and (name.count(".") == 0 or name.startswith("nn.functional.")):
            self._report_size(node, f"{called} has a size that depends on values, {where}")

    def _report_size(self, node: ast.expr, reason: str) -> None:
        self.report(
            rules.DataDependentSize,
            node,
            reason,
            "keep the size: torch.where, a mask that is multiplied, topk, num_classes= or output_size=",
        )

    def _made(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """Tensors that are made again in every step, or on the wrong side."""
        where = flow.step()
        if call.method in ("to", "cuda") and call.receiver is not None and isinstance(node.func, ast.Attribute):
            made = node.func.value
            moved = call.result.place == "device" and call.receiver.is_tensor and call.receiver.place == "host"
            name = flow.name_of(made.func) if isinstance(made, ast.Call) else ""
            if moved and where and name.startswith("torch.") and name.removeprefix("torch.") in values.FACTORIES:
                self._moved.add(id(made))
                self.report(
                    rules.MadeThenMoved,
                    node,
                    f"{name} makes a tensor on the host, which is then copied, {where}",
                    f"use {name}(..., device=device)",
                )
                return
        if call.callee.name not in ("torch.tensor", "torch.as_tensor") or not where or not node.args:
            return
        fixed = _is_fixed(flow, node.args[0]) and _is_data(node.args[0])
        if fixed and call.result.may_be_on_device:
            self.report(
                rules.MadeInLoop,
                node,
                f"the same data is copied to the device {where}",
                "make it once before the loop, or in a module by register_buffer",
            )

    def _wide(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """float64 and int64."""
        dtype = call.keywords.get("dtype", UNKNOWN).name
        named = next((value.name for value in call.args if values.is_dtype(value.name)), dtype)
        result = call.result
        to_float64 = named in values.WIDE or (call.method in ("double", "cdouble") and not call.args)
        if call.method in ("to", "cuda") and call.receiver is not None and call.receiver.place == "host":
            to_float64 = result.is_wide  # it was made on the host
        if call.callee.name == "torch.set_default_dtype" and named in values.WIDE:
            self.report(rules.Float64, node, "float64 becomes the default", "use float32")
        elif to_float64 and _on_device(result):
            self.report(rules.Float64, node, "a TPU emulates float64", "use float32, or .cpu() first")
        where = flow.step()
        to_int64 = named in ("torch.int64", "torch.long") or (call.method == "long" and not call.args)
        receiver = call.receiver
        compared = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Compare)
        mask = receiver is not None and receiver.may_be_on_device and (receiver.is_mask or compared)
        counter = call.callee.name in _COUNTING and not _is_small(call.args) and _on_device(result)
        body = self.tree if flow.function is None else flow.function.node
        if to_int64 and where and (mask or counter) and id(node) not in syntax.wanted_as_int64(body):
            self.report(rules.Int64, node, f"int64 is emulated, {where}", "use torch.int32")

    def _generated(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """`generate` of Transformers with the cache that it takes by itself, and such a cache."""
        made = call.callee.name.startswith("transformers.") and call.callee.name.endswith(".DynamicCache")
        chosen = _CACHE_OPTIONS & call.keywords.keys() or any(
            item.arg is None and re.search("kwargs|config|options", ast.unparse(item.value)) for item in node.keywords
        )
        lengths = {"max_new_tokens", "max_length"} & call.keywords.keys()
        grows = call.method == "generate" and call.callee.kind == "unknown" and lengths and not chosen
        implementation = call.keywords.get("cache_implementation", UNKNOWN).constant
        grows = grows or (call.method == "generate" and implementation in ("dynamic", "dynamic_full"))
        if flow.absent or not (made or grows) or "cache_implementation" in self._attributes:
            return
        self.report(
            rules.GrowingTensor,
            node,
            f"{'this cache' if made else 'the cache'} grows with each token, and operators are compiled for each length",
            'use cache_implementation="static" or a StaticCache: one size serves all tokens',
        )

    def _heads(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """Attention whose heads are narrow, where the file says how wide they are."""
        width, heads = UNKNOWN, UNKNOWN
        if call.callee.name.startswith("torch.nn.") and call.callee.name.rpartition(".")[2] in _HEAD_MODULES:
            positional = [*call.args, UNKNOWN, UNKNOWN][:2]
            width = call.keywords.get("embed_dim", call.keywords.get("d_model", positional[0]))
            heads = call.keywords.get("num_heads", call.keywords.get("nhead", positional[1]))
        elif call.callee.name.endswith(("Config", "Configuration")):
            for key, other in _HEADS.items():
                if key in call.keywords and other in call.keywords:
                    width, heads = call.keywords[key], call.keywords[other]
        size, count = width.constant, heads.constant
        if not (isinstance(size, int) and isinstance(count, int)) or count < 1 or size % count or size < LANES:
            return
        if "head_dim" not in call.keywords:
            self._head(node, size // count, f"{size // LANES} heads of {LANES} have as many weights")

    def _split_heads(self, flow: Expressions, node: ast.Call, call: Call) -> None:
        """`x.view(batch, length, heads, width // heads)`, and `x.view(batch, length, heads, 64).transpose(1, 2)`, also of
        several projections, by `permute`."""
        if call.method in ("view", "reshape"):
            sizes = _sizes_of_view(node)
            splits = _says_heads(sizes)
        else:
            inner = node.func.value if isinstance(node.func, ast.Attribute) else None
            sizes = _sizes_of_view(inner)
            order = [value.constant for value in call.args]
            splits = not _says_heads(sizes) and (
                (call.method == "transpose" and len(sizes) == 4 and order in ([1, 2], [2, 1], [-3, -2], [-2, -3]))
                or (call.method == "permute" and len(sizes) in (4, 5) and order[-1:] in ([len(sizes) - 1], [-1]))
                or (call.method == "unbind" and len(sizes) == 5 and order in ([2], [-3]))
            )
        width = flow.silent(sizes[-1]).constant if splits else None
        if isinstance(width, int) and width > 0:
            self._head(node, width, f"choose heads of {LANES}: fewer of them have as many weights")

    def _head(self, node: ast.Call, width: int, suggestion: str) -> None:
        if width % LANES:
            reason = f"heads of {width} fill {width % LANES} of {LANES} lanes"
            if width > LANES:
                reason = f"heads of {width} are not a multiple of {LANES} lanes"
            self.report(rules.SmallHeads, node, reason, suggestion)

    # -------------------------------------------------------------------------------------- statements, truth, indices

    def assigned(self, flow: Expressions, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Subscript) and flow.name_of(target.value) == "os.environ":
            index = target.slice
            self._variable(flow, node, index.value if isinstance(index, ast.Constant) else None)  # type: ignore[arg-type]
        if flow.step():
            self._grown(flow, node, target, value)

    def _grown(self, flow: Expressions, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        """A concatenation with what it is assigned to, by itself or within a tuple, or with a cache in `forward`."""
        if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
            for part, item in zip(target.elts, value.elts):
                self._grown(flow, node, part, item)
            return
        text = ast.unparse(target)
        slot = isinstance(target, ast.Subscript) and flow.changing() & syntax.names_in(target.slice)
        anew = flow.loops and syntax.starts_anew(flow.loops[-1].node, text.partition("[")[0])
        for joined in _joined(flow, value):
            grows = any(_is_part(item, text) for item in joined.elts) and not (slot or anew)
            if isinstance(target, ast.Name) and not flow.loops:  # in forward, where each call starts anew
                named = [ast.unparse(item) for item in joined.elts if _CACHE.search(ast.unparse(item))]
                body = flow.function.node if flow.function is not None else self.tree
                grows = bool(named) and syntax.is_kept(body, node, text)
                text = named[0] if grows else text
            if grows:
                self.report(
                    rules.GrowingTensor,
                    node,
                    f"{text} grows {flow.step()}, and each size is compiled anew",
                    f"allocate the largest size before and write into it ({text}[..., step] = new)",
                )
                return

    def decided(self, flow: Expressions, node: ast.expr, value: Value) -> None:
        where = flow.step()
        if where and _on_device(value):
            self.report(
                rules.BranchOnValue,
                node,
                f"Python waits for `{_shortened(node)}` {where}",
                "compute both ways and choose by torch.where, or use torch.cond",
            )

    def indexed(self, flow: Expressions, node: ast.Subscript, base: Value, index: Value) -> None:
        parts = index.items if index.kind == "items" else (index,)
        where = flow.step()
        if where and isinstance(node.ctx, ast.Load) and any(part.is_mask for part in parts) and _on_device(base):
            self._report_size(node, f"`{_shortened(node)}` has a size that depends on values, {where}")


_COUNTING = frozenset({"torch.zeros", "torch.ones", "torch.arange"})


_DEVICE_ROLES = frozenset({"to", "autocast", "map_location", "set_default_device", "Generator", "GradScaler"})


def _is_device_role(flow: Expressions) -> bool:
    """Whether what is evaluated is a device."""
    return "device" in flow.role.lower() or flow.role in _DEVICE_ROLES


def _is_dtype_role(flow: Expressions) -> bool:
    """Whether what is evaluated is the dtype to compute in."""
    role = flow.role.lower()
    wanted = ("dtype" in role and "dtypes" not in role) or "precision" in role or role in ("to", "autocast")
    return wanted and not flow.quiet


def _on_device(value: Value) -> bool:
    """A tensor that is not known to be on the host."""
    return value.is_tensor and value.may_be_on_device


def _is_small(sizes: Sequence[Value]) -> bool:
    """Whether all sizes are constants, and there are only a few elements."""
    flat = [item.constant for size in sizes for item in (size.items if size.kind == "items" else (size,))]
    return all(isinstance(size, int) for size in flat) and math.prod(flat) <= syntax.FEW


def _is_module(name: str) -> bool:
    """Names of torch_xla's modules themselves, which are passed by on the way to what is in them."""
    last = name.rpartition(".")[2]
    known = {"core", "xla_model", "runtime", "distributed", "parallel_loader", "xla_multiprocessing", "spmd", "debug"}
    return last in known | {"utils", "metrics", "profiler", "amp", "experimental", "stablehlo", "backends", "fsdp"}


def _shortened(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else text[:37] + "..."


def _instead_of_reading(flow: Expressions, node: ast.Call) -> str:
    """What to do about a value that is read in every step."""
    inner = flow.loops[-1].node if flow.loops else None
    if isinstance(inner, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
        return "read all at once: torch.stack(...).tolist()"
    for item in ast.walk(inner) if inner is not None else ():
        if isinstance(item, ast.AugAssign) and _is_sum_of(item.value, node):
            return f"sum on the device ({ast.unparse(item.target)} += value.detach()) and read the sum after the loop"
    if not flow.loops:
        return "keep the value on the device, and read it outside"
    return "keep the value on the device, or read it every so many steps"


def _is_sum_of(value: ast.expr, part: ast.expr) -> bool:
    """Whether a number that is added up depends on a part of it."""
    lists = (ast.List, ast.ListComp, ast.Tuple, ast.JoinedStr)
    return not isinstance(value, lists) and any(item is part for item in ast.walk(value))


def _printing(node: ast.Call, call: Call) -> str:
    """What a call does with the texts and tensors that it is given: print, log or write them; empty for all else."""
    whose, _, last = (call.callee.name or ast.unparse(node.func)).rpartition(".")
    if last in _LOGGING and "log" in whose:
        return "logged"
    return {"print": "printed", "write": "written" if whose else ""}.get(last, "")


def _formats_tensor(flow: Expressions, node: ast.expr) -> bool:
    """Whether a text is made of a tensor's values: f"{t}", "%s" % t, "{}".format(t), str(t), or such a one and more."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
        parts = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _formats_tensor(flow, node.left) or _formats_tensor(flow, node.right)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "repr", "format"):
        parts = node.args[:1]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_text(node.func.value):
        parts = [*node.args, *(item.value for item in node.keywords)]
    return any(_on_device(flow.silent(part)) or _formats_tensor(flow, part) for part in parts)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_fixed(flow: Expressions, node: ast.expr) -> bool:
    """Whether an expression is the same in every step."""
    names = syntax.names_in(node)
    if any(isinstance(item, (ast.Call, ast.Attribute, ast.Subscript)) for item in ast.walk(node)):
        return False
    if flow.loops and flow.step() == "in a loop":
        return not names & flow.changing()
    return not names


def _is_data(node: ast.expr) -> bool:
    return isinstance(node, (ast.Constant, ast.List, ast.Tuple, ast.Name, ast.UnaryOp, ast.BinOp))


def _joined(flow: Expressions, value: ast.expr) -> Iterator[ast.Tuple | ast.List]:
    """What an expression concatenates to a tensor on the device: itself, or as one of a tuple's or of two ways."""
    if isinstance(value, (ast.IfExp, ast.Tuple, ast.List)):  # `new if cache is None else torch.cat((cache, new))`
        for item in [value.body, value.orelse] if isinstance(value, ast.IfExp) else value.elts:
            yield from _joined(flow, item)
    elif isinstance(value, ast.Call) and flow.name_of(value.func) in _JOINING and value.args:
        parts = value.args[0]
        if isinstance(parts, (ast.Tuple, ast.List)) and _on_device(flow.silent(value)):
            yield parts


def _is_part(item: ast.expr, text: str) -> bool:
    """Whether an item of a concatenation is the target itself, or a slice of it."""
    while isinstance(item, ast.Subscript) and ast.unparse(item) != text:
        item = item.value
    return ast.unparse(item) == text


def _asks_for_cuda(flow: Expressions, test: ast.expr) -> bool:
    return any(
        isinstance(item, ast.Attribute) and flow.name_of(item).startswith("torch.cuda") for item in ast.walk(test)
    )


def _chosen_devices(node: ast.If | ast.IfExp) -> Sequence[ast.expr]:
    """The places where "cuda" is what is chosen, if the CPU is the alternative."""
    if isinstance(node, ast.IfExp):
        return [node] if _device_text(node.body).startswith("cuda") else []
    return [
        item.value
        for item in node.body
        if isinstance(item, ast.Assign) and _device_text(item.value).startswith("cuda") and "device" in _names(item)
    ]


def _names(node: ast.Assign) -> str:
    return " ".join(ast.unparse(target).lower() for target in node.targets)


def _device_text(node: ast.expr) -> str:
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("device"):
        node = node.args[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _sizes_of_view(node: ast.expr | None) -> list[ast.expr]:
    """What `x.view(...)` or `x.reshape(...)` is given; nothing of another expression."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return []
    if node.func.attr not in ("view", "reshape"):
        return []
    return node.args[0].elts if node.args and isinstance(node.args[0], (ast.Tuple, ast.List)) else node.args


def _says_heads(sizes: list[ast.expr]) -> bool:
    """Whether the sizes end in `heads, width // heads`."""
    if len(sizes) not in (4, 5) or not isinstance(sizes[-1], ast.BinOp):
        return False
    last = sizes[-1]
    return isinstance(last.op, ast.FloorDiv) and ast.dump(last.right) == ast.dump(sizes[-2])
