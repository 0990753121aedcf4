"""The page that docs/studies/published.py writes: every published run beside what was predicted of it, worst first."""

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING

from page_table import table
from published_cells import SOURCES, Cell
from published_peaks import peaks, section
from published_tables import BY, groups, kinds, rarest, runs, stated, totals

from odcsim.catalog.estimates.spreads import widened
from odcsim.catalog.rates import families, figures, spreads

if TYPE_CHECKING:
    from published import Study


def page(found: "Study", day: date) -> str:
    told, cells = stated(found.blind), [one.cell for one in found.blind]
    parts = [INTRO.format(day=day.isoformat(), runs=len(told), sources=len({one.cell.source for one in told}))]
    parts += [totals(found), "", JUDGED, leaning([one.cell for one in told]), ""]
    parts += [KINDS, kinds(told), "", RAREST, rarest(told), "", "By what the runs differ in, over runs:\n"]
    for name, key in BY:
        parts += [groups(told, name, key), ""]
    parts += [COEFFICIENTS, coefficients(), "", WIDTHS, widths(), "", FINDINGS, section(peaks(cells))]
    parts += ["## Every run, worst first\n", EVERY, runs(told), ""]
    parts += [UNSTATED, runs([one for one in found.blind if not one.cell.stated]), ""]
    parts += ["## Sources\n", *(f"- {name}: <{link}>" for name, link in SOURCES.items())]
    return "\n".join(parts) + "\n"


def leaning(cells: Sequence[Cell]) -> str:
    """Whose runs most of them are, and how many are of models of an older kind."""
    sources = [cell.source for cell in cells]
    most = max(set(sources), key=sources.count)
    plain = sum(cell.model.plain_mlp for cell in cells)
    own, told = sources.count(most) / len(cells), plain / len(cells)
    return f"{own:.0%} of these runs are {most}'s, and {told:.0%} are of models whose MLP has no gate."


def coefficients() -> str:
    names = ("matmul", "narrow", "moved", "copying", "fp8")
    rows = []
    for family in families():
        known = figures(family)
        rows.append((family, *(f"{known[name][0]:g} ({known[name][1]})" for name in names)))
    return table(("family", *names), rows)


def widths() -> str:
    rows = [(kind, str(of.publishers), f"{of.deviation:g}", f"{widened(of):.2f}") for kind, of in spreads().items()]
    return table(("kind", "publishers", "deviation", "widened"), rows, figures=True)


INTRO = """# The catalogue beside published runs

Written by `make published` (`python docs/studies/published.py`) on {day}; it takes some three minutes and needs no
GPU. {runs} runs of FSDP that others measured and published, from {sources} sources, one sequence length each. Their
facts stand in [published.csv](studies/published.csv) and, with the flags of `compare`, in
[published_asked.csv](studies/published_asked.csv); none of them is an experiment of this project.

Each run is predicted by the simulator with coefficients and widths that **its own publisher had no part in**. The
coefficients are fitted to all others, starting from what is known without any step (datasheets, kernels timed alone).
How wide an interval is comes from all others, too: each of them is left out in turn once more, and what its runs are
then off by says how far runs of their kinds are off. The interval is the one that `compare` prints as `model_low` and
`model_high`. Errors are predicted over published seconds, minus one.

What a stack moves, launches and waits for (`odcsim/catalog/estimates/work.py`) is counted by operation, or timed on a
CPU, and fitted to no run; so are bytes of the optimizer's states. Leaving out cannot undo that whoever counted, and
chose where fits and widths start, had seen most of these runs: that is why what is known without any run stands beside.

## How far off
"""
JUDGED = """The first rows use no run at all: coefficients and widths are where the fit starts. Those with its
publisher in the fit are by what the catalogue ships. `high / low` is the geometric mean of the intervals' widths: what
is inside by being wide shows there.

The aim, averaged over sources with the publisher left out, is a median of 8 %, a 90th percentile of 18 % and 85 to
95 % inside. The first two are missed: one publisher's RL trainers and experts and torchao's H100s are most of it.
"""
KINDS = """By what kind of run it is, its publisher left out, averaged over sources. A run counts in each of its kinds:
"""
RAREST = """By how many other publishers showed how far the rarest of a run's kinds is off, averaged over sources:
"""
COEFFICIENTS = """## What is fitted

Shares and seconds, in the words of `odcsim/catalog/estimates/rates.py`: `matmul` is the share of the best matmul
anybody measured that large matmuls reach inside a step; a matmul as narrow as `narrow` takes twice as long as its
FLOPs say; `moved` is the share of the memory's bandwidth that work reaches which only moves bytes; `copying` the
share of compute that a collective's kernels take while they run; `fp8` how many times as fast large matmuls are in
fp8, casts apart. Between nodes collectives reach 55 % of the line's rate, and a ring passes a device in 2 microseconds.
Attention goes by kernels timed alone (`odcsim/catalog/rates.toml`), but for the Triton kernel of 2023 that llm-foundry
ran, whose share is fitted: 38 % of an A100's peak forward, 20 % of an H100's.

A run that is far off counts less (as under Student's t), and so does one of a kind that is known to be uncertain.
"""
WIDTHS = """Of a kind of run, `deviation` is what it adds to the standard deviation of the logarithm of seconds, from
the publishers who have it and a start that weighs as much as two of them; the fewer they are, the further it is
`widened`, as Student's t is. Deviations are scaled so that nine in ten of the runs that they are learnt from are
inside, averaged over sources. Kinds add by their squares. What is not here nobody published, and its start stands.
"""
FINDINGS = """## What it does not know

- **Short steps of prime-rl** take longer than all that is counted. Of runs that differ in their tokens alone, what is
  missing grows far slower than the tokens: from .2 s of a step of 0.6B to over 2 s of 30B in experts, and more with
  adapters than without. Nothing is fitted to it: these runs come out too fast, most of all on B200, where one of them
  has 28 s for a quarter of the tokens that take 79 s.
- **H100s differ by source more than A100s do.** llm-foundry's of 2023 and torchao's are slower than MaxText's on
  what is called the same silicon. torchtitan's ran at 500 W: their memory is taken as stated, and matmuls are taken to
  follow the cube root of the power, which is an assumption. torchao's source says nothing of power.
- **JAX and Transformer Engine** run 70B faster in fp8 on 64 GPUs than on 512, by a sixth; all of them are
  predicted alike.
- **Where memory was almost full**, runs were slower than they had to be: 30B in 8K sequences on 8 GPUs, 70B on 64 A100
  of 40 GB, and 8B at the limit of 80 GB (`ATLIMIT` in published_asked.csv) are among the worst. Allocators that give
  memory back and ask anew are not modeled.
- **Very small models at short sequences** (760M at 512 and 1K tokens) have outliers in their source, in both
  directions.
- **Experts, plain stacks, losses of a policy and B200 have one publisher each**: left out, nothing is learnt of
  them, and their intervals are those of a kind that nobody published.
- **No run here covers** AMD, Ada, or linear attention. What a CDNA3 reaches was chosen by hand, to figures of one port
  of ODC ([paper](paper.md)); the others' rates are ratios. Their intervals are wider for it.
"""
UNSTATED = """## Runs of which something is a guess

Their sources do not say what they recompute, or that power was limited and not by how much. Nothing is fitted to them,
and no figure above counts them, but for the last row of the first table.
"""
EVERY = """`tokens` are microbatches x sequences x tokens of one sequence, of each GPU in one step; `published` and
`predicted` are seconds of that step.
"""
