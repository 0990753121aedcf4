"""A limit that nobody gave suits both sides: what its law leaves open."""

import numpy as np

from odcsim import Trace
from odcsim.decide import answer, answer_words, limit
from odcsim.decide.asking import ask
from odcsim.decide.comparison import compare
from odcsim.results import capacity

CHAT = Trace("chat", np.minimum(np.random.default_rng(1).lognormal(7.3, 0.9, 4000), 8192).astype(np.int64) + 1)
H100 = {"gpu": "h100", "devices": 16, "minibatch": 4, "minibatches": 8}


def test_a_limit_that_was_given_stays_and_one_sample_that_fills_a_device_leaves_no_choice():
    for given in (0, 8193, 20_000):
        assert ask(CHAT, "qwen3-8b", **H100, max_tokens=given).max_tokens == given
    asked = ask(CHAT, "llama-3.1-70b", gpu="h100", devices=8, minibatch=4, minibatches=2)
    assert (asked.max_tokens, asked.limits_tried, asked.limit) == (0, 0, CHAT.longest)


def test_many_samples_of_a_device_are_searched_as_well_by_fewer_minibatches(monkeypatch):
    """Neither side loses anything to speak of by the quicker search, and each limit of a side is told once."""
    rough = ask(CHAT, "qwen3-0.6b", gpu="h100", devices=2, minibatch=4 * limit.MANY, minibatches=2, max_tokens=0)
    done = []
    quick = limit.chosen(rough, advance=lambda: done.append(1))
    assert len(done) == len(limit.SIDES) * quick.limits_tried > 4
    monkeypatch.setattr(limit, "MANY", 10**9)
    slow = limit.chosen(rough)
    for ours, best in zip(*(limit.seconds(one, [one.max_tokens]) for one in (quick, slow)), strict=True):
        assert ours[0] <= 1.003 * best[0]


def test_a_longest_sample_that_was_not_drawn_is_told_of():
    """Each drawn row fits, and a way out is said all the same."""
    one_long = Trace("one long", np.append(CHAT.lengths, 60_000))
    found = compare(ask(one_long, "llama-3.1-8b", gpu="h100", devices=4, minibatch=4, minibatches=2))
    reply = answer.answer(found)
    assert capacity.level(reply.chosen) == capacity.FITS
    assert any("--truncate" in said for said in answer_words.sentences(found, reply))
