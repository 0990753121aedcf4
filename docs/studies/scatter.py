"""The picture of docs/validation.md: every schedule's measured seconds against its predicted ones."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from agreement import Case, groups

WIDTH, HEIGHT, LEFT, TOP, SIDE = 760, 500, 70, 20, 420  # pixels
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by the color-blind too
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
AROUND = 0.1  # the band beside the line


def scatter(cases: Sequence[Case], path: Path) -> None:
    """An SVG with an equal logarithmic scale on both axes."""
    seconds = [value for c in cases for value in (c.predicted, c.truth)]
    low, high = np.log(min(seconds)) - 0.1, np.log(max(seconds)) + 0.1

    def across(value: float) -> float:
        return LEFT + SIDE * float((np.log(value) - low) / (high - low))

    def up(value: float) -> float:
        return TOP + SIDE - SIDE * float((np.log(value) - low) / (high - low))

    ends = float(np.exp(low)), float(np.exp(high))
    drawn = [_line(across, up, ends, factor) for factor in (1.0, 1 + AROUND, 1 / (1 + AROUND))]
    for tick in (t for t in TICKS if ends[0] <= t <= ends[1]):
        drawn.append(_text(across(tick), TOP + SIDE + 20, f"{tick:g}", "middle"))
        drawn.append(_text(LEFT - 8, up(tick) + 4, f"{tick:g}", "end"))
        for x, y, dx, dy in ((across(tick), TOP + SIDE, 0, 5), (LEFT, up(tick), -5, 0)):
            drawn.append(f'<path d="M{x:.1f} {y:.1f}l{dx} {dy}" stroke="#444"/>')
    for i, ((stage,), of) in enumerate(groups(cases, "stage").items()):
        color, y = COLORS[i % len(COLORS)], TOP + 20 + 24 * i
        drawn += [
            f'<circle cx="{across(c.truth):.1f}" cy="{up(c.predicted):.1f}" r="3.5" fill="{color}" fill-opacity="0.6"/>'
            for c in of
        ]
        drawn.append(f'<circle cx="{LEFT + SIDE + 25}" cy="{y - 4}" r="5" fill="{color}"/>')
        drawn.append(_text(LEFT + SIDE + 38, y, stage, "start"))
    drawn.append(_text(LEFT + SIDE / 2, TOP + SIDE + 45, "measured, seconds", "middle"))
    middle = TOP + SIDE / 2
    drawn.append(f'<g transform="rotate(-90 20 {middle})">{_text(20, middle, "predicted, seconds", "middle")}</g>')
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#222">\n'
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/></clipPath>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#444"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _line(across, up, ends, factor: float) -> str:  # type: ignore[no-untyped-def]
    (low, high), dashes = ends, "" if factor == 1 else ' stroke-dasharray="4 4"'
    start, end = f"{across(low):.1f} {up(low * factor):.1f}", f"{across(high):.1f} {up(high * factor):.1f}"
    return f'<path d="M{start}L{end}" stroke="#888" clip-path="url(#inside)"{dashes}/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'
