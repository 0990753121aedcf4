"""The processes that texts are rendered and tokens counted by, seen from who asks: started once, used again, ended with
us. Blocks of passages become lengths: the tokenizer's own threads take all cores for each block."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.faults import NAMED, Fault
from odcsim.reading.tokenizing.cache import RowTokens
from odcsim.reading.tokenizing.forms import Passage
from odcsim.reading.tokenizing.render import SIZE, Request, too_slow
from odcsim.reading.tokenizing.turns import UnfitRow

if TYPE_CHECKING:
    from odcsim.reading.tokenizing.count import CountRequest

# Whoever asked is interrupted, too, and ends this; what it imports first takes long enough to be interrupted in.
IGNORE = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
RUN = IGNORE + "from odcsim.reading.tokenizing.{} import main; main()"


@cache
def writer_of(_process: int) -> "TextReader":
    """One for each process: what is forked has not started its parent's."""
    return TextReader("render")


@cache
def counter_of(_process: int) -> "TextReader":
    """Of what it says in other languages' words nothing is printed."""
    return TextReader("count", stderr=subprocess.DEVNULL)


class TextReader:
    """One reader at a time; what fails ends the process, and the next one starts another."""

    def __init__(self, module: str, **how: Any) -> None:
        self._module, self._how = module, how
        self.lock = threading.Lock()
        self._process: Any = None
        self._ended: Any = None

    def blocks(self, request: Request, source: str) -> Iterator[list[Passage | UnfitRow]]:
        """Passages of a file's rows. `source`: what is to blame where the process ends."""
        process = self._started()
        process.stdin.write(pickle.dumps(request))
        process.stdin.flush()
        while (rows := self._hear(process, request.seconds, source)) is not None:
            yield [_passage(row) for row in rows]

    @contextmanager
    def counting(self, request: "CountRequest") -> Iterator[Callable[[list[Passage]], Any]]:
        """Gives what counts the tokens of passages; their tokenizer is to blame where the process ends."""
        process = self._started()

        def ask(content: bytes) -> Any:
            with suppress(BrokenPipeError):  # it has ended, which is heard
                process.stdin.write(content)
                process.stdin.flush()
            return self._hear(process, request.seconds, str(request.path))

        def count(passages: list[Passage]) -> Any:
            content = json.dumps([[one.text, one.prompt, one.spans] for one in passages], ensure_ascii=False).encode()
            return ask(SIZE.pack(len(content)) + content)

        ask(pickle.dumps(request))
        yield count
        process.stdin.write(SIZE.pack(0))
        process.stdin.flush()

    def end(self) -> None:
        """Whatever it does; also while another thread waits for what it says."""
        process, self._process = self._process, None
        if process is not None:
            self._ended.detach()
            _end(process)

    def _started(self) -> Any:
        if self._process is None or self._process.poll() is not None:
            self.end()
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
                "ARROW_DEFAULT_MEMORY_POOL": "system",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", RUN.format(self._module)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                **self._how,
            )
            self._ended = finalize(self, _end, self._process)
        return self._process

    def _hear(self, process: Any, seconds: float, source: str) -> Any:
        head = process.stdout.read(SIZE.size)
        content = process.stdout.read(SIZE.unpack(head)[0]) if len(head) == SIZE.size else b""
        if not content:
            raise self._died(process.wait(), seconds, source)
        answer = json.loads(content)
        if isinstance(answer, dict):
            raise InputError(answer["problem"], where=answer["where"], fix=answer["fix"])
        return answer

    def _died(self, code: int, seconds: float, source: str) -> Exception:
        counts = self._module == "count"
        does, another = ("counts tokens", "name another --tokenizer") if counts else ("reads texts", "name another")
        if -code == signal.SIGVTALRM and counts:
            return InputError(f"takes more than {seconds:g} s for a block of texts", where=source, fix=another)
        if -code == signal.SIGVTALRM:
            return too_slow(seconds, source, source)
        if code < 0:
            name = signal.Signals(-code).name
            why = f"{name}: too little memory?" if counts and -code == signal.SIGABRT else name
            return InputError(f"ends the process that {does} ({why})", where=source, fix=f"fix it, or {another}")
        return RuntimeError(f"the process that {does} has ended with {code}")


def _passage(row: list[Any]) -> Passage | UnfitRow:
    """A passage, or what is wrong with the row and the way out."""
    if len(row) == 2:
        problem, fix = row
        return UnfitRow(problem, fix)
    text, prompt, spans = row
    return Passage(text, prompt, spans and tuple(map(tuple, spans)))


def _end(process: Any) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):
        process.stdin.close()
    process.stdout.close()


def count_blocks(
    blocks: Iterator[list[Passage | UnfitRow]],
    count: Callable[[list[Passage]], Sequence[tuple[int, int | None]]],
    advance: Callable[[], None],
    stop: Callable[[], None],
    *,
    each: int = 1,
) -> RowTokens:
    """Tokens of every passage, and of those the loss's where the form or the template says which they are.

    A row has `each` of them. `stop` ends whoever makes passages, where this ends before they do.
    """
    lengths, loss, faults = array("q"), array("q"), list[Fault]()
    known = True
    with closing(_ahead(blocks, stop)) as ahead:
        for block in ahead:
            tokens = iter(count([one for one in block if isinstance(one, Passage)]))
            for one in block:
                whole, own = next(tokens) if isinstance(one, Passage) else (0, 0)
                row = len(lengths) // each
                if not whole and len(faults) < NAMED and row not in [fault.row for fault in faults[-1:]]:
                    problem, fix = (str(one), one.fix) if isinstance(one, UnfitRow) else ("has no tokens", "")
                    faults.append(Fault(row, problem, fix))
                lengths.append(whole)
                loss.append(own or 0)
                known = known and own is not None
                advance()
    every = np.array(lengths, np.int64)
    return RowTokens(every, np.array(loss, np.int64) if known and every.any() else None, tuple(faults))


def _ahead(
    blocks: Iterator[list[Passage | UnfitRow]], stop: Callable[[], None]
) -> Generator[list[Passage | UnfitRow], None, None]:
    """The same, the next of which is waited for while one is counted, which needs no Python."""
    with ThreadPoolExecutor(1) as waiting:
        try:
            coming = waiting.submit(next, blocks, None)
            while (block := coming.result()) is not None:
                coming = waiting.submit(next, blocks, None)
                yield block
        except BaseException:
            stop()
            raise
