"""Options that several commands share, and what they mean."""

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from odcsim.decide.words import Words
from odcsim.option import BATCH, DATA, LENGTH, MACHINES, POSITIVE, ROWS, STEP, values_of
from odcsim.program import SIDES
from odcsim.question import FIELDS, LENGTHS, Question
from odcsim.recipe import add_recipe, recipe_words
from odcsim.support.command import Parser, rare
from odcsim.support.numbers import amount, whole
from odcsim.support.printing import printable

if TYPE_CHECKING:
    from odcsim.decide.setting import Setting
    from odcsim.trace import Trace

__all__ = ["amount", "whole"]
EITHER = (("truncate", "drop_over"), ("minibatch", "global_batch"))  # of which one can be given
NEEDED = ("model", "devices", "minibatch", "global_batch")


def add_question(
    parser: Parser,
    words: Words,
    *,
    own: Collection[str] = (),
    needed: Collection[str] = NEEDED,
    seldom: Collection[str] = (),
) -> dict[str, Any]:
    """Flags of these words, but for what the command has a flag of its `own` for. `needed`: what has to be given.
    `seldom`: what its short help leaves out beside what every command's does. Gives the groups of the help, for the
    command's own."""
    groups = parser.grouped((DATA, MACHINES, BATCH, STEP), last=ROWS)
    names = [name for name in FIELDS if name not in (*words.without, *own)]
    add_fields(groups, names, needed, **words.usual)
    add_recipe(groups[STEP], words.recipe)
    for action in parser._actions:
        if action.dest in seldom:
            rare(action)
    return groups


def add_fields(
    groups: Mapping[str, Any] | Parser, names: Collection[str], needed: Collection[str] = NEEDED, **usual: Any
) -> None:
    """Flags of these fields, each in the group that it is of, or all of them in one place. `usual`: what the command
    takes where nobody says, if that is another value."""
    where = dict.fromkeys((DATA, MACHINES, BATCH, STEP, ROWS), groups) if isinstance(groups, Parser) else groups
    either: dict[tuple[str, ...], Any] = {}
    for name in names:
        about = FIELDS[name]
        place, must = where[about.group], name in needed
        if name == "trace":
            place.add_argument(name, metavar=about.letter, help=about.help)
            continue
        if rivals := next((few for few in EITHER if name in few and set(few) <= set(names)), None):
            if rivals not in either:
                either[rivals] = place.add_mutually_exclusive_group(required=must)
            place, must = either[rivals], False
        about.add_flag(place, None if name in NEEDED else usual.get(name, about.usual), required=must)
    if set(LENGTHS) & set(names):
        words = "report tokens lost at a limit of T, without applying it"
        rare(where[DATA].add_argument("--cutoff", metavar="T", type=LENGTH.from_text, help=words))


def add_levers(parser: Any) -> None:
    rare(parser.add_argument("--levers", action="store_true", help="with --json: also what would cost less"))


def add_rate(parser: Any, words: str) -> None:
    rare(parser.add_argument("--measured-tokens-per-second", type=POSITIVE.from_text, metavar="N", help=words))


def read_question(args: argparse.Namespace, **more: Any) -> Question:
    """The question that the flags say, with its lengths read."""
    from odcsim.decide import asking

    question = asking.read(asking.question_by(values_of(args, FIELDS) | recipe_words(args) | more))
    tell_lengths(question.trace, args.cutoff)
    return question


def setting_of(args: argparse.Namespace) -> "Setting":
    return limited(read_question(args))


def limited(question: Question) -> "Setting":
    """Its setting. Who looks for a token limit tells how far that is."""
    from odcsim.decide import asking, limit, sharding
    from odcsim.support.progress import progress

    if question.max_tokens is not None:
        return asking.setting_of(question)
    setting = asking.setting_of(question, limited=False)
    with progress("choosing a token limit", len(SIDES) * len(limit.limits(setting))) as advance:
        return sharding.with_limit(setting, advance=advance)


def read_lengths(
    args: argparse.Namespace, source: str, *, without: Collection[str] = (), cutoff: int | None = None
) -> "Trace":
    """Lengths from there, read as the flags say."""
    from odcsim.decide.asking import lengths_of

    how = values_of(args, [name for name in LENGTHS if name not in without])
    trace = lengths_of(Question(**{**how, "trace": source}))
    tell_lengths(trace, cutoff)
    return trace


def tell_lengths(trace: "Trace | None", cutoff: int | None = None) -> None:
    """Which rows are left out, and what a cutoff would cost: on stderr, so that results stay what they are."""
    if trace is not None and trace.left_out:
        print(printable(f"odcsim: {trace.name}: {trace.left_out}"), file=sys.stderr)
    if trace is not None and cutoff is not None:
        from odcsim.reading.limits import cut_lines

        print(*cut_lines(trace, cutoff), sep="\n", file=sys.stderr)


def print_json(content: Any) -> None:
    """JSON knows no number that is not finite: a share of nothing, say, is null."""
    print(json.dumps(_finite(content), indent=2, allow_nan=False))


def write_csv(rows: Iterable[Mapping[str, Any]], out: TextIO | None = None) -> None:
    """Rows as their JSON has them: a line for each, a column for each of its figures. Printed, or written to `out`."""
    import csv

    from odcsim.support import tables

    lines = [tables.flat(row) for row in rows]
    writer = csv.DictWriter(out or sys.stdout, tables.names(lines), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(of) for of in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
