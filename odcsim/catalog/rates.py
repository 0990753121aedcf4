"""What GPUs reach inside a training step, from odcsim/catalog/rates.toml."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from odcsim.catalog.estimates.rates import Attention, Precision, Rates
from odcsim.catalog.estimates.spreads import Spread

OTHER = "cdna4"  # of a GPU that is in no family: nobody published a run on it


@cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("rates.toml").read_text(encoding="utf-8"))


def family_of(gpu: str) -> str:
    """The family of a GPU of the catalogue."""
    return next((name for name, row in _file()["families"].items() if gpu in row["gpus"]), OTHER)


@cache
def rates(family: str) -> Rates:
    """What one family reaches."""
    row = _file()["families"][family]
    figures = {name: float(row[name][0]) for name in ("matmul", "narrow", "moved", "copying")}
    faster = {name: row[name][0] for name in _file()["precisions"] if name in row and row[name][0]}
    runs = MappingProxyType({name: Precision(of, *_file()["precisions"][name]) for name, of in faster.items()})
    kinds = MappingProxyType({name: of[1] for name, of in row.items() if name not in ("gpus", "usual")})
    every = {name: rows[family] for name, rows in _file()["attention"].items() if family in rows}
    attention = MappingProxyType({name: Attention(*kernel[:5]) for name, kernel in every.items()})
    return Rates(
        family, usual=row["usual"], kinds=kinds, attention=attention, precisions=runs, spreads=spreads(), **figures
    )


@cache
def spreads() -> Mapping[str, Spread]:
    """What kinds of runs add to the spread, as far as somebody published one."""
    return MappingProxyType({kind: Spread(*figures) for kind, figures in _file()["spreads"].items()})


def families() -> list[str]:
    return list(_file()["families"])


def figures(family: str) -> dict[str, tuple[float, str, str]]:
    """Every coefficient of a family: its value, how it is known, and from where."""
    sources = _file()["sources"]
    row = _file()["families"][family]
    return {
        name: (float(of[0]), of[1], sources[of[2]]["title"])
        for name, of in row.items()
        if isinstance(of, list) and name != "gpus"
    }
