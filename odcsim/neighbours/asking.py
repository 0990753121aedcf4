"""The settings of another trainer for a row of a result, of a file of its JSON, or of that JSON itself."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from odcsim.errors import InputError, nearest
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.chosen import EXPECTED, read
from odcsim.neighbours.neighbour import ChosenRow, Neighbour, Settings
from odcsim.neighbours.written import lines, written
from odcsim.support.files import reading
from odcsim.support.glance import Glance, Glanced
from odcsim.support.numbers import counted
from odcsim.support.whole import read_stdin, read_text

GIVEN = "give what odcsim.compare or odcsim.advise gives, or a file of its JSON"
Pair = tuple[str, str]  # (balancer, sync)


@dataclass(frozen=True, slots=True, repr=False)
class TrainerFlags(Glanced):
    """What a row is called there. As text: the lines that `odcsim flags` prints."""

    trainer: Neighbour
    row: ChosenRow

    @property
    def settings(self) -> Settings:
        """By the trainer's own names."""
        return self.trainer.settings(self.row)

    @property
    def lines(self) -> list[str]:
        """Comments first: what the settings rest on, and what they cannot say."""
        return list(lines(self.trainer, self.row))

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _glance(self) -> Glance:
        about, told = f"{self.trainer.name}, {self.row.way} + {self.row.balancer}", self.settings
        head = ("setting", "as the trainer reads it")
        rows = [(name, *written({name: value}, self.trainer.form)) for name, value in told.items()]
        return Glance("TrainerFlags", about, [counted(len(told), "setting")], head, rows)


def flags(
    trainer: str,
    result: Any,
    *,
    row: int | Pair | None = None,
    rollouts: int = 1,
) -> TrainerFlags:
    """What a row of a comparison or an advice is called in a trainer that others wrote. `row`: its number from 1, or
    (balancer, sync); else the best that the trainer runs. `rollouts`: samples of each prompt, of who generates some."""
    if trainer not in TRAINERS:
        raise InputError(f"unknown trainer {trainer!r:.40}", fix=nearest(trainer, list(TRAINERS)))
    for name, value in (("row", row), ("rollouts", rollouts)):
        if value is not None and not isinstance(value, tuple) and (not hasattr(value, "__index__") or value < 1):
            raise InputError(f"--{name} is {value!r:.40}", fix="give a whole number from 1")
    known = TRAINERS[trainer]
    if rollouts > 1 and not known.rollouts:
        those = ", ".join(name for name, one in TRAINERS.items() if one.rollouts)
        raise InputError(f"--rollouts {rollouts}, and {trainer} generates none", fix=f"leave it out; for {those} alone")
    text, where = _json(result)
    number = _place(text, row, where) if isinstance(row, tuple) else row
    return TrainerFlags(known, replace(read(text, where, known, number), rollouts=rollouts))


def _json(result: Any) -> tuple[str, str]:
    """What it says, and where that stands."""
    if isinstance(result, str | os.PathLike):
        path = os.fspath(result)
        with reading(path, missing=EXPECTED, expected=EXPECTED):
            return (read_stdin(), "stdin") if path == "-" else (read_text(path), path)
    content = result.as_json() if hasattr(result, "as_json") else result
    if not isinstance(content, Mapping):
        raise InputError(f"no comparison and no advice: {result!r:.40}", fix=GIVEN)
    return json.dumps(content), type(result).__name__.lower() if content is not result else "JSON"


def _place(text: str, pair: Pair, where: str) -> int:
    """The number of a comparison's row."""
    rows = json.loads(text).get("rows", [])
    known = [(row.get("balancer"), row.get("sync")) for row in rows]
    if pair not in known:
        listed = ", ".join(f"{balancer} under {sync}" for balancer, sync in known)
        raise InputError(f"no row of {' under '.join(map(str, pair))}", where=where, fix=f"there are {listed}")
    return known.index(pair) + 1
