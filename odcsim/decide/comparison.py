"""Every balancer under every sync that can run it, on the same minibatches: balance, simulate, compare."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from odcsim import balance, neighbours
from odcsim.answer import Result
from odcsim.catalog import fits
from odcsim.decide import room, stock
from odcsim.decide.evaluate import Evaluation, Pair, Planner, evaluate, listed
from odcsim.decide.setting import Setting, assign, draw_minibatches
from odcsim.decide.whole_run import WholeRun
from odcsim.decide.words import BY
from odcsim.errors import InputError, unexpected
from odcsim.executors import simulation
from odcsim.program import SYNC_TABLE
from odcsim.question import FIELDS
from odcsim.recipe import CHOICES, SEARCHED, Recipe
from odcsim.results import summary
from odcsim.results.metrics import PARTS, Usage
from odcsim.results.summary import Row
from odcsim.schedule import ScheduleFile
from odcsim.support import tables
from odcsim.support.numbers import TOKENS, counted, human
from odcsim.support.values import expect, shown
from odcsim.timeline import Floats, Timeline

FACTORS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)  # limits to try, as multiples of the longest sample
FEW = 12  # minibatches that are run with compute at the ends of its interval: all rows run the same ones
Ends = tuple[float, float, float]  # seconds with compute at the low end of its interval, as likely, and at the high end
WORDS = ("among", "doubted", "memory_limit", "plan", "advance")  # of `compare` beside a setting's terms


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Result, Evaluation):
    """The rows beside each other, what they answer, and how far their seconds can be trusted."""

    ends: Mapping[Pair, Ends] = field(default_factory=dict, repr=False)  # where seconds come with an interval
    stock: Mapping[Pair, Evaluation] = field(default_factory=dict, repr=False)  # rows that are a trainer's own

    def clearest(self, before: Pair, after: Pair) -> int:
        """The minibatch in which the second (balancer, sync) gains most over the first."""
        return clearest(*(self.usage(*pair) for pair in (before, after)))

    def typical(self, *rows: Pair) -> int:
        """The minibatch whose idle is nearest to the table's under each (balancer, sync)."""
        return typical([self.usage(*pair) for pair in rows])

    def timeline(self, balancer: str, sync: str, minibatch: int) -> Timeline:
        """One minibatch of a row, device by device: its number in the timeline is 0."""
        self.place(balancer, sync)
        if not 0 <= minibatch < self.setting.minibatches:
            raise InputError(f"no minibatch {minibatch}", fix=f"there are 0 to {self.setting.minibatches - 1}")
        pair = balancer, sync
        setting = self.stock[pair].setting if pair in self.stock else self.setting
        file = assign(setting, balancer, [draw_minibatches(setting)[minibatch]]).sealed()
        return simulation.simulate(file, room.under(setting.cost, sync), seed=setting.seed)

    def limit(self, row: Row) -> int:
        """Of the row's microbatches, which a trainer's own has for itself."""
        return row.made.max_tokens if row.made else self.setting.limit

    @property
    def whole_run(self) -> WholeRun | None:
        """All minibatches of the epochs that were asked for, where they were."""
        return None if self.setting.epochs is None else WholeRun(self, self.setting.epochs)

    def spent(self, row: Row) -> Row:
        """The row as tables and sentences tell what it spends: of the whole run, where epochs were asked for."""
        return row if self.whole_run is None else self.whole_run.shown(row)

    @property
    def basis(self) -> str:
        """What seconds, GPU-hours and dollars are then of."""
        run = self.whole_run
        return counted(self.setting.minibatches, "minibatch") if run is None else f"the whole run, {run.words}"

    def records(self) -> list[dict[str, Any]]:
        """Its rows, flat: each with its limit and, where epochs were asked for, the whole run."""
        run = self.whole_run
        return [
            tables.flat({"max_tokens": self.limit(row), **row.as_json(), **(run.columns(row) if run else {})})
            for row in self.rows
        ]

    def as_json(self) -> dict[str, Any]:
        """As `odcsim compare --json` prints it."""
        run = {} if self.whole_run is None else {"run": {"basis": self.basis, **self.whole_run.as_json()}}
        return {
            "schema": 1,
            "inputs": inputs(self.setting),
            "held_fixed": fixed(self.setting),
            "fidelity": self.fidelity,
            "basis": counted(self.setting.minibatches, "minibatch"),  # of what the rows spend
            "rows": [r.as_json() for r in self.rows],
            **run,
        }


def clearest(before: Usage, after: Usage) -> int:
    """The minibatch in which the second is furthest ahead of the first; the first such, where there are several."""
    return int(np.argmax(before.makespan / after.makespan))


def typical(usages: Sequence[Usage]) -> int:
    """The minibatch in which the idle of each is nearest to its idle over all minibatches."""

    def off(usage: Usage) -> Floats:
        lost = np.sum([getattr(usage, part) for part in PARTS], axis=0)
        total = usage.compute + lost
        idle = np.divide(lost, total, out=np.zeros_like(total), where=total > 0)
        return np.asarray(np.abs(idle - usage.idle()))

    return int(np.argmin(np.max([off(usage) for usage in usages], axis=0)))


def pairs(setting: Setting | None = None) -> list[tuple[str, str]]:
    """Every (balancer, sync) that can run."""
    names = [*balance.ALL]
    names += [balancer.name for balancer in neighbours.FIELD] if setting is not None and setting.field else []
    own = () if setting is None else neighbours.own(setting.trainer)
    every = [neighbours.named(name) for name in names if name not in own]
    return [(balancer.name, name) for balancer in every for name, sync in SYNC_TABLE.items() if balancer.suits(sync)]


def _check_among(among: Sequence[Pair], setting: Setting) -> None:
    """All of them can run, and what their figures compare with is among them."""
    known = pairs(setting)
    if odd := [pair for pair in among if pair not in known]:
        raise InputError(f"among holds {shown(odd[0])}", fix=f"give (balancer, sync) of {listed(known)}")
    syncs = dict.fromkeys([summary.REFERENCE[1], *(sync for _, sync in among)]) if among else {}
    if missing := [sync for sync in syncs if (summary.REFERENCE[0], sync) not in among]:
        pair = summary.REFERENCE[0], missing[0]
        raise InputError(f"among lacks {shown(pair)}, with which the others are compared", fix="add it")


def _own(terms: Mapping[str, Any]) -> Mapping[str, Any]:
    """Terms that a setting has: what became cost and lengths in it is asked for where it is made."""
    own = Setting.__dataclass_fields__
    if odd := [name for name in terms if name not in own]:
        asked = "say it to ask(), of which the setting comes" if odd[0] in {*FIELDS, *CHOICES} else ""
        raise unexpected("compare", odd[0], [*own, *WORDS], asked)
    return terms


def compare(
    setting: Setting,
    *,
    among: Sequence[Pair] = (),
    doubted: bool = True,
    memory_limit: float | None = None,
    plan: Planner = assign,
    advance: Callable[[], None] = lambda: None,
    **terms: Any,
) -> Comparison:
    """`among`: these (balancer, sync) alone; lb-micro is one of them, under collective and under each sync of the
    others. Not `doubted`: without the ends of the seconds' interval, where the answer may be another. `memory_limit`:
    bytes of one GPU, unless what is known of it. `plan` makes the schedules of a balancer. `advance` is called once for
    each (balancer, sync) that is done. `terms`: of the setting, to ask with others, as `price=2.5`."""
    expect(setting, Setting, "question", "odcsim.ask")
    setting = replace(setting, **_own(terms))
    _check_among(among, setting)
    few: dict[str, ScheduleFile] = {}  # the beginning of each plan, which is all that the ends run
    every = among or pairs(setting)
    found = evaluate(setting, every, memory_limit=memory_limit, beginnings=few, few=FEW, plan=plan, advance=advance)
    alone = _stock(setting, found, advance)
    like = [_alike(one, found) for one in alone.values()]
    usages = (*found.usages, *(one.usages[0] for one in alone.values()))
    seconds = [u.makespan for u in found.usages]
    seconds += [one.usages[0].makespan * times for one, (_, times) in zip(alone.values(), like, strict=True)]
    rows = summary.compared([*found.rows, *(row for row, _ in like)], seconds, found.draws)
    interval = {} if not doubted else ends(setting, few, {r.pair: r.recipe for r in found.rows})
    return Comparison(setting, rows, usages, found.draws, found.memory_limit, interval, alone)


def _stock(setting: Setting, found: Evaluation, advance: Callable[[], None]) -> dict[Pair, Evaluation]:
    """What the trainer that was asked for runs by itself, each way by itself."""
    alone: dict[Pair, Evaluation] = {}
    for way in stock.choose(setting):
        alone[way.pair] = evaluate(way.setting, [way.pair], memory_limit=found.memory_limit)
        advance()
    return alone


def ends(setting: Setting, plans: Mapping[str, ScheduleFile], ran: Mapping[Pair, Recipe]) -> Mapping[Pair, Ends]:
    """Seconds of the first minibatches with compute at the ends of its interval: compute stretches, transfers do not,
    so what hides them, and who gains, may change. `ran`: how each pair ran. Nothing where seconds come without an
    interval, nor of balancers that leave counts as they come."""
    cost = setting.cost
    if cost.profile.low == cost.profile.high:
        return {}
    quiet = replace(cost, cluster=replace(cost.cluster, jitter=0.0, swing=0.0))
    few, found = 4 if quiet.cluster.shared_links else FEW, dict[Pair, Ends]()
    stretched = [cost.profile.stretched(factor) for factor in (cost.profile.low, 1.0, cost.profile.high)]
    for pair, recipe in ran.items():
        if neighbours.named(pair[0]).even:
            schedules = plans[pair[0]].schedules[:few]
            costs = (replace(quiet, recipe=recipe, profile=profile) for profile in stretched)
            low, middle, high = (float(simulation.makespans(schedules, one, seed=setting.seed).sum()) for one in costs)
            found[pair] = low, middle, high
    return found


def _alike(one: Evaluation, found: Evaluation) -> tuple[Row, float]:
    """The row for as many tokens as the others train on, and how many times its own those are.

    Packed rows are other samples than the reference's: their deviations add up, as an interval has it of unlike pairs.
    """
    row, tokens = one.rows[0], found.rows[0].tokens_per_second * found.rows[0].makespan_seconds
    profile = one.setting.cost.profile
    times = tokens / (row.tokens_per_second * row.makespan_seconds)
    return summary.scaled(row, times, (profile.low, profile.high)), times


def fixed(setting: Setting, *, limited: bool = True) -> dict[str, Any]:
    """What was held fixed, of whoever has one recipe for all rows, and one limit unless not `limited`."""
    limit = {"max_tokens": setting.limit} if limited else {}
    why = {"sharding_because": setting.sharded_by} if setting.sharded_by else {}
    return {**setting.cost.recipe.written(SEARCHED), **why, **limit, "searched_by": BY}


def inputs(setting: Setting) -> dict[str, Any]:
    """What was asked, in the words of the command line, with what its names became."""
    cost, cluster = setting.cost, setting.cost.cluster
    return {
        "trace": setting.trace.name,
        "trace_samples": setting.trace.size,
        "trace_longest": setting.trace.longest,
        "unit": setting.trace.unit,
        "kind": setting.trace.kind,
        "trace_origin": setting.trace.origin,
        "truncate": setting.question.truncate if setting.question else None,
        "drop_over": setting.question.drop_over if setting.question else None,
        "model": cost.model.name,
        "model_asked": setting.model_asked or cost.model.name,
        "gpu": cost.profile.gpu,
        "cost": cost.profile.origin,
        "devices": cluster.gpus,
        "devices_per_node": cluster.devices_per_node,
        "minibatch": setting.minibatch,
        "max_tokens": setting.limit,
        "on_demand_cost": cost.on_demand_cost,
        "on_demand_origin": fits.own_origin(cost.profile, cost.on_demand_cost),
        **setting.inputs(),
        **cost.recipe.inputs(),
    }


def limits(longest: int, text: str = "") -> tuple[int, ...]:
    """Microbatch limits to try: those in the text, or multiples of the longest sample, close together where it is low,
    since the first few percent of room decide most."""
    if not text:
        return tuple(round(longest * factor) for factor in FACTORS)
    numbers = []
    for word in text.split(","):
        number = human(word, TOKENS)
        if number is None or number.denominator > 1 or not longest <= number < 10**12:
            raise InputError(
                f"--sweep-max-tokens holds '{word}'", fix=f"give whole numbers from the longest sample, {longest}"
            )
        numbers.append(int(number))
    return tuple(numbers)


def sweep_max_tokens(
    setting: Setting,
    points: Sequence[int],
    *,
    memory_limit: float | None = None,
    advance: Callable[[], None] = lambda: None,
    **terms: Any,
) -> tuple[tuple[int, Comparison], ...]:
    """How the comparison moves with the microbatch limit: a setting may sit on a cliff. `terms`: as of `compare`."""
    expect(setting, Setting, "question", "odcsim.ask")
    comparisons = []
    for point in points:
        at = replace(setting, max_tokens=point)
        comparisons.append((point, compare(at, memory_limit=memory_limit, **terms)))
        advance()
    return tuple(comparisons)
