"""What an overload's schema says: every ATen overload that writes is classified, and its form does the same work."""

from __future__ import annotations

import pytest
import torch

from torch_tpu import ops
from torch_tpu.ops import registry, schema

aten = torch.ops.aten


def overloads():
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = full.partition("::")
        if namespace == "aten":
            try:
                yield registry.resolve(name)
            except ValueError:
                continue  # registered for TorchScript only


ALL = list(overloads())
WRITING = [op for op in ALL if op._schema.is_mutable]


def test_every_writing_overload_is_classified():
    assert len(WRITING) > 1000
    for op in WRITING:
        form = schema.form(op)
        assert form.written, op
        places = [place for place, argument in enumerate(op._schema.arguments) if schema.is_written(argument)]
        assert list(form.written) == places
        assert form.is_out == all(op._schema.arguments[place].is_out for place in places)
        if form.functional is not None:
            assert not form.functional._schema.is_mutable, op


def test_out_forms_have_a_functional_form():
    """Where the packet has a functional overload at all, these are the only ones that it does not compute."""
    missing = {
        op._schema.name.removeprefix("aten::")
        for op in WRITING
        if schema.form(op).is_out and schema.form(op).functional is None and has_functional(op)
    }
    assert missing == {"_native_batch_norm_legit", "_slow_conv2d_backward", "normal"}


def has_functional(op):
    packet = op.overloadpacket
    return any(not getattr(packet, overload)._schema.is_mutable for overload in packet.overloads())


@pytest.mark.parametrize(
    ("op", "functional", "written", "out", "new"),
    (
        (aten.add.Tensor, aten.add.Tensor, (), False, 1),
        (aten.add_.Tensor, aten.add.Tensor, (0,), False, 0),
        (aten.add.out, aten.add.Tensor, (3,), True, 0),
        (aten.max.dim_max, aten.max.dim, (3, 4), True, 0),
        (aten.normal_.default, aten.normal_functional.default, (0,), False, 0),
        (aten._foreach_add_.List, aten._foreach_add.List, (0,), False, 0),
        (aten._fused_adamw_.default, aten._fused_adamw.default, (0, 1, 2, 3, 4), False, 0),
        (aten.index_put_.default, aten.index_put.default, (0,), False, 0),
        (aten.__ilshift__.Scalar, None, (0,), False, 0),
        (aten.native_batch_norm.out, aten.native_batch_norm.default, (8, 9, 10), True, 0),
        (aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_functional.default, (3, 4), False, 3),
        (aten.rrelu_with_noise_.default, aten.rrelu_with_noise_functional.default, (0, 1), False, 0),
        (aten.view.default, aten.view.default, (), False, 0),
    ),
)
def test_forms(op, functional, written, out, new):
    form = schema.form(op)
    assert (form.functional, form.written, form.is_out, form.num_new) == (functional, written, out, new)


def test_returned_views():
    assert schema.returns_view(aten.view.default) and schema.returns_view(aten.split.Tensor)
    assert not schema.returns_view(aten.add_.Tensor) and not schema.returns_view(aten.clone.default)


def test_lowerings_serve_the_derived_forms():
    ops.load()
    for op in (
        aten.add_.Tensor,
        aten.add.out,
        aten._foreach_add_.Scalar,
        aten.sort.values_stable,
        aten.normal_.default,
    ):
        rule = schema.lowering_of(op)
        assert rule is not None and rule.op == registry.overload_name(schema.form(op).functional)


def test_every_lowering_is_of_a_functional_overload():
    ops.load()
    assert len(registry.LOWERINGS) > 800
    for name, rule in registry.LOWERINGS.items():
        op = registry.resolve(name.removeprefix("aten::"))
        packet = [getattr(op.overloadpacket, overload) for overload in op.overloadpacket.overloads()]
        arguments = {argument.name for one in packet for argument in one._schema.arguments}
        assert not op._schema.is_mutable and rule.op == name
        unknown = (rule.static | rule.static_integral | rule.data) - arguments
        assert not unknown, f"{name} has no argument {unknown}"


@pytest.mark.parametrize(
    ("name", "text"),
    (
        ("frobnicate", "no operator 'frobnicate'"),
        ("add.Nothing", "no operator 'add.Nothing'"),
        ("add_.Tensor", "writes to an argument"),
        ("add.out", "writes to an argument"),
        ("add.Tensor", "registered already"),
    ),
)
def test_the_registry_refuses(name, text):
    ops.load()
    with pytest.raises(ValueError, match=text):
        registry.lowering(name)(lambda ctx, *values: values[0])
