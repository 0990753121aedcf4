"""`odcsim compare`: every balancer under every sync, as a table an engineer can act on."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.decide.words import COMPARE
from odcsim.errors import InputError
from odcsim.option import BATCH, MACHINES
from odcsim.support.command import rare
from odcsim.support.progress import progress

if TYPE_CHECKING:
    from odcsim.decide.comparison import Comparison
    from odcsim.decide.levers import Levers
    from odcsim.decide.setting import Setting

    Swept = Sequence[tuple[int, Comparison]]


EXAMPLE = "odcsim compare longalign --model r1-distill-qwen-1.5b --gpu a100 --devices 8 --minibatch 4"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="predict idle time and speed of every balancer and sync",
        examples=(EXAMPLE,),
        description="Predict idle time, throughput, peak memory and cost for your sequence lengths, for each balancer "
        "under collectives and under on-demand communication.",
    )
    groups = options.add_question(parser, COMPARE)
    sweep = groups[BATCH].add_argument("--sweep-max-tokens", nargs="?", const="", metavar="T,T,...")
    sweep.help = "also compare at these microbatch token limits (default: 1 to 8 times the longest sample)"
    rare(sweep)
    options.add_rate(groups[MACHINES], "measured throughput of all GPUs together, to scale the predicted times")
    rare(parser.add_argument("--memory", action="store_true", help="also print what takes memory in the best rows"))
    form = parser.add_mutually_exclusive_group()
    rare(form.add_argument("--wide", action="store_true", help="print more columns"))
    form.add_argument("--csv", action="store_true", help="print all rows and columns as CSV")
    form.add_argument("--json", action="store_true", help="print the inputs and all rows as JSON")
    options.add_levers(parser)
    parser.add_argument("--html", metavar="FILE", help="also write a report with figures")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.comparison import compare, limits, pairs, sweep_max_tokens
    from odcsim.decide.levers import levers

    setting = _setting(args)
    with progress("comparing", len(pairs(setting))) as advance:
        comparison = compare(setting, advance=advance)
    swept: tuple[tuple[int, Comparison], ...] = ()
    if args.sweep_max_tokens is not None:
        points = limits(setting.trace.fullest, args.sweep_max_tokens)
        with progress("sweeping", len(points)) as advance:
            swept = sweep_max_tokens(setting, points, advance=advance)
    quiet = args.json or args.csv
    found = levers(comparison) if args.levers or not quiet or args.html is not None else None
    if args.html is not None:
        from odcsim.show.pages.report import write_report

        write_report(comparison, args.html, swept, found=found)
    if quiet:
        print_rows(comparison, swept, as_csv=args.csv, found=found if args.levers else None)
    else:
        show(comparison, swept, html=args.html, terms=args.memory, wide=args.wide, found=found)
    if smallest := misfit(comparison):
        print(f"odcsim compare: {smallest}", file=sys.stderr)


def _setting(args: argparse.Namespace) -> "Setting":
    """With seconds by which the run that is asked about does as many tokens as it was measured to do."""
    setting, rate = options.setting_of(args), args.measured_tokens_per_second
    if rate is None:
        return setting
    from odcsim.decide import calibrate

    if args.profile is not None:
        fix = "a profile holds measured times already: leave one of the two out"
        raise InputError("--measured-tokens-per-second with a profile", where=args.profile, fix=fix)
    reached, found = calibrate.reaching(setting, rate)
    for line in (calibrate.taken(found), *calibrate.doubtful(found)):
        print(f"odcsim compare: {line}", file=sys.stderr)
    return reached


def misfit(comparison: "Comparison") -> str:
    """In words, where no row fits: what is printed may be for a program."""
    if comparison.memory_limit is None or not all(r.memory_fits is False for r in comparison.rows):
        return ""
    row = min(comparison.rows, key=lambda r: r.memory_bytes or 0)
    needed, there = ((n or 0) / 1e9 for n in (row.memory_bytes, comparison.memory_limit))
    return f"nothing fits: {row.name}, which needs least, needs {needed:.0f} GB of {there:.0f} GB"


def print_rows(comparison: "Comparison", swept: "Swept", *, as_csv: bool, found: "Levers | None" = None) -> None:
    """For programs."""
    if as_csv:
        options.write_csv(row for one in (comparison, *(other for _, other in swept)) for row in one.records())
        return
    content = comparison.as_json()
    if swept:
        told = [(limit, other.as_json()) for limit, other in swept]
        content["sweep"] = [
            {"max_tokens": limit, **{name: one[name] for name in ("rows", "run") if name in one}} for limit, one in told
        ]
    options.print_json(content | ({"levers": found.as_json()} if found else {}))


def show(
    comparison: "Comparison",
    swept: "Swept" = (),
    *,
    html: str | None,
    terms: bool = False,
    wide: bool = False,
    found: "Levers | None" = None,
) -> None:
    """Print the comparison, with its levers. `html`: the report that was written of it."""
    from odcsim.decide.decision import decide
    from odcsim.say import comparison_words, terminal

    terminal.show(comparison_words.answer(comparison, wide=wide, levers=found))
    if terms:
        terminal.show_table(comparison_words.memory_table(decide(comparison)))
    if swept:
        terminal.show_table(comparison_words.limits_table(swept))
    if html is not None:
        print(f"\nreport with pictures: {html}")
