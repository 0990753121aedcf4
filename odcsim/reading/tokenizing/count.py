"""What tokens are counted by: a process of its own, since a tokenizer's file may ask for any memory and time, and what
runs it ends where something is odd in it. Blocks of passages come by stdin, and counts go by stdout, as JSON."""

import json
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.tokenizing.folder import GIVE, tokenizer_at
from odcsim.reading.tokenizing.forms import Passage
from odcsim.reading.tokenizing.render import SIZE, in_time, send
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
                with in_time(request.seconds):
                    tokenizer = tokenizer_at(request.path)
                send(out, [])
                while size := SIZE.unpack(sys.stdin.buffer.read(SIZE.size))[0]:
                    block = [
                        Passage(text, prompt, spans) for text, prompt, spans in json.loads(sys.stdin.buffer.read(size))
                    ]
                    with in_time(request.seconds):
                        tokens = list(counts(block, tokenizer, plain=request.plain))
                    send(out, tokens)
            except InputError as error:
                send(out, error)
            except BaseException as error:
                if isinstance(error, BrokenPipeError | EOFError):
                    raise
                reason = " ".join(str(error).split())[:120] or type(error).__name__
                send(out, InputError(f"cannot count ({reason})", where=str(request.path), fix=GIVE))


def counts(passages: Sequence[Passage], tokenizer: Any, *, plain: bool) -> Iterator[tuple[int, int | None]]:
    """Tokens of each, and of those the loss's."""
    placed = any(passage.spans for passage in passages)  # where tokens stand in the text costs time
    encode = tokenizer.encode_batch if placed else tokenizer.encode_batch_fast
    wholes = encode([passage.text for passage in passages], add_special_tokens=plain)
    before = [passage.prompt for passage in passages if passage.prompt is not None]
    prompts = iter(tokenizer.encode_batch_fast(before, add_special_tokens=plain))
    for passage, whole in zip(passages, wholes, strict=True):
        loss = None
        if passage.prompt is not None:
            prompt, ids = next(prompts).ids, whole.ids
            alike = len(prompt)  # how many both begin with: a completion may merge with the end of its prompt
            if ids[:alike] != prompt:
                alike = next((i for i, (a, b) in enumerate(zip(prompt, ids, strict=False)) if a != b), len(ids))
            loss = len(whole) - alike
        if passage.spans is not None:  # tokens that hold characters of the assistant's
            seen = np.zeros(len(whole), bool)
            for begin, end in passage.spans:
                first, last = whole.char_to_token(begin), whole.char_to_token(end - 1)
                if first is not None:
                    seen[first : None if last is None else last + 1] = True
            loss = int(seen.sum())
        yield len(whole), loss
