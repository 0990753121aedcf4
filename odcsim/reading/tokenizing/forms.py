"""How a row says its text: as messages (OpenAI's or ShareGPT's), prompt and completion, Alpaca's three, or plain.

Every row says it by itself, so that no count depends on the order of rows: the first names the form of a file, and a
row of another form is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from odcsim.reading.fields import pick
from odcsim.reading.tokenizing.folder import TokenizerFolder
from odcsim.reading.tokenizing.template import Spans
from odcsim.reading.tokenizing.turns import BESIDE, HISTORY, Record, UnfitRow, earlier, messages, render, talk

CHATS = ("messages", "conversations", "conversation")
ALPACA = ("instruction", "input", "output")
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("query", "response"),
    ("question", "answer"),
    ("input", "output"),
)
TEXTS = ("text", "content")
SIDES = ("chosen", "rejected")
BEFORE = ("prompt", "question", "query", "instruction")  # of both sides, in a column of its own
ORDER = (
    SIDES,
    *((name,) for name in CHATS),
    ALPACA,
    *PAIRS,
    *((name,) for name in TEXTS),
)  # which form a row has first


class RowKind(NamedTuple):
    """What a row is, and in which columns."""

    words: str
    columns: tuple[str, ...]
    spoken: bool = False  # of prompts and completions: as messages

    def __str__(self) -> str:
        return f"{self.words}{' as messages' if self.spoken else ''} in {', '.join(map(repr, self.columns))}"


@dataclass(frozen=True, slots=True)
class Passage:
    """The text of one sample. The loss counts what comes after `prompt`, or what is in `spans`, where known."""

    text: str
    prompt: str | None = None
    spans: Spans | None = None


Write = Callable[[Record, TokenizerFolder], Passage]


@dataclass(frozen=True, slots=True)
class Form:
    """`plain`: the tokenizer puts its own tokens around; a chat template has written them."""

    kind: RowKind
    column: str | None  # that somebody named
    plain: bool
    write: Write
    beside: tuple[str, ...] = ()  # what it reads beside its text
    groups: str = ""  # the column whose like values in a row are rollouts of one prompt

    @property
    def words(self) -> str:
        return self.kind.words

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that may hold its text, whether or not the first row has them."""
        return (*self.kind.columns, *self.beside)

    @property
    def read(self) -> tuple[str, ...]:
        """Those, and all by which a row may show another form."""
        before = ORDER[: ORDER.index(self.kind.columns)] if self.column is None else ()
        every = (*self.columns, *(name for columns in before for name in columns))
        return tuple(dict.fromkeys(part for name in every for part in (name, name.partition(".")[0])))

    @property
    def each(self) -> int:
        """Samples of a row."""
        return len(SIDES) if self.kind.columns == SIDES else 1

    def passages(self, row: Record, by: TokenizerFolder) -> list[Passage]:
        kind = _kind(row, self.column)
        if kind not in (None, self.kind):
            fix = "keep one form in a file, or name the column of a text with --column"
            raise UnfitRow(f"is {kind} where the first row is {self.kind}", fix)
        if self.kind.columns == SIDES:
            chosen, rejected = SIDES
            return [_side(row, chosen, rejected, by), _side(row, rejected, chosen, by)]
        return [self.write(row, by)]


def form_of(record: Record, column: str | None, *, chat: bool) -> Form | None:
    """The form of a file by its first row; `chat`: there is a template."""
    kind = _kind(record, column)
    if kind is None:
        return None
    words, (first, *others), _ = kind
    if words == "pairs":
        plain = isinstance(record[first], str) and not talk(record[first])
        return Form(kind, column, plain, lambda row, by: _side(row, first, others[0], by), (*BEFORE, "input", *BESIDE))
    if words == "conversations":
        return Form(kind, column, False, lambda row, by: _chat(row, pick(row, first), by), BESIDE)
    if words == "texts":
        return Form(kind, column, True, lambda row, by: Passage(_end(_text(row, first), by)))
    if words == "Alpaca":
        return Form(kind, column, not chat, lambda row, by: _alpaca(row, by, chat=chat), (*BESIDE, HISTORY))
    [completion] = others
    if kind.spoken:
        return Form(
            kind, None, False, lambda row, by: _dialogue(row, row.get(first), row.get(completion), by), BESIDE, first
        )
    groups = first if first in ("input", "prompt") else ""
    return Form(kind, None, True, lambda row, by: _join(_text(row, first), _text(row, completion), by), groups=groups)


def _kind(record: Record, column: str | None) -> RowKind | None:
    if column is not None:
        value = pick(record, column)  # also of a field inside another: `meta.text`
        if talk(value):
            return RowKind("conversations", (column,))
        return RowKind("texts", (column,)) if isinstance(value, str) else None
    if all(_has_text(record.get(name)) for name in SIDES):
        return RowKind("pairs", SIDES, not isinstance(record[SIDES[0]], str))
    if name := next((n for n in CHATS if talk(record.get(n))), None):
        return RowKind("conversations", (name,))
    if isinstance(record.get("instruction"), str) and isinstance(record.get("output"), str):
        return RowKind("Alpaca", ALPACA)
    for prompt, completion in PAIRS:
        if _has_text(record.get(prompt)) and _has_text(record.get(completion)):
            return RowKind(f"{prompt} + {completion}", (prompt, completion), not isinstance(record[prompt], str))
    name = next((n for n in TEXTS if isinstance(record.get(n), str)), None)
    return RowKind("texts", (name,)) if name else None


def _chat(row: Record, value: Any, by: TokenizerFolder) -> Passage:
    text, spans = render(by, row, messages(row, value))
    return Passage(text, None, spans)


def _dialogue(row: Record, prompt: Any, completion: Any, by: TokenizerFolder) -> Passage:
    """A prompt and what an assistant made of it."""
    before = messages(row, prompt)
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else messages({}, completion)
    whole, spans = render(by, row, [*before, *after])
    return Passage(whole, render(by, row, before, answer=True)[0], spans)


def _side(row: Record, side: str, other: str, by: TokenizerFolder) -> Passage:
    """One of a pair, after its prompt: that of a column, or what both sides begin with."""
    prompt = next((row[name] for name in BEFORE if row.get(name) is not None), None)
    if talk(row.get(side)):
        return _spoken_side(row, prompt, messages({}, row.get(side)), messages({}, row.get(other)), by)
    text = _text(row, side)
    if lost := [name for name in ("system", "input") if row.get(name)]:
        raise UnfitRow(f"has {' and '.join(lost)} beside texts of a pair", "write it into the prompt")
    if prompt is None:
        return Passage(_end(text, by), _common(text, _text(row, other)))
    if not isinstance(prompt, str):
        raise UnfitRow("has a prompt that is no text, before a text")
    return _join(prompt, text, by)


def _spoken_side(row: Record, prompt: Any, turns: list[Any], others: list[Any], by: TokenizerFolder) -> Passage:
    if talk(prompt):
        return _dialogue(row, prompt, turns, by)
    if isinstance(prompt, str) and turns[0].get("role") == "assistant":
        return _dialogue(row, [{"role": "user", "content": prompt}], turns, by)
    same = _common(turns, others)
    return _dialogue(row, same, turns[len(same) :], by) if same else _chat(row, turns, by)


def _common(one: Any, other: Any) -> Any:
    """What both begin with, and of two that end alike all but the last, as TRL takes it for the prompt."""
    least = min(len(one), len(other))
    same = next((i for i in range(least) if one[i] != other[i]), max(least - 1, 0))
    return one[: same - 1] if isinstance(one, str) and same < least and one[:same].endswith(" ") else one[:same]


def _alpaca(row: Record, by: TokenizerFolder, *, chat: bool) -> Passage:
    more = row.get("input") or ""
    instruction = _text(row, "instruction") + (f"\n{more}" if more else "")
    before = earlier(row)
    if not chat:
        if lost := [name for name in ("system", "tools", HISTORY) if row.get(name)]:
            fix = "name a --tokenizer with one beside it, or leave it out"
            raise UnfitRow(f"has {' and '.join(lost)}, which nothing but a chat template writes", fix)
        return _join(f"{instruction}\n", _text(row, "output"), by)
    return _dialogue(row, [*before, {"role": "user", "content": instruction}], _text(row, "output"), by)


def _join(prompt: str, completion: str, by: TokenizerFolder) -> Passage:
    return Passage(_end(prompt + completion, by), prompt)


def _end(text: str, by: TokenizerFolder) -> str:
    """Trainers end a sample with the tokenizer's end of text, where it does not end so already."""
    return text if not by.eos or text.endswith(by.eos) else text + by.eos


def _has_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(talk(value)))


def _text(row: Record, name: str) -> str:
    value = pick(row, name)
    if not isinstance(value, str):
        raise UnfitRow(f"has no text in '{name}'")
    return value
