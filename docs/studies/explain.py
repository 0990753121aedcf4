"""Draw the pictures of docs/odc.md: what collectives and one-sided transfers do, and the same samples under both.

    python docs/studies/explain.py docs/images

Writes odc-gather.svg, odc-push.svg and odc-timelines.svg. The timelines are simulated; the others are sketches.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

import odcsim

WIDTH = 760
INK, QUIET, RED, PAPER = "#1f2933", "#5b6770", "#b3261e", "#ffffff"
COLORS = ("#1b6ca8", "#2e8b57", "#b5651d", "#7b4fa3")  # a GPU's, and of the shard that it owns
IDLE = "#e3e7ea"
GPUS, PER_GPU, LIMIT, SEED = 4, 3, 65536, 4
LEFT, RIGHT, BAR, GAP = 64, 110, 22, 8


def rect(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}" {more}/>'


def text(x: float, y: float, words: str, more: str = "", fill: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" {more}>{escape(words)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="2" '
        'marker-end="url(#head)"/>'
    )


def picture(title: str, height: float, parts: list[str]) -> str:
    """A whole SVG on a sheet of its own, so that it reads the same on white and on black."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" role="img" font-family="sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
            rect(0, 0, WIDTH, height, PAPER, 'rx="8"'),
            *parts,
            "</svg>\n",
        ]
    )


def gpu(x: float, y: float, number: int, state: str, waits: bool) -> list[str]:
    """A GPU with the shard that it owns, and what it does meanwhile."""
    edge = RED if waits else COLORS[number]
    dash = 'stroke-dasharray="4 3"' if waits else ""
    return [
        rect(x, y, 74, 56, PAPER, f'rx="5" stroke="{edge}" stroke-width="2" {dash}'),
        text(x + 37, y + 18, f"GPU {number}", 'text-anchor="middle" font-weight="bold"'),
        rect(x + 9, y + 26, 56, 22, COLORS[number], 'rx="3"'),
        text(x + 37, y + 41, f"shard {number}", 'text-anchor="middle" font-size="11"', PAPER),
        text(x + 37, y + 72, state, 'text-anchor="middle" font-size="11"', RED if waits else QUIET),
    ]


def side(x: float, title: str, states: tuple[str, ...], late: int | None, below: str) -> list[str]:
    """Four GPUs in a row; with `late` all others wait for that one."""
    parts = [text(x + 170, 28, title, 'text-anchor="middle" font-weight="bold" font-size="14"')]
    for number, state in enumerate(states):
        parts += gpu(x + 88 * number, 92, number, state, late is not None and number != late)
    return [*parts, text(x + 170, 196, below, 'text-anchor="middle"')]


def ring(x: float) -> list[str]:
    """Every GPU takes part: from neighbour to neighbour, and back to the first."""
    parts = [arrow(x + 88 * n + 74, 120, x + 88 * n + 88, 120, INK) for n in range(3)]
    path = f"M{x + 301:.0f} 92C{x + 301:.0f} 44 {x + 37:.0f} 44 {x + 37:.0f} 90"
    return [*parts, f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="2" marker-end="url(#head)"/>']


def curves(x: float, one: int, inward: bool) -> list[str]:
    """One-sided transfers between one GPU and each of the others."""
    parts = []
    for n in range(4):
        if n != one:
            ends = (n, one) if inward else (one, n)
            a, b = (x + 88 * m + 37 for m in ends)
            path = f"M{a:.0f} 92C{a:.0f} 50 {b:.0f} 50 {b:.0f} 90"
            color = COLORS[n]
            parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2" marker-end="url(#head)"/>')
    return parts


def gather() -> str:
    waits = ("waits", "waits", "late", "waits")
    free = ("computes", "reads", "computes", "computes")
    parts = side(16, "all-gather (FSDP)", waits, 2, "Ends when the slowest rank has joined.")
    parts += ring(16)
    parts += side(404, "one-sided gather (ODC)", free, None, "GPU 1 reads; the owners go on computing.")
    parts += curves(404, 1, inward=True)
    return picture("An all-gather needs every GPU; a one-sided gather needs one", 212, parts)


def push() -> str:
    waits = ("waits", "waits", "late", "waits")
    free = ("computes", "writes", "computes", "computes")
    parts = side(16, "reduce-scatter (FSDP)", waits, 2, "Ends when the slowest rank has joined.")
    parts += ring(16)
    parts += side(404, "push, or scatter-accumulate (ODC)", free, None, "GPU 1 adds its gradients to the owners' sums.")
    parts += curves(404, 1, inward=False)
    return picture("A reduce-scatter needs every GPU; a push needs one", 212, parts)


def spans(timeline: odcsim.timeline.Timeline) -> tuple[float, list[list[tuple[float, float, int]]]]:
    """The minibatch's seconds, and of each device when it computes, with the microbatch."""
    block = timeline.blocks[0]
    steps = [i for i, step in enumerate(block.program.steps) if step.lane == "compute"]
    devices = []
    for device in range(block.had.shape[2]):
        ran = [i for i in steps if block.present(i)[0, device] and block.program.steps[i].microbatch >= 0]
        devices.append(
            [
                (float(block.asked[i, 0, device]), float(block.had[i, 0, device]), block.program.steps[i].microbatch)
                for i in ran
            ]
        )
    return float(np.max(block.had)), devices


def merged(parts: list[tuple[float, float, int]], least: float) -> Iterator[tuple[float, float, int]]:
    """Spans of one microbatch with less than `least` between them, as one."""
    start, end, microbatch = parts[0]
    for a, b, m in parts[1:]:
        if m == microbatch and a - end < least:
            end = b
        else:
            yield start, end, microbatch
            start, end, microbatch = a, b, m
    yield start, end, microbatch


def lanes(
    top: float, title: str, seconds: float, devices: list[list[tuple[float, float, int]]], longest: float
) -> list[str]:
    """One bar for each GPU: coloured where it computes, grey where it waits until the optimizer step."""
    scale = (WIDTH - LEFT - RIGHT) / longest
    busy = sum(b - a for device in devices for a, b, _ in device)
    idle = 1 - busy / (seconds * len(devices))
    parts = [text(16, top, f"{title}: {seconds:.1f} s, idle {100 * idle:.0f} %", 'font-weight="bold"')]
    for number, device in enumerate(devices):
        y = top + 10 + number * (BAR + GAP)
        parts += [text(16, y + 16, f"GPU {number}"), rect(LEFT, y, seconds * scale, BAR, IDLE)]
        for a, b, microbatch in merged(device, 0.5 / scale):
            shade = 'fill-opacity="0.72"' if microbatch % 2 else ""
            parts.append(rect(LEFT + a * scale, y, (b - a) * scale, BAR, COLORS[number], shade))
    end = LEFT + seconds * scale
    bottom = top + 10 + len(devices) * (BAR + GAP)
    parts.append(
        f'<line x1="{end:.1f}" y1="{top + 4:.1f}" x2="{end:.1f}" y2="{bottom:.1f}" stroke="{RED}" stroke-width="2"/>'
    )
    return [*parts, text(end + 6, bottom - 8, "optimizer step", 'font-size="12"', RED)]


def timelines() -> str:
    question = odcsim.ask(
        "longalign",
        "r1-distill-qwen-1.5b",
        gpu="a100",
        devices=GPUS,
        minibatch=PER_GPU,
        max_tokens=LIMIT,
        minibatches=1,
        seed=SEED,
    )
    runs = []
    for sync, balancer in (("collective", "lb-micro"), ("on-demand", "lb-mini")):
        schedules = odcsim.plan(question, balancer)
        runs.append((f"{sync} + {balancer}", *spans(odcsim.simulate(schedules, question.cost.by(sync=sync)))))
    longest = max(seconds for _, seconds, _ in runs)
    height = 26 + GPUS * (BAR + GAP) + 34
    parts = [part for n, run in enumerate(runs) for part in lanes(26 + n * height, *run, longest)]
    words = f"The same {GPUS * PER_GPU} samples. Shades tell microbatches apart; grey is idle time."
    return picture(words, 2 * height + 30, [*parts, text(16, 2 * height + 14, words, fill=QUIET)])


PICTURES = {"odc-gather.svg": gather, "odc-push.svg": push, "odc-timelines.svg": timelines}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
