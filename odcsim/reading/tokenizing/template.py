"""A chat template, run in Jinja's sandbox as transformers runs it: a dataset or a tokenizer may come from anybody."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any

BEGIN, END = "\x00\x02", "\x00\x03"  # around what `{% generation %}` says that an assistant wrote
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing; templates read the first two

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Templates by name and the special tokens that they may name."""

    sources: Mapping[str, str]
    special: Mapping[str, str]
    source: str = ""  # the file that they are from

    def render(
        self,
        messages: list[Any],
        tools: Any = None,
        *,
        answer: bool = False,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[str, Spans | None]:
        """The text, and where in it the assistant's words are, in characters, if the template says so.

        `answer`: it ends where an assistant is to go on. `more`: what else the template may ask for.
        """
        name = "tool_use" if tools is not None and "tool_use" in self.sources else "default"
        given = {"messages": [_message(m) for m in messages], "tools": tools, "documents": None}
        words = {**self.special, **more, **given, "add_generation_prompt": answer}
        text = _compiled(self.sources[name]).render(words)
        return _spans(text) if "generation" in self.sources[name] and BEGIN in text else (text, None)


def _message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a message what is there: tables have a null where another row has a key."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING if key in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _spans(marked: str) -> tuple[str, Spans]:
    """The text without its marks, and what stood between them."""
    parts, spans = [], []
    size = 0
    for i, piece in enumerate(marked.split(BEGIN)):
        own, end, after = piece.partition(END) if i else ("", "", piece)
        if end and own:
            spans.append((size, size + len(own)))
        parts += [own, after]
        size += len(own) + len(after)
    return "".join(parts), tuple(spans)


@cache
def _compiled(source: str) -> Any:
    from jinja2 import ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """`{% generation %}...{% endgeneration %}` around an assistant's words."""

        tags = {"generation"}  # noqa: RUF012 - jinja's own form

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller: Callable[[], str]) -> str:
            return f"{BEGIN}{caller()}{END}"

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    sandbox.filters["tojson"] = _tojson
    sandbox.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return sandbox.from_string(source)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own escapes what is special in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
