"""The steps of random programs: tables of what a line can be. A line that begins with "=" makes a new tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from programs import BOOL, C64, DTYPES, F32, F64, FLOATS, Maker, NothingFits, Program, Step, overlaps

UNARY = [
    "abs",
    "neg",
    "sign",
    "bitwise_not",
    "logical_not",
    "relu",
    "square",
    "clone",
    "contiguous",
    "floor",
    "trunc",
    "positive",
    "isnan",
    "conj",
    "resolve_conj",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "ge",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "logical_and",
    "logical_xor",
]
SYMBOLS = ["+", "-", "*", "==", ">", "<=", "&", "|", "^"]


# ------------------------------------------------------------------------------------------------------------- views


def as_strided(g: Maker) -> str:
    x = g.tensor(lambda x: x.numel() > 0 and not x.is_conj() and not x.is_neg())
    room = g[x].untyped_storage().nbytes() // g[x].dtype.itemsize
    offset = g.integer(0, room - 1)
    size, stride, last = [], [], offset
    for _ in range(g.integer(0, 3)):
        step = g.integer(0, 5) if g.chance(4) else g.integer(1, 5)
        length = g.integer(1, 3)
        if last + step * (length - 1) < room:
            last += step * (length - 1)
            size.append(length), stride.append(step)
    return f"= {x}.as_strided({tuple(size)}, {tuple(stride)}, {offset})"


def unfold(g: Maker) -> str:
    x = g.tensor(lambda x: x.dim() > 0 and 0 not in x.shape)
    dim = g.dim(x)
    return f"= {x}.unfold({dim}, {g.integer(1, g[x].shape[dim])}, {g.integer(1, 2)})"


def expand(g: Maker) -> str:
    x = g.tensor()
    shape = [g.one_of((2, 3)) if size == 1 else g.one_of((size, -1)) for size in g[x].shape]
    return f"= {x}.expand({[*([2] if g.chance(2) else []), *shape]})"


def reshaped(g: Maker) -> str:
    x = g.tensor()
    count = g[x].numel()
    first = g.one_of([n for n in range(1, count + 1) if count % n == 0] or [0])
    shape = g.one_of([f"({first}, -1)", f"(-1, {first})", "(-1,)", f"(1, -1, {first})"]) if count else "(-1,)"
    return f"= {x}.{g.one_of(['view', 'reshape'])}{shape}"


def several(g: Maker) -> str:
    x = g.tensor(lambda x: x.dim() > 0)
    dim = g.dim(x)
    call = g.one_of(
        [f"chunk(2, {dim})", f"split({g.integer(1, 3)}, {dim})", f"unbind({dim})", f"tensor_split(2, {dim})"]
    )
    parts = eval(f"{x}.{call}", dict(g.space))
    if not 1 < len(parts) < 4:
        raise NothingFits
    return f"{', '.join(g.new() for _ in parts)} = {x}.{call}"


def diagonal(g: Maker) -> str:
    x = g.tensor(lambda x: x.dim() > 1)
    one = g.dim(x)
    other = (one + 1) % g[x].dim()
    return f"= {x}.diagonal({g.integer(-1, 1)}, {one}, {other})"


def retyped(g: Maker) -> str:
    x = g.tensor(lambda x: x.dtype is not BOOL)
    return f"= {x}.view({g.one_of([d for d in DTYPES if d is not BOOL and not d.is_floating_point])})"


def merged(g: Maker) -> str:
    x = g.tensor(lambda x: x.dim() > 1)
    start = g.integer(0, g[x].dim() - 2)
    return f"= {x}.flatten({start}, {g.integer(start, g[x].dim() - 1)})"


def of_complex(g: Maker) -> str:
    x = g.tensor(lambda x: x.dtype is C64)
    return f"= {g.one_of(['torch.view_as_real({})', '{}.real', '{}.imag', '{}.conj()', '{}.conj().imag', '{}.mT.conj()']).format(x)}"


def call(text: str, where: Callable[[torch.Tensor], bool] = lambda x: True) -> Step:
    """A step with one tensor `x`, numbers `n` (0 to 2) and `m`, and dimensions `d` and `e` of the tensor."""

    def step(g: Maker) -> str:
        x = g.tensor(where)
        given: dict[str, Any] = {"x": x, "n": g.integer(0, 2), "m": g.integer(-2, 2)}
        for name in "de":
            if f"{{{name}}}" in text:
                given[name] = g.dim(x)
        return text.format(**given)

    return step


VIEWS: dict[str, Step] = {
    "slice": lambda g: f"= {(x := g.tensor())}[{g.slices(x)}]",
    "transpose": call("= {x}.transpose({d}, {e})"),
    "permute": lambda g: f"= {(x := g.tensor())}.permute({list(g.draw(st.permutations(range(g[x].dim()))))})",
    "reshaped": reshaped,
    "merged": merged,
    "expand": expand,
    "unfold": unfold,
    "as_strided": as_strided,
    "diagonal": diagonal,
    "several": several,
    "retyped": retyped,
    "of_complex": of_complex,
    "select": lambda g: (
        f"= {(x := g.tensor(lambda x: 0 not in x.shape))}.select({(d := g.dim(x))}, {g.integer(-1, g[x].shape[d] - 1)})"
    ),
    "narrow": lambda g: (
        f"= {(x := g.tensor())}.narrow({(d := g.dim(x))}, {(s := g.integer(0, g[x].shape[d]))}, {g.integer(0, g[x].shape[d] - s)})"
    ),
    "unsqueeze": call("= {x}.unsqueeze({n})"),
    "squeeze": call("= {x}.squeeze()"),
    "detach": call("= {x}.detach()"),
    "T": call("= {x}.mT", lambda x: x.dim() > 1),
    "movedim": call("= {x}.movedim({d}, {e})"),
    "negative": call("= torch._neg_view({x})", lambda x: x.dtype is not BOOL),
    "expand_as": lambda g: f"= {g.tensor()}.expand_as({g.tensor()})",
    "view_as": lambda g: f"= {g.tensor()}.view_as({g.tensor()})",
}


# --------------------------------------------------------------------------------------------------------- computing


def binary(g: Maker) -> str:
    x = g.tensor()
    kind = g.integer(0, 4)
    if kind == 0:
        return f"= {g.number()} {g.one_of(SYMBOLS)} {x}"
    if kind == 1:
        return f"= {x} {g.one_of(SYMBOLS)} {g.like(x)}"
    if kind == 2:
        return f"= torch.{g.one_of(['add', 'sub'])}({x}, {g.like(x)}, alpha={g.integer(-2, 2)})"
    if kind == 3:
        return f"= {x}.{g.one_of(['remainder', 'fmod', 'floor_divide'])}({g.one_of([2, 3, -2, 2.0])})"
    return f"= torch.{g.one_of(BINARY)}({x}, {g.like(x)})"


def _finite(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether PyTorch says what the numbers are in another dtype."""
    if (
        dtype in FLOATS
        or dtype in (BOOL, C64)
        or not (x.dtype.is_floating_point or x.dtype.is_complex)
        or not x.numel()
    ):
        return True
    x = x.detach().resolve_conj().resolve_neg()
    x = x.real if x.dtype.is_complex else x
    limits = torch.iinfo(dtype)
    return bool(x.isfinite().all()) and limits.min <= float(x.min()) and float(x.max()) <= limits.max


def converted(g: Maker) -> str:
    x, dtype = g.tensor(), g.dtype()
    if not _finite(g[x], dtype):
        raise NothingFits
    return f"= {x}.to({dtype})"


def where(g: Maker) -> str:
    mask = g.tensor(lambda x: x.dtype is BOOL)
    return f"= torch.where({mask}, {g.like(mask)}, {g.like(mask)})"


def joined(g: Maker) -> str:
    x = g.tensor(lambda x: x.dim() > 0)
    others = [g.like(x, exact=not g.chance(5)) for _ in range(g.integer(0, 2))]
    return f"= torch.{g.one_of(['cat', 'stack'])}([{', '.join([x, *others])}], {g.dim(x)})"


def product(g: Maker) -> str:
    x = g.tensor(lambda x: x.dim() > 0)
    inner = g[x].shape[-1]
    y = g.tensor(lambda y: y.dim() > 0 and y.shape[-2 if y.dim() > 1 else -1] == inner and y.dtype is g[x].dtype)
    return f"= {x} @ {y}"


REDUCTIONS = (
    "{x}.sum()", "{x}.sum({d})", "{x}.sum({d}, keepdim=True)", "{x}.amax({d})", "{x}.amin()", "{x}.any({d})", "{x}.all()",
    "{x}.argmax({d})", "{x}.argmin()", "{x}.count_nonzero({d})", "{x}.cumsum({d})", "{x}.prod({d})", "{x}.sum(({d},), dtype=torch.int64)",
    "{x}.max()", "{x}.min({d}).values", "{x}.max({d}, keepdim=True)[1]", "{x}.cummax({d}).values", "{x}.cumprod({d})", "{x}.median()",
    "torch.sort({x}, dim={d}, stable=True)[0]", "torch.sort({x}, dim={d}, descending=True, stable=True)[1]", "torch.argsort({x}, dim={d}, stable=True)",
    "{x}.logcumsumexp({d}).mul(0)", "{x}.mean({d})", "{x}.mean()", "{x}.unique()", "{x}.nonzero()", "{x}.topk(1, {d})[0]", "{x}.kthvalue(1, {d})[0]",
    "{x}.diff(dim={d})", "{x}.nansum({d})", "torch.aminmax({x}).max", "{x}.sum([])", "{x}.std_mean({d})[1]", "{x}.msort()", "{x}.bincount()",
)  # fmt: skip
MOVES = (
    "{x}.flip({d})", "{x}.roll({m}, {d})", "{x}.roll({m})", "{x}.rot90()", "{x}.tril({m})", "{x}.triu({m})", "{x}.repeat(2, {n}, 1)",
    "{x}.repeat_interleave(2, {d})", "{x}.tile({n})", "F.pad({x}, (1, {n}))", "F.pad({x}, ({m}, 1))", "{x}.diag_embed({m})", "{x}.diag({m})",
    "{x}.unsqueeze(0).to(memory_format=torch.contiguous_format)", "{x}.ravel()", "{x}.contiguous()", "{x}.clone()", "torch.empty_like({x}).copy_({x})",
    "torch.zeros_like({x})", "{x}.new_ones(({n}, 2))", "torch.full_like({x}, 2, dtype=torch.float32)", "torch.diag_embed({x}, {m})", "{x}.trace()",
)  # fmt: skip
CREATED = (
    "torch.arange({a}, device=device)", "torch.arange(0, {a}, 2, dtype=torch.float32, device=device)", "torch.eye({a}, {b}, device=device)",
    "torch.full(({a}, {b}), {c}, device=device)", "torch.zeros({b}, 0, device=device)", "torch.tensor({c}, device=device)",
    "torch.ones({b}, {a}, dtype=torch.int64, device=device)", "torch.linspace(0, 2, 3, device=device)", "torch.tensor([{a}, 2.0], device=device)",
    "torch.tril_indices({a}, {b}, device=device)", "torch.scalar_tensor({c}, device=device)", "torch.empty(0, device=device)",
    "torch.empty_strided(({a}, 2), (1, {a}), device=device).fill_({c})",
)  # fmt: skip

PURE: dict[str, Step] = {
    "unary": lambda g: f"= {g.tensor()}.{g.one_of(UNARY)}()",
    "binary": binary,
    "binary again": binary,
    "converted": converted,
    "where": where,
    "reduced": lambda g: "= " + call(g.one_of(REDUCTIONS))(g),
    "reduced again": lambda g: "= " + call(g.one_of(REDUCTIONS))(g),
    "moved": lambda g: "= " + call(g.one_of(MOVES))(g),
    "created": lambda g: (
        "= " + g.one_of(CREATED).format(a=g.integer(0, 4), b=g.integer(1, 3), c=g.one_of([2, 0, 1.5, True]))
    ),
    "joined": joined,
    "product": product,
}


# ----------------------------------------------------------------------------------------------------------- writing


def in_place(g: Maker) -> str:
    x = g.target(refused=(kind := g.integer(0, 5)) not in (2, 5))
    if kind == 0:
        return f"{x}.{g.one_of(['neg_', 'abs_', 'square_', 'zero_', 'logical_not_', 'bitwise_not_', 'relu_', 'sign_', 'conj_physical_'])}()"
    if kind == 1:
        return f"{x} {g.one_of(['+', '-', '*', '|', '&', '^'])}= {g.like(x, apart=True)}"
    if kind == 2:
        return f"{x}.{g.one_of(['fill_(2)', 'clamp_(0, 2)', 'clamp_(max=1)', 'remainder_(3)', 'tril_()', 'triu_(1)', 'floor_divide_(2)'])}"
    if kind == 3:
        return f"{x}.{g.one_of(['add_', 'sub_'])}({g.like(x, apart=True)}, alpha={g.integer(-1, 2)})"
    if kind == 4:
        y = g.tensor(lambda y: y.untyped_storage()._cdata != g[x].untyped_storage()._cdata)
        return (
            f"{x}.addcmul_({g.like(x, exact=True, apart=True)}, {g.like(x, exact=True, apart=True)})"
            if g.chance(3)
            else f"{x}.copy_({y})"
        )
    names = ("mul_", "maximum", "eq_", "lt_", "bitwise_and_", "logical_or_", "copy_", "ge_")
    return f"{x}.{g.one_of(names)}({g.like(x, apart=True)})"


def out(g: Maker) -> str:
    x, kind = g.tensor(), g.integer(0, 5)
    memory = g[x].untyped_storage()._cdata
    z = g.target(lambda z: z.untyped_storage()._cdata != memory or (kind == 2 and z.shape == g[x].shape), refused=False)
    if kind < 2:
        return f"torch.{g.one_of(BINARY)}({x}, {g.like(x)}, out={z})"
    if kind == 2:
        return (
            f"torch.{g.one_of(['abs', 'neg', 'square', 'floor', 'sign', 'bitwise_not', 'logical_not'])}({x}, out={z})"
        )
    if kind == 3:
        return f"torch.{g.one_of(['sum', 'cumsum', 'prod', 'amax', 'any', 'argmin', 'index_select'])}({x}, {g.dim(x)}, out={z})"
    if kind == 4:
        return f"torch.cat([{x}, {g.like(x, exact=True)}], out={z})"
    mask = g.tensor(lambda x: x.dtype is BOOL)
    return f"torch.where({mask}, {g.like(mask)}, {g.like(mask)}, out={z})"


def each(g: Maker) -> str:
    x = g.target(refused=False)
    names = [x, *(g.target(refused=False) for _ in range(g.integer(0, 2)))]
    listed = f"[{', '.join(names)}]"
    kind = g.integer(0, 3)
    if kind == 0:
        return f"torch._foreach_{g.one_of(['neg_', 'zero_', 'abs_'])}({listed})"
    if kind == 1:
        return f"torch._foreach_{g.one_of(['add_', 'mul_', 'sub_', 'clamp_max_'])}({listed}, {g.one_of([2, 1, -1, 1.5, True])})"
    others = f"[{', '.join(g.like(name, exact=True, apart=True) for name in names)}]"
    if kind == 2:
        return f"torch._foreach_{g.one_of(['add_', 'mul_', 'copy_', 'maximum_'])}({listed}, {others})"
    return (
        f"{', '.join([g.new() for _ in names])} = torch._foreach_add({listed}, {others})"
        if len(names) > 1
        else f"torch._foreach_neg_({listed})"
    )


def _mask(g: Maker, x: str) -> str:
    shape = g[x].shape
    masks = g.names(lambda y: y.dtype is BOOL and 0 < y.dim() <= len(shape) and y.shape == shape[: y.dim()])
    return g.one_of([*masks, f"({x} > 0)"]) if masks else f"({x} > 0)"


def _places(g: Maker, *, written: bool = False) -> tuple[str, str]:
    """A tensor and what to index it with."""
    x = g.tensor(lambda x: x.dim() > 0 and not (written and overlaps(x)))
    shape, kind = g[x].shape, g.integer(0, 5)
    if kind == 0:
        return x, _mask(g, x)
    if kind == 1 and len(shape) > 1:
        return x, f":, {g.index(shape[1])}"
    if kind == 2 and len(shape) > 1:
        rows, columns = g.index(shape[0], shape[0]), g.index(shape[1], shape[1])
        return x, f"{rows}[:, None], {columns}"
    if kind == 3 and len(shape) > 1:
        return x, f"{g.index(shape[0])}, {g.integer(-shape[1], shape[1] - 1)}" if shape[1] else "0"
    if kind == 4:
        return x, g.slices(x)
    return x, f"..., {g.index(shape[-1])}" if g.chance(2) else g.index(shape[0])


def index_read(g: Maker) -> str:
    if g.chance(3):
        x = g.tensor(lambda x: x.dim() > 0)
        dim = g.dim(x)
        index = g.index(g[x].shape[dim], from_end=False)
        return f"= {x}.{g.one_of([f'index_select({dim}, {index})', f'take({index})', f'masked_select({x} > 0)'])}"
    x, places = _places(g)
    return f"= {x}[{places}]"


def index_write(g: Maker) -> str:
    if g.chance(2):
        x, places = _places(g, written=True)
        value = g.one_of([g.number(), f"{x}[{places}] + 1", g.like(x, apart=True)])
        return f"{x}[{places}] {g.one_of(['=', '=', '+='])} {value}"
    x = g.target(lambda x: x.dim() > 0, refused=False)
    dim, mask = g.dim(x), _mask(g, x)
    index = g.index(g[x].shape[dim], g[x].shape[dim], from_end=False)
    return f"{x}." + g.one_of(
        [
            f"masked_fill_({mask}, {g.integer(0, 3)})",
            f"index_fill_({dim}, {index}, {g.integer(0, 3)})",
            f"index_add_({dim}, {index}, {g.like(x, exact=True, apart=True)}, alpha={g.integer(1, 2)})",
            f"index_copy_({dim}, {index}, {g.like(x, exact=True, apart=True)})",
            f"put_({index}, {g.one_of([x, f'{x}.select({dim}, 0)'])}.flatten()[:{g[x].shape[dim]}].clone(), accumulate={g.chance(2)})",
            f"masked_scatter_({mask}, {g.like(x, exact=True, apart=True)}.clone())",
            f"scatter_({dim}, {x}.argsort(dim={dim}, stable=True), {g.like(x, exact=True, apart=True)})",
            f"scatter_add_({dim}, {x}.argsort(dim={dim}, stable=True), {g.like(x, exact=True, apart=True)})",
            f"index_put_(({g.index(g[x].shape[0])},), {x}[0] + 1, accumulate={g.chance(2)})",
        ]
    )


def gathered(g: Maker) -> str:
    x = g.tensor(lambda x: x.dim() > 0)
    dim = g.dim(x)
    return f"= {x}.gather({dim}, {x}.argsort(dim={dim}, stable=True))"


WRITES: dict[str, Step] = {
    "in place": in_place,
    "in place again": in_place,
    "out": out,
    "each": each,
    "index read": index_read,
    "index write": index_write,
    "index write again": index_write,
    "gathered": gathered,
}


# ------------------------------------------------------------------------------------------- storages, hosts, numbers


def hosted(g: Maker) -> str | list[str]:
    x, y = g.tensor(), g.target()
    g.count += 1
    kind = g.integer(0, 4)
    name = f"h{g.count}"
    if kind == 0:
        return [f"{name} = {x}.to('cpu', copy=True)", f"{y}.copy_({name})"]
    if kind == 1:
        return f"h{g.count} = {x}.to('cpu', copy=True)"
    hosts = [name for name in g.space if name.startswith("h") and name != "host"]
    if not hosts:
        return f"{name} = host({g.integer(0, 5)}, {g.shape()}, {g.dtype()})"
    other = g.one_of(hosts)
    return [f"= {other}.to(device, copy=True)", f"{y}.copy_({other})", f"{other}.copy_({y})"][kind - 2]


def numbered(g: Maker) -> str:
    x = g.tensor()
    g.count += 1
    return f"n{g.count} = " + g.one_of(
        [f"{x}.tolist()", f"int({x}.sum().real)", f"{x}.any().item()", f"bool(({x} == {x}).all())"]
    )


def stored(g: Maker) -> str | list[str]:
    x, y = g.tensor(), g.tensor()
    kind = g.integer(0, 5)
    if kind == 0:
        return f"{x}.set_({y})"
    if kind == 1:
        return f"{x}.data = {y}"
    if kind == 2:
        return [f"{x}.resize_({g.shape(2)})", f"{x}.fill_(1)"]
    if kind == 3:
        return f"= {x}.data"
    if kind == 4:
        return f"{x}.{g.one_of(['t_()', 'transpose_(0, -1)', 'unsqueeze_(0)', 'squeeze_()', 'detach_()', 'swapaxes_(0, 1)'])}"
    step = g.integer(1, 2)
    if g[x].untyped_storage().nbytes() < (1 + step) * g[x].dtype.itemsize:
        raise NothingFits
    return f"= torch.empty(0, dtype={x}.dtype, device=device).set_({x}.untyped_storage(), 0, (2,), ({step},))"


OUTSIDE: dict[str, Step] = {"hosted": hosted, "numbered": numbered}
STORAGES: dict[str, Step] = {"stored": stored}


# ---------------------------------------------------------------------------------------------------------- gradients


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype in (F32, F64)


SMOOTH = (
    "{x} * 2", "{x} * {y}", "{x} + {y}", "{x} - {y}", "{x}.relu()", "{x}.sum({d}, keepdim=True)", "{x}.cumsum({d})", "{x}.flip({d})", "{x}.amax({d})",
    "{x}.sort(dim={d}, stable=True).values", "{x}.clone()", "torch.where({x} > 0, {x}, {y})", "Doubled.apply({x})", "{x}.detach()", "{x}.max({d}).values",
    "checkpoint(lambda x: x.mul(2).relu() * x, {x}, use_reentrant=False)", "checkpoint(lambda x, y: x * y, {x}, {y}, use_reentrant=False)",
    "{x}.masked_fill({x} > 1, 2)", "{x}.tril()", "{x}.clamp(-1, 2)", "F.pad({x}, (1, 0))", "{x}.square()", "{x}.to(torch.float64)", "{x}.prod({d})",
    "torch.stack([{x}, {y}])", "{x}.index_select({d}, torch.tensor([0, 0], device=device))", "{x}.contiguous()", "{x}.data", "{x}.cummax({d}).values",
    "checkpoint(lambda x: x.sin().cos() * x, {x}, use_reentrant=True)", "{x}.abs()", "{x}.maximum({y})", "{x}.repeat(2, 1)", "{x}.median({d}).values",
    "{x}.norm()", "{x}.take(torch.tensor([0, 0], device=device))", "{x}.unfold({d}, 2, 1)", "torch.einsum('...i,...i->...', {x}, {y})", "{x}.roll(1, {d})",
)  # fmt: skip
WRITTEN = (
    "{x}.mul_(2)", "{x}.add_({y})", "{x}.mul_({y})", "{x}.relu_()", "{x}.zero_()", "{x}.copy_({y})", "{x}[0] = {y}[0]", "{x}[0] *= 2", "{x}[..., 1:].add_(1)",
    "{x}.masked_fill_({x} > 1, 2)", "{x}.fill_(1)", "Trebled.apply({x})", "{x}.register_hook(lambda g: g * 2)", "{x}.retain_grad()", "{x}.detach().add_(1)",
    "{x}.detach_()", "{x}.requires_grad_()", "{x}.clamp_(-1, 2)", "{x}.tril_()", "{x}.square_()", "{x}.data.mul_(2)", "{x}.t_()", "{x}.index_add_({d}, torch.tensor([0], device=device), {y}[:1])",
    "{x}.index_put_((torch.tensor([0, 0], device=device),), {y}[:1], accumulate=True)", "{x}.sum().backward(retain_graph=True)", "{x}.addcmul_({y}, {y})",
    "{x}.view(-1).mul_(2)", "{x}.unsqueeze_(0)", "torch._foreach_mul_([{x}], 2)", "torch._foreach_add_([{x}, {y}], 1)", "{x}.set_({y})", "{x}.data = {y}",
    "{x}.diagonal().mul_(3)", "{x}.scatter_({d}, torch.zeros_like({x}, dtype=torch.int64)[:1], {y})", "{x}.masked_scatter_({x} > 0, {y}.clone())",
)  # fmt: skip


def smooth(table: tuple[str, ...]) -> Step:
    def step(g: Maker) -> str:
        text = g.one_of(table)
        x = g.tensor(_is_float)
        y = g.tensor(lambda y: _is_float(y) and y.shape == g[x].shape)
        if "torch.tensor([0" in text and not g[x].numel():
            raise NothingFits  # the device says later than the CPU that there is no such index
        filled = text.format(x=x, y=y, d=g.dim(x) if "{d}" in text else 0)
        if text in SMOOTH:
            return f"= {filled}"
        return f"with torch.no_grad(): {filled}" if g.chance(4) else filled

    return step


SEEN = ("slice", "transpose", "permute", "reshaped", "expand", "diagonal", "several", "select", "unsqueeze")
"""The views of programs with gradients."""

GRADIENTS: dict[str, Step] = {
    "smooth": smooth(SMOOTH),
    "smooth again": smooth(SMOOTH),
    "written": smooth(WRITTEN),
    **{name: VIEWS[name] for name in (*SEEN, "as_strided")},
}


FUNCTIONAL: dict[str, Step] = {
    "smooth": smooth(
        tuple(text for text in SMOOTH if not any(part in text for part in ("checkpoint", "Doubled", ".data", "detach")))
    ),
    "written": smooth(tuple(text for text in WRITTEN[:13] if "Trebled" not in text)),
    **{name: VIEWS[name] for name in SEEN},
}


# ------------------------------------------------------------------------------------------------------------- random


DRAWN = (
    "= torch.rand({n}, 2, device=device)", "= torch.randn(2, 3, device=device)", "= torch.randint(0, 5, (3,), device=device)", "{x}.uniform_()",
    "{x}.normal_()", "{x}.bernoulli_(0.5)", "= F.dropout({x}, 0.5)", "= torch.randperm(5, device=device)", "= torch.rand_like({x})", "{x}.random_(0, 5)",
    "{x}.exponential_()", "torch.tpu.manual_seed({n})", "s = torch.tpu.get_rng_state()", "torch.tpu.set_rng_state(s)", "= torch.randn_like({x})",
    "= torch.multinomial(torch.ones(4, device=device), 3)", "{x}[..., :1].normal_()", "= torch.rand(3, generator=g, device=device)", "g.manual_seed({n})",
    "= torch.bernoulli({x}.abs().clamp(0, 1))", "= F.rrelu({x}, training=True)", "= torch.normal({x}, 1.0)", "= {x}.clone().geometric_(0.5)",
)  # fmt: skip
RANDOM: dict[str, Step] = {
    "drawn": lambda g: call(g.one_of(DRAWN))(g),
    "drawn again": lambda g: call(g.one_of(DRAWN))(g),
    **{name: VIEWS[name] for name in ("slice", "transpose", "reshaped", "select")},
    "written": smooth(WRITTEN[:5]),
}


# ---------------------------------------------------------------------------------------------------------- programs


@st.composite
def programs(
    draw: Callable[[Any], Any],
    *tables: dict[str, Step],
    least: int = 6,
    most: int = 16,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    leaves: bool = False,
    inputs: int = 4,
) -> Program:
    """A program of the steps in some tables.

    Args:
        leaves: the inputs require gradients.
    """
    steps = {name: step for table in tables for name, step in table.items()}
    g = Maker(draw, dtypes)
    shared = g.shape(3)
    for place in range(g.integer(1, inputs)):
        shape = (
            shared if g.chance(2) or not place else shared[g.integer(0, len(shared)) :] if g.chance(2) else g.shape(3)
        )
        dtype = g.dtype()
        leaf = ".requires_grad_()" if leaves and (place == 0 or g.chance(2)) else ""
        g.line(f"{g.new()} = make({g.integer(0, 5)}, {tuple(shape)}, {dtype}){leaf}", is_input=True)
    while not leaves and g.chance(2):
        try:
            text = VIEWS[g.one_of(["slice", "transpose", "permute", "expand", "as_strided", "reshaped", "select"])](g)
            torch_line = f"{g.new()} {text}"
            exec(torch_line, dict(g.space))
        except Exception:  # no such view of what there is
            break
        g.line(torch_line, is_input=True)
    wanted = g.integer(least, most)
    for _ in range(2 * wanted):
        if g.over or len(g.program.lines) >= wanted:
            break
        step = steps[g.one_of(steps)]
        try:
            made = step(g)
        except NothingFits:
            continue
        for text in [made] if isinstance(made, str) else made:
            g.line(f"{g.new()} {text}" if text.startswith("=") else text)
    return g.program
