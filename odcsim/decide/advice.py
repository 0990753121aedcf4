"""A whole training run before anything is rented: what each number of GPUs of each kind comes to, at its best."""

import argparse
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from numpy.typing import ArrayLike

from odcsim import catalog
from odcsim import profile as profiles
from odcsim.answer import Result
from odcsim.catalog import fits
from odcsim.catalog.estimates.memory import IN_WORDS
from odcsim.decide import room, search, stock
from odcsim.decide.asking import question_by, read
from odcsim.decide.decision import NEAR, NOTABLE
from odcsim.decide.evaluate import evaluate
from odcsim.decide.remedies import remedies
from odcsim.decide.search import KeptOut, Site
from odcsim.decide.way import Way
from odcsim.decide.whole_run import WholeRun, epochs, steps
from odcsim.decide.words import ADVISE, HELD, MORE
from odcsim.errors import InputError
from odcsim.option import AMOUNT, COUNT, POSITIVE
from odcsim.program import MEETING
from odcsim.question import Question
from odcsim.results import capacity
from odcsim.results.summary import Row
from odcsim.support import tables
from odcsim.support.numbers import amount, listed, seconds, whole
from odcsim.trace import Trace

PRICES = "write h100=2.5,a100=1.3"
TIME = "give seconds, or a time such as 12h"
OF_ROWS = ("whole", "field", "price")
Prices = Mapping[str, float] | Sequence[str] | str | float | None


@dataclass(frozen=True, slots=True)
class Wish:
    """A question, on several kinds and numbers of GPUs; hours and dollars, where there is an end."""

    question: Question  # with its lengths read; its recipe has what the search may not choose
    gpus: tuple[str, ...]
    devices: tuple[int, ...]
    prices: Mapping[str, float] = field(default_factory=dict)  # of an hour of one GPU, by its name; of all or of none
    deadline: float | None = None  # seconds
    budget: float | None = None  # dollars
    batches: tuple[int, ...] = ()  # that somebody leaves it to the search to choose from; none: the question's alone

    def __post_init__(self) -> None:
        shape = catalog.model(self.question.model)
        stock.find(self.question.trainer)
        kinds = {catalog.gpu_name(name): name for name in self.gpus}
        prices = {kinds.get(name.lower(), name): price for name, price in self.prices.items()}
        object.__setattr__(self, "prices", prices)
        measured = list(filter(self.profile_for, self.gpus))
        if self.question.profile is not None and not measured:
            gpu = profiles.read(self.question.profile).gpu
            problem = f"profile is for {gpu}, and --gpus names {', '.join(self.gpus)}"
            raise InputError(problem, where=self.question.profile, fix=f"add {gpu} to --gpus, or leave the profile out")
        for gpu in measured:  # refused before anything is searched
            fits.profile_for(shape, catalog.gpu(gpu), self.devices[0], self.question.profile, self.question.recipe)
        if (most := max(self.global_batch, *self.batches, 0)) > self.trace.bundles.population:
            known = f"{self.trace.bundles.population:,} {self.trace.unit}s"
            problem = f"--global-batch {most:,} and '{self.trace.name}' has {known}"
            raise InputError(problem, fix=f"give a smaller batch, or more {self.trace.unit}s")
        if unknown := set(self.prices) - set(self.gpus):
            raise InputError(f"--price of {min(unknown)}", fix=f"give prices of {', '.join(self.gpus)}")
        if missing := [name for name in self.gpus if name not in self.prices]:
            if self.budget is not None:
                fix = f"--price {missing[0]}=2.5, or no --budget"
                raise InputError(f"a budget without a price of {missing[0]}", fix=fix)
            if self.prices:  # dollars of some beside GPU-hours of others would be put in one order
                fix = f"add {missing[0]}=2.5, or give no --price"
                raise InputError(f"a price of {min(self.prices)}, but none of {missing[0]}", fix=fix)

    @property
    def trace(self) -> Trace:
        return self.question.trace  # type: ignore[no-any-return]

    @property
    def global_batch(self) -> int:
        """Samples between two optimizer steps, on all devices together."""
        return self.question.global_batch or 0

    @property
    def epochs(self) -> float:
        return self.question.epochs or 1.0

    @property
    def steps(self) -> int:
        return steps(self.trace, self.epochs, self.global_batch, self.question.trainer)

    def profile_for(self, gpu: str) -> str | None:
        """The file of measured seconds, where they are of this kind of GPU."""
        path = self.question.profile
        return path if path and profiles.read(path).gpu.lower() == catalog.gpu_name(gpu).lower() else None

    def each(self) -> "list[Wish]":
        """By one batch each."""
        some = [replace(self.question, global_batch=batch) for batch in self.batches] or [self.question]
        return [replace(self, question=one, batches=()) for one in some]

    def on(self, gpu: str, devices: int) -> Question:
        """The question for so many GPUs of a kind."""
        profile, price = self.profile_for(gpu), self.prices.get(gpu)
        return replace(self.question, gpu=gpu, devices=devices, profile=profile, price=price, epochs=self.epochs)

    def inputs(self) -> dict[str, Any]:
        """What was asked, by the names of the command line: without what holds of rows that are compared alone."""
        terms = {name: value for name, value in self.question.inputs().items() if name not in OF_ROWS}
        return {
            "trace": self.trace.name,
            "trace_samples": self.trace.size,
            "trace_longest": self.trace.longest,
            "unit": self.trace.unit,
            "kind": self.trace.kind,
            "trace_origin": self.trace.origin,
            "model": self.question.model,
            "profile": self.question.profile,
            "on_demand_cost": self.question.on_demand_cost,
            "gpus": list(self.gpus),
            "devices": list(self.devices),
            **terms,
            "epochs": self.epochs,
            "global_batch": list(self.batches) or self.global_batch,
            **({} if stock.find(self.question.trainer) or self.batches else {"steps": self.steps}),  # else each row's
            "prices": dict(self.prices),
            "deadline_seconds": self.deadline,
            "budget": self.budget,
        }


@dataclass(frozen=True, slots=True)
class Pick:
    """The whole run in one way: what `odcsim compare --epochs` says of the same question."""

    way: Way
    row: Row


def pick(
    without: Pick | None, with_it: Pick | None, trainer: str | None = None, own: Pick | None = None
) -> Pick | None:
    """The run to choose: a trainer's own where one was asked for; else with on-demand where it leads by what somebody
    would change their training loop for, or alone fits."""
    if trainer is not None:
        return own
    if without is None or with_it is None:
        return with_it or without
    return with_it if without.row.makespan_seconds / with_it.row.makespan_seconds >= NOTABLE else without


@dataclass(frozen=True, slots=True)
class Offer:
    """A run on so many GPUs, at its best."""

    gpu: str
    devices: int
    chosen: Pick
    without: Pick | None  # the best without on-demand; None where nothing of it fits
    with_it: Pick | None
    own: Pick | None = None  # the best that a trainer which was asked for runs by itself
    ways: int = 0  # that fit
    batch: int = 0  # samples of a step, where several batches were asked for

    @property
    def name(self) -> str:
        return _name(self)

    @property
    def row(self) -> Row:
        return self.chosen.row

    @property
    def kept_out(self) -> KeptOut | None:
        """What memory alone keeps from being chosen. A trainer's own ways are not screened."""
        question = self.chosen.way.setting.question
        if question is None or stock.find(question.trainer):
            return None
        return search.kept_out(search.site(question), self.chosen.way)

    @property
    def gain(self) -> float | None:
        """How many times as fast on-demand is."""
        if self.without is None or self.with_it is None:
            return None
        return self.without.row.makespan_seconds / self.with_it.row.makespan_seconds

    @property
    def with_engine(self) -> dict[str, float]:
        """How many times as fast the trainer's run would be by the best ways that odc_engine brings to it."""
        others = [one for one in (self.without, self.with_it) if self.own and one]
        return {one.way.name: self.seconds / one.row.makespan_seconds for one in others}

    @property
    def seconds(self) -> float:
        return self.row.makespan_seconds

    @property
    def factors(self) -> tuple[float, float]:
        """The ends of the run's 90 % interval, over its middle."""
        return self.row.model_low / self.seconds, self.row.model_high / self.seconds

    @property
    def dollars(self) -> float | None:
        return self.row.dollars

    @property
    def spent(self) -> float:
        """Dollars, or GPU-hours where there is no price."""
        return self.row.gpu_hours if self.dollars is None else self.dollars

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

    def share(self, wish: Wish) -> float:
        """How much of the run is within deadline and budget."""
        time = 1.0 if wish.deadline is None else wish.deadline / self.seconds
        return min(time, 1.0 if wish.budget is None else wish.budget / (self.dollars or wish.budget))

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
            "steps": row.minibatches,
            "samples": way.samples,
            **way.as_json(),
            **({} if row.made is None else {"made": asdict(row.made)}),
            "microbatches": row.microbatches,
            "memory_bytes": row.memory_bytes,
            "memory_limit": row.memory_limit,
            "memory_tight": capacity.tight(self),
            "idle": row.idle,
            "mfu": row.mfu,
            "over_without": self.gain,
            **({} if self.own is None else {"with_engine": self.with_engine}),
            "ways": self.ways,
            "fidelity": row.fidelity,
            "cost": way.cost.profile.origin,
        }


@dataclass(frozen=True, slots=True)
class Refused:
    """A number of GPUs on which the run cannot be made, and why."""

    gpu: str
    devices: int
    why: str
    batch: int = 0  # as of an offer

    @property
    def name(self) -> str:
        return _name(self)


def _name(one: Offer | Refused) -> str:
    return f"{one.devices} x {one.gpu}{f', batch {one.batch:,}' if one.batch else ''}"


@dataclass(frozen=True, slots=True, repr=False)
class Advice(Result):
    """All offers, cheapest first and after them those that are tight in memory, and what cannot run."""

    wish: Wish
    offers: tuple[Offer, ...]
    refused: tuple[Refused, ...]

    @property
    def within(self) -> list[Offer]:
        """The offers within deadline and budget, cheapest first."""
        return [offer for offer in self.offers if offer.within(self.wish)]

    @property
    def rent(self) -> Offer | None:
        """The fastest of those that cost as little as any, to a percent: nobody waits a day to save a dollar. Tight in
        memory only where all are."""
        good = capacity.roomiest(self.within)
        return min((o for o in good if o.spent <= NEAR * good[0].spent), key=lambda o: o.seconds, default=None)

    @property
    def nearest(self) -> Offer | None:
        """What to rent; where nothing is within deadline and budget, what is nearest to them."""
        return self.rent or max(capacity.roomiest(self.offers), key=lambda o: o.share(self.wish), default=None)

    @property
    def basis(self) -> str:
        """What the rows spend is of."""
        return f"the whole run, {epochs(self.wish.epochs)}"

    def records(self) -> list[dict[str, Any]]:
        """Its offers, flat."""
        return [tables.flat(row) for row in self.as_json()["rows"]]

    def as_json(self) -> dict[str, Any]:
        """As `odcsim advise --json` prints it."""
        wish, recipe = self.wish, self.wish.question.recipe
        return {
            "schema": 1,
            "inputs": wish.inputs(),
            "held_fixed": {**recipe.written(HELD), "searched_by": MORE},
            "basis": self.basis,
            "rows": [{**offer.as_json(), "within": offer.within(wish)} for offer in self.offers],
            "refused": [{n: v for n, v in asdict(one).items() if n != "batch" or v} for one in self.refused],
        }


@ADVISE.take
def advise(
    trace: Trace | str | os.PathLike[str] | ArrayLike,
    model: str,
    *,
    gpus: Sequence[str] | str,
    devices: Sequence[int] | int | str,
    global_batch: Sequence[int] | int | str,
    price: Prices = None,
    deadline: float | str | None = None,
    budget: float | None = None,
    **words: Any,
) -> Advice:
    """What to rent for a whole training run: each of `gpus` in each number of `devices`, at its best. `price`: of a
    GPU-hour, of all of them or by name, `{"h100": 2.5}`. `deadline`: seconds, or "12h". `budget`: dollars. `words`: the
    other fields of a question, `epochs=3`, and of its recipe, but for what is searched. `global_batch`: samples of
    a step, or several to choose from."""
    batches = counts_of("global_batch", global_batch, "give samples of a step, such as 64")
    question = read(question_by({"trace": trace, "model": model, "global_batch": batches[0]} | words))
    return searched(wished(question, gpus, devices, price, deadline, budget, batches))


def wished(
    question: Question,
    gpus: Sequence[str] | str,
    devices: Sequence[int] | int | str,
    price: Prices = None,
    deadline: float | str | None = None,
    budget: float | str | None = None,
    batches: tuple[int, ...] = (),
) -> Wish:
    """Of a question whose lengths are read."""
    kinds = _several("gpus", gpus, str, "give kinds to rent, such as h100,a100")
    counts = counts_of("devices", devices, "give numbers of GPUs, such as 8,16")
    late = None if deadline is None else POSITIVE.check("deadline", _said("deadline", deadline, seconds, TIME), TIME)
    most = None if budget is None else AMOUNT.check("budget", _said("budget", budget, amount, "give dollars"))
    return Wish(question, kinds, counts, _prices(price, kinds), late, most, batches if len(batches) > 1 else ())


def counts_of(name: str, given: Sequence[int] | int | str, fix: str) -> tuple[int, ...]:
    if hasattr(given, "__index__") and not isinstance(given, bool):
        with suppress(TypeError):  # several numbers of numpy are none
            given = operator.index(given)
    return tuple(COUNT.check(name, count) for count in _several(name, given, whole, fix))


def _several(name: str, given: Any, take: Callable[[str], Any], fix: str) -> tuple[Any, ...]:
    """Each once. One may stand by itself, and text has commas between them."""
    every = listed(given) if isinstance(given, str) else [given] if not hasattr(given, "__iter__") else list(given)
    if not every or (take is str and not all(isinstance(one, str) for one in every)):
        raise InputError(f"--{name} is {given!r:.40}", fix=fix)
    return tuple(dict.fromkeys(_said(name, one, take, fix) for one in every))


def _said(name: str, given: Any, take: Callable[[str], Any], fix: str) -> Any:
    """A value, or what people write for it."""
    if not isinstance(given, str):
        return given
    try:
        return take(given)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--{name} holds '{given:.40}': {error}", fix=fix) from None


def _prices(given: Prices, gpus: Sequence[str]) -> dict[str, float]:
    """By GPU: `h100=2.5,a100=1.3`, or one price for all."""
    if isinstance(given, Mapping):
        return {name: AMOUNT.check("price", _said("price", value, amount, PRICES)) for name, value in given.items()}
    if given is None or not isinstance(given, str | Sequence):
        return {} if given is None else dict.fromkeys(gpus, AMOUNT.check("price", given))
    prices: dict[str, float] = {}
    words = listed(given) if isinstance(given, str) else given
    for word in words:
        name, equals, price = word.rpartition("=")
        try:
            value = amount(price)
        except argparse.ArgumentTypeError as error:
            raise InputError(f"--price holds '{word}': {error}", fix=PRICES) from None
        if not equals and len(words) > 1:
            raise InputError(f"--price holds '{word}' beside others", fix=PRICES)
        prices |= {name: value} if equals else dict.fromkeys(gpus, value)
    return prices


def searched(wish: Wish, *, advance: Callable[[], None] = lambda: None) -> Advice:
    """`advance` is called once for each number of GPUs that is done."""
    offers, refused = list[Offer](), list[Refused]()
    for gpu, devices, one_batch in product(wish.gpus, wish.devices, wish.each()):
        one = replace(offer(one_batch, gpu, devices), batch=one_batch.global_batch if wish.batches else 0)
        if isinstance(one, Offer):
            offers.append(one)
        else:
            refused.append(one)
        advance()
    return Advice(wish, tuple(sorted(offers, key=cheapness)), tuple(refused))


def cheapness(offer: Offer) -> tuple[int, float, float]:
    """By dollars; by GPU-hours where none has a price."""
    return capacity.level(offer), offer.spent, offer.seconds


def offer(wish: Wish, gpu: str, devices: int) -> Offer | Refused:
    if wish.global_batch % devices:
        near = devices * max(1, round(wish.global_batch / devices))
        why = f"{wish.global_batch:,} samples do not divide by {devices} devices; --global-batch {near} does"
        return Refused(gpu, devices, why)
    try:
        site = search.site(wish.on(gpu, devices))
    except InputError as error:
        return Refused(gpu, devices, str(error))
    name, every = catalog.gpu(gpu).name, site.ways()
    without, with_it, own_run = (_best(site, every, *kind) for kind in ((False, False), (False, True), (True, False)))
    trainer = stock.find(wish.question.trainer)
    chosen = pick(without, with_it, trainer.name if trainer else None, own_run)
    if chosen is None and (groups := stock.groups(site.settings[0])):  # several GPUs to each sequence
        many = search.site(site.question, groups)
        every = many.ways()
        if (chosen := _best(many, every, trainer is not None, False)) is not None:
            site, without, own_run = (many, None, chosen) if trainer else (many, chosen, None)
    if chosen is None:
        return Refused(name, devices, _why_not(site))
    return Offer(name, devices, chosen, without, with_it, own_run, len(every))


def _best(site: Site, every: Sequence[Way], own: bool, one_sided: bool) -> Pick | None:
    """Of a trainer's own ways or of ours, of those who meet or of those who do not."""
    way = search.best(site, [w for w in every if bool(w.rule) is own and w.one_sided is one_sided])
    return run(way) if way else None


def run(way: Way) -> Pick:
    """By the evaluation that every command has its rows from."""
    whole = WholeRun(evaluate(way.setting, [way.pair]), way.setting.epochs or 1.0)
    return Pick(way, whole.over(whole.evaluation.row(*way.pair)))


def _why_not(site: Site) -> str:
    """What the leanest way would need for the longest sample alone, and what would fit; or that a trainer makes no such
    step, whatever fits."""
    try:
        stock.choose(site.settings[0])
    except InputError as error:
        return str(error)
    costs = [room.under(setting.cost, MEETING) for setting in site.settings]
    least = min((room.least(cost, site.trace) for cost in costs), key=lambda memory: memory.total)
    terms = least.terms
    most = IN_WORDS[max(terms, key=terms.__getitem__)]
    why = f"needs {least.total / 1e9:.0f} GB of {site.memory / 1e9:.0f}, the largest part {most}"
    ways_out = "; ".join(remedies(site.settings[0]))
    return f"{why}; would fit: {ways_out}" if ways_out else why
