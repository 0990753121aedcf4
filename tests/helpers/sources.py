"""Sources and pages of this repository: each is read and parsed once, and every rule on them looks at the same ones."""

import ast
import gc
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from scripts import ROOT

PROGRAMS = ("odcsim", "odc_engine", "tests", "docs", "notebooks", "traces")
STDLIB = set(sys.stdlib_module_names)
BLOCK = re.compile(r"^( *)```(\w*)(?: (\S+))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(eq=False)
class Source:
    """A Python file or a page, by its path from the root."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Kept to the end, so that collections of garbage need not look through it each time."""
        gc.disable()
        tree = ast.parse(self.text)
        gc.freeze()
        gc.enable()
        return tree

    @cached_property
    def _nodes(self) -> dict[type, list[Any]]:
        found = defaultdict(list)
        for node in ast.walk(self.tree):
            found[type(node)].append(node)
        return found

    def every(self, *kinds: type) -> list[Any]:
        """Nodes of these kinds, wherever they stand."""
        return [node for kind in kinds for node in self._nodes.get(kind, ())]

    @property
    def module(self) -> str:
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """Line and full name of what is imported, in functions too, but not for type checkers alone.

        Of `from a import b` both, since b may be a module.
        """
        found, nodes = [], [self.tree]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                nodes += node.orelse
            elif isinstance(node, ast.Import):
                found += [(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found.append((node.lineno, str(node.module)))
                found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
            elif not isinstance(node, ast.expr):
                nodes += ast.iter_child_nodes(node)
        return found

    @cached_property
    def packages(self) -> set[str]:
        """Packages it imports that Python does not bring."""
        return {name.partition(".")[0] for _, name in self.imports} - STDLIB

    @property
    def blocks(self) -> list[tuple[int, str, str, str]]:
        """Of a page's blocks of code the line, the language, the name of a file and what is in it, as it is written."""
        return [(self.line(block.start()), *block.groups()[1:]) for block in BLOCK.finditer(self.text)]

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def found(self, pattern: re.Pattern[str]) -> Iterator[str]:
        """Each place where it says this, ready to be read in a list."""
        for match in pattern.finditer(self.text):
            yield self.at(self.line(match.start()), " ".join(match[0].split()))

    def at(self, line: int, what: str) -> str:
        return f"{self.name}:{line}: {what}"


Files = list[Source]


@cache
def everything() -> Files:
    """All Python files and pages that are ours."""
    below = [path for folder in PROGRAMS for kind in ("py", "md") for path in (ROOT / folder).rglob(f"*.{kind}")]
    paths = [*ROOT.glob("*.md"), *sorted(below)]
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths]


def planted(texts: dict[str, str]) -> Files:
    """Files that are not there, for a rule to look at."""
    return [Source(name, text) for name, text in texts.items()]


def programs(files: Files, *folders: str) -> Files:
    """Python files in some folders; without any, all."""
    return _of(".py", files, folders)


def pages(files: Files, *folders: str) -> Files:
    return _of(".md", files, folders)


def _of(kind: str, files: Files, folders: Iterable[str]) -> Files:
    below = tuple(f"{folder}/" for folder in folders) or ("",)
    return [one for one in files if one.name.endswith(kind) and one.name.startswith(below)]


def modules(files: Files, *packages: str) -> dict[str, Source]:
    """Modules of our packages by their names."""
    return {one.module: one for one in programs(files, *packages or ("odcsim", "odc_engine"))}
