"""What people have from commit f87f5be is read as it was: files and links come to what they came to then.

Seconds that are estimated are today's, and so are intervals of a profile that is asked about other devices:
`figures.json` and `sweep.csv` hold those, in the places of those of then.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterator
from urllib.parse import parse_qsl

import pytest
from old_files import FIXTURES, alike, figures, flat

from odcsim.cli import main

FITTED = ("steps.csv", "measurements.json")  # least squares, whose last digits a library's build and a processor decide
NOTHING = 1e-15  # seconds: what they give to what takes none; of what takes some a square takes least, 1e-8
# Of a whole run: they know now which minibatches were drawn, and not the uncertainty of the seconds alone.
RUN_BETWEEN = {f"run.{name}_{end}" for name in ("seconds", "gpu_hours", "dollars") for end in ("low", "high")}
COUNTED = ("memory_bytes", "memory_terms")  # an estimate of memory counts more, and otherwise, since
THEN = json.loads((FIXTURES / "figures.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now() -> Iterator[dict]:
    before = os.getcwd()  # noqa: PTH109
    os.chdir(FIXTURES)
    yield figures()
    os.chdir(before)


def test_every_file_is_read(now):
    assert set(now) == set(THEN)


@pytest.mark.parametrize("name", THEN)
def test_it_comes_to_the_same_figures(name, now):
    then, ours = (dict(flat(name, figures)) for figures in (THEN[name], now[name]))
    if f"{name}/verdict" in then:  # the explorer says what the terminal adds, as well
        assert ours[f"{name}/verdict"].startswith(then.pop(f"{name}/verdict"))
    assert set(then) <= set(ours)  # new figures may be told; none may be gone
    far = (1e-6, NOTHING) if name in FITTED else (1e-12,)
    then = {path: value for path, value in then.items() if not counted(path.split("/"))}
    assert not {p: (value, ours[p]) for p, value in then.items() if not alike(meant(p, value), meant(p, ours[p]), *far)}


def counted(parts):
    """Whether it is what an estimate of memory came to."""
    return any(part.partition(".")[0] in COUNTED for part in parts)


def meant(path, value):
    """A link says the same in any order, a refusal by the word of a grid or of a flag, a command how many epochs; and
    links and commands say the sharding that was usual then."""
    if path.endswith("/command"):
        return str(value).replace(" --epochs 1", "").replace(" --sharding full", "")
    if path.endswith("/link"):
        return sorted({*parse_qsl(str(value).removeprefix("?"))} - {("sharding", "full")})
    if path.endswith("/sharding"):  # of what cannot run nobody chose it
        return str(value).replace("usual", "full")
    return str(value).replace("--global-batch", "global_batch") if path.endswith("/refused") else value


def test_a_sweep_that_was_begun_then_ends_with_the_same_table(tmp_path, monkeypatch):
    """Points with keys of then are worked on again; what was kept of them is in nobody's way."""
    for name in ("grid.toml", "lengths.csv", "partial.points"):
        shutil.copy(FIXTURES / name, tmp_path)
    (tmp_path / "partial.points").rename(tmp_path / "sweep.csv.points")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "grid.toml", "-o", "sweep.csv", "--jobs", "1"]) == 0
    then, now = (table(folder / "sweep.csv") for folder in (FIXTURES, tmp_path))
    assert len(then) == len(now)
    for old, new in zip(then, now, strict=True):
        kept = {name: value for name, value in old.items() if name not in RUN_BETWEEN and not counted([name])}
        then = {name: meant(f"/{name}", value) for name, value in kept.items()}
        assert not [(n, old[n], new[n]) for n, value in then.items() if not alike(value, meant(f"/{n}", new[n]))]


def table(path):
    """Without the points' keys, which are made otherwise now."""
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [{name: text for name, text in row.items() if name != "point"} for row in rows]
