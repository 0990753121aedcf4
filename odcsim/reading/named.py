"""The traces that ship with odcsim: one JSON file each in `traces/`, a table with its origin beside it. And a run."""

import json
from dataclasses import dataclass
from pathlib import Path

from odcsim.reading import formats
from odcsim.trace import Trace


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a named trace comes from. `kind` says whether it is data or only a shape."""

    kind: str
    origin: str
    licence: str
    citation: str
    note: str
    siblings: int = 1
    alike: float = 0.0


def folder() -> Path:
    """`odcsim/_traces` in an installed package, `traces/` beside it in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "_traces"
    return installed if installed.is_dir() else package.parent / "traces"


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.json"))


def find(text: str) -> str | None:
    """The named trace meant by `text`, whatever its case."""
    return text.lower() if text.lower() in names() else None


def run(text: str) -> Path | None:
    """The folder of a watched run that ships, whatever its case."""
    return {path.parent.name: path.parent for path in folder().glob("*/watch-rank0.jsonl")}.get(text.lower())


def about(name: str) -> Origin:
    content = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
    return Origin(**{field: content[field] for field in Origin.__slots__ if field in content})


def load(name: str) -> Trace:
    source, trace = about(name), formats.load(folder() / f"{name}.json")
    origin, siblings = f"{source.kind}: {source.origin}", (source.siblings, source.alike)
    return Trace(name, trace.lengths, trace.counts, trace.loss, origin=origin, siblings=siblings)
