"""`odcsim advise`: from a dataset to what to rent for how long, how to run it, and what it costs."""

import argparse
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.decide.words import ADVISE
from odcsim.option import MACHINES
from odcsim.support import tables
from odcsim.support.numbers import TIMES, human, listed

if TYPE_CHECKING:
    from odcsim.decide.advice import Advice, Offer, Wish

EXAMPLE = (
    "odcsim advise sharegpt --drop-over 32k --model qwen3-8b --gpus h100,a100 --devices 8,16 --global-batch 256 "
    "--price h100=2.5,a100=1.3"
)
HEAD = ("GPUs", "time", "90 %", "dollars", "90 %")
UNPRICED = ("GPUs", "time", "90 %", "GPU-hours", "90 %")
WIDTHS = (-16, 13, 22, 10, 18)
LINE, INDENT = 79, "    "


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "advise",
        help="choose GPUs and settings for a training run: hours, dollars",
        examples=(EXAMPLE,),
        description="Say which GPUs to rent, how many, how long training takes and what it costs. For each kind and "
        "number of GPUs it searches sync, balancer, token limit, sharding and activation checkpointing that fit "
        "memory.",
    )
    groups = options.add_question(parser, ADVISE)
    machines = groups[MACHINES]
    machines.add_argument("--gpus", type=listed, required=True, metavar="G,G", help="GPU types to compare: h100,a100")
    machines.add_argument(
        "--devices", type=_numbers, required=True, metavar="N,N", help="numbers of GPUs to compare: 8,16,64"
    )
    machines.add_argument(
        "--price", type=listed, default=(), metavar="G=P,G=P", help="dollars per GPU-hour: h100=2.5,a100=1.3"
    )
    parser.add_argument("--deadline", type=_time, metavar="T", help="longest training time, such as 12h or 90min")
    parser.add_argument("--budget", type=options.amount, metavar="P", help="most dollars to spend")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print all rows and columns as CSV")
    form.add_argument("--json", action="store_true", help="print the inputs and all rows as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page that plots time against cost")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.advice import searched
    from odcsim.support.progress import progress

    wish = _wish(args)
    with progress("searching", len(wish.gpus) * len(wish.devices)) as advance:
        advice = searched(wish, advance=advance)
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_advice

        write_advice(advice, args.html)
    if args.json:
        options.print_json(advice.as_json())
    elif args.csv:
        options.write_csv(advice.as_json()["rows"])
    else:
        _show(advice)


def _show(advice: "Advice") -> None:
    from odcsim.decide import advice_words

    wish = advice.wish
    tried = sum(offer.ways for offer in advice.offers)
    print(f"{advice_words.question(wish)}, {tried:,} ways to run\n")
    if advice.offers:
        priced = all(offer.dollars is not None for offer in advice.offers)
        print(*tables.lines([HEAD if priced else UNPRICED], WIDTHS), sep="\n")
        for offer in advice.offers:
            print(*_lines(offer, "" if offer.within(wish) else "  *"), sep="\n")
        if any(not offer.within(wish) for offer in advice.offers):
            print(f"* not{advice_words.limits(wish)}")
    for refused in advice.refused:
        print(f"{refused.name}: {refused.why}")
    print()
    print(*advice_words.sentences(advice), sep="\n")


def _lines(offer: "Offer", mark: str) -> list[str]:
    """Two for each: what it comes to; and how it runs, its memory, and how much of the devices is used."""
    from odcsim.results import capacity
    from odcsim.results.summary import COLUMNS

    paid = "gpu_hours" if offer.dollars is None else "dollars"
    names = ("time", "time between", paid, f"{paid} between")
    row = (f"{offer.name}{mark}", *(COLUMNS[name].text(offer.row) for name in names))
    mfu = f", MFU {COLUMNS['mfu'].text(offer.row)}" if offer.row.mfu is not None else ""
    how = f"{offer.chosen.way.how}; {capacity.told(offer)}, idle {COLUMNS['idle'].text(offer.row)}{mfu}"
    return [*tables.lines([row], WIDTHS), *wrap(how, LINE, initial_indent=INDENT, subsequent_indent=INDENT)]


def _wish(args: argparse.Namespace) -> "Wish":
    from odcsim.decide.advice import wished

    question = options.read_question(args, devices=1, price=None)
    return wished(question, args.gpus, args.devices, args.price, args.deadline, args.budget)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(options.whole(word) for word in listed(text))


def _time(text: str) -> float:
    value = human(text, TIMES)
    if not value:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time, such as 12h or 90min")
    return float(value)
