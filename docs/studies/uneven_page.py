"""The page that docs/studies/uneven.py writes: published runs of uneven lengths beside ours, misses in plain sight."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from statistics import median
from typing import TYPE_CHECKING

from page_table import table
from paper_page import CELLS, KINDS, number

if TYPE_CHECKING:
    from reproduce_paper import Cell as Figure
    from uneven import Cell, Figures


def page(
    cells: Sequence["Cell"],
    papers: Sequence["Figure"],
    spreads: Mapping[str, float],
    sources: Mapping[str, Mapping[str, str]],
    draws: int,
    day: date,
) -> str:
    parts = [
        INTRO.format(day=day.isoformat(), draws=draws),
        summary_table(cells, papers),
        "\n## Strategies of four trainers\n\n" + RATIOS,
        cells_table(cells),
        "\n" + SETTINGS.format(**spreads),
        "## What padding adds, and what is left\n\n" + PADDING,
        padding_table(cells),
        "\n" + misses(cells),
        "## ODC and its port\n\n" + PAPER,
        papers_table(papers),
        "\n## Sources\n",
        *(f"- {name}: [{of['title']}]({of['url']})" for name, of in sources.items()),
    ]
    return "\n".join(parts) + "\n"


def cells_table(cells: Iterable["Cell"]) -> str:
    head = ("run", "strategy", "against", "published", "ours", "ratio, published", "ours", "points", "sign", "source")
    return table(head, map(cell_row, cells))


def cell_row(c: "Cell") -> tuple[str, ...]:
    name = f"{c.strategy} (other)" if c.other else c.strategy
    ratios = (f"{c.published.ratio:.2f}", f"{c.ours.ratio:.2f}", f"{c.points:+.0f}")
    return (c.run, name, c.against, _pair(c.published), _pair(c.ours), *ratios, _right(c.sign), c.source)


def _pair(figures: "Figures") -> str:
    each = f"{figures.reference:,.0f}, {figures.strategy:,.0f}"
    return f"{each} tokens/s" if figures.unit == "tokens/s" else f"{figures.reference:.3g}, {figures.strategy:.3g} s"


def _right(sign: bool) -> str:
    return "right" if sign else "wrong"


def padding_table(cells: Iterable["Cell"]) -> str:
    """Of the strategies that take padding away from the same batches."""
    chosen = [c for c in cells if c.strategy in ("group_by_length", "batch_rebalance", "without padding, 4")]
    head = ("run", "strategy", "it saves, published", "ours", "is left, published", "ours")
    return table(head, map(padding_row, chosen))


def padding_row(c: "Cell") -> tuple[str, ...]:
    saved = [1e6 / of.reference - 1e6 / of.strategy for of in (c.published, c.ours)]
    left = [1e6 / of.strategy for of in (c.published, c.ours)]
    return (c.run, c.strategy, *(f"{value:.1f} µs" for value in (*saved, *left)))


def misses(cells: Iterable["Cell"]) -> str:
    """What is said of them, with the figures that it is said of."""
    of = {(c.run, c.strategy): c for c in cells}
    trl, grouped = of["TRL", "without padding, 4"], of["transformers", "group_by_length"]
    left = 1 - trl.published.strategy / trl.ours.strategy
    saved = [1 / f.reference - 1 / f.strategy for f in (grouped.ours, grouped.published)]
    beside = of["transformers", "batch_rebalance beside it"]
    leads = {"published": beside.published.ratio - 1, "ours": beside.ours.ratio - 1}
    whole = grouped.published.strategy / grouped.ours.strategy
    return MISSES.format(left=left, dear=saved[0] / saved[1], whole=whole, **leads)


def papers_table(papers: Iterable["Figure"]) -> str:
    return table((*CELLS, "sign", "source"), map(paper_row, papers))


def paper_row(c: "Figure") -> tuple[str, ...]:
    assert c.place is not None
    where = (c.place.model, f"{c.place.devices} {c.place.gpu}", c.place.trace, str(c.place.minibatch))
    values = (number(c.published, c.kind), number(c.ours, c.kind), off(c))
    return (
        c.name,
        *where,
        c.pair,
        KINDS.get(c.kind, c.kind),
        *values,
        _right(c.right) if c.kind == "speedup" else "",
        c.source,
    )


def off(c: "Figure") -> str:
    """Points of a speedup or of idle; seconds in percent."""
    return f"{100 * c.off:+.0f} %" if c.kind == "seconds" else f"{c.points:+.0f} points"


def summary_table(cells: Sequence["Cell"], papers: Sequence["Figure"]) -> str:
    speedups = [c for c in papers if c.kind == "speedup"]
    every = {f"{run}, by ratio": _likely(cells, run) for run in dict.fromkeys(c.run for c in cells)}
    every["ODC and its port, speedups"] = [(c.points, c.right) for c in speedups]
    every["all"] = [found for some in every.values() for found in some]
    head = ("figures", "count", "points off, median", "largest", "signs right")
    return table(head, [_summed(name, some) for name, some in every.items() if some])


def _likely(cells: Iterable["Cell"], run: str) -> list[tuple[float, bool]]:
    return [(c.points, c.sign) for c in cells if c.run == run and not c.other]


def _summed(name: str, some: Sequence[tuple[float, bool]]) -> tuple[str, ...]:
    sizes = [abs(points) for points, _ in some]
    worst = max((points for points, _ in some), key=abs)
    return (name, str(len(some)), f"{median(sizes):.0f}", f"{worst:+.0f}", f"{sum(sign for _, sign in some)}")


INTRO = """# Uneven lengths: published runs beside ours

How well does odcsim predict strategies for uneven lengths (packing, sorting, balancing)? This page is for people who
doubt its speedups: what others measured, beside what odcsim predicts for the same strategies. `make uneven`
(`python docs/studies/uneven.py`) wrote it on {day}, in half a minute without a GPU; its figures are the same on any
machine. Figures, sources and the GPUs that the catalog lacks are in [uneven.toml](uneven.toml). Those of ODC and its
port are in [paper.toml](paper.toml), whose settings and misses have [a page of their own](paper.md). Nothing was fitted
to any of these figures except what an MI300X reaches, which was chosen by hand to meet the port's figures. Each run was
drawn {draws} times, seeds 0 and on.

A point is a hundredth of a ratio, ours minus the published one. A sign is right if both say that a strategy is faster,
both that it is slower, or both that it changes less than half a point. If a source does not state a setting that
matters, this table uses the likeliest assumption; the others are below as `other`.
"""
RATIOS = """How many times as fast a strategy is as the one it is compared with, on the same samples. Before each
ratio are the figures it is computed from: the other strategy's, then its own.
"""
SETTINGS = """What was run, and what is assumed where a source does not say it:

- **transformers**: `Trainer` over DDP on two RTX 5090, Qwen2.5-0.5B in bf16 with activation checkpointing; 1,600
  samples of lognormal(5, 1) tokens in [16, 1,024]; 8 in a batch, two batches to a step; random order, `group_by_length`
  and `batch_rebalance`, whose rules are those of transformers 5.23. Assumed: moments in bf16, a plain stack, gradients
  that the last backward hides, and that the card reaches as much of its datasheet as an A100, since it computes as that
  one does and not as a B200.
- **UniRL**: FSDP on 16 H20, Qwen3-4B, 512 answers to 64 prompts a step in four updates, microbatches of 10,240 tokens
  of answers sorted by length; answers of about 1,000 tokens, 8,192 at most. As they come, a device has whole groups of
  eight answers; balanced, each has as many, the longest assigned first. Tokens of a device then spread by
  {balanced:.1%} where the source has 0.6 to 0.9 %, and by {as_come:.0%} before. Assumed: a log-normal of sigma 0.9, as
  DAPO's early rollouts have, and what answers to one prompt share of its variance: 0.18 in those rollouts, 0.93 in
  DeepCoder's; prompts of 117 tokens; samples of a device in the order in which they were assigned; as many microbatches
  on all devices as the one needs that needs most.
- **TRL**: one H100, Qwen3-1.7B with gradient checkpointing and FlashAttention-3; clipped log-normal answers (median
  700, sigma 0.9), a tenth of them 4,096, prompts of 256 in the median, eight answers to each; four microbatches a
  step, rows of samples as they come. Assumed: a sigma of 0.5 for prompts, a plain stack, a loss over whole logits.
  What the table of the source has of four and eight devices was not at hand.
- **SkyRL**: Megatron on four GPUs, Qwen2.5-0.5B, 256 samples of Tulu-3 a step: 8 in a microbatch, or first-fit rows of
  32,768; seconds of forward and backward. Assumed: H100, no recompute, a log-normal of sigma 1.1 with the 341 tokens
  that the published rates come to, and how long padded rows are, which the source does not say.
"""
PADDING = """Microseconds of all GPUs for each true token: what a strategy saves, and what is left of a step under it.
"""
MISSES = """Which differences are explained, and which are not:

- **TRL**: every strategy gains more in ours. What padding costs is near, but {left:.0%} of what the published step
  takes without padding is not in ours: it reaches 8 % MFU there. It grows with true tokens and not with padding. The
  source does not say what it is; a loop that works through samples one by one would look like this.
- **transformers**: a step without padding takes {whole:.2f} times as long in ours, padding {dear:.1f} times. Why is not
  understood: a card that reaches more of its datasheet would look like this, and the catalog has none of its kind.
  `batch_rebalance` has {published:+.1%} beside `group_by_length`, in ours {ours:+.1%}: it pads more, since it sorts 32
  samples where the other sorts 400, and saves waiting, which is worth less than that where padding is dear.
- **UniRL**: what siblings share decides. With what they share in DAPO's own rollouts ours is near; the source does not
  say what its rollouts have.
- **SkyRL**: how long padded rows are decides. As long as the longest of their microbatch, ours is near.
"""
PAPER = """Every figure of [paper.toml](paper.toml), by the program of [its page](paper.md), which says what the misses
are: points of speedups and of idle, seconds in percent.
"""
