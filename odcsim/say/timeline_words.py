"""What timelines say: how much devices idle, and which is the fastest."""

from collections.abc import Sequence

import numpy as np

from odcsim.answer import Answer, AnswerTable
from odcsim.results import metrics
from odcsim.results.metrics import Usage
from odcsim.support.numbers import counted, duration
from odcsim.timeline import Timeline

LITTLE = 0.005  # of device time: too little to name a part of it
NAMES = {
    "compute": "compute",
    "forward": "forward",
    "head": "head and loss",
    "backward": "backward",
    "wait_inside": "waiting inside the minibatch",
    "wait_end": "waiting at its end",
    "gather": "gather, not hidden",
    "push": "push, not hidden",
    "overhead": "fixed cost of a microbatch",
    "optimizer": "optimizer",
    "other": "other (fixed costs, optimizer)",
    "rest": "nothing to do, or meeting others",  # where fixed costs and the optimizer have bars of their own
}


def answer(timelines: Sequence[Timeline], number: int) -> Answer:
    """`number`: the minibatch whose shared queue is told of, where there is one."""
    usages = [metrics.usage(timeline) for timeline in timelines]
    rest = list[str]()
    if len({timeline.about.digest for timeline in timelines}) > 1:
        rest.append(
            "These timelines ran different schedules (their digests differ). Do they hold the same samples? If so, "
            "differences come from sync and balancer together; if not, they say nothing."
        )
    question = f"{counted(len(timelines), 'timeline')}, and minibatch {number} of each as a Gantt chart."
    tables = [parts(timelines, usages), abouts(timelines), queues(timelines, number)]
    shown = [table for table in tables if table.rows]
    return Answer("Timelines", timelines[0].about.title, " ".join(sentences(timelines, usages)), question, shown, rest)


def sentences(timelines: Sequence[Timeline], usages: Sequence[Usage]) -> list[str]:
    """Which is the fastest, where several ran as many samples and tokens; then of each what idles."""
    first, titles = timelines[0], [timeline.about.title for timeline in timelines]
    if len(set(titles)) < len(titles):
        each = enumerate(zip(titles, timelines, strict=True), 1)
        titles = [f"{title} ({n}, {timeline.about.executor})" for n, (title, timeline) in each]
    spans = dict(zip(titles, (float(usage.makespan.sum()) for usage in usages), strict=True))
    best, worst = min(spans, key=lambda title: spans[title]), max(spans, key=lambda title: spans[title])
    alike = all(np.array_equal(first.samples, t.samples) and np.array_equal(first.tokens, t.tokens) for t in timelines)
    lines = []
    if alike and spans[worst] > spans[best]:
        took = f"{duration(spans[best])} instead of {duration(spans[worst])} for as many samples and tokens"
        lines.append(f"{best} is {spans[worst] / spans[best]:.2f} times as fast as {worst}: {took}.")
    return lines + [sentence(usage, title) for usage, title in zip(usages, titles, strict=True)]


def sentence(usage: Usage, title: str) -> str:
    """How much devices idle, and which part of that is the largest."""
    idle, parts = usage.idle(), usage.idle_parts()
    if idle < LITTLE:
        return f"Devices hardly idle under {title}: {idle:.1%} of the time."
    most = max(parts, key=lambda part: parts[part])
    name = NAMES[most].replace("its end", "the end of a minibatch")
    return f"Devices idle {idle:.1%} of the time under {title}; most of it is {name}, {parts[most]:.1%} of the time."


def parts(timelines: Sequence[Timeline], usages: Sequence[Usage]) -> AnswerTable:
    head = ["timeline", "minibatches", "seconds", "compute", "idle", *(NAMES[part] for part in metrics.PARTS)]
    rows = []
    for timeline, usage in zip(timelines, usages, strict=True):
        shares = [1 - usage.idle(), usage.idle(), *usage.idle_parts().values()]
        cells = [timeline.about.title, f"{len(timeline.samples):,}", f"{usage.makespan.sum():,.4g}"]
        rows.append([*cells, *(f"{share:.1%}" for share in shares)])
    says = "Seconds are summed over minibatches; everything else is a share of device time."
    return AnswerTable(head, rows, "Where the time goes, by part", says=says)


def abouts(timelines: Sequence[Timeline]) -> AnswerTable:
    head = ["timeline", "executor", "hardware", "fidelity", "model", "trace", "schedule"]
    rows = []
    for about in (timeline.about for timeline in timelines):
        emulated = ", compute emulated" if about.emulated and about.executor == "engine" else ""
        hardware = f"{about.devices} x {about.hardware}{emulated}"
        cells = [about.executor, hardware, about.fidelity, about.model, about.trace, about.digest]
        rows.append([about.title, *cells])
    return AnswerTable(head, rows, "What these timelines are")


def queues(timelines: Sequence[Timeline], number: int) -> AnswerTable:
    """How many entries of a minibatch's shared queue each device ran, where there is one."""
    rows = []
    for timeline in timelines:
        block, place = timeline.block_of(number)
        entries = [len(block.taken(place, device)) for device in range(timeline.about.devices)]
        if sum(entries):
            each = ", ".join(map(str, entries))
            rows.append([timeline.about.title, timeline.about.executor, f"{sum(entries)}", each])
    head = ["timeline", "executor", "entries of the shared queue", "run by device 0, 1, ..."]
    return AnswerTable(head, rows, f"Shared queue of minibatch {number}")
