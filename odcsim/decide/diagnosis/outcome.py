"""What is found in a run: where its step goes, who the others wait for, and what other ways to run it would bring."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from odcsim.decide.decision import NOTABLE
from odcsim.timeline import Floats

WORK = ("compute", "padding", "transfer")
SLOW = 1.02  # times as long as others for equal work: a slow device
APART = 0.02  # of a step, by which ranks differ

LEVEL = 0.95  # of the upper end: 90 % lie between the two
# Where a step goes. The first three are work; the rest is lost.
PARTS: Mapping[str, str] = {
    "compute": "compute",
    "padding": "compute on padding",
    "transfer": "transfers not overlapped",
    "lengths": "waiting: uneven lengths",
    "device": "waiting: a slow device",
    "stages": "waiting: uneven stages",
    "bubble": "waiting: pipeline bubble",
    "loader": "data loader",
    "collector": "garbage collection",
    "launch": "launch gaps of the host",
    "edges": "start and end",
    "untold": "waiting of unknown cause",
}


@dataclass(frozen=True, slots=True)
class StepPart:
    """One part of the step: its mean over ranks and steps, and a 90 % interval over steps."""

    name: str  # of PARTS
    seconds: float
    share: float
    low: float  # of the share
    high: float


@dataclass(frozen=True, slots=True)
class LateMicrobatch:
    """A microbatch that others waited for."""

    step: int
    rank: int
    microbatch: int  # -1: not told apart
    tokens: int  # 0: not known
    seconds: float  # of waiting that it caused, of all ranks together
    why: str  # of PARTS


@dataclass(frozen=True, slots=True)
class RankFound:
    """One rank: shares of its steps, how many times as long as others it takes for equal work, and what it caused."""

    rank: int
    compute: float
    waiting: float
    pace: float  # 1: as fast as the others
    caused: float  # seconds of others' waiting in a step, on average


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the steps of a run went."""

    parts: tuple[StepPart, ...]  # in the order of PARTS; they sum to the step
    ranks: tuple[RankFound, ...]
    late: tuple[LateMicrobatch, ...]  # the worst first
    by_step: Mapping[str, Floats] = field(repr=False)  # seconds of each part in each step
    cannot: tuple[str, ...] = ()  # what could not be told, in words

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    def share(self, name: str) -> float:
        return next(part.share for part in self.parts if part.name == name)

    @property
    def lost(self) -> float:
        """Share of a step that is neither work nor bytes, padding among it."""
        return sum(part.share for part in self.parts if part.name not in WORK or part.name == "padding")

    @property
    def idle(self) -> float:
        return sum(part.share for part in self.parts if part.name not in WORK)

    @property
    def stragglers(self) -> list[RankFound]:
        """All ranks, those for which the others waited most first."""
        return sorted(self.ranks, key=lambda one: (-one.caused, -one.pace, one.rank))

    @property
    def even(self) -> bool:
        """Whether ranks do not differ."""
        shares = [[one.compute for one in self.ranks], [one.waiting for one in self.ranks]]
        apart = any(max(of, default=0) - min(of, default=0) >= APART for of in shares)
        return len(self.ranks) < 2 or not (apart or any(one.pace >= SLOW for one in self.ranks))


EFFORTS = ("a setting", "a repair", "another sampler", "another engine")  # from least to most


@dataclass(frozen=True, slots=True)
class Change:
    """Another way to run the same samples: how many times as fast, with a 90 % interval."""

    effort: str  # of EFFORTS
    way: str  # in words: "lb-mini under on-demand"
    gain: float
    low: float
    high: float
    seconds: float  # of a step
    balancer: str
    sync: str
    max_tokens: int  # of a microbatch; 0: those that ran are moved whole
    row: Mapping[str, Any]  # of the spine, as 'odcsim compare --json' prints it
    dollars_a_day: float | None = None  # saved, where a price is known
    setting: str = ""  # what to set in the trainer, in its words
    rests: str = ""  # what it rests on, in words
    fits: bool | None = None  # in memory; None: not known


@dataclass(frozen=True, slots=True)
class Changes:
    """Ways in order of effort; none where nothing is to gain."""

    ways: tuple[Change, ...]
    replayed: float  # seconds of the step as it ran, simulated, over measured; 0: not held against it
    rests: str  # what is known of samples and seconds, in words
    inputs: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of the question that the rows answer
    cannot: tuple[str, ...] = ()

    @property
    def best(self) -> Change | None:
        """The one of least effort that is about as fast as any that is worth it; None where nothing is to gain."""
        worth = [one for one in self.ways if one.gain >= NOTABLE and one.low > 1 and one.fits is not False]
        most = max((one.gain for one in worth), default=0.0)
        return next((one for one in worth if one.gain * NOTABLE >= most), None)


def step_parts(by_step: Mapping[str, Floats]) -> tuple[StepPart, ...]:
    """The mean of each part over steps, and its share of the step as a ratio of sums, with the interval that its linear
    part has; one step has none."""
    step: Floats = np.sum([by_step[name] for name in PARTS], axis=0)
    if not len(step) or not step.sum():
        return tuple(StepPart(name, 0.0, 0.0, 0.0, 0.0) for name in PARTS)
    parts = []
    for name in PARTS:
        seconds = by_step[name]
        share = float(seconds.sum() / step.sum())
        off = mean_off(seconds - share * step) / float(step.mean())
        parts.append(StepPart(name, float(seconds.mean()), share, max(0.0, share - off), min(1.0, share + off)))
    return tuple(parts)


def mean_off(left: Floats) -> float:
    """How far a mean may be off."""
    if (n := len(left)) < 2:
        return 0.0
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, LEVEL)) * float(left.std(ddof=1)) / math.sqrt(n)
