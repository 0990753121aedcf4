"""Errors are what they are called: nothing for the truth itself, the factor for seconds stretched by it."""

import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import ROOT

from odcsim.cluster import Cluster
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors.simulation import Simulation, simulate
from odcsim.program import SYNCS
from odcsim.recipe import CHOICES
from odcsim.results import validation
from odcsim.results.metrics import PARTS, usage
from odcsim.results.traits import KINDS
from odcsim.results.validation import validate
from odcsim.show.pages import validation_page
from odcsim.timeline import Block, Timeline


def stretched(line: Timeline, factor: float) -> Timeline:
    """All times, factor times as long."""
    blocks = tuple(replace(b, asked=factor * b.asked, had=factor * b.had) for b in line.blocks)
    return replace(line, blocks=blocks)


def said(line: Timeline, **changes: object) -> Timeline:
    """It says otherwise of itself: of its recipe, or of the rest."""
    chosen = {name: changes.pop(name) for name in CHOICES if name in changes}
    recipe = line.about.recipe.by(**chosen)
    return replace(line, about=replace(line.about, recipe=recipe, **changes))


def run_on(setting, cluster: Cluster, sync: str, seed: int = 0) -> Timeline:
    balancer = "lb-mini" if sync == "on-demand" else "lb-micro"
    how = Simulation(replace(setting.cost, cluster=cluster), sync, "des", seed=seed)
    return simulate(plan(setting, balancer), how)


@pytest.fixture(scope="module")
def noisy(setting):
    """Runs that differ by jitter alone."""
    cluster = replace(setting.cost.cluster, jitter=0.2)
    return [run_on(setting, cluster, "on-demand", seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("sync", SYNCS)
def test_a_prediction_of_itself_has_no_errors(setting, sync):
    line = run_on(setting, replace(setting.cost.cluster, devices_per_node=2, nics_per_node=2), sync)
    found = validate(line, [line, line])
    assert (found.makespan.worst, found.finish.worst, found.idle_error, found.noise.worst) == (0, 0, 0, 0)
    assert {kind.error for kind in found.kinds} == {0.0}
    assert {m.error for m in found.minibatches} == {0.0}


@given(st.floats(0.2, 5))
def test_stretched_seconds_are_off_by_the_factor_and_idle_is_not_off(timeline, factor):
    found = validate(stretched(timeline, factor), [timeline])
    for value in (found.makespan.mean, found.makespan_total, *(k.error for k in found.kinds)):
        assert value == pytest.approx(factor - 1, abs=1e-9)
    for value in (found.makespan.median, found.makespan.p90, found.makespan.worst):
        assert value == pytest.approx(abs(factor - 1), abs=1e-9)
    assert found.idle_error == pytest.approx(0, abs=1e-9)


def test_the_four_errors_of_many_values():
    found = validation._errors(np.array([-0.4, 0.1, 0.1, -0.1, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3]))
    assert (found.mean, found.median, found.p90, found.worst) == pytest.approx((0.2 / 11, 0.1, 0.3, 0.4))


def test_the_sign_says_whether_the_prediction_is_too_long(timeline):
    longer, shorter = (validate(stretched(timeline, f), [timeline]) for f in (1.1, 0.9))
    assert longer.makespan.mean == pytest.approx(0.1)
    assert shorter.makespan.mean == pytest.approx(-0.1)
    assert min(longer.makespan.worst, shorter.makespan.worst) > 0


@pytest.mark.parametrize("sync", SYNCS)
def test_seconds_by_kind_leave_waiting_out_and_hold_every_transfer(setting, sync):
    """Compute by kind is the compute of metrics; a transfer takes what its row of durations says, meeting or not."""
    cluster = replace(setting.cost.cluster, devices_per_node=2, nics_per_node=2)
    line = run_on(setting, cluster, sync)
    found = {k.kind: k.measured_seconds for k in validate(line, [line]).kinds}
    assert sum(found.get(k, 0) for k in ("embed", "forward", "head", "backward")) == pytest.approx(
        usage(line).compute.sum()
    )
    cost = replace(setting.cost, cluster=cluster)
    file = plan(setting, line.about.balancer)
    wanted = 0.0
    for block in line.blocks:
        load = cost.load([file.schedules[n] for n in block.minibatches])
        table = cost.durations(block.program, load)
        wanted += sum(table[s.duration].sum() for s in block.program.steps if s.kind == "gather")
    assert found["gather"] == pytest.approx(wanted)


def test_every_compute_and_transfer_has_a_kind():
    from odcsim.program import program

    timed = {what.split()[0] for sync in SYNCS for what, _ in program(2, 2, sync).durations}
    assert timed == set(KINDS)


def test_noise_is_the_error_of_one_run_as_the_prediction_of_another(noisy):
    found = validate(noisy[0], noisy[1:])
    one, other = (usage(run).makespan for run in noisy[1:])
    errors = np.abs(np.concatenate([one / other - 1, other / one - 1]))
    assert found.noise.worst == pytest.approx(errors.max())
    assert found.noise.median == pytest.approx(np.median(errors))
    assert validate(noisy[0], noisy[1:2]).noise is None
    # Runs that differ by noise alone predict each other as badly as the noise says, give or take what few runs can.
    assert 0.2 < found.makespan.median / found.noise.median < 5


def test_the_middle_run_is_the_truth(timeline):
    runs = [stretched(timeline, f) for f in (0.5, 1.0, 30.0)]
    assert validate(timeline, runs).makespan.worst == 0


def test_idle_errors_add_up_to_the_error_of_idle(setting, noisy):
    calm = run_on(setting, setting.cost.cluster, "on-demand")
    found = validate(calm, noisy)
    content = found.as_json()
    assert found.idle_error < 0  # jitter makes devices wait
    assert sum(content["idle_parts_error_points"].values()) == pytest.approx(found.idle_error)
    assert content["idle_error_points"] == abs(content["idle_error_points_signed"]) > 0
    assert set(content["idle_parts_error_points"]) == set(PARTS)


def test_finish_times_are_those_before_the_meeting_at_the_end(timeline):
    """One device later by 10 % of the makespan, which the meeting hides from all other devices' ends."""
    block = timeline.blocks[0]
    end = next(i for i, s in enumerate(block.program.steps) if s.kind == "meeting")
    asked = block.asked.copy()
    late = int(np.argmin(asked[end, 0]))
    asked[end, 0, late] += 0.1 * usage(timeline).makespan[block.minibatches[0]]
    moved = replace(timeline, blocks=(replace(block, asked=asked), *timeline.blocks[1:]))
    found = validate(moved, [timeline])
    assert found.finish.worst == pytest.approx(0.1)
    assert found.minibatches[block.minibatches[0]].finish_error == pytest.approx(0.1)


def longer_minibatch(line: Timeline, number: int, factor: float) -> Timeline:
    block, place = line.block_of(number)

    def change(times):
        times = times.copy()
        times[:, place] *= factor
        return times

    return replace(
        line,
        blocks=tuple(
            Block(b.program, b.minibatches, b.counts, change(b.asked), change(b.had)) if b is block else b
            for b in line.blocks
        ),
    )


def test_the_worst_minibatch_is_named_with_its_cause(timeline):
    found = validate(longer_minibatch(timeline, 4, 1.2), [timeline])
    worst = found.worst(1)[0]
    assert (worst.minibatch, worst.furthest) == (4, "backward")
    assert worst.error == pytest.approx(0.2)
    assert found.makespan.worst == pytest.approx(0.2)
    assert found.makespan.median == 0
    assert validation_page.worst(found)[0][0] == "4"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"digest": "0123"}, "schedule digest 0123 is not the prediction's"),
        ({"sync": "collective"}, "sync collective is not the prediction's on-demand; predict with --sync collective"),
        ({"devices": 8}, "devices 8 is not the prediction's 4"),
        ({"prefetch": "none"}, "prefetch none is not the prediction's fsdp2"),
    ],
)
def test_what_is_not_the_same_run_is_refused(timeline, changes, problem):
    with pytest.raises(InputError, match=f"^measured timeline: {problem}"):
        validate(timeline, [said(timeline, **changes)])


def test_other_odd_pairs_are_refused(timeline):
    real = said(timeline, executor="engine", emulated=False)
    with pytest.raises(InputError, match="swap the two files"):
        validate(real, [timeline])
    with pytest.raises(InputError, match="nothing measured"):
        validate(timeline, [])
    with pytest.raises(InputError, match=r"^measured timeline 2: schedule digest"):
        validate(timeline, [timeline, said(timeline, digest="x")])
    with pytest.raises(InputError, match="runs differ in hardware: a100 and other; give repeats"):
        validate(timeline, [timeline, said(timeline, hardware="other")])
    with pytest.raises(InputError, match="other samples"):
        validate(timeline, [replace(timeline, samples=timeline.samples + 1)])
    with pytest.raises(InputError, match="a minibatch takes no time"):
        validate(stretched(timeline, 0.0), [timeline])


def test_emulated_minibatches_of_milliseconds_are_refused(timeline):
    quick = stretched(timeline, 1e-4)
    with pytest.raises(InputError, match=r"an emulated minibatch takes .* ms, under 5"):
        validate(quick, [said(quick, executor="engine")])
    assert validate(quick, [said(quick, executor="engine", emulated=False)]).makespan.worst == 0


def test_cautions_say_what_the_errors_do_not(timeline):
    emulated, real = said(timeline, executor="engine"), said(timeline, executor="engine", emulated=False)
    both = " ".join(validation_page.cautions(validate(timeline, [timeline])))
    assert "simulated" in both
    assert "One run only" in both
    assert "Executor check" in validation_page.cautions(validate(timeline, [emulated, emulated]))[0]
    assert validation_page.cautions(validate(timeline, [real, real])) == []
    beyond = said(timeline, fidelity="extrapolated")
    assert "extrapolated" in validation_page.cautions(validate(beyond, [real, real]))[0]
    assert validate(timeline, [emulated]).as_json()["executor_check"] is True
    assert validate(timeline, [real]).as_json()["executor_check"] is False


def test_json_holds_every_error(timeline, noisy):
    found = validate(noisy[0], noisy[1:])
    content = json.loads(json.dumps(found.as_json(), allow_nan=False))
    for part in ("mean", "median", "p90", "worst"):
        assert content[f"makespan_error_{part}"] == getattr(found.makespan, part)
    assert content["noise_worst"] == found.noise.worst
    assert len(content["minibatches"]) == len(timeline.samples)
    assert {k["kind"] for k in content["kinds"]} >= {"embed", "forward", "backward"}
    assert {f.name for f in fields(validation.MinibatchErrors)} == set(content["minibatches"][0])
    assert (content["digest"], content["sync"], content["devices"]) == (timeline.about.digest, "on-demand", 4)


def test_the_page_shows_every_minibatch_and_fetches_nothing(noisy, tmp_path):
    path = tmp_path / "v.html"
    found = validate(noisy[0], noisy[1:])
    validation_page.write_validation(found, path)
    page = path.read_text()
    assert "Predicted against measured" in page
    assert f"{found.makespan.median:.1%}" in page
    assert f"schedule {found.measured.digest}" in page
    assert "<script src" not in page
    assert [p.name for p in tmp_path.iterdir()] == ["v.html"]


def test_the_contract_lists_every_key(timeline):
    contract = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", contract.partition("## JSON")[2]))
    assert set(validate(timeline, [timeline]).as_json()) <= listed
