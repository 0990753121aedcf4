"""A trace of texts and conversations: counted by a tokenizer, once for the same content."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.faults import BadRows, Check, check_labels, sift
from odcsim.reading.records import Record, RecordFile
from odcsim.reading.roles import GROUP, LENGTH, STEP, first_of
from odcsim.reading.table import Table
from odcsim.reading.tally import pair
from odcsim.reading.tokenizing import cache, render
from odcsim.reading.tokenizing.cache import RowTokens
from odcsim.reading.tokenizing.children import count_blocks, counter_of, writer_of
from odcsim.reading.tokenizing.count import SECONDS, CountRequest
from odcsim.reading.tokenizing.folder import TokenizerFolder, open_folder
from odcsim.reading.tokenizing.forms import Form, form_of
from odcsim.reading.tokenizing.render import Request, first_form, form_in, source_of
from odcsim.support import budget
from odcsim.support.progress import progress
from odcsim.trace import Trace

SURE = 1.96  # standard errors, for 95 %
FLAG = "count it with --tokenizer FOLDER, which holds the model's tokenizer.json"


@dataclass(frozen=True, slots=True)
class TextCounting:
    """What to count with, and of how many rows; 0 stands for all."""

    tokenizer: str | Path
    sample: int = 0

    def share(self, files: int) -> "TextCounting":
        """Of the sample what each of several files gives."""
        return replace(self, sample=-(-self.sample // files))


def first_row(path: Path) -> Record:
    """Nothing where the file is damaged, which whoever looked for lengths has told."""
    file = RecordFile(path)
    try:
        return first_form(file, None, chat=True)[0] if path.exists() else {}
    except (InputError, ValueError, OSError, ArithmeticError):
        return {}


def has_text(first: Record, column: str | None) -> bool:
    """Whether there is text where lengths were looked for."""
    form = form_of(first, column, chat=True)
    if form is None or not any(_is_text(first.get(name)) for name in form.columns):
        return False
    return column is not None or first_of(list(first), LENGTH) is None


def _is_text(value: object) -> bool:
    """In CSV numbers are texts, too."""
    try:
        return isinstance(value, list) or (isinstance(value, str) and not math.isfinite(float(value or 0)))
    except ValueError:
        return True


def load(
    path: Path, open_table: Callable[[Path], Table], column: str | None, request: TextCounting, bad: BadRows
) -> Trace:
    """Lengths in tokens; of rollouts, which say their step, the groups of one prompt, too."""
    file, sample = RecordFile(path), request.sample
    with budget.bounded(path):
        table, folder = open_table(path), open_folder(request.tokenizer)
        form = form_in(file, column, folder)
        size = file.size() if sample else 0
    chosen = None
    if sample and sample < size:  # without replacement, and the same ones every time
        chosen = np.sort(np.random.default_rng(0).choice(size, sample, replace=False)).astype(np.int64)
    lengths, loss, unfit = _count(file, form, folder, chosen)
    good = np.asarray((lengths.reshape(-1, form.each) > 0).all(axis=1), np.bool_)
    step = first_of(table.names, STEP) if form.groups else None
    group = None if step is None else first_of(table.names, GROUP)
    with budget.bounded(path):
        checks = [check_labels(name, table.values(name)) for name in (step, group) if name is not None]
        if chosen is not None:
            checks = [Check(check.wrong[chosen], check.explain) for check in checks]
        right, blank = sift(checks) if checks else (np.ones(len(good), np.bool_), [])
    good, faults = good & right, sorted({fault.row: fault for fault in (*blank, *unfit)}.values())
    bad.add(path, good, faults, lambda row: file.place(row if chosen is None else int(chosen[row])))
    if not good.any():
        raise bad.refusal(path)
    which = good
    if chosen is not None:
        which = np.zeros(size, np.bool_)
        which[chosen[good]] = True
    with budget.bounded(path):
        groups = None if step is None else table.labels(group or form.groups, which)
        steps = None if step is None else table.labels(step, which)
    drawn_from = 0 if chosen is None else round(size * float(good.mean()))
    left = good.repeat(form.each)
    loss = None if loss is None else loss[left]
    trace = pair(Trace(path.name, lengths[left], None, loss, groups, steps, drawn_from=drawn_from), form.each)
    origin = f"{form.words} of {trace.name}, counted by {folder.path.parent.name}/{folder.path.name}"
    return replace(trace, origin=f"{origin}; {band(trace)}" if trace.drawn_from else origin)


def _count(file: RecordFile, form: Form, folder: TokenizerFolder, chosen: NDArray[np.int64] | None) -> RowTokens:
    """Tokens of the rows, from the cache where they were counted before."""
    rows = 0 if chosen is None else len(chosen)
    key = cache.key(file.files, form.words, form.columns, form.plain, rows, folder.digest, file.path.suffix.lower())
    if (tokens := cache.recall(key)) is None:
        with progress("counting tokens", form.each * (rows or file.size())) as advance:
            tokens = _count_anew(file, form, folder, chosen, advance)
        cache.keep(key, tokens)
    if not len(tokens.lengths):
        raise InputError("holds no rows", where=str(file.path), fix="give one row per sample")
    return tokens


def _count_anew(
    file: RecordFile,
    form: Form,
    folder: TokenizerFolder,
    chosen: NDArray[np.int64] | None,
    advance: Callable[[], None],
) -> RowTokens:
    writer, counter = writer_of(os.getpid()), counter_of(os.getpid())
    request = Request(file.path, form.column, folder.path, chosen, Path.cwd(), budget.most(), render.SECONDS)
    counting = CountRequest(folder.path, form.plain, Path.cwd(), budget.most(), SECONDS)

    def stop() -> None:
        writer.end()
        counter.end()

    with writer.lock:
        try:
            with counter.counting(counting) as count:
                blocks = writer.blocks(request, source_of(file, form, folder))
                return count_blocks(blocks, count, advance, stop, each=form.each)
        except BaseException:
            stop()
            raise


def band(trace: Trace) -> str:
    """How sure a drawn part is of the whole: its mean, and what it cannot have seen."""
    whole, trace = trace.drawn_from, trace.bundles
    lengths, mean, rest = trace.lengths, float(trace.lengths.mean()), 1 - trace.size / whole
    off = SURE * float(lengths.std()) * float(np.sqrt(rest / trace.size)) / mean
    unseen = min(1.0, 3 / trace.size)  # what none of so many draws has shown, at 95 %
    return (
        f"{trace.size:,} of {whole:,} rows drawn: mean {mean:,.0f} tokens, within {off:.1%} of the whole's (95 %); "
        f"up to {unseen:.2%} of rows may be longer than the longest here"
    )
