"""A limit that nobody gave: it fits, it suits both sides; and where nothing fits, what is offered does."""

import re

import numpy as np
import pytest

from odcsim import Trace
from odcsim.decide import answer, answer_words, limit
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.results import capacity

CHAT = Trace("chat", np.minimum(np.random.default_rng(1).lognormal(7.3, 0.9, 4000), 8192).astype(np.int64) + 1)
H100 = {"gpu": "h100", "devices": 16, "minibatch": 4, "minibatches": 8}


def seconds(setting, sync):
    rows = [r for r in compare(setting).rows if r.sync == sync and r.balancer not in ("native", "local-sort")]
    return min(r.makespan_seconds for r in rows)


def test_many_samples_of_a_device_are_searched_as_well_by_fewer_minibatches(monkeypatch):
    """Neither side loses anything to speak of by the quicker search, and each limit of a side is told once."""
    rough = ask(
        CHAT, "qwen3-0.6b", **{**H100, "devices": 2, "minibatch": 4 * limit.MANY, "minibatches": 2}, max_tokens=0
    )
    done = []
    quick = limit.chosen(rough, advance=lambda: done.append(1))
    assert len(done) == len(limit.SIDES) * quick.limits_tried > 4
    monkeypatch.setattr(limit, "MANY", 10**9)
    slow = limit.chosen(rough)
    for sync in limit.SIDES:
        assert seconds(quick, sync) <= 1.003 * seconds(slow, sync)


def test_the_chosen_limit_says_what_a_longer_search_by_hand_says():
    """By the longest sample as the limit, the same question is answered with yes."""
    spec, asked = "lognormal:median=1500,sigma=0.9,max=8192", {**H100, "devices": 8, "minibatches": 24}
    answers = [answer.answer(compare(ask(spec, "qwen3-8b", **asked, max_tokens=at))) for at in (None, 24_576, 0)]
    assert [reply.pays for reply in answers] == [False, False, True]
    assert answers[0].chosen.makespan_seconds <= 1.01 * answers[1].chosen.makespan_seconds


@pytest.mark.parametrize("given", [0, 8193, 20_000])
def test_a_limit_that_was_given_stays(given):
    assert ask(CHAT, "qwen3-8b", **H100, max_tokens=given).max_tokens == given


def test_no_choice_where_one_sample_fills_a_device():
    asked = ask(CHAT, "llama-3.1-70b", gpu="h100", devices=8, minibatch=4, minibatches=2)
    assert (asked.max_tokens, asked.limits_tried, asked.limit) == (0, 0, CHAT.longest)


@pytest.fixture(scope="module")
def full():
    return compare(ask(CHAT, "llama-3.1-70b", gpu="h100", devices=16, minibatch=4, minibatches=2))


def test_where_nothing_fits_no_row_is_recommended(full):
    reply = answer.answer(full)
    assert reply.nothing_fits
    assert not reply.pays
    assert answer_words.verdict(reply) == "Out of memory: nothing here fits."
    assert not any("GPU-hours" in said for said in answer_words.sentences(full, reply))
    [said] = answer_words.misfit(full, reply)
    least = min(r.memory_bytes for r in full.rows if r.sync != "on-demand")
    assert f"need {least / 1e9:.0f} GB" in said


@pytest.fixture(scope="module")
def small():
    return ask(CHAT, "qwen2.5-1.5b", gpu="h100", devices=4, minibatch=4, minibatches=4, max_tokens=12_000)


def at_limit(small, bytes_of):
    """Compared on a GPU that has what a function of the rows' memory says."""
    return compare(small, memory_limit=bytes_of([row.memory_bytes for row in compare(small).rows]))


def test_a_row_that_is_tight_is_chosen_only_where_none_fits_and_is_called_so(small):
    one_fits = at_limit(small, lambda peaks: min(peaks) / 0.91)
    assert any(map(capacity.tight, one_fits.rows))
    assert capacity.level(answer.answer(one_fits).chosen) == capacity.FITS
    tightest = at_limit(small, lambda peaks: min(peaks) / 0.93)
    reply = answer.answer(tightest)
    assert capacity.tight(reply.chosen)
    assert f"Memory per device is {capacity.told(reply.chosen)}, so it may not fit." in answer_words.verdict(reply)
    assert any(line.startswith("Options that fit: ") for line in answer_words.sentences(tightest, reply))


def test_a_faster_row_that_memory_keeps_out_is_named_with_what_it_would_need(small):
    """Only rows that balance nothing fit."""
    loose = at_limit(small, lambda peaks: sorted(peaks)[2] / 0.92)
    reply = answer.answer(loose)
    assert not capacity.tight(reply.chosen)
    assert reply.kept_out
    for kept, row in reply.kept_out:
        assert capacity.level(row) > capacity.level(kept)
        assert row.makespan_seconds * answer.NOTABLE <= kept.makespan_seconds
        assert f"{answer_words.named(row)} would be" in answer_words.verdict(reply)
        assert capacity.sized(row) in answer_words.verdict(reply)
    assert not answer.answer(at_limit(small, lambda peaks: 2 * max(peaks))).kept_out


def test_a_longest_sample_that_was_not_drawn_is_told_of():
    lengths = np.append(CHAT.lengths, 60_000)
    setting = ask(Trace("one long", lengths), "llama-3.1-8b", gpu="h100", devices=4, minibatch=4, minibatches=2)
    found = compare(setting)
    reply = answer.answer(found)
    assert capacity.level(reply.chosen) == capacity.FITS
    said = "\n".join(answer_words.sentences(found, reply))
    assert re.search(
        r"longest sample, 60,000 tokens, is not in these .* is \d+ of 86 GB: tight\.\nOptions that fit: ", said
    )
    assert "--truncate" in said
