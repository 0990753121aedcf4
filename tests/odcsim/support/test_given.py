"""What somebody gave is read as what it is to be, or refused in one line: values, numbers, arrays of JSON."""

import argparse
import gc
import io
import json
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.decide.comparison import limits
from odcsim.errors import InputError
from odcsim.reading import load
from odcsim.support import budget, inputs, tables
from odcsim.support.inputs import JsonStream
from odcsim.support.numbers import TIMES, TOKENS, amount, human, money, whole
from odcsim.support.values import LARGEST, Given


def nested(leaves, keys):
    """JSON of these leaves."""
    return st.recursive(leaves, lambda of: st.lists(of, max_size=4) | st.dictionaries(keys, of, max_size=3))


TEXT = st.text(max_size=5)
VALUES = nested(st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.just(10**400), TEXT)
ANY = st.booleans() | VALUES | st.integers(0, 9) | st.lists(st.integers(0, 9)) | st.sampled_from(["a", "b"])
HUGE = st.sampled_from([10**400, -(10**400), int(LARGEST), [10**5000], {"a": 10**5000}])


def is_whole(value):
    return type(value) is int and 1 <= value <= 8


READERS = {
    "number": (lambda g: g.number(1, 8), lambda v: type(v) in (int, float) and 1 <= v <= 8),
    "whole": (lambda g: g.whole(1, 8), is_whole),
    "wholes": (lambda g: list(g.wholes(1, 8)), lambda v: type(v) is list and all(map(is_whole, v))),
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


CELLS = st.text("abc1 ", min_size=1, max_size=9).map(str.strip).filter(bool)
GRIDS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=4)
)  # fmt: skip


def tokens(text):
    return whole(text, TOKENS)


def time(text):
    return human(text, TIMES)


def drawn(text):
    return load(text).lengths.tolist()


MEANT = {
    whole: {"4096": 4096, "65,536": 65536, "16k": 16000, "16 K": 16000, "16Ki": 16384, "1.5M": 1_500_000, "0.001k": 1,
            "1.001k": 1001, "2b": 2 * 10**9, "2Mi": 2**21},
    tokens: {"32k": 32768, "32K": 32768, "32Ki": 32768, "1.5k": 1536, "1M": 2**20, "2Mi": 2**21},
    amount: {"2.5": 2.5, "$2.5": 2.5, "3%": 0.03, "1e-3": 1e-3, "$1.2k": 1200, "0": 0},
    human: {"0.1": Fraction(1, 10), str(0.1 + 0.2): Fraction(str(0.1 + 0.2))},
    time: {"90s": 90, "90": 90, "1.5min": 90, "12h": 43200, "2d": 172800, "3k": None},
    drawn: {"fixed:length=4k,samples=0.5k": [4096] * 500, "uniform:min=1k,max=1k,samples=2k": [1024] * 2000},
    money: {1234.5: "$1,234", 999.999: "$1,000", 19.999: "$20.00", 0.702: "$0.70", 0.0996: "$0.10", 0.0123: "$0.012",
            0.0000123: "$0.000012", 0.0: "$0.00"},
}  # fmt: skip
NONE = {
    whole: ["", "0", "-1", "1.5", "1.0005k", "16q", "1e6", "0x10", "6,55", "nan", "inf", "1" * 13, "999b999", "\u0663"],
    tokens: ["1b", "1.001k", "8kb"], amount: ["", "$", "%", "-1", "nan", "inf", "$-2", "two"],
}  # fmt: skip


@pytest.mark.parametrize("read", MEANT, ids=lambda read: read.__name__)
def test_numbers_are_what_people_mean(read):
    assert {text: read(text) for text in MEANT[read]} == MEANT[read]
    for text in NONE.get(read, ()):
        with pytest.raises(argparse.ArgumentTypeError):
            print(text, read(text))
    assert limits(100, "1k,2Ki") == (1024, 2048)


@given(GRIDS, st.data())
def test_cells_stand_at_their_ends_of_the_columns(rows, data):
    """Fitted ones have two blanks between them."""
    widths = data.draw(st.lists(st.sampled_from([-12, 12]), min_size=len(rows[0]), max_size=len(rows[0])))
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    fitted = tables.lines(rows, tables.fitted(rows))
    for line, close, row in zip(tables.lines(rows, widths), fitted, rows, strict=True):
        cells = [cell.rjust(12) if width > 0 else cell.ljust(12) for cell, width in zip(row, widths, strict=True)]
        assert line == "".join(cells).rstrip()
        assert close == "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip()
    assert tables.lines([("name", "123456", "end")], (-3, 4, 5)) == ["name123456  end"]  # is not cut


WORDS = st.sampled_from(["a},b", "],[", '\\"', 'x"y', "\u00e9", "{", "", ",", "b},"])
PARSED = nested(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS, WORDS)


def items(text: str) -> list:
    whole = JsonStream(io.StringIO(text), "here")
    found = [item for batch in whole.array() for item in batch]
    whole.end()
    return found


@given(st.lists(PARSED, max_size=12), st.sampled_from([1, 2, 3, 7, 20, 1000]), st.sampled_from([None, 1]))
def test_an_array_is_what_json_makes_of_it(values, block, indent):
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "BLOCK", block)
        assert items(text) == values


@given(st.lists(PARSED, max_size=6), st.sampled_from([1, 3, 20]), st.data())
def test_what_json_refuses_is_refused(values, block, data):
    text = json.dumps(values)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from(["", *',]}[{"1 '])) + text[at + data.draw(st.integers(0, 1)) :]
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "BLOCK", block)
        if isinstance(expected, list):
            assert items(text) == expected
        else:
            with pytest.raises(InputError):
                items(text)


def test_a_value_that_is_too_long_is_refused(monkeypatch):
    """Members of an object are taken one by one."""
    text = JsonStream(io.StringIO('{"a": 1, "b": [1, 2] , "c": {}}'), "here")
    assert {key: text.value() for key in text.members()} == {"a": 1, "b": [1, 2], "c": {}}
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    assert len(items('["' + "x" * 7_000_000 + '"]')[0]) == 7_000_000
    with pytest.raises(InputError):
        items('["' + "x" * 9_000_000 + '"]')


@pytest.mark.parametrize("text", ['[{"a": [1]}, {"b": {}}]', '[{"a": 1}, {"b": ]'])
@pytest.mark.parametrize("enabled", [True, False])
def test_whoever_collects_garbage_does_so_afterwards(monkeypatch, text, enabled):
    """And nobody does while items are parsed."""
    loads, collecting, before = json.loads, [], gc.isenabled()
    monkeypatch.setattr(inputs.json, "loads", lambda text: collecting.append(gc.isenabled()) or loads(text))
    (gc.enable if enabled else gc.disable)()
    with suppress(InputError):
        items(text)
    after = gc.isenabled()
    (gc.enable if before else gc.disable)()
    assert after == enabled
    assert set(collecting) == {False}
