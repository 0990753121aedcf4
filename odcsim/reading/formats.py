"""From a file of any known format to a trace."""

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.neighbours.logs import VERL_MEANS
from odcsim.reading import texts, unpack
from odcsim.reading.arrays import open_megatron, open_numpy
from odcsim.reading.arrow import is_saved, open_arrow, open_parquet, open_saved
from odcsim.reading.csvs import open_text
from odcsim.reading.faults import BadRows, Check, NoneLeft, check_labels, sift
from odcsim.reading.fields import numbers_inside
from odcsim.reading.jsons import open_json, open_jsonl
from odcsim.reading.records import Record
from odcsim.reading.roles import STEP, NoLengths, Roles, assign, first_of
from odcsim.reading.shards import join, shards
from odcsim.reading.table import EXACT, Columns, Table, add_parts, check_whole, numbers
from odcsim.reading.tally import Tally, in_turn, pair
from odcsim.reading.texts import TextCounting
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
# What only a log of steps has beside its tokens.
STEP_LOG = (
    "seconds time step_time time_per_step iteration_time duration elapsed lr learning_rate grad_norm epoch throughput "
    "tokens_per_second tokens_per_sec tps tflops mfu memory"
).split()


def looks_like_one(text: str) -> bool:
    suffix = Path(text).suffix.lower()
    return "/" in text or "\\" in text or suffix in OPENERS or suffix == unpack.PACKED or text == unpack.PIPE


def load(path: Path, column: str | None = None, count: TextCounting | None = None, *, skip_bad: bool = False) -> Trace:
    """A trace from a file of lengths, a count table or a quantile table; or of texts, counted as `count` says."""
    bad = BadRows(skip_bad)
    with unpack.plain(path) as file:
        if file.exists() and not file.is_dir():
            check_file(file)
        if file.is_dir() and not is_saved(file) and (files := shards(file)):
            share = None if count is None else count.share(len(files))

            def shard(part: Path) -> Trace | None:
                """None where all of its rows are bad: others may have good ones."""
                try:
                    return _one(part, column, share, bad)
                except NoneLeft:
                    bad.spent.append(part)
                    return None

            trace = join(file, files, shard)
        else:
            trace = _one(file, column, count, bad)
        if trace is None or (bad.count and not skip_bad):
            raise bad.refusal(file)
    return bad.left_out(trace)


def _one(path: Path, column: str | None, count: TextCounting | None, bad: BadRows) -> Trace:
    """One file, or a dataset's folder. An error of lengths says what else the file may be."""
    if count is not None:
        return texts.load(path, open_table, column, count, bad)
    with budget.bounded(path):
        before = bad.count
        try:
            trace = _lengths(path, column, bad)
            if bad.count - before > trace.size:  # a text may happen to be a number
                _refuse_texts(path, texts.first_row(path), column)
            return trace
        except InputError as error:
            first = texts.first_row(path)
            _refuse_texts(path, first, column)
            data = first.get("data")
            if isinstance(data, Mapping) and first_of(list(first), STEP) and any(key in data for key in VERL_MEANS):
                problem = "is verl's log of steps, which holds means and no lengths"
                fix = "give the folder of trainer.rollout_data_dir with --tokenizer"
                raise InputError(problem, where=str(path), fix=fix) from None
            if isinstance(error, NoLengths) and (inside := list(numbers_inside(first))):
                fix = f"numbers lie inside one: --column {' or '.join(inside[:3])}"
                raise NoLengths(error.problem, where=error.where, fix=fix) from None
            raise


def _refuse_texts(path: Path, first: Record, column: str | None) -> None:
    if texts.has_text(first, column):
        raise InputError("holds texts but no lengths", where=str(path), fix=texts.FLAG) from None


def _lengths(path: Path, column: str | None, bad: BadRows) -> Trace:
    table, where = open_table(path), str(path)
    roles = assign(table.names, column, where, table.lists)
    _refuse_steps(table, roles, where)
    if roles.quantile:
        columns = numbers(table, roles.numbers, where)
        if not len(columns[roles.parts[0]]):
            raise InputError("holds no rows", where=where, fix="give one row per sample")
    else:
        tally, good = _tally(table, roles, path, bad)
    for name in sorted(table.later):  # what only later rows have must not change what the file says, in whatever order
        if assign([*table.names, name], column, where, {*table.lists, name}) != roles:
            problem = f"some rows have '{name}', but the first does not"
            raise InputError(problem, where=where, fix="give every row the same keys")
    if roles.quantile:
        lengths, counts = from_quantiles(table, roles.quantile, roles.parts, columns)
        return Trace(path.name, lengths, counts=counts, origin=f"quantile table {path.name}")
    each = len(roles.sequences)
    group, step = (
        None if name is None else table.labels(name, good).repeat(each) for name in (roles.group, roles.step)
    )
    kind = "pairs of" if roles.sides else "count table" if roles.count else "file"
    return pair(tally.trace(path.name, f"{kind} {path.name}", group, step), each)


def _refuse_steps(table: Table, roles: Roles, where: str) -> None:
    """A row for each step, of which a log of training tells more than tokens: those are of whole steps."""
    beside = first_of(table.names, STEP_LOG)
    if roles.step is None or beside is None or roles.count or roles.quantile:
        return
    steps = table.labels(roles.step)
    if len(steps) > 1 and len(np.unique(steps)) == len(steps):
        problem = f"'{' + '.join(roles.parts)}' has a row for each step, beside '{beside}': tokens of whole steps"
        fix = "give a row per sample; 'odcsim fit' takes a log with the lengths and seconds of each microbatch"
        raise InputError(problem, where=where, fix=fix)


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


def _tally(table: Table, roles: Roles, path: Path, bad: BadRows) -> tuple[Tally, NDArray[np.bool_] | None]:
    """The good rows, and of a file whose rows stand for themselves which these are."""
    beside = "another side" if roles.sides else "a step or group" if roles.group or roles.step else ""
    tally, counted = Tally(str(path), beside), False
    start, every = 0, [np.zeros(0, np.bool_)]
    labels = {name: table.values(name) for name in (roles.step, roles.group) if name}
    for columns in table.pieces(roles.numbers):
        totals, checks = _checks(table, roles, columns, start)
        checks += [check_labels(name, islice(values, len(totals[0]))) for name, values in labels.items()]
        good, faults = sift(checks)
        bad.add(path, good, faults, lambda row, start=start: table.place(start + row))  # type: ignore[misc]
        if faults:
            totals, columns = [of[good] for of in totals], {name: of[good] for name, of in columns.items()}
        counts = columns[roles.count].astype(np.int64) if roles.count else None
        counted = counted or bool(counts is not None and counts.any())
        loss = in_turn([columns[name] for name in roles.losses]) if roles.losses else None
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
    totals, rules = zip(*(add_parts(table, parts, columns, start) for parts in roles.sequences), strict=True)
    checks = [check for each in rules for check in each]
    if roles.count:
        checks.append(check_whole(table, roles.count, columns[roles.count], least=0, most=EXACT, start=start))
    if roles.loss:
        name, loss, lengths = roles.loss, columns[roles.loss], totals[0]
        checks.append(check_whole(table, name, loss, least=0, most=MAX_LENGTH, start=start))

        def explain(row: int) -> tuple[str, str]:
            problem = f"column '{name}' holds {loss[row]:.0f} of a sample of {lengths[row]:.0f} tokens"
            return problem, "loss tokens are at most the sample's, or rename the column"

        checks.append(Check(loss > lengths, explain))
    return list(totals), checks


def from_quantiles(
    table: Table, quantile: str, parts: tuple[str, ...], columns: Columns, samples: int = QUANTILE_SAMPLES
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths and counts of evenly spread samples: sample i stands at (i + 1/2) / samples, straight between rows."""
    q, (total, checks) = columns[quantile], add_parts(table, parts, columns)
    for row, problem, fix in sift(checks)[1]:
        raise InputError(problem, where=table.place(row), fix=fix)
    lengths = total.astype(np.int64)
    outside = ~((q >= 0) & (q <= 1))
    if outside.any():
        row = int(outside.argmax())
        problem, fix = f"column '{quantile}' holds {q[row]:g}", "write 50 % as 0.5"
        if np.isnan(q[row]):
            problem, fix = table.fault(quantile, row)
        raise InputError(problem, where=table.place(row), fix=fix)
    rises = ((quantile, np.diff(q) > 0, "does not rise"), (parts[0], np.diff(lengths) >= 0, "falls"))
    for name, right, rule in rises:
        if not right.all():
            problem = f"column '{name}' {rule} from row to row"
            where = table.place(int((~right).argmax()) + 1)
            raise InputError(problem, where=where, fix="sort the table, one row per quantile")
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
