"""Whether somebody's run is normal, before it runs: what its configuration comes to, what it would end or hang with,
and which of its lines to change."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from odcsim.answer import Result
from odcsim.decide import proposals
from odcsim.decide.asking import lengths_of
from odcsim.decide.cause import Cause, cause_of
from odcsim.decide.levers import AGAIN
from odcsim.decide.normal import Normality, explain
from odcsim.decide.priced_step import FEW, PricedStep, Surroundings
from odcsim.decide.proposals import Proposal
from odcsim.decide.words import AUDIT, paths_of
from odcsim.errors import InputError
from odcsim.neighbours import edit
from odcsim.neighbours.config import TrainerConfig, check_names, read_again, read_config
from odcsim.neighbours.launch import RECOMPUTED, Launcher
from odcsim.neighbours.values import RunEnds
from odcsim.observed.hang import Hang, why
from odcsim.question import LENGTHS, Question
from odcsim.results import capacity
from odcsim.support.outputs import check_apart, check_writable, write_text
from odcsim.trace import DPO, GRPO, SFT

TIMES = (2, 4, 8)  # as many GPUs
OF_MACHINES = ("gpu", "profile", "devices_per_node", "cluster", "seed")
# Lengths to start from, where nobody has counted any.
SHAPES = {
    SFT: "lognormal:median=700,sigma=0.9,max=8192",
    DPO: "lognormal:median=700,sigma=0.9,max=8192",
    GRPO: "lognormal:median=3000,sigma=0.9,max=16384",
}


@dataclass(frozen=True, slots=True, repr=False)
class Audit(Result):
    """`step` is None where the run would end at once: `ends` says why."""

    config: TrainerConfig
    step: PricedStep | None
    ends: str = ""
    fix: str = ""
    cause: Cause | None = None
    found: tuple[Proposal, ...] = ()  # one on the other
    beside: tuple[Proposal, ...] = ()  # on top of them, and each another training
    changes: tuple[Mapping[str, Any], ...] = ()  # of each, by the names of the file
    unknown: tuple[str, ...] = ()
    normal: Normality | None = None  # beside a log
    started: PricedStep | None = None  # with shards, where nobody said how it is started and it lacks memory without
    fits_on: int = 0  # GPUs, where no change makes room
    trace: str = ""

    @property
    def runs(self) -> bool:
        """Whether it would run: neither ends at once nor runs out of memory."""
        return self.step is not None and capacity.level(self.step.need) != capacity.OVER

    @property
    def notes(self) -> list[str]:
        """Settings that do nothing, fight each other, or are priced as something else."""
        return self.config.values.notes

    def edited(self) -> str:
        """The configuration with all changes."""
        every: dict[str, Any] = {}
        for one in self.changes[: len(self.found)]:
            every |= one
        edit.check_place(self.config)
        text = edit.edit(self.config, every)
        if self.config.form == "shell" and self.found:
            rows = self.found[-1].step.row, read_again(self.config, text).row()
            one, other = (self.config.trainer.settings(row) for row in rows)
            if one != other:
                fix = "change these lines by hand"
                raise InputError("would not be read as these changes", where=self.config.where, fix=fix)
        return text

    def as_json(self) -> dict[str, Any]:
        """As `odcsim audit --json` prints it."""
        content: dict[str, Any] = {
            "schema": 1, "trainer": self.config.trainer.name, "kind": self.config.kind, "where": self.config.where,
            "lengths": self.trace, "runs": self.runs, "ends": self.ends or None, "notes": self.notes,
            "unknown": list(self.unknown), "step": None if self.step is None else figures(self.step),
        }  # fmt: skip
        content |= {"started": None if self.started is None else figures(self.started), "fits_on": self.fits_on or None}
        content["cause"] = None if self.cause is None else {"kind": self.cause.kind, "share": self.cause.share}
        content["changes"] = [
            {
                "kind": one.kind,
                "another_training": one in self.beside,
                "times": one.times,
                "lines": edit.lines(self.config, lines),
                **figures(one.step),
            }
            for one, lines in zip((*self.found, *self.beside), self.changes, strict=True)
        ]
        return content | ({"normal": self.normal.as_json()} if self.normal else {})


def figures(step: PricedStep) -> dict[str, Any]:
    """Of a step, by their names in JSON."""
    return {
        "step_seconds": step.seconds, "step_seconds_low": step.low, "step_seconds_high": step.high,
        "training_seconds": step.training, "forward_seconds": step.passes, "generation_seconds": step.generation,
        "step_tokens": step.tokens, "padding": step.padding, "idle": step.usual.idle,
        "microbatches_least": step.counts[0], "microbatches_most": step.counts[1],
        "memory_bytes": step.need.memory_bytes, "memory_limit": step.need.memory_limit,
        "memory_fits": step.need.memory_fits, "fullest_tokens": step.fullest, "room_tokens": step.fits,
        "first_over_step": step.first_over or None, "mfu": step.usual.mfu,
    }  # fmt: skip


@AUDIT.take
def audit(
    config: str | os.PathLike[str] | None = None,
    *,
    lengths: Any = None,
    log: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    hang: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    write: str | os.PathLike[str] | None = None,
    **words: Any,
) -> Audit | Hang:
    """Of a trainer's file, or of the command that starts it: what a step takes and needs, why devices idle, and which
    lines to change. `lengths`: of the samples that it trains on. `log`: of its steps, held against what is expected.
    `hang`: dumps of a run that hangs, of which alone it then says why. `write`: a file for the configuration with all
    changes. `words`: GPU, devices, and how lengths are read."""
    if dumps := paths_of("hang", hang):
        return why(dumps, words.get("devices"))
    if config is None:
        raise InputError("no configuration is named", fix="give a trainer's file, or the command that starts it")
    if write is not None:
        check_writable(Path(write))
        read = [one for one in (config, lengths, *paths_of("log", log)) if isinstance(one, str | os.PathLike)]
        check_apart(Path(write), [os.fspath(one) for one in read])
    result = audited(config, lengths, paths_of("log", log), words)
    if write is not None:
        write_text(Path(write), result.edited())
    return result


def audited(given: str | os.PathLike[str], lengths: Any, log: Sequence[str], words: Mapping[str, Any]) -> Audit:
    """Nothing is written."""
    said = Launcher(devices=words.get("devices") or 0, per_machine=words.get("devices_per_node") or 0)
    config = read_config(given, said)
    if not words.get("gpu") and not words.get("profile"):
        raise InputError("no GPU is named", where=config.where, fix="give --gpu, such as h100")
    try:
        row = config.row()
        if words.get("model"):
            row = replace(row, model=str(words["model"]))
        unknown, trace = tuple(check_names(config)), _lengths(config, lengths, words, row.data)
        known = {name: words[name] for name in OF_MACHINES if words.get(name) is not None}
        of = Surroundings(config.trainer, trace, known, config.where)
        step = of.price(row)
    except RunEnds as error:
        ends = f"{error.where}: {error.problem}" if error.where else error.problem
        return Audit(config, None, ends, error.fix)
    fixed = [AGAIN] if RECOMPUTED in config.values.notes else []
    launched = edit.is_launched(config)
    base = step if launched else with_shards(of, config, step)
    found = proposals.propose(of, base, launched=launched, fixed=fixed)
    best = found[-1].step if found else base
    beside = proposals.propose_others(of, best) if capacity.level(best.need) != capacity.OVER else []
    rows = [base.row, *(one.step.row for one in found)]
    changes = [edit.differences(config, *pair) for pair in pairwise(rows)]
    others = [(one, edit.differences(config, rows[-1], one.step.row)) for one in beside]
    beside = [one for one, lines in others if lines]  # which its settings say
    changes += [lines for _, lines in others if lines]
    cause = None if step.need.memory_fits is False else cause_of(step.usual, step.setting.cost.workers)
    normal = explain(of, step, log) if log else None
    return Audit(
        config, step, cause=cause, found=tuple(found), beside=tuple(beside), changes=tuple(changes), unknown=unknown,
        normal=normal, trace=trace.name, started=None if base is step else base,
        fits_on=more_gpus(of, best) if capacity.level(best.need) == capacity.OVER else 0,
    )  # fmt: skip


def with_shards(of: Surroundings, config: TrainerConfig, step: PricedStep) -> PricedStep:
    """A step that lacks memory, started with shards, where its file does not say how it is started."""
    row = step.row
    if capacity.level(step.need) != capacity.OVER or not row.whole or row.devices == 1:
        return step
    if not config.entry.command.startswith("accelerate"):
        return step
    sharded = of.price(replace(row, recipe=row.recipe.by(sharding="full")))
    return sharded if proposals.better(sharded, step) else step


def more_gpus(of: Surroundings, step: PricedStep) -> int:
    """How many hold it with shards, with as many samples for each; 0 where so many times as many do not."""
    for times in TIMES:
        row = replace(step.row, devices=times * step.row.devices, recipe=step.row.recipe.by(sharding="full"))
        try:
            one = of.price(row, FEW)
        except InputError:
            continue
        if capacity.level(one.need) != capacity.OVER:
            return row.devices
    return 0


def _lengths(config: TrainerConfig, lengths: Any, words: Mapping[str, Any], data: str) -> Any:
    """Those that somebody gave, or else asked for in one line with a shape to start from."""
    if lengths is None:
        shape = SHAPES[config.kind]
        fix = f"give --lengths FILE of its token counts ('odcsim trace --help'), or start with --lengths '{shape}'"
        named = f"data are {data}" if data else "data are not named"
        raise InputError(f"{named}, and their lengths decide", where=config.where, fix=fix)
    how = {name: words[name] for name in LENGTHS if name != "trace" and words.get(name) is not None}
    return lengths_of(Question(trace=lengths, **how))
