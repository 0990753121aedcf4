"""A plan held against what hangs a run: of a command line by paths, in Python by the plan itself, too."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from odcsim.answer import Answer, AnswerTable, Printable
from odcsim.balance import BALANCERS
from odcsim.balance.library import Plan
from odcsim.checking import findings
from odcsim.checking.batches import Batch, Dealing, of_schedules, of_value, read, with_lengths
from odcsim.checking.findings import ERROR, NOTE, PlanFinding, Rules
from odcsim.errors import InputError, nearest
from odcsim.option import LIMIT
from odcsim.program import MEETING, ONE_SIDED, SYNC_TABLE
from odcsim.reading import load
from odcsim.reading.images import images as images_of
from odcsim.reading.tally import in_places
from odcsim.recipe import CHOICES
from odcsim.schedule import ScheduleFile
from odcsim.support.numbers import counted
from odcsim.support.values import whole_numbers
from odcsim.trace import Trace

GIVEN = "plan"  # where it stands that is no file


@dataclass(frozen=True, slots=True, repr=False)
class PlanCheck(Printable):
    """What a plan was held against, and what was found. Not `named`: its own balancer says the sync."""

    plan: str
    sync: str
    named: bool
    strict: bool
    batches: tuple[Batch, ...]
    findings: tuple[PlanFinding, ...]
    lengths: Trace | None = None  # of the samples, where they were given
    max_tokens: int = 0  # of a microbatch; 0: no limit was given

    @property
    def wrong(self) -> tuple[PlanFinding, ...]:
        """What hangs or breaks a run; what shifts its loss, too, where that was asked for."""
        return tuple(f for f in self.findings if f.severity == ERROR or (self.strict and f.severity != NOTE))

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def summary(self) -> str:
        counts = [len(device) for batch in self.batches for device in batch.devices]
        spread = "" if min(counts) == max(counts) else f"{min(counts)} to "
        shape = f"{counted(len(self.batches), 'minibatch')} on {counted(len(self.batches[0].devices), 'device')}"
        shape += f", {spread}{counted(max(counts), 'microbatch')} each{'' if self.named else f', {self.sync}'}"
        shape += f", at most {self.max_tokens:,} tokens in one" if self.max_tokens else ""
        return f"{shape}: {'nothing that hangs it' if self.ok else counted(len(self.wrong), 'finding')}"

    def sentences(self) -> list[str]:
        """Its findings, and what they come to."""
        return [*(finding.line for finding in self.findings), f"{self.plan}: {self.summary}"]

    def as_json(self) -> dict[str, Any]:
        """As `odcsim check --json` prints it."""
        head = {"schema": 1, "plan": self.plan, "sync": self.sync, "minibatches": len(self.batches), "ok": self.ok}
        return head | {"findings": self.records()}

    def records(self) -> list[dict[str, Any]]:
        """Its findings, flat."""
        return [asdict(finding) for finding in self.findings]

    def _answer(self) -> Answer:
        head = ("finding", "severity", "minibatch", "in minibatches", "")
        rows = [(f.kind, f.severity, f"{f.minibatch}", f"{f.minibatches:,}", f.text) for f in self.findings]
        return Answer("PlanCheck", self.plan, self.summary, "", [AnswerTable(head, rows)])


def check(
    plan: str | os.PathLike[str] | ScheduleFile | Plan | Mapping[str, Any] | list[Any],
    *,
    lengths: Trace | str | os.PathLike[str] | ArrayLike | None = None,
    column: str | None = None,
    skip_bad: bool = False,
    images: str | None = None,
    max_tokens: int = 0,
    devices: int = 0,
    accumulate: int = 1,
    sync: str | None = None,
    strict: bool = False,
) -> PlanCheck:
    """Whether a plan hangs a run or shifts its loss. `plan`: a file, index lists [device][microbatch][sample], with a
    list around several minibatches, or what `odcsim.plan` and `odcsim.balance.plan` give. `lengths`: of the samples, or
    a file of them with its `column`, and that of their `images`; `skip_bad` leaves its bad rows out. `devices` and
    `accumulate`: for batches in a row. `sync`: what its balancer needs, else collective. `strict`: warnings count,
    too."""
    max_tokens = LIMIT.from_python(max_tokens, "--max-tokens")
    for name, value, least in (("max_tokens", max_tokens, 0), ("devices", devices, 0), ("accumulate", accumulate, 1)):
        if not hasattr(value, "__index__") or value < least:
            raise InputError(f"--{name.replace('_', '-')} is {value!r:.40}", fix=f"give a whole number from {least}")
    if sync is not None and sync not in (known := CHOICES["sync"].values):
        raise InputError(f"--sync is {sync!r:.40}", fix=nearest(str(sync), list(known)))
    where, dealing, balancer = GIVEN, Dealing(devices, accumulate), ""
    if isinstance(plan, str | os.PathLike):
        where = os.fspath(plan)
        batches, balancer = read(where, dealing)
    elif isinstance(plan, ScheduleFile):
        batches, balancer = of_schedules(plan.schedules, where), plan.header.balancer
    else:
        batches = of_value(_plain(plan.devices if isinstance(plan, Plan) else plan), where, dealing)
    if images is not None and lengths is None:
        raise InputError(f"--images {images} without --lengths", fix="give the file that has the column")
    trace = None
    if lengths is not None:
        trace = _trace(lengths, column=column, skip_bad=skip_bad, images=images)
        has = None if images is None else images_of(os.fspath(lengths), images, trace)  # type: ignore[arg-type]
        batches = with_lengths(batches, trace, where, has)
    own = "" if all(b.suits(SYNC_TABLE[MEETING]) for b in BALANCERS if b.name == balancer) else ONE_SIDED
    under = sync or own or MEETING
    every = findings.check(batches, Rules(under, max_tokens, 0 if trace is None else trace.size))
    return PlanCheck(where, under, sync is not None or not own, strict, tuple(batches), tuple(every), trace, max_tokens)


def _plain(value: Any) -> Any:
    """Lists, whatever kinds of rows they were."""
    if isinstance(value, Mapping):
        return {name: _plain(of) for name, of in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(of) for of in value]
    return value.item() if isinstance(value, np.generic) else value


def _trace(given: Any, *, column: str | None, skip_bad: bool, images: str | None) -> Trace:
    """Lengths that somebody has, or of a file, whose samples are numbered as its rows."""
    is_path = isinstance(given, str | os.PathLike)
    if not is_path and (column or skip_bad or images is not None):
        fix = "give the name of a file, or lengths that are read already"
        raise InputError("--column or --images with lengths that nobody reads", fix=fix)
    lengths = given
    if is_path:
        lengths = load(given if isinstance(given, str) else Path(given), column=column, skip_bad=skip_bad)
    trace = lengths if isinstance(lengths, Trace) else Trace("lengths", whole_numbers("length", lengths, 1))
    return in_places(trace, os.fspath(given) if is_path else trace.name)
