"""`odcsim check`: whether a plan hangs, runs out of its limit or shifts the loss, with an exit status for CI."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.errors import InputError
from odcsim.question import FIELDS
from odcsim.recipe import CHOICES
from odcsim.support.numbers import counted

if TYPE_CHECKING:
    from odcsim.checking.batches import Batch

HEAD = 1 << 20  # characters of a schedule file's first line


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="whether a plan hangs or shifts the loss: schedules of ours and batches of other trainers",
        description="Hold minibatches against what hangs a run or shifts its loss. Exit status 1 where something is "
        "found that does, 0 where nothing is, 2 where the file is no plan.",
    )
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help="a schedule file; JSON of index lists, [device][microbatch][sample], with a list around several "
        "minibatches; batches in a row with --devices; a dataset with TRL's seq_lengths; - for stdin",
    )
    parser.add_argument("--lengths", metavar="FILE", help="lengths of the samples, whose rows the plan numbers")
    parser.add_argument("--column", metavar="C", help="the column of that file that holds the lengths")
    parser.add_argument("--skip-bad", action="store_true", help=FIELDS["skip_bad"].help)
    parser.add_argument(
        "--images", metavar="C", help="the column of that file that counts a sample's images, or says true or false"
    )
    parser.add_argument("--max-tokens", type=options.whole, default=0, metavar="T", help="limit of a microbatch")
    parser.add_argument("--devices", type=options.whole, default=0, metavar="N", help="batches in a row: dealt in turn")
    parser.add_argument(
        "--accumulate", dest="each", type=options.whole, default=1, metavar="M", help="batches of a device and step"
    )
    parser.add_argument(
        "--sync", choices=CHOICES["sync"].values, help="(on-demand for its balancers' schedules, else collective)"
    )
    parser.add_argument("--strict", action="store_true", help="warnings, too, exit with 1")
    parser.add_argument("--json", action="store_true", help="print every finding as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from odcsim.checking.batches import Dealing
    from odcsim.checking.findings import ERROR, NOTE, Rules, check
    from odcsim.checking.plan_file import read

    batches = read(args.plan, Dealing(args.devices, args.each))
    made_for = "" if args.sync else _made_for(args.plan)
    args.sync = args.sync or made_for or "collective"
    size = 0
    if args.images is not None and args.lengths is None:
        raise InputError(f"--images {args.images} without --lengths", fix="give the file that has the column")
    if args.lengths is not None:
        batches, size = _with_lengths(batches, args)
    findings = check(batches, Rules(args.sync, args.max_tokens, size))
    wrong = [f for f in findings if f.severity == ERROR or (args.strict and f.severity != NOTE)]
    if args.json:
        _print_json(args, batches, findings, ok=not wrong)
    else:
        for finding in findings:
            print(finding.line)
        print(_summary(args.plan, batches, len(wrong), f", {args.sync}" if made_for else ""))
    return int(bool(wrong))


def _with_lengths(batches: "list[Batch]", args: argparse.Namespace) -> "tuple[list[Batch], int]":
    import numpy as np

    from odcsim.checking.batches import with_images, with_lengths
    from odcsim.reading import load
    from odcsim.reading.images import images
    from odcsim.reading.tally import in_places

    trace = in_places(load(args.lengths, column=args.column, skip_bad=args.skip_bad), args.lengths)
    options.tell_left_out(trace)

    def at(sample: int) -> int:
        if sample >= trace.size:
            raise IndexError(sample)
        return int(trace.rows(np.array([sample]))[0])

    def row(sample: int) -> tuple[int, int | None]:
        return int(trace.lengths[at(sample)]), None if trace.loss is None else int(trace.loss[at(sample)])

    found = with_lengths(batches, row, args.plan)
    if args.images is not None:
        seen = images(args.lengths, args.images, trace)
        found = with_images(found, lambda sample: bool(seen[at(sample)]))
    return found, trace.size


def _print_json(args: argparse.Namespace, batches: "list[Batch]", findings: Any, *, ok: bool) -> None:
    from dataclasses import asdict

    content = {"schema": 1, "plan": args.plan, "sync": args.sync, "minibatches": len(batches), "ok": ok}
    options.print_json(content | {"findings": [asdict(finding) for finding in findings]})


def _summary(plan: str, batches: "list[Batch]", wrong: int, under: str) -> str:
    counts = [len(device) for batch in batches for device in batch.devices]
    spread = "" if min(counts) == max(counts) else f"{min(counts)} to "
    held = f"{counted(len(batches), 'minibatch')} on {counted(len(batches[0].devices), 'device')}"
    shape = f"{held}, {spread}{counted(max(counts), 'microbatch')} each{under}"
    return f"{plan}: {shape}: " + ("nothing that hangs it" if not wrong else counted(wrong, "finding"))


def _made_for(path: str) -> str:
    """The sync that a schedule file of ours is for, where its balancer is for no other."""
    import json

    from odcsim.balance import BALANCERS

    try:
        with Path(path).open(encoding="utf-8") as file:
            head = json.loads(file.readline(HEAD))
        name = head.get("balancer")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    return "on-demand" if any(b.name == name and b.free_counts for b in BALANCERS) else ""
