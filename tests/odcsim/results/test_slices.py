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
from odcsim.timeline import Block

COMPUTES = ("forward", "head", "backward")
EITHER = {"overhead", "optimizer", "publish", "meeting", "other"}  # what metrics calls other


def block_of(case, run=analytic.run):
    minibatches = np.arange(case.counts.shape[0])
    return Block(case.program, minibatches, case.counts, *run(case.program, case.durations))


def every_device(block):
    for place in range(block.counts.shape[0]):
        yield place, [view(block, place, device) for device in range(block.counts.shape[1])]


@given(cases(**ANYHOW))
def test_the_compute_lane_is_filled_from_the_start_to_the_end(case):
    block = block_of(case)
    for place, views in every_device(block):
        for seen in views:
            slices = compute_lane(seen)
            edges = [0.0, *(edge for s in slices for edge in (s.start, s.end)), block.had[:, place].max()]
            assert edges == sorted(edges)
            assert edges[::2] == edges[1::2]


@settings(max_examples=200)
@given(cases(**ANYHOW))
def test_slices_come_to_what_metrics_says(case):
    agrees(block_of(case))


@settings(max_examples=30)
@given(cases(devices=(4, 4), microbatches=(1, 2), **ANYHOW))
def test_slices_come_to_what_metrics_says_on_shared_links_too(case):
    cluster = Cluster(4, 2, 3e11, 2.5e10, 1)
    agrees(block_of(case, lambda steps, table: des.run(steps, table, cluster)))


def agrees(block):
    usage = metrics.measure(block)
    for place, views in every_device(block):
        total = dict.fromkeys((*COMPUTES, *PARTS), 0.0)
        for s in (s for seen in views for s in compute_lane(seen)):
            total["other" if s.kind in EITHER else s.kind] += s.seconds
        assert sum(total[kind] for kind in COMPUTES) == pytest.approx(usage.compute[place], abs=1e-9)
        for part in PARTS:
            assert total[part] == pytest.approx(getattr(usage, part)[place], abs=1e-9), part


@given(cases(**ANYHOW))
def test_lanes_do_one_thing_at_a_time_and_only_what_the_device_ran(case):
    block = block_of(case)
    for place, views in every_device(block):
        for device, seen in enumerate(views):
            for lane in (COMPUTE, *seen.lanes()):
                slices = compute_lane(seen) if lane == COMPUTE else transfer_lane(seen, lane)
                assert all(a.end <= b.start for a, b in pairwise(slices))
                done = {s.microbatch for s in slices if s.kind not in PARTS}
                assert done <= {-1, *range(block.counts[place, device])}


@given(cases(microbatches=(1, 3)))
def test_a_microbatch_that_a_device_did_not_run_is_not_shown_whatever_its_times(case):
    block = block_of(case)
    pretended = replace(block, counts=np.zeros_like(block.counts))
    seen = view(pretended, 0, 0)
    shown = [s for lane in seen.lanes() for s in transfer_lane(seen, lane)] + compute_lane(seen)
    assert {s.microbatch for s in shown} <= {-1}
