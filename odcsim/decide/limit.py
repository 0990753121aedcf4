"""The token limit of a microbatch where nobody gave one: what memory has room for, and what is fastest of that.

A comparison has one limit for all of its rows, so it is the one by which neither those who meet nor on-demand lose much
over their own best. Whichever is ahead there is ahead for a reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from odcsim.balance import standing_for
from odcsim.decide import room
from odcsim.decide.setting import Setting
from odcsim.decide.way import Plans, Way
from odcsim.errors import InputError
from odcsim.program import SIDES
from odcsim.results import capacity

FEW = 4  # minibatches to try a limit on
MANY = 64  # samples of a device: beyond, fewer minibatches tell as much, and balancers' own estimates are near enough
EACH = 1.4  # times the limit before it
SAME = 1.003  # times the best: a smaller limit that is as good leaves memory to spare


def choose(setting: Setting, *, advance: Callable[[], None] = lambda: None) -> Setting:
    """The setting with its limit chosen, or as it is where the GPU's memory is not known or one sample fills it.
    `advance` is called once for each limit of a side that is done."""
    tried = limits(setting)
    if len(tried) < 2:
        return setting
    try:
        every = seconds(setting, tried, advance=advance)
    except InputError:
        return setting  # whoever draws refuses, and says what
    worst = [max(side[i] / min(side) for side in every) for i in range(len(tried))]
    best = next(i for i, regret in enumerate(worst) if regret <= SAME * min(worst))
    return replace(setting, max_tokens=tried[best], limits_tried=len(tried))


def seconds(setting: Setting, tried: Sequence[int], *, advance: Callable[[], None] = lambda: None) -> list[list[float]]:
    """Of each side at each of these limits, by its best balancer on a few minibatches."""
    few, exactly = max(1, FEW * MANY // max(MANY, setting.minibatch)), setting.minibatch < MANY
    plans, every = Plans(few), list[list[float]]()
    for side in SIDES:
        every.append([])
        for limit in tried:
            ways = [Way(replace(setting, max_tokens=limit), name, side) for name in standing_for(side)]
            every[-1].append(min(float(plans.screened(way, few, exactly=exactly).sum()) for way in ways))
            advance()
    return every


def limits(setting: Setting) -> tuple[int, ...]:
    """Those that fit with something to spare, under every side that runs the longest sample at all."""
    memory, longest, least = setting.cost.cluster.memory_bytes, setting.trace.longest, setting.trace.fullest
    device = setting.device_tokens
    top = int(max(least, room.ENOUGH * device))
    costs = [room.under(setting.cost, side) for side in SIDES]
    most = [room.fullest(cost, longest, capacity.filled(memory), top) for cost in costs] if memory else [0]
    return room.limits(least, min((m for m in most if m >= least), default=0), device, EACH)
