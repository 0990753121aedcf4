"""Files of a run that exists, whatever wrote them: told apart by what is in them, and read.

What each microbatch held may stand in a file beside them: lengths by rank, step and microbatch.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from odcsim import schedule, timeline
from odcsim.errors import InputError
from odcsim.fitting.microbatch_logs import read_lengths
from odcsim.fitting.steps import holds_steps
from odcsim.observed import stragglers, timelines, torch_traces, watch_files
from odcsim.observed.run import RanMicrobatch, RanStep, SeenRun
from odcsim.observed.watch_files import WatchedRank
from odcsim.support.inputs import reading, text_of

TRACES, OPERATIONS, TIMELINE, WATCHED, STEPS, SCHEDULE = "traces operations timeline watched steps schedule".split()
WORDS = {
    TRACES: "traces of torch.profiler",
    OPERATIONS: "operations of StragglerAnalysis",
    TIMELINE: "a timeline",
    WATCHED: "files of odc_engine.watch",
    STEPS: "a log of steps",
    SCHEDULE: "a schedule file",
}
LINED = {watch_files.FORMAT: WATCHED, schedule.FORMAT: SCHEDULE}  # by the format that a first line names
LOGS = (".json", ".jsonl", ".ndjson", ".csv", ".log")  # what a folder may have of them
HEAD = 1 << 20  # characters that tell what a text is
ZIP = b"PK\x03\x04"
MISSING = "give traces, a log of steps, a timeline or the folder that has them"
EXPECTED = ", ".join(WORDS.values())
LACKED = ("lengths of samples", "what microbatches held")  # as what a run lacks begins, where these are told
FIX = "give a row for each microbatch of each step that was traced"
NUMBERED = "give a CSV file with device, step and lengths whose steps are numbered as the run's"
UNSURE = "whether lengths are of the same steps: they are joined by number, and no tokens of the run tell"
Held = Mapping[tuple[int, int], list[tuple[tuple[int, ...], int]]]  # lengths and computed tokens by rank and step


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that tell of a run, all of one kind."""

    kind: str  # of WORDS
    paths: tuple[Path, ...]
    schedules: tuple[Path, ...] = ()  # beside timelines
    watched: tuple[Path, ...] = ()  # beside traces: they have the lengths
    left: tuple[Path, ...] = ()  # of folders: what is none of these


def read(
    paths: Sequence[str], *, lengths: str | None = None, advance: Callable[[float], None] = lambda _: None
) -> SeenRun:
    """A run from its files, or from a folder that has them. `advance` is called with the share that is done."""
    sources = sources_of(paths)
    kind, first = sources.kind, sources.paths[0]
    if kind == STEPS:
        fix = "give traces, a timeline or the folder that has them"
        raise InputError("is a log of steps, which has no ranks", where=str(first), fix=fix)
    if kind in (OPERATIONS, TIMELINE) and len(sources.paths) > 1:
        raise InputError(f"{WORDS[kind]}, as {first} is", where=str(sources.paths[1]), fix="give one at a time")
    if kind == TRACES:
        run = torch_traces.read(sources.paths, advance=advance)
    elif kind == WATCHED:
        run = watch_files.read(sources.paths)
    elif kind == OPERATIONS:
        run = stragglers.read(first, advance)
    else:
        ran, files = timeline.read(first), [schedule.read(file) for file in sources.schedules]
        matching = [file for file in files if file.header.digest == ran.about.digest]
        if not matching:
            problem = f"needs the schedule file that it ran, of digest {ran.about.digest}"
            raise InputError(problem, where=str(first), fix="give it beside the timeline")
        run = timelines.run_of(ran, matching[0])
    if lengths is not None:
        run = with_lengths(run, _lengths(Path(lengths), run), lengths)
    elif sources.watched:  # which may be of other steps: nobody asked for it
        try:
            of_ranks = of_watched(watch_files.read_ranks(sources.watched))
            run = with_lengths(run, of_ranks, str(sources.watched[0].parent))
        except InputError as error:
            run = replace(run, lacks=(*run.lacks, f"what the files of odc_engine.watch tell: {error.problem}"))
    if sources.left:
        names = ", ".join(path.name for path in sources.left[:3])
        more = f" and {len(sources.left) - 3} more" if len(sources.left) > 3 else ""
        run = replace(run, lacks=(*run.lacks, f"what is in {names}{more}, which was not read"))
    return run


def sources_of(paths: Sequence[str]) -> Sources:
    """Files by what is in them; of a folder those that lie in it and one below. `STEPS` have no ranks, and are none of
    `read`'s."""
    every: dict[str, list[Path]] = {kind: [] for kind in WORDS}
    left, logs = [], []
    for path in map(Path, paths):
        if not path.is_dir():
            if (kind := _sniff(path)) is None:  # somebody named it: it has to be something
                problem = "is empty" if path.stat().st_size == 0 else "tells of no run"
                raise InputError(problem, where=str(path), fix=f"expected {EXPECTED}")
            every[kind].append(path)
            continue
        for file in _files(path):
            kind = _sniff(file)
            if kind == STEPS and file.suffix.lower() in LOGS:
                logs.append(file)
            elif kind is None or kind == STEPS:
                left.append(file)
            else:
                every[kind].append(file)
    if any(every.values()):
        left += logs  # of what has traces, too, they tell less
    else:
        every[STEPS] = logs
    schedules = every.pop(SCHEDULE)
    beside = every.pop(WATCHED) if every[TRACES] else []
    kinds = [kind for kind, files in every.items() if files]
    if not kinds:
        problem = "a schedule, and no timeline of it" if schedules else "nothing that tells of a run"
        raise InputError(problem, where=", ".join(paths)[:200] or "no path", fix=MISSING)
    if len(kinds) > 1:
        first, second = (every[kind][0] for kind in kinds[:2])
        problem = f"{WORDS[kinds[0]]} ({first}) and {WORDS[kinds[1]]} ({second})"
        raise InputError(problem, where=", ".join(paths)[:200], fix="name the files of one of them")
    return Sources(kinds[0], tuple(every[kinds[0]]), tuple(schedules), tuple(beside), tuple(left))


def _lengths(path: Path, run: SeenRun) -> Held:
    """Of a CSV file; or of the watcher's files, all of a folder where it is named or one of them is."""
    if not path.is_dir() and _sniff(path) != WATCHED:
        return of_table(path, len(run.seen) == 1)
    folder = path if path.is_dir() else path.parent
    files = [file for file in _files(folder) if _sniff(file) == WATCHED]
    if not files:
        raise InputError("no file of odc_engine.watch in it", where=str(path), fix="name a CSV file or the watcher's")
    return of_watched(watch_files.read_ranks(files))


def _files(folder: Path) -> list[Path]:
    """Those that lie in a folder, and one below; hidden ones are nobody's."""
    with reading(folder, missing=MISSING, expected="a folder"):
        here = sorted(folder.iterdir())
        below = [file for inner in here if inner.is_dir() for file in sorted(inner.iterdir())]
    return [file for file in (*here, *below) if file.is_file() and not file.name.startswith(".")]


def _sniff(path: Path) -> str | None:
    with reading(path, missing=MISSING, expected=EXPECTED):
        with path.open("rb") as file:
            begin = file.read(4)
        if begin in (stragglers.MAGIC, ZIP):
            return OPERATIONS if begin == stragglers.MAGIC else TIMELINE
        try:
            with text_of(path) as text:
                head = text.read(HEAD).lstrip()
        except UnicodeDecodeError:
            return None
    if not head:
        return None
    try:
        said = json.loads(head.partition("\n")[0])
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and (kind := LINED.get(str(said.get("format", "")))) is not None:
        return kind
    if '"traceEvents"' in head or (head[0] == "[" and '"ph"' in head):
        return TRACES
    return STEPS if holds_steps(path) else None


def of_table(path: Path, one: bool) -> Held:
    """Of a CSV file with device, step and lengths; with one rank the device may be missing."""
    return {key: [(lengths, 0) for lengths in rows] for key, rows in read_lengths(path, one).items()}


def of_watched(files: list[WatchedRank]) -> Held:
    return {
        (file.rank, number): [(m.lengths, m.computed) for m in step.microbatches]
        for file in files
        for number, step in file.steps.items()
    }


def with_lengths(run: SeenRun, known: Held, where: str) -> SeenRun:
    """The run with these lengths. Where a rank's microbatches were not told apart, they are as many as are held."""
    alone = len(run.seen) == 1 and run.seen[0] not in {rank for rank, _ in known}
    steps = []
    for step in run.steps:
        microbatches: list[RanMicrobatch] = []
        for rank in run.seen:
            rows = known.get((0 if alone else rank, step.number))
            if rows is None:
                raise InputError(f"no lengths of step {step.number} on rank {rank}", where=where, fix=FIX)
            ran = [m for m in step.microbatches if m.rank == rank]
            ran = ran or [RanMicrobatch(rank, i, 0.0) for i in range(len(rows))]
            if len(ran) != len(rows):
                problem = f"{len(rows)} microbatches in step {step.number} on rank {rank}, where {len(ran)} ran"
                raise InputError(problem, where=where, fix=FIX)
            microbatches += [
                replace(m, lengths=lengths, tokens=0, computed=computed or m.computed)
                for m, (lengths, computed) in zip(sorted(ran, key=lambda m: m.number), rows, strict=True)
            ]
        steps.append(replace(step, microbatches=tuple(microbatches)))
    _check_tokens(run, steps, where)
    lacks = tuple(text for text in run.lacks if not text.startswith(LACKED))
    lacks += (UNSURE,) if run.rests == "seconds" else ()
    return replace(run, steps=tuple(steps), rests="lengths", lacks=lacks)


def _check_tokens(run: SeenRun, steps: Sequence[RanStep], where: str) -> None:
    """Refuse lengths of other steps: who numbers steps from 0 and who from 1 differ by one, and tokens alone tell.

    A run computes what its samples hold and padding, or one token less of each where labels are shifted beforehand.
    """
    ran = {(step.number, m.rank, m.number): m.tokens for step in run.steps for m in step.microbatches}
    for step in steps:
        for m in step.microbatches:
            tokens, given = ran.get((step.number, m.rank, m.number), 0), m.computed or m.held
            if 0 < tokens < given - len(m.lengths):
                place = f"microbatch {m.number} of step {step.number} on rank {m.rank}"
                problem = f"{given:,} tokens in {place}, which ran {tokens:,}: it did not hold these"
                raise InputError(problem, where=where, fix=NUMBERED)
