"""Tables for people. Columns keep their width when piped; colours and lines only on a terminal."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from odcsim import tables
from odcsim.command import counted
from odcsim.printing import colours, plain

if TYPE_CHECKING:
    from odcsim.questions.comparison import Comparison
    from odcsim.results.summary import Row

WIDE = 240  # columns when nobody's terminal sets a limit
BAR = 40


def show(rows: "Sequence[Row]") -> None:
    """All columns: one line per row, best first where they compare; below them those that do not fit, with what most of
    it is."""
    compared = any(r.speedup is not None for r in rows)
    priced = any(r.dollars is not None for r in rows)
    head = ["balancer", "sync", "idle", "waiting", "transfers", "other", "samples/s/GPU", "GPU-hours"]
    doubted = [] if all(r.certain for r in rows) else ["90 %"]
    head += [*doubted, *(["dollars", *doubted] if priced else []), "MFU"]
    hybrid = ["over full sharding"] if any(r.over_full is not None for r in rows) else []
    head += ["speedup", "95 %", "over best collective", *hybrid, "memory"] if compared else []
    cells = []
    for r in best_first(rows):
        price = [f"{r.dollars:,.2f}", *_between(doubted, r.dollars_low, r.dollars_high, ",.2f")] if priced else []
        hours = _between(doubted, r.gpu_hours_low, r.gpu_hours_high, ".3g")
        used = "" if r.mfu is None else f"{100 * r.mfu:.1f} %"
        cells.append(
            [r.balancer, r.sync, *_cells(r), *hours, *price, used, *(_compared(r, hybrid) if compared else [])]
        )
    if not any(row[head.index("MFU")] for row in cells):
        head, cells = _without("MFU", head, cells)
    show_texts(head, cells, names=2)


def show_few(rows: "Sequence[Row]", limit: float | None) -> None:
    """The five columns by which somebody decides, in 80 characters. `limit`: bytes of one GPU."""
    priced = any(r.dollars is not None for r in rows)
    head = [
        "balancer",
        "sync",
        "idle",
        "dollars" if priced else "GPU-hours",
        "speedup",
        "over best\ncollective",
        "memory",
    ]
    cells = []
    for r in best_first(rows):
        paid = _short(r.dollars or 0.0, ",.2f") if priced else _short(r.gpu_hours, ".3g")
        ratios = (f"{ratio:.2f}" for ratio in (r.speedup or 0, r.speedup_best_collective or 0))
        memory = memory_of(r.memory_bytes or 0, None if r.memory_fits is not False else limit)
        cells.append([r.balancer, r.sync, f"{100 * r.idle:.1f} %", paid, *ratios, memory])
    show_texts(head, cells, names=2, padding=(0, 0, 0, 1))


def best_first(rows: "Iterable[Row]") -> "list[Row]":
    """Those that do not fit last."""
    return sorted(rows, key=lambda r: (r.memory_fits is False, -(r.speedup or 0)))


def _short(value: float, form: str) -> str:
    return f"{value:{form}}" if value < 1000 else f"{value:,.0f}"


def memory_of(used: float, over: float | None) -> str:
    """`96 > 86 GB` where a GPU has less: `over`, in bytes. No wider than 12 characters, for 80 columns' sake."""
    if over is None:
        return f"{used / 1e9:.0f} GB"
    if round(used / 1e9) > round(over / 1e9):
        return f"{used / 1e9:.0f} > {over / 1e9:.0f} GB"
    return f"{used / 1e9:.1f}>{over / 1e9:.1f} GB"


def _between(wanted: list[str], low: float | None, high: float | None, form: str) -> list[str]:
    return [f"{low or 0:{form}} - {high or 0:{form}}"] if wanted else []


def _without(name: str, head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without a column that says nothing."""
    at = head.index(name)
    return head[:at] + head[at + 1 :], [row[:at] + row[at + 1 :] for row in rows]


def show_comparison(comparison: "Comparison", *, wide: bool = False) -> None:
    """What was asked, the rows, and the answer that the report gives in the same words."""
    from odcsim.questions import answer

    print(_asked(comparison))
    if wide:
        show(comparison.rows)
    else:
        show_few(comparison.rows, comparison.memory_limit)
    reply = answer.answer(comparison)
    lines = [answer.verdict(reply), *answer.misfit(comparison, reply), *answer.sentences(comparison, reply)]
    for line in [*lines, f"Cost: {comparison.setting.cost.profile.origin}."]:
        print(line)


def show_run(comparison: "Comparison", epochs: float) -> None:
    """The row to choose over the whole run, where one fits."""
    from odcsim.questions import answer
    from odcsim.questions.whole_run import WholeRun

    run, reply = WholeRun(comparison, epochs), answer.answer(comparison)
    if not reply.nothing_fits:
        print(run.sentence(reply))


def show_texts(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    names: int = 1,
    padding: tuple[int, int, int, int] = (0, 1, 0, 1),
) -> None:
    """Cells that are text already; so many columns name their row."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=padding)
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < names else "right", no_wrap=number < names)
    for row in rows:
        table.add_row(*(plain(cell, "\n") for cell in row))
    _console().print(table)


def _asked(comparison: "Comparison") -> str:
    from odcsim.questions.comparison import inputs

    setting, about = comparison.setting, inputs(comparison.setting)
    nodes = setting.cost.cluster.nodes
    where = f"{about['devices']} x {about['gpu']}" + (f" in {nodes} nodes" if nodes > 1 else "")
    where += ", hybrid sharding" if setting.cost.recipe.sharding == "hybrid" else ""
    trace = f"{about['trace']} ({about['trace_samples']:,} samples, longest {setting.trace.longest:,} tokens)"
    size = f"{counted(setting.minibatch, 'sample')} per device and step, at most {setting.limit:,} tokens in a "
    size += f"microbatch (the best of {setting.limits_tried} limits that fit)" if setting.limits_tried else "microbatch"
    model, drawn = f"{about['model']}{setting.cost.recipe.told}", counted(setting.minibatches, "minibatch")
    return f"{model} on {where}, {trace}, {size}, {drawn}"


def show_sweep(swept: "Sequence[tuple[int, Comparison]]") -> None:
    """A line per limit with the speedup of on-demand + lb-mini as a bar."""
    print("\nspeedup over collective + lb-micro at the same limit, as the limit of a microbatch grows:")
    rows = [("max tokens", "lb-micro", "lb-mini", "  memory", "  (both on-demand)")]
    best = max(c.row("lb-mini", "on-demand").speedup or 0 for _, c in swept)
    mark = "█" if "utf" in (sys.stdout.encoding or "").lower() else "#"
    for limit, c in swept:
        micro, mini = (c.row(b, "on-demand").speedup or 0 for b in ("lb-micro", "lb-mini"))
        bar = mark * round(BAR * max(0.0, mini - 1) / max(best - 1, 1e-9))
        memory = _memory(c.row("lb-mini", "on-demand"))
        rows.append((f"{limit:,}", f"{micro:.2f}", f"{mini:.2f}", f"  {memory}", f"  {bar}"))
    print(*tables.lines(rows, (12, 10, 10, -19, 0)), sep="\n")


def _cells(r: "Row") -> list[str]:
    parts = r.idle_parts
    waiting, transfers = parts["wait_inside"] + parts["wait_end"], parts["gather"] + parts["push"]
    shares = [f"{100 * share:.1f} %" for share in (r.idle, waiting, transfers, parts["other"])]
    return [*shares, f"{r.samples_per_second_per_device:.3g}", f"{r.gpu_hours:.3g}"]


def _compared(r: "Row", over: list[str]) -> list[str]:
    interval = f"{r.speedup_low:.2f} - {r.speedup_high:.2f}"
    over_full = ["" if r.over_full is None else f"{r.over_full:.2f}"] if over else []
    return [f"{r.speedup:.2f}", interval, f"{r.speedup_best_collective:.2f}", *over_full, _memory(r)]


def _memory(r: "Row") -> str:
    too_much = f" (too much: {r.largest_term})" if r.memory_fits is False else ""
    return f"{(r.memory_bytes or 0) / 1e9:.0f} GB{too_much}"


def show_memory(comparison: "Comparison") -> None:
    """The memory of the rows that the answer rests on, term by term."""
    from odcsim.questions import answer

    reply = answer.answer(comparison)
    rows = {answer.named(r): r.memory_terms or {} for r in (reply.reference, reply.rival, reply.best)}
    names = [name for name in reply.reference.memory_terms or {} if any(terms[name] for terms in rows.values())]
    head = ["memory per device, GB", *names, "together"]
    cells = [
        [row, *(f"{terms[n] / 1e9:.1f}" for n in names), f"{sum(terms.values()) / 1e9:.1f}"]
        for row, terms in rows.items()
    ]
    show_texts(head, cells)


def _console() -> Console:
    out: Any = colours()
    if out.isatty():
        return _Console(file=out, markup=False, emoji=False)
    return _Console(file=out, width=WIDE, no_color=True, markup=False, emoji=False, highlight=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Ours to tell, as wherever something is printed."""
        raise
