"""A trace of texts and conversations: counted by a tokenizer, once for the same content."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.bad import BadRows, Check, sifted
from odcsim.reading.labelled import are_said
from odcsim.reading.pairs import paired
from odcsim.reading.records import Record, RecordFile
from odcsim.reading.roles import GROUP, LENGTH, STEP, first_of
from odcsim.reading.table import Table
from odcsim.reading.tokenizing import kept, writing
from odcsim.reading.tokenizing.counter import SECONDS, CountRequest
from odcsim.reading.tokenizing.counting import RowTokens, counted
from odcsim.reading.tokenizing.folder import TokenizerFolder, open_folder
from odcsim.reading.tokenizing.forms import Form, form_of
from odcsim.reading.tokenizing.writer import counter_of, writer_of
from odcsim.reading.tokenizing.writing import Request, first_form, form_in, source_of
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


def load(path: Path, opened: Callable[[], Table], column: str | None, asked: TextCounting, bad: BadRows) -> Trace:
    """Lengths in tokens; of rollouts, which say their step, the groups of one prompt, too."""
    file = RecordFile(path)
    with budget.bounded(path):
        table, folder = opened(), open_folder(asked.tokenizer)
        form = form_in(file, column, folder)
        size = file.size() if asked.sample else 0
    chosen = _drawn(size, asked.sample) if asked.sample and asked.sample < size else None
    lengths, loss, unfit = _once(file, form, folder, chosen)
    good = np.asarray((lengths.reshape(-1, form.each) > 0).all(axis=1), np.bool_)
    with budget.bounded(path):
        said, blank = sifted(_labelled(table, form, len(good), chosen))
    good, faults = good & said, sorted({fault.row: fault for fault in (*blank, *unfit)}.values())
    bad.add(path, good, faults, lambda row: file.place(row if chosen is None else int(chosen[row])))
    if not good.any():
        raise bad.refusal(path)
    with budget.bounded(path):
        group, step = _rollouts(table, form, good if chosen is None else _among(size, chosen[good]))
    drawn_from = 0 if chosen is None else round(size * float(good.mean()))
    kept = good.repeat(form.each)
    trace = Trace(path.name, lengths[kept], None, loss if loss is None else loss[kept], group, step, "", drawn_from)
    return _told(paired(trace, form.each), form, folder)


def _among(size: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    found = np.zeros(size, np.bool_)
    found[rows] = True
    return found


def _drawn(size: int, sample: int) -> NDArray[np.int64]:
    """Without replacement, and the same ones every time."""
    rows = np.random.default_rng(0).choice(size, sample, replace=False)
    return np.sort(rows).astype(np.int64)


def _once(file: RecordFile, form: Form, folder: TokenizerFolder, chosen: NDArray[np.int64] | None) -> RowTokens:
    rows = 0 if chosen is None else len(chosen)
    key = kept.key(file.files, form.words, form.columns, form.plain, rows, folder.digest, file.path.suffix.lower())
    if (known := kept.recall(key)) is None:
        with progress("counting tokens", form.each * (rows or file.size())) as advance:
            known = _anew(file, form, folder, chosen, advance)
        kept.keep(key, known)
    if not len(known.lengths):
        raise InputError("holds no rows", where=str(file.path), fix="give one row per sample")
    return known


def _anew(
    file: RecordFile,
    form: Form,
    folder: TokenizerFolder,
    chosen: NDArray[np.int64] | None,
    advance: Callable[[], None],
) -> RowTokens:
    writer = writer_of(os.getpid())
    request = Request(file.path, form.column, folder.path, chosen, Path.cwd(), budget.most(), writing.SECONDS)
    counter = counter_of(os.getpid())
    counting = CountRequest(folder.path, form.plain, Path.cwd(), budget.most(), SECONDS)

    def stop() -> None:
        writer.end()
        counter.end()

    with writer.lock:
        try:
            with counter.counting(counting) as count:
                blocks = writer.blocks(request, source_of(file, form, folder))
                return counted(blocks, count, advance, stop, each=form.each)
        except BaseException:
            stop()
            raise


def _labelled(table: Table, form: Form, rows: int, chosen: NDArray[np.int64] | None) -> list[Check]:
    """What rows have to be that are rollouts."""
    names = [first_of(table.names, STEP), first_of(table.names, GROUP)]
    if names[0] is None or not form.groups:
        return [Check(np.zeros(rows, np.bool_), lambda _: ("", ""))]
    every = [are_said(name, table.values(name)) for name in names if name is not None]
    return every if chosen is None else [Check(one.wrong[chosen], one.told) for one in every]


def _rollouts(
    table: Table, form: Form, good: NDArray[np.bool_]
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """The group and the step of each row, where it is a rollout."""
    step = first_of(table.names, STEP)
    if step is None or not form.groups:
        return None, None
    return table.labels(first_of(table.names, GROUP) or form.groups, good), table.labels(step, good)


def _told(trace: Trace, form: Form, folder: TokenizerFolder) -> Trace:
    origin = f"{form.words} of {trace.name}, counted by {folder.path.parent.name}/{folder.path.name}"
    return replace(trace, origin=f"{origin}; {band(trace)}" if trace.drawn_from else origin)


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
