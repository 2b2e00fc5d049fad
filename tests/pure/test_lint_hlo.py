"""Reading the text of optimized HLO and StableHLO, and what is found in it. The texts are the TPU compiler's, shortened."""

from __future__ import annotations

import pytest

from torch_tpu.aot import hlo_text, loops
from torch_tpu.aot.hlo_text import Spot
from torch_tpu.linter import products, rules

MODULE = """HloModule fused, is_scheduled=true, entry_computation_layout={(bf16[4,512]{1,0:T(4,128)(2,1)})->bf16[512,4]{0,1}}

FileNames
1 "/models/model.py"

FunctionNames
1 "aten::bmm"

FileLocations
1 {file_name_id=1 function_name_id=1 line=11 end_line=11 column=3 end_column=3}
2 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=5 end_column=5}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}


%moving (p: bf16[4,512]) -> bf16[512,4] {
  %p = bf16[4,512]{1,0:T(4,128)(2,1)S(1)} parameter(0)
  %slice.1 = bf16[4,512]{1,0:T(4,128)(2,1)} slice(%p), slice={[0:4], [0:512]}
  ROOT %transpose.1 = bf16[512,4]{0,1:T(4,128)(2,1)} transpose(%slice.1), dimensions={1,0}
}

%product (a: bf16[512,4]) -> f32[512,512] {
  %a = bf16[512,4]{0,1:T(4,128)(2,1)} parameter(0)
  ROOT %convolution.1 = f32[512,512]{1,0:T(8,128)} convolution(%a, %a), dim_labels=bf_io->bf, metadata={op_name="jit(f)/aten::bmm" stack_frame_id=2}
}

%body (s: (bf16[4,512], s32[])) -> (bf16[4,512], s32[]) {
  %s = (bf16[4,512]{1,0:T(4,128)(2,1)}, s32[]{:T(128)}) parameter(0)
  %x = bf16[4,512]{1,0:T(4,128)(2,1)} get-tuple-element(%s), index=0
  %copy.9 = bf16[4,512]{0,1:T(8,128)(2,1)} copy(%x), metadata={source_file="loop.py" source_line=7 source_column=2}, backend_config={"window_config":{"estimated_cycles":"100"}}
  %n = s32[]{:T(128)} get-tuple-element(%s), index=1
  ROOT %t = (bf16[4,512]{0,1:T(8,128)(2,1)}, s32[]{:T(128)}) tuple(%copy.9, %n)
}

ENTRY %main.5 (arg: bf16[4,512], n: s32[]) -> (f32[512,512]) {
  %arg = bf16[4,512]{1,0:T(4,128)(2,1)} parameter(0)
  %n.1 = s32[]{:T(128)} parameter(1)
  %copy-start = (bf16[4,512]{1,0:T(4,128)(2,1)S(1)}, bf16[4,512]{1,0:T(4,128)(2,1)}, u32[]{:S(2)}) copy-start(%arg)
  %copy-done = bf16[4,512]{1,0:T(4,128)(2,1)S(1)} copy-done(%copy-start)
  %copy.1 = bf16[4,512]{1,0:T(4,128)(2,1)S(1)} copy(%arg), backend_config={"window_config":{"estimated_cycles":"5"}}
  %moving_fusion = bf16[512,4]{0,1:T(4,128)(2,1)} fusion(%copy-done), kind=kLoop, calls=%moving, backend_config={"window_config":{"estimated_cycles":"3000"}}
  %tuple.1 = (bf16[4,512]{1,0:T(4,128)(2,1)}, s32[]{:T(128)}) tuple(%arg, /*index=1*/%n.1)
  %while.1 = (bf16[4,512]{0,1:T(8,128)(2,1)}, s32[]{:T(128)}) while(%tuple.1), condition=%body, body=%body, backend_config={"known_trip_count":{"n":"10"}}
  %high = u32[]{:T(128)} custom-call(%n.1), custom_call_target="X64SplitHigh"
  ROOT %fusion.2 = f32[512,512]{1,0:T(8,128)} fusion(%moving_fusion), kind=kOutput, calls=%product, metadata={op_name="aten::bmm" stack_frame_id=2}, backend_config={"window_config":{"estimated_cycles":"4000"}}
}
"""


@pytest.fixture(scope="module")
def module():
    return hlo_text.parse(MODULE)


@pytest.fixture(scope="module")
def main(module):
    assert module.entry is module.computations["main.5"]
    return module.entry


@pytest.mark.parametrize(
    "shape, plain, padded",
    [
        # These three are a program's arguments, for which XLA says 2953216 bytes.
        ("bf16[4,100,12,64]{1,3,2,0:T(8,128)(2,1)}", 614400, 786432),
        ("f32[768,700]{0,1:T(8,128)}", 2150400, 2162688),
        ("f64[100,3]{0,1:T(4,128)}", 2400, 4096),
        ("f32[]{:T(128)}", 4, 512),
        ("pred[3,5]{1,0:T(8,128)(4,1)S(1)}", 15, 1024),
        ("s4[2,6]{1,0}", 6, 6),
        ("bf16[2048,2304]{1,0:T(8,128)(2,1)}", 9437184, 9437184),
    ],
)
def test_sizes_with_and_without_padding(shape, plain, padded):
    (array,) = hlo_text.shapes_of(shape)
    assert (array.nbytes, array.padded_bytes) == (plain, padded)


def test_shapes_of_tuples_and_memory_spaces():
    first, second, third = hlo_text.shapes_of("(bf16[4,512]{1,0:T(4,128)(2,1)S(1)}, pred[]{:T(512)}, u32[<=7]{0:S(2)})")
    assert (first.dims, first.order, first.tile, first.space) == ((4, 512), (1, 0), (4, 128), 1)
    assert (second.dims, third.dims, third.space) == ((), (7,), 2)
    assert f"{first}{first.layout}" == "bf16[4,512]{1,0:T(4,128)}"


def test_instructions(main):
    assert list(main.by_name)[:2] == ["arg", "n.1"]
    fusion = main.by_name["fusion.2"]
    assert (fusion.opcode, fusion.operands, fusion.called, fusion.cycles) == (
        "fusion",
        ["moving_fusion"],
        ["product"],
        4000,
    )
    assert (fusion.spot, fusion.operator) == (Spot("/models/model.py", 12, 5), "aten::bmm")
    assert main.by_name["tuple.1"].operands == ["arg", "n.1"]
    assert main.by_name["high"].attribute("custom_call_target") == "X64SplitHigh"
    assert [user.name for user in main.users["moving_fusion"]] == ["fusion.2"]


def test_loops_count_as_often_as_they_turn(module):
    assert {(computation.name, times) for computation, times in loops.executed(module)} == {("main.5", 1), ("body", 10)}


def test_fusions_are_looked_into(module, main):
    assert [item.opcode for item in module.inside(main.by_name["moving_fusion"])] == [
        "parameter",
        "slice",
        "transpose",
    ]
    assert [item.name for item in module.inside(main.by_name["copy.1"])] == ["copy.1"]


def test_only_changes_of_layout_are_relayouts(module):
    from torch_tpu.linter.program import _change_of_layout

    found = {
        instruction.name: change
        for computation, _ in loops.executed(module)
        for instruction in computation.instructions
        if (change := _change_of_layout(module, computation, instruction))
    }
    assert found == {
        "moving_fusion": "bf16[4,512]{1,0:T(4,128)} -> bf16[512,4]{0,1:T(4,128)}",
        "copy.9": "bf16[4,512]{1,0:T(4,128)} -> bf16[4,512]{0,1:T(8,128)}",
    }


def test_an_instruction_without_a_place_has_that_of_its_user(main):
    from torch_tpu.linter.program import place

    assert place(main, main.by_name["moving_fusion"]) == (Spot("/models/model.py", 12, 5), "aten::bmm")
    assert place(main, main.by_name["high"]) == (None, "")


# ---------------------------------------------------------------------------------------------------------- StableHLO

LOC = ' loc("aten::bmm"("/models/model.py":12:5))'
PROGRAM = f"""module @fused {{
func.func public @main(%arg0: tensor<48x512x64xbf16>) -> (tensor<48x512x512xf32>) {{
%1 = func.call @f0(%arg0) : (tensor<48x512x64xbf16>) -> (tensor<48x512x512xf32>)
%2 = func.call @f0(%arg0) : (tensor<48x512x64xbf16>) -> (tensor<48x512x512xf32>)
return %1 : tensor<48x512x512xf32>
}}
func.func private @f0(%arg0: tensor<48x512x64xbf16>) -> (tensor<48x512x512xf32>) {{
%3 = stablehlo.dot_general %arg0, %arg0, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [HIGH, HIGH] : (tensor<48x512x64xbf16>, tensor<48x512x64xbf16>) -> tensor<48x512x512xf32>{LOC}
%4 = stablehlo.convert %3 : (tensor<48x512x512xf32>) -> tensor<48x512x512xf64>{LOC}
%5 = stablehlo.add %6, %6 : tensor<3xi64>{LOC}
%7 = stablehlo.constant dense<0> : tensor<5000xi64>{LOC}
return %3 : tensor<48x512x512xf32>
}}
}}
"""


def test_products_and_how_often_they_run():
    ((spot, product, times),) = products.products(PROGRAM)
    assert (spot, times) == (Spot("/models/model.py", 12, 5), 2)
    assert str(product) == "48 x [512, 64] x [64, 512]"
    assert product.operations == 2 * 48 * 512 * 64 * 512 * 3
    assert product.unaligned() == ["64 elements are contracted, a head"]


def test_operations_in_wide_dtypes_that_are_large():
    assert set(products.wide_operations(PROGRAM)) == {(Spot("/models/model.py", 12, 5), "float64")}


@pytest.mark.parametrize(
    "cycles, found",
    [(2_000_000, [rules.UnalignedProduct]), (30_000, [])],
)
def test_products_are_judged_by_what_the_compiler_expects(cycles, found):
    """Of the peak of 524288 operations a cycle, two times 4.8e9 take 18432 cycles."""
    module = hlo_text.parse(MODULE.replace('"4000"', f'"{cycles}"'))
    findings = list(products.judge([(PROGRAM, module, 1)], "v6e", cycles, 0.01))
    assert [finding[0] for finding in findings] == found
    for _, spot, reason, _ in findings:
        assert spot.line == 12 and "0.9% of the matrix units' rate, in 100.0% of the cycles" in reason


def test_products_of_little_share_are_not_reported():
    assert list(products.judge([(PROGRAM, hlo_text.parse(MODULE), 1)], "v6e", 10**9, 0.01)) == []
