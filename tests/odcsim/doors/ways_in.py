"""Every door of odcsim as a function of one question: what it prints as plain values, or the line that refuses."""

import contextlib
import csv
import html
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from questions import CLUSTERS, PROFILE, SEARCHED, Question, recipe_fields

import odcsim
from odcsim.cli import main
from odcsim.show.explore.asked import Asked
from odcsim.show.explore.reply import reply

Values = dict[str, Any]
BREAK_EVEN = 12  # minibatches, which nobody can choose there
STEPS = 4  # of reinforcement learning
PROFILED = Path(__file__).parent / "fixtures" / "profile.json"


@contextlib.contextmanager
def beside_files() -> Iterator[Path]:
    """In a folder that has the files which questions name, so that what is printed names no machine's paths."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in CLUSTERS.items():
            Path(folder, name).write_text(content, encoding="utf-8")
        Path(folder, PROFILE).write_bytes(PROFILED.read_bytes())
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def said(argv: list[str]) -> tuple[str, str]:
    """What a command prints, and the line that refuses, where it does."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
    return out.getvalue(), err.getvalue().strip() if code else ""


def told(argv: list[str]) -> Values:
    out, refused = said([*argv, "--json"])
    return {"refused": refused} if refused else json.loads(out)


def flags(question: Question, *names: str) -> list[str]:
    known = [(name.replace("_", "-"), getattr(question, name)) for name in names]
    return [word for name, value in known if value is not None and value is not False for word in flag(name, value)]


def flag(name: str, value: Any) -> list[str]:
    return [f"--no-{name}"] if value is False else [f"--{name}"] if value is True else [f"--{name}", f"{value}"]


def recipe(question: Question, *, without: tuple[str, ...] = ()) -> list[str]:
    return [word for name, value in question.recipe if name not in without for word in flag(name, value)]


def of_setting(question: Question) -> list[str]:
    """The flags that compare and balance share."""
    size = "global_batch" if question.batched else "minibatch"
    names = "model gpu profile devices max_tokens minibatches seed in_order truncate drop_over devices_per_node cluster"
    return [question.trace, *flags(question, *names.split(), size), *recipe(question)]


def compare_line(question: Question) -> list[str]:
    return ["compare", *of_setting(question), *flags(question, "whole", "field", "price", "epochs")]


def compare_csv(question: Question) -> Values:
    out, refused = said([*compare_line(question), "--csv"])
    return {"refused": refused} if refused else {"rows": list(csv.DictReader(io.StringIO(out)))}


def report(question: Question) -> Values:
    """The terminal's lines, and the page's words."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        out, refused = said([*compare_line(question), "--html", str(page)])
        if refused:
            return {"refused": refused}
        text = page.read_text(encoding="utf-8")
        lines = [line.rstrip() for line in out.splitlines() if folder not in line]
    return {"terminal": lines, "words": words_of(text)}


def words_of(page: str) -> list[str]:
    """What stands in its paragraphs, without marks."""
    plain = re.sub(r"<(style|script).*?</\1>", " ", page, flags=re.DOTALL)
    texts = [re.sub("<[^>]+>", " ", text) for text in re.findall(r"<p[^>]*>(.*?)</p>", plain, re.DOTALL)]
    return [" ".join(html.unescape(text).split()) for text in texts]


def python(question: Question) -> Values:
    """`odcsim.ask` and `odcsim.compare`."""
    names = "gpu profile devices minibatch max_tokens minibatches seed in_order devices_per_node cluster"
    known = {name: getattr(question, name) for name in f"{names} price whole".split()}
    try:
        trace = odcsim.load(question.trace, truncate=question.truncate, drop_over=question.drop_over)
        setting = odcsim.ask(trace, question.model, **known, **recipe_fields(question))
        comparison = odcsim.compare(replace(setting, field=question.field))
    except odcsim.InputError as error:
        return {"refused": str(error)}
    return {"fidelity": comparison.fidelity, "rows": [plain(row.as_json()) for row in comparison.rows]}


def plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value))


def sweep(question: Question) -> Values:
    """A grid of this point alone."""
    names = "trace model gpu profile devices minibatches seed in_order whole field truncate drop_over devices_per_node"
    names += " cluster price epochs max_tokens"
    size = "global_batch" if question.batched else "minibatch"
    grid = {name: getattr(question, name) for name in (*names.split(), size)}
    grid = {name: value for name, value in grid.items() if value is not None} | dict(question.recipe)
    try:
        rows = odcsim.sweep(grid)
    except odcsim.InputError as error:
        return {"refused": str(error)}
    if refused := rows[0].get("refused"):
        return {"refused": refused}
    return {"rows": [{k: v for k, v in plain(row).items() if k != "point"} for row in rows]}


def explorer(question: Question) -> Values:
    """The page's reply, where it has controls for all that is asked."""
    network = 25 if question.cluster else 0
    names = "trace model gpu devices minibatch room price minibatches".split()
    asked = Asked(**{name: getattr(question, name) for name in names}, network=network)
    try:
        found = reply(asked)
        rows = [plain(row.as_json()) for row in found.comparison.rows]
        return {"rows": rows, "fidelity": found.comparison.fidelity, "verdict": found.verdict}
    except odcsim.InputError as error:
        return {"refused": str(error)}


def advise_line(question: Question) -> list[str]:
    words = ["advise", question.trace, "--gpus", question.gpu or "", "--epochs", f"{question.epochs or 1.0}"]
    words += flags(question, "model", "devices", "global_batch", "minibatches", "seed", "truncate", "drop_over")
    return [*words, *flags(question, "cluster", "price"), *recipe(question, without=SEARCHED)]


def break_even(question: Question) -> Values:
    names = "model gpu profile devices minibatch max_tokens seed truncate drop_over devices_per_node cluster".split()
    return told(["break-even", question.trace, *flags(question, *names), *recipe(question)])


def rl(question: Question) -> Values:
    names = "model gpu profile devices prompts updates max_tokens seed truncate drop_over devices_per_node"
    words = ["rl", question.trace, *flags(question, *names.split(), "cluster"), *recipe(question)]
    return told([*words, "--rollouts", f"{question.of_prompt}", "--steps", f"{STEPS}"])


def simulate(question: Question, balancer: str = "lb-mini", sync: str = "on-demand") -> Values:
    """A schedule file written and simulated."""
    with tempfile.TemporaryDirectory() as folder:
        schedules = str(Path(folder, "schedules.jsonl"))
        _, refused = said(["balance", *of_setting(question), "--balancer", balancer, "-o", schedules])
        if refused:
            return {"refused": refused.replace(folder, "")}
        words = ["simulate", schedules, *flags(question, "model", "gpu", "profile", "devices_per_node", "cluster")]
        words += [*recipe(question), "--sync", sync]
        found = told([*words, "-o", str(Path(folder, "timeline.npz"))])
        return {"refused": found["refused"].replace(folder, "")} if "refused" in found else found


DOORS: dict[str, Callable[[Question], Values]] = {
    "compare": lambda question: told(compare_line(question)), "compare --csv": compare_csv, "report": report,
    "python": python, "sweep": sweep, "explorer": explorer, "advise": lambda question: told(advise_line(question)),
    "break-even": break_even, "rl": rl, "simulate": simulate,
}  # fmt: skip


def open_to(door: str, question: Question) -> bool:
    """Whether the question can be put to this door in full, or nearly so."""
    if door == "explorer":
        return question.is_plain
    if door == "advise":
        return question.gpu is not None
    return door != "break-even" or question.devices in (2, 4)  # it takes longer than all others together
