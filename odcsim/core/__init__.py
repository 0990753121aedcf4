"""The core: any program of steps is simulated, and what it says of idle time follows from its spans alone.

A `Builder` makes a program: steps in lanes, each behind others, some of which all devices meet in. `simulate` says when
every device asked for each step and when it had it, and `usage` where the time went. All else stands on these: syncs
are programs that `odcsim.program` builds, and costs are the seconds of their rows.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from odcsim.errors import InputError
from odcsim.executors.simulation import spans
from odcsim.program import Builder, Program, Step
from odcsim.results.metrics import Usage, delays, measure
from odcsim.schedule import Schedule
from odcsim.timeline import Block

__all__ = ["Builder", "Program", "Schedule", "Step", "Usage", "delays", "simulate", "usage"]


def simulate(program: Program, seconds: Callable[[str, int], ArrayLike]) -> Block:
    """When each device asked for every step and had it: `asked` and `had` [step, minibatch, device].

    `seconds(timed, microbatch)` gives what a step of that name takes: a number for all devices, one for each device, or
    [minibatch, device]. Who does not have a step takes 0 for it.
    """
    try:
        rows = [np.asarray(seconds(timed, microbatch), dtype=np.float64) for timed, microbatch in program.durations]
    except (TypeError, ValueError) as error:
        raise InputError(f"seconds that are no numbers: {error}", fix="give [device] or [minibatch, device]") from None
    try:
        durations = np.stack(np.broadcast_arrays(*map(np.atleast_2d, rows)))
    except ValueError:
        shapes = ", ".join(sorted({str(row.shape) for row in rows}))
        raise InputError(f"seconds of shapes {shapes}", fix="give [device] or [minibatch, device], alike") from None
    if durations.ndim != 3:
        raise InputError(f"seconds of {durations.ndim - 1} axes", fix="give [device] or [minibatch, device]")
    if not durations.size:
        raise InputError("seconds of no device, or of no minibatch", fix="give [device] or [minibatch, device]")
    if not (np.isfinite(durations).all() and (durations >= 0).all()):
        row = next(row for row, of in enumerate(durations) if not (np.isfinite(of).all() and (of >= 0).all()))
        timed, microbatch = program.durations[row]
        where = "" if microbatch < 0 else f" of microbatch {microbatch}"
        raise InputError(
            f"seconds of '{timed}'{where} are not all finite and from 0", fix="give 0 for what is not there"
        )
    return spans(program, durations)


def usage(block: Block) -> Usage:
    """Seconds of each minibatch, over all devices: compute, and the parts of idle time."""
    return measure(block)
