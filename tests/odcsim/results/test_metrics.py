"""Laws of usage: where device time goes adds up, and small cases by hand go where they must."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import ANYHOW, BETWEEN, SYNCS, TRANSFERS, Case, cases

from odcsim.cluster import Cluster
from odcsim.executors import analytic, des
from odcsim.program import COMPUTE, program
from odcsim.results import metrics
from odcsim.results.metrics import PARTS, Usage
from odcsim.results.slices import compute_lane, transfer_lane, view
from odcsim.timeline import Block


def block_of(case: Case, run=analytic.run) -> Block:
    return Block(case.program, np.arange(len(case.counts)), case.counts, *run(case.program, case.durations))


def usage(case: Case, run=analytic.run) -> Usage:
    return metrics.measure(block_of(case, run))


COMPUTES = ("forward", "head", "backward")
EITHER = {"overhead", "optimizer", "publish", "meeting", "other"}  # what metrics calls other


def agrees(block: Block) -> Usage:
    """Slices fill a lane, do one thing at a time, only what the device ran, and come to what metrics says."""
    found = metrics.measure(block)
    for place in range(block.counts.shape[0]):
        total = dict.fromkeys((*COMPUTES, *PARTS), 0.0)
        for device in range(block.counts.shape[1]):
            seen = view(block, place, device)
            for lane in (COMPUTE, *seen.lanes()):
                slices = compute_lane(seen) if lane == COMPUTE else transfer_lane(seen, lane)
                assert all(a.end <= b.start for a, b in pairwise(slices))
                done = {s.microbatch for s in slices if s.kind not in PARTS}
                assert done <= {-1, *range(block.counts[place, device])}
            slices = compute_lane(seen)
            edges = [0.0, *(edge for s in slices for edge in (s.start, s.end)), block.had[:, place].max()]
            assert edges == sorted(edges)
            assert edges[::2] == edges[1::2]
            for s in slices:
                total["other" if s.kind in EITHER else s.kind] += s.seconds
        assert sum(total[kind] for kind in COMPUTES) == pytest.approx(found.compute[place], abs=1e-9)
        for part in PARTS:
            assert total[part] == pytest.approx(getattr(found, part)[place], abs=1e-9), part
    return found


@settings(max_examples=300)
@given(cases(**ANYHOW))
def test_compute_and_the_parts_of_idle_are_all_device_time(case):
    """And slices of a device fill it, and come to the same."""
    found = agrees(block_of(case))
    computed = sum(case.durations[s.duration].sum(axis=1) for s in case.program.steps if s.kind == "compute")
    np.testing.assert_allclose(found.compute, computed, rtol=1e-9, atol=1e-12)
    if found.makespan.any():
        idle = 1 - found.compute.sum() / (case.counts.shape[1] * found.makespan.sum())
        assert found.idle() == pytest.approx(idle, abs=1e-9)
        assert sum(found.idle_parts().values()) == pytest.approx(found.idle())
        assert all(-1e-9 <= share <= 1 + 1e-9 for share in found.idle_parts().values())


@given(cases(devices=(4, 4), microbatches=(1, 3), **ANYHOW))
def test_the_sum_holds_on_shared_links_too(case):
    agrees(block_of(case, lambda steps, table: des.run(steps, table, Cluster(4, 2, 3e11, 2.5e10, 1))[:2]))


@settings(max_examples=150)
@given(st.one_of(cases(**ANYHOW), cases(devices=(8, 9), minibatches=(1, 12))), st.booleans())
def test_rows_that_share_memory_measure_the_same(case, simulated):
    """What `compare` does to be quick equals measuring the whole timeline, to the last bit: rows that stay in the
    processor's cache, their longer axis last in memory, and nothing checked that a simulation promises."""
    steps = case.program
    asked, had, begun, order = analytic.recycled(steps, case.durations, metrics.uses(steps))
    found = metrics.measure_rows(steps, asked, had, order, begun, simulated=simulated)
    whole = usage(case)
    for field in fields(Usage):
        assert np.array_equal(getattr(found, field.name), getattr(whole, field.name)), field.name


@given(cases(**ANYHOW), st.integers(0, 2**20))
def test_a_transfer_that_ends_by_another_clock_takes_no_more_than_its_gap(case, seed):
    """The last of its lane does, before a compute step that began all the same."""
    block, late = block_of(case), np.random.default_rng(seed).exponential(1.0, case.durations.shape[1:])
    had = block.had.copy()
    for gap in metrics.gaps(case.program):
        had[list({case.program.steps[t].lane: t for t in reversed(gap.transfers)}.values())] += late
    found = metrics.measure(replace(block, had=had))
    assert all((getattr(found, part) >= -1e-9).all() for part in PARTS)


@given(st.integers(1, 20), st.sampled_from(SYNCS))
def test_recycled_rows_are_few(microbatches, sync):
    """Their number follows the layers that overlap, not the steps: memory does not grow with microbatches."""
    steps = program(4, microbatches, sync)
    asked, *_ = analytic.recycled(steps, np.zeros((len(steps.durations), 1, 1)), metrics.uses(steps))
    assert len({row.__array_interface__["data"][0] for row in asked}) <= 32


@given(cases())
def test_without_transfers_nothing_is_lost_to_them_and_who_meets_nobody_waits_for_nobody(case):
    found, own = usage(case.without(*TRANSFERS, *BETWEEN)), usage(case)
    assert not found.gather.any()
    assert not found.push.any()
    alone = case.counts.shape[1] == 1
    assert not own.wait_inside.any() or not (alone or case.program.one_sided)
    assert not own.wait_end.any() or not alone


def by_hand(sync: str, layers: int = 1, microbatches: int = 1, prefetch: str = "none", **seconds) -> Usage:
    """A program in which only the named things take time: `forward=[2, 5]` seconds on devices 0 and 1."""
    steps = program(layers, microbatches, sync, prefetch)
    devices = max(len(v) for v in seconds.values())
    table = np.zeros((len(steps.durations), 1, devices))
    for row, (what, _) in enumerate(steps.durations):
        table[row, 0] = seconds.get(what.replace(" ", "_"), 0.0)
    return usage(Case(steps, np.full((1, devices), microbatches), table))


def only(found: Usage, makespan: float, **expected: float) -> None:
    assert found.makespan[0] == makespan
    for part in ("compute", *PARTS):
        assert getattr(found, part)[0] == pytest.approx(expected.get(part, 0.0)), part


TURNS = {"forward": [2, 5], "backward": [5, 2]}
LAYER = {"gather_layer": [2], "forward": [1], "backward": [1]}
PUSHES = {"push_layer": [2], "push_root": [3], "backward": [1]}
ENDS = {"overhead": [2], "optimizer": [3], "publish": [1], "meeting_to_settle": [1], "meeting": [1]}
DEMAND, EVERY = ("on-demand",), SYNCS


@pytest.mark.parametrize(
    ("syncs", "how", "seconds", "makespan", "parts"),
    [
        # waiting at a transfer is inside; on demand the same is at the end, and waits that take turns vanish
        (("collective", "deferred"), {}, {"forward": [2, 5]}, 5, {"compute": 7, "wait_inside": 3}),
        (DEMAND, {}, {"forward": [2, 5]}, 5, {"compute": 7, "wait_end": 3}),
        (("collective",), {}, TURNS, 10, {"compute": 14, "wait_inside": 6}),
        (DEMAND, {}, TURNS, 7, {"compute": 14}),
        # of a meeting, those who came first wait for the last, and all move then
        (("collective",), {}, {"forward": [2, 5], "push_layer": [2, 2]}, 7,
         {"compute": 7, "wait_inside": 3, "push": 4}),
        # forward and backward gather the layer once each: without prefetch nothing hides it
        (EVERY, {}, LAYER, 6, {"compute": 2, "gather": 4}),
        (EVERY, {"layers": 2}, {"gather_layer": [2], "forward": [3], "head": [3], "backward": [3]}, 23,
         {"compute": 15, "gather": 8}),
        (EVERY, {"layers": 2, "prefetch": "fsdp2"}, {"gather_layer": [2], "forward": [3], "head": [3], "backward": [3]},
         17, {"compute": 15, "gather": 2}),
        # the root's is in front of every microbatch, the last pushes behind it; those beside a backward are hidden
        (DEMAND, {"microbatches": 3, "prefetch": "fsdp2"}, {"gather_root": [2], "forward": [4]}, 18,
         {"compute": 12, "gather": 6}),
        (EVERY, {}, PUSHES, 6, {"compute": 1, "push": 5}),
        (DEMAND, {"layers": 4, "prefetch": "fsdp2"}, PUSHES | {"backward": [4]}, 21, {"compute": 16, "push": 5}),
        (("collective",), {"microbatches": 3}, PUSHES, 18, {"compute": 3, "push": 15}),
        (("deferred",), {"microbatches": 3}, PUSHES, 8, {"compute": 3, "push": 5}),
        # what is no transfer and no wait is other
        (("collective",), {}, {"overhead": [2], "optimizer": [3], "meeting_to_settle": [1], "forward": [4]}, 10,
         {"compute": 4, "other": 6}),
        (DEMAND, {}, ENDS, 8, {"other": 8}),
    ],
)  # fmt: skip
def test_small_cases_by_hand_go_where_they_must(syncs, how, seconds, makespan, parts):
    for sync in syncs:
        only(by_hand(sync, **how, **seconds), makespan, **parts)


def test_a_device_without_microbatches_waits_at_the_end():
    steps = program(1, 2, "on-demand")
    table = np.array([[[0, 4.0 * (what == "forward")]] for what, _ in steps.durations])
    only(usage(Case(steps, np.array([[0, 2]]), table)), 8, compute=8, wait_end=8)
    empty = by_hand("on-demand", forward=[0.0])  # is not idle
    assert (empty.idle(), set(empty.idle_parts())) == (0.0, set(PARTS))


def test_gather_and_push_in_flight_at_once_count_once():
    """On-demand overlaps them on lanes of their own; together they cannot take more than the gap they made."""
    found = by_hand("on-demand", layers=3, prefetch="fsdp2", gather_layer=[4], push_layer=[5], backward=[1])
    assert found.other[0] == pytest.approx(0)
    assert found.gather[0] + found.push[0] == pytest.approx(found.makespan[0] - 3)


def test_usages_go_back_to_the_order_of_their_minibatches():
    names = [field.name for field in fields(Usage)]
    some = [(np.array(of), Usage(*[np.array(of, float) + i for i in range(len(names))])) for of in ([3, 0], [1, 2])]
    whole = metrics.assemble(some, 4)
    assert [getattr(whole, name).tolist() for name in names] == [[i, 1 + i, 2 + i, 3 + i] for i in range(len(names))]


@given(cases(microbatches=(1, 3)))
def test_a_microbatch_that_a_device_did_not_run_is_not_shown_whatever_its_times(case):
    block = block_of(case)
    seen = view(replace(block, counts=np.zeros_like(block.counts)), 0, 0)
    shown = [s for lane in seen.lanes() for s in transfer_lane(seen, lane)] + compute_lane(seen)
    assert {s.microbatch for s in shown} <= {-1}


def test_steps_add_up_to_the_run(timeline):
    lines, found = list(metrics.steps(timeline, "mine")), metrics.usage(timeline)
    assert [line["step"] for line in lines] == list(range(len(timeline.samples)))
    assert {line["run"] for line in lines} == {"mine"}
    seconds = [line["seconds"] for line in lines]
    assert [line["elapsed"] for line in lines] == pytest.approx(np.cumsum(seconds))
    assert sum(seconds) == pytest.approx(found.makespan.sum())
    assert sum(line["idle"] * line["seconds"] for line in lines) / sum(seconds) == pytest.approx(found.idle())
    for line, tokens in zip(lines, timeline.tokens, strict=True):
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx(tokens)
        assert sum(line[part] for part in PARTS) == pytest.approx(line["idle"])
