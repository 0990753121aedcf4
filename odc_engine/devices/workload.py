"""What one rank runs of a minibatch: its own microbatches, then entries of the shared queue until it is empty."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from odc_engine.job import Job
from odc_engine.packed import Packed, synthetic
from odcsim.cost import Load
from odcsim.schedule import Microbatches, Schedule

Seconds = Mapping[str, float]  # of each kind of compute step


@dataclass(frozen=True, slots=True, eq=False)
class Microbatch:
    """What is computed, and how long it takes where waiting stands for computing."""

    batch: Packed
    seconds: Seconds | None


class Workload:
    """Iterate once. An entry is taken when the loop asks for a microbatch, after the rank has finished all before."""

    def __init__(self, own: Sequence[Microbatch], queue: Sequence[Microbatch], take: Callable[[], int]) -> None:
        self.own, self._queue, self._take = tuple(own), tuple(queue), take
        self.taken: list[int] = []  # the entries that this device runs

    def __iter__(self) -> Iterator[Microbatch]:
        yield from self.own
        while self._queue and (entry := self._take()) < len(self._queue):
            self.taken.append(entry)
            yield self._queue[entry]


def workload_of(
    job: Job, schedule: Schedule, rank: int, take: Callable[[], int], number: int | None, device: torch.device
) -> Workload:
    """Return all microbatches that this rank may run, ready as a data loader has them.

    `number`: the minibatch's number in the job, from which the noise of its samples is drawn.
    """
    own, queue = schedule.devices[rank], schedule.queue
    seconds = _emulated(job, schedule, rank, number) if job.emulate else (None, None)
    return Workload(
        _made(job, schedule, own, seconds[0], device), _made(job, schedule, queue, seconds[1], device), take
    )


def _made(
    job: Job, schedule: Schedule, of: Microbatches, seconds: Sequence[Seconds] | None, device: torch.device
) -> list[Microbatch]:
    batches = (synthetic(schedule, samples, job.cost.model.vocab, job.seed).to(device) for samples in of)
    waits: Iterable[Seconds | None] = seconds if seconds is not None else [None] * len(of)
    return [Microbatch(batch, wait) for batch, wait in zip(batches, waits, strict=True)]


def _emulated(job: Job, schedule: Schedule, rank: int, number: int | None) -> tuple[list[Seconds], list[Seconds]]:
    """Return emulated seconds by the cost model, for the rank's own microbatches and for the queue's entries."""
    luck = [] if number is None else job.cost.luck([schedule], [number], job.seed)
    own, queue = (Load.of(job.cost.model, [schedule], luck, queues=queues) for queues in (False, True))
    return _rows(job, own, rank, len(schedule.devices[rank])), _rows(job, queue, rank, len(schedule.queue))


def _rows(job: Job, load: Load, rank: int, count: int) -> list[Seconds]:
    one = job.program(1)
    tables = (job.cost.durations(one, load.only(m))[:, 0, rank].tolist() for m in range(count))
    return [dict(zip([what for what, _ in one.durations], table, strict=True)) for table in tables]
