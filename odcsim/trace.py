"""A trace: recorded sample lengths, in order, and the minibatches drawn from them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from odcsim.answer import Answer, Printable
from odcsim.errors import InputError
from odcsim.support import budget
from odcsim.support.numbers import counted

MAX_LENGTH = 2**31 - 1
GOLDEN = (5**0.5 - 1) / 2
DRAWN, MINIBATCH = 400, 4000  # bytes that a sample and a minibatch take, drawn and in all that a command makes of them
# Kinds of training, by what their samples are: conversations, pairs of answers, groups of answers to one prompt.
SFT, DPO, GRPO = "sft", "dpo", "grpo"
PAIR = "pair"  # the unit of who trains on what was chosen and rejected
COLUMNS = ("lengths", "counts", "loss", "group", "step", "bundle")


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Trace(Printable):
    """Lengths of samples in tokens. With `counts`, row i stands for counts[i] samples and order means nothing.

    Samples beside each other with the same `bundle` stay in one microbatch: both sides of a pair, or a row that is
    packed before training. What is drawn, dealt and counted of a minibatch is then bundles.

    Where only a part of a dataset was counted, `drawn_from` says of how many samples; 0: these are all. `folded`: the
    file has too many rows, so equal ones are counted, and a sample's number is not its row there. `left_out`: which
    rows were bad and are none of these. `unit`: what a minibatch is counted in. `siblings`: so many samples of a table
    were of one prompt, whichever they are, and how alike their lengths are (the intraclass correlation).
    """

    name: str
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None
    loss: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None
    step: NDArray[np.int64] | None = None
    origin: str = ""
    drawn_from: int = 0
    folded: bool = False
    bundle: NDArray[np.int64] | None = None
    left_out: str = ""
    unit: str = "sample"
    siblings: tuple[int, float] = (1, 0.0)

    def __post_init__(self) -> None:
        """Hold the columns for reading alone, and refuse what readers refuse with file and line: traces are built by
        hand, too."""
        for field in COLUMNS:
            if (values := getattr(self, field)) is None:
                continue
            array = np.asarray(values)
            if array.ndim != 1 or array.dtype.kind not in "iu":
                problem = f"{field} of '{self.name}' is a {array.ndim}-D array of {array.dtype}"
                raise InputError(problem, fix="give one whole number per sample")
            view = array.astype(np.int64, copy=False).view()
            view.flags.writeable = False
            object.__setattr__(self, field, view)
        name, lengths, counts, loss, bundle = f"'{self.name}'", self.lengths, self.counts, self.loss, self.bundle
        for field in COLUMNS:
            if (column := getattr(self, field)) is not None and len(column) != len(lengths):
                raise InputError(f"{field} and lengths of {name} differ in number", fix="give one of each per sample")
        if len(lengths) == 0 or (counts is not None and not counts.any()):
            raise InputError(f"{name} has no samples", fix="give at least one length")
        if lengths.min() < 1 or lengths.max() > MAX_LENGTH:
            bad = lengths[(lengths < 1) | (lengths > MAX_LENGTH)][0]
            raise InputError(f"{name} holds the length {bad}", fix=f"lengths go from 1 to {MAX_LENGTH}")
        if loss is not None and ((loss < 0) | (loss > lengths)).any():
            raise InputError(f"{name} has loss tokens outside its samples", fix="loss goes from 0 to the length")
        if counts is not None:
            if counts.min() < 0:
                raise InputError(f"{name} holds the count {counts.min()}", fix="counts start at 0")
            if self.step is not None or self.group is not None:
                problem = f"{name} has counts beside an RL step or group"
                raise InputError(problem, fix="keep one row per sample for RL")
            if bundle is not None:
                raise InputError(f"{name} has counts beside bundles", fix="keep one row per sample")
            if float(counts.astype(float) @ lengths.astype(float)) >= 2.0**62:
                raise InputError(f"{name} counts more than 2^62 tokens", fix="divide the counts by a common factor")
        if bundle is not None and len(np.unique(bundle)) != len(_firsts(bundle)):
            problem = f"{name} has a bundle in two places"
            raise InputError(problem, fix="put samples of a bundle beside each other")

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self.lengths) if self.counts is None else int(self.counts.sum())

    @property
    def kind(self) -> str:
        """What is trained on such samples."""
        grouped = self.group is not None or self.siblings[0] > 1
        return DPO if self.unit == PAIR else GRPO if grouped else SFT

    @property
    def population(self) -> int:
        """Samples of the dataset, where only a part of it was counted."""
        return self.drawn_from or self.size

    @property
    def prompts(self) -> NDArray[np.int64] | None:
        """Which prompt each sample is of, one in two steps of RL being two; None where no groups are known."""
        if self.group is None:
            return None
        step = np.zeros_like(self.group) if self.step is None else self.step
        _, prompt = np.unique(np.stack([step, self.group]), axis=1, return_inverse=True)
        return np.asarray(prompt, np.int64).ravel()

    @property
    def mean(self) -> float:
        """Tokens of a sample, on average."""
        return float(self.lengths.mean() if self.counts is None else self.lengths @ (self.counts / self.size))

    @property
    def longest(self) -> int:
        return int(self.lengths.max() if self.counts is None else self.lengths[self.counts > 0].max())

    @property
    def bundles(self) -> "Trace":
        """The same with each bundle as one sample of all its tokens."""
        if self.bundle is None:
            return self
        first = _firsts(self.bundle)
        step, group = (None if of is None else of[first] for of in (self.step, self.group))
        tokens = np.add.reduceat(self.lengths, first)
        return Trace(self.name, tokens, None, None, group, step, self.origin, self.drawn_from, unit=self.unit)

    @property
    def in_words(self) -> str:
        """How many there are of what is drawn."""
        return f"{self.bundles.size:,} {self.unit}s"

    def starts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where bundles begin among these samples of a minibatch; each where none are together."""
        return np.arange(len(ids)) if self.bundle is None else _firsts(self.bundle[ids])

    @property
    def fullest(self) -> int:
        """Tokens of the largest bundle, which no limit of a microbatch can be below."""
        return self.bundles.longest

    def _answer(self) -> Answer:
        size = f"{counted(self.size, 'sample')} of {self.mean:,.0f} tokens on average, longest {self.longest:,}"
        return Answer("Trace", f"{self.name}, {size}", question=self.origin)

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of the table that holds each sample; sample and row are one unless this is a count table."""
        if self.counts is None:
            return ids
        return np.searchsorted(np.cumsum(self.counts), ids, side="right").astype(np.int64)

    def take(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of samples by id, each in [0, size)."""
        return self.lengths[self.rows(ids)]

    def minibatches(
        self, samples: int, count: int, *, seed: int = 0, in_order: bool = False, alike: int = 0
    ) -> list[NDArray[np.int64]]:
        """`count` minibatches of sample ids: from a seeded shuffle, or as recorded and never across an RL step. With
        `alike`, as many samples of a shuffle are sorted by length before minibatches are cut of them.

        Of so many `samples` each, or of so many bundles.
        """
        if self.bundle is not None:
            drawn = self.bundles.minibatches(samples, count, seed=seed, in_order=in_order, alike=alike)
            edges = np.append(_firsts(self.bundle), self.size)
            return [ranges(edges[bundles], edges[bundles + 1]) for bundles in drawn]
        if samples < 1 or count < 1:
            problem = f"{count} minibatches of {samples} {self.unit}s asked of '{self.name}'"
            raise InputError(problem, fix="both start at 1")
        if samples > self.size:
            problem = f"one minibatch needs {samples} {self.unit}s and '{self.name}' has {self.size}"
            fix = f"use fewer devices, fewer {self.unit}s per device, or a longer trace"
            raise InputError(problem, fix=fix)
        check_drawn(samples, count, self.name)
        minibatches: list[NDArray[np.int64]] = []
        if not in_order:
            # Passes over the data without replacement. Only what is needed of a pass is drawn: memory follows the draw.
            rng = np.random.default_rng(seed)
            while len(minibatches) < count:
                left = count - len(minibatches)
                fill = min(self.size // samples, max(left, -(-alike // samples)))
                ids = rng.choice(self.size, fill * samples, replace=False).astype(np.int64, copy=False)
                batches = self._alike(ids, samples, alike, rng) if alike else ids.reshape(fill, samples)
                minibatches.extend(batches[:left])
            return minibatches
        if self.counts is not None:
            raise InputError(f"'{self.name}' is a table and has no recorded order", fix="leave out --in-order")
        # What is left at the end of a step does not fill a minibatch and is dropped.
        firsts = [0] if self.step is None else _firsts(self.step)
        ends = pairwise(np.append(firsts, self.size))
        starts = np.concatenate([np.arange(first, end - samples + 1, samples) for first, end in ends])
        if len(starts) == 0:
            problem = f"no RL step of '{self.name}' has the {samples} samples of one minibatch"
            fix = "use fewer devices, fewer samples per device, or leave out --in-order"
            raise InputError(problem, fix=fix)
        return [np.arange(start, start + samples, dtype=np.int64) for start in np.resize(starts, count)]

    def _alike(self, ids: NDArray[np.int64], samples: int, alike: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """As many ids at a time are sorted by length, and minibatches cut of all; those that begin in one part are in
        an order of which every beginning has long and short ones."""
        parts = (ids[first : first + alike] for first in range(0, len(ids), alike))
        sorted_ids = np.concatenate([part[np.argsort(-self.take(part), kind="stable")] for part in parts])
        batches = sorted_ids.reshape(-1, samples)
        spread = (rng.random() + np.arange(len(batches)) * GOLDEN) % 1
        part = np.arange(len(batches)) * samples // alike
        places = np.lexsort((spread, part))
        order = np.empty_like(places)
        order[places] = np.arange(len(places))
        return np.asarray(batches[order])

    @property
    def steps(self) -> list[NDArray[np.int64]]:
        """The samples of each recorded step, in order: all of them, however many one has."""
        if self.step is None:
            raise InputError(f"'{self.name}' has no steps", fix="give a step for each sample")
        return np.split(np.arange(self.size, dtype=np.int64), _firsts(self.step)[1:])


def check_drawn(samples: int, count: int, where: str) -> None:
    """Refuse minibatches that no memory takes, before the first is drawn."""
    if (size := count * (MINIBATCH + DRAWN * samples)) > budget.most():
        problem = f"{count:,} minibatches of {samples:,} samples take some {budget.in_words(size)} of memory"
        fix = f"draw fewer, or raise {budget.VARIABLE}, now {budget.in_words(budget.most())}"
        raise InputError(problem, where=where, fix=fix)


def ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers from each start up to its end, one range behind the other."""
    sizes = ends - starts
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(starts - (sizes.cumsum() - sizes), sizes))


def _firsts(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each run of equal ones begins."""
    return np.append(0, np.flatnonzero(np.diff(labels)) + 1)
