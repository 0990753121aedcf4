"""Questions that every door of odcsim can be asked, drawn from a seed, and every door as a function of one question."""

import contextlib
import csv
import html
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import gcd
from pathlib import Path
from random import Random
from typing import Any

import odcsim
from odcsim.cli import main
from odcsim.show.explore.controls import PageQuestion
from odcsim.show.explore.reply import reply

# Cluster files by name: what stands in each.
CLUSTERS = {
    "slow-network.toml": "nic_gbit_s = 25\n",
    "nodes-of-two.toml": "devices_per_node = 2\nnics_per_node = 2\nnic_gbit_s = 50\n",
    "shared-cards.toml": "devices_per_node = 4\nnics_per_node = 1\nnic_gbit_s = 400\n",
    "jitter.toml": "jitter = 0.05\n",
    "slow-device.toml": "sample_noise = 0.05\n\n[slow]\n1 = 1.2\n",
}
DRAWN = ("shared-cards.toml", "jitter.toml")  # of which the scan says nothing
RECOMPUTE = {  # the fields that a word stands for
    "full": {"recompute": True, "selective": "no"},
    "selective": {"recompute": True, "selective": "operators"},
    "layers": {"recompute": True, "selective": "layers"},
    "none": {"recompute": False, "selective": "no"},
}
SEARCHED = ("recompute", "sharding")  # by an advice, which takes no word on it

TRACES = (
    "lognormal:median=700,sigma=0.9,max=4096,samples=900",
    "lognormal:median=3000,sigma=1,max=16000,samples=600,spike=0.02",
    "uniform:min=20,max=900,samples=700",
    "exponential:mean=6000,min=500,max=30000,samples=800",
    "fixed:length=2000,samples=700",
    "deepcoder-rl",
    "dapo-rl",
    "longalign",
    "azure-chat",
)
HARDWARE = (  # model, gpu
    ("tiny", "a100"), ("qwen2.5-0.5b", "l40s"), ("qwen3-0.6b", "h100"), ("qwen2.5-1.5b", "a100"),
    ("r1-distill-qwen-1.5b", "a100"), ("qwen2.5-7b", "h100"), ("r1-distill-qwen-7b", "a100"), ("qwen3-8b", "b200"),
    ("qwen3-30b-a3b", "h200"), ("llama-3.1-70b", "h100"),
)  # fmt: skip
CHOICES: dict[str, tuple[Any, ...]] = {
    "recompute": ("selective", "layers", "none"), "sharding": ("hybrid",), "lora": (16,), "offload": (True,),
    "optimizer": ("bf16", "8bit", "pure"), "streams": ("two",), "reduce": ("bf16",), "far": ("hierarchical",),
    "reshard": (False,), "attention": ("fa3", "sdpa"), "stack": ("compiled", "plain"), "precision": ("fp8",),
    "loss": ("whole",), "copies": ("engines",),
}  # fmt: skip
PROFILE = "profile.json"  # as the engine measures it, of tiny


@dataclass(frozen=True)
class Question:
    """One question in the words of compare's flags. `room`: the token limit over the longest sample; 0: chosen."""

    trace: str = TRACES[0]
    model: str = "tiny"
    gpu: str | None = "a100"
    profile: str | None = None
    devices: int = 2
    minibatch: int = 4
    batched: bool = False  # the batch is said of all devices together
    room: float = 1.5
    limit: int = 0  # of a microbatch, where it is known in tokens
    minibatches: int = 4
    seed: int = 0
    in_order: bool = False
    whole: bool = False
    field: bool = False
    truncate: int | None = None
    drop_over: int | None = None
    devices_per_node: int | None = None
    cluster: str | None = None
    price: float | None = None
    epochs: float | None = None
    recipe: tuple[tuple[str, Any], ...] = ()
    rollouts: int = 4  # of each prompt, or fewer
    updates: int = 1

    @property
    def global_batch(self) -> int:
        return self.minibatch * self.devices

    @property
    def max_tokens(self) -> int | None:
        if self.limit:
            return self.limit
        return round(longest(self.trace, self.truncate, self.drop_over) * self.room) if self.room else None

    @property
    def prompts(self) -> int:
        """Of an RL step that has `minibatch` samples for each device and update."""
        return self.global_batch * self.updates // self.of_prompt

    @property
    def of_prompt(self) -> int:
        """Rollouts of each prompt, so many that steps divide by devices."""
        return gcd(self.rollouts, self.global_batch)

    @property
    def is_plain(self) -> bool:
        """Whether the explorer's page can ask it: it has no control for the rest."""
        held = "trace model gpu devices minibatch room minibatches price batched epochs rollouts updates limit".split()
        others = [f.name for f in fields(self) if f.name not in (*held, "cluster")]
        usual = all(getattr(self, name) == getattr(Question(), name) for name in others)
        return usual and self.cluster in (None, "slow-network.toml")


@lru_cache(maxsize=64)
def longest(trace: str, truncate: int | None, drop_over: int | None) -> int:
    """Where nothing is left, the limit itself: whoever is asked refuses."""
    try:
        return odcsim.load(trace, truncate=truncate, drop_over=drop_over).longest
    except odcsim.InputError:
        return drop_over or 1


def drawn(count: int, seed: int = 0) -> list[Question]:
    """Every third can be asked of the explorer, too."""
    rng = Random(seed)
    return [_plain(rng) if number % 3 == 0 else _any(rng) for number in range(count)]


def _plain(rng: Random) -> Question:
    model, gpu = rng.choice(HARDWARE)
    return Question(
        trace=rng.choice(TRACES),
        model=model,
        gpu=gpu,
        devices=rng.choice((2, 4, 8, 16)),
        minibatch=rng.choice((1, 2, 4)),
        batched=rng.random() < 0.5,
        room=rng.choice((0, 1.0, 1.25, 2.0, 4.0)),
        minibatches=rng.randint(2, 12),
        cluster="slow-network.toml" if rng.random() < 0.3 else None,
        price=rng.choice((1.3, 2.0)),
        epochs=rng.choice((1.0, 2.5)),
    )


def _any(rng: Random) -> Question:
    def now_and_then(value: Any, chance: float = 0.15) -> Any:
        return value if rng.random() < chance else None

    model, gpu = rng.choice(HARDWARE)
    trace = rng.choice(TRACES)
    chosen = {name: rng.choice(CHOICES[name]) for name in CHOICES if rng.random() < 0.12}
    cluster = now_and_then(rng.choice(list(CLUSTERS)), 0.4)
    cut = now_and_then(rng.choice((3000, 12_000)), 0.2)
    truncated = rng.random() < 0.5
    profiled = rng.random() < 0.1
    longest_run = 6 if cluster in DRAWN else 12  # des takes its time
    return Question(
        trace=trace,
        model="tiny" if profiled else model,
        gpu=None if profiled else gpu,
        profile=PROFILE if profiled else None,
        devices=rng.choice((1, 2, 3, 4, 8, 8, 16, 32, 64)[: 6 if cluster in DRAWN else 9]),
        minibatch=rng.choice((1, 2, 3, 4)),
        batched=rng.random() < 0.5,
        room=rng.choice((0, 0, 0.5, 1.0, 1.0, 1.5, 1.5, 3.0, 3.0)),
        minibatches=rng.randint(2, longest_run),
        seed=rng.choice((0, 0, 1, 7)),
        in_order=rng.random() < 0.3 and (":" in trace or rng.random() < 0.1),  # the others are tables, without order
        whole=rng.random() < 0.15,
        field=rng.random() < 0.2,
        truncate=cut if truncated else None,
        drop_over=None if truncated else cut,
        devices_per_node=now_and_then(rng.choice((2, 4))),
        cluster=cluster,
        price=now_and_then(2.5, 0.5),
        epochs=now_and_then(3.0, 0.7),
        recipe=() if profiled and rng.random() < 0.8 else tuple(chosen.items()),
        rollouts=rng.choice((2, 4, 8)),
        updates=rng.choice((1, 1, 2)),
    )


def recipe_fields(question: Question) -> dict[str, Any]:
    """As Python takes them."""
    words = dict(question.recipe)
    return words | RECOMPUTE.get(words.pop("recompute", ""), {})


# Every door as a function of one question: what it prints as plain values, or the line that refuses

Values = dict[str, Any]
BREAK_EVEN = 12  # minibatches, which nobody can choose there
STEPS = 4  # of reinforcement learning


@contextlib.contextmanager
def beside_files() -> Iterator[Path]:
    """In a folder that has the files which questions name, so that what is printed names no machine's paths."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in CLUSTERS.items():
            Path(folder, name).write_text(content, encoding="utf-8")
        Path(folder, PROFILE).write_bytes((Path(__file__).parent / "fixtures" / PROFILE).read_bytes())
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
    asked = PageQuestion(**{name: getattr(question, name) for name in names}, network=network)
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
