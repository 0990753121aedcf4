"""One point, worked on twice, has one result. Who kept another had other software or a changed file."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from odcsim.decide.sweeps.columns import KINDS
from odcsim.decide.sweeps.keys import ROWS
from odcsim.decide.sweeps.work import Done
from odcsim.errors import InputError

SAME = 1e-9  # of a figure: machines may differ in its last digits


def check(first: Done, at: Path, second: Done, path: Path) -> None:
    """Refuse two results of a point that say two things, and name what differs."""
    if not (found := list(_differences(first, second))):
        return
    more = f", and {len(found) - 1:,} more differ" if len(found) > 1 else ""
    where = f"{at} and {path}" if at != path else f"{at}, twice"
    fix = "leave out the file that is wrong, or take both away and run the sweep again"
    raise InputError(f"unlike results of point {first.key}: {found[0]}{more}", where=where, fix=fix)


def _differences(first: Done, second: Done) -> Iterator[str]:
    if len(first.rows) != len(second.rows):
        yield f"{len(first.rows):,} and {len(second.rows):,} rows"
        return
    for one, other in zip(first.rows, second.rows, strict=True):
        row = " + ".join(str(one[name]) for name in reversed(ROWS) if name in one)
        for name in KINDS:
            if not _is_same(one.get(name), other.get(name)):
                yield f"{name}{f' of {row}' if row else ''} is {_told(one.get(name))} and {_told(other.get(name))}"


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return one is not None and other is not None and math.isclose(one, other, rel_tol=SAME)
    return bool(one == other)


def _told(value: Any) -> str:
    return "not there" if value is None else f"{value!s:.80}"
