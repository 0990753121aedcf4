"""What docs/studies/validate.py and agreement.py make of runs; the runs themselves are in `make validate`."""

import contextlib
import json
import re
import sys
from dataclasses import asdict, replace

import agreement
import guess
import numpy as np
import pytest
import stages
import validate as page
from mixed import order

from odcsim import balance, catalog
from odcsim.cluster import Cluster
from odcsim.cost import Cost
from odcsim.profile import Profile, Timing

KINDS = ("gather", "push", "all-gather", "reduce-scatter", "meeting", "overhead", "optimizer", "publish")
RATES = {name: page.EMULATED[name] for name in ("forward", "backward", "head")}
COST = {}
for each in stages.STAGES:
    profile = Profile(each.model, "", "calibrated", "", **RATES)
    COST[each] = Cost(catalog.model(each.model), profile, Cluster(each.devices, each.devices, 1.0, 1.0, each.devices))
FIRST = stages.STAGES[0]
SHOWN = ("schedules", "median", "p90", "worst")


def case(predicted: float, measured: tuple[float, ...], **changes) -> agreement.Case:
    """What one held-out schedule came to, as validate.py notes it."""
    usual = ("real", "swe", 0, "collective", "native", predicted, measured, measured)
    return replace(agreement.Case(*usual, 0.5, "push", {"a term": 2 * predicted}, "a test"), **changes)


def timed(cost: Cost, kinds: tuple[str, ...] = KINDS, *more: float) -> Cost:
    """With a millisecond for each of these."""
    return replace(cost, profile=replace(cost.profile, timings=tuple(Timing(kind, 2, 1e-3, *more) for kind in kinds)))


def test_at_least_forty_schedules_of_every_sync_balancer_and_distribution():
    lengths = {*stages.TRACES, "one long among short", "all alike", "fewer than devices"}
    for stage, cost in COST.items():
        mine = {sync: stages.planned(stage, cost, sync)[1] for sync in stage.syncs}
        assert sum(map(len, mine.values())) >= (40 if stage.recompute else 10)
        assert {key[0] for keys in mine.values() for key in keys} == lengths
        for sync, keys in mine.items():
            wanted = {b for b in stage.balancers if balance.runs_with(b, sync)}
            wanted &= set(stages.DEFERRED) if sync == "deferred" else wanted
            assert {key[2] for key in keys} == wanted
    assert {(s.recompute, s.emulate) for s in stages.STAGES} == {(True, False), (False, False), (True, True)}
    assert all(set(s.syncs) == {"collective", "deferred", "on-demand"} for s in stages.STAGES if s.recompute)


def test_what_the_page_says_first_is_in_its_tables():
    text = page.PAGE.read_text(encoding="utf-8")
    said = " ".join(text.partition("\n- **")[2].partition("\n![")[0].split())
    head = re.search(r"^\| stage \| (.*) \|$", text, re.MULTILINE)[1].split(" | ")
    for stage, named in (("real", (*SHOWN, "noise median")), ("real, without recompute", SHOWN)):
        row = re.search(rf"^\| {stage} \| (\d.*) \|$", text, re.MULTILINE)[1].split(" | ")
        row = dict(zip(head, row, strict=True))
        assert [name for name in named if row[name].replace("%", " %") not in said] == [], stage
    every = page.appendix(page.PAGE).read_text(encoding="utf-8").partition("### Every schedule")[2]
    count = sum(line.count("|") == 11 for line in every.splitlines()) - 2
    assert f"{count} schedules that no profile had seen" in " ".join(text.split())


def few(stage: stages.Stage, cost: Cost) -> page.ScheduleFile:
    file = stages.planned(stage, cost, "collective")[0]
    return replace(file, schedules=file.schedules[::4]).sealed()


def test_every_term_left_out_changes_a_prediction(monkeypatch):
    cost = timed(replace(COST[FIRST], cluster=replace(COST[FIRST].cluster, swing=0.1)), KINDS, 1e-9, 2.0)
    forward = replace(page.EMULATED["forward"], sample=1e-4)
    cost = replace(cost, profile=replace(cost.profile, forward=forward))
    file = few(FIRST, cost)
    monkeypatch.setattr(guess, "DRAWS", 2)
    whole = guess.guess(cost, file, "collective").makespan
    for name, other in guess.without(cost).items():
        assert not np.allclose(guess.guess(other, file, "collective").makespan, whole, rtol=1e-4), name


def test_a_machine_that_swings_is_guessed_at_by_the_middle_of_its_draws():
    calm = timed(COST[FIRST], KINDS[:4])
    file = few(FIRST, calm)
    swinging = replace(calm, cluster=replace(calm.cluster, swing=0.1))
    one, other = (guess.guess(cost, file, "collective") for cost in (calm, swinging))
    assert other.makespan.mean() > one.makespan.mean()  # who waits, waits for the slower one
    assert other.idle.mean() > one.idle.mean()
    np.testing.assert_allclose(other.makespan, one.makespan, rtol=0.2)


@pytest.mark.parametrize(("stage", "sync"), [(FIRST, "on-demand"), (stages.STAGES[1], "collective")])
def test_what_is_made_to_be_measured_stands_between_the_rest(stage, sync):
    file = stages.planned(stage, COST[stage], sync)[0]
    whole, own = stages.with_others(stage, file), len(file.schedules)
    assert whole.schedules[:own] == file.schedules
    total = len(whole.schedules)
    assert (total > own) is not stage.emulate
    every = [order(own, total, seed) for seed in range(3)]
    for places in every:
        assert sorted(places) == list(range(total))
        others = [i for i, n in enumerate(places) if n >= own]
        assert np.diff([-1, *others, total]).max() <= 5 or stage.emulate
    assert every[0] != every[1] != every[2]


def drifting(speeds, own=12, others=6, runs=5):
    """Minibatches in runs at speeds that follow from place and run; and where each stood."""
    rng = np.random.default_rng(1)
    usual = rng.uniform(0.5, 2.0, own + others)
    ways = [order(own, own + others, run) for run in range(runs)]
    spans = np.array([usual * speeds(run, np.argsort(way)) for run, way in enumerate(ways)])
    return usual[:own], spans, ways


def test_drift_from_run_to_run_is_taken_out_to_the_last_digit_and_half_of_that_within_a_run():
    """The machine's mean speed stays: predictions are for it, too."""
    usual, spans, ways = drifting(lambda run, places: (1.0, 1.4, 0.8, 1.1, 0.9)[run] + 0 * places)
    assert np.ptp(page.steady(spans, ways, len(usual)) / usual) < 1e-12
    assert np.ptp(spans[:, : len(usual)] / usual) > 0.5
    usual, spans, ways = drifting(lambda run, places: 1 + 0.02 * (run - 2) * (places - 17.5), 24, 12)
    left, was = (np.abs(s[:, :24] / usual - 1).mean() for s in (page.steady(spans, ways, 24), spans))
    assert left < was / 2
    usual, spans, ways = drifting(lambda run, places: 1.3 + 0 * run * places)
    assert page.steady(spans, ways, len(usual)) == pytest.approx(spans[:, : len(usual)])
    assert page.steady(spans, ways, spans.shape[1]) is spans


def test_a_run_in_another_order_is_put_back_into_the_files():
    cost = COST[FIRST]
    file = stages.planned(FIRST, cost, "on-demand")[0]
    places = order(len(file.schedules), len(file.schedules), 3)
    mixed = page.ScheduleFile(file.header, tuple(file.schedules[n] for n in places)).sealed()
    line, plain = (page.simulate(f, cost.by(sync="on-demand")) for f in (mixed, file))
    back = page.restored(line, places, file.header.digest)
    assert (page.usage(back).makespan != page.usage(line).makespan).any()
    assert page.validate(plain, [back]).makespan.worst == 0
    assert np.array_equal([back.samples, back.tokens], [plain.samples, plain.tokens])


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
    kept = replace(before, compute=(*before.compute, replace(old.compute[0], kind="forward", alone=False)))
    found = page.renewed(kept, [rows(2.0, computing=True)])  # what those runs do not have stays
    assert [(row.kind, row.seconds) for row in found.compute if not row.alone] == [("forward", 1.0), ("head", 2.0)]


def ran(cost: Cost, file: page.ScheduleFile, sync: str) -> page.Timeline:
    line = page.simulate(file, cost.by(sync=sync))
    return replace(line, about=replace(line.about, executor="engine", emulated=False))


@pytest.mark.parametrize("stage", stages.STAGES[:2], ids=lambda stage: stage.name)
def test_what_held_out_minibatches_take_changes_no_prediction(stage, tmp_path, monkeypatch):
    stage = replace(stage, repeats=1, balancers=stages.KEPT_BY)
    usual = timed(COST[FIRST])
    seconds = page.under(usual.profile, usual.model, stage.recompute)
    recompute = "full" if stage.recompute else "none"
    cost = replace(usual, profile=seconds, recipe=replace(usual.recipe, recompute=recompute))
    plans = {sync: stages.planned(stage, cost, sync) for sync in stage.syncs}
    files = {sync: stages.with_others(stage, file) for sync, (file, _) in plans.items()}

    def rows(by: Cost, file: page.ScheduleFile, sync: str) -> page.recorded.Rows:
        return page.recorded.rows(ran(by, file, sync), file.schedules, by.model, "float32")

    before = page.Measurements(cost.model.name, "cpu", rows(usual, files["collective"], "collective").compute)
    known = page.renewed(before, [rows(cost, file, sync) for sync, file in files.items()])
    factor = 1.0

    def run(file, job, path, quiet):
        assert quiet
        assert job.recipe.recomputes == stage.recompute
        line = ran(cost, file, job.recipe.sync)
        held = [n for n, s in enumerate(file.schedules) if s in plans[job.recipe.sync][0].schedules]
        blocks = []
        for block in line.blocks:
            times = np.where(np.isin(block.minibatches, held), factor, 1.0)[None, :, None]
            blocks.append(replace(block, asked=block.asked * times, had=block.had * times))
        page.timeline.write(replace(line, blocks=tuple(blocks)), path)
        return 0

    monkeypatch.setattr(page, "run", run)
    monkeypatch.setattr(page, "planned", lambda _, __, sync: plans[sync])
    monkeypatch.setattr(page, "without", lambda _: {})
    found = [page.held(stage, known, tmp_path)]
    factor = 3.0
    found.append(page.held(stage, known, tmp_path))
    for one, other in zip(*found, strict=True):
        assert one.predicted == other.predicted
        assert other.truth == pytest.approx(3 * one.truth)
    assert max(abs(case.error) for case in found[0]) < 0.02


def test_cases_of_other_stages_are_kept_and_each_stage_leaves_its_own(tmp_path, monkeypatch):
    seconds = 1.0

    def held(stage, *_):
        if stage == stages.STAGES[-1] and seconds > 2:
            raise KeyboardInterrupt
        return [case(seconds, (1.0, 1.1), stage=stage.name)]

    def main(*args: str) -> dict[str, float]:
        words = ["validate.py", "--keep", str(tmp_path / "k"), "-o", str(tmp_path / "p.md"), *args]
        monkeypatch.setattr(sys, "argv", words)
        with contextlib.suppress(KeyboardInterrupt):
            page.main()
        return {c["stage"]: c["predicted"] for c in page.json.loads((tmp_path / "k" / "cases.json").read_text())}

    monkeypatch.setattr(page, "measured", lambda *_: None)
    monkeypatch.setattr(page, "held", held)
    names = [stage.name for stage in stages.STAGES]
    assert main() == dict.fromkeys(names, 1.0)
    for shown in ("p.md", "p-runs.md"):
        assert all(name in (tmp_path / shown).read_text() for name in names)
    seconds = 2.0
    assert main("--stages", "without") == dict.fromkeys(names, 1.0) | {"real, without recompute": 2.0}
    seconds = 3.0
    assert main("--stages", "check") == {names[0]: 1.0, names[1]: 2.0, names[2]: 3.0}


def test_errors_are_against_the_middle_run_and_noise_is_between_runs():
    """Of one run nobody knows the noise, and nothing is told apart."""
    one = case(1.1, (1.0, 0.9, 1.4))
    assert (one.error, one.noise) == pytest.approx((0.1, 0.4))
    assert agreement.errors([one, case(0.8, (1.0, 1.0, 1.0))])[:5] == ["2", "-5.0%", "15.0%", "19.0%", "20.0%"]
    one, other = case(1.1, (1.0,)), case(2.0, (2.0,), balancer="lb-micro")
    assert (one.noise, agreement.row(one)[7], agreement.ordered([one, other])[0]) == (None, "not known", 0)
    assert agreement.errors([one, other])[5:7] == ["not known", "not known"]
    assert agreement.errors([one, case(1.0, (1.0, 1.1))])[5:7] == ["9.5%", "9.5%"]


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
    one = [case(1.0, (1.0, 1.1), draw=draw) for draw in (0, 1)]
    other = [case(2.0, (2.0, 2.1), draw=draw, balancer="lb-micro") for draw in (0, 1)]
    assert agreement.ordered([*one, *other])[0] == 1
    once = case(2.0, (2.0,), draw=1, balancer="lb-micro")
    for unequally_often in ([*one, other[0]], [*one, other[0], once]):
        assert agreement.ordered(unequally_often)[0] == 0


def test_cases_of_another_version_are_refused_in_a_line(tmp_path):
    path = tmp_path / "cases.json"
    assert agreement.kept(path) == []
    now = asdict(case(1.0, (1.0,)))
    path.write_text(json.dumps([now]))
    assert [found.stage for found in agreement.kept(path)] == ["real"]
    for text in (json.dumps([now | {"host": "x"}]), json.dumps([{"stage": "real"}]), "[{"):
        path.write_text(text)
        with pytest.raises(SystemExit, match=r"cases\.json"):
            agreement.kept(path)
