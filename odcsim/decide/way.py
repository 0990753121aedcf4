"""A way to run a question's step, and how ways are screened: on few minibatches, as if nothing were drawn."""

from dataclasses import dataclass, field, replace
from typing import Any

from odcsim import balance, neighbours
from odcsim.cost import Cost
from odcsim.decide import room
from odcsim.decide.setting import Drawn, Setting, assign, draw_minibatches
from odcsim.executors import simulation
from odcsim.neighbours.neighbour import Rule
from odcsim.program import WHOLE, sync_named
from odcsim.schedule import ScheduleFile
from odcsim.timeline import Floats


@dataclass(frozen=True, slots=True)
class Way:
    """Who deals samples, and when devices meet. The setting has the recipe and the token limit."""

    setting: Setting
    balancer: str
    sync: str

    @property
    def pair(self) -> tuple[str, str]:
        return self.balancer, self.sync

    @property
    def name(self) -> str:
        return f"{self.sync} + {self.balancer}"

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
    def rule(self) -> Rule | None:
        """By which the trainer that was asked for runs it by itself, where it does."""
        trainer = neighbours.TRAINERS.get(self.setting.trainer or "")
        return next((r for r in trainer.rules if r.balancer == self.balancer), None) if trainer else None

    @property
    def samples(self) -> float:
        """Of a step, on average: a trainer's rows hold several."""
        trace, batch, rule = self.setting.trace, self.setting.batch, self.rule
        if rule is None:
            return batch
        return batch * trace.size / trace.bundles.size if rule.rows else float(batch)

    @property
    def accumulates(self) -> bool:
        """Whether a step has several microbatches: of one, gradients leave at once under every sync."""
        return self.setting.minibatch > (self.setting.each or 1)

    @property
    def words(self) -> str:
        """What it chooses of the recipe."""
        words = self.cost.recipe.full_words.removeprefix(" ")
        if self.cost.sharded == WHOLE:
            return f"no sharding, {words}"
        return f"{self.cost.sharded} sharding, {words}" if self.cost.cluster.nodes > 1 else words

    @property
    def how(self) -> str:
        """All that it chooses."""
        return f"{self.name}, {self.setting.limit:,} tokens, {self.words}"

    def others(self) -> list["Way"]:
        """The same by other balancers that somebody might want."""
        if self.rule:
            return []
        suited = [b.name for b in balance.BALANCERS if b.even and b.suits(sync_named(self.sync))]
        return [replace(self, balancer=name) for name in suited if name != self.balancer]

    def as_json(self) -> dict[str, Any]:
        known = {"sync": self.sync, "balancer": self.balancer, "max_tokens": self.setting.limit}
        return {**known, "minibatch": self.setting.minibatch, **self.cost.ran.inputs()}


@dataclass(frozen=True, slots=True)
class Plans:
    """Minibatches of one question and plans for them, made once for all ways that share them."""

    minibatches: int  # to draw
    _drawn: dict[Any, list[Drawn]] = field(default_factory=dict, repr=False)
    _plans: dict[Any, ScheduleFile] = field(default_factory=dict, repr=False)

    def draw(self, setting: Setting) -> list[Drawn]:
        """With what their samples weigh by the setting's recipe, whatever the sharding."""
        key = replace(setting.cost.recipe, sharding="full"), setting.minibatch, setting.trace
        if key not in self._drawn:
            few = min(self.minibatches, setting.minibatches)
            self._drawn[key] = draw_minibatches(replace(setting, minibatches=few))
        return self._drawn[key]

    def of(self, way: Way, count: int, *, exactly: bool = True) -> ScheduleFile:
        """Of the first minibatches. Syncs share a plan, and so do shardings where the balancer does not ask for
        transfers."""
        setting, recipe = way.setting, way.setting.cost.recipe
        if not neighbours.named(way.balancer).weighs_transfers:
            recipe = replace(recipe, sharding="full")
        key = recipe, way.balancer, setting.limit, count, exactly, setting.each, setting.minibatch, setting.trace
        if key not in self._plans:
            self._plans[key] = assign(setting, way.balancer, self.draw(setting)[:count], exactly=exactly)
        return self._plans[key]

    def tokens(self, setting: Setting, count: int) -> int:
        """Of the first minibatches."""
        return sum(int(one.lengths.sum()) for one in self.draw(setting)[:count])

    def screened(self, way: Way, count: int, *, exactly: bool = False) -> Floats:
        """Seconds of the first minibatches, which narrow a choice and are never printed."""
        return simulation.makespans(self.of(way, count, exactly=exactly).schedules, way.cost.calm)

    def pace(self, way: Way, count: int) -> float:
        """Seconds of a token: what packs rows trains on other minibatches."""
        return float(self.screened(way, count).sum()) / self.tokens(way.setting, count)
