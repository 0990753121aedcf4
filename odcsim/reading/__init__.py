"""Reading traces: a file of lengths, a named trace, or a spec such as `lognormal:median=700,sigma=0.9`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError, nearest
from odcsim.option import LENGTH
from odcsim.reading import formats, limits, named, specs
from odcsim.reading.texts import TextCounting
from odcsim.trace import Trace

__all__ = ["draw"]  # `odcsim.load` is public, which names mistakes as Python does


def load(
    source: str | Path,
    *,
    column: str | None = None,
    truncate: int | None = None,
    drop_over: int | None = None,
    tokenizer: str | Path | None = None,
    sample: int = 0,
    skip_bad: bool = False,
) -> Trace:
    """The trace in a file, under a name of `traces/`, or drawn from a spec. `column` picks a file's column.

    Samples over `truncate` tokens are shortened, those over `drop_over` left out; the trace's origin says what it cost.
    Texts and conversations are counted by the `tokenizer` in a folder: all of them, or a `sample` of so many rows.
    Rows that are no sample are an error that names them, or left out with `skip_bad`, as the trace's `left_out` says.
    """
    if sample and tokenizer is None:
        raise InputError(f"--sample {sample} without --tokenizer", where=str(source), fix="lengths are read in full")
    count = None if tokenizer is None else TextCounting(tokenizer, sample)
    truncate, drop_over = LENGTH.from_python(truncate, "--truncate"), LENGTH.from_python(drop_over, "--drop-over")
    trace, cost = limits.within(_full(source, column, count, skip_bad=skip_bad), truncate, drop_over)
    return replace(trace, origin=f"{trace.origin}; {cost}") if cost else trace


def _full(
    source: str | Path, column: str | None, count: TextCounting | None = None, *, skip_bad: bool = False
) -> Trace:
    """The trace before any limit."""
    text = str(source)
    if not text.strip():
        raise InputError("the name of a trace is empty", fix=f"name a trace, a spec or a file ({formats.SUFFIXES})")
    kind, name = (specs.kind_of(text), named.find(text)) if isinstance(source, str) else (None, None)
    if (column is not None or count is not None) and (kind or name):
        what, flag = ("columns to choose from", "column") if count is None else ("text to count", "tokenizer")
        raise InputError(f"'{text}' has no {what}", fix=f"leave out --{flag}")
    if kind:
        return specs.load(text, kind)
    if name:
        return named.load(name)
    if isinstance(source, Path) or formats.looks_like_one(text) or Path(text).exists():
        return formats.load(Path(source), column, count, skip_bad=skip_bad)
    hint = nearest(text.partition(":")[0], [*named.names(), *specs.KINDS])
    raise InputError(f"no trace is called '{text}'", fix=f"{hint.rstrip('?.')}, or give a file ({formats.SUFFIXES})")


def is_file(source: str) -> bool:
    """Whether it is recorded, and neither a named trace nor a spec."""
    return not (specs.kind_of(source) or named.find(source))


def draw(source: str | Path | Trace, samples: int | None = None, seed: int | None = None) -> NDArray[np.int64]:
    """Lengths drawn anew from a spec, or from passes over any other trace, none twice within a pass.

    `samples` and `seed`, where given, win over those in a spec.
    """
    if isinstance(source, str) and (kind := specs.kind_of(source)):
        return specs.load(source, kind, samples=samples, seed=seed).lengths
    name = source.name if isinstance(source, Trace) else str(source)
    samples, seed = specs.SAMPLES if samples is None else samples, seed or 0
    specs.in_range(name, "samples", samples, 1, specs.MOST_SAMPLES)
    specs.in_range(name, "seed", seed, 0, specs.MOST_SEED)
    trace, rng = source if isinstance(source, Trace) else _full(source, None), np.random.default_rng(seed)
    if trace.bundle is not None:
        raise InputError("pairs cannot be sampled one side at a time", where=name, fix="leave out --samples and --seed")
    passes = [min(trace.size, samples - done) for done in range(0, samples, trace.size)]
    return np.concatenate([trace.take(rng.choice(trace.size, part, replace=False)) for part in passes])
