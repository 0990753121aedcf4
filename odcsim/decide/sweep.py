"""Many comparisons from one grid as one table, worked on by any Executor.

Beside the table each finished point is a line of JSON, added to a file's end in one piece and never changed. A process
that is killed leaves its last line torn at worst: what is not whole is left out, and its point is worked on again. So a
sweep that was ended goes on, and of several processes at one sweep none loses a line.
"""

import csv
import io
import json
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from odcsim.answer import Answer, AnswerTable, Printable
from odcsim.catalog.estimates.memory import Memory
from odcsim.decide.comparison import compare, pairs
from odcsim.decide.grid import ROWS, Grid, Point, read_grid
from odcsim.decide.whole_run import RUN
from odcsim.errors import InputError
from odcsim.question import FIELDS
from odcsim.recipe import USUAL
from odcsim.results.metrics import PARTS
from odcsim.results.summary import REFERENCE, Made, Row
from odcsim.support.inputs import reading
from odcsim.support.numbers import counted
from odcsim.support.outputs import check_apart, check_writable, lock, replacing, telling

REFUSED = "refused"
WHOLE = (1, 1)  # the share of a sweep that is all of it
HEAD = json.dumps({"format": "odcsim points", "version": 1}).encode() + b"\n"
SAME = 1e-9  # of a figure: machines may differ in its last digits
AHEAD = 1024  # points that an executor is given before it has answered
PATIENCE = "15s"  # for a scheduler's answer
LARGEST = 2**63  # of whole numbers in a table
BLOCK = 16_384  # rows that Parquet is written by

Rows = Sequence[Mapping[str, Any]]  # of one point: one at least, each with the point's key


class SweepRows(Printable, list[dict[str, Any]]):
    """A row for each balancer under each sync of each point, in the order of the table. Of a point that cannot run one,
    which says why."""

    def records(self) -> list[dict[str, Any]]:
        """The same with every column of the table, whether a row has it or not."""
        return [{name: row.get(name) for name in COLUMNS} for row in self]

    def _answer(self) -> Answer:
        varied = [name for name in ASKED if len({str(row.get(name)) for row in self}) > 1]
        every = (*varied, *ROWS, "makespan_seconds", "idle", "speedup", "memory_fits", REFUSED)
        head = [name for name in every if any(name in row for row in self)]
        refused = [row[REFUSED] for row in self if REFUSED in row]
        points = counted(len({row["point"] for row in self}), "point")
        first = f"{len(refused):,} of them cannot run, such as: {refused[0]}" if refused else ""
        cells = [[row.get(name, "") for name in head] for row in self]
        rows = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row] for row in cells]
        return Answer("SweepRows", f"{points}, {counted(len(self), 'row')}", first, "", [AnswerTable(head, rows)])


def sweep(
    grid: Grid | str | os.PathLike[str] | Mapping[str, Any],
    *,
    executor: Executor | None = None,
    output: str | os.PathLike[str] | None = None,
) -> SweepRows:
    """The rows of every point of a grid: a TOML file, or a dict of the same keys. `executor` works on points, such as a
    ProcessPoolExecutor; without one this process does. With `output` a table is written, and what is done is kept
    beside it, so that a sweep that was ended goes on where it was."""
    grid = read_grid(grid)
    if output is None:
        every: Iterable[Rows] = sorted(results(grid.points, executor), key=lambda rows: order(rows[0]))
    else:
        own = Sweep(grid, Path(output))
        own.run(own.rest(), executor)
        every = read(own.write())
    return SweepRows(dict(row) for rows in every for row in rows)


class Line(NamedTuple):
    """Where the rows of a point are kept, after what decides their place in a table."""

    order: tuple[Any, ...]
    key: str
    path: Path
    begin: int
    rows: int
    refused: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """A grid on its way to a table, or one share of it."""

    grid: Grid
    output: Path
    share: tuple[int, int] = WHOLE

    @property
    def points(self) -> tuple[Point, ...]:
        """Neighbours go to different shares: they take as long."""
        number, of = self.share
        return self.grid.points[number - 1 :: of]

    @property
    def path(self) -> Path:
        """Where finished points are kept; each share has a file of its own."""
        share = "" if self.share == WHOLE else ".{}-of-{}".format(*self.share)
        return self.output.with_name(f"{self.output.name}{share}.points")

    def rest(self) -> list[Point]:
        """What nobody has finished, once it is certain that the table can be written."""
        _check_table(self.output)
        check_apart(self.output, {path for point in self.grid.points for path in point.files.values() if path})
        lines = self.lines()
        return [point for point in self.points if point.key not in lines]

    def lines(self) -> dict[str, Line]:
        """What of the grid this sweep and its shares have finished. A file that is none of theirs is refused."""
        keys, lines = {point.key for point in self.grid.points}, dict[str, Line]()
        name = re.compile(re.escape(self.output.name) + r"(\.\d+-of-\d+)?\.points")
        for path in sorted(path for path in self.output.parent.iterdir() if name.fullmatch(path.name)):
            with reading(path, missing="run it again", expected="points of a sweep"), path.open("rb") as file:
                _mend(path)
                begin = 0
                for text in file:
                    rows = _parse(text)
                    if rows and (key := rows[0]["point"]) in keys:
                        line = Line(order(rows[0]), key, path, begin, len(rows), rows[0].get(REFUSED, ""))
                        if (first := lines.setdefault(key, line)) is not line:
                            _check_alike(first, rows, path)
                    begin += len(text)
        return lines

    def run(
        self,
        points: Sequence[Point],
        executor: Executor | None,
        advance: Callable[[Rows], None] = lambda _: None,
    ) -> None:
        """Nothing is kept before the first point that can run: of a grid in which none can, nothing stays."""
        if not points:
            return
        lines, runs, reason = list[bytes](), False, ""
        with lock(self.path):
            for rows in results(points, executor):
                lines.append(json.dumps({"point": rows[0]["point"], "rows": rows}, allow_nan=False).encode() + b"\n")
                reason = reason or rows[0].get(REFUSED, "")
                runs = runs or REFUSED not in rows[0]
                if runs:
                    _append(self.path, lines)
                    lines.clear()
                advance(rows)
            if len(lines) == len(self.grid.points) and self.share == WHOLE:
                raise InputError(f"no point can run, such as: {reason}", where=self.grid.name)
            if lines:
                _append(self.path, lines)

    def write(self) -> list[Line]:
        """The table of all shares, in the order of what was asked, however the sweep was run."""
        every = self.lines()
        if lost := [point.key for point in self.grid.points if point.key not in every]:
            problem = f"{len(lost):,} points are gone that were kept, such as {lost[0]}"
            raise InputError(problem, where=self.grid.name, fix="somebody has taken them away: run it again")
        lines = sorted(every.values())
        with replacing(self.output) as file:
            TABLES[self.output.suffix.lower()](file, (row for rows in read(lines) for row in rows))
        return lines


def results(points: Iterable[Point], executor: Executor | None) -> Iterator[Rows]:
    """In the order in which they are done. Without an executor one after the other, here."""
    if executor is None:
        yield from map(work, points)
        return
    left = iter(points)
    pending = {executor.submit(work, point) for point in islice(left, AHEAD)}
    try:
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
            pending |= {executor.submit(work, point) for point in islice(left, len(done))}
    finally:
        for future in pending:
            future.cancel()


def work(point: Point) -> list[dict[str, Any]]:
    """The rows of a point, of plain values; where it cannot run a single row, which says why. A function of the point
    and nothing else."""
    point.check()
    try:
        rows = _compare(point)
    except InputError as error:
        rows = [{**point.words, REFUSED: str(error)}]

    def said(value: Any) -> bool:  # a file knows no number without an end: a share of nothing is as good as not there
        return value is not None and not (isinstance(value, float) and not math.isfinite(value))

    return [{"point": point.key, **{name: value for name, value in row.items() if said(value)}} for row in rows]


def _compare(point: Point) -> list[dict[str, Any]]:
    """Rows that are kept, as `odcsim compare` has them, and a trainer's own. What they are compared with runs, too."""
    setting, balancers, syncs = point.setting(), point.rows["balancer"], point.rows["sync"]
    every = pairs(setting)
    kept = [(b, s) for b, s in every if (not balancers or b in balancers) and (not syncs or s in syncs)]
    if not kept:
        raise InputError(f"no sync of {', '.join(syncs)} runs {', '.join(balancers)}")
    ways = {REFERENCE[1], *(sync for _, sync in kept)}
    beside = [(b, s) for b, s in every if s == REFERENCE[1] or (b == REFERENCE[0] and s in ways)]
    comparison = compare(setting, among=[pair for pair in every if pair in (*kept, *beside)], doubted=False)
    sizes = {"minibatch": setting.minibatch, "global_batch": setting.batch}
    records = zip(comparison.rows, comparison.records(), strict=True)
    return [{**point.words, **sizes, **record} for row, record in records if row.pair in kept or row.made]


def _columns() -> dict[str, type]:
    """Always the same ones, so that parts of a sweep and whole sweeps go together."""
    columns: dict[str, type] = {"point": str}
    columns |= {name: about.type for name, about in FIELDS.items()}
    columns |= {name: type(value) for name, value in USUAL.inputs().items()}
    columns |= dict.fromkeys(("fidelity", *ROWS), str)
    parts = {
        "idle_parts": PARTS,
        "memory_terms": [f.name for f in fields(Memory)],
        "made": [f.name for f in fields(Made)],
    }
    for name in (f.name for f in fields(Row) if f.name not in (*columns, "recipe", "reference_seconds")):
        names = [f"{name}.{part}" for part in parts.get(name, ())] or [name]
        columns |= dict.fromkeys(names, bool if name == "memory_fits" else float)
    return columns | {f"run.{name}": int if name == "steps" else float for name in RUN} | {REFUSED: str}


COLUMNS = _columns()  # of a table, in order, and what they hold
ASKED = (*FIELDS, *USUAL.inputs())


def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """By what was asked, numbers as numbers; what was not said comes first."""
    values = [row.get(name) for name in (*ASKED, "point")]
    return tuple((0, 0) if v is None else (1, v) if isinstance(v, int | float) else (2, v) for v in values)


def _append(path: Path, lines: Iterable[bytes]) -> None:
    with telling(path), path.open("ab") as file:
        file.write(_mend(path) + b"".join(lines))


def _mend(path: Path) -> bytes:
    """What a file needs before another line: the rest of its head, or the end of a line that was torn."""
    with path.open("rb") as file:
        head = file.read(len(HEAD))
        if not HEAD.startswith(head):
            raise InputError("exists, and holds no points of a sweep", where=str(path), fix="move it, or name another")
        if head != HEAD:
            return HEAD[len(head) :]
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"


def _parse(text: bytes) -> list[dict[str, Any]]:
    """The rows in a line; none where it is not whole."""
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        content = json.loads(text)
        key, rows = str(content["point"]), list(content["rows"])
        if all(row["point"] == key and all(_holds(COLUMNS[name], row[name]) for name in row) for row in rows):
            return rows
    return []


def _holds(column: type, value: Any) -> bool:
    """No file says a number without an end, and Parquet none of more than eight bytes."""
    if isinstance(value, int | float) and not abs(value) < (math.inf if isinstance(value, float) else LARGEST):
        return False
    return type(value) is column or (column is float and type(value) is int)


def read(lines: Iterable[Line]) -> Iterator[Rows]:
    opened: dict[Path, BinaryIO] = {}
    with ExitStack() as stack:
        for line in lines:
            if line.path not in opened:
                with reading(line.path, missing="it was there: run it again", expected="points of a sweep"):
                    opened[line.path] = stack.enter_context(line.path.open("rb"))
            opened[line.path].seek(line.begin)
            rows = _parse(opened[line.path].readline())
            if not rows or rows[0]["point"] != line.key:
                raise InputError("has changed while it was read", where=str(line.path), fix="run it again")
            yield rows


def _check_alike(line: Line, others: Rows, path: Path) -> None:
    """One point, worked on twice, has one result: who kept another had other software, or a file that was changed."""
    [rows] = read([line])
    unlike = [f"{len(rows):,} and {len(others):,} rows"] if len(rows) != len(others) else []
    for row, other in zip(rows, others, strict=False):
        way = " + ".join(row[name] for name in reversed(ROWS) if name in row)
        for name in COLUMNS:
            one, two = row.get(name), other.get(name)
            near = isinstance(one, float) and isinstance(two, float) and math.isclose(one, two, rel_tol=SAME)
            if one != two and not near:
                values = ("not there" if value is None else f"{value!s:.80}" for value in (one, two))
                unlike.append(f"{name}{f' of {way}' if way else ''} is {' and '.join(values)}")
    if unlike:
        more = f", and {len(unlike) - 1:,} more differ" if len(unlike) > 1 else ""
        where = f"{line.path} and {path}" if line.path != path else f"{path}, twice"
        fix = "leave out the file that is wrong, or take both away and run the sweep again"
        raise InputError(f"unlike results of point {line.key}: {unlike[0]}{more}", where=where, fix=fix)


def _check_table(path: Path) -> None:
    """Whether it can be written: worth asking before the work is done."""
    if path.suffix.lower() not in TABLES:
        raise InputError("is no table's name", where=str(path), fix=f"name it {', '.join(f'FILE{s}' for s in TABLES)}")
    if path.suffix.lower() == ".parquet":
        try:
            import_module("pyarrow.parquet")
        except ImportError:
            fix = "pip install 'odcsim[data]', or name it FILE.csv"
            raise InputError("Parquet needs pyarrow", where=str(path), fix=fix) from None
    check_writable(path)


def _csv(file: BinaryIO, rows: Iterable[Mapping[str, Any]]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    text.detach()


def _jsonl(file: BinaryIO, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        file.write(json.dumps({name: row[name] for name in COLUMNS if name in row}, allow_nan=False).encode() + b"\n")


def _parquet(file: BinaryIO, rows: Iterable[Mapping[str, Any]]) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), bool: pyarrow.bool_(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    left = iter(rows)
    with parquet.ParquetWriter(file, schema) as writer:
        while block := list(islice(left, BLOCK)):
            writer.write_table(pyarrow.Table.from_pylist(block, schema))


TABLES = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}


@contextmanager
def processes(count: int) -> Iterator[Executor | None]:
    """So many of them; none for one, since this process does as well."""
    pool = None if count == 1 else ProcessPoolExecutor(count, get_context("spawn"), _begin)
    try:
        yield pool
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """A worker leaves an interrupt to the process that it works for, and ends with it, however that one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """The workers of a cluster, which have this package and see the files of the grid."""
    try:
        distributed = import_module("distributed")
    except ImportError:
        raise InputError("--dask needs distributed", fix="pip install 'odcsim[dask]'") from None
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        problem = " ".join(str(error).split())[:120] or type(error).__name__
        fix = "such as tcp://10.0.0.1:8786"
        raise InputError(f"no scheduler answers at {address!r:.80} ({problem})", fix=fix) from None
    with client:
        yield client.get_executor(pure=False)
