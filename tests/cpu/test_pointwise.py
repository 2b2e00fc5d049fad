"""What is known of pointwise operators' results without asking PyTorch is what PyTorch would say."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from torch_tpu import ops
from torch_tpu.eager import pointwise
from torch_tpu.ops import registry, schema

ops.load()
RULES = [
    rule
    for _, rule in registry.LOWERINGS.items()
    if rule.promote is registry.RESULT
    and not rule.op.endswith("_mode")
    and pointwise._is_pointwise(registry.resolve(rule.op))
]
LISTS = [
    rule
    for _, rule in registry.LOWERINGS.items()
    if "::_foreach_" in rule.op and pointwise._is_pointwise_list(registry.resolve(rule.op))
]
NUMBERS = {
    "number": (-1, 0, 2, -2.5, math.nan, True),
    "float": (-1.0, 0.0, 0.5, math.nan),
    "int": (-1, 0, 1, 2),
    "bool": (False, True),
}


def calls(op: torch._ops.OpOverload, tensor: torch.Tensor) -> Iterator[dict[str, Any]]:
    """Arguments: all tensors like one, and all combinations of numbers."""
    kinds = {argument.name: str(argument.type) for argument in op._schema.arguments if str(argument.type) != "str"}
    given = [
        [torch.empty_like(tensor)] if "Tensor" in kind else NUMBERS[kind.removeprefix("Optional[").rstrip("]")]
        for kind in kinds.values()
    ]
    return (dict(zip(kinds, values, strict=True)) for values in itertools.product(*given))


def layouts(tensors: Sequence[torch.Tensor] | None) -> list[Any]:
    return [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in tensors or ()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.op.removeprefix("aten::"))
def test_a_result_is_like_the_operands(rule):
    op = registry.resolve(rule.op)
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for shape, dtype in itertools.product(((3, 1, 4), (), (0, 2)), dtypes):
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        several = calls(op, tensor)
        for bound in several if dtype is torch.float32 else itertools.islice(several, 1):
            assert layouts(pointwise.like_operands(rule, schema.form(op), bound)) == layouts([op(**bound)])


@pytest.mark.parametrize("rule", LISTS, ids=lambda rule: rule.op.removeprefix("aten::"))
def test_results_of_lists_are_like_the_operands(rule):
    op = registry.resolve(rule.op)
    for dtype in (torch.float32, torch.bfloat16):
        shapes = ((3, 1, 4), (), (0, 2))
        for number in (2, -0.5):
            tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
            bound: dict[str, Any] = {}
            for argument in op._schema.arguments:
                given = {"List[Tensor]": tensors, "Tensor": tensors[1], "number": number, "List[number]": [number] * 3}
                if str(argument.type) in given and not argument.kwarg_only:
                    bound[argument.name] = given[str(argument.type)]
            assert layouts(pointwise.like_operands(rule, schema.form(op), bound)) == layouts(op(**bound))


def test_whatever_is_not_plain_is_asked():
    op = torch.ops.aten.add.Tensor
    rule, form, x = registry.LOWERINGS["aten::add.Tensor"], schema.form(op), torch.empty(3, 4, device="meta")

    def like(other: Any, first: torch.Tensor = x, **kwargs: Any) -> list[torch.Tensor] | None:
        return pointwise.like_operands(rule, form, {"self": first, "other": other, **kwargs})

    for other in (x, 2, x[0, 0]):
        assert like(other, alpha=2.0) == [x]
    for other in (2j, x[0], x.double(), x[0, 0].double(), x.to(torch.int64), torch.empty(4, 3, device="meta").t()):
        assert like(other) is None
    assert like(x, first=x[0, 0]) is None
    whole = torch.empty(3, dtype=torch.int64, device="meta")
    assert pointwise.like_operands(rule, form, {"self": whole, "other": 2.5}) is None
    out = schema.form(torch.ops.aten.add.out)
    assert pointwise.like_operands(rule, out, {"self": x, "other": x, "out": whole}) is None
    lists = torch.ops.aten._foreach_add.List
    rule, form = registry.LOWERINGS["aten::_foreach_add.List"], schema.form(lists)
    assert pointwise.like_operands(rule, form, {"self": [x, x], "other": [x]}) is None
    assert pointwise.like_operands(rule, form, {"self": [x, x], "other": [x, x.double()]}) is None
    assert len(RULES) > 100 and len(LISTS) > 50
    assert not any(rule.op.startswith("aten::_foreach_max.") or rule.op == "aten::_foreach_max" for rule in LISTS)


def test_what_pytorch_refuses_is_refused():
    x = torch.ones(3, device="tpu")
    for call in (
        lambda: torch.clamp(x),
        lambda: x << 1,
        lambda: torch.div(x, x, rounding_mode="up"),
        lambda: torch.add(x, x, alpha=2j),
    ):
        with pytest.raises(RuntimeError, match=r"At least one of|shift|rounding_mode|alpha|omplex"):
            call()


def test_the_first_addition_does_not_import_sympy():
    code = "import sys, torch; x = torch.ones(3, device='tpu'); assert ((x + 1) * x).tolist() == [2] * 3; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in found and "sympy" not in found
