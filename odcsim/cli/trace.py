"""`odcsim trace`: look at lengths, draw new ones, list the named traces."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.option import values_of
from odcsim.question import FIELDS, LENGTHS

if TYPE_CHECKING:
    from odcsim.reading.limits import Cut
    from odcsim.reading.stats import TraceStats
    from odcsim.trace import Trace

SOURCE = (
    "file or folder, named trace, or spec such as fixed:length=4096; files: csv, tsv, txt, json, jsonl, npy, npz, "
    "parquet, arrow, idx, also .gz, or - for stdin; folders: save_to_disk, shards or rollouts"
)
BAR = 40


def add(commands: Any) -> None:
    trace = commands.add_parser(
        "trace",
        help="show, draw or list sequence lengths",
        description="Show statistics of sequence lengths, write or draw them, or list the traces that ship.",
    )
    actions = trace.add_subparsers(title="actions", metavar="ACTION", parser_class=type(trace), required=True)
    info = actions.add_parser(
        "info",
        help="show count, mean, percentiles, shares by length, truncation loss",
        description="Show statistics of sequence lengths: count, mean, percentiles, shares of samples and of tokens by "
        "length, what truncation would lose, and the command to go on with.",
        examples=("odcsim trace info sharegpt --cutoff 4096",),
    )
    info.add_argument("trace", metavar="TRACE", help=SOURCE)
    info.add_argument("--column", metavar="C", help="the file's column with the lengths (found by name)")
    options.add_fields(info, [name for name in LENGTHS if name not in ("trace", "column")])
    info.add_argument(
        "--against", metavar="OTHER", help="another trace: test whether both may have the same distribution"
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    make = actions.add_parser(
        "make",
        help="write sequence lengths to a file: from another, or drawn",
        description="Write sequence lengths to a file: all of another file, or drawn from a named trace or spec.",
        examples=("odcsim trace make sharegpt --samples 1000 -o lengths.csv",),
    )
    make.add_argument("source", metavar="TRACE", help=SOURCE)
    few = "samples to draw (10000); of a file all, in its order, unless N or a seed is given"
    make.add_argument("--samples", metavar="N", type=options.whole, help=few)
    make.add_argument("--seed", metavar="S", type=int, help="random seed (0)")
    options.add_fields(make, [name for name in LENGTHS if name != "trace"])
    make.add_argument(
        "-o", dest="output", metavar="FILE", required=True, help="file to write: FILE.csv, .jsonl, .npy or .parquet"
    )
    make.set_defaults(run=_make, writes="lengths")
    listing = actions.add_parser(
        "list",
        help="list the traces that ship with odcsim",
        description="List the traces of sequence lengths that ship with odcsim.",
        examples=("odcsim trace list",),
    )
    listing.set_defaults(run=_list)


def _info(args: argparse.Namespace) -> None:
    from odcsim.reading.limits import cut
    from odcsim.reading.stats import describe

    trace = options.read_lengths(args, args.trace)
    other = None if args.against is None else options.read_lengths(args, args.against)
    stats, lost = describe(trace), None if args.cutoff is None else cut(trace, args.cutoff)
    if args.json:
        return print(_json(trace, stats, lost, other))
    print(_text(trace, stats, lost))
    if other is not None:
        return print("", *_against(trace, other), sep="\n")
    words = "Next, how long a run takes and who waits for the longest; put your model, GPUs and batch:"
    return print("", words, f"  {_next(args, trace)}", sep="\n")


def _next(args: argparse.Namespace, trace: "Trace") -> str:
    """The command to go on with, of the same lengths, and of no more samples than there are."""
    import shlex

    devices = min(8, trace.bundles.size)
    step = {"devices": devices, "minibatch": min(4, trace.bundles.size // devices)}
    given = {name: value for name, value in values_of(args, LENGTHS).items() if value != FIELDS[name].usual}
    asked = given | {"trace": args.trace, "model": "qwen3-8b", "gpu": "h100"} | step
    words = [word for name, value in asked.items() if name != "trace" for word in FIELDS[name].argv(value)]
    return shlex.join(["odcsim", "compare", args.trace, *words])


def _json(trace: "Trace", stats: "TraceStats", lost: "Cut | None", other: "Trace | None") -> str:
    import json
    from dataclasses import asdict

    from odcsim.reading.stats import PERCENTILES

    shown = {"schema": 1, "name": trace.name, "origin": trace.origin, "count": stats.count, "tokens": stats.tokens}
    shown |= {"mean": stats.mean, "cv": stats.cv, "min": stats.shortest, "max": stats.longest}
    shown |= {f"p{p:g}": value for p, value in zip(PERCENTILES, stats.percentiles, strict=True)}
    shown |= {"longest_hundredth": stats.tail, "bands": _bands(trace)}
    shown |= {
        "pairs": None if trace.unit == "sample" else trace.bundles.size,
        "loss_share": stats.loss_share,
        "steps": stats.steps,
        "groups": stats.groups,
    }
    shown |= {"cutoff": None if lost is None else asdict(lost)}
    if other is not None:
        from odcsim.reading.stats import likeness

        test = likeness(trace, other)
        known = {"name": other.name, "origin": other.origin, "count": other.size, "apart": test.apart}
        shown["against"] = known | asdict(test)
    return json.dumps(shown, indent=2)


def _against(trace: "Trace", other: "Trace") -> list[str]:
    """How far both are apart, beside chance; and whether what was found with the other holds here."""
    from odcsim.reading.stats import likeness
    from odcsim.support import tables
    from odcsim.support.numbers import from_to, ratio

    test = likeness(trace, other)
    rows = [("", "here", "there", "ratio", "by chance alone")]
    for name, figure in test.figures.items():
        chance = from_to(1 / figure.chance, figure.chance, ratio, " - ")
        rows.append((name, f"{figure.this:,.0f}", f"{figure.that:,.0f}", f"{figure.ratio:.2f}", chance))
    words = f"At no length do the shares of samples up to it differ by more than {test.distance:.1%}"
    words += f" (Kolmogorov-Smirnov; by chance alone, {test.distance_by_chance:.1%})."
    if test.apart:
        names = ", ".join(test.apart).replace("distance", "shares")
        reply = f"Further apart than chance makes them: {names}. What was found with {other.name} need not hold "
        reply += "here: ask again with these lengths."
    else:
        reply = "Chance alone may make all of this: so many samples do not tell these lengths from those of "
        reply += f"{other.name}, and what was found with it stands."
    head = f"against {other.name} ({other.size:,} samples)"
    return [head, *tables.lines(rows, (-10, 12, 12, 8, 18)), words, reply]


def _text(trace: "Trace", stats: "TraceStats", lost: "Cut | None") -> str:
    from odcsim.reading.limits import cut_lines
    from odcsim.reading.stats import PERCENTILES, tail
    from odcsim.support.numbers import counted

    pairs = "" if trace.unit == "sample" else f"  (of {trace.in_words})"
    rows = [("trace", trace.name), ("origin", trace.origin), ("samples", f"{stats.count:,}{pairs}")]
    rows += [("tokens", f"{stats.tokens:,}"), ("mean", f"{stats.mean:,.1f}"), ("shortest", f"{stats.shortest:,}")]
    rows += [(f"p{p:g}", f"{value:,.0f}") for p, value in zip(PERCENTILES, stats.percentiles, strict=True)]
    few = f"{tail(trace):,} of {counted(stats.count, 'sample')}"
    rows += [("longest", f"{stats.longest:,}"), ("longest 1%", f"{stats.tail:.1%} of tokens  ({few})")]
    rows += [("cv", f"{stats.cv:.3f}  (standard deviation / mean)")]
    if stats.loss_share is not None:
        rows.append(("loss share", f"{stats.loss_share:.1%} of tokens"))
    if stats.steps is not None:
        rows.append(("RL steps", f"{stats.steps:,}"))
    if stats.groups is not None:
        rows.append(("RL groups", f"{stats.groups:,}  ({stats.count / stats.groups:.3g} samples each)"))
    lines = [f"{name:<10}  {value}" for name, value in rows]
    return "\n".join([*lines, *([] if lost is None else cut_lines(trace, lost.at)), "", *_histogram(trace)])


def _histogram(trace: "Trace") -> list[str]:
    """Shares of samples, with a bar, and of tokens, by length."""
    from odcsim.support import tables

    bands = _bands(trace)
    wide, top = len(f"{bands[-1]['to']:,}"), max(band["samples"] for band in bands)
    tokens = sum(band["tokens"] for band in bands)
    rows = [("length in tokens", "", "samples", "tokens")]
    for band in bands:
        shares = f"{band['samples'] / trace.size:.2%}", f"{band['tokens'] / tokens:.2%}"
        rows.append((f"{band['from']:>{wide},} - {band['to']:<{wide},}", _bar(band["samples"] / top), *shares))
    return tables.lines(rows, (-max(16, 2 * wide + 3) - 2, -BAR, 9, 9))


def _bands(trace: "Trace") -> list[dict[str, int]]:
    from odcsim.reading.stats import histogram

    edges, *shares = histogram(trace)
    names, columns = ("from", "to", "samples", "tokens"), (edges[:-1], edges[1:] - 1, *shares)
    return [dict(zip(names, band, strict=True)) for band in zip(*(of.tolist() for of in columns), strict=True)]


def _bar(share: float) -> str:
    """Eighths of a block where the terminal can show them, so that a thin tail stays visible."""
    if "utf" not in (sys.stdout.encoding or "").lower():
        return "#" * round(share * BAR) or ("." if share else "")
    eighths = max(round(share * BAR * 8), 1 if share else 0)
    return "█" * (eighths // 8) + ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]


def _make(args: argparse.Namespace) -> None:
    from pathlib import Path

    from odcsim.reading import draw, is_file, limits
    from odcsim.reading.saving import columns, save
    from odcsim.trace import Trace

    if is_file(args.source) and args.samples is None and args.seed is None:
        trace = options.read_lengths(args, args.source, cutoff=args.cutoff)
        save(columns(trace), Path(args.output))
        print(f"wrote lengths of {trace.in_words} to {args.output} ({trace.origin})")
        return
    source = options.read_lengths(args, args.source, without=("truncate", "drop_over"))
    drawn = draw(source if is_file(args.source) else args.source, args.samples, args.seed)
    options.tell_lengths(Trace(args.source, drawn), args.cutoff)
    trace, cost = limits.within(Trace(args.source, drawn), args.truncate, args.drop_over)
    save({"length": trace.lengths}, Path(args.output))
    print(f"wrote {len(trace.lengths):,} lengths to {args.output}{f' ({cost})' if cost else ''}")


def _list(_args: argparse.Namespace) -> None:
    from odcsim.reading import named
    from odcsim.reading.stats import describe
    from odcsim.support import tables

    rows = [("NAME", "KIND", "SAMPLES", "MEAN", "P99", "LONGEST", "  ORIGIN")]
    for name in named.names():
        stats, about = describe(named.load(name)), named.about(name)
        lengths = f"{stats.mean:,.0f}", f"{stats.percentiles[3]:,.0f}", f"{stats.longest:,}"
        rows.append((name, about.kind, f"{stats.count:,}", *lengths, f"  {about.origin}"))
    print(*tables.lines(rows, (-14, -17, 8, 9, 9, 9, 0)), sep="\n")
