"""What texts are read and rendered by: a process of its own, since neither a template nor a file may be trusted.

It ends where a row takes too long or too much memory, whatever runs then, and takes nobody else with it. Requests come
pickled by stdin, and blocks of passages go by stdout as JSON: nothing that it says is believed to be more than text.
"""

import json
import os
import pickle
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.records import Record, RecordFile
from odcsim.reading.tokenizing.folder import TokenizerFolder, open_folder
from odcsim.reading.tokenizing.forms import Form, Passage, form_of
from odcsim.reading.tokenizing.turns import UnfitRow
from odcsim.support import budget

BLOCK = 256
LOOKED_AT = 1000  # rows, for one that shows what the file holds
SECONDS = 10  # of the processor, that a row may take to be rendered
FORMS = "messages, conversations (ShareGPT), prompt + completion, instruction + output (Alpaca) or text"
UNFIT = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RecursionError)
SIZE = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Request:
    """The rows of a file, or those chosen, as passages. `folder` is where paths begin, `most` the bound on memory,
    `seconds` that on the processor's time for a row."""

    path: Path
    column: str | None
    tokenizer: Path
    chosen: NDArray[np.int64] | None
    folder: Path
    most: int
    seconds: float


def form_in(file: RecordFile, column: str | None, folder: TokenizerFolder) -> Form:
    first, form = first_form(file, column, chat=folder.template is not None)
    where = str(file.path)
    if form is None:
        listed = f"column '{column}'" if column else ", ".join(map(repr, first)) or "its rows"
        raise InputError(f"no text to count in {listed}", where=where, fix=f"give {FORMS}, or leave out --tokenizer")
    if not form.plain and folder.template is None:
        fix = "name a folder with the template in tokenizer_config.json or chat_template.jinja"
        raise InputError(
            f"{form.words} need a chat template, and there is none beside it", where=str(folder.path), fix=fix
        )
    return form


def first_form(file: RecordFile, column: str | None, *, chat: bool) -> tuple[Record, Form | None]:
    """The first row that shows a form, which one of an empty conversation does not; else the first of all."""
    if not file.readable:
        return {}, None
    for row in islice(file.head(), LOOKED_AT):
        if form := form_of(row, column, chat=chat):
            return row, form
    return file.first(), None


def source_of(file: RecordFile, form: Form, folder: TokenizerFolder) -> str:
    """The file that says what is done: a template, or, where texts stand as they are, that of the texts."""
    return folder.template.source if folder.template and not form.plain else str(file.path)


class Overtime(BaseException):
    """Nothing that a template is made of may take it for an error of its own."""


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError, EOFError):
        while True:
            request = pickle.load(sys.stdin.buffer)
            os.environ[budget.VARIABLE] = str(request.most)
            budget.limit(request.most // 2)
            _answer(request, out)


def _answer(request: Request, out: BinaryIO) -> None:
    os.chdir(request.folder)
    try:
        for block in _blocks(request):
            rows = [
                [row.text, row.prompt, row.spans] if isinstance(row, Passage) else [str(row), row.fix] for row in block
            ]
            send(out, rows)
        send(out, None)
    except InputError as error:
        send(out, error)


def send(out: BinaryIO, what: Any) -> None:
    """An answer, or an error in its place."""
    if isinstance(what, InputError):
        what = {"problem": what.problem, "where": what.where, "fix": what.fix}
    content = json.dumps(what, ensure_ascii=False).encode(errors="surrogatepass")  # a path may be no text
    out.write(SIZE.pack(len(content)) + content)
    out.flush()


def _blocks(request: Request) -> Iterator[list[Passage | UnfitRow]]:
    """Passages that are counted together: so many, and no more than one long one takes."""
    block: list[Passage | UnfitRow] = []
    size, most = 0, budget.text()
    for passage in _passages(request):
        length = 0 if isinstance(passage, UnfitRow) else len(passage.text)
        if block and (len(block) == BLOCK or size + length > most):
            yield block
            block, size = [], 0
        block.append(passage)
        size += length
    if block:
        yield block


def _passages(request: Request) -> Iterator[Passage | UnfitRow]:
    file, folder = RecordFile(request.path), open_folder(request.tokenizer)
    with _refusing("rows that do not fit into memory", str(file.path)):
        form = form_in(file, request.column, folder)
        rows = enumerate(file.every(form.read, request.chosen))
    source = source_of(file, form, folder)
    while True:
        with _refusing("rows that do not fit into memory", str(file.path)):
            row, record = next(rows, (-1, None))
        if record is None:
            return
        if isinstance(record, InputError):
            yield from [UnfitRow(record.problem, record.fix)] * form.each
            continue
        number = row if request.chosen is None else int(request.chosen[row])
        write = partial(form.passages, record, folder)
        passages = _row_of(write, request.seconds, partial(file.place, number), source)
        yield from passages if isinstance(passages, list) else [passages] * form.each


def _row_of(write: Any, seconds: float, where: Any, source: str) -> list[Passage] | UnfitRow:
    """The texts of a row, or why it has none."""
    from jinja2 import TemplateError

    try:
        with _refusing(f"what {source} makes of it", where), in_time(1.5 * seconds, alarm=seconds):
            passages: list[Passage] = write()
        for text in (text for passage in passages for text in (passage.text, passage.prompt or "")):
            if len(text.encode()) > budget.text():
                raise budget.too_much(f"a text of {len(text):,} characters, as {source} has it", where())
        return passages
    except Overtime:
        raise too_slow(seconds, source, where()) from None
    except UnicodeEncodeError:
        return UnfitRow("is no text (half a character)")
    except UnfitRow as error:
        return error
    except (TemplateError, *UNFIT) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return UnfitRow(f"the chat template does not take it ({reason})", "mend the row, name another --tokenizer")


def too_slow(seconds: float, source: str, where: str) -> InputError:
    problem = f"the chat template takes more than {seconds:g} s for a row"
    fix = f"mend {source}" if where == source else f"mend the row or {source}"
    return InputError(problem, where=where, fix=f"{fix}, or name another --tokenizer")


@contextmanager
def _refusing(what: str, where: Any) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise budget.too_much(what, where() if callable(where) else where) from None


@contextmanager
def in_time(seconds: float, *, alarm: float = 0) -> Iterator[None]:
    """Where it takes longer the process ends, whatever runs then. Before that, between two lines of Python, an
    `alarm` is an exception."""
    if not hasattr(signal, "setitimer"):  # Windows
        yield
        return
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _late(_number: int, _frame: Any) -> None:
    raise Overtime
