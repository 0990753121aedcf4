"""What each number of GPUs of each kind comes to: hours and dollars of the whole run, or why it cannot run there."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from odcsim.decide import fixed, room, stock
from odcsim.decide.advice import reply, search, ways
from odcsim.decide.advice.kept_out import KeptOut, kept_out
from odcsim.decide.advice.ways import Way
from odcsim.decide.advice.wish import Wish
from odcsim.decide.answer import NOTABLE
from odcsim.decide.evaluate import evaluate
from odcsim.decide.remedies import remedies
from odcsim.decide.whole_run import WholeRun
from odcsim.errors import InputError
from odcsim.program import MEETING
from odcsim.results import capacity, summary
from odcsim.results.summary import Row
from odcsim.support import tables
from odcsim.support.glance import Glance, Glanced


@dataclass(frozen=True, slots=True)
class Pick:
    """The whole run in one of the ways: what `odcsim compare --epochs` says of the same question."""

    way: Way
    row: Row

    @property
    def steps(self) -> int:
        return self.row.minibatches

    @property
    def samples(self) -> float:
        """Of a step; of packed rows on average."""
        setting, made = self.way.setting, self.row.made
        return made.samples if made else setting.batch


@dataclass(frozen=True, slots=True)
class Best:
    """The best ways without on-demand and with it: None where nothing fits."""

    without: Pick | None
    with_it: Pick | None
    tried: int  # ways that fit
    kept_out: KeptOut | None = None  # by memory, from being chosen
    own: Pick | None = None  # the best that a trainer which was asked for runs by itself
    trainer: str | None = None
    busy: float = 0.0  # devices that a step's work keeps busy at most: all of it over its heaviest sample

    @property
    def gain(self) -> float | None:
        """How many times as fast on-demand is."""
        if self.without is None or self.with_it is None:
            return None
        return self.without.row.makespan_seconds / self.with_it.row.makespan_seconds

    @property
    def with_engine(self) -> dict[str, float]:
        """How many times as fast the trainer's run would be by the best ways that odc_engine brings to it."""
        if self.own is None:
            return {}
        others = [pick for pick in (self.without, self.with_it) if pick is not None]
        return {pick.way.name: self.own.row.makespan_seconds / pick.row.makespan_seconds for pick in others}

    @property
    def pays(self) -> bool:
        """Whether on-demand leads by what somebody would change their training loop for, or alone fits."""
        return self.without is None or (self.gain or 0.0) >= NOTABLE

    @property
    def chosen(self) -> Pick | None:
        if self.trainer is not None:
            return self.own
        return self.with_it if self.pays else self.without


@dataclass(frozen=True, slots=True)
class Offer:
    """A run on so many GPUs, at its best."""

    gpu: str
    devices: int
    best: Best
    chosen: Pick

    @property
    def row(self) -> Row:
        return self.chosen.row

    @property
    def seconds(self) -> float:
        return self.row.makespan_seconds

    @property
    def factors(self) -> tuple[float, float]:
        """The ends of the run's 90 % interval, over its middle."""
        return self.row.model_low / self.seconds, self.row.model_high / self.seconds

    @property
    def gpu_hours(self) -> float:
        return self.row.gpu_hours

    @property
    def spent(self) -> float:
        """Dollars, or GPU-hours where there is no price."""
        return self.gpu_hours if self.dollars is None else self.dollars

    @property
    def dollars(self) -> float | None:
        return self.row.dollars

    @property
    def memory_bytes(self) -> float:
        """With the longest sample, whether or not it was drawn: the whole run has it."""
        way = self.chosen.way
        return max(self.row.memory_bytes or 0.0, room.least(way.cost, way.setting.trace).total)

    @property
    def memory_fits(self) -> bool | None:
        return self.row.memory_fits

    @property
    def memory_limit(self) -> float | None:
        return self.row.memory_limit

    @property
    def name(self) -> str:
        return f"{self.devices} x {self.gpu}"

    def within(self, wish: Wish) -> bool:
        late = wish.deadline is not None and self.seconds > wish.deadline
        return not late and (wish.budget is None or (self.dollars or 0.0) <= wish.budget)

    def as_json(self) -> dict[str, Any]:
        way, row = self.chosen.way, self.row
        return {
            "gpu": self.gpu,
            "devices": self.devices,
            "seconds": row.makespan_seconds,
            "seconds_low": row.model_low,
            "seconds_high": row.model_high,
            "gpu_hours": row.gpu_hours,
            "gpu_hours_low": row.gpu_hours_low,
            "gpu_hours_high": row.gpu_hours_high,
            "dollars": row.dollars,
            "dollars_low": row.dollars_low,
            "dollars_high": row.dollars_high,
            "steps": self.chosen.steps,
            "samples": self.chosen.samples,
            **way.as_json(),
            **({} if row.made is None else {"made": asdict(row.made)}),
            "microbatches": row.microbatches,
            "memory_bytes": row.memory_bytes,
            "memory_limit": row.memory_limit,
            "memory_tight": capacity.tight(self),
            "idle": row.idle,
            "mfu": row.mfu,
            "over_without": self.best.gain,
            **({} if self.best.own is None else {"with_engine": self.best.with_engine}),
            "ways": self.best.tried,
            "fidelity": row.fidelity,
            "cost": way.cost.profile.origin,
        }


@dataclass(frozen=True, slots=True)
class Refused:
    """A number of GPUs on which the run cannot be made, and why."""

    gpu: str
    devices: int
    why: str

    @property
    def name(self) -> str:
        return f"{self.devices} x {self.gpu}"


@dataclass(frozen=True, slots=True, repr=False)
class Advice(Glanced):
    """All offers, cheapest first and after them those that are tight in memory, and what cannot run."""

    wish: Wish
    offers: tuple[Offer, ...]
    refused: tuple[Refused, ...]

    @property
    def ways(self) -> int:
        return sum(offer.best.tried for offer in self.offers)

    def sentences(self) -> list[str]:
        """What to rent, and what would change that."""
        return reply.sentences(self)

    def records(self) -> list[dict[str, Any]]:
        """Its offers, flat."""
        return [tables.flat(row) for row in self._rows()]

    def _glance(self) -> Glance:
        head, cells = summary.table([offer.row for offer in self.offers], summary.OFFERED)
        rows = [[o.name, *row, o.chosen.way.how] for o, row in zip(self.offers, cells, strict=True)]
        refused = [[one.name, *[""] * len(head), one.why] for one in self.refused]
        about = f"{self.wish.question.model}, {self.wish.trace.name}"
        return Glance("Advice", about, self.sentences()[:3], ("GPUs", *head, "how"), [*rows, *refused], self.wish.words)

    def as_json(self) -> dict[str, Any]:
        """As `odcsim advise --json` prints it."""
        wish = self.wish
        return {
            "schema": 1,
            "inputs": wish.inputs(),
            "held_fixed": fixed.left(wish.question.recipe),
            "basis": f"the whole run, {wish.run}",  # of what the rows spend
            "rows": self._rows(),
            "refused": [{"gpu": r.gpu, "devices": r.devices, "why": r.why} for r in self.refused],
        }

    def _rows(self) -> list[dict[str, Any]]:
        return [{**offer.as_json(), "within": offer.within(self.wish)} for offer in self.offers]


def advise(wish: Wish, *, advance: Callable[[str], None] = lambda _: None) -> Advice:
    """`advance` is called with the name of each number of GPUs that is done."""
    offers: list[Offer] = []
    refused: list[Refused] = []
    for gpu in wish.gpus:
        for devices in wish.devices:
            one = offer(wish, gpu, devices)
            (offers if isinstance(one, Offer) else refused).append(one)  # type: ignore[arg-type]
            advance(one.name)
    return Advice(wish, tuple(sorted(offers, key=_cheapness(wish.prices))), tuple(refused))


def _cheapness(prices: Mapping[str, float]) -> Callable[[Offer], tuple[int, float, float]]:
    """By dollars; by GPU-hours where not all have a price."""
    return lambda o: (capacity.level(o), (o.dollars or 0.0) if prices else o.gpu_hours, o.seconds)


def offer(wish: Wish, gpu: str, devices: int) -> Offer | Refused:
    if wish.global_batch % devices:
        near = devices * max(1, round(wish.global_batch / devices))
        why = f"{wish.global_batch:,} samples do not divide by {devices} devices; --global-batch {near} does"
        return Refused(gpu, devices, why)
    try:
        site = ways.site(wish, gpu, devices)
    except InputError as error:
        return Refused(gpu, devices, str(error))
    found = best(site)
    return too_small(site) if found.chosen is None else Offer(site.gpu, devices, found, found.chosen)


def best(site: ways.Site) -> Best:
    found = search.finalists(site)
    without, with_it, own = (None if way is None else run(way) for way in (found.without, found.with_it, found.own))
    asked = stock.known(site.wish.question.trainer)
    made = Best(without, with_it, found.tried, own=own, trainer=asked.name if asked else None)
    if made.chosen is None:
        return made
    kept = None if asked else kept_out(site, made.chosen.way)  # a trainer's own ways are not screened
    return replace(made, kept_out=kept, busy=search.busy(site))


def run(way: Way) -> Pick:
    """By the evaluation that every command has its rows from."""
    pair = way.balancer, way.sync
    whole = WholeRun(evaluate(way.setting, [pair]), way.setting.epochs or 1.0)
    return Pick(way, whole.over(whole.evaluation.row(*pair)))


def too_small(site: ways.Site) -> Refused:
    """What the leanest way would need for the longest sample alone, and what would fit; or that a trainer makes no such
    step, whatever fits."""
    if (trainer := stock.known(site.wish.question.trainer)) is not None:
        try:
            stock.chosen(site.settings[0], trainer)
        except InputError as error:
            return Refused(site.gpu, site.devices, str(error))
    every = [ways.Way(setting, MEETING, "") for setting in site.settings]
    least = min((room.least(way.cost, site.wish.trace) for way in every), key=lambda memory: memory.total)
    terms = least.terms
    why = f"needs {least.total / 1e9:.0f} GB of {site.memory / 1e9:.0f}, most of it {max(terms, key=terms.__getitem__)}"
    listed = "; ".join(remedies(site.settings[0]))
    return Refused(site.gpu, site.devices, f"{why}; would fit: {listed}" if listed else why)
