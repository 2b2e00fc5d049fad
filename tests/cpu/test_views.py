"""Views share memory: every view, written through and read back, against the CPU."""

from __future__ import annotations

import pytest
import torch

VIEWS = {
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(4, 6),
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "select": lambda x: x.select(1, 2),
    "stepped slice": lambda x: x[1:5:2],
    "columns": lambda x: x[:, 1:3],
    "corner": lambda x: x[2:, 2:],
    "diagonal": lambda x: x.diagonal(),
    "diagonal below": lambda x: x.diagonal(-1),
    "unfold": lambda x: x.unfold(0, 2, 2),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x[None].squeeze(0),
    "unbind": lambda x: x.unbind(1)[1],
    "split": lambda x: x.split(2)[1],
    "chunk": lambda x: x.chunk(3)[2],
    "detach": lambda x: x.detach(),
    "movedim": lambda x: x.movedim(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "flatten": lambda x: x.flatten(),
    "as_strided": lambda x: x.as_strided((3, 2), (5, 2), 1),
    "slice of a transpose": lambda x: x.t()[1:3, ::2],
    "transpose of a slice": lambda x: x[::2, 1:].t(),
    "expand of one": lambda x: x[:1].expand(1, 4),
    "data": lambda x: x.data,
    "real": lambda x: x.real,
    "int32": lambda x: x.view(torch.int32),
    "bytes": lambda x: x.view(torch.uint8)[:, 1::4],
}


def pair(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.arange(24, dtype=dtype).view(6, 4)
    return host, host.to("tpu")


@pytest.mark.parametrize("name", VIEWS)
def test_views_alias(name):
    host, device = pair()
    seen, expected = VIEWS[name](device), VIEWS[name](host)
    assert seen.shape == expected.shape and seen.stride() == expected.stride()
    assert seen.storage_offset() == expected.storage_offset()
    assert torch.equal(seen.cpu(), expected)
    for write in (lambda v: v.fill_(3), lambda v: v.add_(2), lambda v: v.copy_(torch.ones(v.shape, device=v.device))):
        write(seen)
        write(expected)
        assert torch.equal(device.cpu(), host)
    host.add_(1)
    device.add_(1)
    assert torch.equal(seen.cpu(), expected)


def test_complex_views():
    host = torch.randn(3, 2, dtype=torch.complex64)
    device = host.to("tpu")
    for view in (torch.view_as_real, lambda x: x.real, lambda x: x.imag, lambda x: x.conj().imag, lambda x: x.t().real):
        assert torch.equal(view(device).cpu(), view(host))
        view(device).mul_(2)
        view(host).mul_(2)
        assert torch.equal(device.cpu(), host)
    assert device.conj().is_conj() and torch.equal(device.conj().resolve_conj().cpu(), host.conj())
    assert torch.equal(torch.view_as_complex(torch.view_as_real(device)).cpu(), host)


def test_overlap():
    x = torch.arange(3, device="tpu").expand(2, 3)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        x.add_(1)
    y = torch.arange(6.0, device="tpu")
    y[1:].copy_(y[:-1].clone())
    assert y.tolist() == [0, 0, 1, 2, 3, 4]


SHARED = {
    "in place": lambda x: x[1:].add_(x[:-1]),
    "lerp": lambda x: x[:-1].lerp_(x[1:], 0.5),
    "out": lambda x: torch.exp(x[:-1], out=x[1:]),
    "copy": lambda x: x[1:].copy_(x[:-1]),
    "assignment": lambda x: x.__setitem__(slice(2, 5), x[:3]),
    "another order": lambda x: x[:4].view(2, 2).mul_(x[:4].view(2, 2).t()),
    "foreach": lambda x: torch._foreach_add_([x[:2], x[3:4]], [x[1:3], x[5:]]),
    "cumsum": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "where": lambda x: torch.where(x[1:] > 2, x[1:], -x[1:], out=x[:-1]),
    "index_add": lambda x: x.index_add_(0, torch.tensor([0, 1], device=x.device), x[2:4]),
    "index_put": lambda x: x.__setitem__(torch.tensor([0, 1], device=x.device), x[2:4]),
    "scatter": lambda x: x.scatter_(0, torch.tensor([0, 1], device=x.device), x[2:4]),
    "gather": lambda x: torch.gather(x, 0, torch.tensor([0, 1], device=x.device), out=x[4:]),
    "cat": lambda x: torch.cat([x[:2], x[4:]], out=x[2:]),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_what_is_written_shares_no_elements_with_what_is_read(name, mode):
    with torch.tpu.set_eager_mode(mode):
        for device in ("cpu", "tpu"):
            x = torch.arange(6.0, device=device)
            with pytest.raises(RuntimeError, match="Please clone"):
                SHARED[name](x)
            assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_all_elements_in_the_same_order_may_be_shared(counters):
    for device in ("cpu", "tpu"):
        x = torch.arange(6.0, device=device)
        x[1:].add_(x[1:])
        torch.neg(x[:2], out=x[:2])
        x[:2].add_(x[2:4])
        x[4:].copy_(x[4:]), x.copy_(x)
        torch._foreach_mul_([x[:3], x[3:]], [x[:3], x[3:]])
        assert x.tolist() == [16, 16, 16, 36, 64, 100]
    assert not counters.fallbacks


def test_masks_and_copies_may_be_of_what_is_written(counters):
    for device in ("cpu", "tpu"):
        mask = torch.tensor([True, False, True], device=device)
        x, index = torch.arange(3.0, device=device), torch.tensor([2, 0, 1], device=device)
        x[mask] = x[1]
        assert x.tolist() == [1, 1, 1]
        torch.index_add(x, 0, index, x * 2, out=x)
        x.masked_fill_(mask, x[1]), x.masked_scatter_(mask, x), x.index_fill_(0, index[:1], x[0])
        assert x.tolist() == [3, 3, 3]
        mask[mask] = False
        assert not mask.any()
    assert not counters.fallbacks


def test_a_program_for_any_offset_refuses_those_that_overlap(counters):
    x = torch.arange(8.0, device="tpu")
    x[:2].add_(x[2:4])
    compiles = counters.compiles + counters.disk_hits + counters.memory_hits
    x[4:6].add_(x[:2])
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
        x[4:6].add_(x[5:7])
    assert counters.compiles + counters.disk_hits + counters.memory_hits == compiles, "offsets are data"
    assert x.tolist() == [2, 4, 2, 3, 6, 9, 6, 7]


def test_in_place_view_operators():
    x = torch.zeros(2, 3, device="tpu")
    same = x.view(2, 3)
    assert x.t_().shape == (3, 2) and x.transpose_(0, 1).shape == (2, 3)
    assert x.unsqueeze_(0).shape == (1, 2, 3) and x.squeeze_(0).shape == (2, 3)
    assert x.as_strided_((2,), (1,)).shape == (2,) and x.data_ptr() == same.data_ptr()
    x.fill_(5)
    assert same.tolist() == [[5, 5, 0], [0, 0, 0]]
    with pytest.raises(RuntimeError, match="is invalid for input of size 6"):
        same.view(4)


def test_memory_formats():
    host = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    device = host.to("tpu")
    assert device.is_contiguous(memory_format=torch.channels_last) and torch.equal(device.cpu(), host)
    for made in (device + 1, device.clone(), torch.empty_like(device), device.relu()):
        assert made.stride() == host.stride()
    assert device.contiguous().stride() == (60, 20, 5, 1) and torch.equal(device.contiguous().cpu(), host)
    device[:, 1].mul_(2)
    host[:, 1].mul_(2)
    assert torch.equal(device.cpu(), host)


def test_aliases_hold_their_memory():
    x = torch.arange(10, device="tpu")
    tail = x[7:]
    del x
    assert tail.tolist() == [7, 8, 9] and tail._base is not None
    y = torch.zeros(3, device="tpu")
    z = y.detach()
    y += 1
    assert z.tolist() == [1, 1, 1]
    y = y + 1
    assert z.tolist() == [1, 1, 1]


def test_empty_views():
    x = torch.ones(2, 3, device="tpu")
    assert x[:, 1:1].shape == (2, 0) and x[:, 1:1].sum().item() == 0
    x[:, 1:1] = 5
    assert x.sum().item() == 6 and x.narrow(0, 2, 0).tolist() == []


def test_a_tensor_copied_into_a_view_of_itself():
    """Into its negative or conjugate it is no copy of what is there already; into its transpose it is refused."""
    for device in ("cpu", "tpu"):
        x = torch.tensor([1.0, -2.0], device=device)
        x._neg_view().copy_(x)
        assert x.tolist() == [-1, 2]
        z = torch.tensor([1 + 2j, 3 - 1j], device=device)
        z.conj().copy_(z)
        assert z.tolist() == [1 - 2j, 3 + 1j]
        x = torch.arange(4.0, device=device).view(2, 2)
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            x.t().copy_(x)
        x.copy_(x)
        x[0].expand(3, 2).copy_(x[0].expand(3, 2))
        assert x.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_a_list_whose_tensors_meet_is_written_in_order_wherever_they_are(mode):
    """The same sizes at other offsets, where the tensors did not meet, are another program."""
    with torch.tpu.set_eager_mode(mode):
        for device in ("cpu", "tpu"):
            x = torch.arange(8, device=device).view(4, 2)
            torch._foreach_sub_([x[1], x[2]], 2)
            torch._foreach_sub_([x[3], x[3]], 2)
            assert x.tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
            torch._foreach_add_([x[1], x[2]], [x[0], x[0]])
            torch._foreach_add_([x[1], x[2]], [x[0], x[1]])
            assert x.tolist() == [[0, 1], [0, 3], [2, 7], [2, 3]]


@pytest.mark.parametrize("mode", torch.tpu.EagerMode)
def test_what_is_resized_is_laid_out_as_a_new_result(mode):
    with torch.tpu.set_eager_mode(mode):
        for device in ("cpu", "tpu"):
            x, base = torch.arange(12, device=device).view(3, 4), torch.zeros(3, 1, 4, dtype=torch.int64, device=device)
            out = base[:, 0].unsqueeze(0)
            torch.floor(x.t(), out=out)
            assert out.shape == (4, 3) and out.stride() == (1, 4)
            assert base.flatten().tolist() == list(range(12)), "the view's memory is the base's"
            assert torch.lt(x.t(), 3, out=torch.empty(0, device=device)).stride() == (1, 4)
            assert torch.sum(x.t(), 0, keepdim=True, out=torch.empty(0, device=device)).stride()[-1] == 1


def test_a_number_is_copied():
    for device in ("cpu", "tpu"):
        x = torch.ones(2, 2, dtype=torch.float64, device=device)
        assert x.mT.copy_(0.1).tolist() == [[0.1, 0.1]] * 2
        assert x[0].copy_(True).tolist() == [1, 1] and x.select(1, 0).copy_(3).tolist() == [3, 3]
