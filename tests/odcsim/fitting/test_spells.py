"""Devices whose speed swings: what des makes of it, and how it is found again in what was timed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import ONCE, cases, one_node

from odcsim import catalog
from odcsim.cost import Cost
from odcsim.executors import analytic, des
from odcsim.executors.des import _Speed
from odcsim.executors.simulation import Simulation, simulate
from odcsim.fitting import recorded
from odcsim.fitting.measurements import Compute
from odcsim.fitting.spells import Swing, slow, swing
from odcsim.profile import Polynomial, Profile
from odcsim.program import program
from odcsim.schedule import Header, Schedule, ScheduleFile

TINY = catalog.model("tiny")
PROFILE = Profile(TINY.name, "m", "calibrated", "", Polynomial(2e-2), Polynomial(6e-2), Polynomial(4e-2))


def speed(seed: int, size: float = 0.3, spell: float = 1.0) -> _Speed:
    return _Speed(size, spell, np.random.default_rng(seed))


@given(st.integers(0, 99), st.floats(0, 20), st.lists(st.floats(1e-3, 5), min_size=1, max_size=8))
def test_work_takes_as_long_in_parts_as_at_once(seed, start, parts):
    now, device = start, speed(seed)
    for work in parts:
        now += device.seconds(now, work)
    assert now - start == pytest.approx(speed(seed).seconds(start, sum(parts)))


@given(st.integers(0, 99), st.floats(0, 20), st.floats(0, 5), st.floats(1e-3, 5))
def test_who_begins_earlier_ends_no_later(seed, start, later, work):
    one, other = speed(seed), speed(seed)
    late = start + later
    assert start + one.seconds(start, work) <= late + other.seconds(late, work) + 1e-9


@pytest.mark.parametrize("work", [0.01, 1.0, 10.0])
def test_on_average_work_takes_as_long_as_planned(work):
    """However long the spells: of a short minibatch as of a long one."""
    assert np.mean([speed(seed).seconds(0.0, work) for seed in range(4000)]) == pytest.approx(work, rel=0.015)


@pytest.mark.parametrize(("size", "work"), [(0.1, 1e-3), (0.3, 1e-3)])
def test_speed_has_its_size(size, work):
    device, speeds = speed(1, size), []
    for start in range(0, 40_000, 10):  # ten spells between two looks
        speeds.append(work / device.seconds(float(start), work))
    assert np.mean(speeds) == pytest.approx(1, abs=0.02)
    assert np.std(speeds) == pytest.approx(size, rel=0.1)


def times(case, size: float, seeds=()) -> np.ndarray:
    cluster = one_node(case.counts.shape[1], swing=size, spell=2.0)
    return np.array(des.run(case.program, case.durations, cluster, [np.random.default_rng(s) for s in seeds]))


@given(cases(syncs=("collective",), microbatches=(1, 2)), st.integers(0, 99))
def test_all_syncs_meet_the_same_spells_and_on_demand_is_never_slower(case, seed):
    free, seeds = case.without(*ONCE), [seed + b for b in range(case.counts.shape[0])]
    ends = [times(free.under(sync), 0.3, seeds)[1].max(axis=(0, 2)) for sync in ("collective", "deferred", "on-demand")]
    assert (ends[1] <= ends[0] * (1 + 1e-9)).all()
    assert (ends[2] <= ends[0] * (1 + 1e-9)).all()


@given(cases(microbatches=(1, 2)))
def test_no_swing_or_no_seed_is_the_scan_and_transfers_keep_their_seconds(case):
    calm = np.array(analytic.run(case.program, case.durations))
    seeds = range(case.counts.shape[0])
    assert np.array_equal(times(case, 0.0, seeds), calm)
    assert np.array_equal(times(case, 0.3), calm)
    asked, had = times(case, 0.3, seeds)
    for i, step in enumerate(case.program.steps):
        if step.kind in ("gather", "push") and not step.meets:
            np.testing.assert_allclose((had - asked)[i], case.durations[step.duration], atol=1e-9)


def test_a_device_waits_for_the_slower_of_two():
    """What a mean does not show: two alike devices are never both as quick as on average."""
    steps = program(2, 1, "on-demand")
    table = np.full((len(steps.durations), 200, 2), 0.0)
    table[[row for row, (what, _) in enumerate(steps.durations) if what == "forward"]] = 1.0
    rngs = [np.random.default_rng(s) for s in range(200)]
    had = des.run(steps, table, one_node(2, swing=0.2, spell=100.0), rngs)[1]
    means = had.max(axis=(0, 2)).mean(), analytic.run(steps, table)[1].max()
    assert means[0] == pytest.approx(means[1] * (1 + 0.2 / np.sqrt(np.pi)), rel=0.025)


def run_of(count: int, **machine) -> tuple[Compute, ...]:
    schedule = Schedule((100,) * 8, (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,))))
    file = ScheduleFile(Header("native", TINY.name, "a test", 1000, 2, 0), (schedule,) * count)
    line = simulate(file, Simulation(Cost(TINY, PROFILE, one_node(2, **machine)), "on-demand", seed=3))
    line = replace(line, about=replace(line.about, executor="engine", emulated=False))
    return recorded.rows(line, file.schedules, TINY, "float32").compute


@pytest.mark.parametrize(("size", "spell", "jitter"), [(0.1, 0.5, 0.0), (0.1, 0.5, 0.1), (0.2, 1.0, 0.05)])
def test_swings_are_found_again(size, spell, jitter):
    found = swing(run_of(120, swing=size, spell=spell, jitter=jitter))
    assert found.size == pytest.approx(size, rel=0.2)
    assert found.spell == pytest.approx(spell, rel=0.5)


def test_where_steps_vary_alone_nothing_swings():
    assert swing(run_of(100, jitter=0.1)).size < 0.025
    assert swing(run_of(100)) == Swing()


def test_a_few_calls_or_one_device_tell_nothing():
    rows = run_of(100, swing=0.2)
    assert swing(rows).size > 0.1
    assert swing(rows[:20]) == Swing()
    assert swing([row for row in rows if row.device == 0]) == Swing()
    assert swing([replace(row, minibatch=0) for row in rows]) == Swing()


@pytest.mark.parametrize("slowed", [((1, 1.2),), ((0, 1.5),)], ids=str)
def test_a_device_that_is_slow_throughout_does_not_swing(slowed):
    assert swing(run_of(100, slow=slowed)) == Swing()
    assert swing(run_of(100, slow=slowed, jitter=0.1)).size < 0.025
    found = swing(run_of(120, slow=slowed, swing=0.1, spell=0.5, jitter=0.05))
    assert found.size == pytest.approx(0.1, rel=0.2)
    assert found.spell == pytest.approx(0.5, rel=0.5)


def test_a_slow_device_is_found_again_and_so_is_one_that_had_other_work():
    rows = run_of(60, slow=((1, 1.2),), swing=0.1, spell=0.5, jitter=0.05)
    assert slow(rows) == pytest.approx((1 / 1.1, 1.2 / 1.1), rel=0.02)
    few = [row for row in rows if row.device == 0 or row.minibatch % 3]
    kept = [row for row in few if row.kind != "backward" or row.device == 1]
    assert slow(kept) == pytest.approx((1 / 1.1, 1.2 / 1.1), rel=0.02)


def test_devices_that_are_alike_or_slow_in_turn_have_no_speeds_of_their_own():
    assert slow(run_of(60, swing=0.1, spell=0.5, jitter=0.1)) == ()
    one, other = run_of(30, slow=((1, 1.3),)), run_of(30, slow=((0, 1.1),))
    assert slow([*one, *(replace(row, minibatch=row.minibatch + 30) for row in other)]) == ()
    rows = run_of(60, slow=((1, 1.2),))
    assert slow([row for row in rows if row.minibatch < 16]) == ()
    assert slow([row for row in rows if row.device == 1]) == ()
    assert slow([replace(row, minibatch=0) for row in rows]) == ()
    assert slow([]) == ()
