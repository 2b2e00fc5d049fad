"""The compiler's dumps of buffers: what is alive when most of HBM is in use."""

from torch_tpu.aot import buffers

ASSIGNMENT = """BufferAssignment:
allocation 0: size 4096, page 0, parameter 0, shape |f32[1024]| at ShapeIndex {}, maybe-live-out:
 value: <1 Arg_0.1 @0> (size=4096,offset=0): f32[1024]{0:T(1024)}
allocation 1: size 2048, page 0, maybe-live-out:
 value: <2 add.1 @0> (size=2048,offset=0): f32[512]{0:T(512)}
allocation 2: size 9000, page 0, preallocated-temp:
 value: <3 early.1{} @0> (size=8192,offset=0): (f32[8]{0}, f32[8]{0})
 value: <4 early.1{0} @0> (size=8000,offset=0): f32[2000]{0:T(1024)}
 value: <5 late.2 @0> (size=6000,offset=0): bf16[3000]{0:T(1024)(128)(2,1)}
 value: <6 late.3 @0> (size=3000,offset=6000): bf16[1500]{0:T(1024)(128)(2,1)}
allocation 3: size 65536, color 1, page 0, preallocated-temp:
 value: <7 fast.4 @1> (size=65536,offset=0): f32[16384]{0:T(1024)S(1)}
"""
RANGES = """  Live ranges:
    Arg_0.1{}:0-9
    early.1{}:1-2
    early.1{0}:1-3
    fast.4{}:2-3
    late.2{}:5-5
    late.3{}:6-8
    add.1{}:7-9
  Live ranges at 2 (peak):
    fast.4{}: 65536 bytes (cumulative: 65536 bytes)
    early.1{0}: 8000 bytes (cumulative: 73536 bytes)
"""


def test_the_moment_is_that_of_hbm():
    found = buffers.parse(ASSIGNMENT, RANGES)
    assert (found.arguments, found.outputs, found.temporaries) == (4096, 2048, 9000)
    assert [(group.kind, group.shape, group.nbytes) for group in found.largest] == [
        ("temporary", "f32[2000]", 8000),
        ("argument", "f32[1024]", 4096),
    ]


def test_values_that_are_alive_together_count_together():
    longer = RANGES.replace("early.1{}:1-2", "early.1{}:1-1").replace("early.1{0}:1-3", "early.1{0}:2-3")
    longer = longer.replace("late.2{}:5-5", "late.2{}:5-7")
    found = buffers.parse(ASSIGNMENT, longer)
    assert sorted(group.shape for group in found.largest) == ["bf16[1500]", "bf16[3000]", "f32[1024]", "f32[512]"]


def test_values_in_one_place_count_once():
    """A result that is made in the memory of its operand is alive together with it for a moment."""
    ranges = RANGES.replace("late.2{}:5-5", "late.2{}:3-6")
    found = buffers.parse(ASSIGNMENT, ranges)
    assert {(group.shape, group.nbytes) for group in found.largest if group.kind != "argument"} == {
        ("bf16[3000]", 6000),
        ("bf16[1500]", 3000),
    }, "9000 bytes at 6; at 3 the first 8000 hold both"
    found = buffers.parse(ASSIGNMENT, ranges.replace("early.1{0}:1-3", "early.1{0}:1-7"))
    assert {group.shape for group in found.largest if group.kind != "argument"} == {
        "f32[2000]",
        "bf16[1500]",
        "f32[512]",
    }
    smaller = ASSIGNMENT.replace("(size=6000,offset=0)", "(size=5000,offset=0)").replace("late.3", "other")
    found = buffers.parse(smaller, ranges.replace("add.1{}:7-9", "add.1{}:4-9"))
    assert {group.shape for group in found.largest if group.kind != "argument"} == {"f32[2000]"}, (
        "what died takes nothing"
    )


def test_nothing_is_known_without_an_assignment():
    assert buffers.parse("", RANGES) is None
    assert [group.kind for group in buffers.parse(ASSIGNMENT, "").largest] == ["argument"]
