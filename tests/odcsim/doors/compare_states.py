"""Every figure that differs between two states of odcsim, of what `ask_all.py` wrote of each.

Exit status 1 where any does.

python tests/odcsim/doors/compare_states.py OLD.jsonl NEW.jsonl
"""

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

SHOWN = 4  # examples of each kind
NOWHERE = "(not there)"
# Rows by what they are of, so that another order or one row more is not a difference of all.
OF = [("balancer", "sync"), ("dealt", "run"), ("sync + balancer",), ("row",), ("gpu", "devices"), ("label",), ("name",)]


class Difference(NamedTuple):
    """A figure of a question, in the old state and in the new one."""

    number: int
    path: str  # DOOR/KEY/..., a row by its balancer and sync: compare/rows/lb-mini under on-demand/memory_bytes
    old: Any
    new: Any


def main(old: str, new: str) -> int:
    """By kind of path: how many, of how many questions, and a few of them."""
    kinds = defaultdict(list)
    for one in between(read(old), read(new)):
        kinds[kind(one.path)].append(one)
    print(f"{sum(map(len, kinds.values())):,} differences of {len(kinds)} kinds")
    for name, some in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        print(f"  {name}: {len(some):,} in {len({one.number for one in some})} questions")
        for one in some[:SHOWN]:
            print(f"    question {one.number}, {one.path}: {short(one.old)} -> {short(one.new)}")
    return int(bool(kinds))


def read(path: str) -> dict[int, Any]:
    """By number; the questions stand beside the answers, so that other questions are seen."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(Path(path), "rt", encoding="utf-8") as lines:
        return {one["number"]: one for one in map(json.loads, lines)}


def between(old: Mapping[int, Any], new: Mapping[int, Any]) -> Iterator[Difference]:
    """Each figure that is not the same."""
    for number in sorted({*old, *new}):
        if number not in old or number not in new:
            yield Difference(number, "question", number in old, number in new)
            continue
        ours, theirs = (dict(flat("question", state[number]["question"])) for state in (old, new))
        for figures, state in ((ours, old), (theirs, new)):
            for door, answer in state[number]["doors"].items():
                figures |= dict(flat(door, answer))
        for path in {**ours, **theirs}:
            one, other = ours.get(path, NOWHERE), theirs.get(path, NOWHERE)
            if not alike(one, other):
                yield Difference(number, path, one, other)


def flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each value by its path."""
    if isinstance(value, Mapping):
        for name, of in value.items():
            yield from flat(f"{path}/{name}", of)
    elif isinstance(value, list):
        for number, of in enumerate(value):
            known = of if isinstance(of, Mapping) else {}
            names = next((names for names in OF if all(name in known for name in names)), ())
            yield from flat(f"{path}/{' under '.join(str(known[name]) for name in names) or number}", of)
    else:
        yield path, value


def alike(one: Any, other: Any, far: float = 1e-12, nothing: float = 0.0) -> bool:
    """Numbers of CSV, too, which are texts. `nothing`: how far off a number that should be zero may be."""
    one, other = value_of(one), value_of(other)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return isclose(one, other, rel_tol=far, abs_tol=nothing) if numbers else bool(one == other)


def value_of(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def kind(path: str) -> str:
    """Without which row, line or spot it is."""
    return "/".join("*" if " under " in part or part.isdigit() or " + " in part else part for part in path.split("/"))


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
