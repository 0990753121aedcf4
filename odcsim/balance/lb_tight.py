"""lb-tight: the tightest fit by the cost model. On-demand sync alone can run it."""

import math

import numpy as np

from odcsim.balance.fewest import pack_all
from odcsim.balance.fill import fill
from odcsim.balance.longest_first import longest_first
from odcsim.balance.packing import Microbatch
from odcsim.balance.scenarios import in_bounds
from odcsim.balance.trades import CLOSE, Floats, Held, hold, relieve

ENOUGH = 2 * CLOSE  # above the lower bound: below this, tight fits cost more microbatches than they save
GROWTH = 2.0  # of the slack, from one target to the next


def lb_tight(weights: Floats, tokens: Held, devices: int, max_tokens: int) -> list[list[Microbatch]]:
    """The right one under on-demand where costs are calibrated on the machine that runs, above all at 2 to 6 samples
    per device. Where the quadratic part is off by a fifth it may lose several percent: lb-robust does not.
    """
    return pack_all(tightest(weights, devices), weights, tokens, max_tokens)


def tightest(weights: Floats, devices: int) -> Held:
    """LPT with trades, and where that does not reach the lower bound, multifit with trades.

    Targets grow from the lower bound until no further one could be an improvement; trades mend what a target leaves
    over, which takes the place of a search between targets.
    """
    scaled = in_bounds(weights[None], devices)
    held, top = _traded(hold(longest_first(weights, devices), devices), scaled)
    slack = CLOSE
    while top > 1 + max(slack, ENOUGH):
        owner = np.empty(len(weights), dtype=np.int64)
        for device, group in enumerate(fill(scaled[0].tolist(), devices, 1 + slack)):
            owner[group] = device
        other, height = _traded(hold(owner, devices), scaled)
        if height < top:
            held, top = other, height
        slack *= GROWTH
    return held


def _traded(held: Held, scaled: Floats) -> tuple[Held, float]:
    """Rounds of trades for as long as they halve what is left above the bound."""
    held, top = relieve(held, scaled)
    before = math.inf
    while ENOUGH < top - 1 < (before - 1) / 2:
        before = top
        held, top = relieve(held, scaled)
    return held, top
