"""Every figure that differs between two states of odcsim, of what `ask_all.py` wrote of each.

Exit status 1 where any does that is not meant.

python tests/odcsim/doors/compare_states.py OLD.jsonl NEW.jsonl
"""

import gzip
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

SHOWN = 4  # examples of each kind
NOWHERE = "(not there)"


@dataclass(frozen=True)
class Intended:
    """A difference that is meant: paths that match, and why."""

    path: str
    reason: str


# A path is DOOR/KEY/..., a row by its balancer and sync: compare/rows/lb-mini under on-demand/memory_bytes.
INTENDED: tuple[Intended, ...] = ()


def main(old: str, new: str) -> int:
    differences = list(between(read(old), read(new)))
    meant = [one for one in differences if reason(one[1])]
    left = [one for one in differences if not reason(one[1])]
    for title, some in (("intended", meant), ("NOT intended", left)):
        told(title, some)
    return 1 if left else 0


def read(path: str) -> dict[int, Any]:
    """By number; the questions stand beside the answers, so that other questions are seen."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(Path(path), "rt", encoding="utf-8") as lines:
        return {one["number"]: one for one in map(json.loads, lines)}


def reason(path: str) -> str:
    return next((one.reason for one in INTENDED if re.search(one.path, path)), "")


def between(old: Mapping[int, Any], new: Mapping[int, Any]) -> Iterator[tuple[int, str, Any, Any]]:
    """(question, path, old, new) of each figure that is not the same."""
    for number in sorted({*old, *new}):
        if number not in old or number not in new:
            yield number, "question", number in old, number in new
            continue
        ours, theirs = (figures(state[number]) for state in (old, new))
        for path in {**ours, **theirs}:
            one, other = ours.get(path, NOWHERE), theirs.get(path, NOWHERE)
            if not alike(one, other):
                yield number, path, one, other


def figures(answered: Mapping[str, Any]) -> dict[str, Any]:
    """Each value by its path."""
    found = dict(flat("question", answered["question"]))
    for door, answer in answered["doors"].items():
        found |= dict(flat(door, answer))
    return found


def flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, of in value.items():
            yield from flat(f"{path}/{name}", of)
    elif isinstance(value, list):
        for place, of in enumerate(value):
            yield from flat(f"{path}/{place_of(of, place)}", of)
    else:
        yield path, value


def place_of(value: Any, number: int) -> str:
    """Rows by what they are of, so that another order or one row more is not a difference of all."""
    known = value if isinstance(value, Mapping) else {}
    for names in (
        ("balancer", "sync"),
        ("dealt", "run"),
        ("sync + balancer",),
        ("row",),
        ("gpu", "devices"),
        ("label",),
        ("name",),
    ):
        if all(name in known for name in names):
            return " under ".join(str(known[name]) for name in names)
    return str(number)


def alike(one: Any, other: Any, far: float = 1e-12) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return isclose(one, other, rel_tol=far) if numbers else bool(one == other)


def told(title: str, differences: list[tuple[int, str, Any, Any]]) -> None:
    """By kind of path: how many, of how many questions, and a few of them."""
    kinds = defaultdict(list)
    for one in differences:
        kinds[kind(one[1])].append(one)
    print(f"{title}: {len(differences):,} differences of {len(kinds)} kinds")
    for name, some in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        why = reason(some[0][1])
        print(f"  {name}: {len(some):,} in {len({one[0] for one in some})} questions{f' ({why})' if why else ''}")
        for number, path, one, other in some[:SHOWN]:
            print(f"    question {number}, {path}: {short(one)} -> {short(other)}")


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
