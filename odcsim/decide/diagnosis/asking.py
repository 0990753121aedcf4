"""What a run that exists loses and why, for who asks by paths: of a command line, or in Python."""

from dataclasses import asdict, dataclass
from typing import Any

from odcsim.decide.diagnosis import columns, words
from odcsim.decide.diagnosis.found import PARTS, Breakdown, Change, Changes, StepPart
from odcsim.observed.run import SeenRun
from odcsim.support.glance import Glance, Glanced

SCHEMA = 1


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Glanced):
    """What was seen of a run, where its steps went, and what other ways to run it would bring."""

    run: SeenRun
    found: Breakdown
    changes: Changes
    sources: tuple[str, ...] = ()
    lengths: str | None = None

    @property
    def best(self) -> Change | None:
        """The way of least effort that is about as fast as any; None where nothing is to gain."""
        return words.fastest(self.changes)

    def sentences(self) -> list[str]:
        """The answer, what was read, each way to change it, and what cannot be told."""
        return words.sentences(self.run, self.found, self.changes)

    def as_json(self) -> dict[str, Any]:
        """As `odcsim diagnose --json` prints it."""
        run, found, changes = self.run, self.found, self.changes
        return {
            "schema": SCHEMA,
            "inputs": {"sources": list(self.sources), "lengths": self.lengths, **changes.inputs},
            "answer": words.answer(run, found, changes),
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
            "ranks": [asdict(one) for one in columns.worst(found)],
            "late": [asdict(one) for one in found.late],
            "ways": [_way(number, one) for number, one in enumerate(changes.ways, 1)],
            "rests": changes.rests,
            "replayed": changes.replayed,
            "rows": [dict(one.row) for one in changes.ways],
            "cannot": list(dict.fromkeys((*run.lacks, *found.cannot, *changes.cannot))),
        }

    def records(self) -> list[dict[str, Any]]:
        """A row for each part of the step."""
        return [_part(part) for part in self.found.parts]

    def _glance(self) -> Glance:
        told = [words.answer(self.run, self.found, self.changes)]
        detail = " ".join(words.untold(self.run, self.found, self.changes))
        return Glance("Diagnosis", self.run.source, told, *columns.parts(self.found), detail)


def _part(part: StepPart) -> dict[str, Any]:
    return {"name": part.name, "what": PARTS[part.name], **{k: v for k, v in asdict(part).items() if k != "name"}}


def _way(number: int, change: Change) -> dict[str, Any]:
    """Its row is that of its number among `rows`, which `odcsim flags --row` takes."""
    return {"row": number, **{name: value for name, value in asdict(change).items() if name != "row"}}
