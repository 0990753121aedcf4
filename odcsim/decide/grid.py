"""A grid: keys with one value or several, all of which are combined, from TOML or a dict.

Each combination is a point: one comparison, which any process can work on. It is known by its content: what is asked,
the lengths, what is in its files, and which odcsim is asked.
"""

import hashlib
import json
import os
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import odcsim
from odcsim import catalog
from odcsim import profile as profiles
from odcsim.balance import BALANCERS
from odcsim.catalog import fits
from odcsim.cluster import cluster_of, read_cluster
from odcsim.decide import asking, stock
from odcsim.decide.setting import Setting
from odcsim.errors import InputError, in_python, nearest
from odcsim.neighbours import FIELD
from odcsim.program import SYNCS
from odcsim.question import FIELDS, LENGTHS, Question
from odcsim.recipe import KEYS as RECIPE_KEYS
from odcsim.recipe import USUAL, fields_of, read_file, read_key
from odcsim.support.inputs import read_text, reading
from odcsim.support.values import Given, shown
from odcsim.trace import Trace

MOST = 1_000_000  # points: more are a slip of somebody's hand
ROWS = ("balancer", "sync")  # which rows of each comparison are kept; all of them without a word
KEYS = (*FIELDS, *RECIPE_KEYS, "recipe", *ROWS, "case")
FILES = tuple(name for name, about in FIELDS.items() if about.file)
DIGITS = 16  # of a point's key
NEEDED = {  # one of these keys, and how a grid says the first
    ("trace",): 'trace = "longalign"',
    ("model",): 'model = ["qwen3-8b", "qwen3-14b"]',
    ("gpu", "profile"): 'gpu = "h100"',
    ("devices",): "devices = [8, 16]",
    ("minibatch", "global_batch"): "minibatch = 4",
}


@dataclass(frozen=True, slots=True)
class Point:
    """What is asked, by key, with what the lengths come to. Who holds the same point gets the same rows."""

    words: dict[str, Any]  # of a question and its recipe, as the grid says them
    files: dict[str, str | None]  # of those that may name files, with each file where it is
    rows: dict[str, tuple[str, ...]]  # which are kept; none: all
    lengths: str  # their digest
    key: str = ""

    def identify(self) -> str:
        """Its key, by what this process sees."""
        contents = [_content(path) for name, path in self.files.items() if name not in LENGTHS]
        content = json.dumps([release(), self.words, self.rows, self.lengths, contents])
        return hashlib.sha256(content.encode()).hexdigest()[:DIGITS]

    def check(self) -> None:
        """Refuse to answer for somebody who sees other files, or another odcsim."""
        self.trace()
        if self.key != self.identify():
            fix = "workers need the same odcsim, and the files of the grid under the same paths"
            raise InputError(f"point {self.key} has other content on the worker", fix=fix)

    def trace(self) -> Trace:
        return trace(self.lengths, *((self.words | self.files)[name] for name in LENGTHS))

    def setting(self) -> Setting:
        rest = {name: value for name, value in (self.words | self.files).items() if name not in LENGTHS}
        return asking.setting_of(asking.question_by({"trace": self.trace(), **rest}))


@dataclass(frozen=True, slots=True)
class Grid:
    """Its points, each once, in the order in which the grid says them."""

    name: str
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()  # of each of its traces, what was bad


def read_grid(given: Grid | str | os.PathLike[str] | Mapping[str, Any]) -> Grid:
    if isinstance(given, Grid):
        return given
    content: Mapping[str, Any]
    name, folder = "grid", ""
    if isinstance(given, Mapping):
        content = {key: list(value) if isinstance(value, tuple | range) else value for key, value in given.items()}
    elif isinstance(given, str | os.PathLike):
        name, folder = str(given), str(Path(given).resolve().parent)
        with reading(name, missing="give a grid's TOML file", expected="TOML"):
            content = tomllib.loads(read_text(name))
    else:
        raise InputError(f"no grid: {shown(given)}", fix="give the path of a TOML file, or a dict of its keys")
    every = list(_combine(content, name, folder))
    rows = {
        key: tuple(dict.fromkeys(one.one_of(known) for one in _values(key, content.get(key, []), name)))
        for key, known in zip(ROWS, ([b.name for b in (*BALANCERS, *FIELD)], SYNCS), strict=True)
    }
    points: dict[str, Point] = {}
    digests: dict[tuple[Any, ...], str] = {}
    left_out = []
    for words in every:
        files = {key: _locate(folder, words[key]) for key in FILES}
        source = tuple((words | files)[key] for key in LENGTHS)
        if source not in digests:
            try:
                lengths = read_lengths(source)
            except InputError as error:
                raise InputError(in_python(f"trace: {error}"), where=name) from None
            digests[source] = digest(lengths)
            left_out += [f"{lengths.name}: {lengths.left_out}"] if lengths.left_out else []
        point = Point(words, files, rows, digests[source])
        key = point.identify()
        points.setdefault(key, replace(point, key=key))
    return Grid(name, tuple(points.values()), tuple(left_out))


def _combine(content: Mapping[str, Any], where: str, folder: str) -> Iterator[dict[str, Any]]:
    """What each point asks: of each case with the keys that all share, every combination."""
    shared = {key: value for key, value in content.items() if key not in ("case", *ROWS)}
    cases = []
    for case in Given("case", content.get("case", [{}]), where).items():
        keys = shared | case.mapping()
        _check_keys(keys, where)
        cases.append([[_read(key, one, folder) for one in _values(key, value, where)] for key, value in keys.items()])
        if empty := [key for key, words in zip(keys, cases[-1], strict=True) if not words]:
            raise InputError(f"{empty[0]} has no value", where=where, fix="give one, or leave it out")
    if sum(prod(map(len, case)) for case in cases) > MOST:
        raise InputError(f"has more than {MOST:,} points", where=where, fix="give fewer values")
    usual = {name: about.usual for name, about in FIELDS.items()}
    for combination in (one for case in cases for one in product(*case)):
        words = {name: value for some in combination for name, value in some.items()}
        file = words.pop("recipe", {})
        profile = _locate(folder, words.get("profile"))
        assumed = fits.measured_by(profile) if profile else stock.assumed(words.get("trainer"))
        recipe = USUAL.by(**(assumed | file | fields_of(words))).inputs()
        yield usual | {name: value for name, value in words.items() if name in FIELDS} | recipe


def _values(key: str, value: Any, where: str) -> list[Given]:
    given = Given(key, value, where)
    return given.items() if isinstance(value, list) else [given]


def _check_keys(keys: Mapping[str, Any], where: str) -> None:
    for key in keys:
        if key not in KEYS:
            raise InputError(f"unknown key {key!r:.40}", where=where, fix=nearest(key, list(KEYS)))
        if key in (*ROWS, "case"):
            raise InputError(f"a case has {key}", where=where, fix="say it once, above all cases")
    for some, example in NEEDED.items():
        if not any(key in keys for key in some):
            raise InputError(f"no {' or '.join(some)}", where=where, fix=f"add it, as in: {example}")
    if "minibatch" in keys and "global_batch" in keys:
        raise InputError("both minibatch and global_batch", where=where, fix="one says the other: leave one out")


def _read(key: str, given: Given, folder: str) -> Mapping[str, Any]:
    """What a value says, by the fields that it decides: a word of a recipe may decide several. A name that nobody knows
    and a file that cannot be read are refused here, once."""
    if key == "recipe":
        return {key: read_file(str(_locate(folder, given.text())))}
    if key in RECIPE_KEYS:
        return read_key(key, given)
    value = FIELDS[key].from_file(given)
    if key in READERS:
        try:
            READERS[key](str(_locate(folder, value)))
        except InputError as error:
            raise InputError(f"{given.name}: {error}", where=given.where) from None
    return {key: value}


READERS: dict[str, Callable[[str], object]] = {
    "model": catalog.model,
    "gpu": catalog.gpu,
    "profile": profiles.read,
    # Of any number of devices one may be named as slow where nobody has said how many there are.
    "cluster": lambda path: read_cluster(path, cluster_of(catalog.gpu(catalog.gpu_names()[0]), 10**9)),
}


def _locate(folder: str, text: str | None) -> str | None:
    """A file that lies in the folder; a name of the catalogue, a spec or a path from the root as it is."""
    if text is None or not folder or not ("." in text or "/" in text):
        return text
    path = os.path.join(folder, text)  # noqa: PTH118 - as exists, which never raises
    return path if os.path.exists(path) else text  # noqa: PTH110


def _content(path: str | None) -> str:
    """The digest of a file, or of the config.json in a folder; of a name of the catalogue there is none."""
    file = None if path is None else Path(path, "config.json") if Path(path).is_dir() else Path(path)
    return "" if file is None or not file.is_file() else hashlib.sha256(file.read_bytes()).hexdigest()


@cache
def release() -> str:
    """What figures come from: the version, and in a checkout the commit, with a digest of what has been changed since.
    Without git the version alone."""
    package = Path(odcsim.__file__).parent
    if not (package.parent / ".git").exists():
        return odcsim.__version__
    words = [odcsim.__version__]
    with suppress(OSError):
        git = ["git", "-C", str(package.parent)]
        commit = subprocess.run([*git, "rev-parse", "--verify", "HEAD"], capture_output=True, text=True, check=False)
        changed = subprocess.run(
            [*git, "diff", "--binary", "HEAD", "--", str(package)], capture_output=True, check=False
        )
        words += [commit.stdout.strip()] if commit.stdout else []
        words += [hashlib.sha256(changed.stdout).hexdigest()[:DIGITS]] if changed.stdout else []
    return " ".join(words)


@lru_cache(maxsize=4)
def trace(expected: str, *source: Any) -> Trace:
    """The lengths with this digest, read once in a process for all points that have them."""
    lengths = read_lengths(source)
    if digest(lengths) != expected:
        fix = "workers need the files of the grid as they were when the sweep began"
        raise InputError("has other lengths on the worker", where=lengths.name, fix=fix)
    return lengths


def read_lengths(source: tuple[Any, ...]) -> Trace:
    return asking.lengths_of(Question(**dict(zip(LENGTHS, source, strict=True))))


def digest(lengths: Trace) -> str:
    """Of the lengths and all that stands beside them; not of what they are called."""
    content = hashlib.sha256(str(lengths.drawn_from).encode())
    for values in (lengths.lengths, lengths.counts, lengths.loss, lengths.group, lengths.step, lengths.bundle):
        content.update(b"-" if values is None else values.tobytes() + b"|")
    return content.hexdigest()[:DIGITS]
