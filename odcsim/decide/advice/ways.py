"""The ways in which so many devices may run a step: sharding, recompute, sync, balancer and token limit."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from odcsim import balance, catalog, neighbours
from odcsim.cost import Cost
from odcsim.decide import room, stock
from odcsim.decide.advice.wish import Wish
from odcsim.decide.asking import setting_of
from odcsim.decide.setting import Drawn, Setting, assign, drawn
from odcsim.neighbours.neighbour import lacking
from odcsim.program import SYNCS, sync_named
from odcsim.recipe import RECOMPUTE, Recipe
from odcsim.results import capacity
from odcsim.schedule import ScheduleFile
from odcsim.trace import Trace


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run: the setting has the recipe and the limit."""

    setting: Setting
    sync: str
    balancer: str

    @property
    def cost(self) -> Cost:
        return room.under(self.setting.cost, self.sync)

    @property
    def one_sided(self) -> bool:
        return not sync_named(self.sync).meets

    @property
    def advised(self) -> bool:
        """Whether its balancer is the one to take where nobody meets, unless another is well ahead."""
        return self.one_sided and self.balancer == balance.advised(self.sync)

    @property
    def own(self) -> bool:
        """Whether the trainer that was asked for runs it by itself."""
        return self.balancer in neighbours.own(self.setting.trainer)

    @property
    def name(self) -> str:
        return f"{self.sync} + {self.balancer}"

    @property
    def how(self) -> str:
        """All that it chooses."""
        return f"{self.name}, {self.setting.limit:,} tokens, {self.words}"

    @property
    def words(self) -> str:
        """What it chooses of the recipe."""
        words = self.cost.recipe.told.removeprefix(" ")
        return f"{self.cost.sharded} sharding, {words}" if self.cost.cluster.nodes > 1 else words

    def others(self) -> list["Way"]:
        """The same by other balancers that somebody might want."""
        if self.own:
            return []
        worth = [b.name for b in balance.BALANCERS if b.even]
        names = [name for name in worth if name != self.balancer]
        return [replace(self, balancer=name) for name in names if balance.runs_with(name, self.sync)]

    def as_json(self) -> dict[str, Any]:
        known = {"sync": self.sync, "balancer": self.balancer, "max_tokens": self.setting.limit}
        return {**known, "minibatch": self.setting.minibatch, **self.cost.ran.inputs()}


@dataclass(frozen=True, slots=True)
class Site:
    """So many GPUs of a kind, with the minibatches that every way on them runs, and the plans made so far."""

    wish: Wish
    gpu: str
    devices: int
    memory: float  # bytes of one
    settings: tuple[Setting, ...]  # by recipe
    _drawn: dict[tuple[Recipe, int, Trace], list[Drawn]] = field(default_factory=dict)
    _plans: dict[tuple[Any, ...], ScheduleFile] = field(default_factory=dict)

    @property
    def minibatches(self) -> int:
        return self.wish.question.minibatches

    def plan(self, way: Way, minibatches: int, *, exactly: bool = True) -> ScheduleFile:
        """The way's schedules. Syncs share them, and so do shardings where the balancer does not ask for transfers."""
        recipe = way.setting.cost.recipe
        if not neighbours.named(way.balancer).weighs_transfers:
            recipe = replace(recipe, sharding="full")
        one = way.setting
        key = (recipe, way.balancer, one.limit, minibatches, exactly, one.each, one.minibatch, one.trace)
        if key not in self._plans:
            few = self.drawn(way.setting)[:minibatches]
            self._plans[key] = assign(way.setting, way.balancer, few, exactly=exactly)
        return self._plans[key]

    def drawn(self, setting: Setting) -> list[Drawn]:
        """The minibatches, with what their samples weigh by the setting's recipe, whatever the sharding."""
        key = replace(setting.cost.recipe, sharding="full"), setting.minibatch, setting.trace
        if key not in self._drawn:
            self._drawn[key] = drawn(setting)
        return self._drawn[key]

    def ways(self) -> list[Way]:
        """Every way to screen that fits memory, or those that are tight where none does."""
        within = [capacity.filled(self.memory), self.memory]
        own = next((found for memory in within if (found := self._own(memory))), [])
        return own + next((found for memory in within if (found := self._within(memory))), [])

    def _own(self, memory: float) -> list[Way]:
        """What the trainer that was asked for runs by itself."""
        if (trainer := stock.known(self.wish.question.trainer)) is None:
            return []
        return [
            Way(found.setting, sync, found.rule.balancer)
            for setting, sync in product(self.settings, trainer.met)
            if not lacking(trainer, setting.cost.recipe)
            for found in stock.ways(setting, trainer, sync, memory)
        ]

    def _within(self, memory: float) -> list[Way]:
        return [
            Way(replace(setting, max_tokens=limit), sync, balancer)
            for setting, sync in product(self.settings, SYNCS)
            for limit, balancer in product(self.limits(setting, sync, memory), balance.standing_for(sync))
        ]

    def limits(self, setting: Setting, sync: str, memory: float) -> tuple[int, ...]:
        trace, cost, most = setting.trace, Way(setting, sync, "").cost, self.useful(setting)
        full = room.fullest(cost, trace.longest, memory, most)
        return room.limits(trace.fullest, full, setting.device_tokens)

    def useful(self, setting: Setting) -> int:
        """The limit from which on nothing is left to gain."""
        return int(max(setting.trace.fullest, room.ENOUGH * setting.device_tokens))


def site(wish: Wish, gpu: str, devices: int) -> Site:
    if (trainer := stock.known(wish.question.trainer)) is not None:
        stock.check(wish.trace, replace(wish.question.recipe, recompute="full", sharding="full"), trainer)
    hardware = catalog.gpu(gpu)
    return Site(wish, hardware.name, devices, hardware.memory_bytes, tuple(_settings(wish, gpu, devices)))


def _settings(wish: Wish, gpu: str, devices: int) -> Iterator[Setting]:
    """By recompute, and where there are several nodes by sharding. Where seconds are a fit to measurements, only what
    they can be derived for: beside them, estimates would compare two sources and not two ways."""

    def setting(again: str, sharding: str = "full") -> Setting:
        recipe = replace(wish.question.recipe, recompute=again, sharding=sharding)
        price = wish.prices.get(gpu)
        asked = replace(wish.question, gpu=gpu, devices=devices, recipe=recipe, price=price, epochs=wish.epochs)
        asked = replace(asked, profile=wish.profile_for(gpu))
        return setting_of(asked, limited=False)

    usual = setting("full").cost
    derived = usual.profile.fidelity != "catalogue" and not usual.profile.factor
    whole_nodes = usual.cluster.nodes > 1 and not devices % usual.cluster.devices_per_node
    for again in ("full", "none") if derived else RECOMPUTE:
        for sharding in ("full", "hybrid") if whole_nodes else ("full",):
            yield setting(again, sharding)
