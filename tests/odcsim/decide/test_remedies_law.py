"""What is said to fit where nothing does: the same question with it has room, what is not said has none, and no
smaller change of the kind would do. Of drawn lengths on GPUs whose memory is drawn."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from odcsim import Trace, ask
from odcsim.decide import room
from odcsim.decide.remedies import misfits, outliers, remedies

CHOICES = {
    "--loss chunked": {"loss": "chunked"},
    "--offload": {"offload": True},
    "--optimizer 8bit": {"optimizer": "8bit"},
    "--lora 16": {"lora": 16},
    "--recompute full": {"recompute": "full"},
}
LOSSES = {"slime": "whole", "axolotl": "whole", "verl": "whole", "accelerate": "whole", "torchtitan": "chunked"}
MODELS = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b")
USUAL = {"gpu": "h100", "devices": 4, "devices_per_node": 4, "max_tokens": 0, "minibatches": 1, "sharding": "full"}


def asked(trace, given, **choices):
    return ask(trace, **USUAL | given | choices)


def drawn(seed, share=1.0):
    """A trace, what is asked of it, and the bytes of a GPU: some of what the question needs."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(rng.uniform(6, 10), 1.0, 40), 64, 60_000).astype(np.int64)
    trace = Trace("drawn", lengths, bundle=np.repeat(np.arange(20), 2) if seed % 5 == 4 else None)
    given = {"model": MODELS[seed % 3], "minibatch": int(rng.integers(1, 4))}
    given |= [{"recompute": False}, {"loss": "whole"}, {}, {}][seed % 4]
    given |= {"lora": 8} if seed % 7 == 3 else {}
    given |= {"max_tokens": int(trace.fullest * rng.uniform(1, 4))} if seed % 3 == 0 else {}
    if seed % 6 == 5:
        given |= {"minibatch": None, "global_batch": 4 * int(rng.integers(1, 7))}
    if seed % 8 == 2:
        given |= {"devices": 8, "sharding": "hybrid", "minibatch": min(given["minibatch"], 2)}
    memory = share * needed(asked(trace, given)) * rng.uniform(0.4, 1.4) / 0.92
    setting = on(asked(trace, given), memory)
    return SimpleNamespace(trace=trace, given=given, setting=setting, said=remedies(setting), limit=0.92 * memory)


@pytest.fixture(scope="module", params=range(60))
def one(request):
    return drawn(request.param)


def needed(setting):
    """Bytes of the fullest microbatch, which no plan of so many samples on each device can exceed: the longest alone,
    or as many tokens as a limit that somebody gave allows."""
    fullest = setting.trace.fullest
    tokens = max(fullest, min(setting.max_tokens, setting.minibatch * fullest))
    return room.needed(room.under(setting.cost, "collective"), tokens, setting.trace.longest).total


def on(setting, memory):
    return replace(setting, cost=replace(setting.cost, cluster=replace(setting.cost.cluster, memory_bytes=memory)))


def cut(trace, cutoff):
    return replace(trace, lengths=trace.lengths.clip(max=cutoff))


def enough(trace, given, devices):
    """Whether minibatches divide, and lengths fill one."""
    if batch := given.get("global_batch"):
        return batch % devices == 0
    return given["minibatch"] * devices <= trace.bundles.size


def test_every_single_change_that_fits_is_said_and_no_other(one):
    for flag, choices in CHOICES.items():
        other = asked(one.trace, one.given, **choices)
        fits = other.cost.recipe != one.setting.cost.recipe and needed(other) <= one.limit
        assert any(re.match(re.escape(flag) + r" \(", words) for words in one.said) == fits, flag
    qlora = asked(one.trace, one.given, lora=one.given.get("lora", 16), quantization="nf4")
    fits = needed(qlora) <= one.limit and not any(words.startswith("--lora 16 (") for words in one.said)
    assert any("--quantization nf4 (" in words for words in one.said) == fits
    hybrid = "sharding" in one.given
    fits = hybrid and needed(asked(one.trace, one.given, sharding="full")) <= one.limit
    assert any(words.startswith("--sharding full (") for words in one.said) == fits


def test_devices_are_the_first_doubling_that_fits(one):
    said = r"(\d+) devices(?: and --global-batch (\d+))? \("
    found = [match.groups() for words in one.said if (match := re.match(said, words))]
    expected, batch = [], one.given.get("global_batch")
    for n in (one.given.get("devices", 4) * 2**n for n in range(1, 7)):
        # Where no batch of so many samples divides, the next larger that does, if there are as many.
        larger = {} if enough(one.trace, one.given, n) or not batch else {"global_batch": -(-batch // n) * n}
        if not enough(one.trace, one.given | larger, n) or larger.get("global_batch", 0) > one.trace.bundles.size:
            continue
        if needed(asked(one.trace, one.given, devices=n, **larger)) <= one.limit:
            expected.append((f"{n}", f"{larger['global_batch']}" if larger else None))
    assert found == expected[:1]


def test_limits_and_cutoffs_are_the_longest_that_fit_and_what_a_cutoff_costs_is_counted(one):
    setting, trace, limit = one.setting, one.trace, one.limit
    alone = [words for words in one.said if " and " not in words]
    cost = room.under(setting.cost, "collective")

    def fits(tokens):
        return room.needed(cost, tokens, trace.longest).total <= limit

    smaller = [int(re.match(r"--max-tokens (\d+)$", words)[1]) for words in alone if words.startswith("--max-tokens")]
    held = min(setting.max_tokens, setting.minibatch * trace.fullest)
    assert bool(smaller) == (held > trace.fullest and fits(trace.fullest) and not fits(held))
    for tokens in smaller:
        assert fits(tokens)
        assert not fits(tokens + 1)

    def cut_fits(cutoff):
        return needed(replace(setting, trace=cut(trace, cutoff))) <= limit

    longest = max((at for at in range(256, trace.longest, 256) if cut_fits(at)), default=0)
    cutoffs = [words for words in alone if words.startswith("--truncate")]
    assert len(cutoffs) == (longest > 0 and not cut_fits(trace.longest)), one.said
    for words in cutoffs:
        costs = re.match(r"--truncate (\d+) \(shortens ([\d.]+)% of samples, loses ([\d.]+)% of tokens\)$", words)
        over = trace.lengths > longest
        lost = (trace.lengths[over] - longest).sum() / trace.lengths.sum()
        expected = longest, 100 * over.mean(), 100 * lost
        assert tuple(map(float, costs.groups())) == pytest.approx(expected, rel=0, abs=0.051)


@pytest.mark.parametrize("seed", range(60))
def test_two_changes_at_once_are_said_where_no_single_one_fits_and_they_do(seed):
    one = drawn(seed, share=0.3)
    least = room.least(room.under(one.setting.cost, "collective"), one.trace).total
    assert misfits(one.setting) == (least > one.limit / 0.92)
    for words in one.said:
        if " and " not in words.partition("(")[0]:
            continue
        changed, lengths = dict(one.given), one.trace
        for change in words.partition(" (")[0].split(" and "):
            if match := re.match(r"--lora (\d+)", change):
                changed["lora"] = int(match[1])
            elif match := re.match(r"(\d+) devices", change):
                changed["devices"] = int(match[1])
            elif match := re.match(r"--truncate (\d+)", change):
                lengths = cut(one.trace, int(match[1]))
        assert enough(one.trace, changed, changed.get("devices", 4))
        assert needed(asked(lengths, changed)) <= one.limit, words


@pytest.mark.parametrize("seed", range(20))
def test_outliers_are_the_few_beyond_what_fits(seed):
    rng = np.random.default_rng(seed)
    many = np.clip(rng.lognormal(7, 0.5, 3000), 64, 6000).astype(np.int64)
    few = int(rng.integers(1, 7))
    trace = Trace("drawn", np.append(many, rng.integers(30_000, 60_000, few)))
    cost = room.under(ask(trace, "qwen2.5-7b", gpu="h100", devices=4, minibatch=1, minibatches=1).cost, "collective")
    memory = room.needed(cost, 8000, 8000).total / 0.92
    cutoff = max(at for at in range(256, 60_000, 256) if room.needed(cost, at, at).total <= 0.92 * memory)
    said = outliers(cost, trace, memory)
    assert bool(said) == ((trace.lengths > cutoff).mean() <= 0.001)
    assert not said or said.startswith(f"--truncate {cutoff} ")
    assert not outliers(cost, trace, room.needed(cost, trace.longest, trace.longest).total / 0.919)


@pytest.mark.parametrize("trainer", ["slime", "axolotl", "verl", "accelerate", "torchtitan"])
def test_no_way_out_is_named_that_the_trainer_does_not_say(trainer):
    """Of whole logits that fit nowhere: what is named is asked for again, and is not refused."""
    lengths = [60_000, *[900] * 63]
    given = USUAL | {"model": "qwen2.5-7b", "minibatch": 16}
    memory = 1.2 * needed(ask(lengths, loss="chunked", stack="plain", **given))
    setting = on(ask(lengths, trainer=trainer, loss=LOSSES[trainer], **given), memory)
    named = {words for way in remedies(setting) for words in CHOICES if way.startswith(words)}
    for words in named:
        ask(lengths, trainer=trainer, **{"loss": LOSSES[trainer]} | given | CHOICES[words])
    assert ("--loss chunked" in named) == (trainer in ("axolotl", "verl", "accelerate"))
