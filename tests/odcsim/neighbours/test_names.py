"""Tables of names and defaults say what the trainers' own classes do, of the version that they were written for."""

import warnings

import pytest

from odcsim.neighbours import names
from odcsim.neighbours.values import flatten
from odcsim.trace import SFT

KINDS = [(trainer, kind) for trainer in names.CLASSES for kind in names.KINDS.get(trainer, (SFT,))]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("trainer", "kind"), KINDS)
def test_a_table_has_the_names_and_defaults_of_the_classes(trainer, kind):
    table = names.tomllib.loads((names.FOLDER / f"{trainer}.toml").read_text())
    if names.installed(trainer) != table["version"]:
        pytest.skip(f"{trainer} of {table['version']} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = names.own_names(trainer, kind)
    assert names.names_of(trainer, kind).known == {*own}
    known = {name: value for part in (names.ALL, kind) for name, value in flatten(table.get(part, {}))}
    assert known == {name: value for name, value in own.items() if names.is_plain(value)}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_of_another_version_its_own_classes_are_asked(monkeypatch):
    if names.installed("trl") == "":
        pytest.skip("trl is not installed")
    monkeypatch.setattr(names, "installed", lambda _: "99.0")
    found = names.names_of.__wrapped__("trl", SFT)
    assert found.version == "99.0"
    assert "packing" in found.known
    assert found.usual["max_length"] == 1024
