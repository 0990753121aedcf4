"""The comparison is its parts: plan, then simulate, row by row on the same samples."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim import balance, schedule, timeline
from odcsim.cli import csvs, table
from odcsim.cluster import Cluster
from odcsim.decide import answer, answer_words
from odcsim.decide.asking import ask
from odcsim.decide.comparison import Comparison, compare, pairs
from odcsim.decide.evaluate import measure
from odcsim.decide.setting import cost_of, plan
from odcsim.errors import InputError
from odcsim.executors.simulation import Simulation, simulate
from odcsim.program import SYNCS
from odcsim.recipe import ASKED, CHOICES
from odcsim.results import columns, metrics
from odcsim.results.summary import REFERENCE, row
from odcsim.support import tables


@pytest.fixture(scope="module")
def compared(setting) -> Comparison:
    return compare(setting)


def test_every_balancer_meets_every_sync_it_can_run():
    cannot = {(b.name, s) for b in balance.BALANCERS if b.free_counts for s in ("collective", "deferred")}
    assert set(pairs()) == {(b, s) for b in balance.ALL for s in SYNCS} - cannot
    assert len(pairs()) == len(set(pairs())) == 15


@pytest.mark.parametrize(("balancer", "sync"), pairs())
def test_a_row_is_what_balance_and_simulate_come_to(balancer, sync, compared, setting, tmp_path):
    """The way through a schedule file and a timeline file gives the same figures, to the last bit."""
    schedule.write(plan(setting, balancer), tmp_path / "s.jsonl")
    file = schedule.read(tmp_path / "s.jsonl")
    timeline.write(simulate(file, Simulation(setting.cost, sync, "analytic")), tmp_path / "t.npz")
    line = timeline.read(tmp_path / "t.npz")
    used = metrics.usage(line)
    found = compared.row(balancer, sync)
    assert found.makespan_seconds == used.makespan.sum()
    assert found.idle == used.idle()
    assert found.idle_parts == used.idle_parts()
    tokens, samples = line.tokens.sum(), line.samples.sum()
    assert found.tokens_per_second == pytest.approx(tokens / used.makespan.sum())
    assert found.samples_per_second_per_device == pytest.approx(samples / used.makespan.sum() / 4)
    profile = setting.cost.profile
    alone = row(measure(file, Simulation(setting.cost, sync, "des")), profile.low, profile.high, None)
    known = ("idle", "makespan_seconds", "idle_parts", "model_low", "model_high", "gpu_hours", "tokens_per_second")
    assert [getattr(alone, name) for name in known] == [getattr(found, name) for name in known]


def test_all_rows_run_the_same_samples_in_the_same_minibatches(setting):
    files = [plan(setting, name).schedules for name in balance.ALL]
    for schedules in zip(*files, strict=True):
        assert len({s.samples for s in schedules}) == 1
        assert len({s.lengths for s in schedules}) == 1


def test_the_reference_is_one_and_gains_multiply(compared):
    reference = compared.row(*REFERENCE)
    assert (reference.speedup, reference.speedup_low, reference.speedup_high) == (1.0, 1.0, 1.0)
    for found in compared.rows:
        assert found.sync_gain * found.balancer_gain == pytest.approx(found.speedup)
        assert found.speedup_low <= found.speedup <= found.speedup_high
    assert max(r.speedup_best_collective for r in compared.rows if r.sync == "collective") == 1.0


def test_the_same_seed_gives_the_same_and_another_seed_other_figures(compared, setting):
    assert compare(setting).rows == compared.rows
    other = compare(replace(setting, seed=1))
    assert all(a.makespan_seconds != b.makespan_seconds for a, b in zip(other.rows, compared.rows, strict=True))


def test_discrete_events_give_the_same_rows(compared, setting, monkeypatch):
    monkeypatch.setattr(Cluster, "eventful", True)
    assert compare(setting).rows == compared.rows


def test_at_minibatch_one_all_are_equal_inside_a_node():
    """One sample per device leaves nothing to balance and nothing to wait for but the longest.

    Conditions: one node and a published fit, so transfers take no time. On-demand's second meeting is 20 microseconds.
    """
    asked = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=8, minibatch=1, minibatches=20)
    found = compare(asked)
    for sync in SYNCS:
        assert len({r.makespan_seconds for r in found.rows if r.sync == sync}) == 1
    seconds = [r.makespan_seconds for r in found.rows]
    assert max(seconds) - min(seconds) <= 20 * 20e-6 * 1.001
    assert max(seconds) > min(seconds)


def test_the_json_says_what_was_asked(compared):
    content = json.loads(json.dumps(compared.as_json()))
    assert content["schema"] == 1
    assert content["fidelity"] == "published fit"
    assert len(content["rows"]) == len(pairs())
    asked = content["inputs"]
    assert (asked["trace"], asked["model"], asked["gpu"]) == ("longalign", "r1-distill-qwen-1.5b", "a100")
    assert (asked["devices"], asked["minibatch"], asked["minibatches"]) == (4, 5, 6)
    assert (asked["max_tokens"], asked["seed"], asked["price"]) == (65536, 0, None)
    for found in content["rows"]:
        assert sum(found["idle_parts"].values()) == pytest.approx(found["idle"])


def test_price_memory_and_progress(setting):
    calls = []
    found = compare(setting, price=2.0, memory_limit=40e9, advance=lambda: calls.append(1))
    assert len(calls) == len(pairs())
    for one in found.rows:
        assert one.dollars == pytest.approx(2 * one.gpu_hours)
        assert one.memory_fits == (one.memory_bytes <= 40e9)
    by_sync = {sync: found.row("lb-micro", sync).memory_bytes for sync in SYNCS}
    assert by_sync["collective"] < by_sync["on-demand"]
    assert by_sync["collective"] < by_sync["deferred"]


def test_price_and_memory_are_known_where_one_looks_for_them(setting):
    """A price is asked with the question, and the GPU's memory is that of the catalog."""
    asked = ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=1, price=2)
    found = compare(asked)
    assert {r.memory_fits for r in found.rows} == {True}
    assert [r.dollars for r in found.rows] == [2 * r.gpu_hours for r in found.rows]
    assert [r.dollars for r in compare(asked, price=3).rows] == [3 * r.gpu_hours for r in found.rows]
    by_profile = compare(replace(setting, cost=cost_of("r1-distill-qwen-7b", "a100", None, 4)))
    assert None not in {r.memory_fits for r in by_profile.rows}
    unknown = replace(setting.cost.cluster, memory_bytes=None)
    blind = replace(setting, cost=replace(setting.cost, cluster=unknown))
    assert {r.memory_fits for r in compare(blind).rows} == {None}


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(price):
    with pytest.raises(InputError, match="--price is"):
        ask("longalign", "r1-distill-qwen-1.5b", gpu="a100", price=price)


@pytest.mark.parametrize("given", [[512, 2048, 900, 64], np.array([512, 2048, 900, 64]), (512, 2048, 900, 64)])
def test_lengths_themselves_are_a_trace(given):
    setting = ask(given, "r1-distill-qwen-1.5b", gpu="a100", devices=2, minibatch=2, minibatches=1)
    assert setting.trace.lengths.tolist() == [512, 2048, 900, 64]


def test_a_path_is_a_trace(tmp_path):
    (tmp_path / "a.csv").write_text("length\n5\n6\n")
    asked = ask(tmp_path / "a.csv", "r1-distill-qwen-1.5b", gpu="a100", devices=1, minibatch=2, minibatches=1)
    assert asked.trace.lengths.tolist() == [5, 6]


@pytest.mark.parametrize("given", [[1, [2]], [1.5, 2], [0], [[1, 2]], [], ["a"], None, 5, [2**70]])
def test_what_is_no_row_of_lengths_is_refused(given):
    with pytest.raises(InputError):
        ask(given, "r1-distill-qwen-1.5b", gpu="a100")


def test_the_table_reads_at_80_columns(setting, capsys):
    peaks = [r.memory_bytes for r in compare(setting).rows]
    tight = compare(setting, price=1e6, memory_limit=(min(peaks) + max(peaks)) / 2)
    table.show_comparison(tight)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" ")]
    assert max(map(len, lines)) <= 80
    words = [line.split() for line in lines if "%" in line]
    assert [tuple(w[:2]) for w in words] == [(r.balancer, r.sync) for r in columns.best_first(tight.rows)]
    over = [">" in w for w in words]
    assert any(over)
    assert over == sorted(over)


def test_every_figure_of_every_row_is_a_column_of_the_csv(compared, capsys):
    limits = [replace(compared.setting, max_tokens=limit) for limit in (1000, 2000)]
    csvs.print_rows([replace(compared, setting=setting) for setting in limits])
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line["max_tokens"] for line in lines] == ["1000"] * 15 + ["2000"] * 15
    for line, one in zip(lines, [*compared.rows] * 2, strict=True):
        figures = tables.flat(one.as_json())
        assert {name: "" if value is None else str(value) for name, value in figures.items()} == {
            name: value for name, value in line.items() if name != "max_tokens"
        }


def test_the_usages_are_those_of_the_rows(compared):
    for one, used in zip(compared.rows, compared.usages, strict=True):
        assert np.sum(used.makespan) == one.makespan_seconds
        assert len(used.makespan) == one.minibatches


def test_rows_that_do_not_fit_come_last_and_say_what_most_of_it_is_for(setting, capsys):
    peaks = [r.memory_bytes for r in compare(setting).rows]
    tight = compare(setting, memory_limit=(min(peaks) + max(peaks)) / 2)
    table.show_comparison(tight, wide=True)
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {(r.balancer, r.sync): r for r in tight.rows}
    too_much = [">" in line for line in words if tuple(line[:2]) in rows]
    assert len(too_much) == len(rows)
    assert any(too_much)
    for line in words:
        if ">" in line:
            assert line[-1] == rows[line[0], line[1]].largest_term.split()[-1]
    assert too_much == sorted(too_much)


def test_terms_of_a_row_add_up_to_its_memory_and_are_printed(compared, capsys):
    for one in compared.rows:
        assert sum(one.memory_terms.values()) == one.memory_bytes
        assert one.memory_terms[one.largest_term] == max(one.memory_terms.values())
    table.show_memory(compared)
    told = capsys.readouterr().out
    for one in (answer.answer(compared).reference, answer.answer(compared).best):
        [line] = [line for line in told.splitlines() if answer_words.named(one) in line]
        assert line.split()[-1] == f"{one.memory_bytes / 1e9:.1f}"


REST = [("lb-micro", sync) for sync in SYNCS]


@pytest.mark.parametrize(
    ("ask_for", "message"),
    [
        (lambda c: c.row("lb-mini", "collective"), "no row of lb-mini under collective; lb-mini runs under on-demand"),
        (lambda c: c.row("lb-mino", "on-demand"), "no row of lb-mino under on-demand; did you mean 'lb-mini'"),
        (lambda c: c.usage("", ""), "no row of  under ; there are native"),
        (lambda c: c.typical(("a", "b")), "no row of a under b"),
        (lambda c: c.clearest(REFERENCE, ("a", "b")), "no row of a under b"),
        (lambda c: c.timeline("lb-mini", "collective", 0), "no row of lb-mini under collective"),
        (lambda c: c.timeline(*REFERENCE, 10**6), "no minibatch 1000000; there are 0 to"),
        (lambda c: c.timeline(*REFERENCE, -1), "no minibatch -1"),
    ],
)
def test_a_row_that_is_not_there_is_told_with_those_that_are(compared, ask_for, message):
    with pytest.raises(InputError, match=message):
        ask_for(compared)


@pytest.mark.parametrize(
    ("among", "message"),
    [
        ([("lb-mini", "on-demand")], r"among lacks \('lb-micro', 'collective'\)"),
        ([REFERENCE, ("lb-mini", "on-demand")], r"among lacks \('lb-micro', 'on-demand'\).*add it"),
        (
            [REFERENCE, ("lb-mini", "collective")],
            r"among holds \('lb-mini', 'collective'\); give \(balancer, sync\) of",
        ),
        ([REFERENCE, ("lb-mino", "on-demand")], "among holds"),
        (["lb-mini"], "among holds 'lb-mini'"),
        ([REFERENCE, ("split", "on-demand")], "among holds"),
    ],
)
def test_some_rows_alone_are_compared_or_refused_with_what_they_lack(setting, among, message):
    with pytest.raises(InputError, match=message):
        compare(setting, among=among)


def test_some_rows_alone_say_what_they_say_among_all(setting, compared):
    few = compare(setting, among=[*REST, ("lb-mini", "on-demand")])
    mine, all_of_them = few.row("lb-mini", "on-demand"), compared.row("lb-mini", "on-demand")
    assert (mine.speedup, mine.sync_gain, mine.idle) == (all_of_them.speedup, all_of_them.sync_gain, all_of_them.idle)
    assert answer_words.verdict(answer.answer(few))
    with pytest.raises(InputError, match="no row with on-demand, which the answer needs"):
        answer.answer(compare(setting, among=REST[:2]))


def _values(name):
    choice = CHOICES[name]
    return choice.values or ([0, 8] if type(choice.usual) is int else [True, False])


@settings(max_examples=12)
@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(_values(name)) for name in ASKED}))
def test_parts_of_the_idle_are_parts_of_it_whatever_the_recipe(recipe):
    """Under every sync, over two nodes."""
    try:
        setting = ask(
            "lognormal:median=3000,sigma=1.5,max=16000", "qwen3-0.6b", gpu="a100", devices=4, devices_per_node=2,
            minibatch=3, minibatches=2, max_tokens=16000, **recipe,
        )  # fmt: skip
    except InputError:  # some choices exclude each other
        return
    for found in compare(setting, among=[*REST, ("lb-mini", "on-demand")]).rows:
        assert all(-1e-9 <= part <= 1 for part in found.idle_parts.values()), found
        assert sum(found.idle_parts.values()) == pytest.approx(found.idle, abs=1e-9)
        assert 0 <= found.idle <= 1


def test_what_on_demand_was_said_to_cost_is_charged_and_called_unproven():
    asked = {"gpu": "a100", "devices": 2, "minibatch": 2, "minibatches": 4, "max_tokens": 4096}
    plain, dear = (
        compare(ask("uniform:min=20,max=900,samples=64", "tiny", **asked, on_demand_cost=cost)) for cost in (0.0, 1.5)
    )
    for before, after in zip(plain.rows, dear.rows, strict=True):
        added = 1.5 * before.minibatches if before.sync == "on-demand" else 0.0
        assert after.makespan_seconds == pytest.approx(before.makespan_seconds + added)
    assert any("1.5 s more per minibatch, as you asked; nobody has measured that" in line for line in dear.sentences())
    assert not any("nobody has measured" in line for line in plain.sentences())
    told = [one.as_json()["inputs"] for one in (plain, dear)]
    assert [one["on_demand_cost"] for one in told] == [0.0, 1.5]
    assert told[1]["on_demand_origin"] == f"{told[0]['on_demand_origin']}; and 1.5 s as given, not measured"
