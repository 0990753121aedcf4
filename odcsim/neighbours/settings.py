"""What a row of a result is called in a trainer that others wrote: its settings, and what they rest on."""

import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy import format_float_positional

from odcsim import catalog
from odcsim.answer import Answer, AnswerTable, Printable
from odcsim.catalog.estimates.rates import family_of, rates
from odcsim.errors import InputError, nearest
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import (
    ATTENTIONS,
    DATA,
    ELSEWHERE,
    ENGINE,
    ChosenRow,
    Neighbour,
    Settings,
    lacking,
    unusual,
)
from odcsim.program import SYNCS
from odcsim.recipe import CHOICES, KERNELS, recipe_of
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.support.inputs import read_stdin, read_text, reading
from odcsim.support.numbers import counted
from odcsim.support.values import Given
from odcsim.trace import GRPO, SFT

GIVEN = "give what odcsim.compare or odcsim.advise gives, or a file of its JSON"
EXPECTED = "give what 'odcsim compare --json' or 'odcsim advise --json' printed"
ROW = "choose one with --row"
Pair = tuple[str, str]  # (balancer, sync)
FILES = ("yaml", "toml")  # forms of settings that are in a file of their own


@dataclass(frozen=True, slots=True, repr=False)
class TrainerFlags(Printable):
    """What a row is called there. As text: the lines that `odcsim flags` prints."""

    trainer: Neighbour
    row: ChosenRow

    @property
    def settings(self) -> Settings:
        """By the trainer's own names."""
        return self.trainer.settings(self.row)

    @property
    def lines(self) -> list[str]:
        """What stands for itself: a script that starts the run, or a file with how to start it above. Comments first:
        what the settings rest on, and what they cannot say."""
        notes = [f"# {note}" for note in _notes(self.trainer, self.row)]
        file = f"{self.trainer.name}.{self.trainer.form}"
        command, settings = self.trainer.command(self.row, file), [*written(self.settings, self.trainer.form)]
        if self.trainer.form in FILES:
            return [*notes, f"# save it as {file}, and run: {command}", *settings]
        return [*notes, *" \\\n    ".join([command, *settings]).splitlines()]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _answer(self) -> Answer:
        about, settings = f"{self.trainer.name}, {self.row.recipe.sync} + {self.row.balancer}", self.settings
        rows = [(name, "\n".join(written({name: value}, self.trainer.form))) for name, value in settings.items()]
        table = AnswerTable(("setting", "as the trainer reads it"), rows)
        return Answer("TrainerFlags", about, counted(len(settings), "setting"), "", [table])


def flags(
    trainer: str,
    result: Any,
    *,
    row: int | Pair | None = None,
    rollouts: int = 1,
) -> TrainerFlags:
    """What starts a row of a comparison, an advice or steps of RL in a trainer that others wrote. `row`: its number
    from 1, or (balancer, sync); else the best that the trainer runs. `rollouts`: samples of each prompt, of lengths
    that do not say it."""
    if not isinstance(trainer, str) or trainer not in TRAINERS:
        raise InputError(f"unknown trainer {trainer!r:.40}", fix=nearest(trainer, list(TRAINERS)))
    for name, value in (("row", row), ("rollouts", rollouts)):
        if value is not None and not isinstance(value, tuple) and (not hasattr(value, "__index__") or value < 1):
            raise InputError(f"--{name} is {value!r:.40}", fix="give a whole number from 1")
    neighbour = TRAINERS[trainer]
    given = _read(result)
    one = _pick(given, neighbour, row)
    inputs = given.key("inputs")
    if rollouts > 1 and inputs.key("kind", SFT).value != GRPO:
        fix = "leave it out, or ask 'odcsim rl' for steps of so many prompts and rollouts"
        problem = f"--rollouts {rollouts}, and these lengths do not say which are answers to one prompt"
        raise InputError(problem, where=given.where, fix=fix)
    engine = given.key("generation", {})
    gpus, share = engine.key("engine_gpus", 0).whole(0), float(engine.key("memory_share", 0.0).number())
    chosen = _row_of(inputs, one, neighbour, rollouts)
    chosen = replace(chosen, steps=_steps(given, one), engine_gpus=gpus, memory_share=share)
    lacks = [flag for flag in lacking(neighbour, chosen.recipe.on(chosen.nodes)) if flag.startswith("--loss")]
    if chosen.group_by_length and "by_length" not in neighbour.knows:
        lacks.append("--group-by-length")
    if lacks:  # what decides batch, memory or seconds
        fix = "its settings do not say it: ask again without"
        raise InputError(f"{lacks[0]}, and {trainer} has none", where=given.where, fix=fix)
    return TrainerFlags(neighbour, chosen)


def _steps(given: Given, row: Given) -> int:
    """Of the whole run, where epochs were asked for, or so many steps of RL."""
    if row.key("steps").value is not None:
        return row.key("steps").whole()
    run = given.key("run", {})
    if run.value is None:
        return 0
    if run.key("total_steps").value is not None:
        return run.key("total_steps").whole()
    rows = run.key("rows", [])
    name = f"{row.key('sync').text()} + {row.key('balancer').text()}"
    return next((one.key("steps").whole() for one in rows.items() if one.key("row").value == name), 0)


def _read(result: Any) -> Given:
    """A result as its JSON has it, and where that stands: a file is read here, and nowhere later."""
    if isinstance(result, str | os.PathLike):
        path = os.fspath(result)
        with reading(path, missing=EXPECTED, expected=EXPECTED):
            text, where = (read_stdin(), "stdin") if path == "-" else (read_text(path), path)
        try:
            return Given("", json.loads(text), where)
        except (ValueError, RecursionError):
            raise InputError("is not JSON", where=where, fix=EXPECTED) from None
    if hasattr(result, "as_json"):
        return Given("", result.as_json(), type(result).__name__.lower())
    if not isinstance(result, Mapping):
        raise InputError(f"no comparison and no advice: {result!r:.40}", fix=GIVEN)
    return Given("", dict(result), "JSON")


def _pick(given: Given, trainer: Neighbour, row: int | Pair | None) -> Given:
    """The row that somebody chose, or the best of those that the trainer runs; refused where it does not run it as
    it was priced, or where it does not fit."""
    where = given.where
    rows = given.key("rows").items() if isinstance(given.value, dict) and "inputs" in given.value else []
    if not rows:
        raise InputError("has no rows", where=where, fix=EXPECTED)
    for_whom = given.key("inputs").key("trainer").value
    again = f"ask again with --trainer {trainer.name}, for the price of what it does itself"
    if row is None:
        able = [one for one in rows if _runs(one, trainer, for_whom)]
        if not able:
            raise InputError(f"has no row of what {trainer.name} runs", where=where, fix=again)
        fused = "chunked" in trainer.knows and given.key("inputs").key("loss").value == "whole"
        pick = _best(able, trainer, "ask again with --loss chunked, for which it has kernels" if fused else ROW)
    elif isinstance(row, tuple):
        pairs = [(one.key("balancer").value, one.key("sync").value) for one in rows]
        if row not in pairs:
            listed = ", ".join(f"{balancer} under {sync}" for balancer, sync in pairs)
            raise InputError(f"no row of {' under '.join(map(str, row))}", where=where, fix=f"there are {listed}")
        pick = rows[pairs.index(row)]
    else:
        if row > len(rows):
            raise InputError(f"--row {row} of {len(rows)}", where=where, fix=f"give 1 to {len(rows)}")
        pick = rows[row - 1]
    if not _runs(pick, trainer, for_whom):
        name = f"{pick.key('sync').text()} + {pick.key('balancer').text()}"
        by = "" if for_whom == trainer.name else f" as it was priced{f' for {for_whom}' if for_whom else ''}"
        fix = "choose one of its own with --row" if for_whom == trainer.name else again
        raise InputError(f"{trainer.name} does not run {name}{by}", where=where, fix=fix)
    if pick.key("memory_fits").value is False:
        needed, limit = (pick.key(name).number() / 1e9 for name in ("memory_bytes", "memory_limit"))
        fix = "choose another with --row, or ask with more GPUs, --truncate or less in a microbatch"
        raise InputError(f"the row needs {needed:.0f} of {limit:.0f} GB of memory", where=where, fix=fix)
    return pick


def _runs(row: Given, trainer: Neighbour, for_whom: Any) -> bool:
    """Whether the trainer runs what was priced: a way of its own, or on demand by the engine's plans; either at the
    price of its own kernels, so that it was asked for."""
    way = row.key("made").value is not None or (row.key("sync").text() == ENGINE and trainer.engine != "")
    return bool(for_whom == trainer.name and way)


def _best(able: list[Given], trainer: Neighbour, fix: str) -> Given:
    """A way of its own before the engine's. An advice has its cheapest first; of a comparison the fastest that fits, or
    of what is tight where none does."""
    own = [one for one in able if one.key("made").value is not None] or able
    if "makespan_seconds" not in own[0].mapping():
        return own[0]
    fitting = [one for one in own if one.key("memory_fits").value is not False]
    if not fitting:
        problem = f"has no row that fits and that {trainer.name} runs"
        raise InputError(problem, where=able[0].where, fix=fix)

    def lateness(one: Given) -> tuple[bool, float]:
        used, limit = one.key("memory_bytes"), one.key("memory_limit")
        tight = None not in (used.value, limit.value) and capacity.tight(Need(used.number(), limit.number()))
        return tight, float(one.key("makespan_seconds").number())

    return min(fitting, key=lateness)


OF_ROLLOUTS = (("answer", "longest_answer"), ("prompt", "longest_prompt"))


def _row_of(inputs: Given, row: Given, trainer: Neighbour, rollouts: int) -> ChosenRow:
    """The row as the trainer is to run it; what it does not say is in the question that it answers."""
    both = Given("", {**inputs.mapping(), **row.mapping()}, row.where)
    own = Given("", row.key("made", {}).mapping(), row.where)
    both.key("sync").one_of(SYNCS)
    try:
        recipe = recipe_of(both.mapping())
    except InputError as error:
        raise InputError(error.problem, where=row.where, fix=error.fix) from None
    if recipe.context > 1 and recipe.sync == ENGINE:
        problem, fix = f"on-demand with --context {recipe.context}", "odc_engine does not run it: choose another row"
        raise InputError(problem, where=row.where, fix=fix)
    devices, limit = both.key("devices").whole(), own.key("max_tokens", both.key("max_tokens").value).whole()
    if both.key("devices_per_node").value is not None:
        per_node = both.key("devices_per_node").whole()
    else:
        per_node = min(devices, catalog.gpu(both.key("gpu").text()).devices_per_node)
    microbatches, attention = 1.0, both.key("attention", "usual").value
    if both.key("microbatches").value is not None:
        microbatches = float(both.key("microbatches").number())
    elif both.key("tokens_per_second").value is not None:  # full ones, of the tokens of a step
        step_tokens = both.key("tokens_per_second").number() * both.key("makespan_seconds").number()
        microbatches = float(math.ceil(step_tokens / both.key("minibatches").whole() / recipe.workers(devices) / limit))
    if attention == "usual":
        attention = rates(family_of(str(both.key("gpu").value))).usual
    tokens: dict[str, Any] = {
        field: 0 if both.key(key).value is None else both.key(key).whole(0)
        for field, key in (("cut", "truncate"), ("dropped", "drop_over"), *OF_ROLLOUTS)
    }
    epochs, kind = both.key("epochs").value, both.key("kind", SFT).value
    updates = both.key("updates", 1).whole()
    return ChosenRow(
        recipe,
        both.key("balancer").text(),
        devices,
        per_node,
        own.key("minibatch", both.key("minibatch").value).whole(),
        limit,
        microbatches,
        kind if kind in trainer.entries else SFT,
        both.key("rollouts", rollouts).whole(),
        updates,
        both.key("forward_passes", 2 if kind == GRPO else 0).whole(0),
        both.key("critic", False).flag(),
        str(attention),
        each=own.key("each", 0).whole(0),
        longest=both.key("trace_longest", 0).whole(0),
        model=str(both.key("model_asked", both.key("model", "").value).value),
        epochs=float(epochs) if isinstance(epochs, int | float) else None,
        data=str(both.key("trace", "").value),
        **tokens,
        samples_made=float(own.key("samples", 0).number()),
        tokens_made=float(own.key("tokens", 0).number()),
        group_by_length=both.key("group_by_length", False).flag(),
    )


def _notes(trainer: Neighbour, row: ChosenRow) -> Iterator[str]:
    """What the settings rest on, and what they cannot say."""
    priced, unit = f"{row.balancer} + {row.recipe.sync}", "pairs" if row.pairs else "samples"
    step = f"{row.samples:,} {unit}"
    if row.samples_made:  # of rows that are packed
        step = f"{row.samples_made:,.0f} {unit} and {row.tokens_made:,.0f} tokens"
    yield f"{priced}, {row.max_tokens:,} tokens a microbatch, {step} a step"
    yield f"names as in {trainer.entries[row.kind].source}"
    if row.data:
        yield f"lengths were those of {row.data}: train on that dataset, in place of {DATA}"
    if row.cut:
        yield f"lengths were cut at {row.cut:,} tokens: cut your samples there before they are packed or counted"
    if row.dropped:
        yield f"samples over {row.dropped:,} tokens were dropped: drop them from your dataset"
    if row.weights.startswith(ELSEWHERE):
        yield f"the model is {row.model}: name its weights in place of {row.weights}"
    if row.sync.meets:
        own = [rule for rule in trainer.rules if not rule.kinds or row.kind in rule.kinds]
        rule = next((rule for rule in own if rule.balancer == row.balancer), own[-1])
        yield f"{trainer.name} assigns samples by its own rule: {rule.says}"
    else:
        yield f"on-demand by odc_engine, with max_tokens = {row.max_tokens}: see {trainer.engine}"
    if row.kind == GRPO:
        each = f"{row.rollouts} of each" if row.rollouts > 1 else "one of each (--rollouts N says otherwise)"
        yield f"for reinforcement learning on answers to {row.prompts * row.updates:,} prompts, {each}"
    if row.nodes > 1:
        yield "run it on each machine, and tell its launcher which one that is"
    if trainer.caution:
        yield trainer.caution
    for name, _, words in unusual(row.recipe.on(row.nodes)):
        if words and name not in trainer.knows:
            yield f"not said here: {words}"
    kernels = {name: row.recipe.value(name) for name in KERNELS if name not in ("attention", "loss")}
    usual = {name: trainer.assumes.get(name, CHOICES[name].usual) for name in kernels}
    others = [f"{name} {of}" for name, of in kernels.items() if of != usual[name] and of not in trainer.knows]
    if row.attention not in ATTENTIONS or "attention" not in trainer.knows:
        others.append(f"attention by {row.attention}")
    if others:
        yield f"not said here: kernels as they were assumed: {', '.join(others)}"


def written(settings: Settings, form: str) -> Iterator[str]:
    """As the trainer reads them: a line for each."""
    for name, value in settings.items():
        if form == "yaml":
            yield from format_yaml(name, value)
        elif form == "toml":
            yield f"{name} = {json.dumps(value)}"
        elif form == "hydra":
            yield shlex.quote(f"{name}={format_value(value)}")
        else:
            yield name if value is None else f"{name} {shlex.quote(format_value(value))}"


def format_yaml(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict | list):
        yield f"{name}: {format_value(value)}"
        return
    yield f"{name}:"
    if isinstance(value, dict):
        yield from (f"  {line}" for key, item in value.items() for line in format_yaml(key, item))
        return
    for item in value:
        lines = [format_value(item)]
        if isinstance(item, dict):
            lines = [line for key, of in item.items() for line in format_yaml(key, of)]
        yield from (f"{'  ' if at else '- '}{line}" for at, line in enumerate(lines))


def format_value(value: Any) -> str:
    if isinstance(value, float):  # YAML 1.1 takes 2e-05 for a word
        return format_float_positional(value, trim="-")
    return str(value).lower() if isinstance(value, bool) else str(value)
