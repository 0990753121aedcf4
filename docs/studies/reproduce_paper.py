"""Simulate the settings of published runs and put ours beside every published figure that we know: docs/paper.md, and
setting by setting docs/paper-cells.md.

    python docs/studies/reproduce_paper.py [--draws 200] [-o docs/paper.md]

Settings and published figures, each with its source, stand in docs/paper.toml. Nothing is fitted to them but what is
said to be (paper_costs.py), which is judged on cells left out.
"""

import argparse
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import paper_costs
import paper_page

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.decide.asking import ask
from odcsim.decide.setting import Setting, plan
from odcsim.executors.simulation import carried, usage
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
GOLDEN = ("golden setting", "nothing to balance")
ON_DEMAND = (("lb-micro", "on-demand"), ("lb-mini", "on-demand"))
SHORTER, SHORT_MINIBATCH = (32768, 16384, 8192, 4096), 4  # tokens of the longest sample


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
    cost: float = 0.0  # seconds that on-demand takes more in every minibatch
    sharding: str = "full"
    longest: int = 0  # tokens that the trace is shrunk to, all lengths alike; 0: as it is

    @property
    def nodes(self) -> int:
        return -(-self.devices // catalog.gpu(self.gpu).devices_per_node)


@dataclass(frozen=True, slots=True)
class Cell:
    """A published figure and ours."""

    name: str
    place: Place | None  # None: the largest of a group
    held: tuple[str, str]  # (balancer, sync) that ours is of
    pair: str  # and in words what was published
    kind: str  # speedup, gain over lb-micro under the same sync, idle or seconds
    published: float
    ours: float
    source: str
    stated: bool = False  # in words, for many settings at once

    @property
    def off(self) -> float:
        return self.ours / self.published - 1

    @property
    def points(self) -> float:
        """Hundredths: of a speedup, or of idle."""
        return 100 * (self.ours - self.published)

    @property
    def right(self) -> bool:
        """Whether both say that it gains, that it loses, or that it does neither."""
        return way(self.ours) == way(self.published)


NOTHING = 0.005  # of a ratio


def way(ratio: float) -> int:
    """Whether it gains, loses, or does neither by half a hundredth."""
    return (ratio > 1 + NOTHING) - (ratio < 1 - NOTHING)


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
class Hybrid:
    """How many times as fast on-demand is under hybrid sharding as under full."""

    place: Place
    times: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Paper:
    cells: tuple[Cell, ...]
    lines: tuple[Line, ...]
    variants: tuple[Variant, ...]
    sources: Mapping[str, Mapping[str, str]]
    draws: int
    charged: tuple[paper_costs.Charged, ...] = ()
    hybrids: tuple[Hybrid, ...] = ()
    unhidden: Mapping[str, float] = field(default_factory=dict)  # seconds of all gradients at once, by what they cross


def read(path: Path = DOCS / "paper.toml") -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def lengths(place: Place) -> Trace:
    """The trace without the samples over the limit, which a loader drops."""
    trace = load(place.trace)
    if place.longest:
        shrunk = np.maximum(1, np.rint(trace.lengths * (place.longest / trace.longest))).astype(np.int64)
        return Trace(trace.name, shrunk, counts=trace.counts)
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
        on_demand_cost=place.cost,
        sharding=place.sharding,
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
    rows, makespans = [], []
    for balancer, sync in PAIRS:
        schedules, cost = plans[balancer].schedules, asked.cost.by(sync=sync)
        used = usage(schedules, cost)
        rows.append(summary.row(cost, balancer, used, carried(schedules)))
        makespans.append(used.makespan)
    return {row.pair: row for row in summary.compared(rows, makespans, apart(draws))}


def figure(row: summary.Row, kind: str) -> float:
    if kind == "seconds":
        return row.makespan_seconds / row.minibatches
    value = row.idle if kind == "idle" else row.speedup
    assert value is not None
    return value


def cell(entry: Mapping[str, Any], place: Place, draws: int, stated: bool = False) -> Cell:
    held = (entry.get("held", entry["balancer"]), entry["sync"])
    text = f"{entry['sync']} + {entry['balancer']}{f' (ours: {held[0]})' if 'held' in entry else ''}"
    rows = simulated(place, draws)
    if entry["kind"] == "gain":
        ours = figure(rows[held], "speedup") / figure(rows["lb-micro", entry["sync"]], "speedup")
    else:
        ours = figure(rows[held], entry["kind"])
    return Cell(entry["name"], place, held, text, entry["kind"], entry["published"], ours, entry["source"], stated)


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
        best = "best balancer" if len(entry["balancers"]) > 1 else entry["balancers"][0]
        held = (entry["balancers"][0], "on-demand")
        yield Cell(where, None, held, f"on-demand, {best}", "speedup", entry["published"], ours[0], entry["source"])


def variants(content: Mapping[str, Any], draws: int) -> Iterator[Variant]:
    """What one input alone makes of the figures of the paper's own A100 settings."""
    golden = [entry for entry in content["cells"] if entry["name"] in GOLDEN]
    for variant in content["variants"]:
        changes = {name: value for name, value in variant.items() if name != "name"}
        yield Variant(variant["name"], tuple(cell(e, place_of(e, **changes), draws) for e in golden))


def seconds(place: Place, draws: int) -> dict[tuple[str, str], float]:
    """Of a minibatch, by (balancer, sync)."""
    return {pair: figure(row, "seconds") for pair, row in simulated(place, draws).items()}


def hybrids(content: Mapping[str, Any], draws: int) -> Iterator[Hybrid]:
    """Of every setting on several nodes, and of shorter samples than the paper tells of."""
    settings = [place for group in content["groups"] for place in places(group) if place.nodes > 1]
    models = {(place.model, place.devices) for place in settings}
    short = [
        Place("longalign", model, devices, SHORT_MINIBATCH, longest, longest=longest)
        for model, devices in sorted(models)
        for longest in SHORTER
    ]
    for place in (*settings, *short):
        full, hybrid = (seconds(replace(place, sharding=sharding), draws) for sharding in ("full", "hybrid"))
        yield Hybrid(place, {pair: full[pair] / hybrid[pair] for pair in full if pair in ON_DEMAND})


def unhidden(content: Mapping[str, Any], draws: int) -> dict[str, float]:
    """What the port's source moves once per minibatch, with nothing beside it: all gradients in fp32."""
    found = {}
    for name in ("port, one node", "port, two nodes"):
        entry = next(e for e in content["cells"] if e["name"] == name)
        cost = setting(place_of(entry), draws).cost.by(reshard=False)
        taken = cost.transfers(one_sided=True)
        found[name] = cost.model.layers * taken["push layer"] + taken["push root"]
    return found


def reproduce(content: Mapping[str, Any], draws: int, advance: Callable[[], None] = lambda: None) -> Paper:
    found = tuple(lines(content, draws, advance))
    point = [cell(entry, place_of(entry), draws) for entry in content["cells"]]
    cells = (*point, *largest(content, found), *stated(content, draws))
    costs = paper_costs.charged(
        point, lambda place: seconds(place, draws), lambda place, cost: seconds(replace(place, cost=cost), draws)
    )
    return Paper(
        cells,
        found,
        tuple(variants(content, draws)),
        content["sources"],
        draws,
        tuple(costs),
        tuple(hybrids(content, draws)),
        unhidden(content, draws),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--draws", type=int, help="minibatches of each setting; default: as paper.toml says")
    parser.add_argument("-o", dest="output", default=str(DOCS / "paper.md"))
    args = parser.parse_args()
    content = read()
    count = sum(len(list(places(group))) for group in content["groups"])
    with progress("simulating", count) as advance:
        paper = reproduce(content, args.draws or content["draws"], advance)
    page = Path(args.output)
    page.write_text(paper_page.page(paper, date.today()), encoding="utf-8")
    cells = page.with_name(f"{page.stem}-cells{page.suffix}")
    cells.write_text(paper_page.settings(paper, date.today()), encoding="utf-8")
    print(paper_page.summary_lines(paper.cells))


if __name__ == "__main__":
    main()
