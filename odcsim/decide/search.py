"""The best way to run on so many GPUs: sharding, recompute, sync, balancer and token limit.

Ways are screened on few minibatches, and the best few are simulated on all. A way that would be behind those few though
its devices shared all work evenly is not even planned.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from odcsim import balance, catalog
from odcsim.decide import room, stock
from odcsim.decide.asking import setting_of
from odcsim.decide.decision import NEAR, NOTABLE
from odcsim.decide.remedies import outliers
from odcsim.decide.setting import Setting
from odcsim.decide.way import Plans, Way
from odcsim.executors import simulation
from odcsim.neighbours.neighbour import lacking
from odcsim.program import MEETING, SYNCS, WHOLE, sync_named
from odcsim.question import Question
from odcsim.recipe import RECOMPUTE
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.trace import Trace

FEW = 6  # minibatches to screen by
KEPT = 5  # ways with on-demand, and as many without, that are simulated


@dataclass(frozen=True, slots=True)
class Site:
    """So many GPUs of a kind, and the settings in which a way on them may run."""

    question: Question  # with its lengths read; its recipe has what the search may not choose
    memory: float  # bytes of a GPU
    settings: tuple[Setting, ...]  # by GPUs to each sequence, recompute and sharding
    plans: Plans

    @property
    def trace(self) -> Trace:
        return self.question.trace  # type: ignore[no-any-return]

    def ways(self) -> list[Way]:
        """Every way to screen that fits memory, or is tight where none does: the trainer's own, and ours."""
        every = list[Way]()
        for space in (self._own, self._ours):
            for memory in (capacity.filled(self.memory), self.memory):
                if some := list(space(memory)):
                    every += some
                    break
        return every

    def _own(self, memory: float) -> Iterator[Way]:
        if trainer := stock.find(self.question.trainer):
            for setting, sync in product(self.settings, trainer.syncs):
                if not lacking(trainer, setting.cost.recipe):
                    yield from stock.ways(setting, sync, memory)

    def _ours(self, memory: float) -> Iterator[Way]:
        for setting, sync in product(self.settings, SYNCS):
            if setting.cost.recipe.context > 1 and not sync_named(sync).meets:
                continue  # which nobody runs
            trace, cost = setting.trace, room.under(setting.cost, sync)
            most = room.fullest(cost, trace.longest, memory, useful(setting))
            limits = room.limits(trace.fullest, most, setting.device_tokens)
            for limit, name in product(limits, balance.standing_for(sync)):
                yield Way(replace(setting, max_tokens=limit), name, sync)


def useful(setting: Setting) -> int:
    """The limit from which on nothing is left to gain."""
    return int(max(setting.trace.fullest, room.ENOUGH * setting.device_tokens))


def site(question: Question, groups: Sequence[int] = ()) -> Site:
    """Settings by how many GPUs share each sequence, by recompute, and where there are several nodes by sharding. Where
    seconds are a fit to measurements, only what they can be derived for: beside them, estimates would compare two
    sources and not two ways."""
    recipe, groups = question.recipe, groups or (question.recipe.context,)
    if (trainer := stock.find(question.trainer)) is not None:
        plain = replace(recipe, recompute="full", sharding="full")
        stock.check(question.trace, plain, trainer, by_length=question.group_by_length)

    def setting(group: int, again: str, sharding: str) -> Setting:
        one = replace(recipe, recompute=again, sharding=sharding).by(context=group)
        return setting_of(replace(question, recipe=one), limited=False)

    usual = setting(groups[0], "full", "full").cost
    derived = usual.profile.fidelity != "catalogue" and not usual.profile.factor
    whole_nodes = usual.cluster.nodes > 1 and not question.devices % usual.cluster.devices_per_node
    shardings: tuple[str, ...] = ("full", "hybrid") if whole_nodes else ("full",)
    memory = catalog.gpu(question.gpu or "").memory_bytes
    told = trainer is None or "whole" in trainer.knows
    if told and groups == (1,) and usual.cluster.gpus > 1:
        alone = room.under(usual.by(sharding=WHOLE), MEETING)
        shardings += (WHOLE,) * (room.least(alone, question.trace).total <= memory)
    choices = product(groups, ("full", "none") if derived else RECOMPUTE, shardings)
    return Site(question, memory, tuple(setting(*one) for one in choices), Plans(question.minibatches))


def best(site: Site, ways: Iterable[Way]) -> Way | None:
    """The fastest of these, with whichever balancer makes it faster still. Sharding, hybrid where there are nodes, and
    lb-robust, which are usual, where they cost next to nothing. None where there are none."""
    seconds = {way: timed(site, way) for way in leading(site, ways)}
    if not seconds:
        return None
    first = min(seconds, key=seconds.__getitem__)
    others = {way: timed(site, way) for way in first.others()}
    fastest = min([seconds[first], *others.values()])
    near = {way: took for way, took in (seconds | others).items() if took <= NEAR * fastest}
    usual = {"hybrid": 0, "full": 1, WHOLE: 2}
    return min(near, key=lambda way: (usual[way.cost.sharded], not way.advised, near[way]))


def leading(site: Site, ways: Iterable[Way]) -> list[Way]:
    """The `KEPT` fastest of them as screening has it."""
    first: list[tuple[float, int, Way]] = []
    for least, number, way in sorted((least_pace(site, way), number, way) for number, way in enumerate(ways)):
        if len(first) == KEPT and least > first[-1][0]:
            break
        first = sorted([*first, (site.plans.pace(way, FEW), number, way)])[:KEPT]
    return [way for *_, way in first]


def least_pace(site: Site, way: Way) -> float:
    """What screening finds no way to be below: compute shared evenly, and the longest sample on the fastest device."""
    slow = way.cost.pace.tolist()
    at_once, fastest = sum(1 / factor for factor in slow), min(slow)
    weights = [one.weights for one in site.plans.draw(way.setting)[:FEW]]
    seconds = float(sum(max(of.sum() / at_once, of.max() * fastest) for of in weights))
    return seconds / site.plans.tokens(way.setting, FEW)


def timed(site: Site, way: Way) -> float:
    """Seconds of a token by the scan, as a row would have it; where links are shared or something is drawn, on fewer
    minibatches by the executor that knows that."""
    count = FEW if way.cost.cluster.eventful else site.question.minibatches
    schedules = site.plans.of(way, site.question.minibatches).schedules[:count]
    seconds = simulation.makespans(schedules, way.cost, seed=way.setting.seed).sum()
    return float(seconds) / site.plans.tokens(way.setting, len(schedules))


@dataclass(frozen=True, slots=True)
class KeptOut:
    """A faster way that memory alone keeps from being run, or that is tight."""

    way: Way
    need: Need
    gain: float  # how many times as fast it is, as screening has it
    shorter: str  # the cutoff by which it fits, where that shortens next to no samples


def kept_out(site: Site, chosen: Way) -> KeptOut | None:
    """Of the chosen way by another recompute and in fuller microbatches, what leads by what somebody would change their
    training for: the fastest that a cutoff of few samples makes room for, else the leanest."""
    trace, fuller = site.trace, list[KeptOut]()
    seconds = float(site.plans.screened(chosen, FEW).sum())
    for setting in site.settings:
        same = setting.cost.sharded, setting.cost.recipe.context
        if same != (chosen.setting.cost.sharded, chosen.setting.cost.recipe.context):
            continue
        for limit in sorted({trace.fullest, chosen.setting.limit, useful(setting)}):
            way = replace(chosen, setting=replace(setting, max_tokens=limit))
            need = Need(room.needed(way.cost, limit, trace.longest).total, site.memory)
            if capacity.level(need) == capacity.FITS:
                continue
            gain = seconds / float(site.plans.screened(way, FEW).sum())
            if gain >= NOTABLE:  # a cutoff helps where the longest sample alone fills what it fills
                shorter = outliers(way.cost, trace, site.memory) if limit <= trace.fullest else ""
                fuller.append(KeptOut(way, need, gain, shorter))
    if fitting := [one for one in fuller if one.shorter]:
        return max(fitting, key=lambda one: one.gain)
    return min(fuller, key=lambda one: one.need.memory_bytes, default=None)
