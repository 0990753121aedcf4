"""The pages that docs/studies/reproduce_paper.py writes: published figures beside ours, misses in plain sight."""

from collections.abc import Iterable, Sequence
from datetime import date
from statistics import median
from typing import TYPE_CHECKING

from page_table import table
from paper_words import (
    CELLS,
    COSTS,
    HYBRID,
    INTRO,
    LINES,
    MEASURED,
    NODES,
    NOTES,
    POINTS,
    SOURCES,
    STATED,
    VARIANTS,
    WHY,
)

if TYPE_CHECKING:
    from paper_costs import Charged
    from reproduce_paper import Cell, Hybrid, Line, Paper, Place, Variant

SHARES = (0.03, 0.05, 0.10)
COLUMNS = ("setting", "model", "devices", "trace", "minibatch", "sync + balancer", "figure", "published", "ours", "off")
KINDS = {"gain": "speedup over on-demand + lb-micro"}
GAINS = (
    ("sorted-slice", "collective"),
    ("local-sort", "on-demand"),
    ("lb-micro", "on-demand"),
    ("lb-mini", "on-demand"),
)


def page(paper: "Paper", day: date) -> str:
    parts = [
        headline(paper),
        summary_lines(paper.cells),
        "\n" + nodes_line(paper) + "\n\n" + SOURCES,
        POINTS,
        cells_table([c for c in paper.cells if not c.stated]),
        "\n" + NOTES,
        MEASURED.format(day=day.isoformat(), draws=paper.draws),
        why(paper),
    ]
    return "\n".join(parts).rstrip() + "\n"


def settings(paper: "Paper", day: date) -> str:
    """The appendix: setting by setting."""
    parts = [
        CELLS.format(day=day.isoformat()),
        STATED,
        cells_table([c for c in paper.cells if c.stated]),
        "\n## What an engine's own seconds would explain\n\n" + costs_words(paper),
        costs_table(paper.charged),
        "\n## Hybrid over full sharding, under on-demand\n\n" + hybrid_words(paper),
        hybrid_table(paper),
        "\n## What one input changes\n\n" + VARIANTS,
        variants_table([c for c in paper.cells if not c.stated], paper.variants),
        "\n" + LINES,
        lines_table(paper.lines),
        "\n## Sources\n",
        *(f"- {name}: [{s['title']}]({s['url']})" for name, s in paper.sources.items()),
    ]
    return "\n".join(parts) + "\n"


def headline(paper: "Paper") -> str:
    golden = {c.held[0]: c for c in paper.cells if c.name == "golden setting"}
    far, worst = on_nodes(paper), max(paper.cells, key=lambda c: abs(c.off))
    signs = sum(one.cell.right for one in far)
    return INTRO.format(
        count=len(paper.cells),
        within5=sum(abs(c.off) <= 0.05 for c in paper.cells),
        within10=sum(abs(c.off) <= 0.10 for c in paper.cells),
        published_mini=golden["lb-mini"].published,
        published_micro=golden["lb-micro"].published,
        mini=golden["lb-mini"].ours,
        micro=golden["lb-micro"].ours,
        nodes=len(far),
        right=signs,
        wrong=len(far) - signs,
        plain=median([abs(one.cell.points) for one in far]),
        worst=f"{worst.name}, {worst.pair}, {worst.kind}: published {number(worst.published, worst.kind)}, "
        f"ours {number(worst.ours, worst.kind)}",
    )


def cells_table(cells: Iterable["Cell"]) -> str:
    head = (*COLUMNS, "points", "sign", "source")
    return table(head, (cell_row(c) for c in cells))


def cell_row(c: "Cell") -> tuple[str, ...]:
    where = ("", "", "", "") if c.place is None else _where(c.place)
    values = (number(c.published, c.kind), number(c.ours, c.kind), f"{round(c.off, 3) + 0.0:+.1%}")
    return (c.name, *where, c.pair, KINDS.get(c.kind, c.kind), *values, points(c), sign(c), c.source)


def points(c: "Cell") -> str:
    return "" if c.kind == "seconds" else f"{round(c.points, 1) + 0.0:+.1f}"


def sign(c: "Cell") -> str:
    """Of a speedup that is one: whether ours goes the same way."""
    if c.kind not in ("speedup", "gain") or c.stated or c.published == 1:
        return ""
    return "right" if c.right else "WRONG"


def _where(place: "Place") -> tuple[str, str, str, str]:
    return place.model, f"{place.devices} {place.gpu}", place.trace, str(place.minibatch)


def number(value: float, kind: str) -> str:
    return {"speedup": f"{value:.2f}", "gain": f"{value:.2f}", "idle": f"{value:.0%}", "seconds": f"{value:.3g} s"}[
        kind
    ]


def summary_lines(cells: Sequence["Cell"]) -> str:
    rows = []
    for name, some in (
        ("speedups and idle of one setting", [c for c in cells if c.place and not c.stated and c.kind != "seconds"]),
        ("largest of many settings", [c for c in cells if c.place is None]),
        ("seconds", [c for c in cells if c.kind == "seconds"]),
        ("stated in words (minibatch 1)", [c for c in cells if c.stated]),
        ("all", list(cells)),
    ):
        worst = max(some, key=lambda c: abs(c.off))
        met = (str(sum(abs(c.off) <= share for c in some)) for share in SHARES)
        rows.append((name, str(len(some)), *met, f"{worst.off:+.1%}: {worst.name}, {worst.pair}"))
    return table(("figures", "count", *(f"within {share:.0%}" for share in SHARES), "worst"), rows)


def on_nodes(paper: "Paper") -> list["Charged"]:
    return [one for one in paper.charged if one.cell.place and one.cell.place.nodes > 1]


def nodes_line(paper: "Paper") -> str:
    """How far off speedups on several nodes are, and how many go the right way."""
    far = on_nodes(paper)
    plain, judged = ([abs(value) for value in of] for of in ([c.cell.points for c in far], [c.points for c in far]))
    signs = sum(one.cell.right for one in far)
    return NODES.format(
        count=len(far),
        plain=median(plain),
        largest=max(plain),
        judged=median(judged),
        right=signs,
        wrong=len(far) - signs,
    )


def costs_words(paper: "Paper") -> str:
    port = {name: _needed(paper, f"AMD's port, {name}") for name in ("one node", "several nodes")}
    found = {name.replace(" ", "_"): value for name, value in port.items()}
    moved = {name.replace("port, ", "").replace(" ", "_"): value for name, value in paper.unhidden.items()}
    return COSTS.format(
        odc=_needed(paper, "ODC, several nodes"),
        one=found["one_node"],
        several=found["several_nodes"],
        moved_one=moved["one_node"],
        moved_two=moved["two_nodes"],
    )


def _needed(paper: "Paper", group: str) -> float:
    return median([one.needed for one in paper.charged if one.group == group])


def costs_table(every: Sequence["Charged"]) -> str:
    head = ("engine", "setting", "minibatch", "sync + balancer", "published", "ours", "points")
    return table((*head, "would need", "the others need", "ours with that", "points", "sign"), map(cost_row, every))


def cost_row(one: "Charged") -> tuple[str, ...]:
    c = one.cell
    assert c.place is not None
    went = "right" if (one.ours - 1) * (c.published - 1) > 0 else "WRONG"
    before = (number(c.published, c.kind), number(c.ours, c.kind), points(c))
    after = (f"{one.needed:+.2f} s", f"{one.seconds:.2f} s", f"{one.ours:.2f}", f"{one.points:+.1f}", went)
    return (one.group, c.name, str(c.place.minibatch), c.pair, *before, *after)


def hybrid_words(paper: "Paper") -> str:
    ran = [
        h for h in paper.hybrids if not h.place.longest and not (h.place.devices > 16 and h.place.max_tokens < 65536)
    ]
    return HYBRID.format(most=max(max(h.times.values()) for h in ran))


def hybrid_table(paper: "Paper") -> str:
    head = ("model", "devices", "trace", "longest sample", "minibatch", "on-demand + lb-micro", "on-demand + lb-mini")
    return table(head, map(hybrid_row, paper.hybrids))


def hybrid_row(one: "Hybrid") -> tuple[str, ...]:
    place = one.place
    longest = f"{place.longest:,}, shrunk" if place.longest else f"{place.max_tokens:,}"
    times = (f"{value:.2f}" for value in one.times.values())
    return place.model, f"{place.devices} {place.gpu}", place.trace, longest, str(place.minibatch), *times


def variants_table(points: Sequence["Cell"], variants: Sequence["Variant"]) -> str:
    names = {c.name for variant in variants for c in variant.cells}
    golden = [c for c in points if c.name in names]
    head = ("changed", *(f"{c.pair}, {c.kind}, minibatch {c.place.minibatch}" for c in golden if c.place))
    rows = [("published", *(number(c.published, c.kind) for c in golden))]
    rows += [("nothing: ours", *(number(c.ours, c.kind) for c in golden))]
    rows += [(v.name, *(number(c.ours, c.kind) for c in v.cells)) for v in variants]
    return table(head, rows)


def lines_table(lines: Sequence["Line"]) -> str:
    names = (f"{sync} + {balancer}" for balancer, sync in GAINS)
    head = ("model", "devices", "trace", "minibatch", "idle, collective + lb-micro", *names, "transfers exposed")
    return table(head, (line_row(line) for line in lines))


def line_row(line: "Line") -> tuple[str, ...]:
    reference, mini = line.rows["lb-micro", "collective"], line.rows["lb-mini", "on-demand"]
    gains = []
    for pair in GAINS:
        ends = [rows[pair].speedup for rows in line.ends] if pair[1] == "on-demand" else []
        span = f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends and f"{ends[0]:.2f}" != f"{ends[1]:.2f}" else ""
        gains.append(f"{line.rows[pair].speedup:.2f}{span}")
    exposed = (f"{row.idle_parts['gather'] + row.idle_parts['push']:.1%}" for row in (reference, mini))
    return (*_where(line.place), f"{reference.idle:.0%}", *gains, " / ".join(exposed))


def why(paper: "Paper") -> str:
    """Misses explained as far as figures go that are at hand; computed where they are computed."""
    seconds = [c for c in paper.cells if c.kind == "seconds" and c.place and c.place.devices == 16]
    quick, slow = sorted(seconds, key=lambda c: c.published)
    equal = [line.rows["lb-micro", "on-demand"].speedup or 0.0 for line in paper.lines if line.group == "RL"]
    longer, other = (c.published / c.ours for c in (quick, slow))
    return WHY.format(longer=longer, other=other, equal=max(equal))
