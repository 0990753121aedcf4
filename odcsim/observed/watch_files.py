"""What `odc_engine.watch` wrote while a run trained: JSON lines, a file for each rank, a line for each optimizer step.

The run may still be going on: a last line that is half written is left out, and so is a step that not all ranks have.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcsim.errors import InputError
from odcsim.observed.run import NO, Doing, Met, RanMicrobatch, RanStep, SeenRun, Track, track_of
from odcsim.support.inputs import LINES, read_text, reading
from odcsim.support.numbers import counted
from odcsim.support.values import Given

FORMAT, VERSION = "odcsim watch", 1
EXPECTED = "a rank's file of odc_engine.watch"
FEWEST = 6  # microbatches of all ranks that tell
APART = 0.1  # of the longest last microbatches, by which others' differ where ranks meet behind them alone
SHORTEST = 1e-9  # seconds of a step
CLOCKS = 3600.0  # seconds by which machines' clocks may differ
LONGEST = 2**31 - 1  # tokens of a sample, as in schedules


@dataclass(frozen=True, slots=True)
class WatchedMicrobatch:
    """`begin` is since the step's; `waited` is None where the watcher could not tell."""

    begin: float
    seconds: float
    lengths: tuple[int, ...]
    computed: int
    waited: float | None


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """One rank's."""

    begin: float  # since 1970
    seconds: float
    loader: float
    collector: float
    microbatches: tuple[WatchedMicrobatch, ...]

    @property
    def apart(self) -> bool:
        """Whether compute is told apart from waiting."""
        return all(m.waited is not None for m in self.microbatches)


@dataclass(frozen=True, slots=True)
class WatchedRank:
    """One file."""

    rank: int
    ranks: int
    trainer: str
    run: str  # its name, which all of its ranks have; empty: not told
    steps: dict[int, WatchedStep]


def read(paths: Sequence[Path]) -> SeenRun:
    files = read_ranks(paths)
    numbers = common_steps(files, paths)
    # By how much each rank's clock is ahead of the first one's: steps end together, in the middle of all steps.
    ends = np.array([[file.steps[n].begin + file.steps[n].seconds for n in numbers] for file in files])
    ahead = np.median(ends - ends[0], axis=1).tolist()
    offsets = {file.rank: seconds for file, seconds in zip(files, ahead, strict=True)}
    missing = sorted(set(range(files[0].ranks)) - {file.rank for file in files})
    lacks = [f"files of ranks {', '.join(map(str, missing[:8]))}{', ...' if missing[8:] else ''}"] if missing else []
    left = len(set().union(*(file.steps for file in files))) - len(numbers)
    lacks += [f"{counted(left, 'step')} that not all ranks have written, left out"] if left else []
    apart = all(file.steps[number].apart for file in files for number in numbers)
    once = _meets_once([[(file.steps[n], offsets[file.rank]) for file in files] for n in numbers])
    if not apart and not once:
        lacks.append("compute apart from waiting: both are inferred from lengths alone")
    return SeenRun(
        f"watched steps of {counted(len(files), 'rank')}",
        ranks=files[0].ranks,
        seen=tuple(file.rank for file in files),
        steps=tuple(
            _step(
                number,
                [(file.rank, file.steps[number], offsets[file.rank]) for file in files],
                files[0].ranks,
                apart=apart or once,
                once=once,
            )
            for number in numbers
        ),
        trainer=files[0].trainer,
        rests="lengths",
        lacks=tuple(lacks),
    )


def read_ranks(paths: Sequence[Path]) -> list[WatchedRank]:
    """In the order of ranks, all of one run."""
    files: dict[int, WatchedRank] = {}
    for path in paths:
        file = read_rank(path)
        if file.rank in files:
            raise InputError(f"rank {file.rank} a second time", where=str(path), fix="give one file for each rank")
        files[file.rank] = file
        first = next(iter(files.values()))
        if (file.ranks, file.trainer) != (first.ranks, first.trainer):
            problem = f"is of a run of {file.ranks} ranks, {paths[0]} of one of {first.ranks}"
            raise InputError(problem, where=str(path), fix="give the files of one run")
        if file.run != first.run:
            raise InputError(f"is of another run than {paths[0]}", where=str(path), fix="give the files of one run")
    return [files[rank] for rank in sorted(files)]


def common_steps(files: Sequence[WatchedRank], paths: Sequence[Path]) -> list[int]:
    numbers = set(files[0].steps).intersection(*(file.steps for file in files))
    if not numbers:
        raise InputError("no step that all ranks have", where=str(paths[0]), fix="give the files of one run")

    def overlap(number: int) -> bool:
        """Whether ranks ran it at one time, by clocks that may be as far apart as it took, or as CLOCKS."""
        steps = [file.steps[number] for file in files]
        apart = max(step.begin for step in steps) - min(step.begin + step.seconds for step in steps)
        return apart <= max(CLOCKS, *(step.seconds for step in steps))

    if not any(map(overlap, numbers)):
        problem = "no step that ranks ran at one time: these are files of several runs, or clocks are far apart"
        raise InputError(problem, where=str(paths[0]), fix="give the files of one run")
    return sorted(numbers)


def read_rank(path: Path) -> WatchedRank:
    with reading(path, missing="give what odc_engine.watch wrote", expected=EXPECTED):
        text = read_text(path, LINES, "utf-8-sig")
    lines = text.split("\n")
    about = _line(lines[0], f"{path}:1")
    if about.key("format").value != FORMAT or about.key("version").value != VERSION:
        raise InputError(f"is not {EXPECTED}, version {VERSION}", where=f"{path}:1", fix="watch the run again")
    ranks = about.key("ranks").whole(1)
    steps = {}
    for place, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        try:
            given = _line(line, f"{path}:{place}")
        except InputError:
            if place == len(lines):  # nobody has ended it yet
                break
            raise
        steps[given.key("step").whole(0)] = _read_step(given)
    return WatchedRank(
        about.key("rank").whole(0, ranks - 1),
        ranks,
        about.key("trainer", "").text(),
        about.key("run", "").text(),
        steps,
    )


def _line(text: str, where: str) -> Given:
    try:
        given = Given("", json.loads(text), where)
    except (ValueError, RecursionError):
        raise InputError("is not JSON", where=where, fix=f"expected {EXPECTED}") from None
    given.mapping()
    return given


def _read_step(given: Given) -> WatchedStep:
    begin, seconds = float(given.key("begin").number()), float(given.key("seconds").number(SHORTEST))
    loader, collector = (float(given.key(name, 0.0).number()) for name in ("loader", "collector"))
    microbatches = list[WatchedMicrobatch]()
    for item in given.key("microbatches").items():
        waited = item.key("waited")
        at, took = float(item.key("begin").number()), float(item.key("seconds").number())
        lengths, computed = item.key("lengths").wholes(1, LONGEST), item.key("computed", 0).whole(0)
        idle = None if waited.value is None else min(float(waited.number()), took)
        microbatches.append(WatchedMicrobatch(at, took, lengths, computed, idle))
    return WatchedStep(begin, seconds, loader, collector, tuple(microbatches))


def _meets_once(steps: Sequence[Sequence[tuple[WatchedStep, float]]]) -> bool:
    """Whether ranks' last microbatches take unlike seconds and end apart, each as its own lengths say and not as the
    longest of all ranks' do: where gradients meet behind them."""
    apart = longest = 0.0
    for ranks in steps:
        ran = [(one.microbatches[-1], one.begin - ahead) for one, ahead in ranks if one.microbatches]
        walls, ends = [m.seconds for m, _ in ran], [begin + m.begin + m.seconds for m, begin in ran]
        apart += min(max(of, default=0.0) - min(of, default=0.0) for of in (walls, ends))
        longest += max(walls, default=0.0)
    if apart <= APART * longest:
        return False
    # Seconds are to follow what a microbatch holds far rather than what the fullest beside it does.
    rounds = [some for ranks in steps for some in zip(*(one.microbatches for one, _ in ranks), strict=False)]
    own = [(1.0, sum(m.lengths), sum(n * n for n in m.lengths)) for some in rounds for m in some]
    fullest = [max(own[i : i + len(steps[0])]) for i in range(0, len(own), len(steps[0])) for _ in steps[0]]
    seconds = np.array([m.seconds for some in rounds for m in some])
    missed = []  # sums of squares that a line in tokens and squares of lengths leaves
    for contents in (own, fullest):
        columns = np.array(contents, np.float64)
        columns /= np.maximum(columns.max(axis=0), 1.0)
        line, *_ = np.linalg.lstsq(columns, seconds, rcond=None)
        missed.append(float(((columns @ line - seconds) ** 2).sum()))
    return len(seconds) > FEWEST and missed[0] < missed[1] / 2


def _step(
    number: int, ranks: Sequence[tuple[int, WatchedStep, float]], world: int, *, apart: bool, once: bool
) -> RanStep:
    """`apart`: whether compute is told apart from waiting; else a microbatch is one piece, in no meeting. Nor is one
    process in any: what blocks it is not known. `once`: ranks meet behind their last microbatches, too."""
    zero = min(step.begin - offset for _, step, offset in ranks)
    starts = {rank: step.begin - offset - zero for rank, step, offset in ranks}
    end, unseen = max(starts[rank] + step.seconds for rank, step, _ in ranks), world - len(ranks)
    microbatches, behind = list[RanMicrobatch](), dict[int, float]()
    came, done = dict[int, dict[int, float]](), dict[int, float]()  # of each number, by all that have so many
    for rank, step, _ in ranks:
        ran = 0.0
        for i, m in enumerate(step.microbatches):
            waited, until = m.waited or 0.0, starts[rank] + m.begin + m.seconds
            seconds = m.seconds - waited if apart else 0.0
            microbatches.append(RanMicrobatch(rank, i, seconds, m.seconds, m.lengths, computed=m.computed))
            came.setdefault(i, {})[rank] = until - waited
            done[i] = max(done.get(i, 0.0), until)
            ran = max(ran, m.begin + m.seconds)
        behind[rank] = starts[rank] + min(ran, step.seconds)
    meet = apart and world > 1
    meetings = [Met("all-gather", 0, len(of) + unseen, of, done[i]) for i, of in sorted(came.items())] if meet else []
    if once:  # gradients, once all ranks have run their last microbatches
        meetings.append(Met("all-reduce", 0, len(behind) + unseen, behind, max(behind.values())))
    met, last = meetings[-1].done if once else 0.0, len(came) if meet else NO
    tracks = tuple(_track(rank, step, starts[rank], end, apart, last, met) for rank, step, _ in ranks)
    return RanStep(number, end, tuple(microbatches), tracks, tuple(meetings))


def _track(rank: int, step: WatchedStep, start: float, end: float, apart: bool, last: int, met: float) -> Track:
    """Waiting is put behind what was computed, and the loader, then the collector, where no microbatch ran. `last`: the
    meeting behind all microbatches, which ended at `met`, where there is one; NO: nobody meets.

    Of what else lies there, such as texts that are generated, or a microbatch that failed, the file says nothing.
    """
    rows: list[tuple[float, float, Doing, int]] = []
    free, at = [], 0.0
    for i, m in enumerate(step.microbatches):
        begin, until = max(at, m.begin), max(at, m.begin + m.seconds)
        free.append((at, begin))
        came = max(begin, until - (m.waited or 0.0)) if apart else begin
        rows += [(begin, came, Doing.COMPUTE, i), (came, until, Doing.MEETING, i)]
        at = until
    behind = max(at, min(step.seconds, met - start)) if step.microbatches else at
    free.append((behind, max(behind, step.seconds)))
    rows += [(at, behind, Doing.MEETING, NO), *((low, high, Doing.EDGE, NO) for low, high in free)]
    for kind, seconds in ((Doing.LOADER, step.loader), (Doing.COLLECTOR, step.collector)):
        for place, (low, high) in enumerate(free):
            taken = min(seconds, high - low)
            rows.append((low, low + taken, kind, NO))
            free[place], seconds = (low + taken, high), seconds - taken
    begins, ends, kinds, of = (np.array(column) for column in zip(*rows, strict=True))
    meetings = np.where((kinds == Doing.MEETING) & (last != NO), np.where(of == NO, last, of), NO)
    return track_of(rank, start + begins, start + ends, kinds, meetings, of, (0.0, end))
