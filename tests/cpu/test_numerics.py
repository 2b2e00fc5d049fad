"""Comparing a model layer by layer: errors are found, and found where they are made."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from typer.testing import CliRunner

from torch_tpu import numerics, settings
from torch_tpu.cli.__main__ import app
from torch_tpu.numerics import models, page, report

inf, nan = math.inf, math.nan


# ----------------------------------------------------------------------------------------------------- measures


def test_measures():
    expected = torch.tensor([1.0, 2.0, 0.0, 4.0])
    found = torch.tensor([1.0, 2.5, 0.25, 4.0])
    errors = numerics.measure(found, expected)
    assert (errors.max_abs, errors.max_rel, errors.outside, errors.count) == (0.5, 0.25, 2, 4)
    assert errors.snr_db == pytest.approx(10 * math.log10(21 / (0.25 + 0.0625)))
    assert errors.ulps == 2**21  # 0.5 in units of 2**-22 at 2; 0.25 counts at the root mean square, 2.29
    assert not errors.within and numerics.measure(found, expected, numerics.Tolerance(atol=0.5)).within
    assert numerics.measure(expected, expected).snr_db == inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_place_is_one_ulp(dtype):
    one = torch.tensor([1.0], dtype=dtype)
    assert numerics.measure(one + torch.finfo(dtype).eps, one).ulps == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_tolerances_are_those_of_assert_close(dtype, factor):
    x = torch.tensor([3.0], dtype=torch.complex128 if dtype.is_complex else torch.float64)
    rtol, atol = numerics.Tolerance().of(dtype)
    for given in ({}, {"rtol": 0.1, "atol": 0.0}):
        relative, absolute = given.get("rtol", rtol), given.get("atol", atol)
        wide = x + factor * (absolute + relative * 3)
        found, expected = wide.to(dtype), x.to(dtype)
        try:
            torch.testing.assert_close(found, expected, **given)
            close = True
        except AssertionError:
            close = False
        assert numerics.measure(found, expected, numerics.Tolerance(**given)).within is close


def test_infinities_must_agree():
    expected = torch.tensor([inf, nan, -inf, 1.0])
    assert numerics.measure(expected.clone(), expected).within
    assert numerics.measure(torch.tensor([inf, nan, inf, 1.0]), expected).outside == 1
    errors = numerics.measure(torch.tensor([1.0, nan, -inf, nan]), expected)
    assert errors.outside == 2 and errors.max_abs == errors.ulps == inf


def test_integers_must_be_equal():
    assert numerics.measure(torch.tensor([1, 2]), torch.tensor([1, 2])).within
    errors = numerics.measure(torch.tensor([1, 4]), torch.tensor([1, 2]))
    assert errors.outside == 1 and errors.ulps == errors.max_abs == 2
    with pytest.raises(ValueError, match=r"\[2\] int64 instead of \[2\] float32"):
        numerics.measure(torch.tensor([1, 2]), torch.tensor([1.0, 2.0]))


# ------------------------------------------------------------------------------------- where an error is made


class InBfloat16(nn.Linear):
    """Right on the CPU; on the device it computes in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            return super().forward(x)
        return F.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16()).float()


class Residual(nn.Module):
    """Its own code is the sum, which it may get wrong on the device."""

    def __init__(self, wrong: bool):
        super().__init__()
        self.inner, self.wrong = nn.Linear(16, 16), wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.wrong and x.device.type != "cpu":
            return x + self.inner(x.bfloat16().float())
        return x + self.inner(x)


def broken() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.ReLU(inplace=True), InBfloat16(32, 32), nn.Tanh(), nn.Linear(32, 4)]
    return nn.Sequential(*layers), torch.randn(8, 16)


def test_the_broken_layer_is_named_first():
    result = numerics.compare(*broken())
    assert [each.precision for each in result.results] == ["exact", "medium", "high", "highest"] and not result.holds
    for precision in ("exact", "highest"):
        found = result[precision]
        assert str(found.first_made) == str(found.first_out) == "2 (InBfloat16)"
        assert [layer.name for layer in found.layers if not layer.sound] == ["2"]  # and no other
        assert [layer.name for layer in found.layers if not layer.within] == ["2", "3", "4", ""]
    assert result["medium"].first_made.name == "0"


def test_a_layers_own_error_and_what_it_was_handed():
    found = numerics.compare(*broken(), precisions=["exact"])["exact"]
    errors = {layer.name: (layer.isolated, layer.accumulated) for layer in found.layers}
    assert errors["2"][0].snr_db == pytest.approx(errors["2"][1].snr_db, abs=1)
    alone, handed = errors["4"]
    assert alone.snr_db > 120 and handed.snr_db < 70
    assert errors["1"][0].snr_db == inf  # in place, on what it was given, not on what it left
    assert errors[""][0].count == 0 and errors[""][1].count == 32  # a Sequential has no code of its own


@pytest.mark.parametrize("wrong", [False, True])
def test_a_module_with_others_inside_has_code_of_its_own(wrong):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 16), Residual(wrong), nn.Linear(16, 4))
    found = numerics.compare(model, torch.randn(8, 16), precisions=["exact"])["exact"]
    assert str(found.first_made) == ("1 (Residual)" if wrong else "None")
    assert (found.first_out is None) is not wrong
    inner, outer = (next(layer for layer in found.layers if layer.name == name) for name in ("1.inner", "1"))
    assert inner.leaf and not outer.leaf and inner.sound and inner.within is not wrong


def test_products_are_all_that_medium_changes():
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Linear(288, 4), nn.Softmax(-1)
    )
    result = numerics.compare(model, torch.randn(2, 3, 8, 8), precisions=["exact", "medium"], backward=True)
    assert result["exact"].within and result.holds and not result["medium"].within
    assert [layer.kind for layer in result["medium"].layers if not layer.sound] == ["Conv2d", "Linear"]
    gradients = result["medium"].gradients
    assert [gradient.name for gradient in gradients] == [name for name, _ in model.named_parameters()][::-1]
    assert result["medium"].first_gradient is not None and result["exact"].first_gradient is None
    assert all(gradient.errors.snr_db > 90 for gradient in result["exact"].gradients)
    assert not settings.emulate_matmul_rounding and settings.matmul_precision == "default"


def test_tolerances_can_be_given():
    model, x = broken()
    result = numerics.compare(model, x, precisions=["exact"], rtol=0.0, atol=0.1)
    assert result["exact"].within and result["exact"].first_made is None


@pytest.mark.parametrize("where", ["cpu", "tpu"])
def test_what_is_nearer_to_float64_is_excused(where):
    class Cancelling(nn.Module):
        """Loses digits on one of the two."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1e6) - 1e6 if x.device.type == where else x * 1.0

    layer = numerics.compare(Cancelling(), torch.rand(64), precisions=["exact"])["exact"].layers[-1]
    worse, better = (layer.cpu_error, layer.device_error)[:: 1 if where == "cpu" else -1]
    assert worse.max_abs > 1e-3 and better.max_abs < 1e-6
    assert not layer.isolated.within and not layer.within and layer.sound is (where == "cpu")


def test_shared_layers_are_compared_call_by_call():
    torch.manual_seed(3)
    shared = nn.Linear(8, 8)
    found = numerics.compare(nn.Sequential(shared, nn.Tanh(), shared), torch.randn(4, 8), precisions=["medium"])[
        "medium"
    ]
    assert [(layer.name, layer.index) for layer in found.layers] == [("0", 0), ("1", 0), ("0", 1), ("", 0)]
    assert str(found.layers[2]) == "0 (Linear, call 2)"


def test_tuples_and_keywords():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.attention = nn.LSTM(4, 8, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor, *, scale: float) -> dict[str, torch.Tensor]:
            hidden, _ = self.lstm(x)
            mixed, weights = self.attention(query=hidden * scale, key=hidden, value=hidden)
            return {"mixed": mixed, "best": weights.argmax(-1)}

    torch.manual_seed(4)
    found = numerics.compare(Outer(), {"x": torch.randn(2, 5, 4), "scale": 2.0}, precisions=["exact", "medium"])
    assert [layer.name for layer in found["exact"].layers] == ["lstm", "attention", ""]
    assert found["exact"].within and not any(layer.note for layer in found["exact"].layers)
    assert not found["medium"].layers[0].sound


def test_checkpoints_call_layers_again():
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.Identity()))
            self.last = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False))

    torch.manual_seed(6)
    result = numerics.compare(Checkpointed(), torch.randn(4, 8), precisions=["exact", "medium"], backward=True)
    calls = [(layer.name, layer.index) for layer in result["exact"].layers]
    assert calls[:3] == [("inner.0", 0), ("inner.1", 0), ("inner.2.0", 0)] and ("inner.0", 1) in calls
    assert result["exact"].within and not any(layer.note for layer in result["exact"].layers)
    assert len(result["medium"].gradients) == 6 and result["medium"].first_gradient is not None


def test_calls_that_fail_are_left_out():
    class Trying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = nn.Sequential(nn.Linear(8, 2)), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.wide(x)
            except RuntimeError:
                return self.narrow(x)

    found = numerics.compare(nn.Sequential(Trying()), torch.randn(3, 4), precisions=["exact"])["exact"]
    assert [layer.name for layer in found.layers] == ["0.narrow", "0", ""] and found.within


def test_orders_that_pytorch_leaves_open_and_devices_by_name():
    """As a mixture of experts: tokens are sorted by expert, and a module is told the device."""

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor, device: torch.device) -> torch.Tensor:
            return x + torch.ones(3, device=device)

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
            order = torch.sort(expert)[1]
            return self.inner(x[order], device=x.device)[torch.argsort(order)]

    torch.manual_seed(5)
    inputs = torch.randn(100, 3), torch.randint(0, 4, (100,))
    assert not torch.equal(torch.sort(inputs[1])[1], torch.sort(inputs[1], stable=True)[1]), "the CPU's order differs"
    found = numerics.compare(Experts(), inputs, precisions=["exact"])["exact"]
    assert found.within and found.first_made is None and not any(layer.note for layer in found.layers)


def test_what_differs_in_shape_or_is_not_called_is_said():
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pick, self.rest = nn.Identity(), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.device.type == "cpu":
                return self.rest(self.pick(x))
            return self.pick(x[:1]).expand(3, 4)

    found = numerics.compare(Sparse(), torch.randn(3, 4), precisions=["exact"])["exact"]
    notes = {layer.name: layer.note for layer in found.layers}
    assert "[1, 4] float32 instead of [3, 4] float32" in notes["pick"] and notes["rest"] == "not called on the device"
    assert not found.within and found.first_out.name == "pick"


def test_random_numbers_are_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Dropout(0.5)))
    assert numerics.compare(model, torch.randn(2, 4), precisions=["exact"])["exact"].within
    with pytest.raises(ValueError, match=r"1\.1 \(Dropout\) draws random numbers.*\n.*training mode.*\n.*train=False"):
        numerics.compare(model, torch.randn(2, 4), train=True)
    assert model.training  # the model itself is left alone


def test_models_and_devices_without_values():
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="nothing can be compared on the device 'abacus'"):
        numerics.compare(model, torch.zeros(1, 4), device="abacus")
    with pytest.raises(ValueError, match="weight is on the device meta and has no values"):
        numerics.compare(model.to("meta"), torch.zeros(1, 4))


@pytest.mark.parametrize("wrong", [{"rtol": -1.0}, {"atol": float("nan")}])
def test_tolerances_that_nothing_is_within(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is at least 0, not"):
        numerics.compare(nn.Tanh(), torch.ones(2), **wrong)


def test_precisions_that_are_not_there():
    with pytest.raises(ValueError, match="tpu has no precision 'low' here; it has exact, medium, high, highest"):
        numerics.compare(nn.Tanh(), torch.ones(2), precisions=["low"])
    same = numerics.compare(nn.Linear(4, 4), torch.randn(2, 4), device="cpu", backward=True)
    assert same.holds and all(layer.accumulated.noise == 0 == layer.isolated.noise for layer in same["exact"].layers)
    with pytest.raises(KeyError, match="no result for 'high'; there are: exact"):
        same["high"]


# -------------------------------------------------------------------------------------------- models and reports


def test_a_tiny_llama():
    found = models.find("llama")
    result = numerics.compare(found.model, found.inputs, precisions=["exact", "medium"])
    assert result["exact"].within and not any(layer.note for layer in result["exact"].layers)
    unsound = {layer.kind for layer in result["medium"].layers if not layer.sound}
    assert unsound == {"Linear", "LlamaAttention"}  # whose own code are the two products of attention
    made = result["medium"].first_made
    assert made.name.endswith("layers.0.self_attn.q_proj") and 45 < made.isolated.snr_db < 60


def test_a_broken_layer_in_a_llama():
    found = models.find("llama")
    old = found.model.model.layers[1].mlp.up_proj
    new = InBfloat16(old.in_features, old.out_features)
    with torch.no_grad():
        new.weight.copy_(old.weight)
    found.model.model.layers[1].mlp.up_proj = new
    result = numerics.compare(found.model, found.inputs, precisions=["exact"])["exact"]
    assert str(result.first_made) == str(result.first_out) == "model.layers.1.mlp.up_proj (InBfloat16)"


def test_a_configuration_file(tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=96, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=64, pad_token_id=0
    )
    config.architectures = ["LlamaForSequenceClassification"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    found = models.find(str(path))
    assert type(found.model).__name__ == "LlamaForSequenceClassification" and found.model.config.hidden_size == 96
    assert models.find(str(path), tiny=True).model.config.hidden_size < 96
    path.write_text('{"model_type": "none such"}')
    with pytest.raises(ValueError, match="model_type 'none such', which Transformers does not know"):
        models.find(str(path))
    with pytest.raises(ValueError, match=r"absent\.json cannot be read as JSON"):
        models.find(str(tmp_path / "absent.json"))


def test_names_that_lead_nowhere():
    with pytest.raises(ValueError, match=r"'lama'.*\n.*\n.*near: .*llama"):
        models.find("lama")
    for text, said in (
        ("nowhere:make", "No module named"),
        ("math:make", "has no function 'make'"),
        ("math:pi", "has no function 'pi'"),
        (".math:make", "write module:function"),
    ):
        with pytest.raises((ValueError, ImportError), match=said):
            models.find(text)
    with pytest.raises(ValueError, match=r"must return \(model, inputs\), not float"):
        models.find("time:time")


def command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["numerics", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "given.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh()), torch.randn(3, 8)\n"
    )
    status, output = command("given:make", "--backward", "--json", "all.json", "--html", "all.html")
    assert status == 0 and "exact: all 4 calls of layers are within tolerance" in output
    assert "medium: 4 of 4 calls" in output and "gradient of" in output
    data = json.loads((tmp_path / "all.json").read_text())
    assert [result["precision"] for result in data["results"]] == list(numerics.available())
    assert data["results"][1]["first_made"] == "0" and len(data["results"][1]["layers"]) == 4
    html = (tmp_path / "all.html").read_text()
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", html) and html.count("<polyline") == 4 and "0 (Linear)" in html
    status, output = command("given:make", "--precisions", "medium")
    assert status == 1 and "0 (Linear)" in output
    status, output = command("given:make", "--train")
    assert status == 2 and "1 (Dropout) draws random numbers" in output
    status, output = command("given:make", "--precisions", "medium", "--rtol", "0.1", "--atol", "0.1", "--all")
    assert status == 0 and "2 (Tanh)" not in output and "Tanh" in output


def test_reports_escape_names_and_have_no_numbers_that_json_lacks():
    class Evil(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1 if x.device.type == "cpu" else inf)

    Evil.__name__ = "<b>[red]"
    result = numerics.compare(nn.Sequential(Evil()), torch.ones(2), precisions=["exact"], name="<i>")
    text = report.as_json(result)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert '"max_abs": "inf"' in text
    html = page.as_html(result)
    assert "<b>" not in html and "<i>" not in html and "&lt;b&gt;[red]" in html
