"""Checks lowerings one ATen call at a time, without the device: every call that PyTorch's operator database makes on
the CPU, forward and backward, is also lowered, compiled and run, and the results are compared.

    python tools/check_lowerings.py add nn.functional.relu re:^linalg --dtypes float32,int64 --limit 4 [--no-backward]
    python tools/check_lowerings.py --aten aten::index_put,aten::sort re:.     # only these ATen overloads are checked

Prints a line per failing call and, at the end, per overload how often it passed, failed, or had no lowering.
"""

from __future__ import annotations

import argparse
import collections
import re
import traceback
import warnings
import zlib

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from torch_tpu import hlo, ops
from torch_tpu.ops import registry
from torch_tpu.runtime.client import cpu_client

DROPPED = {"layout", "device", "pin_memory", "memory_format", "generator", "non_blocking", "out"}
TOLERANCES = {
    torch.float16: (1e-3, 1e-3), torch.bfloat16: (1.6e-2, 1e-2), torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-7, 1e-7), torch.complex64: (1e-4, 1e-5), torch.complex128: (1e-7, 1e-7),
}  # fmt: skip


def scalar_dtype(number, wide):
    """The dtype of the operand that stands for a Python number."""
    if isinstance(number, (bool, int)):
        return torch.bool if isinstance(number, bool) else torch.int64
    if isinstance(number, float):
        return torch.float64 if wide else torch.float32
    return torch.complex128 if wide else torch.complex64


def bind(op, rule, args, kwargs, function):
    """The arguments as a lowering gets them, and the CPU tensors that are its operands, in order."""
    operands = []
    wide = (
        any(
            torch.is_tensor(t) and t.dtype in (torch.float64, torch.complex128)
            for t in torch.utils._pytree.tree_leaves((args, kwargs))
        )
        or kwargs.get("dtype") is torch.float64
    )

    def tensor(t):
        operands.append(t.detach().contiguous())
        return function.argument(tuple(t.shape), t.dtype)

    def scalar(s):
        dtype = scalar_dtype(s, wide)
        operands.append(torch.tensor(s, dtype=dtype))
        return function.argument((), dtype, weak=True)

    def convert(arg, value):
        if isinstance(value, torch.Tensor):
            return tensor(value)
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            return [None if v is None else tensor(v) for v in value]
        kind = str(arg.type)
        if value is None or isinstance(value, torch.dtype) or arg.name in rule.static:
            return value
        if kind in ("number", "Optional[number]") and isinstance(value, (bool, int, float, complex)):
            if (
                arg.name in rule.static_integral
                and not isinstance(value, complex)
                and (value == 0.5 or value == int(value))
            ):
                return value
            return scalar(value)
        if kind == "List[number]":
            return [scalar(v) for v in value]
        if kind in ("float", "Optional[float]") and arg.name in rule.data:
            return scalar(float(value))
        if kind == "List[float]" and arg.name in rule.data:
            return [scalar(float(v)) for v in value]
        return value

    positional, named = [], {}
    for index, arg in enumerate(op._schema.arguments):
        if arg.name in DROPPED:
            continue
        if index < len(args):
            value = args[index]
        elif arg.name in kwargs:
            value = kwargs[arg.name]
        else:
            continue
        if arg.has_default_value() and type(value) is type(arg.default_value) and value == arg.default_value:
            continue
        if arg.kwarg_only or index > len(positional):
            named[arg.name] = convert(arg, value)
        else:
            positional.append(convert(arg, value))
    return positional, named, operands


class Check(TorchDispatchMode):
    def __init__(self, client, only):
        super().__init__()
        self.client, self.only = client, only
        self.counts = collections.defaultdict(collections.Counter)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = registry.overload_name(op)
        rule = registry.LOWERINGS.get(name)
        if rule is None or "empty" in name or (self.only and name not in self.only):
            self.counts[name]["-"] += 1
            return op(*args, **kwargs)
        tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if torch.is_tensor(t)]
        if any(t.is_conj() or t.is_neg() or t.layout != torch.strided for t in tensors):
            return op(*args, **kwargs)
        want = op(*args, **kwargs)
        try:
            self.compare(op, rule, args, kwargs, want)
            self.counts[name]["ok"] += 1
        except Exception as error:
            self.counts[name]["FAIL"] += 1
            if self.counts[name]["FAIL"] <= 3:
                shown = torch.utils._pytree.tree_map(
                    lambda t: f"{t.dtype}{list(t.shape)}" if torch.is_tensor(t) else t, (args, kwargs)
                )
                print(f"FAIL {name} {str(shown)[:300]}\n     {type(error).__name__}: {str(error)[:600]}", flush=True)
                if not isinstance(error, (AssertionError, ValueError)):
                    print("     " + traceback.format_exc().splitlines()[-3].strip())
        return want

    def compare(self, op, rule, args, kwargs, want):
        outs = (
            [t for t in ([want] if torch.is_tensor(want) else want) if torch.is_tensor(t)] if want is not None else []
        )
        flat = [torch.is_tensor(t) for t in ([want] if torch.is_tensor(want) else want)]
        with (
            torch._C._DisableTorchDispatch()
            if hasattr(torch._C, "_DisableTorchDispatch")
            else warnings.catch_warnings()
        ):
            ctx = registry.Context(rule.op, tuple(registry.Spec(tuple(t.shape), t.dtype) for t in outs))
            with hlo.Function() as function:
                positional, named, operands = bind(op, rule, args, kwargs, function)
                if rule.random:
                    state = function.argument((2,), torch.uint64)
                    ctx.rng_source = lambda: state
                    operands.append(torch.tensor([42, 0], dtype=torch.uint64))
                results = [v for v in registry.apply(rule, ctx, positional, named) if v is not None]
            text = function.module(results)
            program = self.client.compile(text, [(v.shape, v.dtype) for v in results])
            got = [
                self.client.get(a, v.dtype)
                for a, v in zip(program.run([self.client.put(t) for t in operands]), results)
            ]
            assert len(got) == sum(flat), f"{len(got)} results, not {sum(flat)}"
            if rule.random:
                return
            for index, (mine, theirs) in enumerate(zip(got, outs)):
                rtol, atol = TOLERANCES.get(theirs.dtype, (0, 0))
                theirs = theirs.detach().resolve_conj().resolve_neg()
                torch.testing.assert_close(
                    mine,
                    theirs.contiguous(),
                    rtol=rtol,
                    atol=atol,
                    equal_nan=True,
                    msg=lambda m, index=index: f"result {index}: {m}",
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="+")
    parser.add_argument("--dtypes", default="float32,bfloat16,int64,bool")
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--aten", default="")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--missing", action="store_true", help="also list the overloads seen without a lowering")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ops.load()
    check = Check(cpu_client(), set(filter(None, args.aten.split(","))))
    refused: list[str] = []
    for info in op_db:
        if not any(re.search(o[3:], info.full_name) if o.startswith("re:") else o == info.full_name for o in args.ops):
            continue
        for dtype in (getattr(torch, d) for d in args.dtypes.split(",")):
            if dtype not in info.supported_dtypes("cpu"):
                continue
            torch.manual_seed(zlib.crc32(info.full_name.encode()))
            grad = not args.no_backward and info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
            try:
                samples = list(info.sample_inputs("cpu", dtype, requires_grad=grad))
            except Exception as error:
                refused.append(f"samples of {info.full_name} {dtype}: {type(error).__name__}")
                continue
            step = max(1, len(samples) // args.limit)
            for sample in samples[::step][: args.limit]:
                try:
                    with check:
                        out = info(sample.input, *sample.args, **sample.kwargs)
                        leaves = [
                            t for t in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(t) and t.requires_grad
                        ]
                        if grad and leaves:
                            torch.autograd.backward(leaves, [torch.randn_like(t) for t in leaves])
                except Exception as error:
                    refused.append(f"{info.full_name} {dtype} on the CPU: {type(error).__name__}")
    if refused:
        print(f"not compared, since PyTorch's CPU refuses them: {len(refused)}, such as {'; '.join(refused[:3])}")
    failed = 0
    for name, counts in sorted(check.counts.items()):
        if counts["FAIL"] or counts["ok"]:
            failed += counts["FAIL"]
            print(f"{'FAIL' if counts['FAIL'] else 'ok  '} {name}: {counts['ok']} passed, {counts['FAIL']} failed")
        elif args.missing:
            print(f"-    {name}: no lowering, {counts['-']} calls")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
