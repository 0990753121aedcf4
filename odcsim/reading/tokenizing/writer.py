"""The process that texts are read and rendered by, seen from who asks: started once, used again, ended with us."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from odcsim.errors import InputError
from odcsim.reading.tokenizing.forms import Passage
from odcsim.reading.tokenizing.turns import UnfitRow
from odcsim.reading.tokenizing.writing import SIZE, Request, too_slow

if TYPE_CHECKING:
    from odcsim.reading.tokenizing.counter import CountRequest

# Whoever asked is interrupted, too, and ends this; what it imports first takes long enough to be interrupted in.
IGNORE = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
RUN = IGNORE + "from odcsim.reading.tokenizing.{} import main; main()"


@cache
def writer_of(_process: int) -> "TextReader":
    """One for each process: what is forked has not started its parent's."""
    return TextReader("writing")


@cache
def counter_of(_process: int) -> "TextReader":
    """Of what it says in other languages' words nothing is printed."""
    return TextReader("counter", stderr=subprocess.DEVNULL)


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
        while (said := self._hear(process, request.seconds, source)) is not None:
            if isinstance(said, dict):
                raise InputError(said["problem"], where=said["where"], fix=said["fix"])
            yield [_heard(*row) for row in said]

    @contextmanager
    def counting(self, request: "CountRequest") -> Iterator[Callable[[list[Passage]], Any]]:
        """Gives what counts the tokens of passages; their tokenizer is to blame where the process ends."""
        process = self._started()

        def asked(content: bytes) -> Any:
            with suppress(BrokenPipeError):  # it has ended, which is heard
                process.stdin.write(content)
                process.stdin.flush()
            found = self._hear(process, request.seconds, str(request.path))
            if isinstance(found, dict):
                raise InputError(found["problem"], where=found["where"], fix=found["fix"])
            return found

        def count(passages: list[Passage]) -> Any:
            content = json.dumps([[one.text, one.prompt, one.spans] for one in passages], ensure_ascii=False).encode()
            return asked(SIZE.pack(len(content)) + content)

        asked(pickle.dumps(request))
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
        return json.loads(content)

    def _died(self, code: int, seconds: float, source: str) -> Exception:
        counts = self._module == "counter"
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


def _heard(text: str, *rest: Any) -> Passage | UnfitRow:
    """A passage, or what is wrong with the row and the way out."""
    if len(rest) == 1:
        return UnfitRow(text, *rest)
    prompt, spans = rest
    return Passage(text, prompt, spans and tuple(map(tuple, spans)))


def _end(process: Any) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):
        process.stdin.close()
    process.stdout.close()
