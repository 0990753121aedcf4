"""Whoever asks about lengths that come in groups is told so, and has an interval over groups: by a column, by the order
of the file, and of what is dealt together."""

from dataclasses import replace

import numpy as np
import pytest

import odcsim
from odcsim import Trace, compare

PAIRS = ("lb-micro", "collective"), ("lb-micro", "on-demand"), ("lb-mini", "on-demand")
RNG = np.random.default_rng(1)
LENGTHS = np.repeat(RNG.lognormal(8, 0.8, 160), 8) * RNG.lognormal(0, 0.1, 8 * 160)
FILE = Trace("file", np.clip(LENGTHS, 16, 32_768).astype(np.int64))
COLUMN = replace(FILE, group=np.repeat(np.arange(160), 8))
SHUFFLE = np.random.default_rng(1).permutation(FILE.size)
SHUFFLED = Trace("shuffled", FILE.lengths[SHUFFLE])
HALVES = np.repeat(np.arange(FILE.size), 2)
GROUPED = {
    "by order": FILE,
    "by column": COLUMN,
    "both": Trace("both", SHUFFLED.lengths, group=COLUMN.group[SHUFFLE]),
    "packed": Trace("packed", FILE.lengths[HALVES] // 2, bundle=HALVES, unit="row"),
}
TABLE = Trace("table", *np.unique(FILE.lengths, return_counts=True))


def ask(trace: Trace, **words):
    asked = {"gpu": "h100", "devices": 8, "minibatch": 4, "minibatches": 40, "max_tokens": 32_768}
    return odcsim.ask(trace, "qwen2.5-1.5b", **asked, **words)


def width(setting):
    row = compare(setting, among=PAIRS, doubted=False).row("lb-mini", "on-demand")
    return row.speedup_high - row.speedup_low


def test_a_run_is_as_uncertain_as_its_prompts():
    """`advise`, `compare --epochs` and `rl` tell a run's seconds of a dataset that the file is a part of."""
    widths = []
    for trace in (FILE, SHUFFLED):
        setting = ask(replace(trace, drawn_from=10**9), epochs=1.0)
        profile = replace(setting.cost.profile, low=1.0, high=1.0)
        found = compare(replace(setting, cost=replace(setting.cost, profile=profile)), among=PAIRS, doubted=False)
        row = found.whole_run.over(found.row("lb-mini", "on-demand"))
        widths.append((row.model_high - row.model_low) / row.makespan_seconds)
    assert widths[0] > 1.8 * widths[1]


def test_intervals_are_wider_by_groups_however_they_are_known_and_of_all_there_is_none_are_counted():
    alone = width(ask(SHUFFLED))
    for name, trace in GROUPED.items():
        assert width(ask(trace)) > 1.8 * alone, name
    assert width(ask(TABLE)) < 1.3 * alone
    whole = [width(ask(trace, whole=True)) for trace in (FILE, SHUFFLED)]
    assert whole[0] == pytest.approx(whole[1], rel=0.5)


def test_steps_of_rl_without_prompts_count_runs():
    """No column: samples are drawn singly, and those beside each other in the file are as alike as ever."""
    words = {"gpu": "h100", "devices": 8, "prompts": 8, "rollouts": 8, "steps": 10}
    rows = [odcsim.rl(trace, "qwen2.5-1.5b", **words).rows[0].row for trace in (FILE, SHUFFLED)]
    widths = [(row.model_high - row.model_low) / row.makespan_seconds for row in rows]
    assert widths[0] > 1.1 * widths[1]


def test_a_named_table_has_its_groups():
    """Of 640 rollouts, 8 of each prompt: by resampling prompts its lead is known within .028, and not within .017."""
    words = {"gpu": "a100", "devices": 16, "minibatch": 4, "max_tokens": 20_480, "minibatches": 60}
    table = odcsim.load("deepcoder-rl")
    grouped, alone = (
        width(odcsim.ask(trace, "qwen2.5-14b", sharding="hybrid", **words)) / 2
        for trace in (table, replace(table, siblings=(1, 0.0)))
    )
    assert grouped > 0.028 > alone
