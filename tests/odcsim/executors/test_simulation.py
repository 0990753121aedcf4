"""Running schedules, queues among them: the timeline, the usage and the makespans alone say the same."""

from dataclasses import fields, replace

import numpy as np
import pytest
from executed import EXECUTORS, by
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import PREFETCHES, SYNCS, schedules

from odcsim.cost import Cost
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors import des, simulation
from odcsim.executors.simulation import makespans, simulate, usage, usages
from odcsim.results import metrics
from odcsim.results.metrics import Usage
from odcsim.schedule import Header, Schedule, ScheduleFile

either = st.sampled_from(EXECUTORS)
EVEN = Schedule.of((1, 1, 1, 1), tuple(((i,),) for i in range(4)))
plans = st.booleans().flatmap(lambda queued: st.lists(schedules(4, queued=queued), min_size=1, max_size=6))


def same(one: Usage, other: Usage) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(Usage))


def a_file(found: list[Schedule]) -> ScheduleFile:
    header = Header("native", "m", "a test", 10**6, len(found[0].devices), 0)
    return ScheduleFile(header, tuple(found)).sealed()


def by_each(run, *given):
    """What it comes to by each executor."""
    found = []
    for executor in EXECUTORS:
        with by(executor):
            found.append(run(*given))
    return found


def on(setting, **cluster):
    """The setting's cost on another cluster."""
    return replace(setting.cost, cluster=replace(setting.cost.cluster, **cluster))


@settings(max_examples=40)
@given(found=plans, executor=either, size=st.integers(1, 12))
def test_usage_and_makespans_alone_are_those_of_the_timeline_to_the_last_bit(setting, found, executor, size):
    """However the minibatches are cut into pieces."""
    cost = setting.cost.by(sync="on-demand")
    with by(executor), pytest.MonkeyPatch.context() as patch:
        whole = metrics.usage(simulate(a_file(found), cost))
        for group in (simulation.GROUP, size):
            patch.setattr(simulation, "GROUP", group)
            assert same(whole, usage(found, cost))
            assert np.array_equal(makespans(found, cost), whole.makespan)


@pytest.mark.parametrize("jitter", [0.0, 0.05])
def test_plans_that_are_simulated_at_once_are_as_if_alone(setting, jitter):
    """To the last bit, queues, luck and jitter too, which hang on a minibatch's number."""
    cost = on(setting, sample_noise=0.1, slow=((1, 1.3),), jitter=jitter).by(sync="on-demand")
    found = [plan(setting, name).schedules for name in ("native", "lb-mini", "pool", "lb-micro")]
    together = usages(found, cost, seed=3)
    assert all(same(one, usage(alone, cost, seed=3)) for one, alone in zip(together, found, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "GROUP", 12)
        assert all(map(same, together, usages(found, cost, seed=3)))


HOWS = [{"prefetch": prefetch} for prefetch in PREFETCHES]
HOWS += [{"sharding": "hybrid"}, {"sharding": "hybrid", "exchange": "layers"}, {"far": "hierarchical"}]
HOWS += [{"reshard": False}, {"streams": "two"}, {"streams": "two", "reshard": False}, {"copies": "engines"}]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("nic", [1e9, 25e9])
def test_the_executors_agree_on_real_seconds_between_nodes(setting, sync, nic):
    file = plan(replace(setting, minibatches=2), "lb-micro")
    two = on(setting, devices_per_node=2, nics_per_node=2, nic_bandwidth=nic)
    for choices in HOWS:
        fast, slow = by_each(simulate, file, two.by(sync=sync, **choices))
        for one, other in zip(fast.blocks, slow.blocks, strict=True):
            assert np.array_equal(one.asked, other.asked), choices
            assert np.array_equal(one.had, other.had), choices
        found = metrics.usage(fast)
        total = found.compute + sum(getattr(found, part) for part in metrics.PARTS)
        np.testing.assert_allclose(total, 4 * found.makespan)


@given(found=st.lists(schedules(4), min_size=2, max_size=6))
def test_minibatches_come_back_in_their_order_with_what_they_carried(setting, found):
    how = setting.cost.by(sync="on-demand")
    line = simulate(a_file(found), how)
    assert line.samples.tolist() == [len(s.lengths) for s in found]
    assert line.tokens.tolist() == [sum(s.lengths) for s in found]
    for number, one in enumerate(found):
        block, place = line.block_of(number)
        assert block.minibatches[place] == number
        assert block.counts[place].tolist() == list(one.microbatches)
        assert block.program.microbatches == max(one.microbatches)
        assert np.array_equal(block.had[:, place], simulate(a_file([one]), how).blocks[0].had[:, 0])
        for i in range(len(block.program.steps)):  # of microbatches that a device has not, steps take no time
            absent = ~block.present(i)[place]
            assert (block.asked[i, place][absent] == block.had[i, place][absent]).all()


def test_jitter_of_a_minibatch_depends_on_its_number_and_the_seed_alone(setting, schedules):
    def jittered(found, seed=1):
        return usage(found, on(setting, jitter=0.2).by(sync="on-demand"), seed=seed)

    every = schedules.schedules
    whole = jittered(every)
    assert same(whole, jittered(every))
    assert (whole.makespan != jittered(every, 2).makespan).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "GROUP", 1)
        assert same(whole, jittered(every))
    assert len({*jittered([every[0]] * 3).makespan.tolist()}) == 3
    assert (jittered(every[:3]).makespan == whole.makespan[:3]).all()  # its neighbours do not matter


@pytest.mark.parametrize(
    ("cluster", "executor"),
    [({}, "analytic"), ({"sample_noise": 0.1, "slow": ((1, 1.3),)}, "analytic"), ({"jitter": 0.1}, "des"),
     ({"swing": 0.1}, "des"), ({"devices_per_node": 2, "nics_per_node": 1}, "des")],
)  # fmt: skip
def test_the_scan_runs_wherever_it_knows_the_answer_and_events_elsewhere(setting, cluster, executor):
    line = simulate(a_file([EVEN]), on(setting, **cluster).by(sync="on-demand"))
    assert line.about.executor == executor


def refused(cost: Cost, found: list[Schedule]) -> None:
    for call in (lambda: simulate(a_file(found), cost), lambda: usage(found, cost)):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_what_cannot_run_is_refused(setting, jitter):
    uneven = Schedule.of((1, 1, 1, 1), (((0,), (1,)), ((2,),), ((3,),), ()))
    cost = on(setting, jitter=jitter)
    for sync in ("collective", "deferred"):
        refused(cost.by(sync=sync), [EVEN, uneven])
        refused(cost.by(sync=sync), list(plan(setting, "pool").schedules))  # would hang
    refused(cost.by(sync="on-demand"), [Schedule.of((1,), (((0,),),))])
    refused(cost.by(sync="on-demand", prefetch="x"), [EVEN])
    with pytest.raises(InputError):
        cost.by(sync="on-demnd")


# Queues


def test_one_device_may_take_the_whole_queue(setting):
    """More than the program was first made for."""
    lengths = (60_000, 60_000, 60_000, *[10] * 12)
    found = Schedule.of(lengths, (((0,),), ((1,),), ((2,),), ()), queue=tuple((i,) for i in range(3, 15)))
    for line in by_each(simulate, a_file([found]), setting.cost.by(sync="on-demand")):
        [block] = line.blocks
        assert (block.counts.tolist(), block.program.microbatches) == ([[1, 1, 1, 12]], 12)
        assert (list(block.taken(0, 3)), block.taken(0, 0)) == (list(range(12)), {})
    found = Schedule.of((5, 6, 7, 8, 9), (((0,),), ()), queue=((1, 2), (3,), (4,)))
    assert (found.uneven, EVEN.uneven) == (True, False)
    assert list(found.contents()) == [(0,), (1, 2), (3,), (4,)]
    assert found.realised([1, 0, 1]) == Schedule.of((5, 6, 7, 8, 9), (((0,), (3,)), ((1, 2), (4,))))
    with pytest.raises(ValueError, match="shorter"):
        found.realised([1, 0])


def test_events_hold_an_entry_once_for_all_devices_that_are_alike(setting, monkeypatch):
    """A group has thousands of entries: in rows for each device they would fill gigabytes."""
    found = [Schedule.of((9, 8, 7, 6), (((0,),), (), (), ()), queue=((1,), (2,), (3,)))] * 5
    queues, run = [], des.run
    monkeypatch.setattr(des, "run", lambda *of: queues.extend(of[4]) or run(*of))
    cost = on(setting, jitter=0.1, slow=((1, 1.3),)).by(sync="on-demand")
    makespans(found, cost)
    each = (len(cost.program(1).durations), 3, 2)  # two kinds of devices
    assert [queue.seconds.shape for queue in queues] == [each] * 5
    assert np.shares_memory(queues[0].seconds.base, queues[-1].seconds.base)


@settings(max_examples=30)
@given(found=st.lists(schedules(4, queued=True), min_size=1, max_size=4), noise=st.sampled_from([0.0, 0.1]))
def test_both_executors_give_the_timeline_of_the_realised_schedules(setting, found, noise):
    cost = on(setting, sample_noise=noise, slow=((1, 1.5),))
    lines = by_each(simulate, a_file(found), cost.by(sync="on-demand"))
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
    plain = simulate(a_file(realised), cost.by(sync="on-demand"))
    for number in range(len(found)):
        (a, i), *others = (line.block_of(number) for line in (plain, *lines))
        for b, j in others:
            kept = np.r_[0 : a.program.end, b.program.end : len(b.program.steps)]
            assert np.array_equal(a.asked[:, i], b.asked[kept, j])
            assert np.array_equal(a.had[:, i], b.had[kept, j])
            assert (b.had[a.program.end : b.program.end, j] == b.asked[a.program.end : b.program.end, j]).all()


def test_noise_is_in_the_run_alone_and_the_same_for_all_balancers(setting):
    """It has its size, and keeps the mean."""
    alone = replace(setting.cost.profile, microbatch=0.0, fewest=0)  # of samples, however many microbatches they are in
    setting = replace(setting, cost=replace(setting.cost, profile=alone))
    noisy = replace(setting, cost=on(setting, sample_noise=0.2))
    assert plan(noisy, "pool") == plan(setting, "pool")
    spent = []
    for balancer in ("lb-mini", "native", "pool"):
        file = plan(noisy, balancer)
        spent.append(usage(file.schedules, noisy.cost.by(sync="on-demand")).compute)
        for executor, seed in (("des", 0), ("analytic", 1)):
            with by(executor):
                other = usage(file.schedules, noisy.cost.by(sync="on-demand"), seed=seed).compute
            assert np.allclose(other, spent[-1], rtol=1e-12) == (seed == 0)
    np.testing.assert_allclose(spent[1:], [spent[0]] * 2, rtol=1e-12)
    quiet = usage(plan(setting, "native").schedules, setting.cost.by(sync="on-demand")).compute
    assert not np.allclose(spent[0], quiet, rtol=1e-3)
    [luck] = noisy.cost.luck([Schedule.of((1,) * 50_000, ())], [1], 0)
    assert (luck.mean(), luck.std()) == (pytest.approx(1, abs=0.004), pytest.approx(0.2, abs=0.004))


def test_what_screens_is_what_was_planned_whatever_is_drawn_or_shared(setting):
    """On cards of one's own it is the run itself; where they are shared, all together have as much."""
    found = plan(setting, "lb-mini").schedules
    cost = on(setting, devices_per_node=2, nics_per_node=2).by(sync="on-demand")
    drawn = replace(cost, cluster=replace(cost.cluster, jitter=0.1, swing=0.1, sample_noise=0.1))
    assert np.array_equal(makespans(found, drawn.calm), makespans(found, cost))
    shared = on(setting, devices_per_node=2, nics_per_node=1).by(sync="on-demand")
    half = on(setting, devices_per_node=2, nics_per_node=2, nic_bandwidth=shared.cluster.nic_bandwidth / 2)
    assert not shared.calm.cluster.eventful
    assert shared.calm.cluster == half.cluster
