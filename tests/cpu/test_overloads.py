"""Overloads that PyTorch's operator database does not reach: each one's sample, by hand, in the first dtype it has."""

from __future__ import annotations

import pytest
import torch

import torch_tpu
from torch_tpu import ops
from torch_tpu.conformance import catalog, overloads, runner, samples
from torch_tpu.conformance.catalog import Case
from torch_tpu.conformance.gaps import Gaps
from torch_tpu.eager import served
from torch_tpu.ops import registry


def run(info: overloads.Direct, dtype: str, phase: str) -> runner.Result:
    with torch_tpu.settings.override(fallback="count"):
        return runner.run_case(info, Case(info.name, dtype, phase), "tpu")


def phases(info: overloads.Direct) -> tuple[str, list[str]]:
    """The first dtype that the CPU takes, and the phases of it."""
    found = ((dtype, catalog.phases_of(info, catalog.dtype_of(dtype))) for dtype in catalog.DTYPES)
    return next((dtype, has) for dtype, has in found if has)


@pytest.mark.parametrize("info", overloads.overloads(), ids=lambda info: info.name)
def test_each_overload_is_what_it_is_on_the_cpu(info):
    ops.load()
    dtype, has = phases(info)
    expected = "passed" if info.name in registry.LOWERINGS else "fallback"
    results = [run(info, dtype, phase) for phase in has]
    assert [result.status for result in results] == [expected] * len(has), results
    assert expected != "passed" or all(result.by == "lowering" for result in results)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_norms_of_a_weight_in_float16_are_float32(phase):
    assert run(catalog.by_name()["aten::_weight_norm_interface"], "float16", phase).status == "passed"


def test_a_reference_is_what_the_cpu_says_where_it_can():
    """Definitions stand in for kernels that the CPU lacks; of these two it has another form."""
    x = torch.randn(2, 3, 4)
    mean, rstd = overloads.references.batch_norm_stats(x, 1e-5)
    out, saved_mean, saved_rstd = torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    torch.testing.assert_close((mean, rstd), (saved_mean, saved_rstd))
    ones, zeros = torch.ones(3), torch.zeros(3)
    torch.testing.assert_close(overloads.references.batch_norm_elemt(x, ones, zeros, mean, rstd, 1e-5), out)


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_the_references_of_cells_are_pytorchs_cells(kind):
    cell = kind(3, 4)
    x, state = torch.randn(2, 3), torch.randn(2, 4)
    gates = x @ cell.weight_ih.T, state @ cell.weight_hh.T
    biases = cell.bias_ih, cell.bias_hh
    if kind is torch.nn.LSTMCell:
        found = overloads.references.lstm_cell(*gates, torch.ones(2, 4), *biases)[:2]
        torch.testing.assert_close(found, cell(x, (state, torch.ones(2, 4))))
    else:
        torch.testing.assert_close(overloads.references.gru_cell(*gates, state, *biases)[0], cell(x, state))


OTHER_TENSORS = frozenset(
    [
        "_empty_affine_quantized",
        "_empty_per_channel_affine_quantized",
        "_make_per_channel_quantized_tensor",
        "_make_per_tensor_quantized_tensor",
        "dequantize",
        "quantize_per_channel",
        "quantize_per_tensor",
        "quantize_per_tensor_dynamic",
        "quantized_gru",
        "quantized_lstm",
        "mkldnn_rnn_layer",
        "mkldnn_rnn_layer_backward",
        "to_mkldnn",
        "_spdiags",
        "_to_sparse",
        "_to_sparse_bsc",
        "_to_sparse_bsr",
        "_to_sparse_csc",
        "_to_sparse_csr",
        "_validate_compressed_sparse_indices",
        "_nested_compute_contiguous_strides_offsets",
    ]
)
"""Operators on tensors that the device has none of: quantized, of other layouts, nested."""
NO_TENSORS = frozenset(
    [
        "_foobar",
        "_functional_assert_async",
        "_fused_sdp_choice",
        "_make_dep_token",
        "_test_functorch_fallback",
        "_test_optional_filled_intlist",
        "_test_optional_floatlist",
        "_test_optional_intlist",
        "from_file",
        "_cummax_helper",
        "_cummin_helper",
    ]
)
"""Operators that return nothing to compare, are another operator's inside, or PyTorch's own tests."""


def test_all_that_falls_back_is_in_the_table():
    found = set()
    for op in served.overloads():
        name = registry.overload_name(op)
        if served.served(op).kind == "fallback" and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
            found.add((name.removeprefix("aten::"), any(argument.is_out for argument in op._schema.arguments)))
    told = {name for name, is_out in found if not is_out and name.partition(".")[0] not in OTHER_TENSORS | NO_TENSORS}
    assert told == samples.FALLBACKS.keys()


def test_the_dtypes_of_an_overload_are_those_of_the_cpu():
    info = catalog.by_name()["aten::_int_mm"]
    assert [dtype for dtype in catalog.DTYPES if catalog.phases_of(info, catalog.dtype_of(dtype))] == ["int8"]
    info = catalog.by_name()["aten::norm.Scalar"]
    assert catalog.phases_of(info, torch.float32) == ["forward", "backward"]


def test_no_overload_is_of_the_database_too():
    names = {catalog.full_name(info) for info in catalog.operators()}
    assert len(names) == len(catalog.operators())
    assert all(gap.op in names for gap in Gaps.load().gaps)
