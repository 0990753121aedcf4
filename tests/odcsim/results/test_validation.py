"""Errors are what they are called: nothing for the truth itself, the factor for seconds stretched by it."""

import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import ROOT

from odcsim import plots
from odcsim.cluster import Cluster
from odcsim.cost import Load
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors.simulation import simulate
from odcsim.plots.gantt import bars
from odcsim.program import SYNCS, program
from odcsim.recipe import CHOICES
from odcsim.results import validation
from odcsim.results.metrics import PARTS, usage
from odcsim.results.validation import KINDS, validate
from odcsim.say import validation_words
from odcsim.show.pages import perfetto
from odcsim.show.pages.answer_pages import write_timelines, write_validation
from odcsim.timeline import Timeline


def stretched(line: Timeline, factor: float) -> Timeline:
    return replace(line, blocks=tuple(replace(b, asked=factor * b.asked, had=factor * b.had) for b in line.blocks))


def said(line: Timeline, **changes: object) -> Timeline:
    """It says otherwise of itself: of its recipe, or of the rest."""
    chosen = {name: changes.pop(name) for name in CHOICES if name in changes}
    return replace(line, about=replace(line.about, recipe=line.about.recipe.by(**chosen), **changes))


def run_on(setting, cluster: Cluster, sync: str, seed: int = 0) -> Timeline:
    balancer = "lb-mini" if sync == "on-demand" else "lb-micro"
    return simulate(plan(setting, balancer), replace(setting.cost, cluster=cluster).by(sync=sync), seed=seed)


@pytest.fixture(scope="module")
def noisy(setting):
    """Runs that differ by jitter alone."""
    return [run_on(setting, replace(setting.cost.cluster, jitter=0.2), "on-demand", seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("sync", SYNCS)
def test_a_prediction_of_itself_has_no_errors_and_kinds_leave_waiting_out(setting, sync):
    """Compute by kind is the compute of metrics; a transfer takes what its row of durations says, meeting or not."""
    cluster = replace(setting.cost.cluster, devices_per_node=2, nics_per_node=2)
    line = run_on(setting, cluster, sync)
    found = validate(line, [line, line])
    assert (found.makespan.worst, found.finish.worst, found.idle_error, found.noise.worst) == (0, 0, 0, 0)
    assert {kind.error for kind in found.kinds} == {m.error for m in found.minibatches} == {0.0}
    seconds = {k.kind: k.measured_seconds for k in found.kinds}
    assert {what.split()[0] for what, _ in program(2, 2, sync).durations} <= set(KINDS)
    computed = sum(seconds.get(k, 0) for k in ("embed", "forward", "head", "backward"))
    assert computed == pytest.approx(usage(line).compute.sum())
    cost, file, wanted = replace(setting.cost, cluster=cluster), plan(setting, line.about.balancer), 0.0
    for block in line.blocks:
        table = cost.durations(block.program, Load.of(cost.model, [file.schedules[n] for n in block.minibatches]))
        wanted += sum(table[s.duration].sum() for s in block.program.steps if s.kind == "gather")
    assert seconds["gather"] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("sync", "how"), [("on-demand", {"far": "hierarchical"}), ("collective", {"exchange": "layers"})]
)
def test_seconds_of_every_recipe_have_a_kind(setting, sync, how):
    """What brings units into a node and what sums between nodes, too."""
    cluster = replace(setting.cost.cluster, devices_per_node=2, nics_per_node=2)
    cost = replace(setting.cost, cluster=cluster).by(sync=sync, sharding="hybrid", **how)
    line = simulate(plan(setting, "lb-micro"), cost)
    moved = {what.split()[0] for block in line.blocks for what, _ in block.program.durations}
    assert moved <= set(KINDS)
    assert {kind.kind for kind in validate(line, [line]).kinds} <= moved


@settings(max_examples=20)
@given(st.floats(0.2, 5))
def test_stretched_seconds_are_off_by_the_factor_and_idle_is_not_off(timeline, factor):
    found = validate(stretched(timeline, factor), [stretched(timeline, f) for f in (0.5, 1.0, 30.0)])
    for value in (found.makespan.mean, found.makespan_total, *(k.error for k in found.kinds)):
        assert value == pytest.approx(factor - 1, abs=1e-9)
    for value in (found.makespan.median, found.makespan.p90, found.makespan.worst):
        assert value == pytest.approx(abs(factor - 1), abs=1e-9)
    assert found.idle_error == pytest.approx(0, abs=1e-9)
    many = validation._errors(np.array([-0.4, 0.1, 0.1, -0.1, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3]))
    assert (many.mean, many.median, many.p90, many.worst) == pytest.approx((0.2 / 11, 0.1, 0.3, 0.4))


def test_noise_is_the_error_of_one_run_as_the_prediction_of_another(noisy):
    found = validate(noisy[0], noisy[1:])
    one, other = (usage(run).makespan for run in noisy[1:])
    errors = np.abs(np.concatenate([one / other - 1, other / one - 1]))
    assert (found.noise.worst, found.noise.median) == pytest.approx((errors.max(), np.median(errors)))
    for m, a, b in zip(found.minibatches, one, other, strict=True):
        assert m.noise == pytest.approx(abs(a - b) / np.median([a, b]))
    assert validate(noisy[0], noisy[1:2]).noise is None
    # Runs that differ by noise alone predict each other as badly as the noise says, give or take what few runs can.
    assert 0.2 < found.makespan.median / found.noise.median < 5


def test_json_holds_every_error_and_idle_errors_add_up(setting, noisy, tmp_path):
    """And the page fetches nothing."""
    found = validate(run_on(setting, setting.cost.cluster, "on-demand"), noisy)
    write_validation(found, tmp_path / "v.html")
    assert not re.search(r'<script src|(?:src|href)="(?:https?:)?//', (tmp_path / "v.html").read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["v.html"]
    content = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert found.idle_error < 0  # jitter makes devices wait
    assert set(content["idle_parts_error_points"]) == set(PARTS)
    assert sum(content["idle_parts_error_points"].values()) == pytest.approx(found.idle_error)
    assert content["idle_error_points"] == abs(content["idle_error_points_signed"]) > 0
    for part in ("mean", "median", "p90", "worst"):
        assert content[f"makespan_error_{part}"] == getattr(found.makespan, part)
    assert content["noise_worst"] == found.noise.worst
    assert len(content["minibatches"]) == len(noisy[0].samples)
    assert {f.name for f in fields(validation.MinibatchErrors)} == set(content["minibatches"][0])
    listed = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8").partition("## JSON")[2]
    assert set(content) <= set(re.findall(r"`(\w+)`", listed))


def test_finish_times_are_those_before_the_meeting_at_the_end(timeline):
    """One device later by 10 % of the makespan, which the meeting hides from all other devices' ends."""
    block = timeline.blocks[0]
    end = next(i for i, s in enumerate(block.program.steps) if s.kind == "meeting")
    asked = block.asked.copy()
    asked[end, 0, int(np.argmin(asked[end, 0]))] += 0.1 * usage(timeline).makespan[block.minibatches[0]]
    found = validate(replace(timeline, blocks=(replace(block, asked=asked), *timeline.blocks[1:])), [timeline])
    assert found.finish.worst == pytest.approx(0.1)
    assert found.minibatches[block.minibatches[0]].finish_error == pytest.approx(0.1)


def test_the_worst_minibatch_is_named_with_its_cause(timeline):
    longer, place = timeline.block_of(4)
    factors = np.ones((len(longer.minibatches), 1))
    factors[place] = 1.2
    late = replace(longer, asked=longer.asked * factors, had=longer.had * factors)
    blocks = tuple(late if block is longer else block for block in timeline.blocks)
    found = validate(replace(timeline, blocks=blocks), [timeline])
    worst = found.worst(1)[0]
    assert (worst.minibatch, worst.furthest, worst.error) == (4, "backward", pytest.approx(0.2))
    assert (found.makespan.worst, found.makespan.median) == (pytest.approx(0.2), 0)
    assert validation_words.worst(found)[0][0] == "4"


OTHERS = {"digest": "0123", "sync": "collective", "devices": 8, "prefetch": "none"}


def test_what_is_not_the_same_run_is_refused(timeline):
    quick, ours = stretched(timeline, 1e-4), {"executor": "engine", "emulated": False}
    wrong = [(timeline, []), (timeline, [replace(timeline, samples=timeline.samples + 1)])]
    wrong += [(timeline, [said(timeline, **{name: value})]) for name, value in OTHERS.items()]
    wrong += [(timeline, [timeline, said(timeline, **change)]) for change in ({"digest": "x"}, {"hardware": "other"})]
    wrong += [(said(timeline, **ours), [timeline]), (stretched(timeline, 0.0), [timeline])]  # swapped, of no time
    wrong += [(quick, [said(quick, executor="engine")])]  # emulated, of ms
    for predicted, measured in wrong:
        with pytest.raises(InputError):
            validate(predicted, measured)
    assert validate(quick, [said(quick, **ours)]).makespan.worst == 0


@pytest.mark.parametrize(
    ("changes", "runs", "cautions"),
    [({"executor": "engine", "emulated": False}, 2, 0), ({"executor": "engine", "emulated": False}, 1, 1),
     ({"executor": "engine"}, 2, 1), ({}, 1, 2)],  # the third checks an executor
)  # fmt: skip
def test_cautions_say_what_the_errors_do_not(timeline, changes, runs, cautions):
    measured = [said(timeline, **changes)] * runs
    found, beyond = (validate(said(timeline, **words), measured) for words in ({}, {"fidelity": "extrapolated"}))
    assert [len(validation_words.cautions(one)) for one in (found, beyond)] == [cautions, cautions + 1]
    assert found.as_json()["executor_check"] == changes.get("emulated", True)


# What readers make of a run with a shared queue.


@pytest.fixture(scope="module")
def queued(setting):
    return simulate(plan(setting, "pool"), setting.cost.by(sync="on-demand"))


def relabelled(line):
    """Devices under other numbers: the same run, had others been a moment earlier."""
    blocks = []
    for block in line.blocks:
        order = np.roll(np.arange(block.counts.shape[1]), 1)  # device d is now what order[d] was
        takers = None if block.takers is None else np.where(block.takers < 0, -1, np.argsort(order)[block.takers])
        counts, asked, had = block.counts[:, order], block.asked[:, :, order], block.had[:, :, order]
        blocks.append(replace(block, counts=counts, asked=asked, had=had, takers=takers))
    return replace(line, blocks=tuple(blocks))


def test_who_took_an_entry_is_no_error_and_is_told(queued, setting, timeline):
    """What devices run in the end is chance where they share a queue, and the plan where they share none."""
    entries = sum(len(s.queue) for s in plan(setting, "pool").schedules)
    for runs, same in (([queued, queued], 1.0), ([queued, relabelled(queued)], 0.5)):
        found = validate(queued, runs)
        assert (found.makespan.worst, found.finish.worst, found.idle_error) == (0, 0, pytest.approx(0, abs=1e-9))
        assert (found.queued, found.same_taker, found.as_json()["queue_same_taker"]) == (entries, same, same)
        assert len(validation_words.queues(found)) == 1
    found = validate(timeline, [relabelled(timeline)])
    assert (found.makespan.worst, found.queued, found.same_taker, validation_words.queues(found)) == (0, 0, None, [])
    assert found.finish.worst > 0.01


def test_a_trace_and_a_chart_show_entries_where_their_taker_ran_them(queued, setting):
    for number, schedule in enumerate(plan(setting, "pool").schedules):
        block, place = queued.block_of(number)
        events = [e for e in perfetto.events(queued, [number]) if e.get("cat") == "queue entry"]
        shown = {(e["pid"], *map(int, re.findall(r"\d+", e["name"]))): e for e in events}
        takers = block.takers[place, : len(schedule.queue)].tolist()
        assert sorted((entry, device) for device, _, entry in shown) == list(enumerate(takers))
        for (device, microbatch, _), event in shown.items():
            of = [i for i, s in enumerate(block.program.steps) if s.microbatch == microbatch and s.lane == "compute"]
            assert event["ts"] == pytest.approx(block.asked[of[0], place, device] * 1e6, abs=2e-3)
            end = block.had[of[-1], place, device] * 1e6
            assert event["ts"] + event["dur"] == pytest.approx(end, abs=2e-3)
            assert microbatch >= len(schedule.devices[device])
        for device in range(queued.about.devices):
            drawn = {(bar.microbatch, bar.entry) for bar in bars(block, place, device) if bar.entry >= 0}
            assert drawn == set(block.taken(place, device).items())


def test_a_chart_outlines_entries_and_a_report_counts_them(queued, timeline, tmp_path):
    outlined = 0
    for trace in plots.gantt(queued, 0).data:
        named = ["queue entry" in told for told in trace.customdata]
        if trace.name in ("forward", "backward", "head and loss"):
            assert [width > 0 for width in trace.marker.line.width] == named
            outlined += sum(named)
    block, place = queued.block_of(0)
    assert outlined == 2 * (block.takers[place] >= 0).sum()  # this profile has no head
    assert not any("queue" in told for trace in plots.gantt(timeline, 0).data for told in trace.customdata)
    write_timelines([queued], tmp_path / "with.html")
    write_timelines([timeline], tmp_path / "without.html")
    text = (tmp_path / "with.html").read_text()
    block, place = queued.block_of(int(re.search(r"Minibatch (\d+)<", text)[1]))
    counts = [f"{(block.takers[place] == device).sum()}" for device in range(queued.about.devices)]
    assert f"<td>{', '.join(counts)}</td>" in text
    assert "queue" not in (tmp_path / "without.html").read_text()
