"""A point of a grid: one comparison, known by its content, that any process can work on."""

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import odcsim
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
        self.trace()
        if self.key != self._key():
            raise InputError(
                f"point {self.key} has other content on the worker",
                fix="workers need the same odcsim, and the files of the grid under the same paths",
            )

    def trace(self) -> Trace:
        return trace(self.lengths, *(self.at()[name] for name in LENGTHS))

    def setting(self) -> Setting:
        asked = {name: value for name, value in self.at().items() if name not in LENGTHS}
        return setting_of(asking.asked({"trace": self.trace(), **asked}))

    def at(self) -> dict[str, Any]:
        """What is asked, with files where they are."""
        return {name: located(self.folder, v) if name in FILES else v for name, v in self.asked}

    def _key(self) -> str:
        """Files count by what is in them: a point whose profile has changed is another one."""
        files = [_content(self.at()[name]) for name in FILES if name not in LENGTHS]
        content = json.dumps([release(), self.asked, self.balancers, self.syncs, self.lengths, files])
        return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]


@cache
def release() -> str:
    """What figures come from: the version, and in a checkout the commit. Without git the version alone."""
    checkout = Path(odcsim.__file__).parents[1]
    if not (checkout / ".git").exists():
        return odcsim.__version__
    with suppress(OSError):
        git = ["git", "-C", str(checkout), "rev-parse", "--verify", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout
        return f"{odcsim.__version__} {commit}".strip()
    return odcsim.__version__


def _content(path: str | None) -> str:
    """The digest of a file, or of the config.json in a folder; of a name of the catalogue there is none."""
    file = None if path is None else Path(path, "config.json") if Path(path).is_dir() else Path(path)
    return "" if file is None or not file.is_file() else hashlib.sha256(file.read_bytes()).hexdigest()


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
