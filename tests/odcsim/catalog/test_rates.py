"""The catalogue of what GPUs reach: every GPU has a family, every figure a kind and a source, none is out of reason."""

import tomllib
from pathlib import Path

import pytest

from odcsim import catalog
from odcsim.catalog import rates as module
from odcsim.catalog.estimates.spreads import STARTS
from odcsim.catalog.rates import families, family_of, figures, rates, spreads

CONTENT = tomllib.loads(Path(module.__file__).with_name("rates.toml").read_text(encoding="utf-8"))
KINDS = {"fitted", "measured", "chosen", "assumed", "datasheet"}


def test_every_gpu_is_in_one_family():
    listed = [gpu for row in CONTENT["families"].values() for gpu in row["gpus"]]
    assert sorted(listed) == sorted(catalog.gpu_names())
    assert {family_of(gpu) for gpu in catalog.gpu_names()} == set(families())


@pytest.mark.parametrize("family", families())
def test_shares_are_shares_and_the_usual_kernel_is_there(family):
    found = rates(family)
    for share in (found.matmul, found.moved):
        assert 0.3 < share <= 1
    assert 0 <= found.copying < 0.5
    assert found.fp8 == 0 or 1 < found.fp8 <= 2
    assert found.usual in found.attention
    for name, kernel in found.attention.items():
        assert 0 < kernel.forward < 0.8, name
        assert 0 < kernel.backward < 0.8, name
        assert 0 < kernel.short_forward < 2000, name


@pytest.mark.parametrize("family", families())
def test_every_figure_says_how_it_is_known_and_from_where(family):
    told = figures(family)
    assert {"matmul", "moved"} <= set(told)
    for name, (_, kind, source) in told.items():
        assert kind in KINDS, name
        assert source, name


def test_every_row_of_attention_has_a_family_a_kind_and_a_source():
    for kernel, rows in CONTENT["attention"].items():
        for family, row in rows.items():
            assert family in CONTENT["families"], kernel
            assert len(row) == 6
            assert row[4] in KINDS
            assert row[5] in CONTENT["sources"]


def test_a_gpu_of_ones_own_is_taken_for_the_least_known_family():
    assert family_of("somebodys-gpu") not in spreads()


def test_what_kinds_of_runs_add_is_in_reason_and_shown_by_somebody():
    assert set(spreads()) <= {*families(), *STARTS}
    for kind, found in spreads().items():
        assert 0.03 < found.deviation < 0.5, kind
        assert found.publishers > 0, kind
