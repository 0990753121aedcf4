"""What was seen of a run, whatever wrote it down: the pieces of every rank's step, its microbatches, and its meetings.

A rank's step is cut into pieces that follow each other without a hole, so that whatever is made of them sums to the
step. Nobody writes waiting down: who waited for whom follows from when each rank came to a meeting.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from odcsim.measurements import Transfer
from odcsim.timeline import Floats, Ints

NO = -1  # the meeting of a piece that is in none, the microbatch of one that belongs to none


class Doing(IntEnum):
    """What a device does in a piece. Where several things go on at once, the first of these."""

    COMPUTE = 0
    MEETING = 1  # nothing but a collective: waiting for the last to come, then bytes
    TRANSFER = 2  # bytes that need nobody else to come: one-sided, or between host and device
    STAGE = 3  # nothing but a send to another stage of a pipeline, or a receive
    LOADER = 4  # nothing, while the host is in its data loader
    COLLECTOR = 5  # nothing, while the host collects garbage
    HOST = 6  # nothing: the host launches late
    EDGE = 7  # before the first work of a step and after the last


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One rank in one step: its pieces in order, in seconds on the clock that all ranks of the run share."""

    rank: int
    kinds: Ints
    edges: Floats = field(repr=False)  # where pieces begin, and where the last one ends
    meetings: Ints = field(repr=False)  # the number of the meeting in RanStep.meetings, or NO
    microbatches: Ints = field(repr=False)  # which of the rank's in this step, or NO

    @property
    def seconds(self) -> float:
        return float(self.edges[-1] - self.edges[0])


@dataclass(frozen=True, slots=True)
class Met:
    """A collective: when each rank that was seen came to it, and when it was done."""

    kind: str  # as PyTorch calls it: all-gather, reduce-scatter, all-reduce, ...
    bytes: int  # of the whole; 0: not known
    ranks: int  # that met, whether seen or not
    came: Mapping[int, float]  # by rank
    done: float

    @property
    def alike(self) -> tuple[str, int, int]:
        """What sets apart how long it takes."""
        return self.kind, self.bytes, self.ranks


@dataclass(frozen=True, slots=True)
class RanMicrobatch:
    """What a rank ran at once."""

    rank: int
    number: int  # within the rank's step, from 0
    seconds: float  # of compute; 0: not told apart from waiting
    wall: float = 0.0  # from its beginning to its end, whatever it waited for; 0: not known
    lengths: tuple[int, ...] = ()  # of its samples; empty: not known
    tokens: int = 0  # of its samples, where they are known without their lengths
    computed: int = 0  # tokens with padding; 0: not known, or none

    @property
    def held(self) -> int:
        """Tokens of its samples; 0: not known."""
        return sum(self.lengths) or self.tokens


@dataclass(frozen=True, slots=True)
class RanStep:
    """One optimizer step. `tracks` is empty where nothing but microbatches is known."""

    number: int
    seconds: float
    microbatches: tuple[RanMicrobatch, ...] = field(repr=False)
    tracks: tuple[Track, ...] = field(default=(), repr=False)
    meetings: tuple[Met, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SeenRun:
    """Steps of a run, and what was seen of it beside them."""

    source: str  # in words, such as "torch.profiler traces of 8 ranks"
    ranks: int  # in the run
    seen: tuple[int, ...]  # ranks whose files were there
    steps: tuple[RanStep, ...]
    sync: str = "collective"  # when gradients leave, as recipes say it: collective | deferred | on-demand
    layers: int = 0  # units that are gathered one by one; 0: not known
    stages: Mapping[int, int] = field(
        default_factory=dict
    )  # the pipeline's stage of each rank, where there are several
    replicas: Mapping[int, int] = field(default_factory=dict)  # whose samples each rank runs, where stages share them
    alike: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # seconds of equal work by rank: kernels of
    # one name and grid, or operations of one shape, with the median of each rank: they tell how fast its device is
    transfers: tuple[Transfer, ...] = ()  # seen to move so many bytes, the shortest of each size
    updates: tuple[float, ...] = ()  # seconds of optimizer steps
    trainer: str = ""  # whose run it is, where a file says it
    rests: str = "lengths"  # what a microbatch holds is known by: lengths | tokens | seconds
    lacks: tuple[str, ...] = ()  # what these files do not tell, in words


def track_of(
    rank: int,
    begin: Floats,
    end: Floats,
    kinds: Ints,
    meetings: Ints,
    microbatches: Ints,
    span: tuple[float, float],
    untold: Doing = Doing.HOST,
) -> Track:
    """What a rank did in a step that lasted for `span`. Where nothing is told, it did `untold`: the host is late."""
    edges = np.unique(np.r_[begin, end, span])
    owners = np.full(len(edges) - 1, NO)
    low, high = np.searchsorted(edges, begin), np.searchsorted(edges, end)
    for i in np.lexsort((begin, -kinds)).tolist():  # the first of kinds is written last
        owners[low[i] : high[i]] = i
    new = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
    owners, edges = owners[new], np.r_[edges[new], edges[-1]]
    does = np.r_[kinds, untold][owners]  # the last stands for no owner
    worked = np.flatnonzero(owners != NO)
    if len(worked):
        does[: worked[0]] = does[worked[-1] + 1 :] = Doing.EDGE
    else:
        does[:] = Doing.EDGE
    return Track(rank, does, edges, np.r_[meetings, NO][owners], np.r_[microbatches, NO][owners])
