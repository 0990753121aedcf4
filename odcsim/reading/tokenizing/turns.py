"""What a chat template is given of a row: its messages, the tools they may call, and what else the template asks."""

import json
from collections.abc import Mapping
from typing import Any

from odcsim.reading.tokenizing.folder import TokenizerFolder
from odcsim.reading.tokenizing.template import Spans

BESIDE = ("tools", "system", "chat_template_kwargs")  # of a conversation, in columns of their own
HISTORY = "history"  # of Alpaca's rows: what was asked and said before, in pairs
ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
    "function_call": "assistant", "observation": "tool", "function_response": "tool",
}  # fmt: skip
# What a template's caller says by other means, or what would change more than the text.
_TAKEN = frozenset(
    "messages tools documents chat_template add_generation_prompt continue_final_message "
    "truncation max_length padding tokenizer_kwargs".split()
)

Record = Mapping[str, Any]


class UnfitRow(ValueError):
    """Why a row cannot be counted, and the way out."""

    def __init__(self, problem: str, fix: str = "mend the row") -> None:
        super().__init__(problem)
        self.fix = fix


def render(by: TokenizerFolder, row: Record, talk: list[Any], *, answer: bool = False) -> tuple[str, Spans | None]:
    """The text of messages as the row's own tools and settings have it."""
    template: Any = by.template
    text: tuple[str, Spans | None] = template.render(talk, _tools(row), answer=answer, more=_settings(row))
    return text


def messages(row: Record, value: Any) -> list[Any]:
    given = talk(value)
    if not given:
        raise UnfitRow("has no messages")
    turns = [_turn(message) for message in given]
    if (system := row.get("system")) and turns[0].get("role") != "system":
        turns.insert(0, {"role": "system", "content": system})
    return turns


def earlier(row: Record) -> list[Any]:
    """The turns before an instruction."""
    given = row.get(HISTORY)
    pairs = _parse(given) if isinstance(given, str) and given.strip() else given or []
    if not isinstance(pairs, list) or not all(isinstance(p, list) and [*map(type, p)] == [str, str] for p in pairs):
        raise UnfitRow(f"has a {HISTORY} that is no list of pairs of texts")
    return [{"role": role, "content": text} for p in pairs for role, text in zip(("user", "assistant"), p, strict=True)]


def talk(value: Any) -> list[Any] | None:
    """Messages, which some files hold as a text of JSON."""
    if isinstance(value, str):
        value = _parse(value) if value.lstrip()[:1] == "[" else None
        named = isinstance(value, list) and all(isinstance(m, dict) and {"role", "from"} & {*m} for m in value)
        return value if named else None
    return value if isinstance(value, list) and all(isinstance(message, dict) for message in value) else None


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    """Of ShareGPT's `from` and `value` what everybody else calls role and content."""
    if "from" in message and "role" not in message:
        speaker = str(message["from"])
        return {"role": ROLES.get(speaker, speaker), "content": message.get("value")}
    return message


def _tools(row: Record) -> Any:
    """As they are: templates tell an empty list from none."""
    tools = row.get("tools")
    if not isinstance(tools, str):
        return tools
    try:
        return json.loads(tools) if tools.strip() else None
    except (ValueError, RecursionError):
        raise UnfitRow("has tools that are no JSON") from None


def _settings(row: Record) -> dict[str, Any]:
    """What a row tells the template by itself, as TRL reads it: `enable_thinking` and the like."""
    given = row.get("chat_template_kwargs")
    settings = _parse(given) if isinstance(given, str) and given.strip() else given or {}
    if not isinstance(settings, dict):
        raise UnfitRow("has chat_template_kwargs that are no object")
    if taken := sorted(_TAKEN & {*settings}):
        raise UnfitRow(f"sets {', '.join(taken)} in chat_template_kwargs", "leave that out: it is not counted")
    return settings


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
