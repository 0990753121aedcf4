"""What somebody gave is read as what it is to be, or refused in one line: name, value, place and way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.support.checked import LARGEST, Given

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ANY = st.booleans() | VALUES | st.integers(0, 9) | st.lists(st.integers(0, 9)) | st.sampled_from(["a", "b"])
HUGE = st.sampled_from([10**400, -(10**400), int(LARGEST), [10**5000], {"a": 10**5000}])


def whole(value):
    return type(value) is int and 1 <= value <= 8


READERS = {
    "number": (lambda g: g.number(1, 8), lambda v: type(v) in (int, float) and 1 <= v <= 8),
    "whole": (lambda g: g.whole(1, 8), whole),
    "wholes": (lambda g: list(g.wholes(1, 8)), lambda v: type(v) is list and all(map(whole, v))),
    "text": (Given.text, lambda v: type(v) is str),
    "flag": (Given.flag, lambda v: type(v) is bool),
    "values": (Given.values, lambda v: type(v) is list),
    "items": (lambda g: [item.value for item in g.items()], lambda v: type(v) is list),
    "mapping": (Given.mapping, lambda v: type(v) is dict),
    "one_of": (lambda g: g.one_of(("a", "b")), lambda v: v in ("a", "b")),
}


@pytest.mark.parametrize("name", READERS)
@given(value=ANY | HUGE)
def test_a_value_is_read_as_it_is_or_refused_in_one_line(name, value):
    read, fits = READERS[name]
    if fits(value):
        assert read(Given("key", value, "file")) == value
        return
    with pytest.raises(InputError) as refused:
        read(Given("key", value, "file"))
    line = str(refused.value)
    assert line.startswith("file: key")
    assert len(line) < 120
    assert refused.value.fix
    assert "\n" not in line


@given(st.lists(st.integers(-1, 9) | st.booleans() | st.floats(), max_size=4))
def test_whole_numbers_together_are_what_they_are_one_by_one(values):
    def outcome(read):
        try:
            return read()
        except InputError as error:
            return str(error)

    row = Given("row", values)
    assert outcome(lambda: row.wholes(0, 8)) == outcome(lambda: tuple(item.whole(0, 8) for item in row.items()))
