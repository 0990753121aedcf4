"""Which kernels, or operators, are known to be as much work each time: they tell how fast a device is.

Of an operator its shapes say it. A kernel's grid need not: one that persists has as many blocks as the device has
processors, whatever it computes.
"""

import math
import re

import numpy as np

from odcsim.fitting.events import MICRO
from odcsim.observed.done import WorkDone
from odcsim.observed.kernels import RankEvents
from odcsim.observed.spans import Spans, within
from odcsim.timeline import Floats

MOST = 2000  # signatures of equal work that a rank tells of
LEAST = 1000  # of all seconds, so many parts, for a signature to be told
MOVES = re.compile(r"::_?(foreach_)?(copy|clone|chunk_cat|cat|fill|zero|split|all_gather_copy)")
SIZED = re.compile(r"\[\d")
GRID = re.compile(r" \[(\d{1,12}(?:, \d{1,12}){0,2})\] \S.*$")
STEADY = 1.1  # times as long: as far apart may those in the middle of a kernel's calls be ...
UNEVEN = 1.3  # ... while a rank's microbatches are further apart than this
SEVERAL = 3  # calls, below which nobody knows whether they are steady
EIGHTHS = (12.5, 87.5)


def alike(events: RankEvents, did: WorkDone, steps: Spans, microbatches: Floats) -> dict[str, tuple[float, float]]:
    """Median seconds and their sum, of each signature that says how much work it is. `steps`: of the device;
    `microbatches`: seconds of compute. A processor's moves of memory tell of its pages, and of who else moves some."""
    inside = within(did.begin, steps) >= 0
    words = list(events.names.known)
    if not len(events.kernels):
        inside[1:] &= did.begin[1:] >= np.maximum.accumulate(did.end)[:-1]
        inside &= ~np.isin(did.names, [number for number, word in enumerate(words) if MOVES.search(word)])
    names, seconds = did.names[inside], (did.end - did.begin)[inside] * MICRO
    every = np.bincount(names, seconds, minlength=len(words))
    chosen = np.argsort(-every, kind="stable")[:MOST]
    order = np.argsort(names, kind="stable")
    names, seconds = names[order], seconds[order]
    greatest = _greatest(words) if len(events.kernels) else {}
    uneven = _apart(microbatches) > UNEVEN
    found = {}
    for number in chosen[every[chosen] > every.sum() / LEAST]:
        if not SIZED.search(words[number]):
            continue
        mine = seconds[slice(*np.searchsorted(names, (number, number + 1)))]
        if not len(events.kernels) or _tells(words[number], mine, greatest, uneven):
            found[words[number]] = float(np.median(mine)), float(every[number])
    return found


def _tells(word: str, calls: Floats, greatest: dict[str, int], uneven: bool) -> bool:
    """A kernel that takes as long each time. It could do so since all that the rank computes is even: then only a
    grid that is smaller than others of its name says how much work it is."""
    name, blocks = _grid(word)
    sized = blocks < greatest[name]
    return _apart(calls) <= STEADY and (sized or (uneven and len(calls) >= SEVERAL))


def _greatest(words: list[str]) -> dict[str, int]:
    """Blocks of the greatest grid of each kernel."""
    found: dict[str, int] = {}
    for name, blocks in map(_grid, words):
        found[name] = max(blocks, found.get(name, 0))
    return found


def _grid(word: str) -> tuple[str, int]:
    """A kernel's name and its blocks."""
    shaped = GRID.search(word)
    if shaped is None:
        return word, 0
    return word[: shaped.start()], math.prod(int(n) for n in shaped[1].split(","))


def _apart(seconds: Floats) -> float:
    """How many times as long as the short ones the long ones take, but for the outermost eighths."""
    if not len(seconds):
        return 1.0
    low, high = np.percentile(seconds, EIGHTHS)
    return float(high / low) if low > 0 else math.inf
