"""Laws of shared queues: who takes what, and that a run with a queue is a run of the schedule that came of it."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import one_node, seconds

from odcsim.cluster import Cluster
from odcsim.executors import analytic, des
from odcsim.program import Program, program


@dataclass(frozen=True)
class Queued:
    """One minibatch: what devices have of their own, and seconds of each entry on each device [entry, row, device]."""

    layers: int
    prefetch: str
    planned: np.ndarray  # [device]
    durations: np.ndarray  # [row, 1, device] of the program of those
    entries: np.ndarray

    def program(self, microbatches: int) -> Program:
        return program(self.layers, microbatches, "on-demand", self.prefetch)

    def run(self, cluster: Cluster | None = None, seed: int | None = None) -> tuple:
        """By the discrete-event executor, on a program that is long enough whoever takes what."""
        steps = self.program(int(self.planned.max()) + len(self.entries))
        rngs = [] if seed is None else [np.random.default_rng(seed)]
        queue = [des.Queue(self.planned, self.entries.swapaxes(0, 1), np.arange(len(self.planned)))]
        asked, had, [takers] = des.run(steps, self.padded(steps), cluster, rngs, queue)
        return steps, asked, had, takers

    def padded(self, steps: Program) -> np.ndarray:
        table = np.zeros((len(steps.durations), *self.durations.shape[1:]))
        rows = {timed: i for i, timed in enumerate(steps.durations)}
        for row, timed in zip(self.durations, self.program(int(self.planned.max())).durations, strict=True):
            table[rows[timed]] = row
        return table

    def realised(self, steps: Program, takers: list[int]) -> np.ndarray:
        """Durations in which entries are ordinary microbatches of their takers."""
        table, counts = self.padded(steps), self.planned.copy()
        one = self.program(1).durations
        rows = {timed: i for i, timed in enumerate(steps.durations)}
        for entry, taker in enumerate(takers):
            for row, (what, microbatch) in enumerate(one):
                if microbatch == 0:
                    table[rows[what, int(counts[taker])], 0, taker] = self.entries[entry, row, taker]
            counts[taker] += 1
        return table


@st.composite
def queued(draw, styles=("smooth", "gaps", "grid")) -> Queued:
    layers, prefetch = draw(st.integers(1, 4)), draw(st.sampled_from(["none", "fsdp2", "3"]))
    seed, style = draw(st.integers(0, 2**20)), draw(st.sampled_from(styles))
    devices, entries = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    planned = np.random.default_rng(seed).integers(0, 3, devices)
    steps, one = (program(layers, n, "on-demand", prefetch) for n in (int(planned.max()), 1))
    table = seconds((len(steps.durations), 1, devices), style, seed)
    for row, (_, microbatch) in enumerate(steps.durations):
        table[row] *= microbatch < planned
    return Queued(layers, prefetch, planned, table, seconds((entries, len(one.durations), devices), style, seed + 1))


def asking(steps: Program, asked: np.ndarray) -> np.ndarray:
    """When each device asked for each microbatch, and last for the meeting at the end [microbatch, device]."""
    overheads = [i for i, s in enumerate(steps.steps) if s.kind == "overhead"]
    return asked[[*overheads, steps.end], 0]


def taken(case: Queued) -> np.ndarray:
    queues = analytic.Entries([len(case.entries)], case.entries.swapaxes(0, 1), np.arange(len(case.planned)))
    return analytic.take(case.program(int(case.planned.max())), case.durations, case.program(1), queues)


@given(queued())
def test_the_scan_gives_entries_to_the_same_devices(case):
    """Of devices that ask at one moment the lowest number comes first, in both."""
    assert taken(case).tolist() == [case.run()[3]]


def one_by_one(case: Queued) -> list[int]:
    """Who takes what by running every entry, when it is its turn, from the moment at which its taker asks."""
    entry = case.program(1)
    free = analytic.finish(case.program(int(case.planned.max())), case.durations)
    takers = []
    for of in case.entries:
        takers.append(int(free[0].argmin()))
        mine = slice(takers[-1], takers[-1] + 1)
        free[:, mine] = analytic.finish(entry, of[:, None, mine], free[:, mine])
    return takers


@settings(max_examples=40)
@given(st.integers(0, 2**20), st.integers(1, 12), st.integers(0, 60), st.integers(1, 4), st.booleans())
def test_so_it_is_where_devices_ask_within_a_rounding_of_each_other(seed, devices, entries, sizes, slow):
    """Samples of a few lengths, which devices run in unlike orders: sums that differ in the last bit or not at all."""
    rng, count = np.random.default_rng(seed), len(program(3, 1, "on-demand").durations)
    table = rng.choice(rng.uniform(0.1, 1.0, sizes), devices) * rng.uniform(0.1, 1.0, (count, 1, 1))
    drawn = rng.choice(rng.uniform(0.1, 1.0, sizes), entries)[:, None, None] * rng.uniform(0.1, 1, (count, 1))
    factors = rng.choice([1.0, 2.0 if slow else 1.0], devices)
    case = Queued(3, "fsdp2", np.ones(devices, int), table, drawn * factors)
    assert taken(case).tolist() == [one_by_one(case)]


@given(queued(), st.integers(0, 99))
def test_a_run_is_that_of_the_schedule_which_came_of_it_to_the_last_bit(case, seed):
    """Under jitter, too."""
    steps, asked, had, takers = case.run()
    assert np.array_equal((asked, had), analytic.run(steps, case.realised(steps, takers)))
    cluster = one_node(len(case.planned), jitter=0.3)
    steps, asked, had, takers = case.run(cluster, seed)
    plain = des.run(steps, case.realised(steps, takers), cluster, [np.random.default_rng(seed)])[:2]
    assert np.array_equal((asked, had), plain)


SHARED = st.sampled_from([None, Cluster(4, 2, 3e11, 2.5e10, 1)])


@given(queued(), SHARED)
def test_entries_go_in_their_order_to_whoever_asks_first(case, cluster):
    """Shared links or not: nobody gets an entry while another has asked earlier and got none."""
    steps, asked, _, takers = case.run(cluster if len(case.planned) == 4 else None)
    assert len(takers) == len(case.entries)
    times, next_of, last = asking(steps, asked), case.planned.copy(), -1.0
    for taker in takers:
        mine = times[next_of[taker], taker]
        others = times[next_of, np.arange(len(next_of))]
        assert mine == others.min()
        assert taker == np.flatnonzero(others == mine)[0] or cluster is not None
        assert mine >= last
        next_of[taker], last = next_of[taker] + 1, mine


@given(queued())
def test_devices_end_within_the_last_entries_of_each_other(case):
    """List scheduling: who ends after its own work was done ran an entry that nobody else was free for."""
    steps, asked, _, takers = case.run()
    ends = asking(steps, asked)[-1]
    own = case.program(int(case.planned.max()))
    alone = asking(own, analytic.run(own, case.durations)[0])[-1]
    longest = [case.entries[e].sum(axis=0) for e in range(len(case.entries))]
    steps_of_one = len([s for s in case.program(1).steps if s.microbatch == 0])
    for d, end in enumerate(ends):
        if end > alone[d]:
            last = max(e for e, taker in enumerate(takers) if taker == d)
            assert end - ends.min() <= longest[last][d] * steps_of_one + 1e-9


@given(queued(styles=("smooth",)), st.randoms(use_true_random=False))
def test_with_devices_alike_and_links_of_their_own_shorter_is_never_slower(case, random):
    """Entries are independent of each other, so Graham's anomalies need devices or links that are not alike."""
    alike = replace(case, entries=np.repeat(case.entries[:, :, :1], len(case.planned), axis=2))
    factors = np.random.default_rng(random.getrandbits(32)).uniform(0, 1, alike.entries.shape[:2])
    shorter = replace(alike, durations=alike.durations * random.random(), entries=alike.entries * factors[:, :, None])
    slow, fast = (c.run()[2].max() for c in (alike, shorter))
    assert fast <= slow * (1 + 1e-9)


def by_hand(own: tuple[float, ...], gather: tuple[float, ...], entry: tuple[float, ...]) -> Queued:
    """A microbatch on each device, of a gather and a forward, and one entry that takes unlike times on devices."""
    steps = program(1, 1, "on-demand", "none")
    table = np.zeros((len(steps.durations), 1, len(own)))
    table[steps.durations.index(("forward", 0)), 0] = own
    table[steps.durations.index(("gather root", 0)), 0] = gather
    entries = np.zeros((1, len(steps.durations), len(own)))
    entries[0, steps.durations.index(("forward", 0))] = entry
    return Queued(1, "none", np.ones(len(own), int), table, entries)


def test_graham_a_slow_device_that_is_done_earlier_can_make_the_minibatch_longer():
    """It takes what a quick one would have taken."""
    late, early = (by_hand((3.0, own), (0.0, 0.0), (1.0, 3.0)).run() for own in (3.5, 2.5))
    assert (late[3], late[2].max()) == ([0], 4.0)
    assert (early[3], early[2].max()) == ([1], 5.5)


def test_graham_shared_links_can_make_the_minibatch_shorter():
    """Device 2 shares its NIC with device 3, so that it comes too late for an entry that it would take long for."""
    case = by_hand((3.0, 4.0, 2.2, 0.0), (0.0, 0.0, 0.5, 5.0), (1.0, 1.0, 6.0, 1.0))
    alone, shared = case.run(), case.run(Cluster(4, 2, 3e11, 2.5e10, 1))
    assert (alone[3], shared[3]) == ([2], [0])
    assert alone[2].max() == pytest.approx(8.7)
    assert shared[2].max() == pytest.approx(5.5)
