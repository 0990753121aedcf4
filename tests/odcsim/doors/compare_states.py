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
class Difference:
    """A figure of a question, in the old state and in the new one."""

    number: int
    question: str
    path: str  # DOOR/KEY/..., a row by its balancer and sync: compare/rows/lb-mini under on-demand/memory_bytes
    old: Any
    new: Any

    @property
    def reason(self) -> str:
        """Why it is meant; nothing where it is not."""
        return next((one.reason for one in INTENDED if one.holds(self)), "")


@dataclass(frozen=True)
class Intended:
    """Differences that are meant: of which paths, of which old values and of which questions, and why."""

    path: str
    reason: str
    old: str = ""
    question: str = ""

    def holds(self, one: Difference) -> bool:
        pairs = ((self.path, one.path), (self.old, f"{one.old}"), (self.question, one.question))
        return all(re.search(pattern, text) for pattern, text in pairs)


ADDED = r"^\(not there\)$"
INTENDED: tuple[Intended, ...] = (
    # From f87f5be to bef7051.
    Intended(r"^(compare|sweep).*/run", "a whole run comes with its interval, and CSV tells of it, too", ADDED),
    Intended(r"^rl/inputs/", "an RL step tells its hardware and recipe", ADDED),
    Intended(r"^break-even/ways_out", "where nothing fits, break-even says what would", ADDED),
    Intended(r"^report/words/", "a report begins with the whole run", r"^(Run |In order of speed)", '"epochs"'),
    Intended(r"/idle_parts", "parts of idle time are counted as all devices' time", question='"streams", "two"'),
    # From bef7051 on: one question, one evaluation, one answer.
    Intended(r"/(fidelity|memory_limit|microbatches)$", "a row tells these itself, at every door", ADDED),
    Intended(
        r"^((advise|rl|break-even)/(held_fixed|inputs)|compare/(held_fixed|inputs/(epochs|field)))/?",
        "an answer names what was held fixed and asked",
        ADDED,
    ),
    Intended(
        r"/run/rows/.*/seconds_(low|high)$|/run\.seconds_(low|high)$", "a whole run knows which minibatches were drawn"
    ),
    Intended(r"^advise/rows/.*/(seconds|dollars)_(low|high)$", "an advice has compare's interval: one formula"),
    Intended(r"^advise/rows/.*/memory_bytes$", "an advice has compare's memory: that of the plan's fullest microbatch"),
    Intended(
        r"^rl/rows/.*/memory_fits$", "of a GPU whose memory nobody knows, nobody knows whether it suffices", "^True$"
    ),
    Intended(
        r"^break-even/curves/", "a side is left out where its own plans do not fit, not where the limit would not"
    ),
    Intended(r"^explorer/break_even$", "the same, of the page's sentence"),
    Intended(r"^explorer/verdict$", "the page adds, as the terminal does, where in the interval the answer is another"),
    Intended(r"^simulate/", "a simulated file's row says all that it can by itself", r"^(None|\(not there\))$"),
    Intended(r"^advise/rows/.*/gpu_hours_(low|high)$", "an advice tells the ends of its GPU-hours, too", ADDED),
    Intended(r"^explorer/advice/", "an interval is called one", "nine times in ten"),
    Intended(r"^explorer/link$", "a link's words come in the order of a question's fields"),
    Intended(r"^(explorer/shown|report/table)/", "one list of columns: heads and cells are those of the terminal"),
    Intended(
        r"^report/(words|terminal)/", "a line tells what was held fixed, and those after it move; a run's interval"
    ),
)


def main(old: str, new: str) -> int:
    differences = list(between(read(old), read(new)))
    left = [one for one in differences if not one.reason]
    told("intended", [one for one in differences if one.reason])
    told("NOT intended", left)
    return 1 if left else 0


def read(path: str) -> dict[int, Any]:
    """By number; the questions stand beside the answers, so that other questions are seen."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(Path(path), "rt", encoding="utf-8") as lines:
        return {one["number"]: one for one in map(json.loads, lines)}


def between(old: Mapping[int, Any], new: Mapping[int, Any]) -> Iterator[Difference]:
    """Each figure that is not the same."""
    for number in sorted({*old, *new}):
        if number not in old or number not in new:
            yield Difference(number, "", "question", number in old, number in new)
            continue
        question = json.dumps(old[number]["question"])
        ours, theirs = (figures(state[number]) for state in (old, new))
        for path in {**ours, **theirs}:
            one, other = ours.get(path, NOWHERE), theirs.get(path, NOWHERE)
            if not alike(one, other):
                yield Difference(number, question, path, one, other)


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


def told(title: str, differences: list[Difference]) -> None:
    """By kind of path: how many, of how many questions, and a few of them."""
    kinds = defaultdict(list)
    for one in differences:
        kinds[kind(one.path)].append(one)
    print(f"{title}: {len(differences):,} differences of {len(kinds)} kinds")
    for name, some in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        why = "; ".join(dict.fromkeys(one.reason for one in some if one.reason))
        count = f"{len(some):,} in {len({one.number for one in some})} questions"
        print(f"  {name}: {count}{way(some)}{f' ({why})' if why else ''}")
        for one in [] if why else some[:SHOWN]:
            print(f"    question {one.number}, {one.path}: {short(one.old)} -> {short(one.new)}")


def way(some: list[Difference]) -> str:
    """Where they are all told by one state alone."""
    new, gone = all(one.old is NOWHERE for one in some), all(one.new is NOWHERE for one in some)
    return ", all new" if new else ", all gone" if gone else ""


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
