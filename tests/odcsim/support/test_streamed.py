"""A JSON array in batches: what json makes of the whole text, however it is cut, or an error."""

import gc
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import InputError
from odcsim.support import budget, streamed
from odcsim.support.streamed import Streamed

WORDS = st.sampled_from(["a},b", "],[", '\\"', 'x"y', "\u00e9", "{", "", ",", "b},"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=20,
)


def items(text: str) -> list:
    whole = Streamed(io.StringIO(text), "here")
    found = [item for batch in whole.array() for item in batch]
    whole.end()
    return found


@given(st.lists(VALUES, max_size=12), st.sampled_from([1, 2, 3, 7, 20, 1000]), st.sampled_from([None, 1]))
def test_an_array_is_what_json_makes_of_it(values, block, indent):
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "BLOCK", block)
        assert items(text) == values


@given(st.lists(VALUES, max_size=6), st.sampled_from([1, 3, 20]), st.data())
def test_what_json_refuses_is_refused(values, block, data):
    text = json.dumps(values)
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from(["", *',]}[{"1 '])) + text[at + data.draw(st.integers(0, 1)) :]
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "BLOCK", block)
        if isinstance(expected, list):
            assert items(text) == expected
        else:
            with pytest.raises(InputError):
                items(text)


def test_members_of_an_object_are_taken_one_by_one():
    text = Streamed(io.StringIO('{"a": 1, "b": [1, 2] , "c": {}}'), "here")
    assert {key: text.value() for key in text.members()} == {"a": 1, "b": [1, 2], "c": {}}


def test_a_value_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setenv(budget.VARIABLE, "256MB")
    assert len(items('["' + "x" * 7_000_000 + '"]')[0]) == 7_000_000
    with pytest.raises(InputError):
        items('["' + "x" * 9_000_000 + '"]')


@pytest.mark.parametrize("text", ['[{"a": [1]}, {"b": {}}]', '[{"a": 1}, {"b": ]'])
@pytest.mark.parametrize("enabled", [True, False])
def test_whoever_collects_garbage_does_so_afterwards(monkeypatch, text, enabled):
    """And nobody does while items are parsed."""
    loads, collecting, before = json.loads, [], gc.isenabled()
    monkeypatch.setattr(streamed.json, "loads", lambda text: collecting.append(gc.isenabled()) or loads(text))
    (gc.enable if enabled else gc.disable)()
    try:
        items(text)
    except InputError:
        assert text.endswith(": ]")
    finally:
        after = gc.isenabled()
        (gc.enable if before else gc.disable)()
    assert after == enabled
    assert collecting
    assert not any(collecting)
