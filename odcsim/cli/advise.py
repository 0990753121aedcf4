"""`odcsim advise`: from a dataset to what to rent for how long, how to run it, and what it costs."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.decide.words import ADVISE
from odcsim.option import BATCH, MACHINES
from odcsim.support.numbers import TIMES, human, listed

if TYPE_CHECKING:
    from odcsim.decide.advice import Wish

EXAMPLE = (
    "odcsim advise sharegpt --drop-over 32k --model qwen3-8b --gpus h100,a100 --devices 8,16 --global-batch 256 "
    "--price h100=2.5,a100=1.3"
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "advise",
        help="choose GPUs and settings for a training run: hours, dollars",
        examples=(EXAMPLE,),
        description="Say which GPUs to rent, how many, how long training takes and what it costs. For each kind and "
        "number of GPUs it searches sync, balancer, token limit, sharding and activation checkpointing that fit "
        "memory.",
    )
    groups = options.add_question(parser, ADVISE, own=("global_batch",))
    machines = groups[MACHINES]
    machines.add_argument("--gpus", type=listed, required=True, metavar="G,G", help="GPU types to compare: h100,a100")
    machines.add_argument(
        "--devices", type=_numbers, required=True, metavar="N,N", help="numbers of GPUs to compare: 8,16,64"
    )
    machines.add_argument(
        "--price", type=listed, default=(), metavar="G=P,G=P", help="dollars per GPU-hour: h100=2.5,a100=1.3"
    )
    groups[BATCH].add_argument(
        "--global-batch", type=_numbers, required=True, metavar="B,B",
        help="samples per optimizer step, on all GPUs together; several: to choose from"
    )  # fmt: skip
    parser.add_argument("--deadline", type=_time, metavar="T", help="longest training time, such as 12h or 90min")
    parser.add_argument("--budget", type=options.amount, metavar="P", help="most dollars to spend")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print all rows and columns as CSV")
    form.add_argument("--json", action="store_true", help="print the inputs and all rows as JSON")
    options.add_levers(parser)
    parser.add_argument("--html", metavar="FILE", help="also write a page that plots time against cost")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.advice import searched
    from odcsim.decide.levers import levers
    from odcsim.say import advice_words, terminal
    from odcsim.support.progress import progress

    wish = _wish(args)
    with progress("searching", len(wish.gpus) * len(wish.devices) * len(wish.each())) as advance:
        advice = searched(wish, advance=advance)
    if args.csv:
        options.write_csv(advice.as_json()["rows"])
    found = None
    if args.html is not None or args.levers or not (args.json or args.csv):
        with progress("looking for what would cost less", 1):
            found = levers(advice) if advice.nearest else None
    if args.json:
        told = {"levers": found.as_json() if found else None} if args.levers else {}
        options.print_json(advice.as_json() | told)
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_advice

        write_advice(advice, args.html, found)
    if not (args.json or args.csv):
        terminal.show(advice_words.answer(advice, levers=found))


def _wish(args: argparse.Namespace) -> "Wish":
    from odcsim.decide.advice import wished

    question = options.read_question(args, devices=1, price=None, global_batch=args.global_batch[0])
    return wished(question, args.gpus, args.devices, args.price, args.deadline, args.budget, args.global_batch)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(options.whole(word) for word in listed(text))


def _time(text: str) -> float:
    value = human(text, TIMES)
    if not value:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time, such as 12h or 90min")
    return float(value)
