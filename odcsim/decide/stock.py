"""What a trainer that others wrote runs of a question by itself: the settings of its rules, each with its balancer.

A rule that counts samples, or deals by tokens, trains on the samples that were asked for. One that packs rows before
training takes as many rows as hold about so many tokens; where those would be another batch, it is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from odcsim.decide import room
from odcsim.decide.limit import FEW
from odcsim.decide.setting import Setting, assign, drawn
from odcsim.errors import InputError, misspelled
from odcsim.executors import simulation
from odcsim.neighbours import TRAINERS, named
from odcsim.neighbours.neighbour import IN_BATCHES, IN_PADDED, Neighbour, Rule, lacking
from odcsim.program import sync_named
from odcsim.recipe import Recipe
from odcsim.results import capacity
from odcsim.trace import Trace

ENGINE = "odc"  # the engine of this project, which runs every balancer under every sync
NAMES = (*TRAINERS, ENGINE)
MOST = 20_000  # samples that are packed, of more that there are
AIMED = 6  # limits of rows that are tried for the sake of the batch
OTHER = 0.1  # of a batch's samples: rows that hold so many more or fewer are another batch


@dataclass(frozen=True, slots=True)
class Stock:
    """One way: what is drawn and how it is dealt."""

    rule: Rule
    setting: Setting

    @property
    def samples(self) -> float:
        """Of a step, on average."""
        trace, setting = self.setting.trace, self.setting
        each = trace.size / trace.bundles.size if self.rule.rows else 1.0
        return setting.batch * each

    @property
    def accumulates(self) -> bool:
        """Whether a step has several microbatches: of one, gradients leave at once under every sync."""
        return self.setting.minibatch > (self.setting.each or 1)


def known(name: str | None) -> Neighbour | None:
    """None for the engine, and where nobody asks for a trainer."""
    if name is None or name == ENGINE:
        return None
    if name not in TRAINERS:
        fix = misspelled(name, list(NAMES)) or f"there are {', '.join(NAMES)}"
        raise InputError(f"unknown trainer '{name}'", fix=fix)
    return TRAINERS[name]


def assumed(name: str | None) -> dict[str, str]:
    """Choices of a recipe that follow from the trainer, where nobody makes others."""
    trainer = known(name)
    return {} if trainer is None else dict(trainer.assumes)


def chosen(setting: Setting, trainer: Neighbour) -> list[tuple[Stock, str]]:
    """The fastest of each rule under each sync, of what fits; what is tight, or does not fit, where nothing else is."""
    given = setting.limit if setting.max_tokens and not setting.limits_tried else 0
    memory = setting.cost.cluster.memory_bytes or 0.0
    check(setting.trace, setting.cost.recipe, trainer)
    for room_for in (capacity.filled(memory), memory, 0.0):
        found = [best for sync in trainer.met for best in _best(setting, trainer, sync, room_for, given)]
        if found:
            return found
    if not packs(setting):
        problem = f"{trainer.name} packs samples into rows, which would span steps of '{setting.trace.name}'"
        raise InputError(problem, fix="leave out --in-order, or --trainer")
    batch, rule = setting.batch, next(rule for rule in trainer.own if rule.rows)
    problem = f"{trainer.name} cannot make a step of {batch:,} samples of these: {nearest_steps(setting, rule, given)}"
    raise InputError(problem, fix="ask for as many with --global-batch, or leave --trainer out")


def check(trace: Trace, recipe: Recipe, trainer: Neighbour) -> None:
    """Refuse what the trainer cannot be told, and what it does not train on."""
    if lacks := lacking(trainer, recipe):
        raise InputError(f"{lacks[0]} with --trainer {trainer.name}", fix="its settings do not say it: leave it out")
    if trace.bundle is not None and "pairs" not in trainer.knows:
        known = ", ".join(name for name, other in TRAINERS.items() if "pairs" in other.knows)
        problem = f"{trace.unit}s with --trainer {trainer.name}"
        raise InputError(problem, where=trace.name, fix=f"ask for {known} or {ENGINE}, or leave it out")


def _best(setting: Setting, trainer: Neighbour, sync: str, memory: float, limit: int) -> Iterator[tuple[Stock, str]]:
    every = list(ways(setting, trainer, sync, memory, limit))
    for rule in trainer.own:
        if some := [stock for stock in every if stock.rule == rule]:
            yield min(some, key=lambda stock: pace(stock, sync)), sync


def pace(stock: Stock, sync: str) -> float:
    """Seconds of a token, as screening has it."""
    setting = replace(stock.setting, minibatches=min(FEW, stock.setting.minibatches))
    minibatches = drawn(setting)
    file = assign(setting, stock.rule.balancer, minibatches, exactly=False)
    tokens = sum(int(minibatch.lengths.sum()) for minibatch in minibatches)
    return float(simulation.makespans(file.schedules, room.under(setting.cost, sync).calm).sum()) / tokens


def ways(setting: Setting, trainer: Neighbour, sync: str, memory: float, limit: int = 0) -> Iterator[Stock]:
    """Those of a sync that fit into so many bytes (0: nobody knows), and under a token limit that somebody gave."""
    cost, longest = room.under(setting.cost, sync), setting.trace.longest
    top = max(setting.trace.fullest * setting.minibatch, int(2 * room.ENOUGH * setting.device_tokens))
    most = limit or (room.fullest(cost, longest, memory, top) if memory else top)
    for found in _ways(setting, trainer, most, limit):
        if sync_named(sync).push_every_microbatch or found.accumulates:
            yield found


def packs(setting: Setting) -> bool:
    """Whether samples go into rows: those that stay together do not, nor those that are kept in steps of RL."""
    return setting.trace.bundle is None and not (setting.in_order and setting.trace.step is not None)


def _ways(setting: Setting, trainer: Neighbour, most: int, limit: int) -> Iterator[Stock]:
    for rule in trainer.own:
        if rule.rows is not None and not packs(setting):
            continue
        if rule.rows is not None:
            yield from _in_rows(setting, rule, most, limit)
        elif rule.balancer in (IN_BATCHES, IN_PADDED):
            yield from _counted(setting, rule, most)
        else:
            tried = (limit,) if limit else room.limits(setting.trace.fullest, most, setting.device_tokens)
            yield from (Stock(rule, replace(setting, max_tokens=tokens)) for tokens in tried)


def _counted(setting: Setting, rule: Rule, most: int) -> Iterator[Stock]:
    """As many samples in each microbatch as divide a device's, and never more tokens than fit."""
    share = setting.minibatch
    for each in (n for n in range(1, share + 1) if not share % n):
        held = worst(setting.trace, each, padded=named(rule.balancer).pads is not None)
        if held <= most:
            yield Stock(rule, replace(setting, max_tokens=held, each=each))


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


def _in_rows(setting: Setting, rule: Rule, most: int, limit: int) -> Iterator[Stock]:
    """Rows of as many tokens as fit, and so many of them that a step trains on about the batch that was asked for."""
    batch = setting.batch
    for tokens in (limit,) if limit else _limits(setting, rule, most):
        stock = _of_rows(setting, rule, tokens)
        share = max(1, round(batch / stock.samples))
        found = replace(stock, setting=replace(stock.setting, minibatch=share))
        enough = share * setting.cost.workers <= found.setting.trace.bundles.size
        if enough and abs(found.samples / batch - 1) <= OTHER:
            yield found


def _of_rows(setting: Setting, rule: Rule, tokens: int) -> Stock:
    """A row of so many tokens on each device."""
    trace = packed(setting.trace, rule, tokens, setting.seed, in_order=setting.in_order)
    return Stock(rule, replace(setting, trace=trace, minibatch=1, max_tokens=tokens))


def _limits(setting: Setting, rule: Rule, most: int) -> tuple[int, ...]:
    """Those to try anyway, and those by which one row on each device, two or three are the batch: few fit it by
    chance."""
    longest, device = setting.trace.longest, setting.device_tokens
    if most < longest:
        return ()
    full = packed(setting.trace, rule, longest, setting.seed, in_order=setting.in_order)
    filled = full.bundles.mean / longest
    aimed = [int(device / rows / filled) for rows in range(1, max(1, int(device / filled / longest)) + 1)]
    aimed = [tokens for tokens in aimed if longest <= tokens <= most][:AIMED]
    return tuple(sorted({*room.limits(longest, most, device), *aimed}))


def nearest_steps(setting: Setting, rule: Rule, limit: int) -> str:
    """What its steps are instead, in words: at a limit that was given, or of rows as short as can be."""
    each = _of_rows(setting, rule, limit or setting.trace.longest)
    batch = setting.batch
    if each.samples >= batch or not limit:
        return f"its smallest step has {each.samples:,.0f}"
    fewer = int(batch / each.samples)
    return f"at {limit:,} tokens a row its steps have {fewer * each.samples:,.0f} or {(fewer + 1) * each.samples:,.0f}"


@lru_cache(maxsize=64)
def packed(trace: Trace, rule: Rule, limit: int, seed: int, *, in_order: bool = False) -> Trace:
    """The trace as rows: of no more samples than tell how full they are."""
    assert rule.rows is not None
    size = min(trace.size, MOST)
    ids = np.arange(size)
    if size < trace.size and not in_order:
        ids = np.random.default_rng(seed).choice(trace.size, size, replace=False)
    lengths, loss = trace.take(ids), None if trace.loss is None else trace.loss[trace.rows(ids)]
    rows = _rows(lengths.tolist(), rule, limit)
    order = np.array([i for row in rows for i in row], dtype=np.int64)
    bundle = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    more: dict[str, Any] = {} if loss is None else {"loss": loss[order]}
    whole = round(trace.whole * len(rows) / size) if trace.whole > size else 0
    return Trace(trace.name, lengths[order], origin=trace.origin, drawn_from=whole, bundle=bundle, **more)


def _rows(lengths: Sequence[int], rule: Rule, limit: int) -> list[list[int]]:
    assert rule.rows is not None
    group = rule.group or len(lengths)
    starts = range(0, len(lengths), group)
    return [[start + i for i in row] for start in starts for row in rule.rows(lengths[start : start + group], limit)]
