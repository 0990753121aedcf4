"""What every device of a run held in each step, as schedules: with the padding that it ran and without.

Where lengths are not known, a microbatch stays whole: it is one sample, of as many tokens as its seconds come to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from odcsim.errors import InputError
from odcsim.observed.run import RanMicrobatch, SeenRun
from odcsim.program import sync_named
from odcsim.question import MINIBATCHES
from odcsim.schedule import Schedule
from odcsim.trace import Trace

MOST = 100_000  # samples that are dealt anew: of longer runs, fewer steps tell as much
FEWEST = 8  # steps that are looked at, however many samples each has
POOL = 4  # shares of a step, one of a rank each, of which those of ranks that nobody saw are taken
FINE = 10_000  # tokens of a microbatch, on average, where nobody knows any

Held = tuple[RanMicrobatch, ...]  # of a device in a step


@dataclass(frozen=True, slots=True, eq=False)
class RanDeals:
    """The steps of a run that are looked at, and what they held."""

    places: tuple[int, ...]  # of the steps in the run
    held: tuple[tuple[Held, ...], ...] = field(repr=False)  # of each step and device
    trace: Trace
    padded: tuple[Schedule, ...] = field(repr=False)  # as it ran
    bare: tuple[Schedule, ...] = field(repr=False)  # the same microbatches without padding
    unit: float = 0.0  # seconds of a token, where microbatches stay whole; 0: they do not
    unseen: int = 0  # ranks whose share is another's

    @property
    def whole(self) -> bool:
        """Whether microbatches are moved whole, since nobody knows what is in them."""
        return self.unit > 0

    @property
    def limit(self) -> int:
        """Tokens of the fullest microbatch that ran, its padding among them: so much fitted."""
        return max(schedule.fullest for schedule in self.padded)

    @property
    def pads(self) -> bool:
        return any(
            one.fullest and (one.sizes != other.sizes).any() for one, other in zip(self.padded, self.bare, strict=True)
        )


def deals_of(run: SeenRun, paces: Mapping[int, float], seed: int = 0) -> RanDeals:
    """What a run dealt. `paces`: how many times as long as others a rank takes for equal work."""
    # Steps that held something, as many as are quickly dealt anew, evenly over the run.
    by_lengths = run.rests == "lengths"
    places = [i for i, step in enumerate(run.steps) if any(mb.lengths or not by_lengths for mb in step.microbatches)]
    each = max((sum(len(mb.lengths) or 1 for mb in run.steps[i].microbatches) for i in places), default=1)
    most = min(MINIBATCHES, max(FEWEST, MOST // each))
    if len(places) > most:
        places = [places[i] for i in np.linspace(0, len(places) - 1, most).round().astype(int).tolist()]
    contents = _filled(run, places, seed)
    every = [mb for step in contents for device in step for mb in device]
    if not every:
        raise InputError("no microbatch was told apart", where=run.source, fix="see what the watcher writes")
    whole = not by_lengths
    seconds = [mb.seconds / paces.get(mb.rank, 1.0) for mb in every]
    if whole and not all(seconds):
        raise InputError("neither lengths nor seconds of microbatches are known", where=run.source, fix="give lengths")
    tokens = sum(mb.held for mb in every) or FINE * len(every)
    unit = sum(seconds) / tokens if whole else 0.0

    def samples(mb: RanMicrobatch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The lengths of its samples, and those that were computed."""
        if not unit:
            return mb.lengths, computed(mb)
        one = (max(1, round(mb.seconds / paces.get(mb.rank, 1.0) / unit)),)
        return one, one

    steps = [[[samples(mb) for mb in device] for device in step] for step in contents]
    meets = sync_named(run.sync).meets
    lengths = [n for step in steps for device in step for bare, _ in device for n in bare]
    numbers = np.repeat(np.arange(len(steps)), [sum(len(b) for d in step for b, _ in d) for step in steps])
    trace = Trace(run.source, np.array(lengths), step=numbers, unit="microbatch" if whole else "sample")
    padded = tuple(_schedule([[full for _, full in device] for device in step], meets=meets) for step in steps)
    bare = tuple(_schedule([[bare for bare, _ in device] for device in step], meets=meets) for step in steps)
    unseen = run.ranks - len(set(run.seen))
    return RanDeals(tuple(places), tuple(map(tuple, contents)), trace, padded, bare, unit, unseen)


def _filled(run: SeenRun, places: Sequence[int], seed: int) -> list[list[Held]]:
    """What each device held. That of a rank that nobody saw is taken from what others held, at random."""
    own: list[dict[int, Held]] = []
    for place in places:
        ran: dict[int, list[RanMicrobatch]] = {}
        for mb in sorted(run.steps[place].microbatches, key=lambda mb: (mb.rank, mb.number)):
            ran.setdefault(mb.rank, []).append(mb)
        own.append({rank: tuple(every) for rank, every in ran.items()})
    pool = [held for step in own for held in step.values()]
    unseen = [rank for rank in range(run.ranks) if rank not in run.seen]
    if unseen and len(pool) < POOL:
        problem = f"what {len(pool)} of {len(own) * run.ranks} ranks and steps held was seen"
        raise InputError(problem, where=run.source, fix="give more steps, or more ranks' files")
    rng = np.random.default_rng(seed)
    drawn = [{rank: pool[rng.integers(len(pool))] for rank in unseen} for _ in own]
    return [[(more | step).get(rank, ()) for rank in range(run.ranks)] for step, more in zip(own, drawn, strict=True)]


def computed(mb: RanMicrobatch) -> tuple[int, ...]:
    """The lengths of its samples with their padding: all as long as the longest, or what is missing behind the last."""
    lengths = mb.lengths
    if not lengths or mb.computed <= sum(lengths):
        return lengths
    each, rest = divmod(mb.computed, len(lengths))
    if not rest and each >= max(lengths):
        return (each,) * len(lengths)
    return (*lengths[:-1], lengths[-1] + mb.computed - sum(lengths))


def _schedule(devices: Sequence[Sequence[tuple[int, ...]]], *, meets: bool) -> Schedule:
    """Where devices meet all run as many microbatches, some of them empty."""
    most = max(map(len, devices)) if meets else 0
    lengths, slots = list[int](), list[list[list[int]]]()
    for device in devices:
        slots.append([])
        for mb in device:
            slots[-1].append(list(range(len(lengths), len(lengths) + len(mb))))
            lengths += mb
        slots[-1] += [[] for _ in range(most - len(device))]
    return Schedule.of(lengths, slots)
