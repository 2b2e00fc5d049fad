"""Topologies by name."""

import pytest

from torch_tpu.runtime.topology import Topology


@pytest.mark.parametrize(
    ("name", "pjrt", "devices"),
    [
        ("v5e-1", "v5e:1x1", 1),
        ("v5e", "v5e:1x1", 1),
        ("v6e-8", "v6e:2x4", 8),
        ("V6E-256", "v6e:16x16", 256),
        ("v5p-8", "v5p:2x2x2", 8),
        ("v5p-128", "v5p:4x4x8", 128),
        ("v5p-8960", "v5p:16x20x28", 8960),
        ("v7x-1", "tpu7x:1x1x1", 2),
        ("tpu7x-8", "tpu7x:2x2x2", 16),
        ("v5litepod-8", "v5e:2x4", 8),
        ("v7x-1024", "tpu7x:8x8x16", 2048),
    ],
)
def test_names(name, pjrt, devices):
    topology = Topology.parse(name)
    assert topology.pjrt_name == pjrt
    assert topology.devices == devices
    assert Topology.parse(topology.name) == topology == Topology.parse(topology)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("h100-8", "no TPU generation 'h100'"),
        ("v6e-3", "v6e does not come with 3 chips"),
        ("v6e-512", "up to 256"),
        ("v5p-96", "multiples of 64"),
        ("v5p-0", "0 chips"),
        ("v6e-2x4", "a number of chips"),
        ("v6e-", "'v6e-' is no topology: write a generation and a number of chips, such as v6e-8"),
    ],
)
def test_wrong_names_say_what_there_is(name, reason):
    with pytest.raises(ValueError, match=reason):
        Topology.parse(name)


def test_a_number_alone_is_no_topology():
    with pytest.raises(TypeError, match="such as 'v6e-8', not 8"):
        Topology.parse(8)
