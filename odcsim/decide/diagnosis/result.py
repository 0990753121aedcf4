"""What a run that exists loses and why, for who asks by paths: of a command line, or in Python."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from odcsim.answer import Result
from odcsim.decide.diagnosis.breakdown import break_down
from odcsim.decide.diagnosis.changes import changes
from odcsim.decide.diagnosis.log_diagnosis import diagnose_log
from odcsim.decide.diagnosis.outcome import PARTS, Breakdown, Change, Changes, StepPart
from odcsim.decide.words import DIAGNOSE, paths_of
from odcsim.errors import InputError
from odcsim.observed import run_files
from odcsim.observed.run import SeenRun
from odcsim.option import flag
from odcsim.question import FIELDS, LENGTHS
from odcsim.reading import named
from odcsim.trace import Trace

SCHEMA = 1
OWN = ("sources", "lengths", "trace", "sync", "balancer")
OF_LOGS = (
    "trace",
    "sync",
    "balancer",
    *(name for name in LENGTHS if name != "trace"),
    "devices",
    "minibatch",
    "global_batch",
)


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Result):
    """What was seen of a run, where its steps went, and what other ways to run it would bring."""

    run: SeenRun
    found: Breakdown
    changes: Changes
    sources: tuple[str, ...] = ()
    lengths: str | None = None

    @property
    def best(self) -> Change | None:
        """The way of least effort that is about as fast as any; None where nothing is to gain."""
        return self.changes.best

    def as_json(self) -> dict[str, Any]:
        """As `odcsim diagnose --json` prints it."""
        run, found, changes = self.run, self.found, self.changes
        known = [one for one in changes.ways if one.row]
        return {
            "schema": SCHEMA,
            "inputs": {"sources": list(self.sources), "lengths": self.lengths, **changes.inputs},
            "answer": self.sentences()[0],
            "run": {
                "source": run.source,
                "ranks": run.ranks,
                "seen": list(run.seen),
                "steps": [step.number for step in run.steps],
                "stages": {str(rank): stage for rank, stage in run.stages.items()},
                "sync": run.sync,
                "trainer": run.trainer or None,
                "known_by": run.rests,
            },
            "seconds": found.seconds,
            "parts": [_part(part) for part in found.parts],
            "ranks": [asdict(one) for one in found.stragglers],
            "late": [asdict(one) for one in found.late],
            "ways": [_way(one, known) for one in changes.ways],
            "rests": changes.rests,
            "replayed": changes.replayed or None,
            "rows": [dict(one.row) for one in known],
            "cannot": list(dict.fromkeys((*run.lacks, *found.cannot, *changes.cannot))),
        }

    def records(self) -> list[dict[str, Any]]:
        """A row for each part of the step."""
        return [_part(part) for part in self.found.parts]


def _part(part: StepPart) -> dict[str, Any]:
    return {"name": part.name, "what": PARTS[part.name], **{k: v for k, v in asdict(part).items() if k != "name"}}


def _way(change: Change, known: Sequence[Change]) -> dict[str, Any]:
    """Its row is that of its number among `rows`, which `odcsim flags --row` takes; a mended pipeline has none."""
    number = next((n for n, one in enumerate(known, 1) if one is change), None)
    return {"row": number, **{name: value for name, value in asdict(change).items() if name != "row"}}


@DIAGNOSE.take
def diagnose(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    lengths: str | os.PathLike[str] | None = None,
    trace: Trace | str | os.PathLike[str] | ArrayLike | None = None,
    sync: str | None = None,
    balancer: str | None = None,
    **words: Any,
) -> Diagnosis:
    """What a run loses and why, of what it wrote down: `sources` are a folder, or files. `lengths`: a file that says
    what microbatches held, where those do not. `words`: what else is known of the run, as `model`, `gpu`, `trainer` and
    `price`; of a log of steps also the `trace` that was trained on, the `sync` and `balancer` that ran, `devices` and
    the batch."""
    given = words | {"trace": trace, "sync": sync, "balancer": balancer}
    return diagnosed(given, paths_of("sources", sources), None if lengths is None else os.fspath(lengths))


def diagnosed(
    given: Mapping[str, Any],
    sources: Sequence[str],
    lengths: str | None = None,
    *,
    advance: Callable[[float], None] = lambda _: None,
) -> Diagnosis:
    """`given`: what was said of the run. `advance` is called with the share of what is to be read that is done."""
    if not sources:
        raise InputError("nothing to diagnose", fix="give traces, a log of steps, or the folder that has them")
    known = {name: value for name, value in given.items() if value is not None}
    paths = [_found(source) for source in sources]
    told = run_files.sources_of(paths)
    if told.kind == run_files.STEPS:
        if lengths is not None:
            fix = "give the lengths that were trained on as --trace"
            raise InputError("--lengths given for a log of steps", where=sources[0], fix=fix)
        return Diagnosis(*diagnose_log([str(path) for path in told.paths], known), tuple(sources))
    if said := [name for name in OF_LOGS if name in known and (name in OWN or known[name] != FIELDS[name].usual)]:
        fix = "leave it out: it is of logs of steps, and these say it themselves"
        raise InputError(f"{flag(said[0])} given for {sources[0]}", fix=fix)
    run = run_files.read(paths, lengths=lengths, advance=advance)
    found = break_down(run)
    return Diagnosis(run, found, changes(run, found, known), tuple(sources), lengths)


def _found(source: str) -> str:
    """A path, or that of a run that ships, where nothing here has its name."""
    shipped = None if Path(source).exists() else named.run(source)
    return source if shipped is None else str(shipped)
