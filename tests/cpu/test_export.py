"""`torch.export` to StableHLO: the program computes what the model does, in every form it is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan

import torch_tpu
from torch_tpu import errors
from torch_tpu.runtime import mlir, platform


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("calls", torch.zeros(()))
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        self.calls += 1
        x = self.embed(tokens) + torch.arange(tokens.shape[1]).unsqueeze(-1) / 10
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(x)), x.mean()


def run(text, mlir, program, *args):
    """Runs an exported program on the CPU with the weights that the program holds."""
    client = platform.client()
    values = iter(args)
    given = []
    for spec in mlir.inputs:
        if spec.kind == "user_input":
            given.append(next(values))
        else:
            given.append({**program.state_dict, **program.constants}[spec.name])
    executable = client.compile(text, [(out.shape, out.dtype) for out in mlir.outputs])
    arrays = executable.run([client.put(value.detach()) for value in given])
    return [client.get(array, out.dtype) for array, out in zip(arrays, mlir.outputs, strict=True)]


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    model, tokens = Model().eval(), torch.randint(0, 11, (2, 5))
    program = torch.export.export(model, (tokens,))
    return program, torch_tpu.export.exported_to_mlir(program), tokens, program.module()(tokens)


def test_it_computes_what_the_model_does(exported):
    program, made, tokens, wanted = exported
    program.state_dict["calls"].zero_()
    calls, logits, mean = run(made.serialize_text(), made, program, tokens)
    assert [out.kind for out in made.outputs] == ["buffer_mutation", "user_output", "user_output"]
    assert made.outputs[0].name == "calls" and calls.item() == 1
    torch.testing.assert_close((logits, mean), wanted)


def test_the_portable_artifact_is_the_same_program(exported):
    program, made, tokens, wanted = exported
    artifact = made.serialize_portable_artifact()
    assert artifact.startswith(b"ML\xefR") and made.serialize_bytecode().startswith(b"ML\xefR")
    _, logits, _ = run(mlir.from_portable_artifact(artifact), made, program, tokens)
    torch.testing.assert_close(logits, wanted[0])
    assert made.serialize_portable_artifact("1.0.0") != artifact


def test_portable_artifacts_of_what_stablehlo_itself_has_not():
    class Model(nn.Module):
        def forward(self, x):
            return torch.special.zeta(nn.functional.gelu(x).topk(3).values.exp() + 1, 2.0)

    x = torch.randn(5)
    program = torch.export.export(Model(), (x,))
    made = torch_tpu.export.exported_to_mlir(program)
    assert "chlo." in made.text
    for version in (None, "1.0.0"):
        text = mlir.from_portable_artifact(made.serialize_portable_artifact(version))
        torch.testing.assert_close(run(text, made, program, x), [Model()(x)])


def test_nothing_of_it_needs_this_process(exported):
    assert "callback" not in exported[1].text


def test_random_numbers_take_a_state():
    program = torch.export.export(nn.Dropout(0.5).train(), (torch.ones(64),))
    made = torch_tpu.export.exported_to_mlir(program)
    assert made.inputs[-1].kind == "random_state" and made.random_taken > 0
    client = platform.client()
    executable = client.compile(made.text, [((64,), torch.float32)])
    drawn = [
        client.get(executable.run([client.put(torch.ones(64)), client.put_words([seed, 0])])[0], torch.float32)
        for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert set(drawn[0].tolist()) == {0.0, 2.0}


def test_control_flow():
    class Model(nn.Module):
        def forward(self, x):
            y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
            return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(3), y)

    text = torch_tpu.export.exported_to_mlir(torch.export.export(Model(), (torch.randn(4, 3),))).text
    assert "stablehlo.case" in text or "stablehlo.if" in text
    assert "stablehlo.while" in text


def padded(tensor, shape):
    """With NaN, or the largest number, behind its elements."""
    filler = float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    whole = torch.full(shape, filler, dtype=tensor.dtype)
    whole[tuple(slice(size) for size in tensor.shape)] = tensor
    return whole


def run_padded(made, program, *args):
    """Runs an exported program whose sizes vary, and cuts its results to their sizes."""
    inputs = [spec for spec in made.inputs if spec.kind == "user_input"]
    known = {
        size: tensor.shape[axis]
        for spec, tensor in zip(inputs, args, strict=True)
        for axis, size in enumerate(spec.sizes)
        if isinstance(size, str) and size.isidentifier()
    }
    weights = {**program.state_dict, **program.constants}
    given = iter(args)
    values = []
    for spec in made.inputs:
        if spec.kind == "size":
            values.append(torch.tensor(known[spec.name]))
        else:
            values.append(padded(next(given), spec.shape) if spec.kind == "user_input" else weights[spec.name].detach())
    client = platform.client()
    executable = client.compile(made.text, [(out.shape, out.dtype) for out in made.outputs])
    results = executable.run([client.put(value.cpu()) for value in values])
    cut = []
    for out, array in zip(made.outputs, results, strict=True):
        sizes = [eval(str(size), {}, known) for size in out.sizes or out.shape]
        cut.append(client.get(array, out.dtype)[tuple(slice(size) for size in sizes)])
    return cut


def test_sizes_that_vary():
    torch.manual_seed(0)
    model = Model().eval()
    batch, length = torch.export.Dim("batch", min=2, max=6), torch.export.Dim("length", max=16)
    shapes = ({0: batch, 1: length},)
    program = torch.export.export(model, (torch.randint(0, 11, (2, 5)),), dynamic_shapes=shapes)
    made = torch_tpu.export.exported_to_mlir(program)
    assert [spec.kind for spec in made.inputs[-2:]] == ["size", "size"]
    (tokens,) = (spec for spec in made.inputs if spec.kind == "user_input")
    assert tokens.shape == (6, 16) and tokens.sizes == tuple(spec.name for spec in made.inputs[-2:])
    assert made.outputs[1].shape == (6, 16, 3) and made.outputs[1].sizes == (*tokens.sizes, 3)
    assert made.outputs[2].sizes == ()
    for shape in [(2, 5), (6, 16), (3, 11)]:
        given = torch.randint(0, 11, shape)
        _, *answers = run_padded(made, program, given)
        torch.testing.assert_close(tuple(answers), model(given))


def test_sizes_computed_from_others():
    class Model(nn.Module):
        def forward(self, x, y):
            both = torch.cat([x, y], 0)
            return both.softmax(0), both.reshape(-1), torch.nn.functional.pad(x, (0, 0, 1, 2)).cumsum(0)

    rows = torch.export.Dim("rows", max=9)
    example = torch.randn(4, 3), torch.randn(4, 3)
    program = torch.export.export(Model(), example, dynamic_shapes=({0: rows}, {0: rows}))
    made = torch_tpu.export.exported_to_mlir(program)
    (name,) = (spec.name for spec in made.inputs if spec.kind == "size")
    assert [out.sizes for out in made.outputs] == [(f"2*{name}", 3), (f"6*{name}",), (f"{name} + 3", 3)]
    given = torch.randn(7, 3), torch.randn(7, 3)
    torch.testing.assert_close(tuple(run_padded(made, program, *given)), Model()(*given))


def test_two_dimensions_that_vary_are_indexed():
    class Model(nn.Module):
        def forward(self, x):
            return x[x.argmax(0)[None], x.argmax(1)[:, None]]

    shapes = ({0: torch.export.Dim("rows", max=8), 1: torch.export.Dim("columns", max=32)},)
    program = torch.export.export(Model(), (torch.randn(4, 5),), dynamic_shapes=shapes)
    made = torch_tpu.export.exported_to_mlir(program)
    for shape in [(4, 5), (8, 31)]:
        x = torch.randn(shape)
        torch.testing.assert_close(run_padded(made, program, x), [Model()(x)])


def test_numbers_that_vary_are_inputs():
    class Model(nn.Module):
        def forward(self, x, count):
            return x[:count].sum(0) * count

    x = torch.randn(8, 3)
    program = torch.export.export(Model(), (x, 3), dynamic_shapes=(None, torch.export.Dim.AUTO))
    made = torch_tpu.export.exported_to_mlir(program)
    assert [spec.kind for spec in made.inputs] == ["user_input", "size"]
    client = platform.client()
    executable = client.compile(made.text, [((3,), torch.float32)])
    for count in (2, 5, 8):
        (answer,) = executable.run([client.put(x), client.put(torch.tensor(count))])
        torch.testing.assert_close(client.get(answer, torch.float32), Model()(x, count))


def test_sizes_without_a_bound_and_unknown_operators_are_refused():
    dynamic = torch.export.export(nn.ReLU(), (torch.ones(4),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    with pytest.raises(errors.UnsupportedOpError, match=r"(?s)no upper bound.*Dim"):
        torch_tpu.export.exported_to_mlir(dynamic)

    class Unique(nn.Module):
        def forward(self, x):
            return x.to_sparse().to_dense()

    with pytest.raises(errors.UnsupportedOpError, match="sparse"):
        torch_tpu.export.exported_to_mlir(torch.export.export(Unique(), (torch.ones(4),)))
