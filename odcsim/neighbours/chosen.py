"""The row that somebody chose, from the JSON of `odcsim compare` or `odcsim advise`."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from odcsim import catalog
from odcsim.errors import InputError
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.recipe import fields_of
from odcsim.support.checked import Given

EXPECTED = "give what 'odcsim compare --json' or 'odcsim advise --json' printed"


def read(text: str, where: str, ways: Collection[str], number: int | None) -> ChosenRow:
    """The row of that number, from 1; else an advice's first, or a comparison's fastest that the trainer runs."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError("is no JSON", where=where, fix=EXPECTED) from None
    given = Given("", content, where)
    rows = given.key("rows").items() if isinstance(content, dict) and "inputs" in content else []
    if not rows:
        raise InputError("has no rows", where=where, fix=EXPECTED)
    if number is not None and number > len(rows):
        raise InputError(f"--row {number} of {len(rows)}", where=where, fix=f"give 1 to {len(rows)}")
    row = rows[number - 1] if number is not None else _best(rows, ways, where)
    return _chosen(given.key("inputs"), row)


def _best(rows: list[Given], ways: Collection[str], where: str) -> Given:
    """An advice has its cheapest first; of a comparison the fastest that fits."""
    if "makespan_seconds" not in rows[0].mapping():
        return rows[0]
    fitting = [r for r in rows if r.key("memory_fits").value is not False and r.key("sync").text() in ways]
    if not fitting:
        raise InputError("has no row that fits and that this trainer runs", where=where, fix="choose one with --row")
    return min(fitting, key=lambda row: float(row.key("makespan_seconds").number()))


def _chosen(inputs: Given, row: Given) -> ChosenRow:
    both = Given("", {**inputs.mapping(), **row.mapping()}, row.where)
    devices, limit = both.key("devices").whole(), both.key("max_tokens").whole()
    per_node = _per_node(both, devices)
    return ChosenRow(
        both.key("sync").text(),
        both.key("balancer").text(),
        devices,
        per_node,
        both.key("minibatch").whole(),
        limit,
        _microbatches(both, devices, limit),
        hybrid=both.key("sharding").value == "hybrid" and devices > per_node,
        **_choices(both.mapping()),
    )


def _choices(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "recompute": fields_of(row).get("recompute", "full"),
        "on_host": row.get("offload") is True,
        "rank": row["lora"] if type(row.get("lora")) is int else 0,
        "moments": str(row.get("optimizer", "fp32")),
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
