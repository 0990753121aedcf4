"""Steps of prompts times rollouts, drawn from recorded groups: what a pilot of fewer says of a run of more."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.trace import Trace

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """What one step generates and trains on: so many samples of each prompt, in so many updates."""

    prompts: int
    rollouts: int
    updates: int = 1
    steps: int = 20  # that stand for all

    @property
    def samples(self) -> int:
        return self.prompts * self.rollouts

    def share(self, devices: int) -> int:
        """Samples of a device and update."""
        if self.samples % (self.updates * devices):
            raise InputError(
                f"{self.prompts} prompts x {self.rollouts} rollouts do not divide into {self.updates} updates on "
                f"{devices} devices",
                fix="choose numbers that do",
            )
        return self.samples // (self.updates * devices)


def run(trace: Trace, batch: RolloutBatch, seed: int) -> Trace:
    """Steps one behind the other. Siblings stay together; an update never spans two, and is a `step` of the trace.

    Without groups, samples are drawn singly: a prompt's rollouts are then no more alike than any others.
    """
    if trace.bundle is not None:
        fix = "give lengths of rollouts, or ask 'odcsim compare'"
        raise InputError(
            f"{trace.unit}s are not rollouts: each rollout is assigned on its own", where=trace.name, fix=fix
        )
    rng = np.random.default_rng(seed)
    ids = np.concatenate(_grouped(trace, batch, rng) if trace.group is not None else _single(trace, batch, rng))
    update = np.repeat(np.arange(batch.steps * batch.updates), batch.samples // batch.updates)
    group = np.repeat(np.arange(batch.steps * batch.prompts), batch.rollouts)
    return Trace(trace.name, trace.take(ids), None, None, group, update, trace.origin)


def groups(trace: Trace) -> list[Ints]:
    """The samples of each prompt in each step, as recorded."""
    member = np.zeros_like(trace.lengths) if (known := trace.prompts) is None else known
    order = np.argsort(member, kind="stable")
    return list(np.split(order.astype(np.int64), np.cumsum(np.bincount(member))[:-1]))


def met(trace: Trace, batch: RolloutBatch, seed: int) -> tuple[Ints, int]:
    """Which of the recorded prompts each step of such a run has [step, prompt], and how many there are; which samples,
    where no groups are known."""
    known = trace.prompts
    size, each = (trace.size, batch.samples) if known is None else (int(known.max()) + 1, batch.prompts)
    return _passes(size, batch.steps * each, np.random.default_rng(seed)).reshape(batch.steps, each), size


def _grouped(trace: Trace, batch: RolloutBatch, rng: np.random.Generator) -> list[Ints]:
    """Every group once before any comes again. One that is smaller than asked gives samples twice."""
    recorded = groups(trace)
    order = _passes(len(recorded), batch.steps * batch.prompts, rng)
    few = (recorded[i] for i in order)
    return [rng.choice(g, batch.rollouts, replace=len(g) < batch.rollouts) for g in few]


def _single(trace: Trace, batch: RolloutBatch, rng: np.random.Generator) -> list[Ints]:
    return [_passes(trace.size, batch.steps * batch.samples, rng)]


def _passes(size: int, wanted: int, rng: np.random.Generator) -> Ints:
    passes = [rng.permutation(size) for _ in range(-(-wanted // size))]
    return np.concatenate(passes)[:wanted].astype(np.int64)
