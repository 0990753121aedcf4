"""What a trainer that others wrote runs of a question by itself: the ways that its rules and settings make.

A rule that counts samples, or deals by tokens, trains on the samples that were asked for. One that packs rows before
training takes as many rows as hold about so many tokens; where those would be another batch, it is left out.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from odcsim.decide import room
from odcsim.decide.setting import Setting
from odcsim.decide.way import Plans, Way
from odcsim.errors import InputError, misspelled
from odcsim.neighbours import TRAINERS, named
from odcsim.neighbours.neighbour import IN_BATCHES, IN_PADDED, Neighbour, Rule, lacking
from odcsim.program import sync_named
from odcsim.recipe import Recipe
from odcsim.results import capacity
from odcsim.trace import DPO, Trace

ENGINE = "odc"  # the engine of this project, which runs every balancer under every sync
NAMES = (*TRAINERS, ENGINE)
FEW = 4  # minibatches to screen by
MOST = 20_000  # samples that are packed, of more that there are
AIMED = 6  # limits of rows that are tried for the sake of the batch
OTHER = 0.1  # of a batch's samples: rows that hold so many more or fewer are another batch


def find(name: str | None) -> Neighbour | None:
    """None for the engine, and where nobody asks for a trainer."""
    if name is None or name == ENGINE:
        return None
    if name not in TRAINERS:
        fix = misspelled(name, list(NAMES)) or f"there are {', '.join(NAMES)}"
        raise InputError(f"unknown trainer '{name}'", fix=fix)
    return TRAINERS[name]


def assumed(name: str | None) -> dict[str, str]:
    """Choices of a recipe that follow from the trainer, where nobody makes others."""
    trainer = find(name)
    return {} if trainer is None else dict(trainer.assumes)


def groups(setting: Setting) -> tuple[int, ...]:
    """How many GPUs may share each sequence instead, in a trainer whose settings say it."""
    trainer, shared = find(setting.trainer), setting.cost.recipe.by(context=2)
    return () if trainer and lacking(trainer, shared) else room.groups(setting.cost)


def given_limit(setting: Setting) -> int:
    """The token limit that somebody gave; 0: it is chosen, or the longest sample's."""
    return 0 if setting.limits_tried else setting.max_tokens


def choose(setting: Setting) -> list[Way]:
    """The fastest way of each rule of the setting's trainer under each sync, of what fits; what is tight, or does not
    fit, where nothing else is. None where nobody asks for a trainer."""
    if (trainer := find(setting.trainer)) is None:
        return []
    limit, memory = given_limit(setting), setting.cost.cluster.memory_bytes or 0.0
    check(setting.trace, setting.cost.recipe, trainer, by_length=setting.group_by_length)
    for room_for in (capacity.filled(memory), memory, 0.0):
        fastest = list[Way]()
        for sync in trainer.syncs:
            every = list(ways(setting, sync, room_for, limit))
            rules = [[way for way in every if way.rule == rule] for rule in trainer.own(setting.trace)]
            fastest += [min(some, key=pace) for some in rules if some]
        if fastest:
            return fastest
    if not packs(setting):
        problem = f"{trainer.name} packs samples into rows, which would span steps of '{setting.trace.name}'"
        raise InputError(problem, fix="leave out --in-order, or --trainer")
    rule = next(rule for rule in trainer.own(setting.trace) if rule.rows)
    nearest = nearest_steps(setting, rule)
    problem = f"{trainer.name} cannot make a step of {setting.batch:,} samples of these: {nearest}"
    raise InputError(problem, fix="ask for as many with --global-batch, or leave --trainer out")


def pace(way: Way) -> float:
    """Seconds of a token, as screening has it."""
    return Plans(FEW).pace(way, FEW)


def check(trace: Trace, recipe: Recipe, trainer: Neighbour, *, by_length: bool = False) -> None:
    """Refuse what the trainer cannot be told, and what it does not train on."""
    lacks = lacking(trainer, recipe)
    if by_length and "by_length" not in trainer.knows:
        lacks = ["--group-by-length", *lacks]
    if lacks:
        raise InputError(f"{lacks[0]} with --trainer {trainer.name}", fix="its settings do not say it: leave it out")
    if trace.bundle is not None and DPO not in trainer.entries:
        known = ", ".join(name for name, other in TRAINERS.items() if DPO in other.entries)
        problem = f"{trace.unit}s with --trainer {trainer.name}"
        raise InputError(problem, where=trace.name, fix=f"ask for {known} or {ENGINE}, or leave it out")


def ways(setting: Setting, sync: str, memory: float, limit: int = 0) -> Iterator[Way]:
    """The trainer's under a sync that fit into so many bytes (0: nobody knows), and under a limit that was given."""
    trainer, trace, share = TRAINERS[setting.trainer or ""], setting.trace, setting.minibatch
    device = setting.device_tokens
    top = max(trace.fullest * share, int(2 * room.ENOUGH * device))
    cost = room.under(setting.cost, sync)
    most = limit or (room.fullest(cost, trace.longest, memory, top) if memory else top)
    every = list[Way]()
    for rule in trainer.own(setting.trace):
        if rule.rows is not None:
            every += _in_rows(setting, rule, sync, most, limit) if packs(setting) else []
            continue
        if rule.balancer in (IN_BATCHES, IN_PADDED):  # as many samples in each microbatch as divide a device's
            padded = named(rule.balancer).pads is not None
            fullest = {each: worst(trace, each, padded=padded) for each in range(1, share + 1) if not share % each}
            sizes = [(tokens, each) for each, tokens in fullest.items() if tokens <= most]
        else:
            tried = (limit,) if limit else room.limits(trace.fullest, most, device)
            sizes = [(tokens, setting.each) for tokens in tried]
        settings = [replace(setting, max_tokens=tokens, each=each) for tokens, each in sizes]
        every += [Way(one, rule.balancer, sync) for one in settings]
    yield from (way for way in every if sync_named(sync).push_every_microbatch or way.accumulates)


def packs(setting: Setting) -> bool:
    """Whether samples go into rows: those that stay together do not, nor those that are kept in steps of RL
    or drawn by length."""
    in_steps = setting.in_order and setting.trace.step is not None
    return setting.trace.bundle is None and not in_steps and not setting.group_by_length


def worst(trace: Trace, each: int, *, padded: bool) -> int:
    """Tokens of the fullest microbatch that so many samples can make."""
    if padded:
        together = 1 if trace.bundle is None else int(np.unique(trace.bundle, return_counts=True)[1].max())
        return each * together * trace.longest
    dealt = trace.bundles
    order = np.argsort(-dealt.lengths)
    counts = np.ones(len(order), dtype=np.int64) if dealt.counts is None else dealt.counts[order]
    taken = np.minimum(counts, np.maximum(0, each - (counts.cumsum() - counts)))
    return int(taken @ dealt.lengths[order])


def _in_rows(setting: Setting, rule: Rule, sync: str, most: int, limit: int) -> Iterator[Way]:
    """Rows of as many tokens as fit, and so many of them that a step trains on about the batch that was asked for:
    limits to try anyway, and those by which one row on each device, two or three are the batch, which few fit by
    chance."""
    longest, device = setting.trace.longest, setting.device_tokens
    tried = [limit] if limit else []
    if not limit and longest <= most:
        filled = packed(setting.trace, rule, longest, setting.seed, in_order=setting.in_order).bundles.mean / longest
        aimed = [int(device / rows / filled) for rows in range(1, max(1, int(device / filled / longest)) + 1)]
        aimed = [tokens for tokens in aimed if longest <= tokens <= most][:AIMED]
        tried = sorted({*room.limits(longest, most, device), *aimed})
    for tokens in tried:
        row = _of_rows(setting, rule, sync, tokens)
        share = max(1, round(setting.batch / row.samples))
        way = replace(row, setting=replace(row.setting, minibatch=share))
        enough = share * setting.cost.workers <= way.setting.trace.bundles.size
        if enough and abs(way.samples / setting.batch - 1) <= OTHER:
            yield way


def _of_rows(setting: Setting, rule: Rule, sync: str, tokens: int) -> Way:
    """A row of so many tokens on each device."""
    trace = packed(setting.trace, rule, tokens, setting.seed, in_order=setting.in_order)
    return Way(replace(setting, trace=trace, minibatch=1, max_tokens=tokens), rule.balancer, sync)


def nearest_steps(setting: Setting, rule: Rule) -> str:
    """What its steps are instead, in words: at a limit that was given, or of rows as short as can be."""
    limit, batch = given_limit(setting), setting.batch
    each = _of_rows(setting, rule, "", limit or setting.trace.longest).samples
    if each >= batch or not limit:
        return f"its smallest step has {each:,.0f}"
    fewer = int(batch / each)
    return f"at {limit:,} tokens a row its steps have {fewer * each:,.0f} or {(fewer + 1) * each:,.0f}"


@lru_cache(maxsize=64)
def packed(trace: Trace, rule: Rule, limit: int, seed: int, *, in_order: bool = False) -> Trace:
    """The trace as rows: of no more samples than tell how full they are."""
    assert rule.rows is not None
    size = min(trace.size, MOST)
    ids = np.arange(size)
    if size < trace.size and not in_order:
        ids = np.random.default_rng(seed).choice(trace.size, size, replace=False)
    lengths, loss = trace.take(ids), None if trace.loss is None else trace.loss[trace.rows(ids)]
    every, group = lengths.tolist(), rule.group or size
    starts = range(0, size, group)
    rows = [[start + i for i in row] for start in starts for row in rule.rows(every[start : start + group], limit)]
    order = np.array([i for row in rows for i in row], dtype=np.int64)
    bundle = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    more: dict[str, Any] = {} if loss is None else {"loss": loss[order]}
    of_all = round(trace.population * len(rows) / size) if trace.population > size else 0
    return Trace(trace.name, lengths[order], origin=trace.origin, drawn_from=of_all, bundle=bundle, **more)
