"""Random programs with the seconds of their steps, random schedules, and what else the laws are tried on."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from odcsim.cluster import Cluster
from odcsim.program import EXCHANGES, SHARDINGS, SYNCS, Program, program, sync_named
from odcsim.recipe import CHOICES
from odcsim.schedule import Header, Schedule, ScheduleFile

ANYHOW = {"exchanges": EXCHANGES, "reshards": (True, False), "streams": CHOICES["streams"].values}  # every program
PREFETCHES = ("none", "fsdp2", "1", "2", "3", "4")
COMPUTES = ("embed", "forward", "head", "backward", "embed backward")
BETWEEN = ("push between nodes", "gather between nodes")
TRANSFERS = ("gather root", "gather layer", "push root", "push layer")
ONCE = ("optimizer", "publish", "meeting", "meeting to settle")


@dataclass(frozen=True)
class Case:
    """A program, microbatches of each device [minibatch, device] and seconds [row, minibatch, device]."""

    program: Program
    counts: np.ndarray
    durations: np.ndarray

    def under(self, sync: str, prefetch: str | None = None) -> "Case":
        """The same seconds for the same work under another sync; what only that one does takes no time."""
        shape = self.program.layers, self.program.microbatches
        other = program(*shape, sync, prefetch or self.program.prefetch, self.program.sharding)
        row = {timed: i for i, timed in enumerate(self.program.durations)}
        nothing = np.zeros(self.durations.shape[1:])
        table = [self.durations[row[timed]] if timed in row else nothing for timed in other.durations]
        return Case(other, self.counts, np.array(table).reshape(len(table), *nothing.shape))

    def without(self, *what: str) -> "Case":
        """The same case with these taking no time."""
        keep = np.array([timed not in what for timed, _ in self.program.durations], dtype=float)
        return Case(self.program, self.counts, self.durations * keep[:, None, None])


def seconds(shape: tuple[int, ...], style: str, seed: int) -> np.ndarray:
    """Smooth: no two alike. Gaps: half of them zero. Grid: few values, so that much happens at once."""
    rng = np.random.default_rng(seed)
    if style == "grid":
        return rng.integers(0, 4, shape).astype(float)
    return rng.exponential(1.0, shape) * (1.0 if style == "smooth" else rng.integers(0, 2, shape))


@st.composite
def cases(draw, syncs=SYNCS, prefetches=PREFETCHES, devices=(1, 4), minibatches=(1, 3), layers=(1, 5),
        microbatches=(0, 3), shardings=SHARDINGS, exchanges=("end",), reshards=(True,), streams=("one",)):  # fmt: skip
    """A device with fewer microbatches than others takes no time for those it has not; only on-demand has such."""
    sync = draw(st.sampled_from(syncs))
    size = draw(st.integers(*layers)), draw(st.integers(*microbatches))
    drawn = (draw(st.sampled_from(values)) for values in (prefetches, shardings, exchanges, reshards, streams))
    steps = program(*size, sync, *drawn)
    shape = (draw(st.integers(*minibatches)), draw(st.integers(*devices)))
    seed = draw(st.integers(0, 2**20))
    counts = np.full(shape, steps.microbatches)
    if not sync_named(sync).meets:
        counts = np.random.default_rng(seed).integers(0, steps.microbatches + 1, shape)
    table = seconds((len(steps.durations), *shape), draw(st.sampled_from(["smooth", "gaps", "grid"])), seed)
    for row, (_, microbatch) in enumerate(steps.durations):
        table[row] *= microbatch < counts
    return Case(steps, counts, table)


def one_node(devices: int, **values) -> Cluster:
    return Cluster(devices, devices, 3e11, 2.5e10, devices, **values)


@st.composite
def assignments(draw, samples: int, devices: int):
    """Every sample once, in any order, in any number of microbatches; a device may be left without."""
    order = draw(st.permutations(range(samples)))
    owners = draw(st.lists(st.integers(0, devices - 1), min_size=samples, max_size=samples))
    splits = draw(st.lists(st.booleans(), min_size=samples, max_size=samples))
    found: list[list[list[int]]] = [[] for _ in range(devices)]
    for sample, owner, split in zip(order, owners, splits, strict=True):
        if split or not found[owner]:
            found[owner].append([])
        found[owner][-1].append(sample)
    return tuple(tuple(tuple(microbatch) for microbatch in device) for device in found)


@st.composite
def schedules(draw, devices: int | None = None, longest: int = 5000, *, queued: bool = False):
    devices = devices or draw(st.integers(1, 4))
    lengths = tuple(draw(st.lists(st.integers(1, longest), min_size=1, max_size=8)))
    ids = tuple(range(100, 100 + len(lengths))) if draw(st.booleans()) else ()
    loss = tuple(length // 2 for length in lengths) if draw(st.booleans()) else ()
    if not queued:
        return Schedule.of(lengths, draw(assignments(len(lengths), devices)), ids, loss)
    *assignment, queue = draw(assignments(len(lengths), devices + 1))
    return Schedule.of(lengths, tuple(assignment), ids, loss, queue)


@st.composite
def schedule_files(draw):
    devices = draw(st.integers(1, 4))
    one = schedules(devices, queued=draw(st.booleans()))
    found = tuple(draw(st.lists(one, min_size=1, max_size=4)))
    text = st.text(max_size=12)
    names = {name: draw(text) for name in ("balancer", "model", "weights", "trace")}
    sizes = {"max_tokens": max(sum(s.lengths) for s in found), "devices": devices, "seed": draw(st.integers(0, 9))}
    return ScheduleFile(Header(**names, **sizes, in_order=draw(st.booleans())), found)


@st.composite
def damaged(draw, content: bytes):
    """The bytes of a file, with a few of them changed, dropped, added, or all from somewhere on missing."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["change", "drop", "add", "cut"]))
        if kind == "change" and data:
            data[place] = draw(st.integers(0, 255))
        elif kind == "drop":
            del data[place : place + draw(st.integers(1, 8))]
        elif kind == "add":
            data[place:place] = draw(st.binary(min_size=1, max_size=8))
        else:
            del data[place:]
    return bytes(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw, value):
    """A JSON value with one place of it replaced by something else, or missing."""
    if isinstance(value, dict) and value and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 5)) == 0:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: draw(mutated(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        place = draw(st.integers(0, len(value) - 1))
        if draw(st.integers(0, 5)) == 0:
            return value[:place] + value[place + 1 :]
        return [*value[:place], draw(mutated(value[place])), *value[place + 1 :]]
    return draw(JSON)
