"""`odcsim advise`: from a dataset to what to rent for how long, how to run it, and what it costs."""

import argparse
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.question import MACHINES, QUESTION
from odcsim.recipe import ASKED, SEARCHED
from odcsim.support.numbers import TIMES, human

if TYPE_CHECKING:
    from odcsim.decide.advice.wish import Wish

MINIBATCHES = 96  # that stand for all of the run's
# What is searched or asked for in several values; and what holds of rows that are compared alone.
DECIDED = (
    "gpu", "profile", "devices", "devices_per_node", "minibatch", "max_tokens", "split_overhead", "price", "whole",
    "field", "executor",
)  # fmt: skip
EXAMPLE = (
    "odcsim advise sharegpt --drop-over 32k --model qwen3-8b --gpus h100,a100 --devices 8,16 --global-batch 256 "
    "--price h100=2.5,a100=1.3"
)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "advise",
        help="what to rent for a whole training run, how long it takes and what it costs",
        example=EXAMPLE,
        description="Search what GPUs, how many of them and which way to run come to in hours and dollars, and say "
        "which to rent. Sync, balancer, token limit, sharding and recompute are chosen for each, of what fits memory.",
    )
    recipe = [name for name in ASKED if name not in SEARCHED]
    groups = options.add_question(parser, without=DECIDED, recipe=recipe, minibatches=MINIBATCHES, epochs=1.0)
    asked, machines = groups[QUESTION], groups[MACHINES]
    machines.add_argument("--gpus", type=_words, required=True, metavar="G,G", help="kinds to rent: h100,a100")
    machines.add_argument("--devices", type=_numbers, required=True, metavar="N,N", help="how many of them: 8,16,64")
    machines.add_argument(
        "--price", type=_words, default=(), metavar="G=P,G=P", help="of a GPU-hour: h100=2.5,a100=1.3"
    )
    asked.add_argument("--deadline", type=_time, metavar="T", help="such as 12h or 90min")
    asked.add_argument("--budget", type=options.amount, metavar="P", help="dollars")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print every figure of every row as CSV")
    form.add_argument("--json", action="store_true", help="print what was asked and every row as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with a picture of time and money, too")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.cli import advice_table
    from odcsim.decide.advice.offers import advise
    from odcsim.support.progress import progress

    wish = _wish(args)
    with progress("searching", len(wish.gpus) * len(wish.devices)) as advance:
        advice = advise(wish, advance=lambda _: advance())
    if args.html is not None:
        from odcsim.show.pages.advice_page import write_advice

        write_advice(advice, args.html)
    if args.json:
        options.print_json(advice.as_json())
    elif args.csv:
        from odcsim.cli import csvs

        csvs.print_lines(advice.as_json()["rows"])
    else:
        advice_table.show(advice)


def _wish(args: argparse.Namespace) -> "Wish":
    from odcsim.decide.advice.wish import Wish

    return Wish(
        options.asked(args, devices=1, price=None),
        tuple(dict.fromkeys(args.gpus)),
        tuple(dict.fromkeys(args.devices)),
        _prices(args.price, args.gpus),
        args.deadline,
        args.budget,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(options.whole(word) for word in _words(text))


def _time(text: str) -> float:
    value = human(text, TIMES)
    if not value:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time, such as 12h or 90min")
    return float(value)


def _prices(words: tuple[str, ...], gpus: tuple[str, ...]) -> dict[str, float]:
    """`h100=2.5,a100=1.3`, or one price for all."""
    from odcsim.errors import InputError

    prices: dict[str, float] = {}
    for word in words:
        name, equals, price = word.rpartition("=")
        try:
            value = options.amount(price)
        except argparse.ArgumentTypeError as error:
            raise InputError(f"--price holds '{word}': {error}", fix="write h100=2.5,a100=1.3") from None
        if not equals and len(words) > 1:
            raise InputError(f"--price holds '{word}' beside others", fix="write h100=2.5,a100=1.3")
        prices |= {name: value} if equals else dict.fromkeys(gpus, value)
    return prices
