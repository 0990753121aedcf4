"""A figure that is another in a new state is told, unless it is meant to be."""

import json
from copy import deepcopy

import pytest
from compare_states import INTENDED, Intended, between, main

ROW = {"balancer": "lb-mini", "sync": "on-demand", "idle": 0.25, "memory_bytes": 1e9, "memory_fits": True}
STATE = {"number": 3, "question": {"devices": 4}, "doors": {"compare": {"fidelity": "catalogue", "rows": [ROW]}}}
PATH = "compare/rows/lb-mini under on-demand"


def changed(name, value):
    other = deepcopy(STATE)
    other["doors"]["compare"]["rows"][0][name] = value
    return other


def told(one, other):
    return [(d.path, d.old, d.new) for d in between({3: one}, {3: other})]


def test_the_same_has_no_difference():
    assert told(STATE, deepcopy(STATE)) == []
    assert told(STATE, changed("idle", 0.25 * (1 + 1e-15))) == []


@pytest.mark.parametrize(
    ("name", "value"), [("idle", 0.2500001), ("memory_bytes", None), ("memory_fits", 1.5), ("mfu", 0.5)]
)
def test_another_figure_is_told_with_its_row(name, value):
    assert told(STATE, changed(name, value)) == [(f"{PATH}/{name}", ROW.get(name, "(not there)"), value)]


def test_another_order_of_rows_is_no_difference():
    other = {**ROW, "balancer": "lb-micro"}
    one, two = deepcopy(STATE), deepcopy(STATE)
    one["doors"]["compare"]["rows"], two["doors"]["compare"]["rows"] = [ROW, other], [other, ROW]
    assert told(one, two) == []


def test_a_question_that_was_not_asked_is_told():
    assert [d.path for d in between({3: STATE}, {})] == ["question"]


def test_what_is_meant_is_subtracted_where_it_is_meant(tmp_path, monkeypatch, capsys):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    old.write_text(json.dumps(STATE) + "\n", encoding="utf-8")
    new.write_text(json.dumps(changed("idle", 0.5)) + "\n", encoding="utf-8")
    assert main(str(old), str(new)) == 1
    meant = Intended("/idle$", "idle is counted twice", old="0.25", question='"devices": 4')
    monkeypatch.setattr("compare_states.INTENDED", (*INTENDED, meant))
    assert main(str(old), str(new)) == 0
    assert "(idle is counted twice)" in capsys.readouterr().out
    monkeypatch.setattr("compare_states.INTENDED", (Intended("/idle$", "", question='"devices": 8'),))
    assert main(str(old), str(new)) == 1
