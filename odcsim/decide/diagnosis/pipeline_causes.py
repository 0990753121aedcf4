"""Why passes of a pipeline differ: what a microbatch holds, the device, the stage, and what none of them explains.

All stages run the same microbatches. What the other passes of a microbatch predict of one is due to what it holds, as
https://arxiv.org/abs/2505.05713 takes forwards that go with backwards for uneven lengths; what one stage of a
data-parallel rank takes longer for than the others of its stage do for like microbatches is due to its device.
"""

from dataclasses import dataclass, field

import numpy as np

from odcsim.decide.diagnosis.pipeline_grid import PipelineGrid
from odcsim.timeline import Floats

CLEAR = 0.03  # what a device must be slower by, at least
SURE = 4.0  # standard errors that it must be off by
MEDIAN = 1.25  # times as uncertain as a mean
ROUNDS = 12  # of which each halves what is left, at least
LEAST = 0.05  # of a usual pass: no microbatch takes less


@dataclass(frozen=True, slots=True, eq=False)
class PassCauses:
    """A pass lasts for usual x pace x (1 + held + rest)."""

    grid: PipelineGrid = field(repr=False)
    usual: Floats  # [stage, place]
    pace: Floats  # [replica, stage], 1: as fast as the others
    held: Floats = field(repr=False)  # [unit, stage, place]
    rest: Floats = field(repr=False)
    explained: float  # share of the variance of seconds that what is held explains
    longer: Floats = field(repr=False)  # [replica]: how much longer its microbatches take on every stage, beyond chance

    def seconds(self, *, lengths: bool, device: bool, stages: bool, rest: bool) -> Floats:
        """Of passes [unit, stage, place] with these causes, and without the others."""
        usual = self.usual if stages else np.broadcast_to(self.usual.mean(axis=0), self.usual.shape)
        pace = self.paces if device else 1.0
        seconds: Floats = usual * pace * (1 + lengths * self.held + rest * self.rest)
        return seconds

    @property
    def paces(self) -> Floats:
        """[unit, stage, 1]"""
        paces: Floats = self.pace[self.grid.replicas][:, :, None]
        return paces


def causes_of(grid: PipelineGrid) -> PassCauses:
    pace = _paces(grid)
    alike = grid.seconds / pace[grid.replicas][:, :, None]
    usual = alike.mean(axis=0)
    off = alike / usual - 1
    held = np.maximum(_foretold(off), LEAST - 1)
    rest = off - held
    spread = float((usual**2 * off**2).sum())
    explained = 1 - float((usual**2 * rest**2).sum()) / spread if spread > 0 else 0.0
    return PassCauses(grid, usual, pace, held, rest, explained, _longer(grid, alike))


def _paces(grid: PipelineGrid) -> Floats:
    """[replica, stage], where one is slow rather than all others fast, and that is for certain."""
    pace = np.ones(grid.ranks.shape)
    for _ in range(ROUNDS):
        late, error = _apart(grid, pace)
        late += np.log(pace)
        late -= np.quantile(late, 0.5, axis=1, method="lower", keepdims=True)
        pace = np.exp(np.where(late > np.maximum(np.log1p(CLEAR), SURE * error), late, 0.0))
    return pace


def _apart(grid: PipelineGrid, pace: Floats) -> tuple[Floats, Floats]:
    """How far each rank is from the mean of its data-parallel rank's stages, in logarithms beyond what is usual of its
    stage, and what that may be off by."""
    took = grid.seconds.sum(axis=2) / pace[grid.replicas]
    stages = took.shape[1]
    late, error = np.zeros((2, *pace.shape))
    for stage in range(stages):
        others = np.delete(took, stage, axis=1).mean(axis=1)
        over = np.log(took[:, stage] / _line(others, took[:, stage])) * (stages - 1) / stages
        for replica in range(len(pace)):
            own = over[grid.replicas == replica]
            late[replica, stage] = np.median(own)
            error[replica, stage] = MEDIAN * own.std() / np.sqrt(len(own))
    late -= np.median(late, axis=0)
    return late, error


def _line(x: Floats, y: Floats) -> Floats:
    """What a straight line through the points gives."""
    spread = float(x.var())
    slope = float(((x - x.mean()) * (y - y.mean())).mean()) / spread if spread > 1e-12 * x.mean() ** 2 else 0.0
    line: Floats = np.maximum(y.mean() + slope * (x - x.mean()), LEAST * y.mean())
    return line


def _foretold(off: Floats) -> Floats:
    """Of each pass what the mean of the microbatch's other passes says of it."""
    flat = off.reshape(len(off), -1)
    predicted = np.zeros_like(flat)
    for i in range(flat.shape[1]):
        others = np.delete(flat, i, axis=1).mean(axis=1)
        if (spread := float((others**2).mean())) > 1e-12:
            predicted[:, i] = max(0.0, float((others * flat[:, i]).mean()) / spread) * others
    return predicted.reshape(off.shape)


def _longer(grid: PipelineGrid, alike: Floats) -> Floats:
    """How many times as long a data-parallel rank's microbatches take on all stages; 1 where that can be chance."""
    took = alike.sum(axis=(1, 2))
    over = took / took.mean()
    times = np.ones(len(grid.ranks))
    for replica in range(len(times)):
        own = over[grid.replicas == replica]
        if len(own) > 1 and abs(own.mean() - 1) > max(CLEAR, SURE * own.std(ddof=1) / np.sqrt(len(own))):
            times[replica] = own.mean()
    return times
