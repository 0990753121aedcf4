"""Simulate the settings of published runs and put ours beside every published figure that we know.

    python docs/studies/reproduce_paper.py [--draws 200] [-o docs/paper.md]

Settings and published figures, each with its source, stand in docs/paper.toml. Nothing is fitted to them.
"""

import argparse
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import paper_page

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.decide.asking import ask
from odcsim.decide.evaluate import measure
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import Simulation
from odcsim.reading import load
from odcsim.results import summary
from odcsim.results.intervals import apart
from odcsim.support.progress import progress
from odcsim.trace import Trace

DOCS = Path(__file__).parents[1]
REFERENCE = summary.REFERENCE
PAIRS = (
    REFERENCE,
    ("sorted-slice", "collective"),
    ("local-sort", "on-demand"),
    ("lb-micro", "on-demand"),
    ("lb-mini", "on-demand"),
)
SLOWDOWNS = (3.0, 4.0)  # ends of what the paper measured between nodes


@dataclass(frozen=True, slots=True)
class Place:
    """What a figure is about, apart from who is compared."""

    trace: str
    model: str
    devices: int
    minibatch: int
    max_tokens: int
    gpu: str = "a100"
    slowdown: float = 0.0  # how many times a collective's a one-sided transfer takes; 0: as the cluster says
    overhead: float | None = None  # the fit's constant; None: as published
    catalog: bool = False  # the catalogue's seconds even where a fit ships

    @property
    def nodes(self) -> int:
        return -(-self.devices // catalog.gpu(self.gpu).devices_per_node)


@dataclass(frozen=True, slots=True)
class Cell:
    """A published figure and ours."""

    name: str
    place: Place | None  # None: the largest of a group
    pair: str
    kind: str  # speedup, idle or seconds
    published: float
    ours: float
    source: str
    stated: bool = False  # in words, for many settings at once

    @property
    def off(self) -> float:
        return self.ours / self.published - 1


@dataclass(frozen=True, slots=True)
class Line:
    """Ours for one setting, by (balancer, sync); speedups as (slowest, likely, fastest) network between nodes."""

    group: str
    place: Place
    rows: Mapping[tuple[str, str], summary.Row]
    ends: tuple[Mapping[tuple[str, str], summary.Row], ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """The golden cells with one input changed."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Paper:
    cells: tuple[Cell, ...]
    lines: tuple[Line, ...]
    variants: tuple[Variant, ...]
    sources: Mapping[str, Mapping[str, str]]
    draws: int


def read(path: Path = DOCS / "paper.toml") -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def lengths(place: Place) -> Trace:
    """The trace without the samples over the limit, which a loader drops."""
    trace = load(place.trace)
    keep = trace.lengths <= (place.max_tokens or trace.longest)
    if keep.all():
        return trace
    counts = None if trace.counts is None else trace.counts[keep]
    return Trace(trace.name, trace.lengths[keep], counts=counts)


def setting(place: Place, draws: int) -> Setting:
    found = ask(
        lengths(place),
        place.model,
        gpu=place.gpu,
        devices=place.devices,
        minibatch=place.minibatch,
        max_tokens=place.max_tokens,
        minibatches=draws,
    )
    seconds, cluster = found.cost.profile, found.cost.cluster
    if place.catalog:
        seconds = fits.estimate(found.cost.model, catalog.gpu(place.gpu), place.devices)
    if place.overhead is not None:
        seconds = replace(seconds, microbatch=place.overhead, fewest=0)
    if place.slowdown:
        # A one-sided transfer takes as long as its card: so the collective is the one that reaches more or less.
        share = place.slowdown / cluster.devices_per_node
        cluster = replace(cluster, one_sided_slowdown=place.slowdown, nic_share=share)
    return replace(found, cost=replace(found.cost, profile=seconds, cluster=cluster))


@cache
def simulated(place: Place, draws: int) -> dict[tuple[str, str], summary.Row]:
    """Every pair on the same minibatches."""
    asked = setting(place, draws)
    plans = {balancer: plan(asked, balancer) for balancer in dict(PAIRS)}
    found = [measure(plans[balancer], Simulation(asked.cost, sync, "analytic")) for balancer, sync in PAIRS]
    profile = asked.cost.profile
    rows = [summary.row(m, profile.low, profile.high, None) for m in found]
    compared = summary.compared(rows, [m.usage.makespan for m in found], apart(draws))
    return {(r.balancer, r.sync): r for r in compared}


def figure(row: summary.Row, kind: str) -> float:
    if kind == "seconds":
        return row.makespan_seconds / row.minibatches
    value = row.idle if kind == "idle" else row.speedup
    assert value is not None
    return value


def cell(entry: Mapping[str, Any], place: Place, draws: int, stated: bool = False) -> Cell:
    pair = (entry["balancer"], entry["sync"])
    ours = figure(simulated(place, draws)[pair], entry["kind"])
    text = f"{pair[1]} + {pair[0]}"
    return Cell(entry["name"], place, text, entry["kind"], entry["published"], ours, entry["source"], stated)


def place_of(entry: Mapping[str, Any], **changes: Any) -> Place:
    names = ("trace", "model", "devices", "minibatch", "max_tokens", "gpu")
    return Place(**{**{name: entry[name] for name in names if name in entry}, **changes})


def places(group: Mapping[str, Any]) -> Iterator[Place]:
    for trace in group["traces"]:
        for model, devices in group["models"].items():
            for size in group["minibatches"]:
                yield Place(trace, model, devices, size, group["max_tokens"])


def lines(content: Mapping[str, Any], draws: int, advance: Callable[[], None]) -> Iterator[Line]:
    for group in content["groups"]:
        for place in places(group):
            between = SLOWDOWNS if place.nodes > 1 else ()
            ends = tuple(simulated(replace(place, slowdown=s), draws) for s in between)
            yield Line(group["name"], place, simulated(place, draws), ends)
            advance()


def stated(content: Mapping[str, Any], draws: int) -> Iterator[Cell]:
    groups = {group["name"]: group for group in content["groups"]}
    for entry in content["stated"]:
        for place in places(groups[entry["group"]]):
            if place.minibatch == entry["minibatch"]:
                yield cell(entry, place, draws, stated=True)


def largest(content: Mapping[str, Any], found: Sequence[Line]) -> Iterator[Cell]:
    """'Up to' so many percent: over all settings of a group."""
    for entry in content["largest"]:
        ours = max(
            (
                figure(line.rows[balancer, "on-demand"], "speedup"),
                line.place.model,
                line.place.trace,
                line.place.minibatch,
            )
            for line in found
            if line.group == entry["group"]
            for balancer in entry["balancers"]
        )
        where = f"largest of {entry['group']}; ours: {ours[1]}, {ours[2]}, minibatch {ours[3]}"
        yield Cell(where, None, "on-demand, best balancer", "speedup", entry["published"], ours[0], entry["source"])


def variants(content: Mapping[str, Any], draws: int) -> Iterator[Variant]:
    """What one input alone makes of the figures of the paper's own A100 settings."""
    golden = [entry for entry in content["cells"] if "gpu" not in entry]
    for variant in content["variants"]:
        changes = {name: value for name, value in variant.items() if name != "name"}
        yield Variant(variant["name"], tuple(cell(e, place_of(e, **changes), draws) for e in golden))


def reproduce(content: Mapping[str, Any], draws: int, advance: Callable[[], None] = lambda: None) -> Paper:
    found = tuple(lines(content, draws, advance))
    point = [cell(entry, place_of(entry), draws) for entry in content["cells"]]
    cells = (*point, *largest(content, found), *stated(content, draws))
    return Paper(cells, found, tuple(variants(content, draws)), content["sources"], draws)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, help="minibatches of each setting; default: as paper.toml says")
    parser.add_argument("-o", dest="output", default=str(DOCS / "paper.md"))
    args = parser.parse_args()
    content = read()
    count = sum(len(list(places(group))) for group in content["groups"])
    with progress("simulating", count) as advance:
        paper = reproduce(content, args.draws or content["draws"], advance)
    Path(args.output).write_text(paper_page.page(paper, date.today()), encoding="utf-8")
    print(paper_page.summary_lines(paper.cells))


if __name__ == "__main__":
    main()
