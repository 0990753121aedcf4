"""What timelines come to, in sentences: how much devices idle, and which part of that is the largest."""

from collections.abc import Mapping, Sequence

import numpy as np

from odcsim.plots import NAMES
from odcsim.results import metrics
from odcsim.results.metrics import Usage
from odcsim.support.numbers import duration
from odcsim.timeline import Timeline

LITTLE = 0.005  # of device time: too little to name a part of it


def sentences(timelines: Sequence[Timeline]) -> list[str]:
    """Which is the fastest, where several ran as much; then of each what idles."""
    titles = [timeline.about.title for timeline in timelines]
    if len(set(titles)) < len(titles):
        titles = [
            f"{title} ({n}, {t.about.executor})" for n, (title, t) in enumerate(zip(titles, timelines, strict=True), 1)
        ]
    usages = [metrics.usage(timeline) for timeline in timelines]
    spans = [float(usage.makespan.sum()) for usage in usages]
    alike = all(_alike(timelines[0], other) for other in timelines)
    told = _fastest(dict(zip(titles, spans, strict=True))) if alike and max(spans) > min(spans) else []
    return [*told, *(sentence(usage, title) for usage, title in zip(usages, titles, strict=True))]


def sentence(usage: Usage, title: str) -> str:
    idle, parts = usage.idle(), usage.idle_parts()
    if idle < LITTLE:
        return f"Devices hardly idle under {title}: {idle:.1%} of the time."
    most = max(parts, key=lambda part: parts[part])
    name = NAMES[most].replace("its end", "the end of a minibatch")
    return f"Devices idle {idle:.1%} of the time under {title}; most of it is {name}, {parts[most]:.1%} of the time."


def _fastest(spans: Mapping[str, float]) -> list[str]:
    best, worst = min(spans, key=lambda title: spans[title]), max(spans, key=lambda title: spans[title])
    took = f"{duration(spans[best])} instead of {duration(spans[worst])} for as many samples and tokens"
    return [f"{best} is {spans[worst] / spans[best]:.2f} times as fast as {worst}: {took}."]


def _alike(one: Timeline, other: Timeline) -> bool:
    """Whether their minibatches carried as many samples and tokens."""
    return np.array_equal(one.samples, other.samples) and np.array_equal(one.tokens, other.tokens)
