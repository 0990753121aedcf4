"""The discrete-event executor: every lane of every device is a SimPy process that walks its part of the program.

It agrees with the analytic executor to the last bit where nobody shares a link and nothing is drawn, and answers what
that one cannot: transfers that share a node's NICs, and compute that varies from step to step.
"""

import math
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, product

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
    queues: Sequence[Queue] = (),
    gpus: int = 1,
) -> tuple[Floats, Floats, list[list[int]]]:
    """Times asked and had [step, minibatch, device] from durations [row, minibatch, device], and who took each entry of
    each minibatch's queue.

    A cluster adds shared links where it has them, and its jitter and swings where generators to draw them from are
    passed, one for each minibatch so that a minibatch comes out the same whatever it is simulated with. `gpus`: of the
    cluster's, that each device stands for, whose links it uses at once. A device that has run all microbatches of the
    program takes no more: where there is one, it may have been too short.
    """
    minibatches, devices = durations.shape[1:]
    asked, had = np.empty((2, len(program.steps), minibatches, devices))
    takers: list[list[int]] = []
    rows = [step.duration for step in program.steps]
    computes = [i for i, step in enumerate(program.steps) if step.kind == "compute"]
    for b in range(minibatches):
        run = _Run(program, durations[rows, b], cluster, queues[b] if queues else None, gpus)
        if cluster is not None and rngs and cluster.jitter:
            # Of mean one, for compute steps alone: all syncs have the same ones in the same order, and meet the same.
            sigma = np.sqrt(np.log1p(cluster.jitter**2))
            run.factors[computes] = rngs[b].lognormal(-sigma * sigma / 2, sigma, (len(computes), devices))
        if cluster is not None and rngs and cluster.swing:
            run.speeds = [_Speed(cluster.swing, cluster.spell, rng) for rng in rngs[b].spawn(devices)]
        asked[:, b], had[:, b] = run.times()
        takers.append(run.counter.takers if run.counter else [])
    return asked, had, takers


class _Run:
    """One minibatch under simulation: its clock, its processes, and what they have recorded."""

    def __init__(
        self, program: Program, planned: Floats, cluster: Cluster | None, queue: Queue | None, gpus: int
    ) -> None:
        self.env, self.program, self.planned = simpy.Environment(), program, planned
        self.factors = np.ones_like(planned)  # times what is planned [step, device]
        self.speeds: list[_Speed] = []
        self.counter = None if queue is None else _Counter(self.env, queue)
        self.rows = [
            step.duration for step in program.steps if step.microbatch == 0
        ]  # as an entry of the queue has them
        # A device's times in lists of their own: the processes touch single numbers, which numpy is slow at.
        steps, self.devices = planned.shape
        self.seconds: list[list[float]] = []
        self.asked = [[0.0] * steps for _ in range(self.devices)]
        self.had = [[-1.0] * steps for _ in range(self.devices)]
        self.waiting: list[dict[int, simpy.Event]] = [{} for _ in range(self.devices)]
        self.coming = {i: self.devices for i, step in enumerate(program.steps) if step.meets}
        self.meetings = {i: self.env.event() for i in self.coming}  # where all devices wait for the last one
        self.gpus, self.per_node, self.links = gpus, 1, dict[tuple[int, str], _Link]()
        if cluster is not None and cluster.shared_links and program.one_sided:
            # A node's NICs, which one-sided transfers go through: gathers come in, pushes go out.
            self.per_node = cluster.devices_per_node
            ways = product(range(cluster.nodes), ("gather", "push"))
            nics = cluster.nics_per_node / min(gpus, self.per_node)
            self.links = {way: _Link(self.env, nics) for way in ways}

    def times(self) -> tuple[Floats, Floats]:
        self.seconds = (self.planned * self.factors).T.tolist()
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
                if entry is not None:  # the microbatch that begins here is this entry
                    queue, here = counter.queue, slice(i, i + len(self.rows))
                    planned = queue.seconds[self.rows, entry, queue.kinds[device]]
                    seconds[here] = (planned * self.factors[here, device]).tolist()
            if took := seconds[i]:
                if self.links and self.program.leaves_node(step):
                    yield self.links[device * self.gpus // self.per_node, step.kind].transfer(took)
                elif self.speeds and step.lane == COMPUTE and not step.meets:
                    yield env.timeout(self.speeds[device].seconds(env.now, took))
                else:
                    yield env.timeout(took)
            had[i] = env.now
            if i in waiting:
                waiting.pop(i).succeed()


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
        left = entry < len(self.queue)
        if left:
            self.takers.append(device)
        event.succeed(entry if left else None)
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
        self.speed, self.until = rng.lognormal(self.sigma**2 / 2, self.sigma), rng.exponential(spell)

    def seconds(self, start: float, work: float) -> float:
        """How long it takes from `start` what takes `work` seconds at speed one."""
        now, most = start, MANY * self.spell
        if work > most:
            now, work = now + work - most, most
        while True:
            if now - self.until > most:  # so many spells later the present one knows nothing of them
                self.until = now
            while self.until <= now:
                self.until = max(self.until + self.rng.exponential(self.spell), math.nextafter(self.until, math.inf))
                self.speed = self.rng.lognormal(-(self.sigma**2) / 2, self.sigma)
            if now + work / self.speed <= self.until:
                return now + work / self.speed - start
            work -= (self.until - now) * self.speed
            now = self.until


@dataclass(slots=True)
class _Link:
    """A node's NICs in one direction: each carries one transfer at full speed; more transfers than NICs share equally.

    All transfers move at the same rate, so one running total of work done per transfer tells when each ends.
    """

    env: simpy.Environment
    nics: float
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
