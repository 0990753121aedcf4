"""What a trainer runs by itself: what it makes of a step, what is ranked, what is left out and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odcsim import balance
from odcsim.cli import main
from odcsim.decide import stock
from odcsim.decide.answer import answer
from odcsim.decide.answer_words import verdict
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.decide.setting import plan
from odcsim.decide.whole_run import WholeRun, steps
from odcsim.errors import InputError
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import IN_BATCHES, IN_PADDED
from odcsim.trace import Trace

RNG = np.random.default_rng(3)
CHATS = Trace("chats", np.minimum(RNG.lognormal(5.5, 1, 3000).astype(int) + 1, 4000))
WORDS = {"gpu": "h100", "devices": 4, "minibatch": 24, "minibatches": 6}


def asked(trainer, **more):
    return ask(CHATS, "qwen3-0.6b", **{**WORDS, "trainer": trainer, **more})


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_way_of_a_trainer_is_a_schedule_of_equal_counts_within_its_limit(trainer):
    setting = asked(trainer)
    found = stock.chosen(setting, TRAINERS[trainer])
    assert {sync for _, sync in found} <= set(TRAINERS[trainer].met)
    for way, _ in found:
        for schedule in plan(way.setting, way.rule.balancer).schedules:
            held = sorted(i for microbatch in schedule.contents() for i in microbatch)
            assert held == list(range(len(schedule.lengths)))
            assert len(set(schedule.microbatches)) == 1
            assert schedule.fullest <= way.setting.limit
            if way.setting.each:
                assert {len(microbatch) for microbatch in schedule.contents()} == {way.setting.each}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_counts_samples_trains_on_those_that_were_asked_for(trainer):
    for way, _ in stock.chosen(asked(trainer), TRAINERS[trainer]):
        if way.rule.rows is None:
            assert way.samples == 96
            assert way.setting.trace is CHATS
        else:
            assert abs(way.samples / 96 - 1) <= stock.OTHER


@given(st.lists(st.integers(1, 900), min_size=8, max_size=40), st.integers(1, 8))
def test_no_batch_is_fuller_than_the_worst(lengths, each):
    trace = Trace("t", np.array(lengths))
    fullest = sum(sorted(lengths)[-each:])
    assert stock.worst(trace, each, padded=False) == fullest
    assert stock.worst(trace, each, padded=True) == each * max(lengths)
    counted = Trace("t", *np.unique(lengths, return_counts=True))
    assert stock.worst(counted, each, padded=False) == fullest


@given(
    st.lists(st.integers(1, 900), min_size=1, max_size=60), st.sampled_from(sorted(TRAINERS)), st.integers(900, 2500)
)
def test_rows_hold_every_sample_once_under_the_limit(lengths, trainer, limit):
    for rule in TRAINERS[trainer].own:
        if rule.rows is not None:
            trace = stock.packed(Trace("t", np.array(lengths)), rule, limit, 0)
            assert sorted(trace.lengths.tolist()) == sorted(lengths)
            assert trace.bundles.longest <= limit


def test_of_many_samples_some_are_packed_and_stand_for_all():
    trace = Trace("many", RNG.integers(1, 900, 3 * stock.MOST))
    rule = TRAINERS["trl"].own[0]
    packed = stock.packed(trace, rule, 4000, 0)
    assert packed.size == stock.MOST
    whole = stock.packed(Trace("few", trace.lengths[: stock.MOST]), rule, 4000, 0).bundles.size * 3
    assert packed.bundles.whole == pytest.approx(whole, rel=0.01)


def test_rows_that_are_another_batch_are_left_out_and_told(capsys, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("length\n" + "\n".join(["100"] * 900 + ["4000"]) + "\n")
    words = "--model qwen3-0.6b --gpu h100 --devices 4 --minibatch 2 --minibatches 4 --trainer trl".split()
    assert main(["compare", str(path), *words]) == 0
    out = capsys.readouterr().out
    assert "\n packed" not in out
    assert "packed is left out: its smallest step has " in out
    assert main(["compare", str(path), *words[:-1], "torchtitan"]) == 2
    assert "torchtitan cannot make a step of 8 samples of these: its smallest step has " in capsys.readouterr().err


@pytest.mark.parametrize("trainer", ["trl", "verl"])
def test_the_answer_is_the_best_that_the_trainer_runs_and_one_line_tells_the_others(trainer):
    comparison = compare(asked(trainer))
    reply = answer(comparison)
    own = [row for row in comparison.rows if row.made]
    assert own
    assert reply.chosen.made
    assert reply.chosen.makespan_seconds == min(row.makespan_seconds for row in own)
    words = verdict(reply)
    assert words.startswith(f"The trainer's own fastest way is {reply.chosen.name}, ")
    assert "odc_engine" in words


def test_a_trainer_of_plain_kernels_is_slower_than_the_same_plan_of_tuned_ones():
    plain, tuned = asked("verl"), asked("verl", stack="tuned", loss="chunked")
    assert (plain.cost.recipe.kernels.stack, plain.cost.recipe.kernels.loss) == ("plain", "whole")
    assert (tuned.cost.recipe.kernels.stack, tuned.cost.recipe.kernels.loss) == ("tuned", "chunked")
    assert plain.cost.sample_parts(CHATS.lengths)[0].sum() > tuned.cost.sample_parts(CHATS.lengths)[0].sum()


def test_rows_of_one_comparison_are_for_as_many_tokens():
    comparison = compare(asked("trl"))
    tokens = {round(row.tokens_per_second * row.makespan_seconds) for row in comparison.rows}
    assert max(tokens) - min(tokens) <= 2


@pytest.mark.parametrize(("trainer", "expected"), [("trl", 3 * 8), ("verl", 3 * 7), ("torchtitan", 24), (None, 24)])
def test_an_epochs_last_step_is_counted_as_the_trainer_does(trainer, expected):
    assert steps(Trace("t", np.full(790, 5)), 3, 100, trainer) == expected


def test_the_whole_run_of_a_row_is_that_of_what_it_packs():
    comparison = compare(asked("trl"))
    run = WholeRun(comparison, 2.0)
    row = next(row for row in comparison.rows if row.balancer == "packed")
    own = comparison.stock[row.pair].setting
    rows = own.trace.bundles.size
    assert run.over(row).minibatches == 2 * -(-rows // (own.minibatch * 4)) == run.of(row).steps
    seconds = comparison.stock[row.pair].row(*row.pair).makespan_seconds / own.minibatches
    assert run.over(row).makespan_seconds == pytest.approx(seconds * run.of(row).steps)


def test_an_advice_ranks_what_the_trainer_runs(capsys):
    words = "lognormal:median=700,sigma=1,max=4096,samples=2000 --model qwen3-0.6b --gpus h100 --devices 2,4"
    more = ["--global-batch", "96", "--minibatches", "4", "--trainer", "trl"]
    assert main(["advise", *words.split(), *more]) == 0
    told = capsys.readouterr().out
    assert "trl runs that by itself. With odc_engine, " in told or "notably faster than what trl runs" in told
    assert main(["advise", *words.split(), *more, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["inputs"]["trainer"] == "trl"
    assert all(row["balancer"] in balance.own("trl") and row["made"] for row in content["rows"])
    assert all(row["sharding"] == "full" for row in content["rows"])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"trainer": "axolotel"}, "unknown trainer 'axolotel'; did you mean 'axolotl'"),
        ({"trainer": "nothing"}, "unknown trainer 'nothing'; there are verl, "),
        ({"trainer": "trl", "offload": True}, "--offload with --trainer trl; its settings do not say it"),
        ({"trainer": "trl", "recompute": "operators"}, "--recompute operators with --trainer trl"),
    ],
)
def test_what_a_trainer_cannot_be_told_is_refused(more, words):
    with pytest.raises(InputError) as found:
        compare(ask(CHATS, "qwen3-0.6b", **WORDS, **more))
    assert words in str(found.value)


def test_the_engine_runs_what_is_run_without_a_trainer():
    with_it, without = compare(asked("odc")), compare(asked(None))
    assert [replace(row, made=None) for row in with_it.rows] == list(without.rows)


def test_pairs_are_not_packed():
    trace = replace(CHATS, bundle=np.arange(3000) // 2)
    setting = ask(trace, "qwen3-0.6b", trainer="trl", **WORDS)
    assert {way.rule.balancer for way, _ in stock.chosen(setting, TRAINERS["trl"])} <= {IN_PADDED, IN_BATCHES}


@pytest.mark.parametrize("batch", [128, 160, 176, 192, 256, 512])
@pytest.mark.parametrize("trainer", ["trl", "torchtitan", "llamafactory"])
def test_rows_are_as_long_as_the_batch_needs_them(trainer, batch):
    """No batch falls between the limits that are tried, where memory has room for those that fit it."""
    setting = ask("sharegpt", "qwen3-8b", truncate=8000, gpu="h100", devices=8, global_batch=batch, trainer=trainer)
    packed = [way for way, _ in stock.chosen(setting, TRAINERS[trainer]) if way.rule.rows]
    assert packed
    assert all(abs(way.samples / batch - 1) <= stock.OTHER for way in packed)


def test_where_nothing_of_the_trainers_fits_that_of_the_engine_is_told(capsys, tmp_path):
    words = "sharegpt --truncate 8k --model qwen3-8b --gpu h100 --devices 8 --minibatch 44 --minibatches 4".split()
    assert (
        main(
            ["compare", *words, "--max-tokens", "26624", "--trainer", "torchtitan", "--html", str(tmp_path / "r.html")]
        )
        == 0
    )
    out = capsys.readouterr().out
    [filled] = [line for line in out.splitlines() if line.startswith(" filled")]
    assert ">" in filled
    assert "Out of memory: nothing that the trainer runs by itself fits. With odc_engine, collective + " in out
    page = (tmp_path / "r.html").read_text()
    assert "Run collective + filled" not in page
    assert " before" not in page.partition("key-figures")[2].partition("</dl>")[0]


@pytest.mark.parametrize("trainer", ["verl", "slime", "nemo-rl", "axolotl", "torchtitan"])
def test_who_takes_no_pairs_is_asked_for_none(trainer):
    trace = replace(CHATS, bundle=np.arange(3000) // 2, unit="pair")
    with pytest.raises(InputError, match=f"pairs with --trainer {trainer}; ask for trl or odc"):
        compare(ask(trace, "qwen3-0.6b", trainer=trainer, **WORDS))


@pytest.mark.parametrize("more", [{"reshard": False}, {"precision": "fp8"}, {"reduce": "bf16"}, {"streams": "two"}])
def test_what_no_setting_says_is_refused(more):
    with pytest.raises(InputError, match="with --trainer axolotl; its settings do not say it"):
        compare(asked("axolotl", **more))


def test_kernels_that_were_asked_for_are_no_longer_told_as_assumed(capsys, tmp_path):
    words = "sharegpt --truncate 2k --model qwen3-0.6b --gpu h100 --devices 2 --minibatch 64 --minibatches 2".split()
    for more, told, note in (
        ([], "Kernels assumed for it, unless you ask for others: stack plain, loss whole.", False),
        (["--loss", "chunked"], "Kernels assumed for it, unless you ask for others: stack plain.", True),
    ):
        assert main(["compare", *words, "--trainer", "axolotl", *more]) == 0
        assert told in capsys.readouterr().out
        assert main(["compare", *words, "--trainer", "axolotl", *more, "--json"]) == 0
        (tmp_path / "rows.json").write_text(capsys.readouterr().out)
        assert main(["flags", "axolotl", str(tmp_path / "rows.json")]) == 0
        assert ("not said here: kernels as they were assumed: loss chunked" in capsys.readouterr().out) is note


def test_of_one_microbatch_nothing_is_deferred():
    """Gradients leave at once, so that it is what is run under collectives, without unsharded sums."""
    for way, sync in stock.chosen(asked("trl"), TRAINERS["trl"]):
        assert sync == "collective" or way.setting.minibatch > max(1, way.setting.each)


@pytest.mark.parametrize("limit", [4000, 9000, 20_000])
def test_no_batch_is_over_a_limit_that_was_given(limit):
    every = [way for way, _ in stock.chosen(asked("accelerate", max_tokens=limit), TRAINERS["accelerate"])]
    assert every
    assert all(way.setting.each * CHATS.longest <= limit for way in every)
