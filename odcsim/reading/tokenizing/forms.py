"""How a row says its text: as messages (OpenAI's or ShareGPT's), prompt and completion, Alpaca's three, or plain."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from odcsim.reading.nested import picked
from odcsim.reading.tokenizing.folder import TokenizerFolder
from odcsim.reading.tokenizing.template import Spans

CHATS = ("messages", "conversations", "conversation")
PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("query", "response"),
    ("question", "answer"),
    ("input", "output"),
)
TEXTS = ("text", "content")
BESIDE = ("tools", "system")  # of a conversation, in columns of their own
ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "function_call": "assistant", "observation": "tool", "function_response": "tool",
}  # fmt: skip

Record = Mapping[str, Any]


class UnfitRow(ValueError):
    """Why a row is not of the form that the first one has."""


@dataclass(frozen=True, slots=True)
class Passage:
    """The text of one sample. The loss counts what comes after `prompt`, or what is in `spans`, where known."""

    text: str
    prompt: str | None = None
    spans: Spans | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """`plain`: the tokenizer puts its own tokens around; a chat template has written them."""

    words: str
    columns: tuple[str, ...]
    plain: bool
    passage: Callable[[Record, TokenizerFolder], Passage]
    groups: str = ""  # the column whose like values in a row are rollouts of one prompt


def form_of(record: Record, column: str | None, *, chat: bool) -> Form | None:
    """The form of a file by its first row; `chat`: there is a template."""
    beside = tuple(name for name in BESIDE if name in record)
    if column is not None:
        return _of_column(_value(record, column), column, beside)
    if name := next((n for n in CHATS if _talk(record.get(n)) is not None), None):
        return _conversations(name, beside)
    if "instruction" in record and "output" in record and isinstance(record["instruction"], str):
        columns = ("instruction", *(("input",) if "input" in record else ()), "output")
        return Form("Alpaca", (*columns, *beside), not chat, lambda row, by: _alpaca(row, by, chat=chat))
    for prompt, completion in PAIRS:
        if _written(record.get(prompt)) and _written(record.get(completion)):
            return _pairs(prompt, completion, beside, spoken=not isinstance(record[prompt], str))
    name = next((n for n in TEXTS if isinstance(record.get(n), str)), None)
    return _texts(name) if name else None


def _of_column(value: Any, column: str, beside: tuple[str, ...]) -> Form | None:
    if _talk(value) is not None:
        return _conversations(column, beside)
    return _texts(column) if isinstance(value, str) else None


def _conversations(name: str, beside: tuple[str, ...]) -> Form:
    return Form("conversations", (name, *beside), False, lambda row, by: _chat(row, _value(row, name), by))


def _texts(name: str) -> Form:
    return Form("texts", (name,), True, lambda row, by: Passage(_ended(_text(row, name), by)))


def _pairs(prompt: str, completion: str, beside: tuple[str, ...], *, spoken: bool) -> Form:
    columns, words = (prompt, completion), f"{prompt} + {completion}"
    if not spoken:
        groups = prompt if prompt in ("input", "prompt") else ""
        return Form(
            words, columns, True, lambda row, by: _joined(_text(row, prompt), _text(row, completion), by), groups
        )
    return Form(
        words,
        (*columns, *beside),
        False,
        lambda row, by: _dialogue(row, row.get(prompt), row.get(completion), by),
        prompt,
    )


def _chat(row: Record, value: Any, by: TokenizerFolder) -> Passage:
    text, spans = _template(by).render(_messages(row, value), _tools(row))
    return Passage(text, None, spans)


def _dialogue(row: Record, prompt: Any, completion: Any, by: TokenizerFolder) -> Passage:
    """A prompt and what an assistant made of it."""
    asked = _messages(row, prompt)
    made = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else _messages({}, completion)
    whole, spans = _template(by).render([*asked, *made], _tools(row))
    return Passage(whole, _template(by).render(asked, _tools(row), answer=True)[0], spans)


def _alpaca(row: Record, by: TokenizerFolder, *, chat: bool) -> Passage:
    more = row.get("input") or ""
    asked = _text(row, "instruction") + (f"\n{more}" if more else "")
    if not chat:
        return _joined(f"{asked}\n", _text(row, "output"), by)
    return _dialogue(row, [{"role": "user", "content": asked}], _text(row, "output"), by)


def _joined(prompt: str, completion: str, by: TokenizerFolder) -> Passage:
    return Passage(_ended(prompt + completion, by), prompt)


def _ended(text: str, by: TokenizerFolder) -> str:
    """Trainers end a sample with the tokenizer's end of text, where it does not end so already."""
    return text if not by.eos or text.endswith(by.eos) else text + by.eos


def _messages(row: Record, value: Any) -> list[Any]:
    talk = _talk(value)
    if not talk:
        raise UnfitRow("has no messages")
    messages = [_spoken(message) for message in talk]
    if (system := row.get("system")) and messages[0].get("role") != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _spoken(message: Any) -> dict[str, Any]:
    """Of ShareGPT's `from` and `value` what everybody else calls role and content."""
    if not isinstance(message, dict):
        raise UnfitRow("has a message that is no object")
    if "from" in message and "role" not in message:
        speaker = str(message["from"])
        return {"role": ROLES.get(speaker, speaker), "content": message.get("value")}
    return message


def _template(by: TokenizerFolder) -> Any:
    return by.template


def _tools(row: Record) -> Any:
    tools = row.get("tools")
    try:
        return json.loads(tools) if isinstance(tools, str) and tools.strip() else tools
    except ValueError:
        raise UnfitRow("has tools that are no JSON") from None


def _talk(value: Any) -> list[Any] | None:
    """Messages, which some files hold as a text of JSON."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, list) and all(isinstance(message, dict) for message in value) else None


def _written(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and _talk(value) is not None)


def _value(row: Record, name: str) -> Any:
    """Also of a field inside another: `meta.text`."""
    try:
        return picked(row, name)
    except KeyError:
        return None


def _text(row: Record, name: str) -> str:
    value = _value(row, name)
    if not isinstance(value, str):
        raise UnfitRow(f"has no text in '{name}'")
    return value
