"""Traces that ship, against what they are made from, and those that are drawn from a spec, against what it says."""

import numpy as np
import pytest
import scripts
from hypothesis import given
from hypothesis import strategies as st
from rowfiles import write
from scripts import ROOT

from odcsim.cli import main
from odcsim.reading import draw, load, named
from odcsim.reading.specs import exponential_quantiles

ORIGINALS = ROOT.parent / "shared/lengths"
MADE_FROM = scripts.load("traces/make_tables.py").RECORDED


def expanded(name):
    trace = load(name)
    return np.repeat(trace.lengths, trace.counts)


def test_every_name_loads_and_says_what_it_is():
    assert set(named.names()) == {"longalign", "swe-smith", "aime-rl", *MADE_FROM}
    for name in named.names():
        trace, about = load(name.upper()), named.about(name)
        assert trace.name == name
        assert about.kind == ("data" if name in MADE_FROM else "shape, not data")
        assert all((about.origin, about.licence, about.citation, about.note))
        assert trace.origin == f"{about.kind}: {about.origin}"


@pytest.mark.parametrize(("name", "file"), MADE_FROM.items())
def test_tables_keep_the_figures_of_their_originals(name, file):
    if not (ORIGINALS / file).exists():
        pytest.skip("the recorded lengths are not here")
    original, table = load(ORIGINALS / file).lengths, expanded(name)
    assert (len(table), table.max()) == (len(original), original.max())
    assert table.mean() == pytest.approx(original.mean(), abs=0.5)
    assert table.std() == pytest.approx(original.std(), rel=0.001)
    for q in (0.5, 0.99):
        assert np.quantile(table, q) == pytest.approx(np.quantile(original, q), rel=0.01, abs=1)


def test_longalign_is_the_truncated_exponential_it_says():
    lengths = expanded("longalign")
    assert len(lengths) == 10_000
    assert lengths.mean() == pytest.approx(16_500, abs=1)
    assert lengths.min() >= 5_500
    assert 65_000 <= lengths.max() <= 65_536
    rate = np.polyfit(np.log(np.linspace(0.9, 0.1, 9)), np.quantile(lengths, np.linspace(0.1, 0.9, 9)), 1)[0]
    assert -rate == pytest.approx(11_000, rel=0.1)


def test_swe_smith_and_aime_have_their_published_moments():
    swe, aime = expanded("swe-smith"), expanded("aime-rl")
    assert np.median(swe) == pytest.approx(29_200, rel=0.01)
    sigma = np.log(np.quantile(swe, 0.841345) / np.median(swe))
    assert 29_200 * np.exp(sigma**2 / 2) == pytest.approx(34_700, rel=0.02)
    assert aime.mean() == pytest.approx(9_000, abs=1)
    assert (swe.max(), aime.max()) == (65_536, 16_384)


def test_where_names_are(tmp_path, monkeypatch):
    """An installed package has a folder of its own; only data files are names."""
    monkeypatch.setattr(named, "__file__", str(tmp_path / "odcsim" / "reading" / "named.py"))
    assert named.folder() == tmp_path / "traces"
    (own := tmp_path / "odcsim" / "_traces").mkdir(parents=True)
    assert named.folder() == own
    for file in ("README.md", "make_tables.py", "one.json"):
        (own / file).touch()
    assert named.names() == ["one"]


def test_shapes_have_their_median_spread_spike_and_ends_and_follow_their_seed():
    spec = "lognormal:median=700,sigma=0.9,max=4096,spike=0.1"
    one, again, other = (load(of).lengths.tolist() for of in (spec, f"{spec},seed=0", f"{spec},seed=1"))
    assert one == again != other
    assert (len(one), load(f"{spec},samples=7").size) == (10_000, 7)
    plain = np.log(load("LogNormal: median=700, sigma=0.9, samples=100000").lengths)
    assert np.exp(np.median(plain)) == pytest.approx(700, rel=0.02)
    assert plain.std() == pytest.approx(0.9, rel=0.02)
    cut = load(f"{spec},samples=100000")
    assert (cut.lengths == 4096).mean() == pytest.approx(0.1 + 0.9 * (plain > np.log(4096)).mean(), abs=0.003)
    assert cut.longest == 4096
    assert set(load("uniform:min=3,max=6").lengths) == {3, 4, 5, 6}
    assert set(load("fixed:length=9,samples=4").lengths) == {9}
    assert load("lognormal:median=5,sigma=10,min=3").lengths.min() == 3
    lengths = load("exponential:mean=16500,min=5500,max=65536,samples=100000").lengths
    assert lengths.mean() == pytest.approx(16_500, rel=0.01)
    assert 5500 <= lengths.min() < 5510 < 65_000 < lengths.max() <= 65536


@given(st.integers(1, 1000), st.integers(10, 60_000), st.floats(0.005, 0.995))
def test_the_truncated_exponential_has_its_mean_and_support(low, width, share):
    mean = low + share * width
    x = exponential_quantiles((np.arange(20_000) + 0.5) / 20_000, mean, low, low + width)
    assert x.mean() == pytest.approx(mean, abs=0.002 * width)
    assert low <= x.min()
    assert x.max() <= low + width
    assert (np.diff(x) >= 0).all()


def test_draw_takes_passes_without_replacement(tmp_path):
    path = str(write(tmp_path / "a.csv", [{"length": n} for n in range(1, 11)]))
    lengths = draw(path, 25, 1)
    assert sorted(lengths[:10]) == sorted(lengths[10:20]) == list(range(1, 11))
    assert len(set(lengths[20:])) == 5
    assert draw(path, 25, 1).tolist() == lengths.tolist() != draw(path, 25, 2).tolist()
    assert draw("uniform:min=1,max=99,samples=3,seed=4", 9, 1).size == 9


@pytest.mark.parametrize("spec", ["uniform:min=1,max=99,samples=3,seed=4", "lognormal:median=9,sigma=1"])
def test_a_spec_is_drawn_as_it_is_loaded(tmp_path, spec):
    path = tmp_path / "lengths.csv"
    assert main(["trace", "make", spec, "-o", str(path)]) == 0
    assert load(spec).lengths.tolist() == draw(spec).tolist() == load(path).lengths.tolist()
    assert draw(spec, 7, 5).tolist() == load(f"{spec.partition(',samples')[0]},samples=7,seed=5").lengths.tolist()
