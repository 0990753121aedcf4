"""What a diagnosis says: causes that add up, the way to name, and nothing where nothing is to gain."""

import re
from dataclasses import replace

import pytest
from diagnosed import SHARES, breakdown, diagnosis, of_ranks, seen, way
from hypothesis import given
from hypothesis import strategies as st

from odcsim.cli import diagnosis_table
from odcsim.decide.diagnosis import columns, words
from odcsim.decide.diagnosis.found import PARTS, Changes, RankFound

NOTHING = Changes((), 1.0, "")
SHARE = st.floats(0, 1)


def lines(told):
    return list(diagnosis_table.lines(told))


def test_the_first_sentence_says_how_long_why_and_what_would_change_it():
    assert words.answer(*_of(diagnosis())) == (
        "A step takes 9.07 s, of which 37 % is idle: 22 % because lengths are uneven (rank 5 had 3 of the 4 worst "
        "microbatches), 9 % because a stage takes longer, 6 % waiting for the data loader. 3 % is compute on padding. "
        "It could be 1.41 times as fast: lb-mini under collective."
    )


def _of(told):
    return told.run, told.found, told.changes


@given(st.lists(SHARE, min_size=len(PARTS), max_size=len(PARTS)).filter(lambda some: sum(some) > 0.01))
def test_causes_add_up_to_what_is_waiting(some):
    shares = {name: one / sum(some) for name, one in zip(PARTS, some, strict=True)}
    told = words.answer(seen(), breakdown(shares), NOTHING)
    lost = [share for name, share in shares.items() if name not in words.WORK]
    if match := re.search(r"of which (\d+) % is idle: ([^.]*)\.", told):
        parts = [int(n) for n in re.findall(r"(\d+) % (?:because|waiting|in|at|of|else)", match[2])]
        assert abs(sum(parts) - int(match[1])) <= len(parts)
        assert len(parts) <= words.CAUSES + 1
    elif "is idle" in told:  # one cause alone, or none worth a name
        assert max(lost) < words.NAMED or sum(lost) - max(lost) < words.NAMED
    else:
        assert sum(lost) < words.LITTLE


@given(
    st.lists(SHARE, min_size=len(PARTS), max_size=len(PARTS)).filter(lambda some: sum(some) > 0.01),
    st.floats(1e-4, 1e4),
)
def test_tables_have_80_columns_whatever_they_hold(some, seconds):
    shares = {name: one / sum(some) for name, one in zip(PARTS, some, strict=True)}
    setting = "--max_length 16384 --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --packing"
    ways = (way(1.21, "a setting", setting=setting, dollars_a_day=12_345.6), way(1.4, way="on-demand " * 9, fits=False))
    told = diagnosis(shares, ways, seconds=seconds)
    known = {words.answer(*_of(told)), *words.sentences(*_of(told))}
    assert [line for line in lines(told) if len(line) > 80 and line not in known] == []


def test_nothing_to_gain_is_said_where_that_is_so():
    told = diagnosis({"compute": 0.97, "transfer": 0.01, "lengths": 0.02}, ())
    assert words.answer(*_of(told)) == (
        "Nothing to gain: a step takes 9.07 s, of which 97 % is compute and 1 % transfers."
    )


def test_a_way_that_brings_nothing_for_certain_is_not_named():
    for ways in ((way(1.01),), (way(1.04),), (way(1.5, fits=False),)):
        told = diagnosis(ways=ways)
        assert told.best is None
        assert "It could be" not in told.sentences()[0]
    assert diagnosis(ways=(way(1.06),)).best is not None


def test_what_to_set_is_one_line():
    told = diagnosis(ways=(way(1.4, setting="--packing true\n--max_length 8192"),))
    assert [line for line in told.sentences() if "Set --packing true --max_length 8192." in line]


def test_the_way_to_name_is_that_of_least_effort_among_the_fastest():
    first, other = way(1.40, "a setting"), way(1.41, "another engine")
    assert diagnosis(ways=(first, other)).best is first
    assert diagnosis(ways=(replace(first, gain=1.3), other)).best is other


def test_where_changes_cannot_be_told_nothing_is_said_of_them():
    told = diagnosis(ways=())
    why = "what other ways bring: give --model"
    unknown = replace(told, changes=replace(told.changes, replayed=0.0, rests="", cannot=(why,)))
    assert "Nothing to gain" not in unknown.sentences()[0]
    assert unknown.sentences()[-1] == "Not known: what other ways bring: give --model"
    assert "No other assignment of samples is certain to be faster." in told.sentences()[0]


def test_one_rank_alone_is_said_to_be_one():
    told = diagnosis()
    alone = replace(told, run=replace(told.run, seen=(3,)))
    assert alone.sentences()[0].startswith("A step of rank 3 takes 9.07 s")
    assert "(1 of the run's 8 ranks), 12 steps" in alone.sentences()[1]


@pytest.mark.parametrize("cause", ["device", "stages", "bubble", "loader", "collector", "launch"])
def test_a_cause_that_no_dealing_takes_away_has_its_remedy(cause):
    told = diagnosis({"compute": 0.9, cause: 0.1}, ())
    assert len(words.remedies(told.run, told.found)) == 1
    assert words.REMEDIES[cause] in told.sentences()[2]


def test_a_slow_device_is_named_with_how_slow_it_is():
    ranks = tuple(RankFound(r, 0.5, 0.2, 1.3 if r == 6 else 1.0, 0.0) for r in range(8))
    told = diagnosis({"compute": 0.9, "device": 0.1}, (), ranks=ranks)
    assert (
        "10 % is idle because the device of rank 6 is slow (1.30 times as long for equal work)" in told.sentences()[0]
    )


def test_a_slow_stage_is_named_by_what_its_ranks_compute():
    told = diagnosis(ranks=tuple(RankFound(r, 0.7 if r in (2, 3) else 0.5, 0.2, 1.0, 0.0) for r in range(8)))
    run = replace(told.run, stages={r: r // 2 for r in range(8)})
    assert "9 % because stage 1 takes longer" in words.answer(run, told.found, told.changes)
    assert "9 % because a stage takes longer" in words.answer(told.run, told.found, told.changes)


def test_of_many_ranks_the_worst_are_shown_and_the_rest_counted():
    told = lines(of_ranks(128))
    assert "and 120 more" in told
    assert any(line.split()[:1] == ["127"] for line in told)
    _, rows = columns.ranks(of_ranks(128).found)
    assert [row[0] for row in rows] == [str(127 - n) for n in range(8)]


def test_ranks_that_are_alike_are_not_listed():
    ranks = tuple(RankFound(r, 0.5, 0.2, 1.0, 0.1) for r in range(8))
    assert columns.ranks(diagnosis(ranks=ranks).found)[1] == []


def test_the_parts_of_the_table_are_those_of_the_step():
    _, rows = columns.parts(diagnosis().found)
    assert [row[0] for row in rows] == [*(PARTS[name] for name in PARTS if name in SHARES), "the step"]
    assert sum(float(row[1].removesuffix(" s")) for row in rows[:-1]) == pytest.approx(9.07, abs=0.03)
    assert rows[-1][1:3] == ("9.07 s", "100 %")


def test_a_way_without_a_row_has_no_number():
    content = diagnosis(ways=(way(1.2), way(1.3, row={}), way(1.4))).as_json()
    assert [one["row"] for one in content["ways"]] == [1, None, 2]
    assert len(content["rows"]) == 2


def test_one_step_alone_has_no_interval():
    found = breakdown(SHARES, steps=1)
    assert {row[3] for row in columns.parts(found)[1][:-1]} == {"-"}


def test_json_has_a_row_for_each_way_by_its_number():
    told = diagnosis()
    content = told.as_json()
    assert [one["row"] for one in content["ways"]] == [1, 2, 3]
    assert [content["rows"][one["row"] - 1] for one in content["ways"]] == [dict(one.row) for one in told.changes.ways]
    assert sum(part["seconds"] for part in content["parts"]) == pytest.approx(content["seconds"])
    assert content["inputs"] == {"sources": ["traces"], "lengths": None, "devices": 8}
    assert told.records() == content["parts"]


def test_it_is_shown_in_short():
    told = diagnosis()
    assert repr(told).startswith("<Diagnosis: torch.profiler traces of 8 ranks: A step takes 9.07 s, of which 37 %")
    assert "\n" not in repr(told)
    assert told._repr_html_().count("<tr>") == 2 + len(SHARES)


def test_of_ranks_that_others_may_wait_for_nobody_says_that_there_is_nothing_to_gain():
    told = diagnosis({"compute": 0.97, "transfer": 0.01, "lengths": 0.02}, ())
    alone = replace(told.run, seen=(5,))
    assert words.answer(alone, told.found, told.changes) == (
        "A step of rank 5 takes 9.07 s, of which 97 % is compute and 1 % transfers. Whether others wait for rank 5 "
        "needs the files of all ranks."
    )


def test_a_step_that_mostly_moves_bytes_has_something_to_look_at():
    for share, told in ((0.3, True), (0.05, False)):
        found = diagnosis({"compute": 1 - share, "transfer": share}, ())
        assert any("hybrid sharding" in line for line in words.remedies(found.run, found.found)) == told
