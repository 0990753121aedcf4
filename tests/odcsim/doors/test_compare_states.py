"""A figure that is another in a new state is told."""

import json
from copy import deepcopy

import pytest
from compare_states import between, main

ROW = {"balancer": "lb-mini", "sync": "on-demand", "idle": 0.25, "memory_bytes": 1e9, "memory_fits": True}
OTHER = ROW | {"balancer": "lb-micro"}
STATE = {"number": 3, "question": {"devices": 4}, "doors": {"compare": {"fidelity": "catalogue", "rows": [ROW, OTHER]}}}
PATH = "compare/rows/lb-mini under on-demand"


def with_rows(*rows):
    return deepcopy(STATE) | {"doors": {"compare": {"fidelity": "catalogue", "rows": list(rows)}}}


def told(one, other):
    return [(d.path, d.old, d.new) for d in between({3: one}, {3: other})]


def test_the_same_in_any_order_has_no_difference():
    assert told(STATE, deepcopy(STATE)) == []
    assert told(STATE, with_rows(OTHER, ROW | {"idle": 0.25 * (1 + 1e-15)})) == []


@pytest.mark.parametrize(
    ("name", "value"), [("idle", 0.2500001), ("memory_bytes", None), ("memory_fits", 1.5), ("mfu", 0.5)]
)
def test_another_figure_is_told_with_its_row(name, value, tmp_path):
    new = with_rows(ROW | {name: value}, OTHER)
    assert told(STATE, new) == [(f"{PATH}/{name}", ROW.get(name, "(not there)"), value)]
    assert [d.path for d in between({3: STATE}, {})] == ["question"]
    paths = [str(tmp_path / name) for name in ("old.jsonl", "new.jsonl")]
    for path, state in zip(paths, (STATE, new), strict=True):
        (tmp_path / path).write_text(json.dumps(state) + "\n", encoding="utf-8")
    assert (main(*paths), main(paths[0], paths[0])) == (1, 0)
