"""Published runs of uneven lengths beside ours, as docs/uneven.md: strategies by ratio.

    python docs/studies/uneven.py [--draws 40] [-o docs/uneven.md]

Published figures, sources and GPUs that the catalogue lacks stand in docs/uneven.toml; docs/paper.toml has those of
ODC and its port, which reproduce_paper.py simulates. Nothing is fitted to them.
"""

import argparse
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import reproduce_paper
import uneven_page
import uneven_rules as rules

from odcsim import catalog
from odcsim.catalog import fits
from odcsim.cluster import GPU, cluster_of
from odcsim.cost import Cost
from odcsim.executors.simulation import usage
from odcsim.recipe import Recipe
from odcsim.support.outputs import write_text
from odcsim.support.progress import progress

DOCS = Path(__file__).parents[1]
UNITS = {
    "peak_tflops": ("peak_flops", 1e12),
    "memory_gb": ("memory_bytes", 1e9),
    "memory_tb_s": ("memory_bandwidth", 1e12),
}
PLAIN = {"stack": "plain", "loss": "whole"}
ALIKE = {"as alike as DAPO's (0.18)": 0.18, "half alike (0.5)": 0.5, "as alike as DeepCoder's (0.93)": 0.93}
PROMPT = 117  # tokens of a prompt of UniRL's
Steps = list[rules.Step]


@dataclass(frozen=True, slots=True)
class Figures:
    """Two strategies on the same samples, in the run's unit."""

    reference: float
    strategy: float
    unit: str

    @property
    def ratio(self) -> float:
        """How many times as fast the strategy is."""
        more = self.strategy / self.reference
        return more if self.unit == "tokens/s" else 1 / more


@dataclass(frozen=True, slots=True)
class Cell:
    """A published pair of strategies, and ours."""

    run: str
    against: str
    strategy: str
    published: Figures
    ours: Figures
    source: str
    other: bool  # under another assumption than the likeliest

    @property
    def points(self) -> float:
        return 100 * (self.ours.ratio - self.published.ratio)

    @property
    def sign(self) -> bool:
        """Whether both say that it gains, that it loses, or that it does neither."""
        return reproduce_paper.way(self.published.ratio) == reproduce_paper.way(self.ours.ratio)


@dataclass(frozen=True, slots=True)
class Way:
    """A strategy as steps, what it is held against, and the work of either: true tokens, or steps."""

    name: str
    reference: Steps
    steps: Steps
    work: float


@dataclass(frozen=True, slots=True)
class Run:
    """One published run: what it costs, and its strategies."""

    name: str
    cost: Cost
    ways: Callable[[np.random.Generator], Iterator[Way]]


@cache
def read(path: Path = DOCS / "uneven.toml") -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def gpu(name: str) -> GPU:
    """Of the catalogue, or of the page's own; what somebody measured of its kin is what they reach of the datasheet."""
    own = read()["gpus"].get(name)
    if own is None:
        return catalog.gpu(name)
    kin = catalog.gpu(own["like"])
    found = replace(kin, name=name, **{field: own[key] * unit for key, (field, unit) in UNITS.items()})
    return replace(found, matmul_flops=kin.matmul_flops / kin.peak_flops * found.peak_flops)


def cost(model: str, card: str, devices: int, *, whole: bool = False, **choices: Any) -> Cost:
    """`whole`: every device holds all, as under DDP, and what it sends once a step is hidden by the last backward."""
    shape, hardware, recipe = catalog.model(model), gpu(card), Recipe(sharding="full").by(**choices)
    cluster = cluster_of(hardware, devices)
    profile = fits.estimate(shape, hardware, 1 if whole else devices, recipe)
    if whole:
        cluster = replace(cluster, link_bandwidth=math.inf, latency=0.0, hop=0.0)
    return Cost(shape, profile, cluster, recipe)


def of_transformers(rng: np.random.Generator) -> Iterator[Way]:
    """1,600 samples once, 8 in a batch on each of two devices, two batches to a step."""
    lengths = np.clip(rng.lognormal(5.0, 1.0, 1600), 16, 1024).astype(np.int64)
    random = [rules.padded(step) for step in rules.in_turn(lengths, 2, 8, 2)]
    grouped = [rules.padded(step) for step in rules.in_turn(rules.grouped(lengths, 16), 2, 8, 2)]
    yield Way("group_by_length", random, grouped, float(lengths.sum()))
    parts = [rules.padded(rules.rebalanced(part, 2, 2)) for part in lengths.reshape(-1, 32)]
    yield Way("batch_rebalance", random, parts, float(lengths.sum()))
    yield Way("batch_rebalance beside it", grouped, parts, float(lengths.sum()))


def of_unirl(rng: np.random.Generator) -> Iterator[Way]:
    """64 prompts of 8 answers on 16 devices, four updates of a step; what answers of a prompt share is assumed."""
    common, own = rng.standard_normal((64, 1)), rng.standard_normal((64, 8))
    for words, share in ALIKE.items():
        logs = math.log(1000) - 0.9**2 / 2 + 0.9 * (math.sqrt(share) * common + math.sqrt(1 - share) * own)
        answers = np.clip(np.exp(logs), 16, 8192).astype(np.int64).ravel()
        as_come, balanced = (_updates(answers, places) for places in _dealt(answers))
        yield Way(f"balanced, siblings {words}", as_come, balanced, 1.0)


def _dealt(answers: rules.Ints) -> tuple[list[list[int]], list[list[int]]]:
    """Places of answers by device: as they come, and balanced."""
    return np.arange(512).reshape(16, 32).tolist(), rules.longest_first(answers, 16)


def spreads(draws: int) -> dict[str, float]:
    """Tokens of the fullest device of UniRL's step less those of the emptiest, over the mean; by how they are dealt."""
    found = []
    for draw in range(draws):
        way = next(of_unirl(np.random.default_rng(draw)))
        found.append([_spread(steps) for steps in (way.reference, way.steps)])
    as_come, balanced = np.mean(found, axis=0)
    return {"as_come": float(as_come), "balanced": float(balanced)}


def _spread(steps: Steps) -> float:
    """Prompts left out."""
    tokens = np.array([[sum(row - PROMPT for part in device for row in part) for device in step] for step in steps])
    return float(np.ptp(tokens.sum(axis=0)) / tokens.sum(axis=0).mean())


def _updates(answers: rules.Ints, places: list[list[int]]) -> Steps:
    """Four updates of each device's samples in their order. In each as many microbatches on all devices as the one
    needs that has most, by 10,240 tokens of answers, sorted by length."""
    steps = []
    for update in range(4):
        shares = [np.sort(answers[of[8 * update : 8 * update + 8]])[::-1].tolist() for of in places]
        count = max(len(rules.within(share, 10_240)) for share in shares)
        parts = [rules.in_parts(share, count) for share in shares]
        steps.append([[[length + PROMPT for length in rows] for rows in device] for device in parts])
    return steps


def of_trl(rng: np.random.Generator) -> Iterator[Way]:
    """One device: four microbatches of a step, of samples as they come in blocks of one prompt's eight."""
    answers = np.where(rng.random(1024) < 0.1, 4096, np.clip(rng.lognormal(math.log(700), 0.9, 1024), 16, 4096))
    prompts = np.clip(rng.lognormal(math.log(256), 0.5, 128), 64, 1024)
    lengths = (answers + np.repeat(prompts, 8)).astype(np.int64)
    plain = {each: rules.in_turn(lengths, 1, each, 4) for each in (4, 8)}
    wide = {each: [rules.padded(step) for step in steps] for each, steps in plain.items()}
    rows = {budget: rules.within(lengths.tolist(), budget) for budget in (4096, 8192, 16_384)}
    made = {"padded, 8": wide[8]} | {f"without padding, {each}": steps for each, steps in plain.items()}
    made |= {f"rows of {budget:,}": [[of[i : i + 4]] for i in range(0, len(of), 4)] for budget, of in rows.items()}
    for name, steps in made.items():
        yield Way(name, wide[4], steps, float(lengths.sum()))


def of_skyrl(rng: np.random.Generator) -> Iterator[Way]:
    """256 samples of a step on four devices: eight microbatches of eight, or rows of 32,768."""
    drawn = rng.lognormal(math.log(360) - 1.1**2 / 2, 1.1, 256)  # cut to 4,096 it has the mean that was run: 341
    lengths = np.clip(drawn, 16, 4096).astype(np.int64)
    (counted,) = rules.in_turn(lengths, 4, 8, 8)
    rows = rules.first_fit(lengths, 32_768)
    if missing := -len(rows) % 4:
        rows += rules.in_parts(rows.pop(), 1 + missing)
    packed = [[rows[device::4] for device in range(4)]]
    least = {"as long as their microbatch's longest": 0, "as long as their step's longest": int(lengths.max())}
    for words, tokens in (least | {"of 4,096": 4096}).items():
        yield Way(f"packed, against rows {words}", [rules.padded(counted, tokens)], packed, 1.0)


def runs() -> list[Run]:
    ddp = {"sync": "deferred", "reshard": False, "whole": True}
    cards = {"transformers": "rtx-5090", "transformers, the card like a B200": "rtx-5090-by-name"}
    trainer = ddp | PLAIN | {"optimizer": "pure"}
    return [
        *(Run(name, cost("qwen2.5-0.5b", card, 2, **trainer), of_transformers) for name, card in cards.items()),
        Run("UniRL", cost("qwen3-4b", "h20", 16, sync="collective", **PLAIN), of_unirl),
        Run("TRL", cost("qwen3-1.7b", "h100", 1, **ddp, **PLAIN, attention="fa3"), of_trl),
        Run("SkyRL", cost("qwen2.5-0.5b", "h100", 4, **ddp, recompute="none"), of_skyrl),
    ]


def seconds(steps: Steps, how: Cost) -> float:
    every = [rules.schedule(step) for step in steps]
    return float(usage(every, how).makespan.sum())


def figures(run: Run, unit: str, draws: int) -> dict[str, Figures]:
    """Each strategy beside what it is held against, over all draws."""
    sums: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for draw in range(draws):
        for way in run.ways(np.random.default_rng(draw)):
            spent = [seconds(way.reference, run.cost), seconds(way.steps, run.cost), way.work]
            sums[way.name] = sums.get(way.name, np.zeros(3)) + np.array(spent)
    slow_fast = {name: (of[:2], of[2]) for name, of in sums.items()}
    per = {name: work / spent if unit == "tokens/s" else spent / work for name, (spent, work) in slow_fast.items()}
    return {name: Figures(float(slow), float(fast), unit) for name, (slow, fast) in per.items()}


def cells(content: Mapping[str, Any], draws: int, advance: Callable[[], None] = lambda: None) -> list[Cell]:
    about = {of["name"]: of for of in content["runs"]}
    found = {}
    for run in runs():
        found[run.name] = figures(run, about[run.name]["unit"], draws)
        advance()
    return [_cell(entry, about[entry["run"]], found[entry["run"]]) for entry in content["cells"]]


def _cell(entry: Mapping[str, Any], run: Mapping[str, Any], ours: Mapping[str, Figures]) -> Cell:
    published = Figures(entry.get("reference", run["figure"]), entry["figure"], run["unit"])
    against, other, strategy = entry.get("against", run["reference"]), entry.get("other", False), entry["strategy"]
    return Cell(run["name"], against, strategy, published, ours[strategy], entry["source"], other)


def papers(advance: Callable[[], None] = lambda: None) -> list[reproduce_paper.Cell]:
    """Every cell of docs/paper.toml."""
    content, made = reproduce_paper.read(), []
    for entry in content["cells"]:
        made.append(reproduce_paper.cell(entry, reproduce_paper.place_of(entry), content["draws"]))
        advance()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, help="default: as uneven.toml says")
    parser.add_argument("-o", dest="output", default=str(DOCS / "uneven.md"))
    args = parser.parse_args()
    content = read()
    draws = args.draws or content["draws"]
    with progress("simulating", len(runs()) + len(reproduce_paper.read()["cells"])) as advance:
        found, others = cells(content, draws, advance), papers(advance)
    write_text(
        Path(args.output), uneven_page.page(found, others, spreads(draws), content["sources"], draws, date.today())
    )
    print(uneven_page.cells_table(found))


if __name__ == "__main__":
    main()
