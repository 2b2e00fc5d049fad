"""What a chip costs, from weakest to strongest source."""

import pytest

from torch_tpu import settings
from torch_tpu.aot.prices import price_of
from torch_tpu.runtime.topology import GENERATIONS


@pytest.mark.parametrize("generation", list(GENERATIONS))
def test_every_generation_has_a_dated_list_price(generation):
    price = price_of(generation)
    assert 0 < price.usd_per_chip_hour < 100
    assert "on-demand list price 20" in price.source


def test_the_user_decides(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('terms = "our contract"\nas_of = "2027"\n[usd_per_chip_hour]\nv6e = 1.5\n')
    with settings.override(chip_prices=("v6e=2", "v7x=9")):
        assert price_of("v6e").usd_per_chip_hour == 2
        assert price_of("v6e").source == "TORCH_TPU_CHIP_PRICES"
        assert price_of("v6e", [str(file)]).source == "our contract 2027"
        assert price_of("v6e", [str(file), "v6e=0.5"]).usd_per_chip_hour == 0.5
        assert price_of("v7x", [str(file)]).usd_per_chip_hour == 9
        assert price_of("v5p", [str(file)]).source.startswith("on-demand")


@pytest.mark.parametrize(
    ("given", "match"),
    [("v9=1", "no TPU generation"), ("v6e=cheap", "no price: write USD"), ("v6e=-1", "no price: write USD")],
)
def test_wrong_prices(given, match):
    with pytest.raises(ValueError, match=match):
        price_of("v6e", [given])


def test_wrong_files(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text("v6e = 3")
    with pytest.raises(ValueError, match="no table of prices"):
        price_of("v6e", [str(file)])
    other = tmp_path / "q.toml"  # files are read once
    other.write_text("[usd_per_chip_hour]\nv5lite = 0.6")
    with pytest.raises(ValueError, match="v5lite is no TPU generation"):
        price_of("v6e", [str(other)])
    with pytest.raises(FileNotFoundError):
        price_of("v6e", [str(tmp_path / "nothing.toml")])
