"""Remake the tables of the named traces; what each file says of its origin is written by hand and kept.

    python traces/make_tables.py [FOLDER]

FOLDER holds the recorded lengths (see README.md for where they come from); without it only the shapes are remade.
A table counts samples in bins 1 % wide, each told by the mean of what it holds; the longest sample keeps a row of its
own. So the number of samples and the longest are exact, the mean is off by rounding alone, and quantiles by 1 %.
"""

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim import Trace, load
from odcsim.reading.specs import exponential_quantiles
from odcsim.results.intervals import intraclass

HERE = Path(__file__).parent
SAMPLES = 10_000
RECORDED = {
    "azure-chat": "azure_2023_conversation.csv",
    "dapo-rl": "rl_dapo32b_rollouts.csv",
    "deepcoder-rl": "rl_deepcoder14b_rollouts.csv",
    "lmsys-chat": "lmsys_first_turn.csv",
    "mooncake": "mooncake_conversation.csv",
    "sharegpt": "sharegpt_first_turn.csv",
}


def binned(lengths: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Lengths and counts, shortest first."""
    bins = np.floor(np.log(lengths) / np.log(1.01)).astype(np.int64)
    bins[lengths == lengths.max()] += 1  # the longest sample alone decides a microbatch's limit: never averaged
    _, row, counts = np.unique(bins, return_inverse=True, return_counts=True)
    means = np.rint(np.bincount(row, weights=lengths) / counts)
    return means.astype(int).tolist(), counts.tolist()


def longalign() -> NDArray[np.float64]:
    return exponential_quantiles(_spread(), 16_500, 5_500, 65_536)


def swe_smith() -> NDArray[np.float64]:
    """Median 29.2K and mean 34.7K fix a lognormal: the mean is the median times exp(sigma^2 / 2)."""
    return _lognormal(29_200, np.sqrt(2 * np.log(34_700 / 29_200)), 65_536)


def aime_rl() -> NDArray[np.float64]:
    """Cut at 16,384 with the spread of deepcoder-rl; the median is what makes the mean 9,000 after the cut."""
    from scipy.optimize import brentq

    median = brentq(lambda m: _lognormal(m, 0.77, 16_384).mean() - 9_000, 1_000, 16_000)
    return _lognormal(median, 0.77, 16_384)


def _lognormal(median: float, sigma: float, most: float) -> NDArray[np.float64]:
    from scipy.special import ndtri

    return np.minimum(median * np.exp(sigma * ndtri(_spread())), most)


def _spread() -> NDArray[np.float64]:
    return (np.arange(SAMPLES) + 0.5) / SAMPLES


def groups(trace: Trace) -> dict[str, float]:
    """How many samples a prompt has, and how alike their lengths are: a table does not keep which they are."""
    if (prompts := trace.prompts) is None:
        return {}
    likeness = intraclass(trace.lengths.astype(np.float64), prompts)
    return {"siblings": len(prompts) // (int(prompts.max()) + 1), "alike": round(likeness, 3)}


def rewrite(name: str, lengths: NDArray[np.int64], more: dict[str, float] | None = None) -> None:
    path = HERE / f"{name}.json"
    told = {k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if k not in ("length", "count")}
    told |= more or {}
    length, count = binned(lengths)
    table = f',\n  "length": {json.dumps(length)},\n  "count": {json.dumps(count)}\n}}\n'
    path.write_text(json.dumps(told, indent=2, ensure_ascii=False).removesuffix("\n}") + table, encoding="utf-8")


def main(argv: list[str]) -> None:
    for name, shape in (("longalign", longalign), ("swe-smith", swe_smith), ("aime-rl", aime_rl)):
        rewrite(name, np.rint(shape()).astype(np.int64))
    for name, file in RECORDED.items() if argv else ():
        trace = load(Path(argv[0]) / file)
        rewrite(name, trace.lengths, groups(trace))


if __name__ == "__main__":
    main(sys.argv[1:])
