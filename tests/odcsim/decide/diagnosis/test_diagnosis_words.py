"""What a diagnosis says, of figures that are made up: causes add up, and the way to name is one that is worth it.

The sentences themselves are in tests/approved/diagnose.txt.
"""

import re
from dataclasses import replace

import pytest
from diagnosed import breakdown, diagnosis, seen, way
from hypothesis import given
from hypothesis import strategies as st

from odcsim.decide.diagnosis.outcome import PARTS, Changes
from odcsim.say import diagnosis_words as words
from odcsim.say.terminal import table_lines

SHARE = st.floats(0, 1)
SOME = st.lists(SHARE, min_size=len(PARTS), max_size=len(PARTS)).filter(lambda some: sum(some) > 0.01)
FIRST, OTHER = way(1.40, "a setting"), way(1.41, "another engine")


@given(SOME)
def test_causes_add_up_to_what_is_waiting(some):
    shares = {name: one / sum(some) for name, one in zip(PARTS, some, strict=True)}
    told = words.headline(seen(), breakdown(shares), Changes((), 1.0, ""))
    lost = [share for name, share in shares.items() if name not in words.WORK]
    if match := re.search(r"of which (\d+) % is idle: ([^.]*)\.", told):
        parts = [int(n) for n in re.findall(r"(\d+) % (?:because|waiting|in|at|of|else)", match[2])]
        assert abs(sum(parts) - int(match[1])) <= len(parts)
        assert len(parts) <= words.CAUSES + 1
    elif "is idle" in told:  # one cause alone, or none worth a name
        assert max(lost) < words.NAMED or sum(lost) - max(lost) < words.NAMED
    else:
        assert sum(lost) < words.LITTLE


@given(SOME, st.floats(1e-4, 1e4))
def test_tables_have_80_columns_whatever_they_hold(some, seconds):
    shares = {name: one / sum(some) for name, one in zip(PARTS, some, strict=True)}
    setting = "--max_length 16384 --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --packing"
    ways = (way(1.21, "a setting", setting=setting, dollars_a_day=12_345.6), way(1.4, way="on-demand " * 9, fits=False))
    told = diagnosis(shares, ways, seconds=seconds)
    for table in words.answer(told).tables:
        assert [line for line in table_lines(table) if len(line) > 80] == []


@pytest.mark.parametrize(("ways", "best"), [  # of least effort among the fastest
    ((way(1.01),), None), ((way(1.04),), None), ((way(1.5, fits=False),), None), ((way(1.06),), 0),
    ((FIRST, OTHER), 0), ((replace(FIRST, gain=1.3), OTHER), 1),
])  # fmt: skip
def test_the_way_to_name_is_the_best_that_brings_something_for_certain(ways, best):
    assert diagnosis(ways=ways).best is (None if best is None else ways[best])


def test_json_has_a_row_for_each_way_by_its_number():
    told = diagnosis(ways=(way(1.2), way(1.3, row={}), way(1.4)))
    content = told.as_json()
    assert [one["row"] for one in content["ways"]] == [1, None, 2]
    assert content["rows"] == [dict(one.row) for one in told.changes.ways if one.row]
    assert sum(part["seconds"] for part in content["parts"]) == pytest.approx(content["seconds"])
    assert content["inputs"] == {"sources": ["traces"], "lengths": None, "devices": 8}
    assert told.records() == content["parts"]
