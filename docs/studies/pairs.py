"""Hold `odcsim audit` against runs that others published before and after one change, and write docs/pairs.md.

    python docs/studies/pairs.py [-o docs/pairs.md]

The configuration before the change is audited as somebody would who knows nothing of the one after it; both are priced.
"""

import argparse
import json
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pairs_page
from pairs_page import Outcome, Table

from odcsim.decide.asking import lengths_of
from odcsim.decide.audit import audited
from odcsim.decide.priced_step import PricedStep, Surroundings
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.config import read_config
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.settings import written
from odcsim.neighbours.values import plain
from odcsim.question import Question

HERE = Path(__file__).parent


@cache
def read() -> Table:
    return tomllib.loads((HERE / "pairs.toml").read_text(encoding="utf-8"))


def measured(pair: Table) -> float:
    """How many times as fast the run is after the change; of a pair that is read the other way round, before it."""
    asked = pair["asked"]
    if "measured" in asked:
        return float(asked["measured"])
    if "before_seconds" in pair:
        factor = pair["before_seconds"] / pair["after_seconds"]
    else:
        factor = pair["after_figure"] / pair["before_figure"]
        factor = 1 / factor if pair["unit"].startswith("hours") else factor
    return 1 / factor if asked.get("back") else float(factor)


def text_of(asked: Table, values: Table) -> tuple[str, str]:
    """A configuration, and how the name of its file ends."""
    settings = {name: None if value == "" else value for name, value in values.items()}
    if command := asked.get("command"):
        return " ".join([command, *written(settings, TRAINERS[asked["trainer"]].form)]) + "\n", ".sh"
    form = TRAINERS[asked["trainer"]].form
    form = "yaml" if form == "hydra" else form if form in ("yaml", "toml") else "toml"
    return "\n".join(written(settings, form)) + "\n", f".{form}"


def outcome(pair: Table) -> Outcome:
    asked = pair["asked"]
    sides = [dict(asked["before"]), {**asked["before"], **asked["after"]}]
    if asked.get("back"):
        sides.reverse()
    with TemporaryDirectory() as name:
        folder = Path(name)
        words = words_of(pair, folder)
        files = [folder / f"{'ab'[at]}{text_of(asked, side)[1]}" for at, side in enumerate(sides)]
        for file, side in zip(files, sides, strict=True):
            file.write_text(text_of(asked, side)[0])
        found = audited(str(files[0]), asked["lengths"], (), words)
        if found.step is None:
            raise SystemExit(f"{pair['title']}: {found.ends}")
        config = read_config(str(files[1]), Launcher(devices=words["devices"]))
        of = Surroundings(config.trainer, lengths_of(Question(trace=asked["lengths"])), {"gpu": words["gpu"]})
        after = of.price(replace(config.row(), model=words.get("model", config.row().model)))
    kinds = [one.kind for one in (*found.found, *found.beside)]
    place = kinds.index(asked["kind"]) + 1 if asked["kind"] in kinds else 0
    lines = {plain(name) for name in found.changes[place - 1]} if place else set()
    alike = bool(lines & {plain(name) for name in asked["after"]})
    return Outcome(pair, measured(pair), factor(asked, found.step, after), place, alike)


def factor(asked: Table, before: PricedStep, after: PricedStep) -> float:
    """By the token. Where a source times the passes of training alone, so; where it counts padding, by all tokens."""
    if asked.get("training"):
        return before.training / before.tokens / (after.training / after.tokens)
    padding = after.padding / before.padding if asked.get("padded") else 1.0
    return before.per_token / after.per_token * padding


def words_of(pair: Table, folder: Path) -> dict[str, Any]:
    """GPU, devices and model, that of whose sizes the catalogue has none by a file of them."""
    asked = pair["asked"]
    words = {"gpu": asked.get("gpu", pair.get("gpu")), "devices": asked.get("devices", pair.get("devices"))}
    if "config" in asked:
        file = folder / f"{pair['model'].rpartition('/')[2].lower()}.json"
        file.write_text(json.dumps(asked["config"]))
        words["model"] = str(file)
    return words | ({"model": asked["model"]} if "model" in asked else {})


@cache
def outcomes() -> tuple[Outcome, ...]:
    return tuple(outcome(pair) for pair in read()["pair"] if "unpriced" not in pair["asked"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default=str(HERE.parent / "pairs.md"))
    Path(parser.parse_args().output).write_text(pairs_page.page(outcomes(), read()["pair"]))


if __name__ == "__main__":
    main()
