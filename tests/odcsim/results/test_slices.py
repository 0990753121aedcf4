"""Laws of slices: they fill a device's time, and come to what metrics says."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import ANYHOW, cases

from odcsim.cluster import Cluster
from odcsim.executors import analytic, des
from odcsim.program import COMPUTE
from odcsim.results import metrics
from odcsim.results.metrics import PARTS
from odcsim.results.slices import compute_lane, transfer_lane, view
from odcsim.results.steps import steps
from odcsim.timeline import Block

COMPUTES = ("forward", "head", "backward")
EITHER = {"overhead", "optimizer", "publish", "meeting", "other"}  # what metrics calls other


def block_of(case, run=analytic.run):
    minibatches = np.arange(case.counts.shape[0])
    return Block(case.program, minibatches, case.counts, *run(case.program, case.durations))


def every_device(block):
    for place in range(block.counts.shape[0]):
        yield place, [view(block, place, device) for device in range(block.counts.shape[1])]


def agrees(block):
    """Slices fill a lane, do one thing at a time, only what the device ran, and come to what metrics says."""
    usage = metrics.measure(block)
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
        assert sum(total[kind] for kind in COMPUTES) == pytest.approx(usage.compute[place], abs=1e-9)
        for part in PARTS:
            assert total[part] == pytest.approx(getattr(usage, part)[place], abs=1e-9), part


@settings(max_examples=150)
@given(cases(**ANYHOW))
def test_slices_come_to_what_metrics_says(case):
    agrees(block_of(case))


@settings(max_examples=25)
@given(cases(devices=(4, 4), microbatches=(1, 2), **ANYHOW))
def test_slices_come_to_what_metrics_says_on_shared_links_too(case):
    agrees(block_of(case, lambda steps, table: des.run(steps, table, Cluster(4, 2, 3e11, 2.5e10, 1))))


@given(cases(microbatches=(1, 3)))
def test_a_microbatch_that_a_device_did_not_run_is_not_shown_whatever_its_times(case):
    block = block_of(case)
    seen = view(replace(block, counts=np.zeros_like(block.counts)), 0, 0)
    shown = [s for lane in seen.lanes() for s in transfer_lane(seen, lane)] + compute_lane(seen)
    assert {s.microbatch for s in shown} <= {-1}


def test_steps_add_up_to_the_run(timeline):
    lines, usage = list(steps(timeline, "mine")), metrics.usage(timeline)
    assert [line["step"] for line in lines] == list(range(len(timeline.samples)))
    assert {line["run"] for line in lines} == {"mine"}
    seconds = [line["seconds"] for line in lines]
    assert [line["elapsed"] for line in lines] == pytest.approx(np.cumsum(seconds))
    assert sum(seconds) == pytest.approx(usage.makespan.sum())
    assert sum(line["idle"] * line["seconds"] for line in lines) / sum(seconds) == pytest.approx(usage.idle())
    for line, tokens in zip(lines, timeline.tokens, strict=True):
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx(tokens)
        assert sum(line[part] for part in metrics.PARTS) == pytest.approx(line["idle"])
