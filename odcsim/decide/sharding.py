"""How a step is sharded where nobody chose: the one rule of every door.

Full sharding moves all weights between nodes twice in every microbatch, and all gradients once. Under hybrid sharding a
node holds both whole, so that one exchange in a minibatch is all that passes between nodes. It is usual wherever there
are several nodes and memory holds it on both sides, those who meet and those who do not: a lead is nothing where the
rival was left no room. Inside one node it is full sharding.
"""

from dataclasses import replace

from odcsim.cost import Cost
from odcsim.decide import room, stock
from odcsim.decide.limit import SIDES
from odcsim.decide.setting import Setting
from odcsim.neighbours.neighbour import lacking
from odcsim.question import Question
from odcsim.recipe import BY_RULE
from odcsim.results import capacity
from odcsim.results.capacity import Need

USUAL = "usual between nodes; --sharding full is the other"


def settled(setting: Setting) -> Setting:
    """The setting with a sharding, and why it is that: the rule's, unless somebody chose one."""
    if setting.cost.recipe.sharding != BY_RULE:
        return setting
    against = _against(setting)
    how = "full" if setting.cost.cluster.nodes == 1 or against else "hybrid"
    why = "" if setting.cost.cluster.nodes == 1 else against or USUAL
    return replace(setting, cost=setting.cost.by(sharding=how), sharded_by=why)


def as_ran(question: Question) -> Question:
    """Of a run that exists: trainers shard over all devices where nobody tells them otherwise."""
    return replace(question, recipe=question.recipe.sharded("full"))


def of_run(setting: Setting) -> Setting:
    """The same of a setting that the rule sharded."""
    return replace(setting, cost=setting.cost.by(sharding="full"), sharded_by="") if setting.sharded_by else setting


def _against(setting: Setting) -> str:
    """What keeps several nodes from hybrid sharding, if anything does."""
    cost, trainer = setting.cost, stock.known(setting.trainer)
    if cost.cluster.nodes == 1:
        return ""
    if cost.cluster.devices % (each := cost.cluster.devices_per_node):
        return f"hybrid is for whole nodes of {each} devices"
    hybrid = cost.by(sharding="hybrid")
    if trainer is not None and lacking(trainer, hybrid.recipe) != lacking(trainer, cost.recipe):
        return f"{trainer.name}'s settings do not say hybrid"
    need, full = (_needed(one, setting) for one in (hybrid, cost.by(sharding="full")))
    if capacity.level(need) > min(capacity.level(full), capacity.TIGHT):
        return f"hybrid would take {capacity.told(need)} of memory per device"
    return ""


def _needed(cost: Cost, setting: Setting) -> Need:
    """Of the side that needs most, with the longest sample, or as full as a limit that somebody gave lets devices
    be."""
    trace, full = setting.trace, int(room.ENOUGH * setting.device_tokens)
    tokens = max(trace.fullest, min(setting.max_tokens, full))
    most = max(room.needed(room.under(cost, sync), tokens, trace.longest).total for sync in SIDES)
    return Need(most, cost.cluster.memory_bytes or None)
