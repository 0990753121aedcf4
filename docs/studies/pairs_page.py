"""What docs/pairs.md says of runs before and after one change, beside what an audit says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from textwrap import fill
from typing import Any

import numpy as np

NEAR = 0.2  # of the measured factor
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A pair that was priced. `place`: of the proposal that names the change, among all from 1; 0: none does. `alike`:
    whether it changes a setting that the run changed."""

    pair: Table
    measured: float
    predicted: float
    place: int
    alike: bool

    @property
    def off(self) -> float:
        return self.predicted / self.measured

    @property
    def near(self) -> bool:
        return abs(self.off - 1) <= NEAR

    @property
    def held_back(self) -> bool:
        return bool(self.pair.get("held_back"))


def link(pair: Table) -> str:
    return f"[{pair['title']}]({pair['source']})"


def bullet(pair: Table, key: str) -> str:
    words = f"- {link(pair)}: {' '.join(pair['asked'][key].split())}."
    return fill(words, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def row(one: Outcome) -> str:
    asked = one.pair["asked"]
    place = f"{asked['kind']}, {one.place}{'' if one.alike else ' (other lines)'}" if one.place else "no"
    marks = [word for word, key in (("back", "back"), ("seen", "fitted")) if asked.get(key) or one.pair.get(key)]
    cells = [link(one.pair), asked["trainer"], f"{one.measured:.2f}", f"{one.predicted:.2f}", f"{one.off:.2f}", place,
             "yes" if one.held_back else "", ", ".join(marks)]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def sums(words: str, every: Sequence[Outcome]) -> str:
    offs, count = [one.off for one in every], len(every)
    named, first = sum(one.place > 0 for one in every), sum(one.place == 1 for one in every)
    near, both = sum(one.near for one in every), sum(one.near and one.place > 0 for one in every)
    cells = [words, count, named, first, sum(one.alike for one in every), near, both, f"{np.median(offs):.2f}",
             f"{min(offs):.2f} to {max(offs):.2f}"]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def page(every: Sequence[Outcome], pairs: Sequence[Table]) -> str:
    """`pairs`: all of them, also those that were not priced."""
    far = [one for one in every if not (one.near and one.place)]
    if silent := [one.pair["title"] for one in far if not one.pair["asked"].get("why")]:
        raise SystemExit(f"say why in pairs.toml: {'; '.join(silent)}")
    held, open_ = ([one for one in every if one.held_back is back] for back in (True, False))
    unpriced = [pair for pair in pairs if "unpriced" in pair["asked"]]
    stacks = [one for one in every if one.pair["asked"]["kind"] == "stack"]
    return PAGE.format(
        date=f"{date.today():%Y-%m}", rows="\n".join(map(row, every)),
        sums="\n".join(sums(*one) for one in (("held back", held), ("the others", open_), ("all", every))),
        why="\n".join(bullet(one.pair, "why") for one in far), priced=len(every),
        count=len(pairs), left=len(unpriced), less=sum(one.off > 1 for one in stacks), stacks=len(stacks),
        unpriced="\n".join(bullet(pair, "unpriced") for pair in unpriced),
    )  # fmt: skip


PAGE = """# Audits beside published changes

Does `odcsim audit` find what somebody then changed, and is the gain what it says? {count} runs that others published
before and after one change are in `docs/studies/pairs.toml`, with their sources; every third is held back. {priced} of
them are priced here. Written by `python docs/studies/pairs.py`, {date}, on a machine without a GPU.

## How it is asked

Each run is written as a configuration of the trainer, or of the nearest one that odcsim reads (`nearest` in the file).
The configuration **before** the change alone is audited; what the run changed is not known to it. Then both are priced.
All lengths, and what else a source leaves open, are `assumed` there: where these decide, a figure here says no more
than they do. Nothing of the model was fitted to these pairs, but two of torchtitan, marked "seen", are among the runs
that [the catalogue](published.md) is fitted to.

The pairs showed what an audit did not try although the trainer has it. That was added with this page: balancing of
verl's rollouts, `torch_compile`, `padding_free` and layers that stay gathered of Hugging Face's trainers, and larger
steps of larger microbatches or packed ones; weights in 16 bits without mixed precision are read as such. Before, 21 of
the 31 were named. So held-back pairs are not untouched: three of them are named since, by compiled layers and 16 bits,
which others show, too, and by larger microbatches, which one of them alone shows. Lengths of the pairs on orca-math are
from tokens that a held-back one counts.

## Pair by pair

**measured**: times as fast after the change; **predicted**: the same of both prices, by the token; **off**: predicted
over measured. **named**: the kind of the proposal that names the change, and its place among the audit's proposals;
"other lines" where it would change other settings than the run did, such as packing in place of flattened batches.
"back": the change saves memory and makes the step slower, and the pair is read from its end, so that the audit can
name the way back.

| change | trainer | measured | predicted | off | named | held back | |
| --- | --- | --: | --: | --: | --- | --- | --- |
{rows}

## In sum

| pairs | priced | named | first | same setting | within 20 % | named and within 20 % | off, median | off, range |
| --- | --: | --: | --: | --: | --: | --: | --: | --- |
{sums}

**first**: named in first place; **same setting**: no other lines. A kind is a coarse name: most configurations
that pad are told of their microbatches, and most that are not compiled of their stack. Compiled layers gained less than
predicted in {less} of {stacks} pairs.

## Off, or not named

{why}

## Not priced

{left} pairs:

{unpriced}
"""
