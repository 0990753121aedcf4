"""Summarize the last steps in one line, from all ranks' files in the folder. Ranks do not synchronize, so nothing
can hang."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from odc_engine.watching.lines import file_of

EVEN = 50_000  # tokens above which attention takes more time than all else, in odcsim's cost model
ALIKE = 0.2  # ranks whose seconds of a microbatch differ by less have synchronized in it
MOST, FEWEST = 256, 3  # steps read over all ranks, so that many ranks take no longer; and per rank at least
TOLD = 0.02  # share of waiting above which the line names a reason
Line = Mapping[str, Any]


class Teller:
    """Reads what all ranks wrote since the last call. Files on other machines' disks are missing, and the line says
    so."""

    def __init__(self, folder: Path, ranks: int, say: Callable[[str], None]) -> None:
        self._folder, self._ranks, self._say = folder, ranks, say
        self._read = dict.fromkeys(range(ranks), 0)
        self._steps: dict[int, dict[int, Line]] = {rank: {} for rank in range(ranks)}

    def tell(self) -> None:
        for rank in self._read:
            self._catch_up(rank)
        there = {rank: steps for rank, steps in self._steps.items() if steps}
        common = sorted(set.intersection(*map(set, there.values()))) if there else []
        window = {rank: [steps[n] for n in common] for rank, steps in there.items()}
        for steps in self._steps.values():
            for n in common:
                steps.pop(n, None)
        if common:
            named = f"steps {common[0]} to {common[-1]}" if len(common) > 1 else f"step {common[0]}"
            self._say(f"odc_engine.watch: {named}: {in_words(window, self._ranks)}")

    def _catch_up(self, rank: int) -> None:
        try:
            with (self._folder / file_of(rank)).open("rb") as file:
                file.seek(self._read[rank])
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read[rank] += len(whole)
        for line in whole.splitlines()[-max(FEWEST, MOST // self._ranks) :]:
            try:
                told = json.loads(line)
            except ValueError:  # a disk that was full, or another's file
                continue
            if isinstance(told, dict) and "step" in told:
                self._steps[rank][told["step"]] = told


def in_words(window: Mapping[int, Sequence[Line]], ranks: int) -> str:
    """Describe steps that all ranks here ran."""
    seen = "" if len(window) == ranks else f" (of {len(window)} of {ranks} ranks)"
    every = [line for lines in window.values() for line in lines]
    loader = f"{_percent(sum(line['loader'] for line in every) / sum(line['seconds'] for line in every))} loader"
    if len(window) == 1 and not all("waited" in m for line in every for m in _of(line)):
        return f"{loader}; waiting of a single rank is not measured{seen}"
    waiting = _waiting(window, measured=True)
    if ranks == 1:
        return f"{_percent(waiting)} blocked (not by other ranks), {loader}"
    return f"{_percent(waiting)} waiting{_reason(window, waiting)}, {loader}{seen}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _of(line: Line) -> Sequence[Line]:
    found: Sequence[Line] = line["microbatches"]
    return found


def cost(microbatch: Line) -> float:
    """Return a microbatch's cost in tokens, by the cost model of odcsim's balancers without a profile."""
    lengths = microbatch["lengths"]
    padded = max(microbatch["computed"] - sum(lengths), 0)
    return float(sum(n + n * n / EVEN for n in lengths) + padded)


def _waiting(window: Mapping[int, Sequence[Line]], *, measured: bool) -> float:
    """Return the share of waiting: inside microbatches as measured, else by the cost model; after them, what a rank
    spends more than the fastest."""
    waited = total = 0.0
    for lines in zip(*window.values(), strict=True):
        tails = [_tail(line) for line in lines]
        waited += sum(tails) - len(tails) * min(tails)
        total += sum(line["seconds"] for line in lines)
        for rivals in zip_longest(*map(_of, lines)):
            every = [m for m in rivals if m is not None]
            known = measured and all("waited" in m for m in every)
            waited += _measured(every) if known else _by_cost(every, len(lines))
    return waited / total if total else 0.0


def _tail(line: Line) -> float:
    """Seconds after the last microbatch. Time before and between microbatches is the rank's own."""
    ended = max((m["begin"] + m["seconds"] for m in _of(line)), default=line["seconds"])
    return max(0.0, float(line["seconds"] - ended))


def _measured(rivals: Sequence[Line]) -> float:
    """Take the shortest wait as transfer time: the last rank waited for none, and for bytes as long as the others."""
    waited = [m["waited"] for m in rivals]
    return float(sum(waited) - (len(waited) * min(waited) if len(waited) > 1 else 0.0))


def _by_cost(rivals: Sequence[Line], ranks: int) -> float:
    """Estimate the wait by cost if nearly equal seconds show that ranks synchronized in the microbatch; else none."""
    seconds, costs = [m["seconds"] for m in rivals], [cost(m) for m in rivals]
    if len(rivals) < ranks or max(seconds) - min(seconds) > ALIKE * max(seconds):
        return 0.0
    return float(sum(s * (1 - own / (max(costs) or 1.0)) for s, own in zip(seconds, costs, strict=True)))


def _reason(window: Mapping[int, Sequence[Line]], waiting: float) -> str:
    """Name the rank with the longest microbatches if lengths explain at least half of the waiting, else the one that
    waited least."""
    if waiting < TOLD or len(window) == 1:
        return ""
    if _waiting(window, measured=False) < waiting / 2:
        least = min(window, key=lambda rank: sum(m.get("waited", 0.0) for line in window[rank] for m in _of(line)))
        return f": rank {least} waited least"
    every = [(cost(m), rank) for rank, lines in window.items() for line in lines for m in _of(line)]
    count = max(len(next(iter(window.values()))), min(4, len(every)))
    rank, had = Counter(rank for _, rank in sorted(every, reverse=True)[:count]).most_common(1)[0]
    return f": rank {rank} had {had} of the {count} longest microbatches"
