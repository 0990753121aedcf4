"""The discrete-event executor: every lane of every device is a SimPy process that walks its part of the program.

It agrees with the analytic executor to the last bit where nobody shares a link and nothing is drawn, and answers what
that one cannot: transfers that share a node's NICs, and compute that varies from step to step.
"""

import math
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from odcsim.cluster import Cluster
from odcsim.program import COMPUTE, Program, Step
from odcsim.timeline import Floats, Ints

MANY = 10_000  # spells that even out: a speed's mean over more of them is the one that was planned
Process = Generator[simpy.Event, int | None, None]


@dataclass(frozen=True, slots=True)
class Queue:
    """The shared queue of a minibatch, whose entries become the microbatches that devices run after their own."""

    planned: Ints  # microbatches of each device before it takes any
    seconds: Floats  # [row, entry, kind of device]; rows as those of the program's first microbatch
    kinds: Ints  # of each device

    def __len__(self) -> int:
        return int(self.seconds.shape[1])


def run(
    program: Program,
    durations: Floats,
    cluster: Cluster | None = None,
    rngs: Sequence[np.random.Generator] = (),
) -> tuple[Floats, Floats]:
    """Times asked and had [step, minibatch, device] from durations [row, minibatch, device].

    A cluster adds shared links where it has them, and its jitter and swings where generators to draw them from are
    passed, one for each minibatch so that a minibatch comes out the same whatever it is simulated with.
    """
    return run_shared(program, durations, (), cluster, rngs)[:2]


def run_shared(
    program: Program,
    durations: Floats,
    queues: Iterable[Queue],
    cluster: Cluster | None = None,
    rngs: Sequence[np.random.Generator] = (),
) -> tuple[Floats, Floats, list[list[int]]]:
    """`asked` and `had` of all steps, and who took each entry of the minibatches' queues.

    A device that has run all microbatches of the program takes no more: where there is one, it may have been too short.
    """
    shape = (len(program.steps), *durations.shape[1:])
    asked, had = np.empty(shape), np.empty(shape)
    takers: list[list[int]] = []
    rows, given = [step.duration for step in program.steps], iter(queues)
    for b in range(shape[1]):
        jitter = cluster.jitter if cluster is not None and rngs else 0.0
        factors = _jitter(program, jitter, shape[2], rngs[b]) if jitter else None
        minibatch = _Run(program, durations[rows, b], cluster, factors, next(given, None))
        if cluster is not None and cluster.swing and rngs:
            minibatch.speeds = [_Speed(cluster.swing, cluster.spell, rng) for rng in rngs[b].spawn(shape[2])]
        asked[:, b], had[:, b] = minibatch.run()
        takers.append(minibatch.counter.takers if minibatch.counter else [])
    return asked, had, takers


def _jitter(program: Program, jitter: float, devices: int, rng: np.random.Generator) -> Floats:
    """Factors of mean one for compute steps, one for the rest [step, device].

    Drawn for the compute steps alone: all syncs have the same ones in the same order, so they meet the same jitter.
    """
    sigma = np.sqrt(np.log1p(jitter**2))
    computes = [i for i, step in enumerate(program.steps) if step.kind == "compute"]
    factors = np.ones((len(program.steps), devices))
    factors[computes] = rng.lognormal(-sigma * sigma / 2, sigma, (len(computes), devices))
    return factors


class _Run:
    """One minibatch under simulation: its clock, its processes, and what they have recorded."""

    def __init__(
        self, program: Program, seconds: Floats, cluster: Cluster | None, factors: Floats | None, queue: Queue | None
    ) -> None:
        self.env = simpy.Environment()
        self.program, self.devices, self.factors = program, seconds.shape[1], factors
        self.counter = None if queue is None else _Counter(self.env, queue)
        # A device's times in lists of their own: the processes touch single numbers, which numpy is slow at.
        self.seconds: list[list[float]] = (seconds if factors is None else seconds * factors).T.tolist()
        self.asked = [[0.0] * len(program.steps) for _ in range(self.devices)]
        self.had = [[-1.0] * len(program.steps) for _ in range(self.devices)]
        self.waiting: list[dict[int, simpy.Event]] = [{} for _ in range(self.devices)]
        self.coming = {i: self.devices for i, step in enumerate(program.steps) if step.meets}
        self.meetings = {i: self.env.event() for i in self.coming}  # where all devices wait for the last one
        self.cluster = cluster if cluster is not None and cluster.shared_links and program.one_sided else None
        self.links: dict[tuple[int, str], _Link] = {}
        self.speeds: list[_Speed] = []

    def run(self) -> tuple[Floats, Floats]:
        lanes: dict[str, list[tuple[int, Step]]] = defaultdict(list)
        for i, step in enumerate(self.program.steps):
            lanes[step.lane].append((i, step))
        for device in range(self.devices):
            for steps in lanes.values():
                self.env.process(self._lane(device, steps))
        self.env.run()
        return np.array(self.asked).T, np.array(self.had).T

    def _lane(self, device: int, steps: list[tuple[int, Step]]) -> Process:
        env, counter, seconds = self.env, self.counter, self.seconds[device]
        asked, had, waiting = self.asked[device], self.had[device], self.waiting[device]
        for i, step in steps:
            for need in step.after:
                if had[need] < 0:
                    yield waiting.get(need) or waiting.setdefault(need, env.event())
            asked[i] = env.now
            if step.meets:
                self.coming[i] -= 1
                if self.coming[i]:
                    yield self.meetings[i]
                else:
                    self.meetings[i].succeed()
            if counter is not None and step.kind == "overhead" and counter.serves(device, step.microbatch):
                entry = yield counter.ask(device)
                if entry is not None:
                    self._fill(device, i, counter.queue.seconds[:, entry, counter.queue.kinds[device]])
            if took := seconds[i]:
                link = self._link(device, step)
                if self.speeds and step.lane == COMPUTE and not step.meets:
                    took = self.speeds[device].seconds(env.now, took)
                yield env.timeout(took) if link is None else link.transfer(took)
            had[i] = env.now
            if i in waiting:
                waiting.pop(i).succeed()

    def _fill(self, device: int, first: int, seconds: Floats) -> None:
        """Have the microbatch whose steps begin with `first` be an entry of the queue, by the rows of the program's
        first microbatch."""
        begin, each = self.program.begin, (self.program.end - self.program.begin) // self.program.microbatches
        entry = seconds[[step.duration for step in self.program.steps[begin : begin + each]]]
        factors = 1.0 if self.factors is None else self.factors[first : first + each, device]
        self.seconds[device][first : first + each] = (entry * factors).tolist()

    def _link(self, device: int, step: Step) -> "_Link | None":
        """The NICs that a one-sided transfer of this device goes through, where they are shared."""
        if self.cluster is None or not self.program.leaves_node(step):
            return None
        key = (device // self.cluster.devices_per_node, step.kind)  # gathers come in, pushes go out
        if key not in self.links:
            self.links[key] = _Link(self.env, self.cluster.nics_per_node)
        return self.links[key]


@dataclass(slots=True)
class _Counter:
    """Hands out the entries of a shared queue, first come first served.

    Of devices that ask at one moment the lowest number gets the first, as in the analytic executor. So an answer waits
    until nothing else is left to happen at that moment.
    """

    env: simpy.Environment
    queue: Queue
    takers: list[int] = field(default_factory=list)
    asking: list[tuple[int, simpy.Event]] = field(default_factory=list)

    def serves(self, device: int, microbatch: int) -> bool:
        return microbatch >= self.queue.planned[device] and len(self.takers) < len(self.queue)

    def ask(self, device: int) -> simpy.Event:
        """An event that brings the number of an entry, or None where others were quicker."""
        event = self.env.event()
        heappush(self.asking, (device, event))
        if len(self.asking) == 1:
            _Last(self.env).callbacks.append(self._answer)
        return event

    def _answer(self, _: simpy.Event) -> None:
        device, event = heappop(self.asking)
        entry = len(self.takers)
        if entry < len(self.queue):
            self.takers.append(device)
            event.succeed(entry)
        else:
            event.succeed(None)
        if self.asking:
            _Last(self.env).callbacks.append(self._answer)


class _Last(simpy.Event):
    """Happens now, but after everything else that happens now."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority=EventPriority(NORMAL + 1))


class _Speed:
    """One device's speed as time passes: for each spell another, so that work takes as long as planned on average.

    Spells follow the clock and not the steps. So all syncs meet the same ones, and a device that does nothing lets them
    pass. Minibatches follow each other, so more of them begin in a quick spell than time is spent in quick spells.
    """

    def __init__(self, swing: float, spell: float, rng: np.random.Generator) -> None:
        self.sigma, self.spell, self.rng = float(np.sqrt(np.log1p(swing**2))), spell, rng
        self.speed, self.until = self._drawn(self.sigma**2 / 2), rng.exponential(spell)

    def _drawn(self, mean: float) -> float:
        return self.rng.lognormal(mean, self.sigma)

    def seconds(self, start: float, work: float) -> float:
        """How long it takes from `start` what takes `work` seconds at speed one."""
        now, most = start, MANY * self.spell
        if work > most:
            now, work = now + work - most, most
        while True:
            self._pass(now)
            if now + work / self.speed <= self.until:
                return now + work / self.speed - start
            work -= (self.until - now) * self.speed
            now = self.until

    def _pass(self, now: float) -> None:
        """Spells that are over. After very many the present one knows nothing of them: so long is left of any."""
        if now - self.until > MANY * self.spell:
            self.until = now
        while self.until <= now:
            self.until = max(self.until + self.rng.exponential(self.spell), math.nextafter(self.until, math.inf))
            self.speed = self._drawn(-(self.sigma**2) / 2)


@dataclass(slots=True)
class _Link:
    """A node's NICs in one direction: each carries one transfer at full speed; more transfers than NICs share equally.

    All transfers move at the same rate, so one running total of work done per transfer tells when each ends.
    """

    env: simpy.Environment
    nics: int
    done: float = 0.0
    updated: float = 0.0
    ends: list[tuple[float, int, simpy.Event]] = field(default_factory=list)
    arrivals: "count[int]" = field(default_factory=count)
    timer: int = 0

    def transfer(self, seconds: float) -> simpy.Event:
        """An event for the end of a transfer that takes `seconds` alone."""
        self._advance()
        event = self.env.event()
        heappush(self.ends, (self.done + seconds, next(self.arrivals), event))
        self._set_timer()
        return event

    def _rate(self) -> float:
        return min(1.0, self.nics / len(self.ends)) if self.ends else 1.0

    def _advance(self) -> None:
        self.done += (self.env.now - self.updated) * self._rate()
        self.updated = self.env.now

    def _set_timer(self) -> None:
        """Wake up at the next end; a timer set before a later arrival is void."""
        self.timer += 1
        mine = self.timer
        wake = self.env.timeout(max(0.0, self.ends[0][0] - self.done) / self._rate())
        wake.callbacks.append(lambda _: self._end(mine))

    def _end(self, timer: int) -> None:
        if timer != self.timer:
            return
        self._advance()
        # The head is due now whatever rounding says of the running total.
        self.done = max(self.done, self.ends[0][0])
        while self.ends and self.ends[0][0] <= self.done:
            heappop(self.ends)[2].succeed()
        if self.ends:
            self._set_timer()
