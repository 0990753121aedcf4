"""What each number of GPUs of each kind comes to: hours and dollars of the whole run, or why it cannot run there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import hypot
from typing import Any

from odcsim.advice import search, ways
from odcsim.advice.search import Best, Trial
from odcsim.advice.wish import Wish
from odcsim.errors import InputError
from odcsim.questions import room
from odcsim.questions.remedies import remedies


@dataclass(frozen=True, slots=True)
class Offer:
    """A run on so many GPUs, at its best."""

    gpu: str
    devices: int
    best: Best
    chosen: Trial
    steps: int
    price: float | None  # of a GPU-hour

    @property
    def seconds(self) -> float:
        return self.of(self.chosen)

    def of(self, timed: Trial) -> float:
        """Seconds of the whole run by one of the ways."""
        return timed.mean * self.steps

    @property
    def factors(self) -> tuple[float, float]:
        """Nine times in ten the truth is this many times the seconds: what they rest on, and which minibatches were
        drawn."""
        profile, luck = self.chosen.way.cost.profile, search.spread(self.chosen.seconds)
        return 1 - min(1.0, hypot(1 - profile.low, luck)), 1 + hypot(profile.high - 1, luck)

    @property
    def gpu_hours(self) -> float:
        return self.seconds / 3600 * self.devices

    @property
    def dollars(self) -> float | None:
        return None if self.price is None else self.gpu_hours * self.price

    @property
    def microbatches(self) -> float:
        """Of a device in a minibatch, on average: steps of gradient accumulation."""
        return self.chosen.microbatches

    @property
    def memory(self) -> float:
        way = self.chosen.way
        return room.needed(way.cost, way.setting.limit, way.setting.trace.longest).total

    @property
    def name(self) -> str:
        return f"{self.devices} x {self.gpu}"

    def within(self, wish: Wish) -> bool:
        late = wish.deadline is not None and self.seconds > wish.deadline
        return not late and (wish.budget is None or (self.dollars or 0.0) <= wish.budget)

    def as_json(self) -> dict[str, Any]:
        way, (low, high) = self.chosen.way, self.factors
        paid = self.dollars
        return {
            "gpu": self.gpu,
            "devices": self.devices,
            "seconds": self.seconds,
            "seconds_low": self.seconds * low,
            "seconds_high": self.seconds * high,
            "gpu_hours": self.gpu_hours,
            "dollars": paid,
            "dollars_low": None if paid is None else paid * low,
            "dollars_high": None if paid is None else paid * high,
            **way.as_json(),
            "microbatches": self.microbatches,
            "memory_bytes": self.memory,
            "over_without": self.best.gain,
            "ways": self.best.tried,
            "fidelity": self.chosen.fidelity,
            "cost": way.cost.profile.origin,
        }


@dataclass(frozen=True, slots=True)
class Refused:
    """A number of GPUs on which the run cannot be made, and why."""

    gpu: str
    devices: int
    why: str
    bytes_needed: float = 0.0  # at least, of each

    @property
    def name(self) -> str:
        return f"{self.devices} x {self.gpu}"


@dataclass(frozen=True, slots=True)
class Advice:
    """All offers, cheapest first, and what cannot run."""

    wish: Wish
    offers: tuple[Offer, ...]
    refused: tuple[Refused, ...]

    @property
    def ways(self) -> int:
        return sum(offer.best.tried for offer in self.offers)

    def as_json(self) -> dict[str, Any]:
        wish = self.wish
        return {
            "schema": 1,
            "inputs": {
                "trace": wish.trace.name,
                "trace_samples": wish.trace.size,
                "trace_origin": wish.trace.origin,
                "model": wish.model,
                "gpus": list(wish.gpus),
                "devices": list(wish.devices),
                "epochs": wish.epochs,
                "global_batch": wish.global_batch,
                "steps": wish.steps,
                "prices": dict(wish.prices),
                "deadline_seconds": wish.deadline,
                "budget": wish.budget,
                "minibatches": wish.minibatches,
                "seed": wish.seed,
            },
            "rows": [{**offer.as_json(), "within": offer.within(wish)} for offer in self.offers],
            "refused": [{"gpu": r.gpu, "devices": r.devices, "why": r.why} for r in self.refused],
        }


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


def _cheapness(prices: Mapping[str, float]) -> Callable[[Offer], tuple[float, float]]:
    """By dollars; by GPU-hours where not all have a price."""
    return lambda o: ((o.dollars or 0.0) if prices else o.gpu_hours, o.seconds)


def offer(wish: Wish, gpu: str, devices: int) -> Offer | Refused:
    if wish.global_batch % devices:
        near = devices * max(1, round(wish.global_batch / devices))
        why = f"{wish.global_batch:,} samples do not divide by {devices} devices; --global-batch {near} does"
        return Refused(gpu, devices, why)
    try:
        site = ways.site(wish, gpu, devices)
    except InputError as error:
        return Refused(gpu, devices, str(error))
    best = search.best(site)
    if best.chosen is None:
        return too_small(site)
    return Offer(site.gpu, devices, best, best.chosen, wish.steps, wish.prices.get(gpu))


def too_small(site: ways.Site) -> Refused:
    """What the leanest way would need for the longest sample alone, and what would fit."""
    longest = site.wish.trace.longest
    every = [ways.Way(setting, "collective", "") for setting in site.settings]
    least = min((room.needed(way.cost, longest, longest) for way in every), key=lambda memory: memory.total)
    terms = least.terms
    why = f"needs {least.total / 1e9:.0f} GB of {site.memory / 1e9:.0f}, most of it {max(terms, key=terms.__getitem__)}"
    listed = "; ".join(remedies(site.settings[0]))
    return Refused(site.gpu, site.devices, f"{why}; would fit: {listed}" if listed else why, least.total)
