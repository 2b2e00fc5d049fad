"""The cost of programs that the TPU compiler has compiled: loops count as often as they run, and what is missing is named."""

import math
from dataclasses import replace

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

from torch_tpu import aot
from torch_tpu.aot import cost, stablehlo
from torch_tpu.runtime import compile_only
from torch_tpu.runtime.chips import CHIPS, HBM_BYTES
from torch_tpu.runtime.examine import examine
from torch_tpu.runtime.topology import GENERATIONS, Topology

N = 512
TYPE = f"tensor<{N}x{N}xbf16>"
ONE = 2 * N**3
STEPS = 12


def step(number, source, target):
    signature = f"({TYPE}, {TYPE}) -> {TYPE}"
    return (
        f"%m{number} = stablehlo.dot_general %{source}, %b, contracting_dims = [1] x [0] : {signature}\n"
        f"%{target} = stablehlo.tanh %m{number} : {TYPE}\n"
    )


def unrolled(steps):
    body = "".join(step(number, f"x{number}", f"x{number + 1}") for number in range(steps))
    return f"module @u {{\nfunc.func public @main(%x0: {TYPE}, %b: {TYPE}) -> {TYPE} {{\n{body}return %x{steps} : {TYPE}\n}}\n}}"


def loop(steps):
    return f"""module @l {{
func.func public @main(%a: {TYPE}, %b: {TYPE}) -> {TYPE} {{
%zero = stablehlo.constant dense<0> : tensor<i32>
%one = stablehlo.constant dense<1> : tensor<i32>
%n = stablehlo.constant dense<{steps}> : tensor<i32>
%r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {TYPE}
cond {{
%c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
stablehlo.return %c : tensor<i1>
}} do {{
{step(0, "x", "y")}%j = stablehlo.add %i, %one : tensor<i32>
stablehlo.return %j, %y : tensor<i32>, {TYPE}
}}
return %r#1 : {TYPE}
}}
}}"""


def plan(text, topology, processes=()):
    client = compile_only.client(Topology.parse(topology))
    return client.compile(text, [((N, N), torch.bfloat16)], processes=processes)


def analyzed(text, topology, processes=()):
    said = examine(plan(text, topology, processes))
    assert said.error == ""
    return cost.analyze(said.hlo, CHIPS[Topology.parse(topology).generation]), said


@pytest.mark.parametrize("generation", list(GENERATIONS))
def test_a_loop_costs_its_body_times_its_steps(generation):
    once, _ = analyzed(unrolled(1), generation)
    flat, flat_said = analyzed(unrolled(STEPS), generation)
    looped, looped_said = analyzed(loop(STEPS), generation)
    assert once.matrix == {"bf16": ONE}
    assert flat.matrix == looped.matrix == {"bf16": STEPS * ONE}
    assert [item.trips for item in looped.loops] == [STEPS]
    assert looped_said.cost["flops"] < 1.1 * ONE, "XLA's own count takes a body once"
    assert flat_said.cost["flops"] == pytest.approx(STEPS * ONE, rel=0.01)
    assert looped.estimated_cycles_found
    twice, four_times = (analyzed(loop(times * STEPS), generation)[0] for times in (2, 4))
    for name in ("estimate", "least", "cycles", "nbytes", "vector"):
        first, second, fourth = (getattr(found, name) for found in (looped, twice, four_times))
        assert fourth - second == pytest.approx(2 * (second - first), rel=1e-6), "every further step costs the same"
    assert looped.estimate < 3 * flat.estimate, "the body is one of the products, laid out otherwise"
    for found in (once, flat, looped, twice, four_times):
        assert 0 < found.least <= found.estimate <= found.cycles
        assert found.least >= found.matrix_flops / CHIPS[generation].peaks["bf16"] * 0.999
        assert not found.missing


def test_stablehlo_has_the_same_flops_through_loops_and_calls():
    assert stablehlo.count(unrolled(STEPS)).products == {"bf16": STEPS * ONE}
    assert stablehlo.count(loop(STEPS)).products == {"bf16": STEPS * ONE}
    weight = torch.empty(64, 64, device="meta")
    compiled = aot.compile(lambda x, w: ((x @ w) @ w).sum(), (torch.empty(8, 64, device="meta"), weight))
    assert compiled.stablehlo.count("func.call") == 3
    assert stablehlo.count(compiled.stablehlo).total == 2 * 2 * 8 * 64 * 64
    unknown = loop(STEPS).replace("%n = stablehlo.constant dense<12>", "%n = stablehlo.convert %b0")
    unknown = unknown.replace(f"%b: {TYPE})", f"%b: {TYPE}, %b0: tensor<i64>)")
    unknown = unknown.replace(
        "stablehlo.convert %b0 : tensor<i32>", "stablehlo.convert %b0 : (tensor<i64>) -> tensor<i32>"
    )
    found = stablehlo.count(unknown)
    assert (found.total, found.unknown_loops) == (ONE, 1)


def counting(start, more, step, dtype):
    """A loop of products with a counter."""

    def function(x, w):
        return while_loop(
            lambda i, x: more(i),
            lambda i, x: (step(i), torch.tanh(x @ w)),
            (torch.full((), start, dtype=dtype, device=x.device), x),
        )

    return function


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])  # the compiler compares those of 64 bits in two words
@pytest.mark.parametrize(
    ("start", "more", "step", "trips"),
    [
        (2, lambda i: i < 23, lambda i: i + 3, 7),
        (1, lambda i: i <= 4, lambda i: 1 + i, 4),
        (9, lambda i: i > 2, lambda i: i - 3, 3),
    ],
)
def test_loops_of_pytorch_count_as_often_as_they_run(start, more, step, trips, dtype):
    inputs = [torch.empty(128, 128, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    work = aot.compile(torch.compile(counting(start, more, step, dtype), dynamic=False), inputs).report.work
    assert work.requested_flops == work.flops == trips * 2 * 128**3


def test_loops_in_loops_count_as_often_as_they_run():
    inner = counting(0, lambda i: i < 5, lambda i: i + 1, torch.int32)

    def function(x, w):
        i = torch.zeros((), dtype=torch.int32, device=x.device)
        return while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, inner(x, w)[1]), (i, x))

    inputs = [torch.empty(128, 128, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    work = aot.compile(torch.compile(function, dynamic=False), inputs).report.work
    assert work.requested_flops == work.flops == 4 * 5 * 2 * 128**3


@pytest.mark.parametrize("generation", list(GENERATIONS))
def test_products_with_vectors_count_on_whatever_unit_they_run(generation):
    """A decoding step of one sequence: projections, and attention to a cache of keys and values."""

    def function(x, w, q, k, v):
        return x @ w, torch.softmax(q @ k.mT, -1) @ v, (x.float() * 2).sum()  # a sum of no product

    sizes = [(1, 512), (512, 1024), (8, 1, 128), (8, 256, 128), (8, 256, 128)]
    inputs = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes]
    report = aot.compile(function, inputs, generation).report
    products = 2 * 512 * 1024 + 2 * 2 * 8 * 256 * 128
    assert report.work.requested_flops == report.work.flops == sum(report.work.flops_by_kind.values()) == products
    assert ("vector" in report.work.flops_by_kind) == (generation != "v7x")
    assert report.rates.intensity > 0.9


def test_convolutions_and_batched_products_are_counted_as_xla_counts_them():
    def function(x, w, a, b):
        return torch.nn.functional.conv2d(x, w, padding=1).sum() + torch.bmm(a, b).sum()

    arrays = [(2, 8, 16, 16), (16, 8, 3, 3), (6, 32, 48), (6, 48, 24)]
    inputs = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in arrays]
    (program,) = aot.compile(function, inputs, "v6e").programs
    said = examine(program)
    found = cost.analyze(said.hlo, CHIPS["v6e"])
    products = 2 * 6 * 32 * 48 * 24
    padded = 2 * 2 * 16 * 8 * 9 * 16 * 16
    assert stablehlo.count(program.text).total == products + padded
    assert products < found.matrix_flops < 2 * (products + padded), "the compiler splits the image, with overlaps"
    assert said.cost["flops"] == pytest.approx(found.matrix_flops + found.vector, rel=0.02)


def test_collectives_are_said_to_be_missing():
    text = (
        unrolled(1)
        .replace(
            "return %x1",
            f""""stablehlo.custom_call"() {{call_target_name = "nothing", has_side_effect = false}} : () -> ()
%s = "stablehlo.all_reduce"(%x1) ({{
^bb0(%p: tensor<bf16>, %q: tensor<bf16>):
%t = stablehlo.add %p, %q : tensor<bf16>
stablehlo.return %t : tensor<bf16>
}}) {{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}} : ({TYPE}) -> {TYPE}
return %s""",
        )
        .replace('"stablehlo.custom_call"() {call_target_name = "nothing", has_side_effect = false} : () -> ()\n', "")
    )
    found, _ = analyzed(text, "v6e-4", processes=(0, 1, 2, 3))
    assert found.missing == {"all-reduce": 1}


def test_custom_calls_are_said_to_be_missing_but_not_the_compilers_own():
    text = """ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} custom-call(%a), custom_call_target="tpu_custom_call"
  ROOT %c = f32[8]{0} custom-call(%b), custom_call_target="ConcatBitcast"
}
"""
    assert cost.analyze(text, CHIPS["v6e"]).missing == {"custom call tpu_custom_call": 1}


def test_the_longest_branch_counts():
    text = """%short (p: f32[1024]) -> f32[1024] {
  ROOT %p = f32[1024]{0} parameter(0)
}

%long (q: f32[1024]) -> f32[1024] {
  %q = f32[1024]{0} parameter(0)
  ROOT %copy = f32[1024]{0} copy(%q)
}

ENTRY %main (c: pred[], a: f32[1024]) -> f32[1024] {
  %c = pred[] parameter(0)
  %a = f32[1024]{0} parameter(1)
  ROOT %r = f32[1024]{0} conditional(%c, %a, %a), branch_computations={%short, %long}
}
"""
    assert cost.analyze(text, CHIPS["v6e"]).nbytes == 2 * 4096


LAYER, STACK = 4096 * 4, 8 * 4096 * 4
"""Bytes of a slice, and of all slices."""
SLICED = """HloModule sliced
%retile (a: f32[8,4096]) -> f32[8,4096] {
  %a = f32[8,4096]{1,0:T(1,128)} parameter(0)
  ROOT %copy.1 = f32[8,4096]{1,0:T(8,128)} copy(%a)
}
%update (stack: f32[8,4096], i: s32[], x: f32[8,4096]) -> f32[8,4096] {
  %stack = f32[8,4096]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = f32[8,4096]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %seen = f32[8,4096]{1,0} fusion(%x), kind=kLoop, calls=%retile
  %one = f32[1,4096]{1,0} READ
  %two = f32[1,4096]{1,0} negate(%one)
  %put = f32[8,4096]{1,0} dynamic-update-slice(%stack, %two, %i, %zero)
  ROOT %kept = f32[8,4096]{1,0} fusion(%put), kind=kLoop, calls=%retile
}
ENTRY %main (stack: f32[8,4096], i: s32[], x: f32[8,4096]) -> f32[8,4096] {
  %stack.1 = f32[8,4096]{1,0} parameter(0)
  %i.1 = s32[] parameter(1)
  %x.1 = f32[8,4096]{1,0} parameter(2)
  ROOT %done = f32[8,4096]{1,0} fusion(%stack.1, %i.1, %x.1), kind=kLoop, calls=%update
}
"""


@pytest.mark.parametrize(
    ("read", "nbytes"),
    [
        ("dynamic-slice(%seen, %i, %zero), dynamic_slice_sizes={1,4096}", LAYER),  # of one layer's weights
        ("reduce-window(%seen)", STACK),  # of all
    ],
)
def test_slices_of_stacks_are_all_that_is_moved(read, nbytes):
    """A loop over layers reads one of them in each turn, whatever layout the compiler sees it in, and writes one."""
    found = cost.analyze(SLICED.replace("READ", read), CHIPS["v6e"])
    index = 4
    assert found.nbytes == nbytes + LAYER + index


def test_what_is_said_is_kept_on_disk(empty_cache, monkeypatch):
    program = plan(unrolled(1), "v6e-1")
    said = examine(program)
    monkeypatch.setattr(type(program), "compile_raw", lambda *_: pytest.fail("asked again"))
    again = examine(program)
    assert again == said
    assert again.memory.arguments == 2 * 2 * N * N


@pytest.mark.parametrize("generation", list(GENERATIONS))
def test_facts_of_chips_agree(generation):
    chip = CHIPS[generation]
    assert HBM_BYTES[chip.name] == chip.hbm
    assert 0.9 * chip.hbm < chip.usable_hbm < chip.hbm
    assert 1.4e9 < chip.cycles_per_second < 2.4e9
    assert math.log2(chip.matrix_flops_per_cycle).is_integer()


def test_a_v5p_splits_operations_over_two_vector_units():
    size = "tensor<8x128xf32>"
    body = "".join(f"%x{i + 1} = stablehlo.tanh %x{i} : {size}\n" for i in range(64))
    text = f"module @t {{\nfunc.func public @main(%x0: {size}) -> {size} {{\n{body}return %x64 : {size}\n}}\n}}"
    client = compile_only.client(Topology.parse("v5p-1"))
    hlo = examine(client.compile(text, [((8, 128), torch.float32)])).hlo
    chip = CHIPS["v5p"]
    both, one = cost.analyze(hlo, chip), cost.analyze(hlo, replace(chip, vector_units=1))
    assert both.bounds["vector"] == pytest.approx(one.bounds["vector"] / 2)
    assert both.least == pytest.approx(64 / 2 / chip.cycles_per_second)
