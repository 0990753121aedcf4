"""What is said to fit where nothing does: the same question with it has room, what is not said has none, and no
smaller change of the kind would do. Of drawn lengths on GPUs whose memory is drawn."""

import re
from dataclasses import replace

import numpy as np
import pytest

from odcsim import Trace
from odcsim.decide import room
from odcsim.decide.asking import ask
from odcsim.decide.remedies import misfits, outliers, remedies

SEEDS = range(60)
CHOICES = {
    "--loss chunked": {"loss": "chunked"},
    "--offload": {"offload": True},
    "--optimizer 8bit": {"optimizer": "8bit"},
    "--lora 16": {"lora": 16},
    "--recompute full": {"recompute": "full"},
}
MODELS = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b")


def asked(trace, given, devices=4, **choices):
    every = {"gpu": "h100", "devices_per_node": 4, "max_tokens": 0, "minibatches": 1, **given, **choices}
    return ask(trace, every.pop("model"), devices=devices, **every)


def drawn(seed):
    """A trace, what is asked of it, and the bytes of a GPU: some of what the question needs."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(rng.uniform(6, 10), 1.0, 40), 64, 60_000).astype(np.int64)
    bundle = np.repeat(np.arange(20), 2) if seed % 5 == 4 else None
    trace = Trace("drawn", lengths, bundle=bundle)
    given = {"model": MODELS[seed % 3], "minibatch": int(rng.integers(1, 4))}
    given |= {"recompute": False} if seed % 4 == 0 else {}
    given |= {"loss": "whole"} if seed % 4 == 1 else {}
    given |= {"lora": 8} if seed % 7 == 3 else {}
    if seed % 3 == 0:
        given |= {"max_tokens": int(trace.fullest * rng.uniform(1, 4))}
    if seed % 6 == 5:
        given |= {"minibatch": None, "global_batch": 4 * int(rng.integers(1, 7))}
    sharding = "hybrid" if seed % 8 == 2 else "full"
    devices = 8 if sharding == "hybrid" else 4
    if devices == 8 and given["minibatch"]:
        given["minibatch"] = min(given["minibatch"], 2)
    if devices == 8 and "global_batch" in given:
        given["global_batch"] *= 2
    given |= {"sharding": sharding}
    memory = needed(asked(trace, given, devices)) * rng.uniform(0.4, 1.4) / 0.92
    return trace, given, devices, memory


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
    if batch := given.get("global_batch"):
        return batch % devices == 0
    return given["minibatch"] * devices <= trace.bundles.size


def with_devices(trace, given, devices):
    """The bytes that it needs there; None where minibatches do not divide, or lengths do not fill one."""
    if not enough(trace, given, devices):
        return None
    return needed(asked(trace, given, devices))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_single_change_that_fits_is_said_and_no_other(seed):
    trace, given, devices, memory = drawn(seed)
    setting = on(asked(trace, given, devices), memory)
    said, limit = remedies(setting), 0.92 * memory
    for flag, choices in CHOICES.items():
        other = asked(trace, given, devices, **choices)
        fits = other.cost.recipe != setting.cost.recipe and needed(other) <= limit
        assert any(re.match(re.escape(flag) + r" \(", words) for words in said) == fits, flag
    hybrid = given["sharding"] == "hybrid"
    fits = hybrid and needed(asked(trace, given, devices, sharding="full")) <= limit
    assert any(words.startswith("--sharding full (") for words in said) == fits


@pytest.mark.parametrize("seed", SEEDS)
def test_devices_are_the_first_doubling_that_fits(seed):
    trace, given, devices, memory = drawn(seed)
    said = [re.match(r"(\d+) devices \(", words) for words in remedies(on(asked(trace, given, devices), memory))]
    found = [int(match[1]) for match in said if match]
    every = [devices * 2**n for n in range(1, 7)]
    fit = [n for n in every if (bytes_ := with_devices(trace, given, n)) is not None and bytes_ <= 0.92 * memory]
    assert found == fit[:1]


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_and_cutoffs_are_the_longest_that_fit(seed):
    trace, given, devices, memory = drawn(seed)
    setting = on(asked(trace, given, devices), memory)
    said, limit = "; ".join(remedies(setting)), 0.92 * memory
    alone = [words for words in remedies(setting) if " and " not in words]
    cost = room.under(setting.cost, "collective")

    def fits(tokens):
        return room.needed(cost, tokens, trace.longest).total <= limit

    smaller = [int(re.match(r"--max-tokens (\d+)$", words)[1]) for words in alone if words.startswith("--max-tokens")]
    held = min(setting.max_tokens, setting.minibatch * trace.fullest)
    assert bool(smaller) == (held > trace.fullest and fits(trace.fullest) and not fits(held))
    for tokens in smaller:
        assert fits(tokens)
        assert not fits(tokens + 1)
    cutoffs = [int(re.match(r"--truncate (\d+) ", words)[1]) for words in alone if words.startswith("--truncate")]

    def cut_fits(cutoff):
        return needed(on(replace(setting, trace=cut(trace, cutoff)), memory)) <= limit

    longest = max((at for at in range(256, trace.longest, 256) if cut_fits(at)), default=0)
    assert cutoffs == [longest] * (longest > 0 and not cut_fits(trace.longest)), said


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_cutoff_costs_is_counted(seed):
    trace, given, devices, memory = drawn(seed)
    for words in remedies(on(asked(trace, given, devices), memory)):
        match = re.match(r"--truncate (\d+) \(shortens ([\d.]+)% of samples, loses ([\d.]+)% of tokens\)$", words)
        if match:
            cutoff, over = int(match[1]), trace.lengths > int(match[1])
            assert float(match[2]) == pytest.approx(100 * over.mean(), abs=0.051)
            lost = (trace.lengths[over] - cutoff).sum() / trace.lengths.sum()
            assert float(match[3]) == pytest.approx(100 * lost, abs=0.051)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_changes_at_once_are_said_where_no_single_one_fits_and_they_do(seed):
    trace, given, devices, memory = drawn(seed)
    memory *= 0.3
    setting, limit = on(asked(trace, given, devices), memory), 0.92 * memory
    assert misfits(setting) == (room.least(room.under(setting.cost, "collective"), trace).total > memory)
    for words in remedies(setting):
        if " and " not in words.partition("(")[0]:
            continue
        changed, many, lengths = dict(given), devices, trace
        for one in words.partition(" (")[0].split(" and "):
            if match := re.match(r"--lora (\d+)", one):
                changed |= {"lora": int(match[1])}
            elif match := re.match(r"(\d+) devices", one):
                many = int(match[1])
            elif match := re.match(r"--truncate (\d+)", one):
                lengths = cut(trace, int(match[1]))
        assert enough(trace, given, many)
        assert needed(asked(lengths, changed, many)) <= limit, words


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
