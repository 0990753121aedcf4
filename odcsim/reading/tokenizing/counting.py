"""Passages become lengths, a block at a time: the tokenizer's own threads take all cores for each block."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from odcsim.errors import InputError
from odcsim.reading.tokenizing.folder import TokenizerFolder
from odcsim.reading.tokenizing.forms import Form, Passage, Record, UnfitRow

BLOCK = 256
Counted = tuple[NDArray[np.int64], NDArray[np.int64] | None]


def counted(
    records: Iterable[Record],
    form: Form,
    folder: TokenizerFolder,
    where: Callable[[int], str],
    advance: Callable[[], None],
) -> Counted:
    """Tokens of every record, and of those the loss's where the form or the template says which they are."""
    lengths: list[int] = []
    loss: list[int | None] = []
    for block in _ahead(_passages(records, form, folder, where)):
        for whole, own in _block(block, folder.tokenizer, plain=form.plain):
            lengths.append(whole)
            loss.append(own)
            if not whole:
                raise InputError("has no tokens", where=where(len(lengths) - 1), fix="leave the row out")
            advance()
    known = None if None in loss or not loss else np.array(loss, np.int64)
    return np.array(lengths, np.int64), known


def _passages(
    records: Iterable[Record], form: Form, folder: TokenizerFolder, where: Callable[[int], str]
) -> Iterator[Passage]:
    from jinja2 import TemplateError

    for row, record in enumerate(records):
        try:
            passage = form.passage(record, folder)
            passage.text.encode()
            yield passage
        except UnicodeEncodeError:
            raise InputError("is no text (half a character)", where=where(row), fix="leave the row out") from None
        except UnfitRow as error:
            raise InputError(str(error), where=where(row), fix="mend the row or leave it out") from None
        except (
            TemplateError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            LookupError,
            RecursionError,
        ) as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            problem = f"the chat template does not take it ({reason})"
            raise InputError(problem, where=where(row), fix="mend the row, or name another --tokenizer") from None


def _ahead(passages: Iterator[Passage]) -> Iterator[list[Passage]]:
    """Blocks, the next of which is written while one is counted, which needs no Python."""
    with ThreadPoolExecutor(1) as writer:
        coming = writer.submit(lambda: list(islice(passages, BLOCK)))
        while block := coming.result():
            coming = writer.submit(lambda: list(islice(passages, BLOCK)))
            yield block


def _block(passages: Sequence[Passage], tokenizer: Any, *, plain: bool) -> Iterator[tuple[int, int | None]]:
    texts = [passage.text for passage in passages]
    placed = any(passage.spans for passage in passages)  # where tokens stand in the text costs time
    encode = tokenizer.encode_batch if placed else tokenizer.encode_batch_fast
    wholes = encode(texts, add_special_tokens=plain)
    asked = [passage.prompt for passage in passages if passage.prompt is not None]
    prompts = iter(tokenizer.encode_batch_fast(asked, add_special_tokens=plain))
    for passage, whole in zip(passages, wholes, strict=True):
        after = None if passage.prompt is None else len(whole) - _alike(next(prompts).ids, whole.ids)
        yield len(whole), _within(whole, passage) if passage.spans is not None else after


def _alike(prompt: list[int], whole: list[int]) -> int:
    """How many tokens both begin with: a completion may merge with the end of its prompt."""
    if whole[: len(prompt)] == prompt:
        return len(prompt)
    return next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole))


def _within(whole: Any, passage: Passage) -> int:
    """Tokens that hold characters of the assistant's spans."""
    seen = np.zeros(len(whole), bool)
    for begin, end in passage.spans or ():
        first, last = whole.char_to_token(begin), whole.char_to_token(end - 1)
        if first is not None:
            seen[first : None if last is None else last + 1] = True
    return int(seen.sum())
