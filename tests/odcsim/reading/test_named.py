"""The traces that ship, against what they are made from."""

import numpy as np
import pytest
import scripts
from scripts import ROOT

from odcsim.errors import InputError
from odcsim.reading import load, named

ORIGINALS = ROOT.parent / "shared/lengths"
MADE_FROM = scripts.load("traces/make_tables.py").RECORDED


def expanded(name):
    trace = load(name)
    return np.repeat(trace.lengths, trace.counts)


def test_every_name_loads_and_says_what_it_is():
    assert set(named.names()) == {"longalign", "swe-smith", "aime-rl", *MADE_FROM}
    for name in named.names():
        trace, told = load(name.upper()), named.about(name)
        assert trace.name == name
        assert told.kind in ("data", "shape, not data")
        assert told.kind == ("data" if name in MADE_FROM else "shape, not data")
        assert all((told.origin, told.licence, told.citation, told.note))
        assert trace.origin == f"{told.kind}: {told.origin}"


@pytest.mark.parametrize(("name", "file"), MADE_FROM.items())
def test_tables_keep_the_figures_of_their_originals(name, file):
    if not (ORIGINALS / file).exists():
        pytest.skip("the recorded lengths are not here")
    original, table = load(ORIGINALS / file).lengths, expanded(name)
    assert len(table) == len(original)
    assert table.max() == original.max()
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
    assert swe.max() == 65_536
    sigma = np.log(np.quantile(swe, 0.841345) / np.median(swe))
    assert 29_200 * np.exp(sigma**2 / 2) == pytest.approx(34_700, rel=0.02)
    assert aime.mean() == pytest.approx(9_000, abs=1)
    assert aime.max() == 16_384


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(InputError, match="no trace is called 'longaling'; did you mean 'longalign'"):
        load("longaling")


def test_an_installed_package_finds_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(named, "__file__", str(tmp_path / "odcsim" / "reading" / "named.py"))
    assert named.folder() == tmp_path / "traces"
    (tmp_path / "odcsim" / "_traces").mkdir(parents=True)
    assert named.folder() == tmp_path / "odcsim" / "_traces"


def test_only_data_files_are_names(tmp_path, monkeypatch):
    monkeypatch.setattr(named, "folder", lambda: tmp_path)
    for file in ("README.md", "make_tables.py", "one.json"):
        (tmp_path / file).touch()
    assert named.names() == ["one"]
