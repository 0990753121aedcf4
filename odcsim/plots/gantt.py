"""The picture of one minibatch: a row per device, a bar per pass, and waiting where a device waits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import Any

import numpy as np
import plotly.graph_objects as go

from odcsim.plots.style import INK, NAMES, layout, marker
from odcsim.results.slices import Slice, compute_lane, microbatch_named, view
from odcsim.timeline import Block, Timeline

MOST_DEVICES, MOST_BARS = 64, 4000
_AXIS = "seconds from the start of the minibatch"
_PASSES = ("forward", "head", "backward")
_SHOWN_AS = {"publish": "optimizer", "meeting": "other"}
ORDER = (*_PASSES, "overhead", "gather", "push", "wait_inside", "wait_end", "optimizer", "other")


@dataclass(frozen=True, slots=True)
class Bar:
    device: int
    kind: str
    start: float
    seconds: float
    microbatch: int
    entry: int = -1  # of the shared queue, where the microbatch was one


def gantt(
    timeline: Timeline, minibatch: int, *, until: float = 0.0, number: int | None = None, most: int = MOST_DEVICES
) -> go.Figure:
    """`until` (seconds) gives charts a common axis; `number` is told where the timeline is cut from a longer run."""
    return go.Figure(chart(timeline, minibatch, until=until, number=number, most=most))


def chart(timeline: Timeline, minibatch: int, *, until: float, number: int | None, most: int) -> dict[str, Any]:
    """The figure in plain values, which plotly has not checked yet."""
    block, place = timeline.block_of(minibatch)
    makespan = float(block.had[:, place].max())
    devices = choose(block, place, most)
    visible = [bar for device in devices for bar in bars(block, place, device) if bar.seconds > makespan / 10_000]
    about = timeline.about
    words = f"minibatch {minibatch if number is None else number}, {timeline.tokens[minibatch]:,} tokens in "
    words += f"{timeline.samples[minibatch]:,} samples"
    if any(bar.kind in ("wait_inside", "gather", "push") for bar in visible):
        words += "; pauses between the layers of a pass are drawn together at its end"
    if any(bar.entry >= 0 for bar in visible):
        words += "; outlined: taken from the shared queue"
    look = layout(
        f"{escape(about.title)}: {in_seconds(makespan)}, devices idle {idle(block, place):.0%}",
        words + _left_out(devices, about.devices),
        x=_AXIS,
        height=150 + len(devices) * _pixels(devices),
    )
    look |= {"barmode": "overlay", "bargap": 0.18}
    look["xaxis"] |= {"range": [0, 1.01 * max(until, makespan)]}
    look["yaxis"] |= {"autorange": "reversed", "showgrid": False, "tickfont": {"size": 12 if len(devices) <= 32 else 9}}
    kinds = ((kind, [bar for bar in visible if bar.kind == kind]) for kind in ORDER)
    return {"data": [_trace(kind, of_kind) for kind, of_kind in kinds if of_kind], "layout": look}


def idle(block: Block, place: int) -> float:
    """Share of the minibatch's device time without compute."""
    steps = [i for i, step in enumerate(block.program.steps) if step.kind == "compute"]
    computed = float((block.had[steps, place] - block.asked[steps, place]).sum())
    total = float(block.had[:, place].max()) * block.had.shape[2]
    return 1 - computed / total if total else 0.0


def bars(block: Block, place: int, device: int) -> list[Bar]:
    """A device's bars, without overlap: per pass one for its compute, then one for each kind of pause within it."""
    joined: list[Bar] = []
    for bar in _bars(block, place, device):
        last = joined[-1] if joined else bar
        if last is not bar and last.kind == bar.kind and bar.kind not in _PASSES:
            joined[-1] = replace(last, seconds=last.seconds + bar.seconds)
        else:
            joined.append(bar)
    return joined


def _bars(block: Block, place: int, device: int) -> Iterator[Bar]:
    seen = view(block, place, device)
    slices = compute_lane(seen)
    for (microbatch, _), group in groupby(zip(_passes(slices), slices, strict=True), key=lambda pair: pair[0]):
        members = [s for _, s in group]
        now = members[0].start
        for kind, seconds in _totals(members):
            yield Bar(device, kind, now, seconds, microbatch, seen.entries.get(microbatch, -1))
            now += seconds


def _passes(slices: Sequence[Slice]) -> list[tuple[int, str]]:
    """The pass that each slice belongs to: a gap to that around it, and between two passes to none."""
    work = [(s.microbatch, s.kind) if s.kind in _PASSES else None for s in slices]
    before, after = _carried(work), _carried(work[::-1])[::-1]
    none = [(s.microbatch, f"{i}") for i, s in enumerate(slices)]
    return [b if b is not None and b == a else n for b, a, n in zip(before, after, none, strict=True)]


def _carried(keys: Iterable[tuple[int, str] | None]) -> list[tuple[int, str] | None]:
    """Each key, or where there is none the last one."""
    carried: list[tuple[int, str] | None] = []
    for key in keys:
        carried.append(key if key is not None or not carried else carried[-1])
    return carried


def _totals(members: Sequence[Slice]) -> list[tuple[str, float]]:
    total: dict[str, float] = {}
    for s in members:
        kind = _SHOWN_AS.get(s.kind, s.kind)
        total[kind] = total.get(kind, 0.0) + s.seconds
    return sorted(total.items(), key=lambda item: ORDER.index(item[0]))


def choose(block: Block, place: int, most: int) -> list[int]:
    """All devices, or where there are too many a choice from the busiest to the idlest."""
    devices = block.had.shape[2]
    most = min(most, max(4, MOST_BARS // (8 * max(block.program.microbatches, 1))))
    if devices <= most:
        return list(range(devices))
    steps = [i for i, step in enumerate(block.program.steps) if step.kind == "compute"]
    busy = np.argsort((block.had[steps, place] - block.asked[steps, place]).sum(axis=0), kind="stable")
    picked = busy[np.linspace(0, devices - 1, most).round().astype(int)]
    return sorted(int(d) for d in picked)


def _left_out(devices: Sequence[int], of: int) -> str:
    if len(devices) == of:
        return ""
    return f"; {len(devices)} of {of} devices are drawn, chosen evenly from the busiest to the idlest"


def _trace(kind: str, bars: Sequence[Bar]) -> dict[str, Any]:
    return {
        "type": "bar",
        "y": [f"device {bar.device}" for bar in bars],
        "x": [bar.seconds for bar in bars],
        "base": [bar.start for bar in bars],
        "orientation": "h",
        "name": NAMES[kind],
        "marker": _marker(kind, bars),
        "customdata": [_hover(bar) for bar in bars],
        "hovertemplate": "%{y}, %{customdata}<br>%{fullData.name}: %{x:.4g} s<extra></extra>",
    }


def _marker(kind: str, bars: Sequence[Bar]) -> dict[str, Any]:
    """Passes of what came from the shared queue have an outline; pauses are nobody's."""
    plain = marker(kind)
    if kind not in _PASSES or all(bar.entry < 0 for bar in bars):
        return plain
    return {**plain, "line": {"color": INK, "width": [1.5 if bar.entry >= 0 else 0 for bar in bars]}}


def _hover(bar: Bar) -> str:
    if bar.microbatch < 0:
        return "end of minibatch"
    return microbatch_named(bar.microbatch, {bar.microbatch: bar.entry} if bar.entry >= 0 else {})


def _pixels(devices: Sequence[int]) -> int:
    return 30 if len(devices) <= 16 else 18 if len(devices) <= 32 else 13


def in_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"
