"""Passages become lengths, a block at a time: the tokenizer's own threads take all cores for each block."""

from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from odcsim.reading.bad import NAMED, Fault
from odcsim.reading.tokenizing.forms import Passage
from odcsim.reading.tokenizing.turns import UnfitRow


class RowTokens(NamedTuple):
    """Tokens of every row, none of a bad one, and of those the loss's where they are known. `faults`: the first bad
    rows."""

    lengths: NDArray[np.int64]
    loss: NDArray[np.int64] | None
    faults: tuple[Fault, ...] = ()


def counted(
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
            found = iter(count([one for one in block if isinstance(one, Passage)]))
            for one in block:
                whole, own = next(found) if isinstance(one, Passage) else (0, 0)
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


def counts(passages: Sequence[Passage], tokenizer: Any, *, plain: bool) -> Iterator[tuple[int, int | None]]:
    """Tokens of each, and of those the loss's."""
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
