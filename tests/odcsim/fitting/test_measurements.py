"""Measurements come back as they were written, or are refused in one line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import read_or_refused
from strategies import damaged, mutated

from odcsim import measurements
from odcsim.errors import InputError
from odcsim.measurements import COMPUTES, CONSTANTS, Compute, Constant, Measurements, Transfer
from odcsim.profile import DTYPES, TRANSFERS

seconds, text = st.floats(1e-9, 1e6), st.text(max_size=9)
whole, counts = st.integers(1, 10**9), st.integers(0, 10**6)
computes = st.builds(
    Compute, st.sampled_from(COMPUTES), whole, st.floats(0, 1e12), seconds, counts, whole, counts, st.booleans()
)
transfers = st.builds(Transfer, st.sampled_from(TRANSFERS), whole, whole, seconds, st.booleans())
constants = st.builds(Constant, st.sampled_from(CONSTANTS), whole, seconds)
held = [st.lists(rows, max_size=3).map(tuple) for rows in (computes, transfers, constants)]
found = st.builds(Measurements, text, text, *held, *[text] * 3, st.sampled_from(["", *DTYPES]), *[text] * 2)
SMALL = Measurements(
    "tiny", "cpu", (Compute("forward", 4, 16.0, 0.1),), (Transfer("push", 2, 8, 0.1),), (Constant("meeting", 2, 0.1),)
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("measurements") / "m.json"


@given(wanted=found)
def test_what_is_written_comes_back(wanted, path):
    measurements.write(wanted, path)
    assert measurements.read(path) == wanted


@settings(max_examples=120)
@given(data=st.data())
def test_damaged_files_are_refused_or_make_measurements(data, path):
    measurements.write(SMALL, path)
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    else:
        path.write_text(json.dumps(data.draw(mutated(json.loads(path.read_text())))))
    with read_or_refused(str(path)):
        assert isinstance(measurements.read(path), Measurements)


def changed(path, place, value):
    """The small file's content with another value, or without it."""
    measurements.write(SMALL, path)
    inside = content = json.loads(path.read_text())
    for key in place[:-1]:
        inside = inside[key]
    if value is None:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    path.write_text(json.dumps(content))


WRONG = {
    ("compute", 0, "seconds"): (0, -1, float("nan"), "1", 1e10, None), ("compute", 0, "tokens"): (1.5, True, 0, None),
    ("compute", 0, "squares"): (-1, None), ("compute", 0, "kind"): ("middle", None), ("compute", 0, "speed"): (1,),
    ("compute", 0, "samples"): (-1, 1.0), ("compute", 0, "alone"): (1, "yes"), ("compute", 0): (1,),
    ("compute",): (1, None), ("transfers", 0, "computing"): ("no", 0), ("transfers", 0, "bytes"): (0, 10**400, None),
    ("transfers", 0, "kind"): ("meeting",), ("constants", 0, "computing"): (True,), ("constants", 0, "devices"): (0,),
    ("gpu",): (1, None), ("dtype",): ("int8",), ("speed",): (1,), ("version",): (2, None),
    ("format",): ("odcsim profile", None),
}  # fmt: skip
MAY_BE_LEFT_OUT = [("compute", 0, name) for name in ("longest", "microbatches", "samples", "alone")]


@pytest.mark.parametrize("place", WRONG, ids=str)
def test_wrong_values_and_missing_ones_are_refused(place, path):
    for value in WRONG[place]:
        changed(path, place, value)
        with pytest.raises(InputError):
            measurements.read(path)


def test_what_may_be_left_out_says_nothing(path):
    for place in (*MAY_BE_LEFT_OUT, ("transfers", 0, "computing")):
        changed(path, place, None)
        assert measurements.read(path) == SMALL
    with pytest.raises(InputError):
        measurements.read(path.with_name("none.json"))
