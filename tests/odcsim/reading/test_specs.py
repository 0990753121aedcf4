"""Specs draw what they say, the same each time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.reading import draw, load
from odcsim.reading.specs import exponential_quantiles


def test_a_spec_is_deterministic_and_its_seed_matters():
    spec = "lognormal:median=700,sigma=0.9,max=4096,spike=0.1"
    assert load(spec).lengths.tolist() == load(spec).lengths.tolist()
    assert load(spec).lengths.tolist() == load(f"{spec},seed=0").lengths.tolist()
    assert load(spec).lengths.tolist() != load(f"{spec},seed=1").lengths.tolist()
    assert load(f"{spec},samples=7").size == 7
    assert load(spec).size == 10_000
    assert "shape, not data" in load(spec).origin


def test_lognormal_has_its_median_spread_and_spike():
    plain = np.log(load("LogNormal: median=700, sigma=0.9, samples=100000").lengths)
    assert np.exp(np.median(plain)) == pytest.approx(700, rel=0.02)
    assert plain.std() == pytest.approx(0.9, rel=0.02)
    cut = load("lognormal:median=700,sigma=0.9,max=4096,spike=0.1,samples=100000")
    by_clip = (plain > np.log(4096)).mean()
    assert (cut.lengths == 4096).mean() == pytest.approx(0.1 + 0.9 * by_clip, abs=0.003)
    assert cut.longest == 4096
    assert load("lognormal:median=5,sigma=10,min=3").lengths.min() == 3


def test_uniform_and_fixed():
    assert set(load("uniform:min=3,max=6").lengths) == {3, 4, 5, 6}
    assert set(load("fixed:length=9,samples=4").lengths) == {9}


@given(st.integers(1, 1000), st.integers(10, 60_000), st.floats(0.005, 0.995))
@settings(deadline=None)
def test_the_truncated_exponential_has_its_mean_and_support(low, width, share):
    mean = low + share * width
    x = exponential_quantiles((np.arange(20_000) + 0.5) / 20_000, mean, low, low + width)
    assert x.mean() == pytest.approx(mean, abs=0.002 * width)
    assert low <= x.min()
    assert x.max() <= low + width
    assert (np.diff(x) >= 0).all()


def test_exponential_spec():
    lengths = load("exponential:mean=16500,min=5500,max=65536,samples=100000").lengths
    assert lengths.mean() == pytest.approx(16_500, rel=0.01)
    assert lengths.min() >= 5500
    assert lengths.max() <= 65536


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lognormal:medain=5,sigma=1", "no key 'medain'; did you mean 'median'"),
        ("lognormal:median=5", "lognormal needs sigma; such as lognormal:median=700"),
        ("lognormal", "lognormal needs median, sigma"),
        ("lognormal:median=5,sigma=1,spike=0.1", "lognormal needs max"),
        ("lognormal:median=5,sigma=1,max=9,spike=2", "spike=2 is out of range; it goes from 0 to 1"),
        ("lognormal:median=nan,sigma=1", "median=nan is out of range"),
        ("lognormal:median=x,sigma=1", "median='x' is not a number; write median=NUMBER"),
        ("fixed:length", "length='' is not a number"),
        ("fixed:length=0", "length=0 is out of range; it goes from 1 to 2147483647"),
        ("fixed:length=1.5", "length=1.5 is not a whole number"),
        ("fixed:length=3,length=4", "length is given twice"),
        ("fixed:length=3,samples=0", "samples=0 is out of range"),
        ("fixed:length=3,seed=-1", "seed=-1 is out of range"),
        ("uniform:min=9,max=3", "min=9 is above max=3"),
        ("exponential:mean=5,min=9,max=30", "mean=5 is not between min and max"),
        ("gamma:mean=5", "no trace is called 'gamma:mean=5'"),
        ("lognorml:median=5", "did you mean 'lognormal'"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(InputError, match=message):
        load(spec)


def test_a_spec_has_no_columns():
    with pytest.raises(InputError, match="has no columns to choose from; leave out --column"):
        load("fixed:length=3", column="length")


def test_draw_takes_passes_without_replacement(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("length\n" + "".join(f"{n}\n" for n in range(1, 11)))
    lengths = draw(str(path), 25, 1)
    assert sorted(lengths[:10]) == sorted(lengths[10:20]) == list(range(1, 11))
    assert len(set(lengths[20:])) == 5
    assert draw(str(path), 25, 1).tolist() == lengths.tolist() != draw(str(path), 25, 2).tolist()
    assert draw("uniform:min=1,max=99,samples=3,seed=4", 9, 1).size == 9
