"""Whether a run's log is as its configuration lets expect; and where it is not, what would explain it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcsim.decide.priced_step import FEW, PricedStep, Surroundings
from odcsim.errors import InputError
from odcsim.fitting.steps import LoggedRow, StepLog, read_steps, rows_of
from odcsim.neighbours.logs import MEMORY, key_of
from odcsim.neighbours.neighbour import IN_PADDED, ChosenRow
from odcsim.trace import GRPO

NEAR = math.log(1.35)  # that what explains a run may be off by
SLOW_LINK = 8.0  # times as slow as is known of the network: Ethernet in place of InfiniBand, PCIe in place of NVLink
ALIKE = 2.0  # times the tokens of a step up to which a log is of such steps
OF_STEP, OF_UPDATE = "step", "update"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What may have run instead, and what a step would then take and need."""

    words: str
    seconds: float
    memory: float | None
    off: float  # from all figures of the log together, as a logarithm


@dataclass(frozen=True, slots=True)
class Normality:
    """Expected beside measured. `explained`: what comes near, the nearest first."""

    log: StepLog
    what: str  # that was timed: a step, or the update alone
    low: float
    high: float
    seconds: float  # of a step, at the median
    expected_tokens: float
    tokens: float | None = None
    memory: float | None = None  # bytes that were reserved at most
    expected_memory: float | None = None
    explained: tuple[Explanation, ...] = ()
    rest: float = 0.0  # seconds over what is expected

    @property
    def normal(self) -> bool:
        return self.low <= self.seconds <= self.high

    def as_json(self) -> dict[str, Any]:
        return {
            "timed": self.what, "measured_seconds": self.seconds, "expected_low": self.low, "expected_high": self.high,
            "normal": self.normal, "measured_tokens": self.tokens, "expected_tokens": self.expected_tokens,
            "measured_memory": self.memory, "expected_memory": self.expected_memory, "unexplained_seconds": self.rest,
            "explanations": [
                {"words": one.words, "step_seconds": one.seconds, "memory_bytes": one.memory, "off": one.off}
                for one in self.explained
            ],
        }  # fmt: skip


def explain(of: Surroundings, step: PricedStep, paths: Sequence[str]) -> Normality:
    """Of a log of its steps. Of rollouts it may time the update alone. Of a log with other tokens in a step seconds are
    those that the model gives to so many."""
    log = read_steps(paths, step.row.devices)
    seconds = float(np.median([one.seconds / one.steps for one in log.steps]))
    known = [one.tokens / one.steps for one in log.steps if one.tokens is not None]
    tokens, memory = float(np.median(known)) if known else None, read_memory(rows_of(paths))
    update = step.row.kind == GRPO and log.by.updates
    share = step.training / step.seconds if update else 1.0
    times = tokens / step.tokens if tokens else 1.0
    scale = share * (times if 1 / ALIKE < times < ALIKE else 1.0)
    reserved = step.need.memory_bytes - (step.usual.memory_terms or {}).get("context", 0.0)
    what, low, high = OF_UPDATE if update else OF_STEP, step.low * scale, step.high * scale
    found = Normality(log, what, low, high, seconds, step.tokens, tokens, memory, reserved)
    if found.normal:
        return found
    now, every = of.price(step.row, FEW), list[Explanation]()
    for words, row, other in instead(of, step.row):
        try:
            one = other.price(row, FEW)
        except InputError:
            continue
        taken = step.seconds * scale * (one.training / one.tokens) / (now.training / now.tokens)
        need = reserved + one.need.memory_bytes - now.need.memory_bytes
        offs = [math.log(seconds / taken), *([math.log(memory / need)] if memory else [])]
        every.append(Explanation(words, taken, need, math.sqrt(sum(off * off for off in offs) / len(offs))))
    near = sorted((one for one in every if one.off <= NEAR), key=lambda one: one.off)
    return replace(found, explained=tuple(near), rest=seconds - step.seconds * scale)


def read_memory(rows: Sequence[LoggedRow]) -> float | None:
    """Bytes that a log says were reserved at most on a GPU; None where it says none."""
    names = [name for row in rows for name in row.values]
    for key, unit in MEMORY:
        if (name := key_of([key], names)) is not None:
            return max(row.values[name] for row in rows if name in row.values) * unit
    return None


def instead(of: Surroundings, row: ChosenRow) -> Iterator[tuple[str, ChosenRow, Surroundings]]:
    """Rows that may have run in place of the one that was asked for, in the words of why."""
    recipe = row.recipe

    def by(**words: Any) -> ChosenRow:
        return replace(row, recipe=recipe.by(**words))

    if recipe.value("attention") != "eager":
        yield (
            "attention ran eager, its kernel not installed or not taken",
            by(attention="eager"),
            of,
        )
    if recipe.value("attention") in ("fa2", "fa3"):
        yield "attention ran by PyTorch's sdpa", by(attention="sdpa"), of
    if recipe.value("loss") != "whole":
        yield "the loss had all logits at once, the fused one not taken", by(loss="whole"), of
    if recipe.recompute == "none":
        yield "layers were computed again, by gradient checkpointing", by(recompute="full"), of
    if recipe.recompute != "none":
        yield "nothing was computed again, gradient checkpointing off", by(recompute="none"), of
    if row.balancer != IN_PADDED and row.kind != GRPO:
        rows = row.minibatch if row.each else 1
        yield "samples were padded, and neither packed nor flattened", _padded(of, row, rows), of
    if recipe.value("stack") != "plain":
        yield "layers were not compiled", by(stack="plain"), of
    if not recipe.offload and row.devices > 1 and recipe.sharding != "none":
        yield "states of the optimizer lay on the host", by(offload=True), of
    if row.devices > 1:
        yield (
            f"links were {SLOW_LINK:g} times as slow, as over TCP or without peer access",
            row,
            replace(of, links=SLOW_LINK),
        )


def _padded(of: Surroundings, row: ChosenRow, share: int) -> ChosenRow:
    """The same samples, one or as many as before in a microbatch, each padded to the longest of it."""
    if not row.each:
        made = of.setting(row, FEW)
        share = max(1, round(row.minibatch * made.trace.size / made.trace.bundles.size))
    return replace(row, balancer=IN_PADDED, each=row.each or 1, minibatch=share, max_tokens=0, rows=1)
