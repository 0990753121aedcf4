"""The picture of one minibatch, or twice of the same: a row per device, a bar per pass, and waiting where it waits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import plotly.graph_objects as go

from odcsim.plots.style import HATCHED, HEAD, INK, WAITING, layout, marker
from odcsim.results.slices import compute_lane, microbatch_named, view
from odcsim.say.timeline_words import NAMES
from odcsim.timeline import Block, Floats, Timeline

MOST_DEVICES, MOST_BARS = 64, 4000
_PASSES = ("forward", "head", "backward")
_SHOWN_AS = {"publish": "optimizer", "meeting": "rest", "other": "rest"}
ORDER = (*_PASSES, "overhead", "gather", "push", "wait_inside", "wait_end", "optimizer", "rest")
_FRAME, _BETWEEN = 190, 40  # pixels around the two panels, and from one to the other
_NAMES = 60  # pixels of devices' names, above which a panel's title begins, too


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
    drawn = _visible(timeline, minibatch, most)
    return go.Figure(_chart(timeline, minibatch, drawn, until=until, words=_looks(drawn), number=number, most=most))


def pair(
    before: Timeline, after: Timeline, minibatch: int = 0, *, number: int | None = None, most: int = MOST_DEVICES
) -> go.Figure:
    """Two charts on one scale. `number` is told where the timelines are cut from longer runs; at most so many devices
    are drawn."""
    return go.Figure(panels((before, after), minibatch, number=number, most=most))


def panels(timelines: Sequence[Timeline], minibatch: int, *, number: int | None, most: int) -> dict[str, Any]:
    """That figure in plain values, which plotly has not checked yet: that takes longer than all else."""
    spans = [makespan(*timeline.block_of(minibatch)) for timeline in timelines]
    drawn = [_visible(timeline, minibatch, most) for timeline in timelines]
    words = _looks([bar for bars in drawn for bar in bars])
    charts = [
        _chart(timeline, minibatch, bars, until=max(spans), words=words, number=number, most=most)
        for timeline, bars in zip(timelines, drawn, strict=True)
    ]
    rows = [chart["layout"]["height"] - 150 - (HEAD - 80) for chart in charts]
    whole = sum(rows) + _BETWEEN
    domains = [[1 - rows[0] / whole, 1.0], [0.0, rows[1] / whole]]
    names = [escape(timeline.about.title) for timeline in timelines]
    title = f"{names[1]} runs this minibatch {spans[0] / spans[1]:.2f} times as fast as {names[0]}"
    look = layout(title, charts[0]["layout"]["title"]["subtitle"]["text"], x="", height=_FRAME + whole)
    look["annotations"] = [
        {
            "text": escape(headline(timeline, minibatch)),  # short enough for a telephone
            "font": {"size": 12},
            "showarrow": False,
            "x": 0,
            "xanchor": "left",
            "xref": "paper",
            "xshift": -_NAMES,
            "y": top,
            "yanchor": "bottom",
            "yref": "paper",
        }
        for timeline, (_, top) in zip(timelines, domains, strict=True)
    ]
    look |= {"barmode": "overlay", "bargap": 0.18}
    look["legend"] |= {"y": -60 / sum(rows), "yanchor": "top"}
    axis = charts[0]["layout"]["xaxis"] | {"domain": [0.0, 1.0]}
    above = {"anchor": "y", "domain": [0.0, 1.0], "matches": "x2", "range": axis["range"], "showticklabels": False}
    look |= {"xaxis": above, "xaxis2": axis | {"anchor": "y2"}}
    for name, anchor, domain in (("yaxis", "x", domains[0]), ("yaxis2", "x2", domains[1])):
        look[name] = {"anchor": anchor, "domain": domain, "autorange": "reversed", "showgrid": False}
    traces: list[dict[str, Any]] = []
    named: set[str] = set()  # each kind is once in the legend, which switches it in both
    for chart, n in zip(charts, ("", "2"), strict=True):
        for of_kind in chart["data"]:
            name, axes = of_kind["name"], {"xaxis": f"x{n}", "yaxis": f"y{n}"}
            traces.append({**of_kind, **axes, "legendgroup": name, "showlegend": name not in named})
            named.add(name)
    return {"data": traces, "layout": look}


def _visible(timeline: Timeline, minibatch: int, most: int) -> list[Bar]:
    """Of the devices that are drawn, what is long enough to be seen."""
    block, place = timeline.block_of(minibatch)
    least, devices = makespan(block, place) / 10_000, choose(block, place, most)
    return [bar for device in devices for bar in bars(block, place, device) if bar.seconds > least]


def _looks(visible: Sequence[Bar]) -> str:
    """What these bars look like, and why."""
    words = f"; {WAITING}" if any(bar.kind in HATCHED for bar in visible) else ""
    if any(bar.kind in ("wait_inside", "gather", "push") for bar in visible):
        words += "; pauses between the layers of a pass are drawn together at its end"
    return words + ("; outlined: taken from the shared queue" if any(bar.entry >= 0 for bar in visible) else "")


def _chart(
    timeline: Timeline,
    minibatch: int,
    visible: Sequence[Bar],
    *,
    until: float,
    words: str,
    number: int | None,
    most: int,
) -> dict[str, Any]:
    """The figure in plain values, which plotly has not checked yet."""
    block, place = timeline.block_of(minibatch)
    span, about = makespan(block, place), timeline.about
    devices = choose(block, place, most)
    drawn = f"minibatch {minibatch if number is None else number}, {timeline.tokens[minibatch]:,} tokens in "
    words = f"{drawn}{timeline.samples[minibatch]:,} samples{words}"
    if len(devices) < about.devices:
        words += f"; {len(devices)} of {about.devices} devices are drawn, chosen evenly from the busiest to the idlest"
    title = f"{escape(about.title)}: {in_seconds(span)}, devices idle {idle(block, place):.0%}"
    pixels = 30 if len(devices) <= 16 else 18 if len(devices) <= 32 else 13
    height = 150 + len(devices) * pixels
    look = layout(title, words, x="seconds from the start of the minibatch", height=height)
    look |= {"barmode": "overlay", "bargap": 0.18}
    look["xaxis"] |= {"range": [0, 1.01 * max(until, span)]}
    look["yaxis"] |= {"autorange": "reversed", "showgrid": False, "tickfont": {"size": 12 if len(devices) <= 32 else 9}}
    kinds = ((kind, [bar for bar in visible if bar.kind == kind]) for kind in ORDER)
    return {"data": [_trace(kind, of_kind) for kind, of_kind in kinds if of_kind], "layout": look}


def _trace(kind: str, bars: Sequence[Bar]) -> dict[str, Any]:
    """Passes of what came from the shared queue have an outline; pauses are nobody's."""
    look = marker(kind)
    if kind in _PASSES and any(bar.entry >= 0 for bar in bars):
        look |= {"line": {"color": INK, "width": [1.5 if bar.entry >= 0 else 0 for bar in bars]}}
    entries = ({bar.microbatch: bar.entry} if bar.entry >= 0 else {} for bar in bars)
    return {
        "type": "bar",
        "y": [f"device {bar.device}" for bar in bars],
        "x": [bar.seconds for bar in bars],
        "base": [bar.start for bar in bars],
        "orientation": "h",
        "name": NAMES[kind],
        "showlegend": True,  # also where it is the only one
        "marker": look,
        "customdata": [
            "end of minibatch" if bar.microbatch < 0 else microbatch_named(bar.microbatch, of_queue)
            for bar, of_queue in zip(bars, entries, strict=True)
        ],
        "hovertemplate": "%{y}, %{customdata}<br>%{fullData.name}: %{x:.4g} s<extra></extra>",
    }


def bars(block: Block, place: int, device: int) -> list[Bar]:
    """A device's bars, without overlap: per pass one for its compute, then one for each kind of pause within it. A gap
    belongs to the pass around it, and between two passes to none."""

    def carry(last: tuple[int, str] | None, one: tuple[int, str] | None) -> tuple[int, str] | None:
        return one or last

    ran = view(block, place, device)
    slices = compute_lane(ran)
    work = [(s.microbatch, s.kind) if s.kind in _PASSES else None for s in slices]
    around = zip(accumulate(work, carry), [*accumulate(work[::-1], carry)][::-1], strict=True)
    passes = [b if b and b == a else (slices[i].microbatch, f"{i}") for i, (b, a) in enumerate(around)]
    drawn: list[Bar] = []
    for (microbatch, _), group in groupby(zip(passes, slices, strict=True), key=lambda pair: pair[0]):
        members = [s for _, s in group]
        total: dict[str, float] = {}
        for s in members:
            kind = _SHOWN_AS.get(s.kind, s.kind)
            total[kind] = total.get(kind, 0.0) + s.seconds
        now = members[0].start
        for kind, seconds in sorted(total.items(), key=lambda item: ORDER.index(item[0])):
            if drawn and drawn[-1].kind == kind and kind not in _PASSES:
                drawn[-1] = replace(drawn[-1], seconds=drawn[-1].seconds + seconds)
            else:
                drawn.append(Bar(device, kind, now, seconds, microbatch, ran.entries.get(microbatch, -1)))
            now += seconds
    return drawn


def choose(block: Block, place: int, most: int) -> list[int]:
    """All devices, or where there are too many a choice from the busiest to the idlest."""
    devices = block.had.shape[2]
    most = min(most, max(4, MOST_BARS // (8 * max(block.program.microbatches, 1))))
    if devices <= most:
        return list(range(devices))
    busy = np.argsort(_computing(block, place).sum(axis=0), kind="stable")
    picked = busy[np.linspace(0, devices - 1, most).round().astype(int)]
    return sorted(int(d) for d in picked)


def idle(block: Block, place: int) -> float:
    """Share of the minibatch's device time without compute."""
    total = makespan(block, place) * block.had.shape[2]
    return 1 - float(_computing(block, place).sum()) / total if total else 0.0


def _computing(block: Block, place: int) -> Floats:
    """Seconds of each step of compute, on each device."""
    steps = [i for i, step in enumerate(block.program.steps) if step.kind == "compute"]
    return block.had[steps, place] - block.asked[steps, place]


def makespan(block: Block, place: int) -> float:
    return float(block.had[:, place].max())


def headline(timeline: Timeline, minibatch: int) -> str:
    block, place = timeline.block_of(minibatch)
    return f"{timeline.about.title}: {in_seconds(makespan(block, place))}, idle {idle(block, place):.0%}"


def in_seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"
