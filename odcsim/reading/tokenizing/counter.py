"""What tokens are counted by: a process of its own, since a tokenizer's file may ask for any memory and time, and what
runs it ends where something is odd in it. Blocks of passages come by stdin, and counts go by stdout, as JSON."""

import json
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odcsim.errors import InputError
from odcsim.reading.tokenizing.counting import counts
from odcsim.reading.tokenizing.folder import GIVE, tokenizer_at
from odcsim.reading.tokenizing.forms import Passage
from odcsim.reading.tokenizing.writing import SIZE, said
from odcsim.support import budget

SECONDS = 120  # of all processors, that a block of passages may take


@dataclass(frozen=True, slots=True)
class CountRequest:
    """`plain`: whether texts stand as they are, so that the tokenizer adds its own special tokens."""

    path: Path
    plain: bool
    folder: Path
    most: int
    seconds: float


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError, EOFError):
        while True:
            request = pickle.load(sys.stdin.buffer)
            os.chdir(request.folder)
            budget.limit(request.most)
            try:
                with _in_time(request.seconds):
                    tokenizer = tokenizer_at(request.path)
                said(out, [])
                while size := SIZE.unpack(sys.stdin.buffer.read(SIZE.size))[0]:
                    block = [
                        Passage(text, prompt, spans) for text, prompt, spans in json.loads(sys.stdin.buffer.read(size))
                    ]
                    with _in_time(request.seconds):
                        found = list(counts(block, tokenizer, plain=request.plain))
                    said(out, found)
            except InputError as error:
                said(out, {"problem": error.problem, "where": error.where, "fix": error.fix})
            except BaseException as error:
                if isinstance(error, BrokenPipeError | EOFError):
                    raise
                reason = " ".join(str(error).split())[:120] or type(error).__name__
                said(out, {"problem": f"cannot count ({reason})", "where": str(request.path), "fix": GIVE})


@contextmanager
def _in_time(seconds: float) -> Iterator[Any]:
    """Where it takes longer the process ends: nothing else would be heard meanwhile."""
    if not hasattr(signal, "setitimer"):  # Windows
        yield
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
