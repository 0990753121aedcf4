"""What docs/validation.md and its appendix say of runs: errors against noise, which alternative wins, what a term is
worth."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from page_table import table

UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Case:
    """One held-out minibatch under one sync, and what came out."""

    stage: str
    lengths: str
    draw: int
    sync: str
    balancer: str
    predicted: float
    measured: tuple[float, ...]  # of each run
    steady: tuple[float, ...]  # the same with the host's drift taken out, where that is known
    idle_points: float
    furthest: str
    without: dict[str, float]  # predicted with a term of the model left out
    machine: str  # that ran it, with date and versions

    @property
    def truth(self) -> float:
        return float(np.median(self.measured))

    @property
    def error(self) -> float:
        return self.predicted / self.truth - 1

    @property
    def noise(self) -> float | None:
        """How far two runs lie apart, in the median of all pairs; of one run nobody knows."""
        gaps = [abs(a - b) for a, b in combinations(self.measured, 2)]
        return float(np.median(gaps)) / self.truth if gaps else None


def kept(path: Path) -> list[Case]:
    """What stages that ran before have left."""
    try:
        return [Case(**case) for case in json.loads(path.read_text())] if path.exists() else []
    except (TypeError, ValueError):
        raise SystemExit(f"{path}: not the cases of this version; name an empty folder, and run all stages") from None


def groups(cases: Sequence[Case], *names: str) -> dict[tuple[str, ...], list[Case]]:
    found: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        found.setdefault(tuple(getattr(case, name) for name in names), []).append(case)
    return found


def ordered(cases: Sequence[Case]) -> tuple[int, int, list[str], float]:
    """Of all pairs of alternatives for the same samples that differ by more than noise: how many, how many are
    predicted in the right order, which are not, and how far off the predicted ratio is in the median."""
    asked, right, wrong, off = 0, 0, [], []
    for (lengths,), alike in groups(cases, "lengths").items():
        every = groups(alike, "sync", "balancer")
        for one, other in combinations(every, 2):
            if len(every[one]) != len(every[other]) or len({len(c.measured) for c in every[one] + every[other]}) > 1:
                continue
            spans = [np.sum([c.measured for c in every[key]], axis=0) for key in (one, other)]
            guess = [sum(c.predicted for c in every[key]) for key in (one, other)]
            if not apart(*spans):
                continue
            if one[0] == other[0] and guess[0] == guess[1]:  # two balancers that came to one plan
                continue
            truth, told = float(np.median(spans[0]) / np.median(spans[1])), guess[0] / guess[1]
            asked += 1
            off.append(abs(told / truth - 1))
            if (truth - 1) * (told - 1) > 0:
                right += 1
            else:
                names = " against ".join(f"{sync} + {balancer}" for sync, balancer in (one, other))
                wrong.append(f"{lengths}: {names}, predicted {told:.3f}, measured {truth:.3f}")
    return asked, right, wrong, float(np.median(off)) if off else 0.0


def apart(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two alternatives differ by more than noise: every run of one is faster than every run of the other."""
    return len(one) > 1 and bool(one.max() < other.min() or other.max() < one.min())


def errors(cases: Sequence[Case]) -> list[str]:
    size, noise = np.abs([c.error for c in cases]), [c.noise for c in cases if c.noise is not None]
    idle = np.abs([c.idle_points for c in cases])
    return [
        f"{len(cases)}",
        f"{np.mean([c.error for c in cases]):+.1%}",
        f"{np.median(size):.1%}",
        f"{np.quantile(size, 0.9):.1%}",
        f"{size.max():.1%}",
        f"{np.median(noise):.1%}" if noise else UNKNOWN,
        f"{np.max(noise):.1%}" if noise else UNKNOWN,
        f"{np.median(idle):.1f}",
        f"{idle.max():.1f}",
    ]


ERRORS = ("schedules", "mean", "median", "p90", "worst", "noise median", "noise worst", "idle median", "idle worst")


def terms(cases: Sequence[Case]) -> str:
    """Median and worst error with one term left out, against the same runs."""
    stages = groups(cases, "stage", "sync")
    rows = []
    for name in ("", *cases[0].without):
        cells = []
        for of in stages.values():
            size = np.abs([(c.without[name] if name else c.predicted) / c.truth - 1 for c in of])
            cells.append(f"{np.median(size):.1%}, {size.max():.1%}")
        rows.append([f"without {name}" if name else "all terms", *cells])
    return table(("median, worst error", *(f"{stage}, {sync}" for stage, sync in stages)), rows)


def machines(cases: Sequence[Case]) -> list[str]:
    """Where and how often each stage ran: one line where that is the same for all."""
    found: dict[str, list[str]] = {}
    for (stage,), of in groups(cases, "stage").items():
        where = "; ".join(sorted({c.machine for c in of}))
        runs = " or ".join(str(n) for n in sorted({len(c.measured) for c in of}))
        counts = f"The median of {runs} runs counts as measured."
        if runs == "1":
            counts = "One run each: how much of the errors is noise is not known."
        found.setdefault(f"{where}. {counts}", []).append(stage)
    return [*found] if len(found) == 1 else [f"- {', '.join(stages)}: {told}" for told, stages in found.items()]


def results(cases: Sequence[Case]) -> str:
    """Tables of the page: errors of each stage, and which alternative wins."""
    told = machines(cases)
    told += [
        "",
        "### All schedules",
        "",
        table(("stage", *ERRORS), [[n, *errors(of)] for (n,), of in groups(cases, "stage").items()]),
    ]
    told += [
        "",
        table(("stage", "sync", *ERRORS), [[*k, *errors(of)] for k, of in groups(cases, "stage", "sync").items()]),
    ]
    told += calmed(cases)
    told += ["", "### Which alternative wins", ""]
    rows, wrong = [], []
    for (stage,), of in groups(cases, "stage").items():
        asked, right, missed, off = ordered(of)
        rows.append([stage, str(asked), str(right), f"{off:.1%}"])
        wrong += [f"- {stage}, {line}" for line in missed]
    told += [table(("stage", "pairs that differ", "in the right order", "ratio off, median"), rows), "", *wrong]
    return "\n".join(told).rstrip()


def schedules(cases: Sequence[Case]) -> str:
    """Tables of the appendix: what each term is worth, and every schedule."""
    told = ["### What each term of the model is worth", "", terms(cases), "", "### Worst first", ""]
    worst = sorted(cases, key=lambda c: -abs(c.error))[:15]
    head = (
        "stage",
        "lengths",
        "sync",
        "balancer",
        "predicted s",
        "measured s",
        "error",
        "noise",
        "idle points",
        "furthest off",
    )
    told += [table(head, [row(c) for c in worst]), "", "### Every schedule", "", table(head, [row(c) for c in cases])]
    return "\n".join(told)


def calmed(cases: Sequence[Case]) -> list[str]:
    """The errors of those stages whose runs say how the host drifted, without that."""
    known = [replace(c, measured=c.steady) for c in cases if c.steady != c.measured]
    rows = [[*key, *errors(of)] for key, of in groups(known, "stage", "sync").items()]
    rows += [[stage, "all", *errors(of)] for (stage,), of in groups(known, "stage").items()]
    return ["", "### With the host's drift taken out", "", table(("stage", "sync", *ERRORS), rows)] if known else []


def row(c: Case) -> list[str]:
    noise = UNKNOWN if c.noise is None else f"{c.noise:.1%}"
    numbers = f"{c.predicted:.3f}", f"{c.truth:.3f}", f"{c.error:+.1%}", noise, f"{c.idle_points:+.1f}"
    return [c.stage, f"{c.lengths} {c.draw}", c.sync, c.balancer, *numbers, c.furthest]
