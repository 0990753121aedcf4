"""How a step is sharded where nobody chose: the one rule of every door.

Full sharding moves all weights between nodes twice in every microbatch, and all gradients once. Under hybrid sharding a
node holds both whole, so that one exchange in a minibatch is all that passes between nodes. It is usual wherever there
are several nodes and memory holds it on both sides, those who meet and those who do not: a lead is nothing where the
rival was left no room. Where it holds it with less room for microbatches, seconds decide. Inside one node it is full.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from odcsim.cost import Cost
from odcsim.decide import limit, room, stock
from odcsim.decide.decision import NEAR
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.neighbours.neighbour import lacking
from odcsim.program import SIDES
from odcsim.question import Question
from odcsim.recipe import BY_RULE
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.schedule import Schedule

USUAL = "the default between nodes; --sharding full is the alternative"


def by_rule(setting: Setting) -> Setting:
    """The setting with a sharding, and why it is that: the rule's, unless somebody chose one."""
    tokens = filled(setting.trace.fullest, setting.max_tokens, setting.device_tokens)
    cost, why = choose(setting.cost, tokens, setting.trace.longest, setting.trainer)
    return replace(setting, cost=cost, sharded_by=why)


def of_schedules(cost: Cost, schedules: Sequence[Schedule], limit: int) -> tuple[Cost, str]:
    """The same of a file's schedules, which were made with that limit."""
    device = float(np.mean([one.sizes.sum() for one in schedules])) / cost.workers
    tokens = filled(max(one.fullest for one in schedules), limit, device)
    return choose(cost, tokens, max(int(one.sizes.max()) for one in schedules))


def filled(fullest: int, limit: int, device: float) -> int:
    """Tokens that a microbatch is to have room for: what stays together, and so much of a limit that somebody gave (0:
    nobody) as devices fill, which have so many tokens of a minibatch."""
    return max(fullest, min(limit, int(room.ENOUGH * device)))


def choose(cost: Cost, tokens: int, longest: int, trainer: str | None = None) -> tuple[Cost, str]:
    """With a sharding, and the reason where there are several nodes and nobody chose. Microbatches are to hold so many
    tokens, of samples no longer than that."""
    if cost.recipe.sharding != BY_RULE:
        return cost, ""
    full, each = cost.by(sharding="full"), cost.cluster.devices_per_node
    if cost.cluster.nodes == 1:
        return full, ""
    if cost.cluster.gpus % each:
        return full, f"hybrid is for whole nodes of {each} devices"
    if each % cost.recipe.context:
        return full, f"a node of {each} devices does not hold a group of {cost.recipe.context}"
    hybrid = cost.by(sharding="hybrid")
    known = stock.find(trainer)
    if known is not None and lacking(known, hybrid.recipe) != lacking(known, full.recipe):
        return full, f"{known.name}'s settings do not say hybrid"

    def need(how: Cost, side: str) -> Need:
        total = room.needed(room.under(how, side), tokens, longest).total
        return Need(total, cost.cluster.memory_bytes or None)

    needs = [(need(hybrid, side), need(full, side)) for side in SIDES]
    worse = [ours for ours, theirs in needs if capacity.level(ours) > min(capacity.level(theirs), capacity.TIGHT)]
    if not worse:
        return hybrid, USUAL
    most = max(worse, key=lambda one: one.memory_bytes)
    tight = ", which is tight" if capacity.tight(most) else ""
    return full, f"hybrid would take {capacity.size(most)} of memory per device{tight}"


def with_limit(setting: Setting, *, advance: Callable[[], None] = lambda: None) -> Setting:
    """The setting with its limit chosen. Where hybrid is by the rule and has no room for full sharding's limit, seconds
    choose between the two as between limits: neither side is to lose much over its own best."""
    ours = limit.choose(setting, advance=advance)
    if setting.sharded_by != USUAL:
        return ours
    full = of_run(setting)
    fewer, most = (max(limit.limits(one), default=0) for one in (setting, full))
    if not fewer or most <= fewer or (theirs := limit.choose(full)).limit <= fewer:
        return ours
    try:
        sides = zip(*(limit.seconds(one, [one.limit]) for one in (ours, theirs)), strict=True)
    except InputError:
        return ours  # whoever draws refuses, and says what
    times = [hybrid[0] / other[0] for hybrid, other in sides]  # as long under hybrid as under full
    lost, gained = max(1.0, *times), 1 / min(1.0, *times)
    room_for = f"at most {fewer:,} tokens in a microbatch"
    if lost > NEAR * gained:
        why = f"hybrid leaves memory for {room_for} and would take up to {lost:.2f} times as long"
        return replace(theirs, sharded_by=f"{why}; --sharding hybrid is the alternative")
    if lost <= NEAR:
        return ours
    side = SIDES[times.index(lost)]
    squeezed = f"though it leaves memory for {room_for}, so that {side} takes {lost:.2f} times as long"
    return replace(ours, sharded_by=f"the default between nodes, {squeezed}; --sharding full is the alternative")


def as_ran(question: Question) -> Question:
    """Of a run that exists: trainers shard over all devices where nobody tells them otherwise."""
    return replace(question, recipe=question.recipe.sharded("full"))


def of_run(setting: Setting) -> Setting:
    """The same of a setting that the rule sharded."""
    return replace(setting, cost=setting.cost.by(sharding="full"), sharded_by="") if setting.sharded_by else setting
