"""What any door recommends fits a GPU by the one rule, or is called tight. What it says would fit does, asked again.

GPUs are made for the questions: they have what the longest sample alone would need, or a little more or less.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import ways_in

import odcsim
from odcsim.decide import room

MOST = 0.92  # of a GPU's memory, that anything but what is called tight may fill
TRACES = (
    "lognormal:median=700,sigma=0.9,max=9000,samples=900",
    "lognormal:median=900,sigma=1.2,max=60000,samples=900",
    "exponential:mean=6000,min=500,max=30000,samples=800",
    "fixed:length=2000,samples=700",
    "aime-rl",
)
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-8b")
RECIPES = ((), (), ("--recompute", "none"), ("--optimizer", "bf16"), ("--sharding", "hybrid"), ("--loss", "whole"))
BATCH = 16  # of a step
MANY = 80 if "THOROUGH" in os.environ else 12
DOORS = ("compare", "rl", "advise")


@dataclass(frozen=True)
class Edge:
    """A question whose GPU has so many times the memory that the longest sample needs."""

    trace: str
    model: str
    devices: int
    times: float
    limit: float  # over the longest sample; 0: nobody gives one
    recipe: tuple[str, ...] = ()

    def words(self, door: str) -> list[str]:
        """With a GPU that is written here, and named so that no two are alike."""
        setting = odcsim.ask(self.trace, self.model, gpu="h100", devices=self.devices, minibatch=1, max_tokens=0)
        longest, gpu = setting.trace.longest, Path(f"edge-{abs(hash(self)):x}.toml")
        memory = self.times * room.needed(room.under(setting.cost, "collective"), longest, longest).total
        gpu.write_text(f'like = "h100"\nmemory_gb = {memory / 1e9:.6f}\n')
        known = [door, self.trace, "--model", self.model, "--devices", f"{self.devices}"]
        limit = ["--max-tokens", f"{round(self.limit * longest)}"] if self.limit else []
        if door == "rl":
            batch = ["--prompts", "4", "--rollouts", f"{BATCH // 4}", "--steps", "3"]
            return [*known, "--gpu", str(gpu), *limit, *self.recipe, *batch]
        known += ["--minibatches", "3", "--global-batch", f"{BATCH}"]
        if door == "compare":
            return [*known, "--gpu", str(gpu), *limit, *self.recipe]
        searched = {"--recompute", "--sharding"} & set(self.recipe)  # by an advice, which takes no word on it
        return [*known, "--gpus", str(gpu), *(() if searched else self.recipe)]


def drawn(count: int, seed: int = 0) -> list[Edge]:
    rng = Random(seed)
    times, limits = (0.6, 0.9, 0.99, 1.001, 1.02, 1.05, 1.08, 1.1, 1.3, 1.6), (0, 0, 0, 1.0, 1.2, 2.0)
    fields = (TRACES, MODELS, (1, 2, 4, 8), times, limits, RECIPES)
    return [Edge(*(rng.choice(values) for values in fields)) for _ in range(count)]


@pytest.fixture(scope="module", autouse=True)
def folder():
    with ways_in.beside_files() as path:
        yield path


@pytest.fixture(scope="module", params=[4, pytest.param(MANY, marks=pytest.mark.slow)])
def edges(request) -> list[Edge]:
    return drawn(request.param, seed=request.param)


@cache
def heard(*words: str) -> tuple[str, list[dict[str, Any]]]:
    """What is printed, and the rows."""
    text, refused = ways_in.said(list(words))
    assert not refused, (words, refused)
    return text, ways_in.told(list(words))["rows"]


def share(row: dict[str, Any]) -> float:
    return float(row["memory_bytes"] / row["memory_limit"])


def rows_chosen(door: str, words: Sequence[str]) -> tuple[str, dict[str, Any] | None, list[dict[str, Any]]]:
    """What is printed, the row that is recommended, and those that it is chosen from."""
    text, rows = heard(*words)
    if door == "advise":
        rent = re.search(r"^Rent (\d+) x", text, re.MULTILINE)
        return text, next((row for row in rows if rent and row["devices"] == int(rent[1])), None), rows
    if "Out of memory: " in text:
        return text, None, rows
    if door == "rl":  # a sentence names the fastest first
        told = next(line for line in text.splitlines() if re.search(r"pass \d|does not pay|is the fastest", line))
        named = [row for row in rows if f"{row['sync']} + {row['balancer']}" in told]
        return text, min(named, key=lambda row: row["step_seconds"]), rows
    names = re.search(r"Under (\S+) \+ (\S+) all minibatches take", text)
    return text, next(row for row in rows if [row["sync"], row["balancer"]] == [names[1], names[2]]), rows


def test_what_is_recommended_fits_or_is_called_tight(edges):
    seen = {True: 0, False: 0}
    for edge in edges:
        for door in DOORS:
            text, chosen, rows = rows_chosen(door, edge.words(door))
            if chosen is None:
                continue
            tight = share(chosen) > MOST
            seen[tight] += 1
            assert share(chosen) <= 1, (edge, door)
            assert not tight or (": tight" in text and min(map(share, rows)) > MOST), (edge, door, text)
    assert min(seen.values()) >= len(edges) / 8


def ways_out(text: str) -> Iterator[str]:
    """Each thing that is said to fit."""
    for line in text.splitlines():
        for said in re.findall(r"(?:[Oo]ptions that fit:|would fit:) (.*?)(?:\.$|\. |$)", line):
            yield from re.sub(r" \([^)]*\)", "", said).split("; ")


def with_way(words: Sequence[str], way: str) -> list[str]:
    """The same question with the way out."""
    asked = list(words)
    for one in way.split(" and "):
        more = ["--devices", one.split()[0]] if one.endswith(" devices") else one.split()
        if more[0] in asked:
            place = asked.index(more[0])
            asked[place : place + len(more)] = more
        else:
            asked += more
    return asked


def test_what_would_fit_fits(edges):
    tried = 0
    for edge in edges:
        for door in DOORS:
            words = edge.words(door)
            for way in ways_out(heard(*words)[0]):
                text, chosen, _ = rows_chosen(door, with_way(words, way))
                assert chosen is not None, (edge, door, way, text)
                assert share(chosen) <= MOST, (edge, door, way, text)
                tried += 1
    assert tried >= len(edges)


def test_the_best_of_two_offers_is_not_the_tight_one():
    """Where fewer devices are cheaper, and tight."""
    edge = Edge(TRACES[0], "qwen2.5-7b", 4, 1.05, 0)
    words = [*edge.words("advise"), "--price", "2"]
    words[words.index("--devices") + 1] = "4,8"
    text, rent, rows = rows_chosen("advise", words)
    spent = {row["devices"]: row["dollars"] for row in rows}
    assert spent[4] < spent[8]
    assert rent["devices"] == 8
    assert [row["memory_tight"] for row in rows] == [False, True]
    assert re.search(r"4 x \S+ would take .* but is tight: \d+ of \d+ GB", text)
