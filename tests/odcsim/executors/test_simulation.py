"""Running schedules: the whole timeline and the usage alone say the same, and what cannot run is refused."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import PREFETCHES, SYNCS, schedules

from odcsim import profile, schedule, timeline
from odcsim.decide.setting import plan
from odcsim.errors import InputError
from odcsim.executors import simulation
from odcsim.executors.simulation import Simulation, makespans, simulate, usage, usages
from odcsim.results import metrics
from odcsim.results.metrics import Usage
from odcsim.schedule import Header, Schedule, ScheduleFile


def same(one: Usage, other: Usage) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(Usage))


def a_file(found: list[Schedule]) -> ScheduleFile:
    header = Header("native", "m", "a test", 10**6, len(found[0].devices), 0)
    return ScheduleFile(header, tuple(found)).sealed()


@settings(max_examples=40)
@given(
    found=st.lists(schedules(4), min_size=1, max_size=6), executor=st.sampled_from(simulation.EXECUTORS), size=st.data()
)
def test_usage_alone_is_the_usage_of_the_timeline_to_the_last_bit(setting, found, executor, size):
    """However the minibatches are cut into pieces."""
    how = Simulation(setting.cost, "on-demand", executor)
    whole = metrics.usage(simulate(a_file(found), how))
    assert same(whole, usage(found, how))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "GROUP", size.draw(st.integers(1, 12)))
        assert same(whole, usage(found, how))


@settings(max_examples=40)
@given(found=st.lists(schedules(4), min_size=1, max_size=6), executor=st.sampled_from(simulation.EXECUTORS))
def test_makespans_alone_are_those_of_the_usage_to_the_last_bit(setting, found, executor):
    how = Simulation(setting.cost, "on-demand", executor)
    assert np.array_equal(makespans(found, how), usage(found, how).makespan)


@pytest.mark.parametrize("executor", simulation.EXECUTORS)
def test_plans_that_are_simulated_at_once_are_as_if_alone(setting, executor):
    """To the last bit, queues, luck and jitter too, which hang on a minibatch's number."""
    drawn = {"sample_noise": 0.1, "jitter": 0.05 if executor == "des" else 0.0}
    cost = replace(setting.cost, cluster=replace(setting.cost.cluster, **drawn))
    how = Simulation(cost, "on-demand", executor, seed=3)
    plans = [plan(setting, name).schedules for name in ("native", "lb-mini", "pool", "lb-micro")]
    together = usages(plans, how)
    assert all(same(one, usage(alone, how)) for one, alone in zip(together, plans, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "GROUP", 12)
        assert all(map(same, together, usages(plans, how)))


@pytest.mark.parametrize("executor", simulation.EXECUTORS)
@pytest.mark.parametrize("balancer", ["lb-mini", "pool"])
def test_compute_stretched_at_once_is_as_if_each_factor_ran_alone(setting, executor, balancer):
    """To the last bit: queues too, whose entries go to others, and luck, which hangs on a minibatch's number."""
    drawn = {"sample_noise": 0.1, "slow": ((1, 1.3),), "jitter": 0.05 if executor == "des" else 0.0}
    cost = replace(setting.cost, cluster=replace(setting.cost.cluster, **drawn))
    found, factors = plan(setting, balancer).schedules, (0.7, 1.0, 1.4)
    together = simulation.stretched(found, Simulation(cost, "on-demand", executor, seed=3), factors)
    for factor, spans in zip(factors, together, strict=True):
        longer = replace(cost, profile=profile.stretched(cost.profile, factor))
        assert np.array_equal(spans, makespans(found, Simulation(longer, "on-demand", executor, seed=3)))


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_the_executors_agree_on_real_seconds(setting, sync, prefetch):
    file = plan(setting, "lb-micro")
    two = replace(setting.cost, cluster=replace(setting.cost.cluster, devices_per_node=2, nics_per_node=2))
    fast, slow = (
        simulate(file, Simulation(two, sync, executor, prefetch=prefetch)) for executor in simulation.EXECUTORS
    )
    assert len(fast.blocks) == len(slow.blocks)
    for one, other in zip(fast.blocks, slow.blocks, strict=True):
        assert np.array_equal(one.asked, other.asked)
        assert np.array_equal(one.had, other.had)


@given(found=st.lists(schedules(4), min_size=2, max_size=6))
def test_minibatches_come_back_in_their_order_with_what_they_carried(setting, found):
    line = simulate(a_file(found), Simulation(setting.cost, "on-demand", "analytic"))
    numbers = np.concatenate([b.minibatches for b in line.blocks])
    assert sorted(numbers.tolist()) == list(range(len(found)))
    assert line.samples.tolist() == [len(s.lengths) for s in found]
    assert line.tokens.tolist() == [sum(s.lengths) for s in found]
    for number, one in enumerate(found):
        block, place = line.block_of(number)
        assert block.counts[place].tolist() == list(one.microbatches)
        assert block.program.microbatches == max(one.microbatches)
        alone = simulate(a_file([one]), Simulation(setting.cost, "on-demand", "analytic"))
        assert np.array_equal(block.had[:, place], alone.blocks[0].had[:, 0])


def test_jitter_of_a_minibatch_depends_on_its_number_and_the_seed_alone(setting, schedules):
    cost = replace(setting.cost, cluster=replace(setting.cost.cluster, jitter=0.2))
    whole, again, other = (usage(schedules.schedules, Simulation(cost, "on-demand", seed=s)) for s in (1, 1, 2))
    assert same(whole, again)
    assert (whole.makespan != other.makespan).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "GROUP", 1)
        assert same(whole, usage(schedules.schedules, Simulation(cost, "on-demand", seed=1)))
    alike = usage([schedules.schedules[0]] * 3, Simulation(cost, "on-demand", seed=1))
    assert len(set(alike.makespan.tolist())) == 3
    # Its neighbours do not matter: the first three of six, and the first three alone.
    assert (usage(schedules.schedules[:3], Simulation(cost, "on-demand", seed=1)).makespan == whole.makespan[:3]).all()


@pytest.mark.parametrize(
    ("cluster", "executor"),
    [
        ({}, "analytic"),
        ({"sample_noise": 0.1, "slow": ((1, 1.3),)}, "analytic"),
        ({"jitter": 0.1}, "des"),
        ({"swing": 0.1}, "des"),
        ({"devices_per_node": 2, "nics_per_node": 1}, "des"),
    ],
)
def test_the_scan_runs_wherever_it_knows_the_answer(setting, cluster, executor):
    cost = replace(setting.cost, cluster=replace(setting.cost.cluster, **cluster))
    assert Simulation(cost).executor == executor


def test_about_says_what_was_run(setting, schedules, timeline):
    about = timeline.about
    assert (about.executor, about.recipe.sync, about.balancer) == ("analytic", "on-demand", "lb-mini")
    assert about.digest == schedules.header.digest
    assert about.digest
    assert (about.model, about.hardware, about.fidelity) == (setting.cost.model.name, "a100", "published fit")
    assert (about.devices, about.max_tokens, about.trace) == (4, 65536, "longalign")
    assert about.emulated


def test_files_in_between_change_nothing(setting, tmp_path):
    """balance writes, simulate reads and writes, report reads: the same figures as in one go."""
    file = schedule.write(plan(setting, "lb-mini"), tmp_path / "s.jsonl")
    how = Simulation(setting.cost, "on-demand")
    timeline.write(simulate(schedule.read(tmp_path / "s.jsonl"), how), tmp_path / "t.npz")
    assert same(metrics.usage(timeline.read(tmp_path / "t.npz")), usage(file.schedules, how))


def refused(simulated: Simulation, found: list[Schedule], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        simulate(a_file(found), simulated)
    with pytest.raises(InputError, match=problem):
        usage(found, simulated)


def test_what_cannot_run_is_refused(setting):
    even = Schedule((1, 1, 1, 1), tuple(((i,),) for i in range(4)))
    uneven = Schedule((1, 1, 1, 1), (((0,), (1,)), ((2,),), ((3,),), ()))
    cost = setting.cost
    refused(Simulation(cost, "collective"), [even, uneven], r"minibatch 1: .*\(2, 1, 1, 0\) and collective sync would")
    refused(Simulation(cost, "deferred"), [uneven], "minibatch 0: .* deferred sync would hang")
    refused(Simulation(cost, "on-demand"), [Schedule((1,), (((0,),),))], "schedule for 1 devices on a cluster of 4")
    refused(Simulation(cost, "on-demand", "dess"), [even], "unknown executor 'dess'; did you mean 'des'")
    with pytest.raises(InputError, match="unknown sync 'on-demnd'; did you mean 'on-demand'"):
        Simulation(cost, "on-demnd")
    refused(Simulation(cost, "on-demand", prefetch="x"), [even], "unknown prefetch 'x'")
    shared = replace(cost, cluster=replace(cost.cluster, devices_per_node=2, nics_per_node=1))
    refused(
        Simulation(shared, "on-demand", "analytic"), [even], r"\(1 NICs for 2 devices in a node\); name no executor"
    )
    for drawn in ("jitter", "swing"):
        moved = replace(cost, cluster=replace(cost.cluster, **{drawn: 0.1}))
        refused(Simulation(moved, "on-demand", "analytic"), [even], f"draws no {drawn}; name no executor")
