"""What a recorded run tells of its machine: the measurements in a timeline, ready for a fit.

A run is its own best measurement: compute beside transfers, transfers beside compute, and what the engine does between
two layers, which no timing of a single call shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from odcsim.core import delays
from odcsim.cost import GATHER_BYTES, PUSH_BYTES, Cost, Load
from odcsim.errors import InputError
from odcsim.measurements import KEPT, SHORTEST, Compute, Constant, Transfer
from odcsim.model import Model
from odcsim.profile import DTYPES
from odcsim.program import COMPUTE, ROOT, SETTLES
from odcsim.schedule import Schedule
from odcsim.timeline import Block, Floats, Timeline

BOTH_WAYS = {"embed": "embed", "embed backward": "embed"}  # a profile has one number for the two
WITHOUT = BOTH_WAYS | {"forward": "forward" + KEPT, "backward": "backward" + KEPT}  # recompute


@dataclass(frozen=True, slots=True)
class Rows:
    """Measurements of one timeline."""

    compute: tuple[Compute, ...]
    transfers: tuple[Transfer, ...]
    constants: tuple[Constant, ...]


def rows(
    timeline: Timeline, schedules: Sequence[Schedule], model: Model, dtype: str, emulated: Cost | None = None
) -> Rows:
    """Everything a timeline measures. Where compute was emulated it is not measured, and whatever a wait took beyond
    the seconds of the cost that it stood for is work between steps."""
    recipe = timeline.about.recipe
    if recipe.sharding != "full":
        raise InputError(
            f"the timeline of a run under {recipe.sharding} sharding: a profile's transfers reach all devices",
            fix="record a run under full sharding",
        )
    computing = not timeline.about.emulated
    compute: list[Compute] = []
    transfers: list[Transfer] = []
    constants: list[Constant] = []
    for block in timeline.blocks:
        chosen = block.ran(schedules)
        if computing:
            names = BOTH_WAYS if recipe.recomputes else WITHOUT
            compute += _compute(block, Load.of(model, chosen), chosen, names)
        transfers += _transfers(block, model, DTYPES.get(dtype, GATHER_BYTES), computing)
        late = delays(block)
        if emulated is not None:
            late |= _beyond(block, late, emulated.durations(block.program, Load.of(model, chosen)))
        constants += _constants(block, late)
    return Rows(tuple(compute), tuple(transfers), tuple(constants))


def _compute(block: Block, held: Load, schedules: Sequence[Schedule], names: Mapping[str, str]) -> list[Compute]:
    """A row for each microbatch and kind; layers are alike, so their mean stands for one."""
    every: dict[tuple[str, int], list[int]] = {}
    for i, step in enumerate(block.program.steps):
        if step.kind == "compute":
            what = block.program.durations[step.duration][0]
            every.setdefault((names.get(what, what), step.microbatch), []).append(i)
    computes = []
    for (kind, m), steps in every.items():
        seconds = np.mean(block.had[steps] - block.asked[steps], axis=0)
        middle = np.mean(block.had[steps] + block.asked[steps], axis=0) / 2
        for b, d in zip(*np.nonzero((m < held.counts) & (seconds >= SHORTEST)), strict=True):
            samples = schedules[b].devices[d][m]
            computes.append(
                Compute(
                    kind,
                    int(held.tokens[m, b, d]),
                    float(held.squares[m, b, d]),
                    float(seconds[b, d]),
                    longest=max(schedules[b].lengths[i] for i in samples),
                    samples=len(samples),
                    minibatch=int(block.minibatches[b]) + 1,
                    device=int(d),
                    at=float(middle[b, d]),
                    alone=block.counts.shape[1] == 1,
                )
            )
    return computes


def _transfers(block: Block, model: Model, gathered: int, computing: bool) -> list[Transfer]:
    """A row for each transfer."""
    one_sided, devices = block.program.one_sided, block.counts.shape[1]
    transfers = []
    for i, step in enumerate(block.program.steps):
        if step.kind not in ("gather", "push") or devices == 1:
            continue
        each, kind = (gathered, "gather") if step.kind == "gather" else (PUSH_BYTES, "push")
        size = each * (model.root_parameters if step.unit == ROOT else model.layer_parameters)
        if not one_sided:
            kind = "all-gather" if kind == "gather" else "reduce-scatter"
        seconds = block.seconds(i).ravel()
        transfers += [Transfer(kind, devices, size, float(s), computing) for s in seconds if s >= SHORTEST]
    return transfers


def _beyond(block: Block, late: dict[int, Floats], seconds: Floats) -> dict[int, Floats]:
    """Gaps before emulated compute, and what its waits took too long."""
    steps = ((i, step) for i, step in enumerate(block.program.steps) if step.kind == "compute")
    return {i: late[i] + block.had[i] - block.asked[i] - seconds[step.duration] for i, step in steps}


def _constants(block: Block, late: dict[int, Floats]) -> list[Constant]:
    """Meetings, the optimizer, publishing, and the work between steps of each microbatch."""
    devices = block.counts.shape[1]
    constants: list[Constant] = []
    overhead = np.zeros((block.program.microbatches, *block.counts.shape))
    for i, step in enumerate(block.program.steps):
        if step.lane != COMPUTE:
            continue
        if step.kind in ("overhead", "compute"):
            overhead[step.microbatch] += _own(block, i, late)
        elif devices > 1 or step.kind != "meeting":
            kind = "settle" if block.program.durations[step.duration][0] == SETTLES else step.kind
            constants += [Constant(kind, devices, float(s)) for s in _own(block, i, late).ravel() if s >= SHORTEST]
    for m, seconds in enumerate(overhead):
        constants += [Constant("overhead", devices, float(s)) for s in seconds[m < block.counts] if s >= SHORTEST]
    return constants


def _own(block: Block, i: int, late: dict[int, Floats]) -> Floats:
    """What a step of the compute lane adds to its device's time beside compute and waiting. Before devices settle, a
    host has work of its own; before they meet again, all of it is in the step before."""
    step = block.program.steps[i]
    seconds = np.zeros_like(block.had[i]) if step.kind == "compute" else block.seconds(i)
    met = step.meets and block.program.durations[step.duration][0] != SETTLES
    return seconds if met or i not in late else seconds + late[i]
