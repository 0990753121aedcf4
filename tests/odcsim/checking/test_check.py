"""Plans of any trainer: what hangs a run or shifts its loss is found, and nothing else."""

import io
import json
import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odcsim.balance import BALANCERS
from odcsim.checking.batches import Batch, Dealing, of_lists, of_object, with_lengths
from odcsim.checking.findings import Rules, check
from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.support.checked import Given

EVEN = [[[0, 1], [2]], [[3], [4, 5]]]
LENGTHS = [10, 20, 30, 40, 50, 60]


def kinds(*minibatches, rules=Rules(), **known):  # noqa: B008 - frozen
    found = check([Batch(devices, **known) for devices in minibatches], rules)
    return [(finding.kind, finding.severity) for finding in found if finding.severity != "note"]


def test_nothing_is_found_in_an_even_plan():
    assert kinds(EVEN, EVEN, lengths=LENGTHS, rules=Rules(max_tokens=110)) == []


UNEVEN = [[[0], [1]], [[2]]]
CASES = {
    "counts": (UNEVEN, {}, [("counts", "error")]),
    "empty device": ([[[0]], []], {}, [("empty device", "error")]),
    "device of nothing": ([[[0], [1]], [[], []]], {}, [("empty device", "error")]),
    "empty microbatch": ([[[0], []], [[1], [2]]], {}, [("empty microbatch", "error")]),
    "repeated": ([[[0]], [[0]]], {}, [("repeated", "error")]),
    "missing": ([[[0]], [[1]]], {"own": 3}, [("missing", "error")]),
    "over": (
        [[[0, 1]], [[2]]],
        {"lengths": [60, 60, 1], "rules": Rules(max_tokens=110)},
        [("over the limit", "error")],
    ),
    "no loss": ([[[0]], [[1]]], {"lengths": [5, 5], "loss": [0, 5]}, [("no loss", "warning")]),
    "queue": ([[[0]], [[1]]], {"queue": [[2]]}, [("queue", "error")]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_found_and_nothing_beside_it(case):
    devices, known, expected = CASES[case]
    assert kinds(devices, **known) == expected


def test_on_demand_runs_what_collectives_cannot():
    apart = Rules("on-demand")
    assert kinds(UNEVEN, rules=apart) == kinds([[[0]], [[1]]], queue=[[2]], rules=apart) == []
    assert kinds(UNEVEN, rules=Rules("deferred")) == [("counts", "error")]
    assert kinds([[[0]], []], rules=apart) == [("empty device", "warning")]
    assert kinds([[[0]], []], queue=[[1]], rules=apart) == []


def test_the_last_minibatch_may_be_smaller_and_weighs_more():
    found = check([Batch(EVEN), Batch(EVEN), Batch([[[6]], [[7]]])], Rules())
    assert [(f.kind, f.minibatch) for f in found] == [("partial", 2)]
    assert "2 samples where the largest has 6: each weighs 3.00 times" in found[0].text


def test_devices_that_differ_in_number_are_found():
    assert ("devices", "error") in kinds(EVEN, EVEN, [[[6]], [[7]], [[8]]])


def test_the_worst_place_is_told_and_how_many_have_it():
    found = check([Batch(UNEVEN), Batch([[[0], [1], [2]], [[3]]]), Batch(UNEVEN)], Rules())
    assert found[0].line.startswith("error: minibatch 1 (and 2 more): device 0 has 3 microbatches and device 1 1")


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=5))
def test_counts_are_even_or_told(sizes):
    numbers = iter(range(200))
    devices = [[[next(numbers) for _ in range(n)] for n in device] for device in sizes]
    assert ("counts", "error") in kinds(devices) or len({len(device) for device in devices}) == 1
    assert kinds(devices, rules=Rules("on-demand")) == []


def test_batches_in_a_row_are_dealt_in_turn():
    row = [[0, 1], [2], [3], [4, 5], [6], [7]]
    first, last = of_lists(row, "a", Dealing(2, 2))
    assert first.devices == [[[0, 1], [3]], [[2], [4, 5]]]
    assert last.devices == [[[6]], [[7]]]
    per_device = of_lists([[0, 1], [2]], "a", Dealing())[0]
    assert per_device.devices == [[[0, 1]], [[2]]]


@pytest.mark.parametrize("value", [[], [1, 2], [[[1]], [2]], [[["a"]]], [[[-1]]], [[[[[1]]]]], 5, [[1.5]], [[True]],
                                   [[[], 0]], [[0], [[]]]])  # fmt: skip
def test_what_is_no_plan(value):
    with pytest.raises(InputError):
        of_lists(value, "a", Dealing())


def written(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def run(*argv):
    return main(["check", *map(str, argv)])


def test_schedules_of_ours(tmp_path, schedules, capsys):
    from odcsim import schedule

    path = tmp_path / "s.jsonl"
    schedule.write(schedules, path)
    assert run(path, "--sync", "on-demand", "--max-tokens", 65536) == 0
    assert "6 minibatches on 4 devices" in capsys.readouterr().out
    assert run(path, "--sync", "collective") == 1
    assert "collective sync waits for ever" in capsys.readouterr().out
    lines = path.read_text().splitlines()
    edited = json.loads(lines[2])
    edited["devices"][0][0].append(edited["devices"][1][0][0])
    path.write_text("\n".join([*lines[:2], json.dumps(edited), *lines[3:]]))
    assert run(path, "--sync", "on-demand") == 1
    assert "error: minibatch 1: sample " in capsys.readouterr().out


def test_index_lists_with_their_lengths(tmp_path, capsys):
    plan, lengths = written(tmp_path / "p.json", [EVEN, EVEN]), tmp_path / "l.csv"
    lengths.write_text("length,loss\n" + "".join(f"{n},{n - 1}\n" for n in LENGTHS))
    assert run(plan, "--lengths", lengths, "--max-tokens", 110) == 0
    out = capsys.readouterr().out
    assert "devices have 57 to 147 loss tokens, 2.58 times" in out
    assert run(plan, "--lengths", lengths, "--max-tokens", 100, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["findings"][0]["kind"]) == (False, "over the limit")
    lengths.write_text("length\n5\n")
    assert run(plan, "--lengths", lengths) == 2
    assert "sample 1 is not among the lengths" in capsys.readouterr().err


def test_a_part_at_the_end_fails_where_it_is_asked_to(tmp_path):
    plan = written(tmp_path / "p.json", [[0, 1], [2, 3], [4], [5]])
    assert run(plan, "--devices", 2) == 0
    assert run(plan, "--devices", 2, "--strict") == 1
    assert run(plan, "--devices", 3) == 1  # the last one has no batch for device 1


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "json"])
def test_packs_of_trl(tmp_path, kind, capsys):
    rows = [[5, 3], [8], [4, 4], [9]]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"input_ids": [[1] * sum(row) for row in rows], "seq_lengths": rows}), path)
    elif kind == "json":
        written(path, {"seq_lengths": rows})
    else:
        path.write_text("".join(json.dumps({"seq_lengths": row}) + "\n" for row in rows))
    assert run(path, "--devices", 2, "--max-tokens", 9) == 0
    assert run(path, "--devices", 2, "--max-tokens", 8) == 1
    assert "microbatch 0 of device 1 holds 9 tokens, over 8" in capsys.readouterr().out
    assert run(path) == 2
    assert "give --devices" in capsys.readouterr().err


def test_a_plan_by_a_pipe(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"devices": UNEVEN})))
    assert run("-") == 1
    assert "-: 1 minibatch on 2 devices, 1 to 2 microbatches each: 1 finding\n" in capsys.readouterr().out


BAD = ["{", "[]", "null", '"a"', '{"length": 5}', "[[0], [[1]]]", '{"devices": [[[5]]], "lengths": [1, 2]}',
       '{"devices": 3}', "[[[[[]]]]]",
       '{"devices": [[[0]]], "lengths": ["a"]}', '{"seq_lengths": [["a"]]}', "[[]]", ""]  # fmt: skip


@pytest.mark.parametrize("content", BAD)
def test_bad_input_is_one_line_and_two(tmp_path, content, capsys):
    assert run(written(tmp_path / "p.json", content)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_plan_is_no_file_to_write_over(tmp_path):
    assert run(tmp_path / "none.json") == 2


def test_a_schedule_of_ours_is_held_against_the_sync_that_it_is_for(tmp_path, capsys):
    """lb-mini deals uneven counts, which only on-demand runs: no error unless somebody asks for collectives."""
    plan = str(tmp_path / "plan.jsonl")
    asked = (
        "balance lognormal:median=3000,sigma=1,max=16000 --balancer lb-mini --model qwen3-0.6b --gpu h100 --devices 4"
    )
    assert main([*asked.split(), "--minibatch", "4", "--max-tokens", "16000", "--minibatches", "9", "-o", plan]) == 0
    assert main(["check", plan]) == 0
    assert "microbatches each, on-demand: nothing that hangs it" in capsys.readouterr().out
    assert main(["check", plan, "--sync", "collective"]) == 1
    assert "collective sync waits for ever" in capsys.readouterr().out


BALANCED = "--model qwen3-0.6b --gpu h100 --devices 4 --minibatch 3 --max-tokens 9000 --minibatches 5"


@pytest.mark.parametrize("balancer", [b.name for b in BALANCERS])
def test_a_schedule_of_ours_says_the_same_beside_its_lengths(tmp_path, balancer, capsys):
    """Its samples are numbered within a minibatch, and `samples` has the rows that they are."""
    lengths, plan = tmp_path / "l.csv", tmp_path / "plan.jsonl"
    lengths.write_text("length\n" + "".join(f"{40 * (i * 37 % 211) + 9}\n" for i in range(80)))
    assert main(["balance", str(lengths), "--balancer", balancer, *BALANCED.split(), "-o", str(plan)]) == 0
    capsys.readouterr()
    told = []
    for beside in ([], ["--lengths", lengths]):
        assert run(plan, "--json", *beside) == 0
        told.append(json.loads(capsys.readouterr().out)["findings"])
    assert [f for f in told[1] if f["kind"] != "unseen"] == told[0]
    assert told[1][-1]["text"] == "20 of 80 samples are in no minibatch"


def test_a_schedule_beside_other_lengths_warns_and_one_beside_too_few_is_refused(tmp_path, schedules, capsys):
    from odcsim import schedule

    schedule.write(schedules, tmp_path / "s.jsonl")
    most = max(row for s in schedules.schedules for row in s.samples)
    (tmp_path / "l.csv").write_text("length\n" + "5\n" * (most + 1))
    assert run(tmp_path / "s.jsonl", "--sync", "on-demand", "--lengths", tmp_path / "l.csv") == 0
    assert re.search(
        r"warning: .* tokens in the plan and 5 in the lengths; \d+ samples differ", capsys.readouterr().out
    )
    (tmp_path / "l.csv").write_text("length\n" + "5\n" * most)
    assert run(tmp_path / "s.jsonl", "--lengths", tmp_path / "l.csv") == 2
    assert f"sample {most} is not among the lengths" in capsys.readouterr().err


def test_lengths_of_nobody_knows_which_rows_are_not_replaced(tmp_path, capsys):
    plan = written(tmp_path / "p.json", {"devices": [[[0]], [[1]]], "lengths": [5, 6]})
    (tmp_path / "l.csv").write_text("length\n7\n8\n")
    assert run(plan, "--lengths", tmp_path / "l.csv") == 2
    assert "leave out --lengths" in capsys.readouterr().err


def test_devices_may_begin_with_nothing_where_they_share_a_queue(tmp_path, capsys):
    plan = written(tmp_path / "p.json", {"devices": [[], []], "queue": [[0], [1]]})
    assert run(plan, "--sync", "on-demand") == 0
    assert "on 2 devices" in capsys.readouterr().out


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 5) | st.text(max_size=2) | st.floats(0, 2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)
KNOWN = st.fixed_dictionaries(
    {"devices": st.just([[[0]], [[1]]]) | ANYTHING},
    optional={name: st.lists(st.integers(1, 9), max_size=3) | ANYTHING for name in ("lengths", "loss", "samples")}
    | {"queue": st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2) | ANYTHING},
)


@example({"devices": [[[], 0]]})
@example({"devices": [[], [[[0]]]]})
@given(KNOWN)
def test_whatever_a_plan_holds_is_checked_or_refused_in_a_line(content):
    try:
        batches = with_lengths(of_object(Given("", content, "p.json"), Dealing()), lambda _: (5, 5), "p.json")
    except InputError as error:
        told = [str(error)]
    else:
        told = [finding.line for finding in check(batches, Rules("on-demand", 10, 5))]
    assert all(len(line.splitlines()) == 1 for line in told)
