"""The page that docs/studies/published.py writes: every published run beside what was predicted of it, worst first."""

from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING

import numpy as np
from page_table import table
from published_cells import SOURCES
from published_peaks import peaks, section

from odcsim.catalog.rates import families, figures

if TYPE_CHECKING:
    from published import Judged

GROUPS: tuple[tuple[str, Callable[["Judged"], str]], ...] = (
    ("source", lambda j: j.cell.source),
    ("GPU", lambda j: j.cell.gpu.name),
    ("parameters", lambda j: j.cell.size),
    ("sequence length", lambda j: j.cell.length),
    ("devices", lambda j: _devices(j.cell.cluster.devices)),
)


def page(found: Sequence["Judged"], day: date) -> str:
    parts = [INTRO.format(day=day.isoformat(), runs=len(found), sources=len({j.cell.source for j in found}))]
    parts += [summary(found), "", JUDGED]
    for name, key in GROUPS:
        parts += [groups(found, name, key), ""]
    parts += [COEFFICIENTS, coefficients(), "", FINDINGS, section(peaks([j.cell for j in found]))]
    parts += ["## Every run, worst first\n", EVERY, runs(found), ""]
    parts += ["## Sources\n", *(f"- {name}: <{link}>" for name, link in SOURCES.items())]
    return "\n".join(parts) + "\n"


def summary(found: Sequence["Judged"]) -> str:
    head = ("all runs", "median", "90th percentile", "worst", "bias", "inside the interval")
    own = np.array([j.shipped / j.cell.seconds - 1 for j in found])
    rows = [("source left out", *_errors([j.error for j in found]), f"{np.mean([j.inside for j in found]):.0%}")]
    rows += [("with its source in the fit", *_errors(own.tolist()), "")]
    return table(head, rows, figures=True)


def groups(found: Sequence["Judged"], name: str, key: Callable[["Judged"], str]) -> str:
    held: dict[str, list[Judged]] = {}
    for one in found:
        held.setdefault(key(one), []).append(one)
    head = (name, "runs", "median", "90th percentile", "worst", "bias", "inside the interval")
    rows = [
        (
            group,
            str(len(some)),
            *_errors([j.error for j in some]),
            f"{np.mean([j.inside for j in some]):.0%}",
        )
        for group, some in sorted(held.items(), key=lambda item: -len(item[1]))
    ]
    return table(head, rows, figures=True)


def _errors(errors: Sequence[float]) -> tuple[str, str, str, str]:
    """Of absolute values, and the signed median."""
    sizes = np.abs(errors)
    worst = max(errors, key=abs)
    return f"{np.median(sizes):.1%}", f"{np.quantile(sizes, 0.9):.1%}", f"{worst:+.1%}", f"{np.median(errors):+.1%}"


def _devices(count: int) -> str:
    return next(name for name, most in (("one", 1), ("to 8", 8), ("9 to 64", 64), ("above 64", 10**6)) if count <= most)


def coefficients() -> str:
    names = ("matmul", "narrow", "moved", "copying", "fp8", "spread")
    rows = []
    for family in families():
        known = figures(family)
        rows.append((family, *(f"{known[name][0]:g} ({known[name][1]})" for name in names)))
    return table(("family", *names), rows)


def runs(found: Sequence["Judged"]) -> str:
    head = ("source", "model", "where", "tokens", "how", "published", "predicted", "interval", "error")
    return table(head, (_run(j) for j in sorted(found, key=lambda j: -abs(j.error))))


def _run(j: "Judged") -> tuple[str, ...]:
    c = j.cell
    where = f"{c.cluster.devices} {c.gpu.name}"
    tokens = f"{c.microbatches} x {c.sequences} x {c.sequence:,}"
    interval = f"{j.low:.3g} to {j.high:.3g}{'' if j.inside else ' (missed)'}"
    times = (f"{c.seconds:.3g} s", f"{j.seconds:.3g} s", interval, f"{j.error:+.1%}")
    return (c.source, c.model.name, where, tokens, c.how, *times)


INTRO = """# The catalogue beside published runs

Written by `make published` (`python docs/studies/published.py`) on {day}; it takes a minute and needs no GPU. {runs}
runs of FSDP that others measured and published, from {sources} sources, one sequence length each. Their facts stand
in [published.csv](studies/published.csv); none of them is an experiment of this project.

Each run is predicted by the simulator with coefficients that **its own source had no part in**: they are fitted to
the other sources, starting from what is known without any step (datasheets, kernels timed alone). The interval is the
one that `compare` prints as `model_low` and `model_high`. Errors are predicted over published seconds, minus one.

## How far off
"""
JUDGED = """Left out by source: the median is within 10 %, nine in ten are within 25 %, and the 90 % interval holds
between 85 and 95 % of all runs. By what the runs differ in:
"""
COEFFICIENTS = """## What is fitted

Shares and seconds, in the words of `odcsim/catalog/estimates/rates.py`: `matmul` is the share of the best matmul
anybody measured that large matmuls reach inside a step; a matmul as narrow as `narrow` takes twice as long as its
FLOPs say; `moved` is the share of the memory's bandwidth that work reaches which only moves bytes; `copying` the
share of compute that a collective's kernels take while they run; `fp8` how many times as fast layers' matmuls are in
fp8; `spread` the standard deviation of the logarithm of what is left. Between nodes collectives reach 55 % of the
line's rate, and a ring passes a device in 2 microseconds. Attention goes by kernels timed alone
(`odcsim/catalog/rates.toml`), but for the Triton kernel of 2023 that llm-foundry ran, whose share is fitted: 38 % of
an A100's peak forward, 21 % of an H100's.
"""
FINDINGS = """## What it does not know

- **H100s differ by source more than A100s do**: sources of 2023 and 2024 reach a fifth less than those of 2025 and
  2026 on the same silicon. An H200 is fitted by itself for that reason, to two sources alone. The interval is wider
  for both.
- **The torchtitan H100s ran at 500 W.** Their memory is taken as stated; of the power, matmuls are taken to follow
  the cube root. That is an assumption, and those runs still come out too fast.
- **Where memory was almost full**, runs were slower than they had to be: 30B in 8K sequences on 8 GPUs and 70B on 64
  A100 of 40 GB are among the worst. The allocator's stalls are not modeled.
- **Very small models at short sequences** (760M at 512 and 1K tokens) have outliers in their source, in both
  directions.
- **No run covers** Blackwell, AMD, mixtures of experts, adapters, or a trainer as it comes: their rates are ratios,
  and their intervals two to three times as wide.
"""
EVERY = """`tokens` are microbatches x sequences x tokens of one sequence, of each GPU in one step; `published` and
`predicted` are seconds of that step.
"""
