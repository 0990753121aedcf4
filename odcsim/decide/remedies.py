"""What would fit where nothing does: each way out by itself, or two at once, with the memory that they come to."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from odcsim.catalog.estimates import memory
from odcsim.cost import Cost
from odcsim.decide import room
from odcsim.decide.setting import Setting
from odcsim.recipe import Recipe
from odcsim.trace import Trace

MOST = 64  # times the devices that were asked for
RANK = 16  # of adapters: what most people take
# Where the states go, and how few of them there can be, by what somebody types.
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "--offload": {"offload": True},
    "--optimizer 8bit": {"optimizer": "8bit"},
    f"--lora {RANK}": {"lora": RANK},
}


def needs(setting: Setting) -> memory.Memory:
    """A device's memory where the fullest microbatch is the longest sample: no plan needs less."""
    longest = setting.trace.longest
    return room.needed(_leanest(setting), longest, longest)


def misfits(setting: Setting) -> bool:
    """Whether not even the longest sample alone fits, where the memory of a GPU is known."""
    limit = setting.cost.cluster.memory_bytes
    return limit is not None and 0 < limit < needs(setting).total


def remedies(setting: Setting) -> list[str]:
    """In words, the nearest to what was asked for first; none where the memory of a GPU is not known."""
    limit = setting.cost.cluster.memory_bytes
    if not limit:
        return []
    alone = [*_smaller(setting, limit), *_chosen(setting, limit), *_more(setting, limit), *_shorter(setting, limit)]
    return alone or [*_together(setting, limit)]


def _leanest(setting: Setting) -> Cost:
    return room.under(setting.cost, "collective")


def _smaller(setting: Setting, limit: float) -> Iterator[str]:
    """A smaller limit, where the one that was asked for is what does not fit."""
    longest = setting.trace.longest
    most = room.fullest(_leanest(setting), longest, limit, setting.limit)
    if longest <= most < setting.limit:
        yield f"--max-tokens {most}"


def _chosen(setting: Setting, limit: float) -> Iterator[str]:
    recipe, longest = setting.cost.recipe, setting.trace.longest
    layers = {"--recompute full": {"recompute": "full"}} if recipe.recompute != "full" else {}
    for words, choices in {**layers, **CHOICES}.items():
        other = replace(_leanest(setting).recipe, **choices)
        if other != _leanest(setting).recipe:
            yield from _fitting(words, _total(setting.cost, longest, other), limit)


def _total(cost: Cost, longest: int, recipe: Recipe) -> float:
    """By a recipe whose seconds nobody needs."""
    return memory.estimate(cost.model, cost.cluster.devices, longest, recipe, cost.holders, longest).total


def _more(setting: Setting, limit: float) -> Iterator[str]:
    """Twice the devices, and twice again."""
    cost, longest, times = _leanest(setting), setting.trace.longest, 2
    while times <= MOST:
        cluster = replace(cost.cluster, devices=times * setting.cost.cluster.devices)
        total = room.needed(replace(cost, cluster=cluster), longest, longest).total
        if total <= limit:
            yield from _fitting(f"{cluster.devices} devices", total, limit)
            return
        times *= 2


def _shorter(setting: Setting, limit: float) -> Iterator[str]:
    """The longest cutoff that fits, and what it costs."""
    cutoff = _cutoff(setting, limit)
    if 0 < cutoff < setting.trace.longest:
        samples, tokens = _over(setting.trace, cutoff)
        yield f"--truncate {cutoff} (shortens {samples:.1%} of samples, loses {tokens:.1%} of tokens)"


def _cutoff(setting: Setting, limit: float) -> int:
    cost, low, high = _leanest(setting), 0, setting.trace.longest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if room.needed(cost, middle, middle).total <= limit else (low, middle - 1)
    return low // 256 * 256


def _together(setting: Setting, limit: float) -> Iterator[str]:
    """Two at once: adapters with another way out, and more devices with a cutoff of half the longest sample."""
    cost = setting.cost
    adapters = replace(setting, cost=replace(cost, recipe=replace(cost.recipe, lora=RANK)))
    yield from (f"--lora {RANK} and {way}" for way in [*_more(adapters, limit), *_shorter(adapters, limit)])
    times = 2
    while times <= MOST:
        devices = times * cost.cluster.devices
        larger = replace(setting, cost=replace(cost, cluster=replace(cost.cluster, devices=devices)))
        if 2 * _cutoff(larger, limit) >= setting.trace.longest:
            yield from (f"{devices} devices and {way}" for way in _shorter(larger, limit))
            return
        times *= 2


def _over(trace: Trace, cutoff: int) -> tuple[float, float]:
    """Shares of samples that are longer, and of tokens beyond."""
    counts = 1 if trace.counts is None else trace.counts
    beyond = (trace.lengths - cutoff).clip(0)
    return float(((beyond > 0) * counts).sum() / trace.size), float((beyond * counts).sum() / trace.size / trace.mean)


def _fitting(words: str, total: float, limit: float) -> Iterator[str]:
    if total <= limit:
        yield f"{words} ({total / 1e9:.0f} GB)"
