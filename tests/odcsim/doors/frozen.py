"""The figures of drawn questions at every door, as numbers by question and meaning, which a rebuild must not change.

    python tests/odcsim/doors/frozen.py            # compares with what is frozen: every figure that is another
    python tests/odcsim/doors/frozen.py --write    # freezes the figures of today

A line of `fixtures/frozen.jsonl` is one thing that a question comes to (a row, an offer, a step), with its figures by
what they mean. Where several doors tell of one thing, they tell it in one line, and a door that contradicts has a line
of its own. So how JSON is laid out may change, with the tables of this file; sentences are not held here.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any

import ways_in
from ways_in import Question, drawn, said

import odcsim
from odcsim.decide.decision import decide

FROZEN = Path(__file__).parent / "fixtures" / "frozen.jsonl"
QUESTIONS = 24
FAR = 1e-9  # relative; one figure in two orders of summing is that near
NOTHING = 1e-12  # seconds and shares of what takes none
Figures = Mapping[str, Any]
Line = tuple[int, str, Figures]  # a question's number, the thing that it comes to, its figures

# What a figure means, and where a row of compare has it.
ROW = {
    "seconds": "makespan_seconds", "seconds at least": "model_low", "seconds at most": "model_high", "idle": "idle",
    "waiting inside": "idle_parts.wait_inside", "waiting at the end": "idle_parts.wait_end",
    "gathering": "idle_parts.gather", "pushing": "idle_parts.push", "idle otherwise": "idle_parts.other",
    "samples a second and GPU": "samples_per_second_per_device", "tokens a second": "tokens_per_second",
    "GPU-hours": "gpu_hours", "dollars": "dollars", "speedup": "speedup",
    "speedup at least": "speedup_low", "speedup at most": "speedup_high",
    "over the best collective": "speedup_best_collective", "by the sync": "sync_gain",
    "by the balancer": "balancer_gain", "over full sharding": "over_full", "bytes": "memory_bytes",
    "fits": "memory_fits", "TFLOP/s": "tflops_per_device", "MFU": "mfu", "HFU": "hfu", "microbatches": "microbatches",
}  # fmt: skip
ASKED = {
    "samples of the trace": "trace_samples", "longest": "trace_longest", "devices": "devices",
    "devices of a node": "devices_per_node", "samples of a device": "minibatch", "token limit": "max_tokens",
}  # fmt: skip
SPENT = ("seconds", "gpu_hours", "dollars")
OFFER = {
    "seconds": "seconds", "seconds at least": "seconds_low", "seconds at most": "seconds_high",
    "GPU-hours": "gpu_hours", "dollars": "dollars", "steps": "steps", "sync": "sync",
    "balancer": "balancer", "token limit": "max_tokens",
    "samples of a device": "minibatch", "recompute": "recompute", "of it": "selective", "sharding": "sharding",
    "microbatches": "microbatches", "bytes": "memory_bytes", "idle": "idle", "MFU": "mfu",
    "over the best without on-demand": "over_without", "ways": "ways",
}  # fmt: skip
STEP = {
    "training": "training_seconds", "forward passes": "forward_seconds", "seconds": "step_seconds",
    "seconds at least": "step_seconds_low", "seconds at most": "step_seconds_high", "bytes": "memory_bytes",
    "fits": "memory_fits",
}  # fmt: skip


def figures(names: Mapping[str, str], of: Figures) -> dict[str, Any]:
    """By their meanings."""
    found = {}
    for meaning, path in names.items():
        value: Any = of
        for part in [path] if path in of else path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and value != "":
            found[meaning] = _number(value)
    return found


def _number(value: Any) -> Any:
    """A text of a CSV is a number, too."""
    if not isinstance(value, str):
        return value
    if value in ("True", "False"):
        return value == "True"
    try:
        return float(value)
    except ValueError:
        return value


def _row(row: Figures) -> tuple[str, dict[str, Any]]:
    return f"row {row['sync']} + {row['balancer']}", figures(ROW, row)


def _rows(found: Figures) -> Iterator[tuple[str, Figures]]:
    for row in found["rows"]:
        yield _row(row)


def of_compare(found: Figures) -> Iterator[tuple[str, Figures]]:
    yield "the question", figures(ASKED, found["inputs"])
    yield from _rows(found)
    run = found.get("run", {})
    for row in run.get("rows", ()):
        yield f"run {row['row']}", {name: value for name, value in row.items() if isinstance(value, float)}


def of_sweep(found: Figures) -> Iterator[tuple[str, Figures]]:
    yield from _rows(found)
    for row in found["rows"]:
        names = {
            name: f"run.{name}" for name in (*SPENT, *(f"{name}_{end}" for name in SPENT for end in ("low", "high")))
        }
        if known := {name: value for name, value in figures(names, row).items() if isinstance(value, float)}:
            yield f"run {row['sync']} + {row['balancer']}", known


def of_advise(found: Figures) -> Iterator[tuple[str, Figures]]:
    for row in found["rows"]:
        yield f"offer {row['devices']} x {row['gpu']}", figures(OFFER, row)


def of_break_even(found: Figures) -> Iterator[tuple[str, Figures]]:
    for curve in found["curves"]:
        leads = {spot["label"]: spot["lead"] for spot in curve["spots"] if spot["lead"] is not None}
        yield f"lead by {curve['name']}", leads


def of_rl(found: Figures) -> Iterator[tuple[str, Figures]]:
    for row in found["rows"]:
        yield f"step {row['balancer']} under {row['sync']}", figures(STEP, row)


def of_simulate(found: Figures) -> Iterator[tuple[str, Figures]]:
    name, known = _row(found)
    yield f"{name} of a file", known  # which knows no trace, so that ends and fidelity may be others


def answered(question: Question) -> Figures:
    """What the answer rests on: the rows, whether on-demand pays, and where it would not."""
    names = "gpu profile devices minibatch max_tokens minibatches seed in_order devices_per_node cluster price whole"
    known = {name: getattr(question, name) for name in names.split()}
    try:
        trace = odcsim.load(question.trace, truncate=question.truncate, drop_over=question.drop_over)
        setting = odcsim.ask(trace, question.model, **known, **ways_in.recipe_fields(question))
        comparison = odcsim.compare(replace(setting, field=question.field))
        found = decide(comparison)
    except odcsim.InputError as error:
        return {"refused": str(error)}
    flips = {} if found.flips is None else {"flips at": found.flips.factor, "lead there": found.flips.lead}
    names = {name: getattr(found, name).name for name in ("reference", "rival", "best", "chosen")}
    kept = {f"kept out {i}": f"{one.name} before {kept.name}" for i, (kept, one) in enumerate(found.kept_out)}
    return {"answer": {**names, **kept, **flips, "pays": found.pays, "over the rival": found.over_rival}}


def checked(question: Question) -> Figures:
    """What `odcsim check` finds in the plan of a balancer under each sync."""
    counts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "schedules.jsonl"))
        for balancer in ("lb-micro", "lb-mini"):
            _, refused = said(["balance", *ways_in.of_setting(question), "--balancer", balancer, "-o", file, "--force"])
            if refused:
                return {"refused": refused}
            for sync in ("collective", "on-demand"):
                out, _ = said(["check", file, "--sync", sync, "--json"])
                found = json.loads(out)
                kinds = [f"{one['severity']}: {one['kind']}" for one in found["findings"]]
                counts[f"{balancer} under {sync}"] = sorted({f"{kind} x {kinds.count(kind)}" for kind in kinds})
    return {"findings": counts}


def flagged(question: Question) -> Figures:
    """What trainers are told of the first of their own rows."""
    told: dict[str, Any] = {}
    for trainer in ("trl", "verl", "torchtitan", "axolotl"):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "rows.json")
            out, refused = said([*ways_in.compare_line(question), "--trainer", trainer, "--json"])
            if refused:
                continue
            file.write_text(out, encoding="utf-8")
            own = next((str(n) for n, row in enumerate(json.loads(out)["rows"], 1) if "made" in row), "1")
            lines, refused = said(["flags", trainer, str(file), "--row", own])
        told[trainer] = [line for line in lines.splitlines() if line and not line.lstrip().startswith("#")]
        told[trainer] = "refused" if refused else told[trainer]
    return {"settings": told}


DOORS = {
    "compare": of_compare, "compare --csv": _rows, "python": _rows, "explorer": _rows, "sweep": of_sweep,
    "advise": of_advise, "break-even": of_break_even, "rl": of_rl, "simulate": of_simulate,
}  # fmt: skip
BESIDE = {"answer": answered, "check": checked, "flags": flagged}


def lines(number: int, question: Question) -> Iterator[Line]:
    """What one question comes to. A door that tells another figure of a thing than the first one has a line more."""
    things: dict[str, dict[str, Any]] = {}
    refused = set()
    for door, read in DOORS.items():
        if not ways_in.open_to(door, question):
            continue
        found = ways_in.DOORS[door](question)
        if isinstance(found.get("refused"), str):
            refused.add(door)
            continue
        for thing, known in read(found):
            before = things.setdefault(thing, {})
            if odd := {
                name: value for name, value in known.items() if name in before and not alike(value, before[name])
            }:
                yield number, f"{thing} by {door}", odd
            things[thing] = known | before
    for door, ask in BESIDE.items():
        found = ask(question)
        if "refused" in found:
            refused.add(door)
        else:
            things |= found
    yield number, "refused by", dict.fromkeys(sorted(refused), True)
    yield from ((number, thing, known) for thing, known in things.items())


def _short(known: Figures) -> Figures:
    """Beyond the digits that are compared nobody reads any."""
    return {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in known.items()}


def alike(one: Any, other: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other))
    return isclose(one, other, rel_tol=FAR, abs_tol=NOTHING) if numbers else one == other


@cache
def then() -> dict[tuple[int, str], Figures]:
    every = (json.loads(line) for line in FROZEN.read_text(encoding="utf-8").splitlines())
    return {(line["question"], line["of"]): line["figures"] for line in every}


def differences(number: int, question: Question) -> Iterator[str]:
    """Between what is frozen of a question and what it comes to now."""
    now = {thing: known for _, thing, known in lines(number, question)}
    before = {thing: known for (of, thing), known in then().items() if of == number}
    for thing in dict.fromkeys([*before, *now]):
        old, new = before.get(thing, {}), now.get(thing, {})
        for name in dict.fromkeys([*old, *new]):
            if name not in old or name not in new or not alike(old[name], new[name]):
                yield f"question {number}, {thing}, {name}: {old.get(name)} is now {new.get(name)}"


def asked() -> list[Question]:
    return [question for question in drawn(4 * QUESTIONS, seed=42) if question.devices <= 32][:QUESTIONS]


def main() -> int:
    with ways_in.beside_files():
        if "--write" in sys.argv:
            every = [line for number, question in enumerate(asked()) for line in lines(number, question)]
            texts = [json.dumps({"question": of, "of": thing, "figures": _short(known)}) for of, thing, known in every]
            FROZEN.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            print(f"{len(texts)} things of {QUESTIONS} questions")
            return 0
        found = [line for number, question in enumerate(asked()) for line in differences(number, question)]
    print("\n".join(found) or f"{len(then())} things of {QUESTIONS} questions are as they were")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
