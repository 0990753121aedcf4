"""Devices whose speed swings: what des makes of it, and how it is found again in what was timed, and who is slow."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import ONCE, cases, one_node

from odc_engine.measuring import recorded
from odcsim import catalog
from odcsim.cost import Cost
from odcsim.executors import analytic, des
from odcsim.executors.des import _Speed
from odcsim.executors.simulation import simulate
from odcsim.fitting.spells import Swing, slow, swing
from odcsim.measurements import Compute
from odcsim.profile import Polynomial, Profile
from odcsim.program import program
from odcsim.schedule import Header, Schedule, ScheduleFile

TINY = catalog.model("tiny")
PROFILE = Profile(TINY.name, "m", "calibrated", "", Polynomial(2e-2), Polynomial(6e-2), Polynomial(4e-2))
PACES = 1 / 1.1, 1.2 / 1.1  # of two devices of which the second takes 1.2 times as long


def speed(seed: int, size: float = 0.3, spell: float = 1.0) -> _Speed:
    return _Speed(size, spell, np.random.default_rng(seed))


@given(st.integers(0, 99), st.floats(0, 20), st.lists(st.floats(1e-3, 5), min_size=1, max_size=8), st.floats(0, 5))
def test_work_takes_as_long_in_parts_and_ends_no_earlier_where_it_begins_later(seed, start, parts, later):
    now, device = start, speed(seed)
    for work in parts:
        now += device.seconds(now, work)
    assert now - start == pytest.approx(speed(seed).seconds(start, sum(parts)))
    assert now <= start + later + speed(seed).seconds(start + later, sum(parts)) + 1e-9


def test_on_average_work_takes_as_long_as_planned():
    """However long the spells, of a short minibatch as of a long one; and speed has its size."""
    for work in (0.01, 1.0, 10.0):
        assert np.mean([speed(seed).seconds(0.0, work) for seed in range(4000)]) == pytest.approx(work, rel=0.015)
    for size in (0.1, 0.3):
        device = speed(1, size)
        speeds = [1e-3 / device.seconds(float(start), 1e-3) for start in range(0, 40_000, 10)]
        assert np.mean(speeds) == pytest.approx(1, abs=0.02)
        assert np.std(speeds) == pytest.approx(size, rel=0.1)


def times(case, size: float, seeds=()) -> np.ndarray:
    cluster = one_node(case.counts.shape[1], swing=size, spell=2.0)
    return np.array(des.run(case.program, case.durations, cluster, [np.random.default_rng(s) for s in seeds])[:2])


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
    """What two devices with four equal microbatches each are timed at, in so many minibatches."""
    schedule = Schedule.of((100,) * 8, (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,))))
    file = ScheduleFile(Header("native", TINY.name, "a test", 1000, 2, 0), (schedule,) * count)
    line = simulate(file, Cost(TINY, PROFILE, one_node(2, **machine)).by(sync="on-demand"), seed=3)
    line = replace(line, about=replace(line.about, executor="engine", emulated=False))
    return recorded.rows(line, file.schedules, TINY, "float32").compute


MACHINES = [
    (0.1, 0.5, {}), (0.1, 0.5, {"jitter": 0.1}), (0.2, 1.0, {"jitter": 0.05}),
    (0.1, 0.5, {"jitter": 0.05, "slow": ((1, 1.2),)}), (0.1, 0.5, {"jitter": 0.05, "slow": ((0, 1.5),)}),
    (0, 0, {}), (0, 0, {"slow": ((1, 1.2),)}), (0, None, {"jitter": 0.1}),
    (0, None, {"jitter": 0.1, "slow": ((0, 1.5),)}),
]  # fmt: skip


@pytest.mark.parametrize(("size", "spell", "others"), MACHINES)
def test_swings_are_found_again_and_nothing_else_is_one(size, spell, others):
    """Nor do a few calls or one device tell of any."""
    rows = run_of(120, **others, **({"swing": size, "spell": spell} if size else {}))
    found = swing(rows)
    assert found.size == pytest.approx(size, rel=0.2, abs=0.025 if spell is None else 0)
    assert spell is None or found.spell == pytest.approx(spell, rel=0.5)
    assert spell != 0 or found == Swing()
    for some in (rows[:20], [r for r in rows if r.device == 0], [replace(r, minibatch=0) for r in rows]):
        assert swing(some) == Swing()


def test_a_slow_device_is_found_again_and_so_is_one_that_had_other_work():
    rows = run_of(60, slow=((1, 1.2),), swing=0.1, spell=0.5, jitter=0.05)
    assert slow(rows) == pytest.approx(PACES, rel=0.02)
    few = [row for row in rows if row.device == 0 or row.minibatch % 3]
    kept = [row for row in few if row.kind != "backward" or row.device == 1]
    assert slow(kept) == pytest.approx(PACES, rel=0.02)


def test_devices_without_speeds_of_their_own():
    rows = run_of(60, slow=((1, 1.2),))
    later = [replace(row, minibatch=row.minibatch + 30) for row in run_of(30, slow=((0, 1.1),))]
    assert slow([]) == ()
    for alike in (
        run_of(60, swing=0.1, spell=0.5, jitter=0.1),
        [*run_of(30, slow=((1, 1.3),)), *later],  # slow in turn
        [row for row in rows if row.minibatch < 16],  # few
        [row for row in rows if row.device == 1],
        [replace(row, minibatch=0) for row in rows],
        [replace(row, tokens=row.tokens + 9) if row.device == 1 else row for row in rows],  # no shared work
    ):
        assert slow(alike) == ()


def drawn(seed, devices, minibatches, size, spell, *, slowed=1.0, calls=4, once=0.0):
    """Every call is late by its spell and by noise, and on the last device by `slowed`. `once`: share of work that
    nobody had before."""
    rng = np.random.default_rng(seed)
    for device in range(devices):
        at = (np.arange(minibatches * calls) + 0.5) / calls
        ends = np.cumsum(rng.exponential(spell, 20 + int(2 * minibatches / spell)))
        late = rng.normal(0, size, len(ends) + 1)[np.searchsorted(ends, at)] + rng.normal(0, 0.03, len(at))
        tokens = np.where(rng.random(len(at)) < once, rng.integers(1 << 40, size=len(at)), 100 + np.arange(len(at)) % 3)
        seconds = tokens * np.exp(late) * (slowed if device == devices - 1 else 1.0)
        for n in range(len(at)):
            told = {"samples": 1, "minibatch": 1 + n // calls, "device": device, "at": at[n] % 1}
            yield Compute("forward", int(tokens[n]), 0.0, float(seconds[n]), **told)


def test_alike_devices_are_seldom_called_slow_and_a_slow_one_is():
    alike = [slow([*drawn(seed, 8, 60, 0.1, 3.0)]) for seed in range(16)]
    assert alike == [()] * 16  # 7 of them where minibatches count as independent
    found = [slow([*drawn(seed, 8, 60, 0.03, 3.0, slowed=1.1)]) for seed in range(10)]
    assert found.count(()) <= 1
    for factors in filter(None, found):
        assert factors[-1] / np.mean(factors[:-1]) == pytest.approx(1.1, abs=0.03)


def test_work_that_was_done_once_hides_neither_a_slow_device_nor_a_swing():
    """Logs of real lengths are mostly such work. Means of alike devices differ by chance, the more the longer spells
    are: taken out, they would be missing from the swing."""
    told = slow([*drawn(0, 2, 100, 0.03, 0.5, slowed=1.1, calls=8, once=0.6)])
    assert told == pytest.approx((1 / 1.05, 1.1 / 1.05), abs=0.015)
    assert slow([*drawn(0, 2, 100, 0.03, 0.5, calls=8, once=0.6)]) == ()
    assert swing([*drawn(0, 2, 100, 0.1, 0.5, calls=8, once=0.6)]).size == pytest.approx(0.1, rel=0.15)
    found = [swing([*drawn(seed, 2, 60, 0.1, 10.0)]).size for seed in range(6)]
    assert np.median(found) == pytest.approx(0.1, rel=0.2)
