"""Run schedules through an executor: all of them to a timeline, or piece by piece to the usage alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from odcsim import analytic, metrics
from odcsim.cost import Cost
from odcsim.errors import InputError, nearest
from odcsim.program import Program, check_counts, program
from odcsim.schedule import Schedule, ScheduleFile
from odcsim.timeline import About, Block, Floats, Timeline

EXECUTORS = ("analytic", "des")
PIECE = (
    2_000_000  # spans held at once while only their usage is wanted: what stays in the processor's cache counts most
)


@dataclass(frozen=True, slots=True)
class Simulation:
    """How to run: by whose seconds, under which sync, with which executor."""

    cost: Cost
    sync: str
    executor: str = "des"
    prefetch: str = "fsdp2"
    seed: int = 0

    def check(self, schedules: Sequence[Schedule]) -> None:
        """Refuse what would hang, and what this executor cannot answer."""
        if self.executor not in EXECUTORS:
            raise InputError(f"unknown executor '{self.executor}'", fix=nearest(self.executor, list(EXECUTORS)))
        cluster = self.cost.cluster
        if self.executor == "analytic" and cluster.shared_links:
            nics = f"{cluster.nics_per_node} NICs for {cluster.devices_per_node} devices in a node"
            raise InputError(f"the analytic executor cannot share links ({nics})", fix="use --executor des")
        if self.executor == "analytic" and cluster.jitter:
            raise InputError("the analytic executor draws no jitter", fix="use --executor des, or jitter 0")
        for number, schedule in enumerate(schedules):
            if len(schedule.devices) != cluster.devices:
                raise InputError(f"schedule for {len(schedule.devices)} devices on a cluster of {cluster.devices}")
            check_counts(self.sync, schedule.microbatches, where=f"minibatch {number}")


def simulate(file: ScheduleFile, simulation: Simulation) -> Timeline:
    """Every span of every minibatch."""
    cost, header = simulation.cost, file.header
    about = About(
        executor=simulation.executor,
        sync=simulation.sync,
        balancer=header.balancer,
        model=cost.model.name,
        digest=header.digest,
        fidelity=fidelity(cost, file.schedules),
        hardware=cost.profile.gpu,
        emulated=True,
        prefetch=simulation.prefetch,
        devices=cost.cluster.devices,
        max_tokens=header.max_tokens,
        trace=header.trace,
    )
    simulation.check(file.schedules)
    blocks = tuple(_execute(piece, simulation) for piece in _pieces(file.schedules, simulation, None))
    return Timeline(about, blocks, *carried(file.schedules))


def usage(schedules: Sequence[Schedule], simulation: Simulation) -> metrics.Usage:
    """What `metrics.usage(simulate(...))` says, without ever holding the spans of more than a piece."""
    simulation.check(schedules)
    pieces = ((p.minibatches, _usage_of(p, simulation)) for p in _pieces(schedules, simulation, PIECE))
    return metrics.assemble(pieces, len(schedules))


def carried(schedules: Sequence[Schedule]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Samples and tokens of each minibatch."""
    samples = np.array([len(s.lengths) for s in schedules], dtype=np.int64)
    return samples, np.array([sum(s.lengths) for s in schedules], dtype=np.int64)


def fidelity(cost: Cost, schedules: Sequence[Schedule]) -> str:
    """The profile's fidelity, or `extrapolated` where a sample, a microbatch or the devices are beyond it."""
    profile = cost.profile
    longest = max(max(s.lengths) for s in schedules)
    beyond = bool(profile.longest and longest > profile.longest) or not profile.measured_with(cost.cluster.devices)
    return "extrapolated" if beyond or _too_full(profile.most_tokens, schedules) else profile.fidelity


def _too_full(most: int, schedules: Sequence[Schedule]) -> bool:
    """Whether a microbatch holds more than `most` tokens; no limit where that is 0."""
    microbatches = ((s, m) for s in schedules for device in s.devices for m in device) if most else ()
    return any(sum(s.lengths[i] for i in m) > most for s, m in microbatches)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Minibatches that share a program, and their durations."""

    program: Program
    minibatches: NDArray[np.int64]
    counts: NDArray[np.int64]
    durations: Floats


def _pieces(schedules: Sequence[Schedule], simulation: Simulation, size: int | None) -> Iterator[_Piece]:
    """Group minibatches by their shape, at most `size` of their devices together."""
    cost = simulation.cost
    groups: dict[int, list[int]] = {}
    for number, schedule in enumerate(schedules):
        groups.setdefault(max(schedule.microbatches), []).append(number)
    for most, numbers in sorted(groups.items()):
        steps = program(cost.model.layers, most, simulation.sync, simulation.prefetch)
        stride = max(1, size // cost.cluster.devices) if size else len(numbers)
        for first in range(0, len(numbers), stride):
            piece = numbers[first : first + stride]
            load = cost.load([schedules[n] for n in piece])
            yield _Piece(steps, np.array(piece, dtype=np.int64), load.counts, cost.durations(steps, load))


def _execute(piece: _Piece, simulation: Simulation) -> Block:
    if simulation.executor == "analytic":
        times = analytic.run(piece.program, piece.durations)
    else:
        from odcsim import des  # SimPy loads only where it is used: sweeps start without it

        rngs = [np.random.default_rng([simulation.seed, n]) for n in piece.minibatches]
        times = des.run(piece.program, piece.durations, simulation.cost.cluster, rngs)
    return Block(piece.program, piece.minibatches, piece.counts, *times)


def _usage_of(piece: _Piece, simulation: Simulation) -> metrics.Usage:
    if simulation.executor != "analytic":
        return metrics.measure(_execute(piece, simulation))
    steps = piece.program
    asked, had = analytic.recycled_rows(steps, metrics.uses(steps), piece.durations.shape[1:])
    return metrics.measure_rows(steps, asked, had, analytic.scan(steps, piece.durations, asked, had))
