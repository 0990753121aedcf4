"""A point of a grid: one comparison, known by its content, that any process can work on."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from odcsim import __version__
from odcsim.decide import asking
from odcsim.decide.asking import lengths_of, setting_of
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.question import FIELDS, LENGTHS, Question
from odcsim.trace import Trace

FILES = tuple(name for name, about in FIELDS.items() if about.file)
DIGITS = 16  # of a key


@dataclass(frozen=True, slots=True)
class Point:
    """What is asked, by key, with what the lengths come to. Who holds the same point gets the same rows."""

    asked: tuple[tuple[str, Any], ...]
    balancers: tuple[str, ...]  # whose rows are kept; none: all
    syncs: tuple[str, ...]
    lengths: str  # their digest
    folder: str = ""  # that files are looked for in, where they are there
    key: str = ""

    def sealed(self) -> "Point":
        return replace(self, key=self._key())

    def check(self) -> None:
        """Refuse to answer for somebody who sees other files, or another odcsim."""
        if self.key != self._key():
            raise InputError(
                f"point {self.key} has other content on the worker",
                fix="workers need the same odcsim, and the files of the grid under the same paths",
            )

    def setting(self, *, limited: bool = True) -> Setting:
        """The question. Not `limited`: without the search for a token limit."""
        asked = {name: value for name, value in self.at().items() if name not in LENGTHS}
        lengths = trace(self.lengths, *(self.at()[name] for name in LENGTHS))
        return setting_of(asking.asked({"trace": lengths, **asked}), limited=limited)

    def at(self) -> dict[str, Any]:
        """What is asked, with files where they are."""
        return {name: located(self.folder, v) if name in FILES else v for name, v in self.asked}

    def _key(self) -> str:
        try:
            cost = repr(self.setting(limited=False).cost)
        except InputError as error:
            cost = str(error)
        content = json.dumps([__version__, self.asked, self.balancers, self.syncs, self.lengths, cost])
        return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]


def located(folder: str, text: str | None) -> str | None:
    """A file that lies in the folder; a name of the catalogue, a spec or a path from the root as it is."""
    if text is None or not folder or not ("." in text or "/" in text):
        return text
    path = os.path.join(folder, text)  # noqa: PTH118 - as exists, which never raises
    return path if os.path.exists(path) else text  # noqa: PTH110


@lru_cache(maxsize=4)
def trace(known: str, *asked: Any) -> Trace:
    """The lengths with this digest, read once in a process for all points that have them."""
    found = read(dict(zip(LENGTHS, asked, strict=True)))
    if digest(found) != known:
        fix = "workers need the files of the grid as they were when the sweep began"
        raise InputError("has other lengths on the worker", where=found.name, fix=fix)
    return found


def read(asked: Mapping[str, Any]) -> Trace:
    return lengths_of(Question(**asked))


def digest(trace: Trace) -> str:
    """Of the lengths and all that stands beside them; not of what they are called."""
    content = hashlib.sha256(str(trace.drawn_from).encode())
    for values in (trace.lengths, trace.counts, trace.loss, trace.group, trace.step, trace.bundle):
        content.update(b"-" if values is None else values.tobytes() + b"|")
    return content.hexdigest()[:DIGITS]
