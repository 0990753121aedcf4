"""A schedule whose devices share a queue runs as the schedule that came of it, and its timeline says who took what."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import SYNCS, schedules

from odcsim import schedule, timeline
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors.simulation import Simulation, simulate, usage
from odcsim.results import metrics
from odcsim.schedule import Header, Schedule, ScheduleFile


def test_realised_schedules():
    found = Schedule((5, 6, 7, 8, 9), (((0,),), ()), queue=((1, 2), (3,), (4,)))
    assert found.uneven
    assert list(found.contents()) == [(0,), (1, 2), (3,), (4,)]
    assert found.realised([1, 0, 1]) == Schedule((5, 6, 7, 8, 9), (((0,), (3,)), ((1, 2), (4,))))
    with pytest.raises(ValueError, match="shorter"):
        found.realised([1, 0])


def a_file(found: list[Schedule], name: str = "pool") -> ScheduleFile:
    return ScheduleFile(Header(name, "m", "a test", 10**6, len(found[0].devices), 0), tuple(found)).sealed()


@settings(max_examples=30)
@given(found=st.lists(schedules(4, queued=True), min_size=1, max_size=4), noise=st.sampled_from([0.0, 0.1]))
def test_both_executors_give_the_timeline_of_the_realised_schedules(setting, found, noise):
    cost = replace(setting.cost, cluster=replace(setting.cost.cluster, sample_noise=noise, slow=((1, 1.5),)))
    lines = [simulate(a_file(found), Simulation(cost, "on-demand", executor)) for executor in ("analytic", "des")]
    realised = list(found)
    for line in lines:
        for block in line.blocks:
            for place, number in enumerate(block.minibatches.tolist()):
                if found[number].queue:
                    takers = block.takers[place]
                    realised[number] = found[number].realised(takers[takers >= 0].tolist())
                    taken = {e: d for d in range(4) for e in block.taken(place, d).values()}
                    assert [taken[e] for e in sorted(taken)] == takers[takers >= 0].tolist()
                assert tuple(block.counts[place]) == realised[number].microbatches
    plain = simulate(a_file(realised), Simulation(cost, "on-demand", "analytic"))
    for number in range(len(found)):
        (a, i), *others = (line.block_of(number) for line in (plain, *lines))
        for b, j in others:
            kept = np.r_[0 : a.program.end, b.program.end : len(b.program.steps)]
            assert np.array_equal(a.asked[:, i], b.asked[kept, j])
            assert np.array_equal(a.had[:, i], b.had[kept, j])
            assert (b.had[a.program.end : b.program.end, j] == b.asked[a.program.end : b.program.end, j]).all()


def test_one_device_may_take_the_whole_queue(setting):
    """More than the program was first made for."""
    lengths = (60_000, 60_000, 60_000, *[10] * 12)
    found = Schedule(lengths, (((0,),), ((1,),), ((2,),), ()), queue=tuple((i,) for i in range(3, 15)))
    for executor in ("analytic", "des"):
        [block] = simulate(a_file([found]), Simulation(setting.cost, "on-demand", executor)).blocks
        assert block.counts.tolist() == [[1, 1, 1, 12]]
        assert block.program.microbatches == 12
        assert list(block.taken(0, 3)) == list(range(12))
        assert block.taken(0, 0) == {}


def test_a_timeline_file_keeps_takers(setting, tmp_path):
    file = schedule.write(plan(setting, "pool"), tmp_path / "s.jsonl")
    line = simulate(schedule.read(tmp_path / "s.jsonl"), Simulation(setting.cost, "on-demand"))
    timeline.write(line, tmp_path / "t.npz")
    again = timeline.read(tmp_path / "t.npz")
    assert sum(len(s.queue) for s in file.schedules) > 0
    for one, other in zip(line.blocks, again.blocks, strict=True):
        assert np.array_equal(one.takers, other.takers)
    assert np.array_equal(
        metrics.usage(again).makespan, usage(file.schedules, Simulation(setting.cost, "on-demand")).makespan
    )


@pytest.mark.parametrize("change", [lambda t: t[:, :0], lambda t: t * 0 + 3, lambda t: t * 0 + 4, lambda t: t - 2])
def test_takers_that_cannot_be_are_refused(setting, tmp_path, change):
    line = simulate(plan(setting, "pool"), Simulation(setting.cost, "on-demand"))
    forged = tuple(replace(block, takers=change(block.takers)) for block in line.blocks)
    timeline.write(replace(line, blocks=forged), tmp_path / "t.npz")
    if change(np.ones((1, 1))).size == 0:
        timeline.read(tmp_path / "t.npz")
        return
    with pytest.raises(InputError, match="takers that its devices do not have"):
        timeline.read(tmp_path / "t.npz")


@pytest.mark.parametrize("sync", [s for s in SYNCS if s != "on-demand"])
@pytest.mark.parametrize("executor", ["analytic", "des"])
def test_only_on_demand_runs_a_queue(setting, sync, executor):
    file = plan(setting, "pool")
    queued = len(file.schedules[0].queue)
    with pytest.raises(
        InputError, match=f"minibatch 0: {queued} microbatches wait in a queue .* {sync} sync would hang"
    ):
        simulate(file, Simulation(setting.cost, sync, executor))


def test_noise_is_in_the_run_alone_and_the_same_for_all_balancers(setting):
    alone = replace(setting.cost.profile, microbatch=0.0, fewest=0)  # of samples, however many microbatches they are in
    setting = replace(setting, cost=replace(setting.cost, profile=alone))
    noisy = replace(setting, cost=replace(setting.cost, cluster=replace(setting.cost.cluster, sample_noise=0.2)))
    assert plan(noisy, "pool") == plan(setting, "pool")
    spent = []
    for balancer in ("lb-mini", "native", "pool"):
        file = plan(noisy, balancer)
        spent.append(usage(file.schedules, Simulation(noisy.cost, "on-demand", "analytic")).compute)
        for executor, seed in (("des", 0), ("analytic", 1)):
            other = usage(file.schedules, Simulation(noisy.cost, "on-demand", executor, seed=seed)).compute
            assert np.allclose(other, spent[-1], rtol=1e-12) == (seed == 0)
    np.testing.assert_allclose(spent[1:], [spent[0]] * 2, rtol=1e-12)
    quiet = usage(plan(setting, "native").schedules, Simulation(setting.cost, "on-demand", "analytic")).compute
    assert not np.allclose(spent[0], quiet, rtol=1e-3)


def test_noise_has_its_size_and_keeps_the_mean(setting):
    cost = replace(setting.cost, cluster=replace(setting.cost.cluster, sample_noise=0.2))
    [luck] = cost.luck([Schedule((1,) * 50_000, ())], [1], 0)
    assert abs(luck.mean() - 1) < 0.004
    assert abs(luck.std() - 0.2) < 0.004
