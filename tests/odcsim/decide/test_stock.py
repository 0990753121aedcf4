"""What a trainer runs by itself: what it makes of a step, what is ranked, what is left out and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import InputError, Trace, ask, compare, plan
from odcsim.decide import stock
from odcsim.decide.decision import decide
from odcsim.decide.whole_run import steps
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import IN_BATCHES, IN_PADDED

RNG = np.random.default_rng(3)
CHATS = Trace("chats", np.minimum(RNG.lognormal(5.5, 1, 3000).astype(int) + 1, 4000))
WORDS = {"gpu": "h100", "devices": 4, "minibatch": 24, "minibatches": 2}
LONG = Trace("long", np.array([100] * 900 + [4000]))
PAIRS = replace(CHATS, bundle=np.arange(3000) // 2, unit="pair")


def asked(trainer, **more):
    return ask(CHATS, "qwen3-0.6b", **{**WORDS, "trainer": trainer, **more})


@pytest.mark.parametrize(("trainer", "limit"), [*((t, None) for t in TRAINERS), ("trl", 9000), ("accelerate", 9000)])
def test_every_way_of_a_trainer_is_a_schedule_of_equal_counts_within_its_limit(trainer, limit):
    found = stock.choose(asked(trainer, max_tokens=limit))
    assert {way.sync for way in found} <= set(TRAINERS[trainer].syncs)
    for way in found:  # of one microbatch gradients leave at once, and nothing is deferred
        assert way.sync == "collective" or way.setting.minibatch > max(1, way.setting.each)
        for schedule in plan(way.setting, way.balancer).schedules:
            held = sorted(i for microbatch in schedule.contents() for i in microbatch)
            assert held == list(range(len(schedule.lengths)))
            assert len(set(schedule.microbatches)) == 1
            assert schedule.fullest <= way.setting.limit
            if way.setting.each:
                assert {len(microbatch) for microbatch in schedule.contents()} == {way.setting.each}
                assert limit is None or way.setting.each * CHATS.longest <= limit
        if way.rule.rows is None:
            assert way.samples == 96
            assert way.setting.trace is CHATS
        else:
            assert abs(way.samples / 96 - 1) <= stock.OTHER


@pytest.mark.parametrize("batch", [128, 160, 256, 512])
@pytest.mark.parametrize("trainer", ["trl", "torchtitan"])
def test_rows_are_as_long_as_the_batch_needs_them(trainer, batch):
    """No batch falls between the limits that are tried, where memory has room for those that fit it."""
    setting = ask("sharegpt", "qwen3-8b", truncate=8000, gpu="h100", devices=8, global_batch=batch, trainer=trainer)
    packed = [way for way in stock.choose(setting) if way.rule.rows]
    assert packed
    assert all(abs(way.samples / batch - 1) <= stock.OTHER for way in packed)


def test_the_answer_is_the_best_that_the_trainer_runs():
    compared = compare(asked("trl"))
    own = [row for row in compared.rows if row.made]
    assert decide(compared).chosen.makespan_seconds == min(row.makespan_seconds for row in own)
    tokens = {round(row.tokens_per_second * row.makespan_seconds) for row in compared.rows}
    assert max(tokens) - min(tokens) <= 2


def test_pairs_are_not_packed_and_rows_that_are_another_batch_left_out():
    setting = ask(PAIRS, "qwen3-0.6b", trainer="trl", **WORDS)
    assert {way.balancer for way in stock.choose(setting)} <= {IN_PADDED, IN_BATCHES}
    words = WORDS | {"minibatch": 2, "minibatches": 4}
    assert all(row.balancer != "packed" for row in compare(ask(LONG, "qwen3-0.6b", trainer="trl", **words)).rows)


def test_where_nothing_of_the_trainers_fits_no_row_of_it_is_called_fitting():
    words = {"gpu": "h100", "devices": 8, "minibatch": 44, "minibatches": 2, "max_tokens": 40_000}
    found = compare(ask("sharegpt", "qwen3-8b", truncate=8000, trainer="slime", **words))
    assert not any(row.memory_fits for row in found.rows if row.made)
    assert any(row.memory_fits for row in found.rows if not row.made)
    assert decide(found).nothing_fits


@pytest.mark.parametrize(("trainer", "trace", "more"), [
    ("trl", CHATS, {"recompute": "operators"}),
    *(("axolotl", CHATS, more) for more in ({"reshard": False}, {"precision": "fp8"}, {"streams": "two"})),
    *((trainer, PAIRS, {}) for trainer in ("verl", "slime", "nemo-rl", "axolotl", "torchtitan")),
])  # fmt: skip
def test_what_a_trainer_cannot_be_told_is_refused(trainer, trace, more):
    with pytest.raises(InputError):
        compare(ask(trace, "qwen3-0.6b", trainer=trainer, **WORDS | more))


@given(st.lists(st.integers(1, 900), min_size=1, max_size=60), st.sampled_from([*TRAINERS]), st.integers(900, 2500))
def test_rows_hold_every_sample_once_under_the_limit(lengths, trainer, limit):
    for rule in (rule for rule in TRAINERS[trainer].rules if rule.rows is not None):
        trace = stock.packed(Trace("t", np.array(lengths)), rule, limit, 0)
        assert sorted(trace.lengths.tolist()) == sorted(lengths)
        assert trace.bundles.longest <= limit


def test_of_many_samples_some_are_packed_and_stand_for_all():
    trace = Trace("many", RNG.integers(1, 900, 3 * stock.MOST))
    rule = TRAINERS["trl"].rules[0]
    packed = stock.packed(trace, rule, 4000, 0)
    assert packed.size == stock.MOST
    whole = stock.packed(Trace("few", trace.lengths[: stock.MOST]), rule, 4000, 0).bundles.size * 3
    assert packed.bundles.population == pytest.approx(whole, rel=0.01)


def test_an_epochs_last_step_is_counted_as_the_trainer_does():
    for trainer, expected in (("trl", 3 * 8), ("verl", 3 * 7), ("torchtitan", 24), (None, 24)):
        assert steps(Trace("t", np.full(790, 5)), 3, 100, trainer) == expected


def test_the_engine_runs_what_is_run_without_a_trainer():
    with_it, without = compare(asked("odc")), compare(asked(None))
    assert [replace(row, made=None) for row in with_it.rows] == list(without.rows)
