"""lb-tight: the tightest fit by the cost model. On-demand sync alone can run it."""

import numpy as np

from odcsim.heuristics.balancer import Balancer, Deal, Work
from odcsim.heuristics.bound import lower_bound
from odcsim.heuristics.fewest import pack_all
from odcsim.heuristics.fill import fill
from odcsim.heuristics.longest_first import longest_first
from odcsim.heuristics.swaps import MANY, even_out
from odcsim.heuristics.trades import CLOSE, ENOUGH, Floats, Held, hold, owners, settle

GROWTH = 2.0  # of the slack, from one target to the next


def lb_tight(work: Work) -> Deal:
    """The right one under on-demand where costs are calibrated on the machine that runs, above all at 2 to 6 samples
    per device. Where the quadratic part is off by a fifth it may lose several percent: lb-robust does not.
    """
    return Deal(pack_all(tightest(work.weights, work.devices), work.weights, work.tokens, work.max_tokens))


def tightest(weights: Floats, devices: int) -> Held:
    """LPT with trades, and where that does not reach the lower bound, multifit with trades.

    Targets grow from the lower bound until no further one could be an improvement; trades mend what a target leaves
    over, which takes the place of a search between targets.
    """
    scaled = weights / (lower_bound(weights, devices) or 1.0)
    held, top = _traded(longest_first(weights, devices), devices, scaled)
    slack = CLOSE
    while top > 1 + max(slack, ENOUGH):
        owner = owners(fill(scaled.tolist(), devices, 1 + slack), len(weights))
        other, height = _traded(owner, devices, scaled)
        if height < top:
            held, top = other, height
        slack *= GROWTH
    return held


def _traded(owner: Held, devices: int, scaled: Floats) -> tuple[Held, float]:
    """Among many devices rounds of trades, among few of them one by one."""
    if devices < MANY:
        owner = owners(even_out(_groups(owner, devices), scaled.tolist()), len(owner))
        return hold(owner, devices), float(np.bincount(owner, scaled).max())
    settled = settle(hold(owner, devices), scaled)
    return settled.held, settled.top


def _groups(owner: Held, devices: int) -> list[list[int]]:
    return [np.flatnonzero(owner == device).tolist() for device in range(devices)]


BALANCER = Balancer(
    "lb-tight", lb_tight, "the most even totals: where costs were measured", free_counts=True, tight=True
)
