"""A run step by step: a row for each minibatch, as trackers of experiments take them."""

from collections.abc import Iterator

import numpy as np

from odcsim.results import metrics
from odcsim.timeline import Timeline

Line = dict[str, str | int | float]


def steps(timeline: Timeline, run: str) -> Iterator[Line]:
    """`run` tells it from others in one file. Idle and its parts are shares of the step's device time."""
    usage, devices = metrics.usage(timeline), timeline.about.devices
    elapsed = np.cumsum(usage.makespan)
    for step, seconds in enumerate(usage.makespan.tolist()):
        total = seconds * devices
        parts = {part: float(getattr(usage, part)[step]) / total if total else 0.0 for part in metrics.PARTS}
        tokens = int(timeline.tokens[step])
        yield {
            "run": run,
            "step": step,
            "seconds": seconds,
            "elapsed": float(elapsed[step]),
            "samples": int(timeline.samples[step]),
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "idle": sum(parts.values()),
            **parts,
        }
