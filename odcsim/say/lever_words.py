"""Why devices idle, and what would make the run cheaper, in words."""

from collections.abc import Iterator
from dataclasses import replace

from odcsim.answer import Answer, AnswerTable
from odcsim.decide.cause import LAYERS, LONGEST, REST, SHARES, TRANSFERS, Cause, cause_of
from odcsim.decide.levers import (
    AGAIN,
    BATCH,
    BY_LENGTH,
    CUT,
    ENGINE,
    GPUS,
    LIMIT,
    PROMPTS,
    SHARDING,
    SHARED,
    UPDATES,
    Lever,
    Levers,
)
from odcsim.results.summary import Row
from odcsim.say import row_words
from odcsim.say.spending_words import paid_by

NAME = "What would cost less"
# What a change does to training.
TRAINS = {
    BY_LENGTH: "a step's samples are alike in length: some steps have short ones, some long ones",
    BATCH: "fewer, larger steps: the learning rate has to follow",
    PROMPTS: "fewer, larger steps: the learning rate has to follow",
    UPDATES: "fewer updates on the same rollouts, all of them nearer to the policy that wrote them",
    ENGINE: "the same training, answers by engines of more GPUs each",
    GPUS: "the same training",
    SHARED: "the same training, in a trainer that runs context parallelism (few published runs say how fast)",
    LIMIT: "the same training",
    CUT: "{lost}",
    SHARDING: "the same training",
    AGAIN: "the same training",
}
WHY = {
    LAYERS: "ranks meet in every layer, and the microbatches that meet there are not equally long",
    SHARES: "the work of a step is not dealt evenly",
    TRANSFERS: "transfers take longer than the compute beside them",
    REST: "it goes at the beginning and the end of passes, where nothing overlaps",
}


def why(row: Row, workers: int) -> str:
    """In a sentence; nothing where devices hardly idle, or where memory keeps it from being run."""
    cause = None if row.memory_fits is False else cause_of(row, workers)
    return "" if cause is None else f"Devices idle {row.idle:.0%} of the time: {_why(cause, row, workers)}."


def _why(cause: Cause, row: Row, workers: int) -> str:
    if cause.kind != LONGEST:
        return WHY[cause.kind]
    others = workers - 1
    wait = "1 waits" if others == 1 else f"{others:,} wait"
    filled = f"all the work of a step would fill {row.busy or 0:.1f} of {workers:,}"
    return f"one long sample keeps 1 GPU busy while {wait}, and {filled}"


def answer(levers: Levers) -> Answer:
    base = levers.base
    because = why(base, levers.workers)
    if base.memory_fits is False:
        return Answer("Levers", base.name, "It does not fit memory, and cannot be run.")
    if not (levers.cause or levers.found or levers.tried):
        return Answer("Levers", base.name, f"Devices idle {base.idle:.0%} of the time: there is little to gain.")
    words = " ".join(filter(None, (because, first(levers))))
    return Answer("Levers", base.name, words, "", tables(levers), list(rest(levers)))


def beside(answer: Answer, levers: Levers | None) -> Answer:
    """An answer with its levers: the cheapest behind its headline, all of them behind its tables."""
    if levers is None or not (levers.cause or levers.found or levers.tried):
        return answer
    headline = " ".join(filter(None, (answer.headline, first(levers))))
    every = [*answer.tables, *tables(levers)]
    return replace(answer, headline=headline, tables=every, sentences=[*rest(levers), *answer.sentences])


def first(levers: Levers) -> str:
    """The cheapest change that loses nothing of the data; nothing where none was tried."""
    if not levers.found:
        return "No single change that was tried makes it notably cheaper." if levers.cause and levers.tried else ""
    one = next((lever for lever in levers.found if lever.change.kind != CUT), levers.found[0])
    return f"Cheaper: {one.change.flags}, {paid_by(one.row)} ({one.times(levers.base):.2f} times the cost)."


def tables(levers: Levers) -> list[AnswerTable]:
    """A row for each change, beneath it what it does to training; the first is the run as it is."""
    if not levers.found:
        return []
    paid = "gpu_hours" if levers.base.dollars is None else "dollars"
    every = [levers.base, *(lever.row for lever in levers.found)]
    head, cells = row_words.table(every, (paid, "time", "idle", "memory"))
    names = ["as it is", *(lever.change.flags for lever in levers.found)]
    details = [[], *([_trains(lever, levers.base)] for lever in levers.found)]
    rows = [[name, *row] for name, row in zip(names, cells, strict=True)]
    says = f"Each changes one thing alone, and is of {levers.basis}; all else is chosen anew where nobody gave it."
    return [AnswerTable(["change", *head], rows, NAME, details=details, says=says)]


def _trains(lever: Lever, base: Row) -> str:
    """What it does to training; of a trainer that makes steps of another size by its settings, that too."""
    words = TRAINS[lever.change.kind].format(lost=lever.change.lost)
    samples, asked = (row.made.samples if row.made else 0.0 for row in (lever.row, base))
    if lever.change.kind in (BATCH, PROMPTS, UPDATES) or round(samples) == round(asked):
        return words
    return f"{words}, but in steps of {samples:,.0f} samples, and not of {asked:,.0f}"


def rest(levers: Levers) -> Iterator[str]:
    """What was tried in vain."""
    if levers.tried:
        flags = ", ".join(change.flags for change in levers.tried)
        yield f"Not notably cheaper, or tight in memory or over it: {flags}."
