"""How often the printed intervals hold what they are about, and how wide they are: `make coverage`.

    python docs/studies/coverage.py [--times N] [-o docs/model/statistics.md]

Small files are drawn from distributions that are known, and asked about as anybody would: `odcsim compare` and
`odcsim rl`. What is true is asked of very large files of the same distributions. Seconds have no interval of their own
here, so that all of an interval is about which samples were drawn.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from page_table import table

import odcsim
from odcsim.decide.asking import question_by, setting_of
from odcsim.decide.comparison import Comparison, compare
from odcsim.decide.rl import Around, RolloutBatch, predict_steps
from odcsim.decide.setting import Setting
from odcsim.support.outputs import check_writable, write_text
from odcsim.timeline import Floats, Ints
from odcsim.trace import Trace

PAGE = Path(__file__).parents[1] / "model" / "statistics.md"
BEGIN, END = "<!-- begin coverage -->", "<!-- end coverage -->"
LONGEST, DEVICES, EACH = 65_536, 8, 4  # tokens of a sample; samples of a device and minibatch
LARGE = 1500  # minibatches, or prompts and more, that stand for the truth
DATASET = 10**9  # samples, of which a file is a part
ROLLOUTS, PROMPTS, STEPS = 8, 16, 20  # of a prompt; of a step; steps
PAIRS = (
    ("lb-micro", "collective"), ("native", "collective"), ("native", "on-demand"), ("lb-micro", "deferred"),
    ("lb-micro", "on-demand"), ("sorted-slice", "collective"), ("lb-mini", "on-demand"), ("lb-robust", "on-demand"),
)  # fmt: skip
ALIKE = 0.005  # a speedup that prints as 1.00
QUESTION = {"model": "qwen2.5-1.5b", "gpu": "h100", "devices": DEVICES, "max_tokens": LONGEST}
SIZES = ((640, 20), (640, 60), (3000, 20))  # samples of the file, minibatches drawn

Draw = Callable[[np.random.Generator, int], Floats]
Held = dict[str, list[tuple[bool, float]]]  # of each figure: whether the interval held the truth, and its width


def lognormal(median: float, sigma: float) -> Draw:
    return lambda rng, size: rng.lognormal(np.log(median), sigma, size)


def uniform(low: float, high: float) -> Draw:
    return lambda rng, size: rng.uniform(low, high, size)


def mixed(share: float, some: Draw, others: Draw) -> Draw:
    return lambda rng, size: np.where(rng.random(size) < share, some(rng, size), others(rng, size))


def pareto(least: float, shape: float) -> Draw:
    return lambda rng, size: least * (1 + rng.pareto(shape, size))


def groups(each: int, between: float, within: float) -> Draw:
    """So many alike, one behind the other, and nothing says so."""

    def drawn(rng: np.random.Generator, size: int) -> Floats:
        means = np.log(3000) + between * rng.standard_normal(-(-size // each))
        return np.exp(means.repeat(each)[:size] + within * rng.standard_normal(size))

    return drawn


def even_groups(each: int, within: float) -> Draw:
    """Whose means are as often long as short."""

    def drawn(rng: np.random.Generator, size: int) -> Floats:
        means = rng.uniform(500, 16_000, -(-size // each)).repeat(each)[:size]
        return means * rng.uniform(1 - within, 1 + within, size)

    return drawn


def runs(mean: float, between: float, within: float) -> Draw:
    """Alike as those of a group, of which there are now few, now many."""

    def drawn(rng: np.random.Generator, size: int) -> Floats:
        means = np.log(3000) + between * rng.standard_normal(size)
        return np.exp(means.repeat(rng.geometric(1 / mean, size))[:size] + within * rng.standard_normal(size))

    return drawn


def neighbours(near: float, spread: float) -> Draw:
    """Each as like the one before as that was like the one before it."""

    def drawn(rng: np.random.Generator, size: int) -> Floats:
        steps, logs = (1 - near**2) ** 0.5 * rng.standard_normal(size), np.zeros(size)
        last = rng.standard_normal()
        for place, step in enumerate(steps):
            logs[place] = last = near * last + step
        return np.exp(np.log(3000) + spread * logs)

    return drawn


def named(name: str) -> Draw:
    """Of a shape that ships, each sample anew."""
    trace = odcsim.load(name)
    return lambda rng, size: trace.take(rng.integers(0, trace.size, size)).astype(float)


LENGTHS: dict[str, Draw] = {
    "log-normal, sigma 0.5": lognormal(4000, 0.5),
    "log-normal, sigma 1.3": lognormal(1800, 1.3),
    "even": uniform(100, 8000),
    "all alike": uniform(4096, 4097),
    "70 % full, the rest nearly": mixed(0.7, uniform(4096, 4097), uniform(3000, 4096)),
    "8 % long, mixed with short": mixed(0.08, uniform(8000, LONGEST), lognormal(400, 0.7)),
    "2 % long": mixed(0.02, uniform(16_000, LONGEST), lognormal(600, 0.8)),
    "0.5 % long": mixed(0.005, uniform(30_000, LONGEST), lognormal(800, 0.9)),
    "two log-normals": mixed(0.25, lognormal(9000, 0.5), lognormal(500, 0.6)),
    "chats and 5 % documents": mixed(0.05, lognormal(20_000, 0.6), lognormal(700, 1.0)),
    "pareto, 1.3": pareto(300, 1.3),
    "groups of 8": groups(8, 0.9, 0.1),
    "groups of 8, half alike": groups(8, 0.5, 0.5),
    "runs of 6 on average": runs(6, 0.9, 0.2),
    "runs of like neighbours": neighbours(0.8, 0.9),
    # Of these nothing was known when intervals learnt of groups.
    "groups of 16": groups(16, 0.6, 0.3),
    "even groups of 8": even_groups(8, 0.2),
    "long runs of like neighbours": neighbours(0.9, 0.8),
    **{name: named(name) for name in ("longalign", "swe-smith", "azure-chat", "sharegpt")},
}
# Median, and standard deviations of logarithms between prompts and within one: those of 4,608 rollouts of DAPO 32B and
# of 640 of DeepCoder 14B (PolyTrace, see traces/README.md), by an analysis of variance.
GROUPED = {"rollouts as DAPO 32B's": (630, 0.20, 0.52), "rollouts as DeepCoder 14B's": (8500, 0.74, 0.21)}


def grouped(name: str, rng: np.random.Generator, prompts: int) -> Trace:
    """Rollouts beside their siblings."""
    median, between, within = GROUPED[name]
    means = np.log(median) + between * rng.standard_normal((prompts, 1))
    logs = means + within * rng.standard_normal((prompts, ROLLOUTS))
    return Trace(name, clipped(np.exp(logs).ravel()), group=np.repeat(np.arange(prompts), ROLLOUTS))


def clipped(lengths: Floats) -> Ints:
    return np.clip(np.rint(lengths), 16, LONGEST).astype(np.int64)


def certain(setting: Setting) -> Setting:
    """With seconds that have no interval."""
    return replace(setting, cost=replace(setting.cost, profile=replace(setting.cost.profile, low=1.0, high=1.0)))


def ask(trace: Trace, minibatches: int, seed: int, *, in_order: bool = False) -> Comparison:
    words = {"minibatch": EACH, "minibatches": minibatches, "seed": seed, "in_order": in_order, "epochs": 1.0}
    return compare(certain(odcsim.ask(trace, **QUESTION, **words)), among=PAIRS, doubted=False)


@dataclass(frozen=True, slots=True)
class Truth:
    """Of each row, of very many minibatches."""

    speedups: dict[tuple[str, str], float]
    seconds: dict[tuple[str, str], float]  # of a minibatch
    kurtosis: float  # of minibatches' deviations, in the middle of rows


def truth(found: Comparison) -> Truth:
    rows = {row.pair: row for row in found.rows}
    return Truth(
        {pair: row.speedup or 0.0 for pair, row in rows.items()},
        {pair: row.makespan_seconds / row.minibatches for pair, row in rows.items()},
        _kurtosis(found),
    )


def _kurtosis(found: Comparison) -> float:
    own = found.usage(*PAIRS[0]).makespan
    others = (usage.makespan for row, usage in zip(found.rows, found.usages, strict=True) if row.pair != PAIRS[0])
    off = [own / own.mean() - spans / spans.mean() for spans in others]
    return float(np.median([(of**4).mean() / (of**2).mean() ** 2 for of in off if of.std() > 1e-6] or [0.0]))


def judged(held: Held, found: Comparison, known: Truth) -> None:
    """Speedups over the reference row, and what a run takes of which the file is a small part."""
    run = found.whole_run
    assert run is not None
    for row in found.rows:
        true = known.speedups[row.pair]
        if row.pair != PAIRS[0]:
            figure = "speedup, 1.00" if abs(true - 1) < ALIKE else "speedup"
            _note(held, figure, row.speedup_low or 0.0, row.speedup_high or 0.0, true)
        whole = run.over(row)
        seconds = known.seconds[row.pair] * whole.minibatches
        _note(held, "run", whole.model_low, whole.model_high, seconds)


def _note(held: Held, figure: str, low: float, high: float, true: float) -> None:
    inside = low <= true * (1 + 1e-12) and true * (1 - 1e-12) <= high
    held.setdefault(figure, []).append((inside, (high - low) / true))


def epochs(held: Held, trace: Trace, minibatches: int, seed: int) -> None:
    """What an epoch of the file takes, of which some minibatches were simulated: in another order, all of it."""
    found, other = (ask(trace, count, of) for count, of in ((minibatches, seed), (trace.size // 32, seed + 10**6)))
    for row in found.rows:
        whole = found.whole_run.over(row)  # type: ignore[union-attr]
        seconds = truth(other).seconds[row.pair] * whole.minibatches
        _note(held, "epoch", whole.model_low, whole.model_high, seconds)


def of_lengths(name: str, size: int, minibatches: int, times: int, known: Truth) -> Held:
    held: Held = {}
    for seed in range(times):
        rng = np.random.default_rng([seed, size, minibatches])
        trace = Trace(name, clipped(LENGTHS[name](rng, size)))
        judged(held, ask(replace(trace, drawn_from=DATASET), minibatches, seed), known)
        if size > minibatches * DEVICES * EACH:
            epochs(held, trace, minibatches, seed)
    return held


def of_rollouts(name: str, size: int, minibatches: int, times: int) -> dict[str, Held]:
    """Shuffled, in order, and as steps of RL."""
    large = grouped(name, np.random.default_rng(1), LARGE * 4)
    orders = {"shuffled": False, "in order": True}
    known = {order: truth(ask(large, LARGE, 0, in_order=of)) for order, of in orders.items()}
    real = {step.row.pair: step.row.makespan_seconds for step in steps(large, LARGE // 4, 0).rows}
    held: dict[str, Held] = {order: {} for order in (*orders, "odcsim rl")}
    for seed in range(times):
        trace = grouped(name, np.random.default_rng([seed, size]), size // ROLLOUTS)
        for order, of in orders.items():
            part = replace(trace, drawn_from=DATASET)
            judged(held[order], ask(part, minibatches, seed, in_order=of), known[order])
        for row in (step.row for step in steps(trace, STEPS, seed).rows):
            _note(held["odcsim rl"], "step", row.model_low, row.model_high, real[row.pair])
    return held


def steps(trace: Trace, count: int, seed: int):  # type: ignore[no-untyped-def]
    """Steps of RL, drawn from such a pilot."""
    question = question_by({"trace": trace, "seed": seed, **QUESTION})
    batch = RolloutBatch(PROMPTS, ROLLOUTS, steps=count)
    return predict_steps(question, batch, Around(), make_setting=lambda one: certain(setting_of(one)))


FIGURES = ("speedup", "speedup, 1.00", "run", "epoch", "step")
HEAD = ("lengths", "samples", "minibatches", *(f"{figure}: held, width" for figure in FIGURES))


def line(name: str, size: int, minibatches: int, held: Held) -> list[str]:
    return [name, f"{size:,}", str(minibatches), *(_cell(held.get(figure, [])) for figure in FIGURES)]


def _cell(found: Sequence[tuple[bool, float]]) -> str:
    if not found:
        return ""
    inside, widths = zip(*found, strict=True)
    return f"{np.mean(inside):.0%}, {np.mean(widths):.3f}"


def truths() -> dict[str, Truth]:
    """Of each kind of lengths."""
    rng = np.random.default_rng
    large = {name: clipped(draw(rng(1), LARGE * DEVICES * EACH)) for name, draw in LENGTHS.items()}
    return {name: truth(ask(Trace(name, lengths), LARGE, 0)) for name, lengths in large.items()}


def tails(known: dict[str, Truth]) -> str:
    told = ", ".join(f"{name} {one.kurtosis:.1f}" for name, one in known.items() if one.kurtosis)
    middle = np.median([one.kurtosis for one in known.values() if one.kurtosis])
    return (
        f"Kurtosis of the minibatches' deviations, in the middle of rows: {told}; in the middle of these {middle:.1f}."
    )


def lines(times: int, truths: dict[str, Truth]) -> list[list[str]]:
    every = []
    for name, known in truths.items():
        for size, minibatches in SIZES:
            every.append(line(name, size, minibatches, of_lengths(name, size, minibatches, times, known)))
        print(f"{name} done", file=sys.stderr, flush=True)
    size, minibatches = SIZES[0]
    for name in GROUPED:
        for order, held in of_rollouts(name, size, minibatches, times).items():
            every.append(line(f"{name}, {order}", size, STEPS if "rl" in order else minibatches, held))
        print(f"{name} done", file=sys.stderr, flush=True)
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=40, metavar="N", help="files of each kind (40)")
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, metavar="PAGE")
    args = parser.parse_args()
    check_writable(args.page)
    known = truths()
    found = f"{table(HEAD, lines(args.times, known), figures=True)}\n\n{tails(known)}"
    before, _, rest = args.page.read_text().partition(BEGIN)
    write_text(args.page, f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}")
    print(found)


if __name__ == "__main__":
    main()
