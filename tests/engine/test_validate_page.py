"""What docs/validate.py and docs/agreement.py make of runs; the runs themselves are in `make validate`."""

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from odcsim import catalog
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.profile import Profile, Timing

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import agreement
import guess
import scatter
import validate as page

COST = {
    stage: Cost(
        catalog.model(stage.model),
        Profile(stage.model, "", "calibrated", "", **{n: page.EMULATED[n] for n in ("forward", "backward", "head")}),
        Cluster(stage.devices, stage.devices, 1.0, 1.0, stage.devices),
    )
    for stage in page.STAGES
}


def case(predicted: float, measured: tuple[float, ...], **changes) -> agreement.Case:
    return replace(
        agreement.Case(
            "real", "swe", 0, "collective", "native", predicted, measured, 0.5, "push", {"a term": 2 * predicted}
        ),
        **changes,
    )


def test_at_least_forty_schedules_of_every_sync_balancer_and_distribution():
    held = [
        (stage, sync, *key)
        for stage, cost in COST.items()
        for sync in page.SYNCS
        for key in page.planned(stage, cost, sync)[1]
    ]
    for stage in page.STAGES:
        mine = [key for key in held if key[0] == stage]
        assert len(mine) >= 40
        assert {sync for _, sync, *_ in mine} == {"collective", "deferred", "on-demand"}
        assert {*page.TRACES, "one long among short", "all alike", "fewer than devices"} == {key[2] for key in mine}
        for sync in page.SYNCS:
            wanted = {b for b in page.balance.NAMES if page.balance.runs_with(b, sync)}
            wanted &= set(page.DEFERRED) if sync == "deferred" else wanted
            assert {key[4] for key in mine if key[1] == sync} == wanted


def test_errors_are_against_the_middle_run_and_noise_is_between_runs():
    one = case(1.1, (1.0, 0.9, 1.4))
    assert one.error == pytest.approx(0.1)
    assert one.noise == pytest.approx(0.4)
    assert agreement.errors([one, case(0.8, (1.0, 1.0, 1.0))])[:5] == ["2", "-5.0%", "15.0%", "19.0%", "20.0%"]


def test_the_order_counts_where_every_run_of_one_beats_every_run_of_the_other():
    cases = [
        case(1.0, (1.0, 1.1)),
        case(2.0, (2.0, 2.1), balancer="lb-micro"),  # told rightly
        case(0.9, (1.05, 1.2), balancer="sorted-slice"),  # no more than noise away from the first
        case(0.5, (3.0, 3.1), sync="on-demand"),  # told wrongly against three
    ]
    asked, right, wrong, off = agreement.ordered(cases)
    assert (asked, right, len(wrong)) == (5, 2, 3)
    assert all("on-demand + native" in line for line in wrong)
    assert off > 0.5


def test_the_page_keeps_what_is_written_by_hand(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n")
    page.write(path, "new")
    assert path.read_text() == f"before\n\n{page.BEGIN}\n\nnew\n\n{page.END}\n\nafter\n"


def test_results_hold_every_schedule_worst_first():
    cases = [case(1.0 + i / 100, (1.0,), draw=i) for i in range(30)]
    text = agreement.results(cases, page.Measurements("tiny", "cpu", (), date="2026-01-02", hardware="a test"))
    worst = text.partition("### Worst first")[2].partition("###")[0]
    shown = [line.split("|")[7].strip() for line in worst.splitlines() if "swe" in line]
    assert shown[0] == "+29.0%"
    assert shown == sorted(shown, reverse=True)
    assert text.partition("### Every schedule")[2].count("| swe ") == 30
    assert np.all([word in text for word in ("2026-01-02", "a test")])


def test_every_term_left_out_changes_a_prediction(monkeypatch):
    stage = page.STAGES[0]
    used = replace(
        COST[stage].profile,
        forward=replace(page.EMULATED["forward"], sample=1e-4),
        timings=tuple(
            Timing(kind, 2, 1e-3, 1e-9, 2.0)
            for kind in (
                "gather",
                "push",
                "all-gather",
                "reduce-scatter",
                "meeting",
                "overhead",
                "optimizer",
                "publish",
            )
        ),
    )
    cost = replace(COST[stage], profile=used, cluster=replace(COST[stage].cluster, swing=0.1))
    file = few(stage, cost)
    monkeypatch.setattr(guess, "DRAWS", 2)
    whole = guess.guess(cost, file, "collective").makespan
    for name, other in guess.without(cost).items():
        assert not np.allclose(guess.guess(other, file, "collective").makespan, whole, rtol=1e-4), name


def few(stage: page.Stage, cost: Cost) -> page.ScheduleFile:
    file = page.planned(stage, cost, "collective")[0]
    return replace(file, schedules=file.schedules[::4]).sealed()


def test_a_machine_that_swings_is_guessed_at_by_the_mean_of_its_draws():
    calm = COST[page.STAGES[0]]
    file = few(page.STAGES[0], calm)
    swinging = replace(calm, cluster=replace(calm.cluster, swing=0.1))
    one, other = (guess.guess(cost, file, "collective") for cost in (calm, swinging))
    assert (other.makespan > one.makespan).mean() > 0.9  # who waits, waits for the slower one
    assert other.idle.mean() > one.idle.mean()
    np.testing.assert_allclose(other.makespan, one.makespan, rtol=0.2)


def test_the_machine_is_measured_piece_by_piece(tmp_path, monkeypatch):
    asked = []

    def measure(_, piece):
        asked.append(piece.name)
        return page.Measurements("tiny", "cpu", ())

    monkeypatch.setattr(page.profiles, "measure", measure)
    stage = page.STAGES[0]
    assert page.measured(stage, tmp_path) == page.measured(stage, tmp_path)  # the second reads what the first wrote
    assert len(set(asked)) == len(asked) > 3


@pytest.mark.parametrize(("stage", "sync"), [(page.STAGES[0], "on-demand"), (page.STAGES[1], "collective")])
def test_what_is_made_to_be_measured_stands_between_the_rest(stage, sync):
    file = page.planned(stage, COST[stage], sync)[0]
    mixed, own = page.between(stage, file, sync)
    assert [mixed.schedules[i] for i in own] == list(file.schedules)
    others = sorted(set(range(len(mixed.schedules))) - set(own))
    assert bool(others) is not stage.emulate
    assert np.diff([-1, *others, len(mixed.schedules)]).max() <= 4 or stage.emulate


def test_no_measurement_is_of_a_schedule_that_is_held_out():
    stage = page.STAGES[0]
    mixed, own = page.between(stage, page.planned(stage, COST[stage], "collective")[0], "collective")
    line = page.simulate(mixed, page.Simulation(COST[stage], "collective"))
    others = set(range(len(mixed.schedules))) - set(own)
    part = page.only(line, others)
    assert sorted(n for block in part.blocks for n in block.minibatches) == sorted(others)
    line = replace(part, about=replace(part.about, emulated=False))
    rows = page.recorded.rows(line, mixed.schedules, COST[stage].model, "float32").compute
    packed = {sum(mixed.schedules[n].lengths[i] for i in m) for n in others for m in mixed.schedules[n].contents()}
    assert {row.tokens for row in rows} == packed
    assert sum(row.kind == "head" for row in rows) == sum(sum(mixed.schedules[n].microbatches) for n in others)


def test_what_was_measured_between_the_runs_takes_the_place_of_the_same_from_before():
    def rows(seconds, *, computing):
        return page.recorded.Rows(
            tuple(page.measurements.Compute("head", 8, 64.0, seconds, alone=alone) for alone in (False, True)),
            (page.measurements.Transfer("push", 2, 8, seconds, computing),),
            (page.measurements.Constant("overhead", 2, seconds),),
        )

    old = rows(1.0, computing=False)
    before = page.Measurements("tiny", "cpu", old.compute, old.transfers, old.constants)
    found = page.renewed(before, [rows(2.0, computing=True), rows(3.0, computing=True)])
    assert [(row.seconds, row.alone) for row in found.compute if not row.alone] == [(2.0, False), (3.0, False)]
    assert 1.0 in [row.seconds for row in found.compute if row.alone]
    assert [(row.seconds, row.computing) for row in found.transfers] == [(1.0, False), (2.0, True), (3.0, True)]
    assert [row.seconds for row in found.constants] == [2.0, 3.0]


def test_the_picture_has_a_point_for_each_schedule_and_those_that_are_right_lie_on_its_line(tmp_path):
    cases = [case(seconds, (seconds,), stage=stage) for stage in ("real", "other") for seconds in (0.5, 1.0, 2.0)]
    scatter.scatter([*cases, case(1.5, (1.0,))], tmp_path / "p.svg")
    drawn = ElementTree.parse(tmp_path / "p.svg").getroot()
    points = [e for e in drawn.iter() if e.tag.endswith("circle") and e.get("r") == "3.5"]
    bottom, left = scatter.TOP + scatter.SIDE, scatter.LEFT
    off = [float(p.get("cx")) - left - (bottom - float(p.get("cy"))) for p in points]
    assert sorted(abs(x) < 0.2 for x in off) == [False] + [True] * 6
    assert min(off) < -1  # predicted too long lies above
    assert len({p.get("fill") for p in points}) == 2
