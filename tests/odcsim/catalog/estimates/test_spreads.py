"""Spreads by kind of run: wider for more kinds and for fewer publishers, as Student's t is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from odcsim import catalog
from odcsim.catalog.estimates.compute import estimate
from odcsim.catalog.estimates.spreads import FAMILY, INTERVAL, STARTS, WEIGHS, Spread, kinds, start, together, widened
from odcsim.catalog.rates import rates
from odcsim.recipe import USUAL, Recipe

DENSE, EXPERTS = catalog.model("qwen2.5-7b"), catalog.model("qwen3-30b-a3b")
SPREADS = st.builds(Spread, st.floats(0.01, 0.5), st.integers(0, 20))
CHOSEN = {"compiled": {"stack": "compiled"}, "plain": {"stack": "plain"}, "adapters": {"lora": 8},
          "fp8": {"precision": "fp8"}, "policy": {"loss": "policy"}}  # fmt: skip


def reach(recipe: Recipe = USUAL, model=DENSE, gpu: str = "h100") -> float:
    one = catalog.gpu(gpu)
    return estimate(model, one, rates(one.family), 8, recipe).high


@pytest.mark.parametrize("publishers", range(12))
def test_an_interval_reaches_as_far_as_students_t(publishers):
    degrees = publishers + WEIGHS
    assert INTERVAL * widened(Spread(1.0, publishers)) == pytest.approx(stats.t.ppf(0.95, degrees), rel=0.06)


@given(SPREADS)
def test_more_publishers_of_the_same_deviation_narrow_it_and_never_below_the_deviation(one):
    assert one.deviation < widened(Spread(one.deviation, one.publishers + 1)) < widened(one)


@given(st.dictionaries(st.sampled_from(sorted(STARTS)), SPREADS, min_size=1))
def test_kinds_add_by_their_squares_in_any_order(spreads):
    named = list(spreads)
    found = together(spreads, named)
    assert found == pytest.approx(together(spreads, named[::-1]))
    assert found**2 == pytest.approx(sum(widened(of) ** 2 for of in spreads.values()))


def test_a_kind_that_nobody_published_has_its_start():
    assert together({}, ["cdna4"]) == widened(start("cdna4")) == widened(Spread(FAMILY, 0))
    assert together({}, ["experts"]) == widened(Spread(STARTS["experts"], 0))


@pytest.mark.parametrize("kind", CHOSEN)
def test_every_choice_of_a_kind_widens_the_interval(kind):
    recipe = USUAL.by(**CHOSEN[kind])
    assert kinds("hopper", DENSE, recipe) == ["hopper", kind]
    assert reach(recipe) > reach()


def test_experts_and_a_family_that_nobody_ran_are_less_certain():
    assert kinds("hopper", EXPERTS, USUAL) == ["hopper", "experts"]
    assert reach(model=EXPERTS) > reach()
    assert reach(gpu="mi355x") > reach(gpu="a100")
