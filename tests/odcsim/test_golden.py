"""Published figures, from lengths and cost alone: nothing here was fitted to them.

Each test prints what is published beside what comes out (`pytest -rP tests/odcsim/test_golden.py`), so that misses
inside the tolerance stay visible too. Paper: ODC, arXiv 2601.19362, model 1.5B on A100, LongAlign up to 64K tokens,
packing ratio 1, speedups over collective + lb-micro.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from odcsim.decide.asking import ask
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import usage
from odcsim.reading import load
from odcsim.results.metrics import Usage
from odcsim.trace import Trace

LONGEST = 65_536
RIVAL = ("lb-micro", "collective")
MINI, MICRO = ("lb-mini", "on-demand"), ("lb-micro", "on-demand")
LONGALIGN = load("longalign")


def papers(trace: Trace = LONGALIGN, *, devices: int = 8, minibatch: int = 4, limit: int = LONGEST, **more) -> Setting:
    """The golden setting, inside one node unless said otherwise: its fit holds the transfers there."""
    values = {"gpu": "a100", "devices": devices, "devices_per_node": devices, "max_tokens": limit, "minibatches": 100}
    return ask(trace, "r1-distill-qwen-1.5b", minibatch=minibatch, **values | more)


def used(setting: Setting, row: tuple[str, str]) -> Usage:
    return usage(plan(setting, row[0]).schedules, setting.cost.by(sync=row[1]))


def speedup(setting: Setting, row: tuple[str, str]) -> float:
    return float(used(setting, RIVAL).makespan.sum() / used(setting, row).makespan.sum())


def show(title: str, rows: Iterable[tuple[object, float, float]]) -> None:
    print(f"{title:<40}{'published':>10}{'here':>8}{'off':>8}")
    for name, published, here in rows:
        print(f"{name!s:<40}{published:>10.2f}{here:>8.3f}{here - published:>+8.3f}")


def test_the_papers_golden_setting():
    setting = papers(minibatches=200)
    found = [(row, published, speedup(setting, row)) for row, published in ((MINI, 1.34), (MICRO, 1.16))]
    show("minibatch 4, 8 devices", found)
    for _, published, here in found:
        assert abs(here - published) < 0.09


def test_the_papers_idle_at_minibatch_one_on_16_devices():
    """Published: up to 73 %, whatever the balancer and sync.

    16 devices are two nodes of 8. The fit holds transfers inside a node; what comes on top between nodes is tried too
    and moves little. The figure is the packer's estimate, and the costs that it packs by have no constant. Ours counts
    the fit's as compute, and so do the microbatches of the shorter samples: .67.
    """
    for per_node in (16, 8):
        setting = papers(devices=16, minibatch=1, minibatches=200, devices_per_node=per_node)
        packers = replace(setting.cost.profile, microbatch=0.0, fewest=0)
        found = [
            (f"{row} {name}", 0.73, used(replace(setting, cost=replace(setting.cost, profile=profile)), row).idle())
            for row in (RIVAL, MICRO, MINI)
            for name, profile in (("by the packer's costs", packers), ("by ours", setting.cost.profile))
        ]
        show(f"idle, {16 // per_node} node(s)", found)
        for _, published, here in found[::2]:
            assert abs(here - published) < 0.045
        for _, published, here in found[1::2]:
            assert published - 0.07 < here < published


def test_at_minibatch_one_nothing_is_gained():
    """Nor with MI300X's limit, where nothing is said to be fixed."""
    settings = [papers(devices=devices, minibatch=1, minibatches=30) for devices in (2, 8, 16)]
    for setting in (*settings, papers(dropped(LONGALIGN, 32_768), minibatch=1, limit=32_768)):
        for row in (MINI, MICRO):
            assert speedup(setting, row) == pytest.approx(1, abs=1e-4)


# The signs of the paper's parametric study. It tells no figures but curves: what rises, falls and peaks.


def rises(values: list[float]) -> bool:
    return all(later > earlier for earlier, later in pairwise(values))


def dropped(trace: Trace, limit: int) -> Trace:
    """Without the samples over a limit."""
    keep = trace.lengths <= limit
    return Trace(trace.name, trace.lengths[keep], counts=trace.counts[keep])


def scaled(trace: Trace, longest: int) -> Trace:
    """The same shape with another longest sample."""
    return Trace(trace.name, np.rint(trace.lengths * (longest / LONGEST)).astype(np.int64), counts=trace.counts)


@pytest.mark.parametrize("shorten", [scaled, dropped])
def test_gains_rise_with_the_longest_sample(shorten):
    """Attention weighs more in longer samples, so the same spread of lengths is a wider spread of seconds."""
    gains = [speedup(papers(shorten(LONGALIGN, longest), limit=longest), MINI) for longest in (16_384, 32_768, LONGEST)]
    print(f"{shorten.__name__} to 16K, 32K, 64K: {gains}")
    assert rises(gains)


@pytest.mark.parametrize("row", [MINI, MICRO])
def test_gains_rise_with_devices_and_peak_at_medium_minibatches(row):
    """To 16 devices: beyond, the longest sample alone ends the minibatch and the curve is flat."""
    gains = [speedup(papers(devices=devices), row) for devices in (2, 4, 8, 16)]
    print(f"{row} on 2, 4, 8, 16 devices: {gains}")
    assert rises(gains)
    gains = [speedup(papers(minibatch=size, minibatches=50), row) for size in (1, 2, 4, 8, 16)]
    print(f"{row} at minibatches 1, 2, 4, 8, 16: {gains}")
    assert 0 < int(np.argmax(gains)) < 4
    assert gains[0] < gains[-1] < max(gains)


@pytest.mark.parametrize("row", [MINI, MICRO])
def test_gains_fall_with_the_packing_ratio(row):
    """Room for more than the longest sample lets balancers pack microbatches alike, and collectives wait less. Beyond
    1.5 there is nothing left to lose."""
    gains = [speedup(papers(limit=int(ratio * LONGEST)), row) for ratio in (1, 1.25, 1.5, 4)]
    print(f"{row} at packing ratios 1, 1.25, 1.5, 4: {gains}")
    assert rises(gains[2::-1])
    assert gains[3] <= gains[2] + 0.01


# Global batch: on-demand without padding over padded collectives, as an independent port measured it.
MI300X = {8: 0.91, 16: 1.20, 32: 1.14, 64: 1.08, 128: 1.05}


def test_the_mi300x_hump():
    """1.5B on one node of 8 MI300X, at most 32,768 tokens in a microbatch.

    One fixed cost of 0.35 s per minibatch for on-demand (its publish) is the one number taken from these figures: it
    explains the loss at 8. What was assumed: LongAlign's shape without the samples over the limit (a loader that
    drops them; cutting them instead moves these figures by less than 0.04), and A100 seconds, since the ratio of
    attention to matmuls and not the speed sets a speedup.
    """
    trace = dropped(LONGALIGN, 32_768)
    here = {}
    for batch in MI300X:
        setting = papers(trace, minibatch=batch // 8, limit=32_768)
        profile = replace(setting.cost.profile, publish=0.35)
        here[batch] = speedup(replace(setting, cost=replace(setting.cost, profile=profile)), MINI)
    show("global batch on 8 MI300X", [(batch, published, here[batch]) for batch, published in MI300X.items()])
    assert here[8] < 1
    assert max(here, key=here.__getitem__) == 16
    assert rises([here[batch] for batch in (128, 64, 32, 16)])
    assert all(abs(here[batch] - published) < 0.04 for batch, published in MI300X.items())
