"""Public names that a text, a program or a page takes by another path than the documented one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from public import elsewhere, goes_around

BLOCK = re.compile(r"^ *```python[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"\b((?:odcsim|odc_engine)(?:\.\w+)+)\.(\w+)")
OURS = re.compile(r"odcsim|odc_engine")


def around(path: Path, *, imports: bool = True) -> list[str]:
    """Of a page what it says and its programs take, of a program what it imports and what its strings say and take."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [*_said(text), *(name for block in BLOCK.findall(text) for name in elsewhere(dedent(block)))]
    return [*(elsewhere(text) if imports else []), *(name for said in _strings(text) for name in _taken_in(said))]


def _strings(code: str) -> Iterator[str]:
    constants = (node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant))
    return (value for value in constants if isinstance(value, str) and OURS.search(value))


def _taken_in(string: str) -> list[str]:
    """Of a string that may be a program, or words with a program's line in them."""
    try:
        return elsewhere(dedent(string))
    except SyntaxError:
        lines = (line.strip() for line in string.splitlines() if line.lstrip().startswith("from odc"))
        return [*_said(string), *(name for line in lines for name in _line(line))]


def _line(line: str) -> list[str]:
    try:
        return elsewhere(line)
    except SyntaxError:  # words, or the first line of an import over several
        return []


def _said(text: str) -> list[str]:
    return [f"{module}.{name}" for module, name in DOTTED.findall(text) if goes_around(module, name)]
