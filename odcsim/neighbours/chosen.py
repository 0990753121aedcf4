"""The row that somebody chose, from the JSON of `odcsim compare` or `odcsim advise`: one that the trainer runs so."""

import json
import math
from collections.abc import Mapping
from typing import Any

from odcsim import catalog
from odcsim.errors import InputError
from odcsim.neighbours.neighbour import ENGINE, ChosenRow, Neighbour
from odcsim.program import SYNCS
from odcsim.recipe import CHOICES, KERNELS, fields_of
from odcsim.results import capacity
from odcsim.results.capacity import Need
from odcsim.support.checked import Given

EXPECTED = "give what 'odcsim compare --json' or 'odcsim advise --json' printed"


def read(text: str, where: str, trainer: Neighbour, number: int | None) -> ChosenRow:
    """The row of that number, from 1; else an advice's first, or a comparison's fastest, of those that it runs so."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("is not JSON", where=where, fix=EXPECTED) from None
    given = Given("", content, where)
    rows = given.key("rows").items() if isinstance(content, dict) and "inputs" in content else []
    if not rows:
        raise InputError("has no rows", where=where, fix=EXPECTED)
    if any("dealt" in row.mapping() for row in rows):
        raise InputError("comes from 'odcsim rl', whose rows have no settings", where=where, fix=EXPECTED)
    if number is not None and number > len(rows):
        raise InputError(f"--row {number} of {len(rows)}", where=where, fix=f"give 1 to {len(rows)}")
    inputs = given.key("inputs")
    asked = inputs.key("trainer", None).value
    row = rows[number - 1] if number is not None else _best(rows, trainer, asked, where)
    _check(row, trainer, asked, where)
    return _chosen(inputs, row, trainer)


def _best(rows: list[Given], trainer: Neighbour, asked: Any, where: str) -> Given:
    """An advice has its cheapest first; of a comparison the fastest that fits, or of what is tight where none does."""
    known = [row for row in rows if runs(row, trainer, asked)]
    own = [row for row in known if row.key("made").value is not None] or known
    if not own:
        raise InputError(f"has no row of what {trainer.name} runs", where=where, fix=_ask(trainer))
    if "makespan_seconds" not in rows[0].mapping():
        return own[0]
    fitting = [row for row in own if row.key("memory_fits").value is not False]
    if not fitting:
        raise InputError(f"has no row that fits and that {trainer.name} runs", where=where, fix="choose one with --row")
    return min(fitting, key=lambda row: (_tight(row), float(row.key("makespan_seconds").number())))


def _tight(row: Given) -> bool:
    used, limit = (row.key(name, None).value for name in ("memory_bytes", "memory_limit"))
    known = isinstance(used, int | float) and isinstance(limit, int | float)
    return known and capacity.tight(Need(used, limit))


def runs(row: Given, trainer: Neighbour, asked: Any) -> bool:
    """Whether the trainer runs what was priced: a way of its own, or on demand by the engine's plans; either at the
    price of its own kernels, so that it was asked for."""
    way = row.key("made").value is not None or (row.key("sync").text() == ENGINE and bool(trainer.engine))
    return bool(asked == trainer.name) and way


def _check(row: Given, trainer: Neighbour, asked: Any, where: str) -> None:
    if not runs(row, trainer, asked):
        name = f"{row.key('sync').text()} + {row.key('balancer').text()}"
        by = "" if asked == trainer.name else f" as it was priced{f' for {asked}' if asked else ''}"
        fix = "choose one of its own with --row" if asked == trainer.name else _ask(trainer)
        raise InputError(f"{trainer.name} does not run {name}{by}", where=where, fix=fix)
    if row.key("memory_fits").value is False:
        needed, limit = (row.key(name).number() / 1e9 for name in ("memory_bytes", "memory_limit"))
        fix = "choose another with --row, or ask with more GPUs, --truncate or less in a microbatch"
        raise InputError(f"the row needs {needed:.0f} of {limit:.0f} GB of memory", where=where, fix=fix)


def _ask(trainer: Neighbour) -> str:
    return f"ask again with --trainer {trainer.name}, for the price of what it does itself"


def _chosen(inputs: Given, row: Given, trainer: Neighbour) -> ChosenRow:
    both = Given("", {**inputs.mapping(), **row.mapping()}, row.where)
    made = Given("", row.key("made", {}).mapping(), row.where)
    devices, limit = both.key("devices").whole(), made.key("max_tokens", both.key("max_tokens").value).whole()
    per_node = _per_node(both, devices)
    return ChosenRow(
        both.key("sync").one_of(SYNCS),
        both.key("balancer").text(),
        devices,
        per_node,
        made.key("minibatch", both.key("minibatch").value).whole(),
        limit,
        _microbatches(both, devices, limit),
        hybrid=both.key("sharding").value == "hybrid" and devices > per_node,
        each=made.key("each", 0).whole(0),
        longest=both.key("trace_longest", 0).whole(0),
        model=str(both.key("model_asked", both.key("model", "").value).value),
        data=str(both.key("trace", "").value),
        pairs=both.key("unit").value == "pair",
        kernels=_kernels(both.mapping(), trainer),
        samples_made=float(made.key("samples", 0).number()),
        tokens_made=float(made.key("tokens", 0).number()),
        **_choices(both.mapping()),
    )


def _kernels(row: Mapping[str, Any], trainer: Neighbour) -> tuple[str, ...]:
    """Others than the trainer comes with."""
    given = {name: row[name] for name in KERNELS if name in row}
    others = {name: value for name, value in given.items() if value != trainer.assumes.get(name, CHOICES[name].usual)}
    return tuple(f"{name} {value}" for name, value in others.items() if value not in trainer.knows)


def _choices(row: Mapping[str, Any]) -> dict[str, Any]:
    epochs = row.get("epochs")
    return {
        "recompute": fields_of(row).get("recompute", "full"),
        "on_host": row.get("offload") is True,
        "rank": row["lora"] if type(row.get("lora")) is int else 0,
        "moments": str(row.get("optimizer", "fp32")),
        "stack": str(row.get("stack", "plain")),
        "epochs": float(epochs) if isinstance(epochs, int | float) else None,
    }


def _per_node(both: Given, devices: int) -> int:
    if both.key("devices_per_node").value is not None:
        return both.key("devices_per_node").whole()
    return min(devices, catalog.gpu(both.key("gpu").text()).devices_per_node)


def _microbatches(both: Given, devices: int, limit: int) -> float:
    """As simulated; a comparison tells tokens and seconds, of which full microbatches follow."""
    if both.key("microbatches").value is not None:
        return float(both.key("microbatches").number())
    tokens = both.key("tokens_per_second").number() * both.key("makespan_seconds").number()
    return float(math.ceil(tokens / both.key("minibatches").whole() / devices / limit))
