"""Whoever asks about lengths that come in groups is told so, and has an interval over groups: by a column, by the order
of the file, and of what is dealt together."""

from dataclasses import replace

import numpy as np
import pytest

import odcsim
from odcsim.decide.comparison import compare
from odcsim.trace import Trace

PAIRS = ("lb-micro", "collective"), ("lb-micro", "on-demand"), ("lb-mini", "on-demand")
GROUPS = "Lengths come in groups of 8 alike: the interval counts whole groups."
RUNS = "Lengths come in runs of about 8 alike, found in the order of the file: the interval counts whole runs."


def lengths(seed: int = 1, groups: int = 160) -> np.ndarray:
    rng = np.random.default_rng(seed)
    means = rng.lognormal(8, 0.8, groups)
    return np.clip(np.repeat(means, 8) * rng.lognormal(0, 0.1, 8 * groups), 16, 32_768).astype(np.int64)


def asked(trace: Trace, **words):
    setting = odcsim.ask(
        trace, "qwen2.5-1.5b", gpu="h100", devices=8, minibatch=4, minibatches=40, max_tokens=32_768, **words
    )
    found = compare(setting, among=PAIRS, doubted=False)
    row = found.row("lb-mini", "on-demand")
    return row.speedup_high - row.speedup_low, [words for words in found.sentences() if "alike" in words]


FILE = Trace("file", lengths())
COLUMN = replace(FILE, group=np.repeat(np.arange(160), 8))
HALVES = np.repeat(np.arange(FILE.size), 2)
PACKED = Trace("packed", FILE.lengths[HALVES] // 2, bundle=HALVES, unit="row")
SHUFFLE = np.random.default_rng(1).permutation(FILE.size)
SHUFFLED = Trace("shuffled", FILE.lengths[SHUFFLE])


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (FILE, [RUNS]),
        (COLUMN, [GROUPS]),
        (Trace("both", SHUFFLED.lengths, group=COLUMN.group[SHUFFLE]), [GROUPS]),
        (PACKED, [RUNS]),
        (SHUFFLED, []),
        (Trace("table", *np.unique(FILE.lengths, return_counts=True)), []),
        (Trace("unlike", np.random.default_rng(2).lognormal(7, 0.8, 1280).astype(np.int64)), []),
    ],
    ids=lambda value: value.name if isinstance(value, Trace) else "",
)
def test_groups_are_told_where_a_column_or_the_order_says_them(trace, words):
    assert asked(trace)[1] == words


def test_intervals_are_wider_by_groups_however_they_are_known():
    alone = asked(SHUFFLED)[0]
    by_order, by_column = asked(FILE)[0], asked(COLUMN)[0]
    assert by_order > 1.8 * alone
    assert by_column == pytest.approx(by_order, rel=0.25)


def test_of_all_there_is_groups_leave_nothing_open():
    assert asked(FILE, whole=True)[1] == []
    assert asked(FILE, whole=True)[0] == pytest.approx(asked(SHUFFLED, whole=True)[0], rel=0.5)


def test_a_run_is_as_uncertain_as_its_prompts():
    """`advise`, `compare --epochs` and `rl` tell a run's seconds of a dataset that the file is a part of."""
    widths = []
    for trace in (FILE, SHUFFLED):
        setting = odcsim.ask(
            replace(trace, drawn_from=10**9), "qwen2.5-1.5b", gpu="h100", devices=8, minibatch=4, minibatches=40,
            max_tokens=32_768, epochs=1.0,
        )  # fmt: skip
        profile = replace(setting.cost.profile, low=1.0, high=1.0)
        found = compare(replace(setting, cost=replace(setting.cost, profile=profile)), among=PAIRS, doubted=False)
        row = found.whole_run.over(found.row("lb-mini", "on-demand"))
        widths.append((row.model_high - row.model_low) / row.makespan_seconds)
    assert widths[0] > 1.8 * widths[1]


def test_steps_of_rl_without_prompts_count_runs():
    """No column: samples are drawn singly, and those beside each other in the file are as alike as ever."""
    widths = []
    for trace in (FILE, SHUFFLED):
        found = odcsim.rl(trace, "qwen2.5-1.5b", gpu="h100", devices=8, prompts=8, rollouts=8, steps=10)
        low, high = found.rows[0].between
        widths.append(high - low)
    assert widths[0] > 1.1 * widths[1]


def test_a_named_table_says_its_groups():
    """Of 640 rollouts, 8 of each prompt: by resampling prompts its lead is known within .028, and not within .017."""
    words = {"gpu": "a100", "devices": 16, "minibatch": 4, "max_tokens": 20_480, "minibatches": 60}
    table = odcsim.load("deepcoder-rl")
    known, unknown = (
        compare(odcsim.ask(trace, "qwen2.5-14b", sharding="hybrid", **words), among=PAIRS, doubted=False)
        for trace in (table, replace(table, siblings=(1, 0.0)))
    )
    half = [(r.speedup_high - r.speedup_low) / 2 for r in (c.row("lb-mini", "on-demand") for c in (known, unknown))]
    assert half[0] > 0.028 > half[1]
    assert GROUPS in known.sentences()
    assert GROUPS not in unknown.sentences()
