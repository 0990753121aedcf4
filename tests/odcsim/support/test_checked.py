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
READERS = {
    "number": (lambda g: g.number(1, 8), lambda v: type(v) in (int, float) and 1 <= v <= 8),
    "whole": (lambda g: g.whole(1, 8), lambda v: type(v) is int and 1 <= v <= 8),
    "wholes": (lambda g: list(g.wholes(1, 8)), lambda v: type(v) is list and all(type(n) is int for n in v)),
    "text": (lambda g: g.text(), lambda v: type(v) is str),
    "flag": (lambda g: g.flag(), lambda v: type(v) is bool),
    "values": (lambda g: g.values(), lambda v: type(v) is list),
    "items": (lambda g: [item.value for item in g.items()], lambda v: type(v) is list),
    "mapping": (lambda g: g.mapping(), lambda v: type(v) is dict),
    "one_of": (lambda g: g.one_of(("a", "b")), lambda v: v in ("a", "b")),
}


@pytest.mark.parametrize("name", READERS)
@given(st.booleans() | VALUES | st.integers(2, 8) | st.lists(st.integers(2, 8)) | st.sampled_from(["a", "b"]))
def test_a_value_is_read_as_it_is_or_refused_in_one_line(name, value):
    read, fits = READERS[name]
    try:
        read_value = read(Given("key", value, "file"))
    except InputError as error:
        line, fix = str(error), error.fix
    else:
        assert read_value is value or read_value == value
        assert fits(value)
        return
    assert line.startswith("file: key")
    assert len(line) < 120
    assert fix
    assert "\n" not in line


@pytest.mark.parametrize(("name", "value"), [("whole", 5), ("number", 5.5), ("wholes", [2, 8]), ("one_of", "b")])
def test_what_fits_is_never_refused(name, value):
    read, _ = READERS[name]
    assert read(Given("key", value)) == value


def test_the_way_to_a_value_is_told():
    content = Given("", {"timings": [{"kind": "push"}, {"kind": 3}]}, "p.json")
    second = content.key("timings").items()[1]
    with pytest.raises(InputError, match=r"^p.json: timings\[1\]\.kind is 3; expected a text$"):
        second.key("kind").text()
    assert second.key("devices", 4).whole() == 4
    with pytest.raises(InputError, match=r"timings\[1\]\.devices is None; expected a whole number from 1$"):
        second.key("devices").whole()


@given(st.lists(st.integers(-1, 9) | st.booleans() | st.floats(), max_size=4))
def test_whole_numbers_together_are_what_they_are_one_by_one(values):
    def outcome(read):
        try:
            return read()
        except InputError as error:
            return str(error)

    row = Given("row", values)
    assert outcome(lambda: row.wholes(0, 8)) == outcome(lambda: tuple(item.whole(0, 8) for item in row.items()))


@pytest.mark.parametrize("value", [10**400, -(10**400), int(LARGEST), [10**5000], {"a": 10**5000}])
def test_a_number_too_long_to_write_is_called_huge(value):
    with pytest.raises(InputError, match=r"^key is huge; expected a text$"):
        Given("key", value).text()
