"""Widths of docs/published-runs.md: what made errors were drawn with is found, and a publisher's runs count as one."""

from dataclasses import replace

import numpy as np
import pytest
import scripts

from odcsim.catalog.estimates.spreads import FAMILY, INTERVAL, Spread, together

cells = scripts.load("docs/studies/published_cells.py")
widths = scripts.load("docs/studies/published_widths.py")
(DENSE, *_) = (c for c in cells.read() if widths.kinds_of(c) == ["ampere"])
ADAPTERS = replace(DENSE, recipe=DENSE.recipe.by(lora=8))


def by(publishers: int, cell):
    """One run of each of so many."""
    return [replace(cell, source=f"p{number}") for number in range(publishers)]


@pytest.mark.slow
def test_what_errors_were_drawn_with_is_found():
    rng = np.random.default_rng(1)
    runs = [*by(3000, DENSE), *by(3000, ADAPTERS)]
    errors = np.concatenate([rng.normal(0, 0.1, 3000), rng.normal(0, np.hypot(0.1, 0.2), 3000)])
    found = widths.learnt(runs, errors)
    assert found["ampere"].deviation == pytest.approx(0.1, rel=0.1)
    assert found["adapters"].deviation == pytest.approx(0.2, rel=0.1)
    assert found["ampere"].publishers == found["adapters"].publishers == 3000


def test_a_publisher_with_many_runs_counts_as_one():
    few = widths.learnt(by(2, DENSE), np.array([0.3, 0.05]))
    many = widths.learnt([run for run in by(2, DENSE) for _ in range(50)], np.repeat([0.3, 0.05], 50))
    assert few == many
    assert few["ampere"].publishers == 2
    spreads = {"ampere": Spread(0.1, 5), "adapters": Spread(0.2, 1)}  # a run is as uncertain as its kinds together
    assert widths.spread(spreads, ADAPTERS) == together(spreads, ["ampere", "adapters"]) > widths.spread(spreads, DENSE)


@pytest.mark.parametrize("off", [0.01, 0.5])
def test_the_fewer_publishers_the_nearer_to_the_start(off):
    rng = np.random.default_rng(2)
    draws = {count: rng.normal(0, off, (60, count)) for count in (1, 4, 16)}
    found = [np.mean([widths.learnt(by(count, DENSE), e)["ampere"].deviation for e in draws[count]]) for count in draws]
    away = np.abs(np.array(found) - FAMILY)
    assert (np.diff(away) > 0).all()


@pytest.mark.parametrize("tails", [3, 30])
def test_90_percent_of_runs_are_inside_whatever_the_tails(tails):
    rng = np.random.default_rng(3)
    runs, errors = by(2000, DENSE), 0.1 * rng.standard_t(tails, 2000)
    reach = INTERVAL * widths.spread(widths.learnt(runs, errors), DENSE)
    assert np.mean(np.abs(errors) < reach) == pytest.approx(0.9, abs=0.02)
