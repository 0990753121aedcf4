"""Timelines beside each other, as a page and as a small picture: idle by part, and the same minibatch of each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from odcsim import plots
from odcsim.plots.gantt import makespan
from odcsim.plots.svg import svg
from odcsim.results import metrics
from odcsim.results.metrics import Usage
from odcsim.show.pages import page
from odcsim.show.pages.report import RESTS
from odcsim.support.files import write_text
from odcsim.support.numbers import counted, duration
from odcsim.timeline import Timeline

LITTLE = 0.005  # of device time: too little to name a part of it


def write_timelines(timelines: Sequence[Timeline], path: Path | str) -> None:
    title, number, usages = "Where the time goes", _median(timelines), [metrics.usage(t) for t in timelines]
    until = max(makespan(*t.block_of(number)) for t in timelines)
    asked = f"{counted(len(timelines), 'timeline')}, and minibatch {number} of each as a Gantt chart."
    body = [
        page.heading(title, 1),
        page.answer(sentences(timelines, usages)),
        page.paragraph(asked, "asked"),
        *_digests(timelines),
        _parts(timelines, usages),
        page.paragraph("Seconds are summed over minibatches; everything else is a share of device time.", "note"),
        page.heading("What these timelines are"),
        _abouts(timelines),
        page.heading(f"Minibatch {number}"),
        *_queues(timelines, number),
        *(plots.embed(plots.gantt(t, number, until=until), f"gantt-{i}") for i, t in enumerate(timelines)),
    ]
    write_text(Path(path), page.with_figures(title, body, RESTS))


def write_picture(timelines: Sequence[Timeline], path: Path | str) -> None:
    """The same minibatch of each as a small SVG."""
    write_text(Path(path), svg(timelines, _median(timelines)))


def _median(timelines: Sequence[Timeline]) -> int:
    """The minibatch that takes the first of them its median time, of an even number the lower one; all have it."""
    shortest = min(len(t.samples) for t in timelines)
    times = metrics.usage(timelines[0]).makespan[:shortest]
    return int(np.argsort(times, kind="stable")[(shortest - 1) // 2])


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
    name = plots.NAMES[most].replace("its end", "the end of a minibatch")
    return f"Devices idle {idle:.1%} of the time under {title}; most of it is {name}, {parts[most]:.1%} of the time."


def _digests(timelines: Sequence[Timeline]) -> list[str]:
    if len({t.about.digest for t in timelines}) == 1:
        return []
    words = "These timelines ran different schedules (their digests differ). Do they hold the same samples? If so, "
    words += "differences come from sync and balancer together; if not, they say nothing."
    return [page.answer([words], yes=False)]


def _parts(timelines: Sequence[Timeline], usages: Sequence[Usage]) -> str:
    head = ["timeline", "minibatches", "seconds", "compute", "idle", *(plots.NAMES[part] for part in metrics.PARTS)]
    rows = []
    for timeline, usage in zip(timelines, usages, strict=True):
        shares = [1 - usage.idle(), usage.idle(), *usage.idle_parts().values()]
        cells = [timeline.about.title, f"{len(timeline.samples):,}", f"{usage.makespan.sum():,.4g}"]
        rows.append([*cells, *(f"{share:.1%}" for share in shares)])
    return page.table(head, rows, name="Where the time goes")


def _abouts(timelines: Sequence[Timeline]) -> str:
    head = ["timeline", "executor", "hardware", "fidelity", "model", "trace", "schedule"]
    rows = []
    for about in (timeline.about for timeline in timelines):
        emulated = ", compute emulated" if about.emulated and about.executor == "engine" else ""
        hardware = f"{about.devices} x {about.hardware}{emulated}"
        cells = [about.executor, hardware, about.fidelity, about.model, about.trace, about.digest]
        rows.append([about.title, *cells])
    return page.table(head, rows, name="What these timelines are")


def _queues(timelines: Sequence[Timeline], number: int) -> list[str]:
    """How many entries of a minibatch's shared queue each device ran, where there is one."""
    rows = []
    for timeline in timelines:
        block, place = timeline.block_of(number)
        entries = [len(block.taken(place, device)) for device in range(timeline.about.devices)]
        if sum(entries):
            each = ", ".join(map(str, entries))
            rows.append([timeline.about.title, timeline.about.executor, f"{sum(entries)}", each])
    head = ["timeline", "executor", "entries of the shared queue", "run by device 0, 1, ..."]
    return [page.table(head, rows, name="Shared queues")] if rows else []
