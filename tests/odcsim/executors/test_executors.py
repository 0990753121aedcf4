"""Laws of execution. What is shared by the executors, and where they must agree to the last bit."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import ANYHOW, BETWEEN, ONCE, PREFETCHES, TRANSFERS, Case, cases, one_node

from odcsim.executors import analytic, des
from odcsim.program import COMPUTE, program


def makespans(case: Case) -> np.ndarray:
    return analytic.run(case.program, case.durations)[1].max(axis=(0, 2))


@settings(max_examples=250)
@given(cases(**ANYHOW))
def test_both_executors_agree_to_the_last_bit(case):
    """Condition: nobody shares a link and nothing is drawn, whether there is a cluster or none."""
    fast = analytic.run(case.program, case.durations)
    assert np.array_equal(fast, des.run(case.program, case.durations))
    rngs = [np.random.default_rng(i) for i in range(case.counts.shape[0])]
    assert np.array_equal(fast, des.run(case.program, case.durations, one_node(case.counts.shape[1]), rngs))


@given(cases(**ANYHOW))
def test_every_step_starts_when_its_lane_and_its_needs_are_done_and_for_a_meeting_everybodys(case):
    """The definition, written once more the slow way."""
    asked, had = analytic.run(case.program, case.durations)
    before = case.program.previous_in_lane()
    for i, step in enumerate(case.program.steps):
        needs = [had[n] for n in (*step.after, before[i]) if n >= 0]
        ready = np.max(needs, axis=0) if needs else np.zeros_like(asked[i])
        assert np.array_equal(asked[i], ready)
        start = np.broadcast_to(ready.max(axis=1, keepdims=True), ready.shape) if step.meets else ready
        assert np.array_equal(had[i], start + case.durations[step.duration])


@given(cases(minibatches=(2, 4)))
def test_minibatches_do_not_know_of_each_other(case):
    times = np.array(analytic.run(case.program, case.durations))
    for b in range(case.counts.shape[0]):
        assert np.array_equal(times[:, :, [b]], analytic.run(case.program, case.durations[:, [b]]))


@given(cases(syncs=("collective",)))
def test_neither_on_demand_nor_deferred_is_slower_than_collective(case):
    """Conditions: equal seconds for every operation, dedicated links, and no time for what on-demand adds.

    On-demand then has the same steps with fewer reasons to wait, except the publish and the second meeting; deferred
    does the same with fewer pushes.
    """
    free = case.without(*ONCE)
    assert (makespans(free.under("on-demand")) <= makespans(free)).all()
    assert (makespans(case.under("deferred")) <= makespans(case)).all()


@given(cases(syncs=("collective",)))
def test_on_demand_is_slower_by_publish_and_one_meeting_at_most(case):
    more = case.under("on-demand")
    row = more.program.durations.index(("publish", -1))
    added = np.random.default_rng(1).uniform(0, 2, more.durations.shape[1:])
    more.durations[row] = added
    known = case.program.durations
    meeting = case.durations[known.index(("meeting", -1) if ("meeting", -1) in known else ("meeting to settle", -1))]
    more.durations[more.program.durations.index(("meeting", -1))] = meeting
    bound = makespans(case) + added.max(axis=1) + meeting.max(axis=1)
    assert (makespans(more) <= bound * (1 + 1e-12)).all()


@given(cases(syncs=("on-demand",), prefetches=("none",)))
def test_on_demand_gains_from_every_further_layer_of_prefetch(case):
    """Condition: one-sided transfers. Their lanes' orders stay, and every gather may only start sooner."""
    times = [makespans(case.under("on-demand", depth)) for depth in ("none", "1", "fsdp2", "2", "3", "4")]
    for shallow, deep in pairwise(times):
        assert (deep <= shallow).all()


def test_collective_may_lose_by_deeper_prefetch():
    """Why the law above has its condition: with one lane for both, a gather issued early makes a push wait."""
    steps = program(4, 1, "collective", "2")
    seconds = {"backward": 1.0, "gather layer": 1.0}
    table = np.array([[[seconds.get(what, 0.0)]] for what, _ in steps.durations])
    case = Case(steps, np.ones((1, 1), int), table)
    assert (makespans(case), makespans(case.under("collective", "3"))) == (9.0, 10.0)


@given(cases(syncs=("on-demand",), prefetches=PREFETCHES))
def test_on_demand_without_transfers_takes_the_largest_sum(case):
    free = case.without(*TRANSFERS, *BETWEEN, *ONCE)
    work = sum(free.durations[step.duration] for step in free.program.steps if step.lane == COMPUTE)
    np.testing.assert_allclose(makespans(free), work.max(axis=1), rtol=1e-12)


@given(cases(syncs=("collective",), prefetches=("none",), microbatches=(1, 3), layers=(1, 4)))
def test_collective_without_transfers_or_prefetch_is_lockstep(case):
    """The sum over stretches between meetings of the slowest device: what the ODC paper's packer assumes of FSDP."""
    free = case.without(*TRANSFERS, *BETWEEN, *ONCE)
    row = {timed: free.durations[i] for i, timed in enumerate(free.program.durations)}
    layers, expected = free.program.layers, 0.0
    for m in range(free.program.microbatches):
        stretches = [row["overhead", m], row["embed", m], *[row["forward", m]] * (layers - 1)]
        stretches += [row["forward", m] + row["head", m], *[row["backward", m]] * layers, row["embed backward", m]]
        expected += sum(stretch.max(axis=1) for stretch in stretches)
    np.testing.assert_allclose(makespans(free), expected, rtol=1e-12)


def layers_of(case: Case) -> list[int]:
    return [i for i, s in enumerate(case.program.steps) if s.kind == "compute" and s.unit > 0]


@settings(max_examples=100)
@given(cases(syncs=("collective",), prefetches=("fsdp2",), devices=(2, 4), layers=(1, 7), microbatches=(1, 3)))
def test_devices_differ_by_two_layers_at_most_and_stay_in_one_microbatch(case):
    """FSDP2's prefetch limits under a collective: when one starts a layer, all have ended the third before it.

    Layers are counted along the forward and back along the backward, where they are one layer apart at most.
    """
    times = np.array(analytic.run(case.program, case.durations))
    steps, layers = case.program.steps, layers_of(case)
    for asked, had in times.transpose(2, 0, 1, 3):
        for place, i in enumerate(layers):
            if place >= 3:
                assert asked[i].min() >= had[layers[place - 3]].max()
            backward = place % (2 * case.program.layers) > case.program.layers
            if place >= 2 and backward:
                assert asked[i].min() >= had[layers[place - 2]].max()
            if place and steps[i].microbatch != steps[layers[place - 1]].microbatch:
                assert asked[i].min() >= had[layers[place - 1]].max()


def test_devices_do_differ_by_two_layers():
    """The bound above is reached, so prefetch is really simulated: a lockstep would hold them together."""
    steps = program(6, 1, "collective", "fsdp2")
    case = Case(steps, np.ones((1, 2), int), np.zeros((len(steps.durations), 1, 2)))
    case.durations[steps.durations.index(("forward", 0)), 0] = [1.0, 5.0]
    asked, had = analytic.run(steps, case.durations)
    layers = layers_of(case)
    assert any(asked[i].min() < had[before].max() for before, i in zip(layers, layers[2:], strict=False))


@pytest.mark.parametrize("prefetch", PREFETCHES)
def test_uneven_counts_hang_nobody(prefetch):
    steps, counts = program(2, 3, "on-demand", prefetch), np.array([[0, 1, 3]])
    table = np.array([m < counts for _, m in steps.durations], dtype=float)
    asked, had = des.run(steps, table)
    assert (had >= asked).all()
    first = next(i for i, s in enumerate(steps.steps) if s.kind == "meeting")
    assert asked[first, 0, 0] == 0.0
    assert (np.diff(asked[first, 0]) > 0).all()
