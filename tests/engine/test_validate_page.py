"""What docs/validate.py and docs/agreement.py make of runs; the runs themselves are in `make validate`."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from odcsim import catalog
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.profile import Profile, Timing

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import agreement
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
        assert {sync for _, sync, *_ in mine} == {"collective", "on-demand"}
        assert {*page.TRACES, "one long among short", "all alike", "fewer than devices"} == {key[2] for key in mine}
        for sync in page.SYNCS:
            wanted = {b for b in page.balance.NAMES if page.balance.runs_with(b, sync)}
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


def test_every_term_left_out_changes_a_prediction():
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
    cost = replace(COST[stage], profile=used)
    file = page.planned(stage, cost, "collective")[0]
    whole = page.makespans(cost, file, "collective")
    for name, other in page.without(used).items():
        assert not np.allclose(page.makespans(replace(cost, profile=other), file, "collective"), whole, rtol=1e-4), name


def test_the_machine_is_measured_piece_by_piece_and_once_more_with_other_orders(tmp_path, monkeypatch):
    asked = []

    def measure(plan, piece):
        asked.append((plan.seed, piece.name))
        return page.Measurements("tiny", "cpu", ())

    monkeypatch.setattr(page.profiles, "measure", measure)
    stage = page.STAGES[0]
    assert page.measured(stage, tmp_path) == page.measured(stage, tmp_path)  # the second reads what the first wrote
    first = [name for _, name in asked]
    assert len(set(first)) == len(first) > 3
    page.again(stage, 0), page.again(stage, 1)
    assert [name for _, name in asked[len(first) :]] == [first[0]] * 2
    assert len({seed for seed, _ in asked}) == 3
