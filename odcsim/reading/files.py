"""From a file of any known format to a trace."""

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading import counted, nested, steplogs, unpacked
from odcsim.reading.arrays import open_megatron, open_numpy
from odcsim.reading.arrow import is_saved, open_arrow, open_parquet, open_saved
from odcsim.reading.bad import BadRows, Check, NoneLeft, sifted
from odcsim.reading.counted import TextCounting
from odcsim.reading.jsons import open_json, open_jsonl
from odcsim.reading.labelled import are_said
from odcsim.reading.pairs import in_turn, paired
from odcsim.reading.records import Record
from odcsim.reading.roles import NoLengths, Roles, assign
from odcsim.reading.shards import joined, shards
from odcsim.reading.table import EXACT, Columns, Table, are_whole, lengths_of, numbers, summed
from odcsim.reading.tally import Tally
from odcsim.reading.text import open_text
from odcsim.support import budget
from odcsim.support.inputs import check_file
from odcsim.trace import MAX_LENGTH, Trace

OPENERS: dict[str, Callable[[Path], Table]] = {
    ".csv": open_text,
    ".tsv": open_text,
    ".txt": open_text,
    ".json": open_json,
    ".jsonl": open_jsonl,
    ".npy": open_numpy,
    ".npz": open_numpy,
    ".parquet": open_parquet,
    ".arrow": open_arrow,
    ".idx": open_megatron,
}
SUFFIXES = ", ".join(OPENERS)
QUANTILE_SAMPLES = 10_000
SAME = "give every row the same keys"


def looks_like_one(text: str) -> bool:
    suffix = Path(text).suffix.lower()
    return "/" in text or "\\" in text or suffix in OPENERS or suffix == unpacked.PACKED or text == unpacked.PIPE


def load(path: Path, column: str | None = None, asked: TextCounting | None = None, *, skip_bad: bool = False) -> Trace:
    """A trace from a file of lengths, a count table or a quantile table; or of texts, counted as is asked."""
    bad = BadRows(skip_bad)
    with unpacked.plain(path) as file:
        if file.exists() and not file.is_dir():
            check_file(file)
        if file.is_dir() and not is_saved(file) and (files := shards(file)):
            share = None if asked is None else asked.share(len(files))
            trace = joined(file, files, lambda part: _shard(part, column, share, bad))
        else:
            trace = _one(file, column, asked, bad)
        if trace is None or (bad.count and not skip_bad):
            raise bad.refusal(file)
    return bad.left_out(trace)


def _shard(path: Path, column: str | None, asked: TextCounting | None, bad: BadRows) -> Trace | None:
    """None where all of its rows are bad: others may hold good ones."""
    try:
        return _one(path, column, asked, bad)
    except NoneLeft:
        bad.spent.append(path)
        return None


def _one(path: Path, column: str | None, asked: TextCounting | None, bad: BadRows) -> Trace:
    if asked is not None:
        return counted.load(path, partial(open_table, path), column, asked, bad)
    with budget.bounded(path):
        return _lengths(path, column, bad)


def _lengths(path: Path, column: str | None, bad: BadRows) -> Trace:
    before = bad.count
    try:
        trace = _measured(path, column, bad)
        if bad.count - before > trace.size:  # a text may happen to be a number
            _refuse_texts(path, counted.first_row(path), column)
        return trace
    except InputError as error:
        first = counted.first_row(path)
        _refuse_texts(path, first, column)
        steplogs.refuse_means(first, str(path))
        if isinstance(error, NoLengths) and (inside := list(nested.counts(first))):
            fix = f"numbers lie inside one: --column {' or '.join(inside[:3])}"
            raise NoLengths(error.problem, where=error.where, fix=fix) from None
        raise


def _refuse_texts(path: Path, first: Record, column: str | None) -> None:
    if counted.has_text(first, column):
        raise InputError("holds texts but no lengths", where=str(path), fix=counted.FLAG) from None


def _measured(path: Path, column: str | None, bad: BadRows) -> Trace:
    table = open_table(path)
    roles = assign(table.names, column, str(path), table.lists)
    steplogs.refuse(table, roles, str(path))
    if roles.quantile:
        return _quantiles(table, roles, column, path)
    tally, good = _tallied(table, roles, path, bad)
    _check_later(table, roles, column, str(path))
    each = len(roles.sequences)
    group, step = (
        None if name is None else table.labels(name, good).repeat(each) for name in (roles.group, roles.step)
    )
    kind = "pairs of" if roles.sides else "count table" if roles.count else "file"
    return paired(tally.trace(path.name, f"{kind} {path.name}", group, step), each)


def _quantiles(table: Table, roles: Roles, column: str | None, path: Path) -> Trace:
    columns = numbers(table, roles.numbers, str(path))
    if not len(columns[roles.parts[0]]):
        raise InputError("holds no rows", where=str(path), fix="give one row per sample")
    _check_later(table, roles, column, str(path))
    lengths, counts = from_quantiles(table, str(roles.quantile), roles.parts, columns)
    return Trace(path.name, lengths, counts=counts, origin=f"quantile table {path.name}")


def _check_later(table: Table, roles: Roles, column: str | None, where: str) -> None:
    """What only later rows have must not change what the file says: it would in another order."""
    for name in sorted(table.later):
        if assign([*table.names, name], column, where, {*table.lists, name}) != roles:
            raise InputError(f"some rows have '{name}', but the first does not", where=where, fix=SAME)


def open_table(path: Path) -> Table:
    """One file, or a dataset's folder, by its ending."""
    if path.is_dir():
        if is_saved(path):
            return open_saved(path)
        raise InputError("is a folder", where=str(path), fix="name one file inside it")
    if not path.exists():
        raise InputError("no such file", where=str(path), fix="check the path, or see 'odcsim trace list'")
    if path.suffix.lower() not in OPENERS:
        raise InputError(f"cannot tell the format from '{path.suffix}'", where=str(path), fix=f"known: {SUFFIXES}")
    if path.stat().st_size == 0:
        raise InputError("the file is empty", where=str(path), fix="give one row per sample")
    return OPENERS[path.suffix.lower()](path)


def _tallied(table: Table, roles: Roles, path: Path, bad: BadRows) -> tuple[Tally, NDArray[np.bool_] | None]:
    """The good rows, and of a file whose rows stand for themselves which these are."""
    beside = "another side" if roles.sides else "a step or group" if roles.group or roles.step else ""
    tally, counted = Tally(str(path), beside), False
    start, every = 0, [np.zeros(0, np.bool_)]
    labels = {name: table.values(name) for name in (roles.step, roles.group) if name}
    for columns in table.pieces(roles.numbers):
        totals, checks = _checks(table, roles, columns, start)
        checks += [are_said(name, islice(values, len(totals[0]))) for name, values in labels.items()]
        good, faults = sifted(checks)
        bad.add(path, good, faults, lambda row, start=start: table.place(start + row))  # type: ignore[misc]
        if faults:
            totals, columns = [of[good] for of in totals], {name: of[good] for name, of in columns.items()}
        counts = columns[roles.count].astype(np.int64) if roles.count else None
        counted = counted or bool(counts is not None and counts.any())
        loss = in_turn([columns[name] for name in roles.lost]) if roles.lost else None
        tally.add(in_turn(totals), loss, counts)
        start += len(good)
        if tally.beside:
            every.append(good)
    if start and not tally.rows:
        raise bad.refusal(path)
    if roles.count and tally.rows and not counted:
        raise InputError(f"column '{roles.count}' is zero everywhere", where=str(path), fix="give counts above zero")
    return tally, np.concatenate(every) if tally.beside else None


def _checks(table: Table, roles: Roles, columns: Columns, start: int) -> tuple[list[NDArray[np.float64]], list[Check]]:
    """How long each row is, or each side of it, and what it has to be."""
    totals, rules = zip(*(summed(table, parts, columns, start) for parts in roles.sequences), strict=True)
    checks = [check for each in rules for check in each]
    if roles.count:
        checks.append(are_whole(table, roles.count, columns[roles.count], least=0, most=EXACT, start=start))
    if roles.loss:
        loss = columns[roles.loss]
        checks.append(are_whole(table, roles.loss, loss, least=0, most=MAX_LENGTH, start=start))
        checks.append(_within(roles.loss, loss, totals[0]))
    return list(totals), checks


def _within(name: str, loss: NDArray[np.float64], lengths: NDArray[np.float64]) -> Check:
    def told(row: int) -> tuple[str, str]:
        problem = f"column '{name}' holds {loss[row]:.0f} of a sample of {lengths[row]:.0f} tokens"
        return problem, "loss tokens are at most the sample's, or rename the column"

    return Check(loss > lengths, told)


def from_quantiles(
    table: Table, quantile: str, parts: tuple[str, ...], columns: Columns, samples: int = QUANTILE_SAMPLES
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Lengths and counts of evenly spread samples: sample i stands at (i + 1/2) / samples, straight between rows."""
    q, lengths = columns[quantile], lengths_of(table, parts, columns)
    outside = ~((q >= 0) & (q <= 1))
    if outside.any():
        row = int(outside.argmax())
        held = f"column '{quantile}' holds {q[row]:g}", "write 50 % as 0.5"
        problem, fix = table.fault(quantile, row) if np.isnan(q[row]) else held
        raise InputError(problem, where=table.place(row), fix=fix)
    _rising(table, quantile, np.diff(q) > 0, "does not rise")
    _rising(table, parts[0], np.diff(lengths) >= 0, "falls")
    for row, end in ((0, 0), (-1, 1)):
        if q[row] != end:
            raise InputError(
                f"column '{quantile}' {'ends' if end else 'starts'} at {q[row]:g}",
                where=table.place(row % len(q)),
                fix=f"give the {'longest' if end else 'shortest'} sample too, as q={end}",
            )
    spread = np.interp((np.arange(samples) + 0.5) / samples, q, lengths)
    values, counts = np.unique(np.rint(spread).astype(np.int64), return_counts=True)
    return values, counts.astype(np.int64)


def _rising(table: Table, name: str, ok: np.ndarray[tuple[int], np.dtype[np.bool_]], rule: str) -> None:
    if not ok.all():
        where = table.place(int((~ok).argmax()) + 1)
        raise InputError(
            f"column '{name}' {rule} from row to row", where=where, fix="sort the table, one row per quantile"
        )
