"""Write the tables of names and defaults that `odcsim audit` reads trainers' configurations by, of installed trainers.

Run it where they are installed: .venv-trainers/bin/python docs/studies/trainer_names.py
"""

import argparse
import json
import warnings
from pathlib import Path

from odcsim.neighbours import names
from odcsim.trace import SFT

# How names of versions before begin, which make no difference to a step.
TITAN = "job profiling optimizer float8 quantize experimental validation encoder checkpoint model comm lr_scheduler"
BEFORE = {"torchtitan": [f"{name}." for name in f"{TITAN} activation_checkpoint".split()] + ["training.dataset"]}


def table(trainer: str) -> str:
    """Of one trainer: what all of its kinds have alike, then what each has of its own."""
    kinds = names.KINDS.get(trainer, (SFT,))
    every = {kind: names.own_names(trainer, kind) for kind in kinds}
    alike = {
        name: of for name, of in every[kinds[0]].items() if all(own.get(name, ...) == of for own in every.values())
    }
    package, there = names.CLASSES[trainer][0], names.installed(trainer)
    lines = [f"# Names that {package} takes, and their defaults where they are plain values.", f'version = "{there}"']
    if begins := BEFORE.get(trainer):
        lines.append(f"prefixes = {json.dumps(begins)}")
    parts = {"": alike} | {kind: {n: v for n, v in own.items() if n not in alike} for kind, own in every.items()}
    for kind, own in parts.items():
        bare = [name for name, value in own.items() if not names.is_plain(value)]
        if bare:
            lines += [f"{kind}_names = [" if kind else "names = [", *(f"    {json.dumps(name)}," for name in bare), "]"]
    for kind, own in parts.items():
        plain = {name: value for name, value in own.items() if names.is_plain(value)}
        if plain:
            lines += ["", f"[{kind or names.ALL}]"]
            lines += [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in plain.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trainers", nargs="*", help="of these alone", choices=[[], *names.CLASSES])
    chosen = parser.parse_args().trainers or names.CLASSES
    warnings.simplefilter("ignore")
    for trainer in chosen:
        if names.installed(trainer):
            path = Path(names.FOLDER) / f"{trainer}.toml"
            path.write_text(table(trainer), encoding="utf-8")
            print(f"{path.name}: {names.installed(trainer)}")


if __name__ == "__main__":
    main()
