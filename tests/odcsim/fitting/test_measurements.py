"""Measurements come back as they were written, or are refused in one line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import damaged, mutated

from odcsim.errors import InputError
from odcsim.fitting import measurements
from odcsim.fitting.measurements import COMPUTES, CONSTANTS, Compute, Constant, Measurements, Transfer
from odcsim.profile import DTYPES, TRANSFERS

seconds, text = st.floats(1e-9, 1e6), st.text(max_size=9)
whole = st.integers(1, 10**9)
computes = st.builds(
    Compute,
    st.sampled_from(COMPUTES),
    whole,
    st.floats(0, 1e12),
    seconds,
    st.integers(0, 10**6),
    whole,
    st.integers(0, 10**6),
    st.booleans(),
)
transfers = st.builds(Transfer, st.sampled_from(TRANSFERS), whole, whole, seconds, st.booleans())
constants = st.builds(Constant, st.sampled_from(CONSTANTS), whole, seconds)
found = st.builds(
    Measurements,
    text,
    text,
    *(st.lists(rows, max_size=3).map(tuple) for rows in (computes, transfers, constants)),
    *[text] * 3,
    st.sampled_from(["", *DTYPES]),
    *[text] * 2,
)
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
    try:
        read = measurements.read(path)
    except InputError as error:
        line = str(error)
    else:
        assert isinstance(read, Measurements)
        return
    assert line.startswith(str(path))
    assert "\n" not in line


def change(content, place, value):
    *way, last = place
    for key in way:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (("compute", 0, "seconds"), 0, r"compute\[0\].seconds is 0.0; expected a number above zero"),
        (("compute", 0, "seconds"), -1, r"compute\[0\].seconds is -1"),
        (("compute", 0, "seconds"), float("nan"), r"compute\[0\].seconds is nan"),
        (("compute", 0, "seconds"), "1", r"compute\[0\].seconds is '1'"),
        (("compute", 0, "tokens"), 1.5, r"compute\[0\].tokens is 1.5; expected a whole number from 1"),
        (("compute", 0, "tokens"), True, r"compute\[0\].tokens is True"),
        (("compute", 0, "squares"), -1, r"compute\[0\].squares is -1; expected a number from 0"),
        (("compute", 0, "kind"), "middle", r"compute\[0\].kind is 'middle'; one of forward"),
        (("compute", 0, "speed"), 1, r"unknown key 'speed' in compute\[0\]; known: kind"),
        (("compute", 0), 1, r"compute\[0\] is 1; expected an object"),
        (("compute",), 1, r"compute is 1; expected a list"),
        (("compute", 0, "samples"), -1, r"compute\[0\].samples is -1; expected a whole number from 0"),
        (("compute", 0, "samples"), 1.0, r"compute\[0\].samples is 1.0; expected a whole number"),
        (("compute", 0, "alone"), 1, r"compute\[0\].alone is 1; expected true or false"),
        (("compute", 0, "alone"), "yes", r"compute\[0\].alone is 'yes'"),
        (("transfers", 0, "computing"), None, r"transfers\[0\].computing is None; expected true or false"),
        (("constants", 0, "computing"), True, r"unknown key 'computing' in constants\[0\]"),
        (("transfers", 0, "bytes"), 0, r"transfers\[0\].bytes is 0"),
        (("transfers", 0, "bytes"), 10**400, r"transfers\[0\].bytes is huge"),
        (("transfers", 0, "kind"), "meeting", r"transfers\[0\].kind is 'meeting'"),
        (("constants", 0, "devices"), 0, r"constants\[0\].devices is 0"),
        (("gpu",), 1, "gpu is 1; expected a text"),
        (("dtype",), "int8", "dtype is 'int8'; one of float32"),
        (("speed",), 1, "unknown key 'speed'; known: model"),
        (("version",), 2, "version 2 is not 1; make measurements again"),
        (("format",), "odcsim profile", "not measurements"),
    ],
)
def test_a_wrong_value_is_named(place, value, problem, path):
    measurements.write(SMALL, path)
    content = json.loads(path.read_text())
    change(content, place, value)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=problem) as caught:
        measurements.read(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_value_is_named(path):
    measurements.write(SMALL, path)
    content = json.loads(path.read_text())
    del content["transfers"][0]["bytes"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"no bytes in transfers\[0\]; known: kind"):
        measurements.read(path)
    del content["transfers"], content["gpu"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=": no gpu; known: model"):
        measurements.read(path)
    with pytest.raises(InputError, match="no such file"):
        measurements.read(path.with_name("none.json"))


def test_what_may_be_left_out_says_nothing(path):
    measurements.write(SMALL, path)
    content = json.loads(path.read_text())
    for name in ("longest", "microbatches", "samples", "alone"):
        del content["compute"][0][name]
    del content["transfers"][0]["computing"]
    path.write_text(json.dumps(content))
    assert measurements.read(path) == SMALL
