"""Files of a run that exists, whatever wrote them: told apart by what is in them, and read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from odcsim import schedule, timeline
from odcsim.errors import InputError
from odcsim.fitting.step_files import holds_steps
from odcsim.observed import held, kineto, stragglers, timelines, watched
from odcsim.observed.run import SeenRun
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
LINED = {watched.FORMAT: WATCHED, schedule.FORMAT: SCHEDULE}  # by the format that a first line names
LOGS = (".json", ".jsonl", ".ndjson", ".csv", ".log")  # what a folder may have of them
HEAD = 1 << 20  # characters that tell what a text is
ZIP = b"PK\x03\x04"
MISSING = "give traces, a log of steps, a timeline or the folder that has them"
EXPECTED = ", ".join(WORDS.values())


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
    if sources.kind == STEPS:
        fix = "give traces, a timeline or the folder that has them"
        raise InputError("is a log of steps, which has no ranks", where=str(sources.paths[0]), fix=fix)
    run = _read(sources, advance)
    if lengths is not None:
        run = held.joined(run, _lengths(Path(lengths), run), lengths)
    elif sources.watched:
        run = _beside(run, sources.watched)
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
            every[_named(path)].append(path)
            continue
        for file in _files(path):
            kind = _sniffed(file)
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
    told = every.pop(WATCHED) if every[TRACES] else []
    kinds = [kind for kind, files in every.items() if files]
    if not kinds:
        problem = "a schedule, and no timeline of it" if schedules else "nothing that tells of a run"
        raise InputError(problem, where=", ".join(paths)[:200] or "no path", fix=MISSING)
    if len(kinds) > 1:
        first, second = (every[kind][0] for kind in kinds[:2])
        problem = f"{WORDS[kinds[0]]} ({first}) and {WORDS[kinds[1]]} ({second})"
        raise InputError(problem, where=", ".join(paths)[:200], fix="name the files of one of them")
    return Sources(kinds[0], tuple(every[kinds[0]]), tuple(schedules), tuple(told), tuple(left))


def _read(sources: Sources, advance: Callable[[float], None]) -> SeenRun:
    if sources.kind == TRACES:
        return kineto.read(sources.paths, advance=advance)
    if sources.kind == WATCHED:
        return watched.read(sources.paths)
    _check_one(sources.paths, sources.kind)
    if sources.kind == OPERATIONS:
        return stragglers.read(sources.paths[0], advance)
    return _timeline(sources.paths[0], sources.schedules)


def _timeline(path: Path, schedules: Sequence[Path]) -> SeenRun:
    ran = timeline.read(path)
    files = [schedule.read(file) for file in schedules]
    matching = [file for file in files if file.header.digest == ran.about.digest]
    if not matching:
        problem = f"needs the schedule file that it ran, of digest {ran.about.digest}"
        raise InputError(problem, where=str(path), fix="give it beside the timeline")
    return timelines.run_of(ran, matching[0])


def _beside(run: SeenRun, paths: Sequence[Path]) -> SeenRun:
    """With lengths from what lies beside it, where it is of the same steps: nobody asked for it."""
    try:
        return held.joined(run, held.of_watched(watched.read_ranks(paths)), str(paths[0].parent))
    except InputError as error:
        return replace(run, lacks=(*run.lacks, f"what the files of odc_engine.watch tell: {error.problem}"))


def _check_one(paths: Sequence[Path], kind: str) -> None:
    if len(paths) > 1:
        raise InputError(f"{WORDS[kind]}, as {paths[0]} is", where=str(paths[1]), fix="give one at a time")


def _lengths(path: Path, run: SeenRun) -> held.Held:
    """Of a CSV file; or of the watcher's files, all of a folder where it is named or one of them is."""
    if not path.is_dir() and _sniffed(path) != WATCHED:
        return held.of_table(path, len(run.seen) == 1)
    folder = path if path.is_dir() else path.parent
    files = [file for file in _files(folder) if _sniffed(file) == WATCHED]
    if not files:
        raise InputError("no file of odc_engine.watch in it", where=str(path), fix="name a CSV file or the watcher's")
    return held.of_watched(watched.read_ranks(files))


def _files(folder: Path) -> list[Path]:
    """Those that lie in a folder, and one below; hidden ones are nobody's."""
    with reading(folder, missing=MISSING, expected="a folder"):
        here = sorted(folder.iterdir())
        below = [file for inner in here if inner.is_dir() for file in sorted(inner.iterdir())]
    return [file for file in (*here, *below) if file.is_file() and not file.name.startswith(".")]


def _named(path: Path) -> str:
    """What a file is that somebody named: it has to be something."""
    kind = _sniffed(path)
    if kind is None:
        problem = "is empty" if path.stat().st_size == 0 else "tells of no run"
        raise InputError(problem, where=str(path), fix=f"expected {EXPECTED}")
    return kind


def _sniffed(path: Path) -> str | None:
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
    if (kind := LINED.get(_format(head))) is not None:
        return kind
    if '"traceEvents"' in head or (head[0] == "[" and '"ph"' in head):
        return TRACES
    return STEPS if holds_steps(path) else None


def _format(head: str) -> str:
    """What a first line says that its file is."""
    try:
        said = json.loads(head.partition("\n")[0])
    except (ValueError, RecursionError):
        return ""
    return str(said.get("format", "")) if isinstance(said, dict) else ""
