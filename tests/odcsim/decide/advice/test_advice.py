"""What an advice rests on: every way fits, the best is the best of those tried, and money follows from hours."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np
import pytest

from odcsim import Trace, catalog
from odcsim.cli import main
from odcsim.decide import room
from odcsim.decide.advice import reply, ways
from odcsim.decide.advice.offers import Offer, Refused, advise, offer
from odcsim.decide.advice.wish import Wish
from odcsim.errors import InputError
from odcsim.executors import simulation
from odcsim.executors.simulation import Simulation
from odcsim.question import FIELDS, Question
from odcsim.results import capacity
from odcsim.support.numbers import duration

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(7.3, 0.9, 2000), 8192).astype(np.int64) + 1
ASKED = Question(trace=Trace("chat", LENGTHS), model="qwen2.5-1.5b", global_batch=32, epochs=3, minibatches=12)
WISH = Wish(ASKED, ("h100", "a100"), (4, 8), {"h100": 2.5, "a100": 1.3})
ADVICE = advise(WISH)


def wished(**change) -> Wish:
    """The same with something changed, of the question or beside it."""
    asked = {name: value for name, value in change.items() if name in FIELDS and name != "devices"}
    return replace(WISH, question=replace(ASKED, **asked), **{n: v for n, v in change.items() if n not in asked})


def test_every_way_fits_memory_with_something_to_spare():
    site = ways.site(WISH, "a100", 8)
    for way in site.ways():
        full = max(s.tokens(m) for s in site.plan(way, 6).schedules for m in s.contents())
        need = room.needed(way.cost, way.setting.limit, WISH.trace.longest).total
        assert full <= way.setting.limit
        assert need <= capacity.filled(catalog.gpu("a100").memory_bytes)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_the_fullest_microbatch_fits_and_one_token_more_does_not(share):
    cost = ways.site(WISH, "h100", 8).settings[0].cost
    memory = share * 80e9
    most = room.fullest(cost, 8192, memory, 10**7)
    assert room.needed(cost, most, 8192).total <= memory < room.needed(cost, most + 1, 8192).total


def test_limits_start_at_the_longest_sample_and_end_where_memory_does():
    tried = room.limits(8192, 30_000, 1e9)
    assert tried[0] == 8192
    assert 30_000 - room.ROUND < tried[-1] <= 30_000
    assert all(b <= a * room.EACH + 2 * room.ROUND for a, b in pairwise(tried))
    assert room.limits(8192, 8191, 1e9) == ()


def test_hours_and_dollars_are_of_the_whole_run():
    for one in ADVICE.offers:
        way = one.chosen.way
        site = ways.site(WISH, one.gpu, one.devices)
        how = Simulation(way.cost, executor="analytic")
        mean = simulation.usage(site.plan(way, 12).schedules, how).makespan.mean()
        assert one.seconds == pytest.approx(ceil(2000 * 3 / 32) * mean)
        assert one.dollars == pytest.approx(one.seconds / 3600 * one.devices * WISH.prices[one.gpu])
        assert way.setting.minibatch * one.devices == 32
        assert one.row.microbatches >= 1


def test_offers_are_in_the_order_of_their_dollars():
    paid = [one.dollars for one in ADVICE.offers]
    assert len(paid) == 4
    assert paid == sorted(paid)


def test_what_is_rented_is_as_cheap_as_any_and_within_what_was_asked():
    for deadline in sorted(one.seconds for one in ADVICE.offers):
        some = replace(ADVICE, wish=replace(WISH, deadline=deadline))
        rent = reply.rented(some)
        allowed = [one for one in some.offers if one.seconds <= deadline]
        assert rent in allowed
        assert rent.dollars <= 1.01 * min(one.dollars for one in allowed)
        assert f"Rent {rent.name}" in reply.sentences(some)[0]


def test_where_nothing_is_within_both_it_says_what_would_be():
    some = replace(ADVICE, wish=replace(WISH, deadline=min(o.seconds for o in ADVICE.offers) / 2, budget=1e6))
    said = reply.sentences(some)
    assert said[0].startswith("Nothing here finishes within")
    assert "a deadline of" in said[1]
    assert "1.5 epochs instead of 3" in said[1]


def test_on_demand_is_chosen_where_it_leads_by_what_is_worth_it():
    for one in ADVICE.offers:
        best = one.best
        assert one.chosen is (best.with_it if best.gain >= 1.02 else best.without)
        assert ("pays" in reply.on_demand(one)) == (best.gain >= 1.02)


def test_a_model_too_large_is_refused_with_what_it_needs():
    refused = offer(wished(model="llama-3.1-70b"), "a100", 4)
    assert isinstance(refused, Refused)
    assert "GB of" in refused.why


def test_devices_that_do_not_divide_the_batch_are_refused_by_name():
    assert offer(WISH, "a100", 5).why == "32 samples do not divide by 5 devices; --global-batch 30 does"


def test_it_is_the_same_again():
    again = offer(WISH, "a100", 8)
    assert isinstance(again, Offer)
    assert again.as_json() in [one.as_json() for one in ADVICE.offers]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, "--epochs is 0"),
        ({"global_batch": 4000}, "has 2,000 samples"),
        ({"prices": {"h200": 3.0}}, "--price of h200"),
        ({"prices": {}, "budget": 5.0}, "a budget without a price of h100"),
        ({"prices": {"h100": 2.5}}, "a price of h100, but none of a100"),
        ({"model": "qwen38b"}, "unknown model 'qwen38b'; did you mean 'qwen3-8b'"),
        ({"gpus": ("h1000",)}, "unknown GPU"),
    ],
)
def test_what_cannot_be_meant_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        wished(**change)


def test_prices_are_of_gpus_in_whatever_case():
    one = replace(WISH, gpus=("H100", "a100"), prices={"h100": 2.5, "A100": 1.3})
    assert one.prices == {"H100": 2.5, "a100": 1.3}
    assert offer(replace(one, question=replace(ASKED, minibatches=2)), "H100", 4).dollars


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (4.2, "4.2 s"),
        (99, "99 s"),
        (99.96, "1 min 40 s"),
        (134, "2 min 14 s"),
        (599.6, "10 min"),
        (754, "13 min"),
        (3599, "1 h 00 min"),
        (14_700, "4 h 05 min"),
        (4e6, "1,111 h 07 min"),
    ],
)
def test_durations_read_as_people_say_them(seconds, words):
    assert duration(seconds) == words


ARGS = "--model qwen2.5-1.5b --gpus h100,a100 --devices 4,8 --global-batch 32 --minibatches 6".split()


def test_the_command_shows_all_within_80_columns(tmp_path, capsys):
    file = tmp_path / "lengths.csv"
    file.write_text("length\n" + "\n".join(map(str, LENGTHS[:500])))
    assert main(["advise", str(file), *ARGS, "--price", "h100=$2.5,a100=1.3", "--deadline", "2min"]) == 0
    printed = capsys.readouterr().out
    table = printed.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    assert len([line for line in table if " x " in line]) == 4
    assert "Rent " in printed
    assert main(["advise", str(file), *ARGS, "--price", "2", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["inputs"]["prices"] == {"h100": 2.0, "a100": 2.0}
    assert [row["within"] for row in content["rows"]] == [True] * 4


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--price", "h100=cheap"], "--price holds 'h100=cheap'"),
        (["--price", "h100=2,3"], "beside others"),
        (["--deadline", "soon"], "is not a time"),
    ],
)
def test_a_mistyped_wish_is_one_line(more, words, capsys):
    try:
        code = main(["advise", "longalign", *ARGS, *more])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    assert words in capsys.readouterr().err


def test_where_nothing_fits_it_says_what_would():
    some = advise(wished(model="llama-3.1-70b", gpus=("a100",), prices={}, devices=(4,)))
    assert not some.offers
    assert "would fit: 32 devices (" in some.refused[0].why
    assert reply.sentences(some)[0].startswith("None of these can run")


def test_where_no_way_out_is_enough_two_at_once_are(capsys):
    """Each of them fits by itself what it says, which the same command then runs."""
    args = ["--global-batch", "64", "--minibatches", "2", "--epochs", "0.01", "--gpus", "l40s"]
    asked = ["advise", "lognormal:median=1800,sigma=1,max=32000", "--model", "llama-3.1-70b", *args]
    assert main([*asked, "--devices", "8"]) == 0
    told = capsys.readouterr().out
    cutoff = re.search(r"would fit: --lora 16 and --truncate (\d+) \(shortens", told)[1]
    assert main([*asked, "--devices", "8", "--lora", "16", "--truncate", cutoff]) == 0
    assert "Rent 8 x l40s" in capsys.readouterr().out


def test_how_a_row_runs_is_never_cut(capsys):
    args = "--model qwen3-8b --gpus a100 --devices 16 --global-batch 32 --minibatches 2 --json"
    asked = ["advise", "lognormal:median=1800,sigma=1,max=32000", *args.split()]
    assert main(asked) == 0
    words = json.loads(capsys.readouterr().out)["rows"][0]
    assert main(asked[:-1]) == 0
    lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert max(map(len, lines)) <= 79
    said = " ".join(line.strip() for line in lines[2:])
    assert len(lines) > 3
    assert said.startswith(f"{words['sync']} + {words['balancer']}, {words['max_tokens']:,} tokens, ")
    assert re.search(r" recompute; \d+ of \d+ GB, idle [\d.]+ %, MFU [\d.]+ %$", said)


OUTLIER = replace(ASKED, trace=Trace("one long", np.append(LENGTHS, [60_000] * 2)), model="llama-3.1-8b")


def test_a_cutoff_of_few_samples_that_makes_room_does_so():
    """With it, what memory forbade fits, and the run is so much faster."""
    wish = replace(WISH, question=OUTLIER, gpus=("h100",), devices=(8,), prices={})
    one = offer(wish, "h100", 8)
    said = "\n".join(reply.sentences(advise(wish)))
    found = re.search(
        r"This does not fit memory, and would .* \(\d+ of 86 GB\)\. --truncate (\d+) \(shortens 0\.1%", said
    )
    cutoff, kept = int(found[1]), one.best.kept_out
    assert capacity.level(kept.need) == capacity.OVER
    cut = replace(OUTLIER, trace=Trace("cut", OUTLIER.trace.lengths.clip(0, cutoff)))
    assert room.needed(kept.way.cost, cutoff, cutoff).total <= capacity.filled(kept.need.memory_limit)
    assert offer(replace(wish, question=cut), "h100", 8).seconds * 1.02 <= one.seconds


def test_what_idles_is_told_and_why():
    """One sample is half of a step: more than a few devices have nothing to do."""
    long = Trace("one long", np.array([30_000, *[500] * 63]))
    wish = wished(trace=long, global_batch=64, gpus=("h100",), devices=(64,), prices={})
    one = offer(wish, "h100", 64)
    said = reply.sentences(advise(wish))
    assert one.as_json()["idle"] == one.row.idle > 0.8
    assert one.as_json()["mfu"] == one.row.mfu < 0.01
    assert f"devices idle {one.row.idle:.0%} of the time, {one.row.mfu:.1%} MFU." in said[1]
    site = ways.site(wish, "h100", 64)
    weights = site.drawn(site.settings[0])[0].weights
    assert one.best.busy == pytest.approx(weights.sum() / weights.max())
    assert said[2].startswith(f"More than half of 64 x h100 idles: a step's work is {one.best.busy:.0f} times that of")
    assert not any("idles" in line for line in reply.sentences(ADVICE))
