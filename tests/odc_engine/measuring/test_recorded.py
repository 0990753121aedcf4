"""Measurements read off a timeline are the seconds that made it. Runs of a known machine, simulated, stand in."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, one_node

from odc_engine.measuring import recorded
from odcsim import catalog, measurements
from odcsim.cost import Cost, Load
from odcsim.errors import InputError
from odcsim.executors import analytic, des
from odcsim.executors.simulation import simulate
from odcsim.fitting.fit import examine, fit
from odcsim.measurements import Measurements
from odcsim.profile import Polynomial, Profile, Timing
from odcsim.program import COMPUTE, SHARDED, program
from odcsim.schedule import Header, Schedule, ScheduleFile
from odcsim.timeline import Block, Timeline

TINY = catalog.model("tiny")
DEVICES = 3
SYNCS = ("collective", "on-demand")
ONE_SIDED, MEETING = ("gather", "push"), ("all-gather", "reduce-scatter")
HELD = ((900,), (450,), (200,), (100,) * 9, (60,) * 8, (30,) * 16, (15,) * 10, (300, 150), (40,) * 3, (500, 20, 20))


def machine(*computes: Polynomial, overhead: float = 1e-3) -> Profile:
    """All of whose seconds can be told apart by what it did."""
    moved = (Timing(kind, DEVICES, 2e-5 * i, 1e-10 * i) for i, kind in enumerate((*ONE_SIDED, *MEETING), 1))
    once = (("meeting", 3e-5), ("overhead", overhead), ("optimizer", 2e-3), ("publish", 1e-3))
    timings = (*moved, *(Timing(kind, DEVICES, seconds) for kind, seconds in once))
    return Profile(TINY.name, "m", "calibrated", "", *computes, dtype="float32", timings=timings)


FORWARD, BACKWARD = Polynomial(2e-4, 4e-6, 1e-9, 3e-5), Polynomial(5e-4, 1.2e-5, 3.5e-9, 8e-5)
MACHINE = machine(FORWARD, BACKWARD, Polynomial(3e-4, 2e-5), Polynomial(5e-5, 1e-7))
positive = st.floats(1e-4, 1e-2), st.floats(1e-6, 1e-5)
terms = st.builds(Polynomial, *positive, st.floats(1e-9, 1e-8), st.floats(1e-5, 1e-3))
linear = st.builds(Polynomial, *positive)
machines = st.builds(machine, terms, terms, linear, linear, overhead=st.floats(1e-5, 1e-2))


def schedule(seed: int, even: bool, devices: int = DEVICES) -> Schedule:
    """Two microbatches on each device, or from none to three."""
    rng = np.random.default_rng(seed)
    lengths: list[int] = []
    found = []
    for d in range(devices):
        drawn = [HELD[rng.integers(len(HELD))] for _ in range(2 if even else (d + seed) % 4)]
        ends = len(lengths) + np.cumsum([0, *map(len, drawn)])
        found.append(tuple(tuple(range(*of)) for of in pairwise(ends.tolist())))
        lengths += [length for held in drawn for length in held]
    return Schedule.of(tuple(lengths), tuple(found))


def file_of(count: int, *, even: bool, devices: int = DEVICES) -> ScheduleFile:
    header = Header("native", TINY.name, "a test", 1000, devices, 0)
    return ScheduleFile(header, tuple(schedule(s, even, devices) for s in range(1, count + 1)))


EVEN, UNEVEN = file_of(12, even=True), file_of(12, even=False)


def run_of(file: ScheduleFile, profile: Profile, sync: str, *, emulated: bool = False, jitter: float = 0.0) -> Timeline:
    cost = Cost(TINY, profile, one_node(file.header.devices, jitter=jitter))
    line = simulate(file, cost.by(sync=sync), seed=1)
    return replace(line, about=replace(line.about, executor="engine", emulated=emulated))


def read(file: ScheduleFile, profile: Profile, sync: str, **how) -> recorded.Rows:
    return recorded.rows(run_of(file, profile, sync, **how), file.schedules, TINY, "float32")


def measured(rows: recorded.Rows) -> Measurements:
    return Measurements(TINY.name, "m", rows.compute, rows.transfers, rows.constants, dtype="float32")


def durations(profile: Profile, sync: str, file: ScheduleFile) -> np.ndarray:
    """Seconds of every row of every minibatch's program."""
    cost = Cost(TINY, profile, one_node(file.header.devices))
    programs = [program(TINY.layers, max(s.microbatches), sync) for s in file.schedules]
    every = zip(programs, file.schedules, strict=True)
    return np.concatenate([cost.durations(steps, Load.of(cost.model, [s])).ravel() for steps, s in every])


OWN = {"collective": {*MEETING}, "on-demand": {*ONE_SIDED, "meeting", "publish"}}


@pytest.mark.parametrize(("file", "sync"), [(EVEN, "collective"), (EVEN, "on-demand"), (UNEVEN, "on-demand")])
@settings(max_examples=12)
@given(machines)
def test_the_seconds_of_a_run_come_back(file, sync, known):
    """Each row of every program: compute, transfers, and what is once in a minibatch; only what ran is in it."""
    found = fit(measured(read(file, known, sync)))
    np.testing.assert_allclose(durations(found, sync, file), durations(known, sync, file), rtol=1e-6)
    assert {t.kind for t in found.timings} == OWN[sync] | {"settle", "overhead", "optimizer"}
    assert (found.longest, found.most_tokens) == (900, 900)


@pytest.mark.parametrize("sync", SYNCS)
def test_jitter_moves_them_no_further_than_it_is_large(sync):
    report = examine(measured(read(EVEN, MACHINE, sync, jitter=0.02)))
    assert report.good
    calm = durations(MACHINE, sync, EVEN)
    off = durations(report.profile, sync, EVEN)[calm > 0] / calm[calm > 0] - 1
    assert np.abs(off).max() < 0.02
    assert 0.002 < report.profile.jitter < 0.04


def test_every_microbatch_that_a_device_has_gives_its_rows_and_no_other():
    line = run_of(UNEVEN, MACHINE, "on-demand")
    rows = recorded.rows(line, UNEVEN.schedules, TINY, "float32")
    held = [[s.lengths[i] for i in m] for s in UNEVEN.schedules for device in s.devices for m in device]
    assert min(min(s.microbatches) for s in UNEVEN.schedules) == 0
    assert not any(r.alone for r in rows.compute)
    wanted = sorted((len(h), sum(h), sum(n * n for n in h), max(h)) for h in held)
    for kind in ("embed", "forward", "head", "backward"):
        mine = [r for r in rows.compute if r.kind == kind]
        assert sorted((r.samples, r.tokens, r.squares, r.longest) for r in mine) == wanted
        for place, schedule in enumerate(UNEVEN.schedules, 1):
            took = Counter(r.device for r in mine if r.minibatch == place)
            assert [took[d] for d in range(DEVICES)] == list(schedule.microbatches)
    for place, schedule in enumerate(UNEVEN.schedules):
        block, b = line.block_of(place)
        heads = [i for i, s in enumerate(block.program.steps) if block.program.durations[s.duration][0] == "head"]
        took = [(i, d) for d, count in enumerate(schedule.microbatches) for i in heads[:count]]
        ats = sorted(r.at for r in rows.compute if r.minibatch == place + 1 and r.kind == "head")
        assert ats == pytest.approx(sorted((block.asked[i, b, d] + block.had[i, b, d]) / 2 for i, d in took))
    # A layer is gathered twice, the root once; each is pushed once.
    counts = Counter(t.kind for t in rows.transfers)
    assert counts == {"gather": len(held) * (2 * TINY.layers + 1), "push": len(held) * (TINY.layers + 1)}
    assert {(t.devices, t.computing) for t in rows.transfers} == {(DEVICES, True)}
    assert sum(c.kind == "overhead" for c in rows.constants) == len(held)
    for dtype, gathered in (("float32", 4), ("bfloat16", 2)):
        moved = recorded.rows(line, UNEVEN.schedules, TINY, dtype).transfers
        for kind, each in (("gather", gathered), ("push", 4)):
            sizes = {t.bytes for t in moved if t.kind == kind}
            assert sizes == {each * TINY.layer_parameters, each * TINY.root_parameters}


def test_emulated_compute_is_not_measured_and_its_transfers_ran_beside_none():
    """A run under hybrid sharding is refused rather than read in part."""
    rows, real = (read(EVEN, MACHINE, "on-demand", emulated=emulated) for emulated in (True, False))
    assert rows.compute == ()
    assert {t.computing for t in rows.transfers} == {False}
    assert rows.constants == real.constants
    line = run_of(EVEN, MACHINE, "on-demand")
    hybrid = replace(line.about, recipe=replace(line.about.recipe, sharding="hybrid"), nodes=2)
    with pytest.raises(InputError):
        recorded.rows(replace(line, about=hybrid), EVEN.schedules, TINY, "float32")


@pytest.mark.parametrize("sync", SYNCS)
def test_a_device_alone_moves_nothing_and_meets_nobody(sync):
    """Whatever its engine takes for the copies that it makes all the same."""
    file = file_of(1, even=True, devices=1)
    line = run_of(file, MACHINE, sync)
    (block,) = line.blocks
    asked, had = analytic.run(block.program, np.ones((len(block.program.durations), 1, 1)))
    rows = recorded.rows(replace(line, blocks=(replace(block, asked=asked, had=had),)), file.schedules, TINY, "float32")
    assert rows.transfers == ()
    assert {c.kind for c in rows.constants} == {"overhead", "optimizer", *(["publish"] if sync == "on-demand" else [])}
    assert all(r.alone for r in rows.compute)
    assert len(rows.compute) == 2 * 4


@given(cases(prefetches=("none", "fsdp2")))
def test_nothing_lies_between_two_steps_of_a_simulated_run(case):
    for executor in (analytic, des):
        asked, had, *_ = executor.run(case.program, case.durations)
        block = Block(case.program, np.arange(len(case.counts)), case.counts, asked, had)
        found = recorded.delays(block)
        assert set(found) == {i for i, s in enumerate(case.program.steps) if s.lane == COMPUTE} - {0}
        assert not any(seconds.any() for seconds in found.values())


@given(cases(microbatches=(1, 3)), st.integers(0, 2**20), st.floats(1e-3, 10))
def test_a_delay_before_compute_is_overhead_of_its_microbatch(case, pick, delay):
    """One device comes later to its compute of one kind: a step that began with waiting, told as if it had not."""
    computes = [i for i, s in enumerate(case.program.steps) if s.kind == "compute"]
    row, device = case.program.steps[computes[pick % len(computes)]].duration, pick % case.counts.shape[1]
    late = np.zeros_like(case.durations)
    late[row, :, device] = delay * (case.program.durations[row][1] < case.counts[:, device])
    alike = [i for i in computes if case.program.steps[i].duration == row]
    overhead = []
    for extra in (np.zeros_like(late), late):
        asked, had = analytic.run(case.program, case.durations + extra)
        asked[alike] += extra[row]
        block = Block(case.program, np.arange(len(case.counts)), case.counts, asked, had)
        found = recorded._constants(block, recorded.delays(block))
        overhead.append(sum(c.seconds for c in found if c.kind == "overhead"))

    for i, seconds in recorded.delays(block).items():
        np.testing.assert_allclose(seconds, late[row] if i in alike else 0, rtol=1e-9, atol=1e-9)
    assert overhead[1] - overhead[0] == pytest.approx(len(alike) * late.sum(), rel=1e-6, abs=1e-6)


@given(cases(microbatches=(1, 3), shardings=SHARDED), st.integers(0, 2**20), st.floats(1e-3, 10))
def test_a_root_that_is_gathered_late_delays_its_embedding(case, pick, delay):
    """Whoever could have begun and did not: the transfer hides it from the step that waits for it."""
    device, steps = pick % case.counts.shape[1], case.program.steps
    late = next(i for i, s in enumerate(steps) if (s.kind, s.unit, s.microbatch) == ("gather", 0, 0))
    embed = next(i for i, s in enumerate(steps) if s.kind == "compute")
    here = case.counts[:, device] > 0
    extra = np.zeros(case.durations.shape)
    extra[steps[late].duration, :, device] = delay * here
    asked, had = analytic.run(case.program, case.durations + extra)
    asked[late, :, device] += delay * here
    block = Block(case.program, np.arange(len(case.counts)), case.counts, asked, had)
    wanted = np.zeros(case.counts.shape)
    wanted[:, device] = delay * here
    np.testing.assert_allclose(recorded.delays(block)[embed], wanted, rtol=1e-9, atol=1e-9)


def test_a_transfer_that_meets_begins_when_its_last_device_comes():
    """However long the others had waited: the slow device's compute is in no transfer."""
    rows = read(EVEN, MACHINE, "collective", jitter=0.3)
    for t in rows.transfers:
        its = MACHINE.timing(t.kind, DEVICES)
        assert t.seconds == pytest.approx(its.constant + its.per_byte * t.bytes, rel=1e-6)
    meetings = [c.seconds for c in rows.constants if c.kind == "settle"]
    np.testing.assert_allclose(meetings, MACHINE.timing("meeting", DEVICES).constant, rtol=1e-6)


def test_what_a_host_does_before_devices_settle_is_measured_and_before_the_second_meeting_is_not():
    """Nothing is late in a simulated run: so the steps of its end are moved by hand."""
    line = run_of(EVEN, MACHINE, "on-demand")
    (block,) = line.blocks
    first, second = (i for i, step in enumerate(block.program.steps) if step.kind == "meeting")
    late = np.zeros((len(block.program.steps), 1, 1))
    late[first:] += 7e-3
    late[second:] += 3e-3
    moved = replace(line, blocks=(replace(block, asked=block.asked + late, had=block.had + late),))
    rows = recorded.rows(moved, EVEN.schedules, TINY, "float32")
    found = {kind: [c.seconds for c in rows.constants if c.kind == kind] for kind in ("settle", "meeting")}
    own = MACHINE.timing("meeting", DEVICES).constant
    assert max(found["settle"]) == pytest.approx(own + 7e-3)
    np.testing.assert_allclose(found["meeting"], own, rtol=1e-6)


def test_what_is_read_off_is_what_a_file_of_measurements_holds(tmp_path):
    """A step that took less than any timer tells has no row, for a file with one is refused."""
    line = run_of(EVEN, MACHINE, "on-demand")
    (block,) = line.blocks
    last = len(block.program.steps) - 1
    had = block.had.copy()
    had[last] = block.asked[last] + 1e-12
    rows = recorded.rows(replace(line, blocks=(replace(block, had=had),)), EVEN.schedules, TINY, "float32")
    path = tmp_path / "m.json"
    measurements.write(measured(rows), path)
    assert measurements.read(path) == measured(rows)
