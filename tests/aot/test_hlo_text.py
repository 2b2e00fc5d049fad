"""Reading optimized HLO: the parser, the work of single instructions, and how often loops run."""

import pytest

from torch_tpu.aot import hlo_text, hlo_work, loops

TEXT = """\
HloModule step, is_scheduled=true

%inner (p: bf16[64,32]) -> bf16[64,32] {
  %p = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %bitcast = bf16[64,32]{1,0:T(8,128)(2,1)} bitcast(%p)
}

%fused (p0: bf16[4,64,32], p1: s32[], p2: bf16[32,16]) -> bf16[64,16] {
  %p0 = bf16[4,64,32]{2,1,0:T(8,128)(2,1)} parameter(0)
  %p1 = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %slice = bf16[1,64,32]{2,1,0:T(8,128)(2,1)} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,64,32}
  %plane = bf16[64,32]{1,0:T(8,128)(2,1)} bitcast(%slice)
  %nested = bf16[64,32]{1,0:T(8,128)(2,1)} fusion(%plane), kind=kLoop, calls=%inner
  %p2 = bf16[32,16]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %product = bf16[64,16]{1,0:T(8,128)(2,1)} convolution(%nested, %p2), dim_labels=bf_io->bf
  ROOT %tanh = bf16[64,16]{1,0:T(8,128)(2,1)} tanh(%product), metadata={source_file="m.py" source_line=7}
}

%body (state: (s32[], bf16[4,64,32])) -> (s32[], bf16[4,64,32]) {
  %state = (s32[]{:T(128)}, bf16[4,64,32]{2,1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %two = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%two, %i)
  %x = bf16[4,64,32]{2,1,0} get-tuple-element(%state), index=1
  ROOT %out = (s32[]{:T(128)}, bf16[4,64,32]{2,1,0}) tuple(%next, %x)
}

%condition (state.1: (s32[], bf16[4,64,32])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[4,64,32]{2,1,0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %limit = s32[]{:T(128)} constant(9)
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

ENTRY %main (a: bf16[4,64,32], b: bf16[32,16]) -> (bf16[64,16], bf16[4,64,32]) {
  %a = bf16[4,64,32]{2,1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[32,16]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %start = s32[]{:T(128)} constant(1)
  %begin = s32[]{:T(128)} copy(%start)
  %init = (s32[]{:T(128)}, bf16[4,64,32]{2,1,0}) tuple(%begin, %a)
  %while = (s32[]{:T(128)}, bf16[4,64,32]{2,1,0}, /*index=2*/ u32[]{:S(2)}) while(%init), condition=%condition, body=%body
  %product_fusion = bf16[64,16]{1,0:T(8,128)(2,1)} fusion(%a, %start, %b), kind=kOutput, calls=%fused, \
metadata={source_file="-" source_line=12 source_column=3}, backend_config={"window_config":{"estimated_cycles":"4321"}}
  ROOT %result = (bf16[64,16]{1,0}, bf16[4,64,32]{2,1,0}) tuple(%product_fusion, %a)
}
"""


@pytest.fixture(scope="module")
def module():
    return hlo_text.parse(TEXT)


def test_computations_and_instructions(module):
    assert list(module.computations) == ["inner", "fused", "body", "condition", "main"]
    assert module.entry.name == "main" and module.entry.root.name == "result"
    fusion = module.entry.by_name["product_fusion"]
    assert fusion.operands == ["a", "start", "b"] and fusion.called == ["fused"]
    assert fusion.cycles == 4321 and fusion.source == "-:12"
    assert module.entry.by_name["while"].called == ["condition", "body"]
    assert module.entry.by_name["while"].opcode == "while", "after a type that is a tuple with a comment in it"
    assert module.computations["fused"].root.source == "m.py:7"


def test_shapes(module):
    first, third = (module.entry.by_name["while"].shapes[place] for place in (1, 2))
    assert (first.dtype, first.dims, first.nbytes, first.space) == ("bf16", (4, 64, 32), 4 * 64 * 32 * 2, 0)
    assert (third.nbytes, third.space, third.hbm_bytes) == (4, 2, 0)
    assert hlo_text.shapes_of("f8e4m3fn[3,5]{1,0}, s4[7]{0}, token[], pred[<=9]{0}") == [
        hlo_text.Shape("f8e4m3fn", (3, 5), 0, "1,0"),
        hlo_text.Shape("s4", (7,), 0, "0"),
        hlo_text.Shape("token", (), 0),
        hlo_text.Shape("pred", (9,), 0, "0"),
    ]
    assert [shape.nbytes for shape in hlo_text.shapes_of("f8e4m3fn[3,5] s4[7] token[] c64[2]")] == [15, 4, 0, 16]


def test_what_the_compiler_does_not_know_is_no_estimate():
    text = TEXT.replace("4321", str(2**63 - 1))
    assert hlo_text.parse(text).entry.by_name["product_fusion"].cycles is None


def test_a_fusion_does_what_is_in_it_and_reads_what_it_slices(module):
    work = hlo_work.work_of(module, module.entry, module.entry.by_name["product_fusion"])
    assert work.matrix == {("bf16", 1): 2 * 64 * 16 * 32}
    assert work.transcendental == 64 * 16
    read, written = 64 * 32 * 2 + 4, 64 * 16 * 2  # a slice of one operand, the index, and nothing of what is in VMEM
    assert work.nbytes == read + written


def test_an_operand_that_passes_through_an_inner_fusion_is_read_whole():
    text = """\
%inner (p: bf16[64,32]) -> bf16[2048] {
  %p = bf16[64,32]{1,0} parameter(0)
  ROOT %bitcast = bf16[2048]{0} bitcast(%p)
}

%fused (q: bf16[64,32]) -> bf16[2048] {
  %q = bf16[64,32]{1,0} parameter(0)
  %flat = bf16[2048]{0} fusion(%q), kind=kLoop, calls=%inner
  ROOT %tanh = bf16[2048]{0:S(1)} tanh(%flat)
}

ENTRY %main (a: bf16[64,32]) -> bf16[2048] {
  %a = bf16[64,32]{1,0} parameter(0)
  ROOT %fusion = bf16[2048]{0:S(1)} fusion(%a), kind=kLoop, calls=%fused
}
"""
    module = hlo_text.parse(text)
    assert hlo_work.work_of(module, module.entry, module.entry.root).nbytes == 2 * 64 * 32


@pytest.mark.parametrize(("source", "target", "nbytes"), [(0, 1, 256), (1, 0, 256), (0, 0, 512), (1, 1, 0)])
def test_an_asynchronous_slice_reads_and_writes_what_is_in_hbm(source, target, nbytes):
    text = f"""\
%async (p: s8[1024]) -> s8[256] {{
  %p = s8[1024]{{0:S({source})}} parameter(0)
  ROOT %slice = s8[256]{{0:S({target})}} slice(%p), slice={{[0:256]}}
}}

ENTRY %main (a: s8[1024]) -> s8[256] {{
  %a = s8[1024]{{0:S({source})}} parameter(0)
  %start = ((s8[1024]{{0:S({source})}}), s8[256]{{0:S({target})}}, s32[]{{:S(2)}}) async-start(%a), calls=%async
  ROOT %done = s8[256]{{0:S({target})}} async-done(%start)
}}
"""
    module = hlo_text.parse(text)
    assert sum(hlo_work.work_of(module, module.entry, i).nbytes for i in module.entry.instructions) == nbytes


def test_a_buffer_that_is_updated_in_place_counts_by_the_update():
    text = """\
%fused (p0: f32[100,8], p1: f32[1,8], p2: s32[]) -> f32[100,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = f32[1,8]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  ROOT %update = f32[100,8]{1,0} dynamic-update-slice(%p0, %p1, %p2, %p2)
}

ENTRY %main (a: f32[100,8], b: f32[1,8], i: s32[]) -> f32[100,8] {
  %a = f32[100,8]{1,0} parameter(0)
  %b = f32[1,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %fusion = f32[100,8]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%fused
}
"""
    module = hlo_text.parse(text)
    assert hlo_work.work_of(module, module.entry, module.entry.root).nbytes == 8 * 4 + 4 + 8 * 4


@pytest.mark.parametrize(
    ("attributes", "lhs", "rhs", "out", "multiplies"),
    [
        # A batched product of 4 x [8, 16] @ [16, 32], which the compiler writes as a convolution over the batch.
        (
            "window={size=4 stride=3 pad=3_3 lhs_dilate=4 rhs_reversal=1}, dim_labels=0bf_0io->0bf",
            (4, 8, 16),
            (4, 16, 32),
            (4, 8, 32),
            4 * 8 * 16 * 32,
        ),
        # A 3 x 3 convolution of 5 x 5 pixels that are padded by 1: at the border there is less to multiply.
        (
            "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            (2, 5, 5, 3),
            (3, 3, 3, 7),
            (2, 5, 5, 7),
            2 * 13 * 13 * 3 * 7,
        ),
        # Grouped: each of 4 groups has 2 input features.
        (
            "window={size=1x1}, dim_labels=b01f_01io->b01f, feature_group_count=4",
            (1, 6, 6, 8),
            (1, 1, 2, 8),
            (1, 6, 6, 8),
            36 * 2 * 8,
        ),
    ],
)
def test_products_with_padding_do_not_count(attributes, lhs, rhs, out, multiplies):
    def array(name, dims, rest):
        return f"  %{name} = bf16[{','.join(map(str, dims))}]{{0}} {rest}\n"

    text = "ENTRY %main (a: bf16[1], b: bf16[1]) -> bf16[1] {\n"
    text += array("a", lhs, "parameter(0)") + array("b", rhs, "parameter(1)")
    text += array("c", out, f"convolution(%a, %b), {attributes}").replace("  %c", "  ROOT %c") + "}\n"
    module = hlo_text.parse(text)
    assert hlo_work.work_of(module, module.entry, module.entry.root).matrix_flops == 2 * multiplies


@pytest.mark.parametrize(
    ("changes", "trips"),
    [
        ({}, 4),  # 1, 3, 5, 7
        ({"direction=LT": "direction=LE"}, 5),
        ({"direction=LT": "direction=NE"}, 4),
        ({"constant(2)": "constant(3)", "direction=LT": "direction=NE"}, None),  # 1, 4, 7, 10: never 9
        ({"compare(%i.1, %limit), direction=LT": "compare(%limit, %i.1), direction=GT"}, 4),
        ({"constant(1)": "constant(20)"}, 0),
        (  # down: 9, 7, 5, 3
            {
                "%limit = s32[]{:T(128)} constant(9)": "%limit = s32[]{:T(128)} constant(1)",
                "%start = s32[]{:T(128)} constant(1)": "%start = s32[]{:T(128)} constant(9)",
                "add(%two, %i)": "subtract(%i, %two)",
                "direction=LT": "direction=GT",
            },
            4,
        ),
        ({"add(%two, %i)": "multiply(%two, %i)"}, None),
        ({"constant(9)": 'custom-call(), custom_call_target="n"'}, None),
        ({"body=%body": 'body=%body, backend_config={"known_trip_count":{"n":"77"}}'}, 77),
    ],
)
def test_how_often_a_loop_runs(changes, trips):
    text = TEXT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    module = hlo_text.parse(text)
    assert loops.trip_count(module, module.entry, module.entry.by_name["while"]) == trips


def test_text_that_is_no_module():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo_text.parse("hello")
