"""One question has one answer, at whichever door it is asked: the same way to run it comes to the same figures.

A law yields what contradicts it of a question, and an empty line for each thing that it found in order.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import isclose
from typing import Any

import pytest
import ways_in
from ways_in import DRAWN, RECOMPUTE, SEARCHED, Question, drawn, recipe_fields

import odcsim
from odcsim.decide.advice import OF_ROWS, Offer, Wish, offer
from odcsim.decide.evaluate import least_trusted
from odcsim.decide.rl import RolloutBatch, draw_steps
from odcsim.errors import in_python
from odcsim.question import TERMS, question_of
from odcsim.support import tables

Values = Mapping[str, Any]
Law = Callable[[Question], Iterator[str]]
SIDES = {"collective": ("sorted-slice", "lb-micro"), "on-demand": ("lb-mini", "lb-robust")}  # of break-even
DEALT = (("lb-micro", "collective"), ("sorted-slice", "collective"), ("lb-mini", "on-demand"))  # of both rl and compare
WHY = re.compile(r" ?Devices idle \d+% of the time: ")  # begins the sentence on what devices idle for
LEFT_OUT = "pool"  # by the explorer, which answers while somebody drags
ALONE = (  # of a row, what it says by itself
    "balancer", "sync", "minibatches", "makespan_seconds", "idle", "idle_parts", "samples_per_second_per_device",
    "tokens_per_second", "model_low", "model_high", "gpu_hours", "gpu_hours_low", "gpu_hours_high",
    "tflops_per_device", "mfu", "hfu", "sharding", "memory_bytes", "memory_fits", "memory_limit", "memory_terms",
    "microbatches", "fidelity",
)  # fmt: skip
ENDS = ("model_low", "model_high", "gpu_hours_low", "gpu_hours_high")
MANY = 150 if "THOROUGH" in os.environ else 30  # questions
FEW = 3  # questions to break-even in the default run


@pytest.fixture(scope="module", autouse=True)
def folder():
    with ways_in.beside_files() as path:
        yield path


@pytest.fixture(scope="module", params=[15, pytest.param(MANY, marks=pytest.mark.slow)])
def questions(request) -> list[Question]:
    """Few are on at most 16 devices: more take seconds."""
    if request.param > 15:
        return drawn(request.param)
    return [question for question in drawn(request.param, seed=1) if question.devices <= 16]


@cache
def asked(door: str, question: Question) -> Values:
    """Once for all laws. Nothing where there are no words for the question."""
    return ways_in.DOORS[door](question) if ways_in.open_to(door, question) else {}


def answered(door: str, question: Question) -> Values:
    """Nothing where it is refused, either."""
    found = asked(door, question)
    return {} if isinstance(found.get("refused"), str) else found


def holds(law: Law, questions: Sequence[Question], least: int = 1) -> None:
    """`least`: questions that the law must have had something to say of, or it would hold of nothing."""
    broken, spoken = [], 0
    for question in questions:
        found = list(law(question))
        spoken += bool(found)
        broken += [f"{question}\n    {one}" for one in found if one]
    assert spoken >= least
    assert not broken, f"two answers to one question, {len(broken)} times, such as:\n" + "\n".join(broken[:6])


def contradiction(what: str, one: Any, other: Any) -> str:
    """Nothing where both are the same to the digit."""
    return "" if alike(one, other) else f"{what}: {one!r} and {other!r}"


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(alike(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, float) or (isinstance(other, float) and one is not None):
        return other is not None and isclose(one, other, rel_tol=1e-12)
    return bool(one == other)


def by_pair(rows: Sequence[Values]) -> dict[tuple[str, str], Values]:
    return {(row["balancer"], row["sync"]): row for row in rows}


def same_rows(what: str, ours: Sequence[Values], theirs: Sequence[Values]) -> Iterator[str]:
    """Figure by figure: those that `theirs` have."""
    known = by_pair(ours)
    for pair, row in by_pair(theirs).items():
        for name, value in row.items():
            yield contradiction(f"{what}, {' under '.join(pair)}, {name}", known[pair].get(name), value)


def flat(told: Values) -> list[dict[str, Any]]:
    """The rows of a comparison's JSON in columns, with what the whole run comes to."""
    run = told.get("run", {})
    spent = {one["row"]: one for one in run.get("rows", ())}
    rows = []
    for row in told["rows"]:
        whole = spent.get(f"{row['sync']} + {row['balancer']}")
        more = {"run": {"steps": run["steps"], **whole}} if whole else {}
        rows.append({k: v for k, v in tables.flat({**row, **more}).items() if k != "run.row"})
    return rows


# One comparison


def refuses_alike(question: Question) -> Iterator[str]:
    lines = [asked(door, question).get("refused") for door in ("compare", "compare --csv", "report", "python", "sweep")]
    for line in lines[1:]:
        yield contradiction("refused", bool(lines[0]), bool(line))
        if lines[0] and line and lines[0] != line:
            said = lines[0].removeprefix("odcsim: error: ")  # in Python by the names of arguments
            yield "" if said in line or in_python(said) in line or "grid" in line else f"{lines[0]} / {line}"


def is_its_csv(question: Question) -> Iterator[str]:
    if told := answered("compare", question):
        rows = [{"max_tokens": told["inputs"]["max_tokens"], **row} for row in flat(told)]
        texts = [{name: "" if value is None else f"{value}" for name, value in row.items()} for row in rows]
        yield from same_rows("compare --csv", texts, asked("compare --csv", question)["rows"])


def is_pythons(question: Question) -> Iterator[str]:
    if told := answered("compare", question):
        found = asked("python", question)
        yield contradiction("fidelity", told["fidelity"], found["fidelity"])
        yield from same_rows("odcsim.compare", told["rows"], found["rows"])


def is_the_sweeps(question: Question) -> Iterator[str]:
    """A line of a sweep is as sure as its own row, a comparison as its least sure one."""
    if told := answered("compare", question):
        found = asked("sweep", question)["rows"]
        yield contradiction("rows", len(told["rows"]), len(found))
        yield contradiction("fidelity", told["fidelity"], least_trusted(str(row["fidelity"]) for row in found))
        figures = {name for row in flat(told) for name in row} | {"max_tokens"}
        more = {name: told["inputs"][name] for name in ("max_tokens", "minibatches")}
        both = [{name: row.get(name) for name in figures} for row in found]
        yield from same_rows("sweep", [{**row, **more} for row in flat(told)], both)


def is_the_explorers(question: Question) -> Iterator[str]:
    found = answered("explorer", question)
    if found and (told := answered("compare", question)):
        shown = least_trusted(row["fidelity"] for row in told["rows"] if row["balancer"] != LEFT_OUT)
        yield contradiction("fidelity", shown, found["fidelity"])
        yield from same_rows("explorer", told["rows"], found["rows"])
        every = {pair for pair in by_pair(told["rows"]) if pair[0] != LEFT_OUT}
        yield contradiction("rows", every, set(by_pair(found["rows"])))


def is_simulates(question: Question) -> Iterator[str]:
    """Schedules that were written to a file and simulated: each figure that needs neither other rows nor a price. Where
    nodes exchange, those who meet do so as the engine's do, which is another way to run."""
    if (told := answered("compare", question)) and (found := answered("simulate", question)):
        rows = [found]
        if told["rows"][0]["sharding"] != "hybrid":
            rows.append(ways_in.simulate(question, "lb-micro", "collective"))
        alike = [name for name in ALONE if name not in ENDS or question.profile is None]
        yield from same_rows("simulate", told["rows"], [{name: row[name] for name in alike} for row in rows])
        for row in rows if question.profile else ():
            yield surer(by_pair(told["rows"])[row["balancer"], row["sync"]], row)


def surer(trace: Values, file: Values) -> str:
    """Nothing where an interval lies in another: a file may lack the samples that are longer than any measured one."""
    wider = [n for n in ENDS if (file[n] / trace[n] if n.endswith("high") else trace[n] / file[n]) > 1 + 1e-12]
    return f"simulate is less sure than compare, {wider}" if wider else ""


def says_what_was_asked(question: Question, doors: Sequence[str] = ("compare", "rl", "advise")) -> Iterator[str]:
    """Every door's JSON repeats the question, and names what was held fixed and the command that searches it."""
    for door in doors:
        if found := answered(door, question):
            inputs, held = found.get("inputs", {}), found.get("held_fixed", {})
            yield contradiction(f"{door}, seed", question.seed, inputs.get("seed"))
            yield "" if inputs.get("model") and "trace" in inputs else f"{door} tells neither lengths nor model"
            yield "" if str(held.get("searched_by")).startswith("odcsim ") else f"{door} names no command that searches"
            if missing := set(TERMS) - set(inputs) - (set(OF_ROWS) if door == "advise" else set()):
                yield f"{door} does not tell {missing}"


# On several nodes, where nobody says a sharding: of 8B, which a node holds, and of 32B, which none does beside a rival.
SEVERAL = [
    Question(trace="uniform:min=2000,max=9000,samples=600", model=model, gpu="h100", devices=16, minibatch=2, room=1.5)
    for model in ("qwen3-8b", "qwen2.5-32b")
]


def asks_again(question: Question) -> Iterator[str]:
    """Every door takes the sharding that compare takes, and whoever asks for that one gets the same rows."""
    if not (told := answered("compare", question)) or "sharding" in dict(question.recipe):
        return
    how = told["inputs"]["sharding"]
    if known := told["held_fixed"].get("sharding_because"):
        yield "" if how == "full" or known.startswith("the default") else f"hybrid, and {known}"
    again = answered("compare", replace(question, recipe=(*question.recipe, ("sharding", how))))
    yield from same_rows("asked for", again["rows"], told["rows"])
    for door in ("report", "python", "sweep", "simulate", "break-even"):
        found = answered(door, question)
        rows = found.get("rows", [found]) if isinstance(found, Mapping) else found
        said = [row["sharding"] for row in rows if "sharding" in row] or [found.get("inputs", {}).get("sharding", how)]
        yield from (contradiction(f"{door}, sharding", how, one) for one in said)


def test_where_nobody_says_a_sharding_all_doors_take_one_and_it_is_as_good_as_asked_for(questions):
    holds(asks_again, [*questions[:2], *SEVERAL], least=2)
    first, second = (answered("compare", question) for question in SEVERAL)
    assert first["inputs"]["sharding"] == "hybrid"
    assert second["inputs"]["sharding"] == "full"
    assert second["held_fixed"]["sharding_because"].startswith("hybrid would take ")


# What to rent


def run_of(question: Question, sync: str, balancer: str) -> dict[str, Any]:
    """A row of compare with what the whole run comes to in place of its minibatches."""
    told = answered("compare", question)
    row = dict(by_pair(told["rows"])[balancer, sync])
    whole = next(one for one in told["run"]["rows"] if one["row"] == f"{sync} + {balancer}")
    return {**row, **whole, "minibatch": told["inputs"]["minibatch"]}


def compared_with(question: Question, chosen: Mapping[str, Any]) -> Question:
    """The question to compare that is the same way to run it. `chosen`: a row of advise."""
    recipe = {name: value for name, value in question.recipe if name not in SEARCHED}
    again = {"recompute": chosen["recompute"], "selective": chosen["selective"]}
    recipe["recompute"] = next(word for word, fields in RECOMPUTE.items() if fields == again)
    recipe |= {name: chosen[name] for name in ("sharding", "context")}
    unasked = {n: getattr(Question(), n) for n in "in_order whole field devices_per_node".split()}
    devices, limit, more = chosen["devices"], chosen["max_tokens"], {"batched": False, "recipe": tuple(recipe.items())}
    size = question.global_batch // (devices // chosen["context"])
    return replace(
        question, minibatch=size, devices=devices, limit=limit, epochs=question.epochs or 1.0, **more, **unasked
    )


def advised(question: Question) -> Iterator[tuple[Values, Values]]:
    """Each row of advise beside compare's of the very same way to run it."""
    for row in answered("advise", question).get("rows", ()):
        yield row, run_of(compared_with(question, row), row["sync"], row["balancer"])


def advises_as_compared(question: Question) -> Iterator[str]:
    """Of drawn samples and devices the point alone."""
    names = ["seconds", "gpu_hours", "dollars"]
    if question.cluster not in DRAWN:
        names += "seconds_low seconds_high dollars_low dollars_high minibatch memory_bytes fidelity".split()
    for ours, theirs in advised(question):
        for name in names:
            yield contradiction(f"advise and compare, {name}", ours[name], theirs[name])


def without_luck(questions: Sequence[Question]) -> list[Question]:
    """Those that the scan can answer."""
    return [question for question in questions if question.cluster not in DRAWN]


LUCK = [Question(model="qwen2.5-1.5b", devices=8, minibatches=9, cluster=c, price=2.0, epochs=1.0) for c in DRAWN]


def sides(question: Question) -> Iterator[tuple[Values, Values, float]]:
    """Of each offer the best way without on-demand, the best with it, and how many times as fast that is."""
    if question.gpu is None:
        return
    trace = odcsim.load(question.trace, truncate=question.truncate, drop_over=question.drop_over)
    kept = {name: value for name, value in recipe_fields(question).items() if name not in (*SEARCHED, "selective")}
    names = "model global_batch minibatches seed cluster".split()
    asked = question_of({"trace": trace, **{name: getattr(question, name) for name in names}, **kept})
    wish = Wish(asked, (question.gpu,), (question.devices,))
    one = offer(wish, question.gpu, question.devices)
    if isinstance(one, Offer) and one.without and one.with_it:
        ways = (one.without.way, one.with_it.way)
        without, with_it = ({**way.as_json(), "devices": question.devices} for way in ways)
        yield without, with_it, one.gain or 0.0


def gains_as_compared(question: Question) -> Iterator[str]:
    if not answered("advise", question):
        return
    for without, with_it, gain in sides(question):
        runs = [run_of(compared_with(question, way), way["sync"], way["balancer"]) for way in (without, with_it)]
        yield contradiction("over_without", gain, runs[0]["seconds"] / runs[1]["seconds"])
        [row] = asked("advise", question)["rows"]
        yield contradiction("over_without as printed", row["over_without"], gain)


# Where it breaks even


def breaks_even_as_compared(question: Question) -> Iterator[str]:
    """The lead at the point that was asked about, by every curve, is said where rows of both sides fit."""
    yield from says_what_was_asked(question, ["break-even"])
    unasked = {name: getattr(Question(), name) for name in "in_order whole field price epochs".split()}
    same = replace(question, minibatches=ways_in.BREAK_EVEN, batched=False, **unasked)
    if told := answered("compare", same):
        rows = by_pair(told["rows"])
        best = {side: min(rows[name, side]["makespan_seconds"] for name in names) for side, names in SIDES.items()}
        fit = all(rows[name, side]["memory_fits"] is not False for side, names in SIDES.items() for name in names)
        for curve in answered("break-even", question).get("curves", ()):
            for lead in [spot["lead"] for spot in curve["spots"] if spot["label"] == curve["here"]]:
                lead_then = best["collective"] / best["on-demand"] if fit else None
                yield contradiction(f"lead by {curve['name']}", lead, lead_then)


def asked_of_break_even(questions: Sequence[Question]) -> list[Question]:
    some = [q for q in without_luck(questions) if not q.profile and (not q.room or q.room >= 1)]
    some = [q for q in some if ways_in.open_to("break-even", q)]
    return some if len(questions) > 15 else some[:FEW]


# A microbatch as full as the limit would not fit. None is: a device has one sample.
ROOMY = [
    Question(trace="lognormal:median=700,sigma=0.9,max=4096,samples=900", model="qwen2.5-1.5b", gpu="l40s",
             devices=4, minibatch=1, room=64.0)
]  # fmt: skip


# A step of reinforcement learning


def of_policy(words: Values, question: Question) -> Values:
    """A loss in chunks is a policy's in a step of RL, where seconds are estimated."""
    usual = words.get("loss", "chunked") == "chunked" and not question.profile
    return {**words, "loss": "policy"} if usual else words


def piloted(question: Question) -> list[Values]:
    """Compare's rows of the very minibatches of an RL step."""
    batch = RolloutBatch(question.prompts, question.of_prompt, 1, ways_in.STEPS)
    recorded = odcsim.load(question.trace, truncate=question.truncate, drop_over=question.drop_over)
    setting = odcsim.ask(
        draw_steps(recorded, batch, question.seed)[0],
        question.model,
        minibatch=batch.share(question_of({"devices": question.devices})),
        minibatches=ways_in.STEPS,
        in_order=True,
        **{n: getattr(question, n) for n in "gpu profile devices max_tokens seed devices_per_node cluster".split()},
        **of_policy(recipe_fields(question), question),
    )
    among = [*DEALT, ("lb-micro", "on-demand")]
    return [row.as_json() for row in odcsim.compare(setting, among=among).rows]


def trains_as_compared(question: Question) -> Iterator[str]:
    single = replace(question, updates=1)
    if not (told := answered("rl", single)):
        return
    rows = by_pair(piloted(single))
    dealt = {(row["balancer"], row["sync"]): row for row in told["rows"]}
    for pair in DEALT:
        theirs = rows[pair] | {"training_seconds": rows[pair]["makespan_seconds"] / ways_in.STEPS}
        for name in ("training_seconds", "memory_bytes", "memory_fits"):
            yield contradiction(f"rl, {' under '.join(pair)}, {name}", dealt[pair][name], theirs[name])


# The sentence


def verdict_of(lines: Sequence[str]) -> str:
    line = next(line for line in lines if line.startswith(("Yes", "No:", "One GPU", "Out of memory:")))
    return WHY.split(line)[0]


def causes_of(lines: Sequence[str]) -> list[str]:
    """Why devices idle, and what would cost less."""
    return [WHY.split(line)[1] for line in lines if WHY.search(line)]


def says_as_the_report(question: Question) -> Iterator[str]:
    if found := answered("report", question):
        yield contradiction("verdict", verdict_of(found["terminal"]), verdict_of(found["words"]))
        yield contradiction("cause", causes_of(found["terminal"]), causes_of(found["words"]))


def says_as_the_explorer(question: Question) -> Iterator[str]:
    """Where the verdict is not of the row that the explorer leaves out."""
    ours, theirs = answered("explorer", question), answered("report", question)
    if ours and theirs and LEFT_OUT not in verdict_of(theirs["terminal"]):
        yield contradiction("verdict", verdict_of(theirs["terminal"]), ours["verdict"])


# Another answer where compute takes other seconds.
FLIPPED = Question(
    "fixed:length=2000,samples=700", "qwen3-30b-a3b", "h200", devices=8, room=0, minibatches=5, price=2.0
)


# Each law with the questions that it is held against: what it asks of those that were drawn, and those beside them.
LAWS: dict[Law, tuple[Callable[[Sequence[Question]], list[Question]], list[Question]]] = {
    **dict.fromkeys((refuses_alike, is_its_csv, is_pythons, is_the_sweeps, is_the_explorers), (list, [])),
    **dict.fromkeys((is_simulates, says_what_was_asked, trains_as_compared, says_as_the_report), (list, [])),
    says_as_the_explorer: (list, [FLIPPED]),
    advises_as_compared: (without_luck, LUCK),
    gains_as_compared: (without_luck, []),
    breaks_even_as_compared: (asked_of_break_even, ROOMY),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_doors_agree(law, questions):
    among, beside = LAWS[law]
    holds(law, [*among(questions), *beside])
