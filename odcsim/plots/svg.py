"""One minibatch as a small picture without a script, which a code host shows in a pull request, light or dark."""

from collections.abc import Sequence
from math import floor, log10
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from odcsim.plots.gantt import ORDER, bars, choose, headline, makespan
from odcsim.plots.style import COLOURS, HATCHED, WAITING
from odcsim.say.timeline_words import NAMES
from odcsim.timeline import Block, Timeline

WIDTH, LEFT, RIGHT = 900, 76, 14
ROW, BAR, HEAD, GAP = 16, 13, 26, 12  # pixels of a row, of a bar in it, of a chart's title, between charts
MOST_DEVICES = 16
THINNEST = 0.25  # pixels; what is thinner is not drawn
_LETTER = 6.7  # pixels of one, about
_STYLE = """
text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
.name { font-weight: 600; font-size: 13px; } .quiet { fill: #59636e; } line { stroke: #818b98; stroke-opacity: .35; }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc; } .quiet { fill: #9198a1; } }
"""


def svg(timelines: Sequence[Timeline], minibatch: int) -> str:
    """The same minibatch of each, on one scale."""
    blocks = [timeline.block_of(minibatch) for timeline in timelines]
    longest = max(makespan(*of) for of in blocks)
    scale = (WIDTH - LEFT - RIGHT) / (longest or 1.0)
    heads = [headline(timeline, minibatch) for timeline in timelines]
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "width": f"{WIDTH}"})
    SubElement(root, "title").text = f"Minibatch {minibatch}: {'; '.join(heads)}"
    SubElement(root, "style").text = _STYLE
    patterns = SubElement(root, "defs")  # waiting is hatched, one way inside a minibatch and the other at its end
    for kind, way in HATCHED.items():
        shape = {"id": kind, "width": "6", "height": "6", "patternUnits": "userSpaceOnUse"}
        line = {"d": "M-1,7 L7,-1" if way == "/" else "M-1,-1 L7,7", "stroke": COLOURS[kind], "stroke-width": "1.6"}
        SubElement(SubElement(patterns, "pattern", shape), "path", line)
    y, kinds, ticks = 4, set[str](), _ticks(longest, scale)
    for (block, place), words in zip(blocks, heads, strict=True):
        devices = choose(block, place, MOST_DEVICES)
        few = "" if len(devices) == block.had.shape[2] else f" ({len(devices)} of {block.had.shape[2]} devices drawn)"
        _text(root, 4, y + 14, words + few, "name")
        below = y + HEAD + ROW * len(devices)
        for x, _ in ticks:
            SubElement(root, "line", {"x1": x, "x2": x, "y1": f"{y + HEAD}", "y2": f"{below}"})
        kinds |= _chart(root, block, place, devices, y + HEAD, scale)
        y = below + GAP
    for x, words in ticks:
        _text(root, float(x), y + 4, words, "quiet", "middle")
    waits = f"; {WAITING}" if HATCHED.keys() & kinds else ""
    _text(root, LEFT, y + 20, f"seconds from the start of the minibatch{waits}", "quiet")
    height = _legend(root, [kind for kind in ORDER if kind in kinds], y + 46)
    root.attrib |= {"height": f"{height}", "viewBox": f"0 0 {WIDTH} {height}"}
    indent(root, " ")
    return tostring(root, encoding="unicode") + "\n"


def _ticks(until: float, scale: float) -> list[tuple[str, str]]:
    """Steps of 1, 2, 5, 10, ... seconds, some eight: where they are, and in words."""
    step = 1.0
    if until:
        power = 10.0 ** floor(log10(until / 8))
        step = next(n * power for n in (1, 2, 5, 10) if n * power >= until / 8)
    return [(f"{LEFT + n * step * scale:.1f}", f"{n * step:g}") for n in range(int(until / step) + 1)]


def _chart(root: Element, block: Block, place: int, devices: Sequence[int], top: int, scale: float) -> set[str]:
    """A path for each kind of bar; returns the kinds."""
    boxes: dict[str, list[str]] = {}
    for row, device in enumerate(devices):
        y = top + ROW * row
        _text(root, LEFT - 6, y + 11, f"device {device}", "quiet", "end")
        for bar in bars(block, place, device):
            if bar.seconds * scale >= THINNEST:
                begin, end = (round(LEFT + at * scale, 1) for at in (bar.start, bar.start + bar.seconds))
                boxes.setdefault(bar.kind, []).append(f"M{begin:g} {y}H{end:g}v{BAR}H{begin:g}z")
    for kind, some in boxes.items():
        SubElement(root, "path", {"d": "".join(some), **_fill(kind)})
    return set(boxes)


def _legend(root: Element, kinds: Sequence[str], y: int) -> int:
    """In as many lines as it takes; returns the picture's height."""
    x = float(LEFT)
    for kind in kinds:
        wide = 30 + _LETTER * len(NAMES[kind])
        if x + wide > WIDTH and x > LEFT:
            x, y = float(LEFT), y + 20
        SubElement(root, "rect", {"x": f"{x:g}", "y": f"{y - 10}", "width": "12", "height": "12", **_fill(kind)})
        _text(root, x + 17, y, NAMES[kind])
        x += wide
    return y + 12


def _fill(kind: str) -> dict[str, str]:
    if kind in HATCHED:
        return {"fill": f"url(#{kind})", "stroke": COLOURS[kind], "stroke-width": ".6"}
    return {"fill": COLOURS[kind]}


def _text(root: Element, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
    look = {"class": kind} if kind else {}
    SubElement(root, "text", {"x": f"{x:g}", "y": f"{y:g}", "text-anchor": anchor, **look}).text = words
