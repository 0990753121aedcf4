"""A grid: keys with one value or several, all of which are combined, read from TOML or given as a dict."""

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from odcsim import catalog, recipe_file
from odcsim import profile as profiles
from odcsim.balance import BALANCERS
from odcsim.catalog import fits
from odcsim.cluster import cluster_of, read_cluster
from odcsim.decide import stock
from odcsim.decide.sweeps import keys
from odcsim.decide.sweeps.point import FILES, Point, digest, located, read
from odcsim.errors import InputError, in_python
from odcsim.neighbours import FIELD
from odcsim.program import SYNCS
from odcsim.question import FIELDS, LENGTHS
from odcsim.recipe import USUAL, fields_of
from odcsim.support.checked import Given, shown
from odcsim.support.files import reading
from odcsim.support.whole import read_text

MOST = 1_000_000  # points: more are a slip of somebody's hand
MOST_DEVICES = 10**9  # any number of them may be named as slow where nobody has said how many there are
Options = list[Mapping[str, Any]]  # what each value of a key says


@dataclass(frozen=True, slots=True)
class Grid:
    """Its points, each once, in the order in which the grid says them."""

    name: str
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()  # of each of its traces, what was bad

    @property
    def files(self) -> list[str]:
        """What the points read, which nobody may write over."""
        every = {path for point in self.points for name, path in point.at().items() if name in FILES and path}
        return sorted(every)

    def share(self, number: int, of: int) -> tuple[Point, ...]:
        """Of equal shares the one of this number, from 1. Neighbours go to different ones: they take as long."""
        return self.points[number - 1 :: of]


def grid_of(given: Grid | str | os.PathLike[str] | Mapping[str, Any]) -> Grid:
    if isinstance(given, Grid):
        return given
    if isinstance(given, Mapping):
        return _grid({key: _listed(value) for key, value in given.items()}, "grid", "")
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"no grid: {shown(given)}", fix="give the path of a TOML file, or a dict of its keys")
    path = Path(given)
    with reading(path, missing="give a grid's TOML file", expected="TOML"):
        content = tomllib.loads(read_text(path))
    return _grid(content, str(given), str(path.resolve().parent))


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | range) else value


def _grid(content: Mapping[str, Any], name: str, folder: str) -> Grid:
    asked = list(_asked(content, name, folder))
    lengths = _lengths(asked, name, folder)
    balancers, syncs = (_rows(content, key, name) for key in keys.ROWS)
    points = (Point(tuple(one.items()), balancers, syncs, lengths[_which(one)][0], folder).sealed() for one in asked)
    left_out = tuple(words for _, words in lengths.values() if words)
    return Grid(name, tuple({point.key: point for point in points}.values()), left_out)


def _asked(content: Mapping[str, Any], where: str, folder: str) -> Iterator[dict[str, Any]]:
    """What every point asks, with a value for each key."""
    shared = {key: value for key, value in content.items() if key not in (keys.CASE, *keys.ROWS)}
    cases = Given(keys.CASE, content.get(keys.CASE, [{}]), where).items()
    every = [_options(shared | case.mapping(), where, folder) for case in cases]
    if sum(prod(map(len, options)) for options in every) > MOST:
        raise InputError(f"has more than {MOST:,} points", where=where, fix="give fewer values")
    for options in every:
        for combined in product(*options):
            said = {name: value for one in combined for name, value in one.items() if name != keys.RECIPE}
            file: Mapping[str, Any] = next((one[keys.RECIPE] for one in combined if keys.RECIPE in one), {})
            measured = fits.measured_by(located(folder, said["profile"]) or "") if said.get("profile") else {}
            assumed = measured or ({} if said.get("profile") else stock.assumed(said.get("trainer")))
            recipe = USUAL.by(**(assumed | dict(file) | fields_of(said))).inputs()
            yield keys.USUAL | {name: value for name, value in said.items() if name in FIELDS} | recipe


def _options(content: Mapping[str, Any], where: str, folder: str) -> list[Options]:
    """Of one case."""
    _check_keys(content, where)
    found = []
    for key, value in content.items():
        several = Given(key, value, where).items() if isinstance(value, list) else [Given(key, value, where)]
        if not several:
            raise InputError(f"{key} has no value", where=where, fix="give one, or leave it out")
        found.append([_said(key, one, folder) for one in several])
    return found


def _check_keys(content: Mapping[str, Any], where: str) -> None:
    for key in content:
        keys.refuse_unknown(key, where)
        if key in keys.ROWS or key == keys.CASE:
            raise InputError(f"a case has {key}", where=where, fix="say it once, above all cases")
    for needed in (("trace",), ("model",), ("gpu", "profile"), ("devices",), ("minibatch", "global_batch")):
        if not set(needed) & set(content):
            raise InputError(f"no {' or '.join(needed)}", where=where, fix=f"add it, as in: {_EXAMPLES[needed[0]]}")
    if {"minibatch", "global_batch"} <= set(content):
        raise InputError("both minibatch and global_batch", where=where, fix="one says the other: leave one out")


_EXAMPLES = {
    "trace": 'trace = "longalign"',
    "model": 'model = ["qwen3-8b", "qwen3-14b"]',
    "gpu": 'gpu = "h100"',
    "devices": "devices = [8, 16]",
    "minibatch": "minibatch = 4",
}


def _said(key: str, given: Given, folder: str) -> Mapping[str, Any]:
    """What a value says. A name that nobody knows and a file that cannot be read are refused here, once."""
    if key == keys.RECIPE:
        return {key: recipe_file.read(str(located(folder, given.text())))}
    said = keys.read(key, given)
    if key in _KNOWN:
        try:
            _KNOWN[key](str(located(folder, said[key])))
        except InputError as error:
            raise InputError(f"{given.name}: {error}", where=given.where) from None
    return said


def _read_cluster(path: str) -> None:
    read_cluster(path, cluster_of(catalog.gpu(catalog.gpu_names()[0]), MOST_DEVICES))


_KNOWN: dict[str, Callable[[str], object]] = {
    "model": catalog.model,
    "gpu": catalog.gpu,
    "profile": profiles.read,
    "cluster": _read_cluster,
}


def _which(asked: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(asked[name] for name in LENGTHS)


def _lengths(asked: Iterable[Mapping[str, Any]], where: str, folder: str) -> dict[tuple[Any, ...], tuple[str, str]]:
    """Of each of the traces its digest, and what was left out of it."""
    found: dict[tuple[Any, ...], tuple[str, str]] = {}
    for one in asked:
        if (which := _which(one)) not in found:
            at = {name: located(folder, one[name]) if name in FILES else one[name] for name in LENGTHS}
            try:
                trace = read(at)
                found[which] = digest(trace), trace.left_out and f"{trace.name}: {trace.left_out}"
            except InputError as error:
                raise InputError(in_python(f"trace: {error}"), where=where) from None
    return found


def _rows(content: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """The names of balancers or syncs whose rows are kept."""
    value = content.get(key, [])
    known = [b.name for b in (*BALANCERS, *FIELD)] if key == "balancer" else list(SYNCS)
    several = Given(key, value, where).items() if isinstance(value, list) else [Given(key, value, where)]
    return tuple(dict.fromkeys(one.one_of(known) for one in several))
