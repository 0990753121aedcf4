"""Plans of any trainer: what hangs a run or shifts its loss is found, and nothing else; by command and in Python."""

import io
import json
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rowfiles import write

import odcsim
from odcsim import schedule
from odcsim.balance import BALANCERS
from odcsim.checking.batches import Batch, Dealing, of_value, with_lengths
from odcsim.checking.findings import Rules, check
from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.trace import Trace

EVEN, UNEVEN, APART = [[[0, 1], [2]], [[3], [4, 5]]], [[[0], [1]], [[2]]], Rules("on-demand")
LENGTHS = [10, 20, 30, 40, 50, 60]


def kinds(*minibatches, rules=Rules(), **known):  # noqa: B008 - frozen
    found = check([Batch(devices, **known) for devices in minibatches], rules)
    return [(finding.kind, finding.severity) for finding in found if finding.severity != "note"]


OVER = {"lengths": [60, 60, 1], "rules": Rules(max_tokens=110)}
CASES = [  # a minibatch, what is known of it, and what alone is found in it
    (EVEN, {"lengths": LENGTHS, "rules": Rules(max_tokens=110)}, []),
    (UNEVEN, {}, [("counts", "error")]), (UNEVEN, {"rules": Rules("deferred")}, [("counts", "error")]),
    (UNEVEN, {"rules": APART}, []), ([[[0]], []], {}, [("empty device", "error")]),
    ([[[0]], []], {"rules": APART}, [("empty device", "warning")]), ([[[0]], []], {"queue": [[1]], "rules": APART}, []),
    ([[[0], [1]], [[], []]], {}, [("empty device", "error")]),
    ([[[0], []], [[1], [2]]], {}, [("empty microbatch", "error")]), ([[[0]], [[0]]], {}, [("repeated", "error")]),
    ([[[0]], [[1]]], {"own": 3}, [("missing", "error")]), ([[[0, 1]], [[2]]], OVER, [("over the limit", "error")]),
    ([[[0]], [[1]]], {"lengths": [5, 5], "loss": [0, 5]}, [("no loss", "warning")]),
    ([[[0]], [[1]]], {"queue": [[2]]}, [("queue", "error")]), ([[[0]], [[1]]], {"queue": [[2]], "rules": APART}, []),
]  # fmt: skip


def test_what_is_wrong_is_found_and_nothing_beside_it():
    for devices, known, expected in CASES:
        assert kinds(devices, **known) == expected, (devices, known)


def test_findings_of_several_minibatches():
    """The last may be smaller and weighs more; of the worst place is said how many are like it."""
    assert kinds(EVEN, EVEN) == []
    [partial] = check([Batch(EVEN), Batch(EVEN), Batch([[[6]], [[7]]])], Rules())
    assert (partial.kind, partial.minibatch, "3.00" in partial.text) == ("partial", 2, True)
    assert ("devices", "error") in kinds(EVEN, EVEN, [[[6]], [[7]], [[8]]])
    worst = check([Batch(UNEVEN), Batch([[[0], [1], [2]], [[3]]]), Batch(UNEVEN)], Rules())[0]
    assert (worst.kind, worst.minibatch, worst.minibatches) == ("counts", 1, 3)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=5))
def test_counts_are_even_or_found(sizes):
    numbers = iter(range(200))
    devices = [[[next(numbers) for _ in range(n)] for n in device] for device in sizes]
    assert ("counts", "error") in kinds(devices) or len({len(device) for device in devices}) == 1
    assert kinds(devices, rules=APART) == []


def test_batches_in_a_row_are_dealt_in_turn():
    """A part at the end fails where it is asked to."""
    first, last = of_value([[0, 1], [2], [3], [4, 5], [6], [7]], "a", Dealing(2, 2))
    assert (first.devices, last.devices) == ([[[0, 1], [3]], [[2], [4, 5]]], [[[6]], [[7]]])
    assert of_value([[0, 1], [2]], "a", Dealing())[0].devices == [[[0, 1]], [[2]]]
    assert odcsim.check([[0, 1], [2], [3], [4, 5]], devices=2, accumulate=2).ok
    plan = [[0, 1], [2, 3], [4], [5]]
    assert [odcsim.check(plan, devices=2, strict=strict).ok for strict in (False, True)] == [True, False]
    assert not odcsim.check(plan, devices=3).ok  # the last one has no batch for device 1
    own = odcsim.balance.plan([5, 9, 3, 7], devices=2, max_tokens=12)
    assert [odcsim.check(own, lengths=[5, 9, 3, 7], max_tokens=most).ok for most in (12, 8)] == [True, False]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 5) | st.text(max_size=2) | st.floats(0, 2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)
FIVES = Trace("t", np.full(10, 5), loss=np.full(10, 5))
NUMBERS = st.lists(st.integers(1, 9), max_size=3) | ANYTHING
KNOWN = st.fixed_dictionaries(
    {"devices": st.just([[[0]], [[1]]]) | ANYTHING},
    optional=dict.fromkeys(("lengths", "loss", "samples"), NUMBERS)
    | {"queue": st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2) | ANYTHING},
)


@example({"devices": [[[], 0]]})
@example({"devices": [[], [[[0]]]]})
@given(KNOWN)
def test_whatever_a_plan_holds_is_checked_or_refused_in_a_line(content):
    try:
        batches = with_lengths(of_value(content, "p.json", Dealing()), FIVES, "p.json")
        printed = [finding.line for finding in check(batches, Rules("on-demand", 10, 5))]
    except InputError as error:
        printed = [str(error)]
    assert all(len(line.splitlines()) == 1 for line in printed)


MICROBATCHES = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=3), min_size=1, max_size=3)
SYNCS = st.sampled_from(["collective", "on-demand", "deferred"])
WORDS = st.fixed_dictionaries({}, optional={"max_tokens": st.integers(1, 300), "sync": SYNCS, "strict": st.booleans()})


def flags(words):
    for name, value in words.items():
        if value is not False:
            yield from (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(MICROBATCHES, min_size=2, max_size=3), words=WORDS, with_lengths=st.booleans())
def test_python_says_what_the_command_says(tmp_path, capsys, plan, words, with_lengths):
    path, lengths = str(tmp_path / "plan.json"), [10 * (n + 1) for n in range(12)]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    file = str(write(tmp_path / "lengths.csv", [{"length": length} for length in lengths]))
    read, given_ = ({"lengths": of} if with_lengths else {} for of in (file, lengths))
    code = main(["check", path, *flags(read | words), "--json"])
    printed = json.loads(capsys.readouterr().out)
    found = odcsim.check(path, **read, **words)
    assert json.loads(json.dumps(found.as_json())) == printed
    assert code == int(not found.ok)
    assert main(["check", path, *flags(read | words)]) == code
    assert capsys.readouterr().out.splitlines() == found.sentences()
    for form in (plan, tuple(tuple(map(tuple, device)) for device in plan)):
        alone = odcsim.check(form, **given_, **words)
        assert (alone.records(), alone.ok) == (found.records(), found.ok)


@pytest.mark.parametrize("balancer", [b.name for b in BALANCERS])
def test_schedules_are_checked_as_their_file_is_and_for_the_sync_that_they_are_for(tmp_path, balancer):
    """Also beside their lengths: samples are numbered within a minibatch, and `samples` has the rows that they are."""
    rows = [{"length": 40 * (i * 37 % 211) + 9} for i in range(80)]
    lengths, path = str(write(tmp_path / "l.csv", rows)), tmp_path / "s.jsonl"
    asked = {"devices": 4, "minibatch": 3, "minibatches": 5, "max_tokens": 9000}
    made = odcsim.plan(odcsim.ask(lengths, "qwen3-0.6b", gpu="h100", **asked), balancer)
    schedule.write(made, path)
    found, of_file = (odcsim.check(one, max_tokens=9000) for one in (made, path))
    beside = odcsim.check(path, lengths=lengths, max_tokens=9000)
    assert (found.records(), found.sync, found.ok) == (of_file.records(), of_file.sync, True)
    *same, unseen = beside.records()
    assert (same, unseen["kind"], "20 of 80" in unseen["text"]) == (found.records(), "unseen", True)
    if balancer in ("lb-micro", "lb-mini", "pool"):
        assert odcsim.check(made, sync="collective").ok == (balancer == "lb-micro")
        assert found.sync == ("collective" if balancer == "lb-micro" else "on-demand")


def test_an_edited_schedule_and_other_lengths(tmp_path, schedules):
    path = tmp_path / "s.jsonl"
    schedule.write(schedules, path)
    most = max(row for one in schedules.schedules for row in one.samples)
    others = odcsim.check(path, sync="on-demand", lengths=[5] * (most + 1))
    assert (others.ok, others.records()[0]["severity"]) == (True, "warning")
    with pytest.raises(InputError):
        odcsim.check(path, lengths=[5] * most)
    assert not odcsim.check(path, sync="collective").ok
    lines = path.read_text().splitlines()
    edited = json.loads(lines[2])
    edited["devices"][0][0].append(edited["devices"][1][0][0])
    path.write_text("\n".join([*lines[:2], json.dumps(edited), *lines[3:]]))
    [error] = [one for one in odcsim.check(path, sync="on-demand").records() if one["severity"] == "error"]
    assert (error["kind"], error["minibatch"]) == ("repeated", 1)


def test_packs_of_trl(tmp_path):
    for name in ("a.jsonl", "a.parquet", "columns.json"):
        path = write(tmp_path / name, [{"seq_lengths": row} for row in ([5, 3], [8], [4, 4], [9])])
        assert odcsim.check(path, devices=2, max_tokens=9).ok
        found = odcsim.check(path, devices=2, max_tokens=8).records()[0]
        assert (found["kind"], found["minibatch"]) == ("over the limit", 1)
        with pytest.raises(InputError):
            odcsim.check(path)


def test_index_lists_with_their_lengths(tmp_path, capsys, monkeypatch):
    """Also through a pipe, where they may share a queue."""
    (tmp_path / "p.json").write_text(json.dumps([EVEN, EVEN]))
    lengths = str(write(tmp_path / "l.csv", [{"length": n, "loss": n - 1} for n in LENGTHS]))
    line = ["check", str(tmp_path / "p.json"), "--lengths", lengths, "--max-tokens"]
    assert main([*line, "110"]) == 0
    assert "devices have 57 to 147 loss tokens, 2.58 times" in capsys.readouterr().out
    assert main([*line, "100", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["ok"], printed["findings"][0]["kind"]) == (False, "over the limit")
    queue = {"devices": [[], []], "queue": [[0], [1]]}
    for plan, sync, code in (({"devices": UNEVEN}, "collective", 1), (queue, "on-demand", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(plan)))
        assert main(["check", "-", "--sync", sync]) == code


TWO = [[[0]], [[1]]]
NONE = [[], [1, 2], [[[1]], [2]], [[["a"]]], [[[-1]]], [[[[[1]]]]], 5, [[1.5]], [[True]], [[[], 0]], [[0], [[]]]]
REFUSED = [
    ("nowhere.json", {}), ([[[0]], [0]], {}), ([[["a"]], [[0]]], {}), ({"a": 1}, {}),
    (TWO, {"sync": "on-demnd"}), (TWO, {"devices": -1}), (TWO, {"accumulate": 0}), (TWO, {"max_tokens": 2.5}),
    (TWO, {"images": "i"}), (TWO, {"lengths": [1, 0]}), (TWO, {"images": "i", "lengths": [1, 2]}),
    ([[[0]], [[9]]], {"lengths": [1, 2]}), ({"devices": TWO, "lengths": [5, 6]}, {"lengths": [7, 8]}),
]  # fmt: skip


def test_what_is_wrong_is_refused():
    for plan, words in (*REFUSED, *((plan, {}) for plan in NONE)):
        with pytest.raises(InputError) as caught:
            odcsim.check(plan, **words)
        assert "--" not in str(caught.value)


BAD = ["{", "[]", "null", '"a"', '{"length": 5}', "[[0], [[1]]]", '{"devices": [[[5]]], "lengths": [1, 2]}', "",
       "[[]]", '{"devices": 3}', "[[[[[]]]]]", '{"devices": [[[0]]], "lengths": ["a"]}',
       '{"seq_lengths": [["a"]]}']  # fmt: skip


def test_bad_input_is_one_line(tmp_path, capsys):
    for content in BAD:
        (tmp_path / "p.json").write_text(content)
        assert main(["check", str(tmp_path / "p.json")]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
