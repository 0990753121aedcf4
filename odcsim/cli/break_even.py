"""`odcsim break-even`: where on-demand communication stops paying, one thing after the other changed."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.cli.rl import add_steps
from odcsim.decide.words import BREAK_EVEN
from odcsim.errors import InputError
from odcsim.option import BATCH, STEP
from odcsim.support.progress import progress

EXAMPLE = "odcsim break-even azure-chat --model qwen2.5-7b --gpu h100 --devices 8 --minibatch 8 --max-tokens 16k"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "break-even",
        help="find where on-demand communication stops paying off",
        examples=(EXAMPLE,),
        description="Predict the speedup of on-demand communication over the best collective row while one thing "
        "changes at a time: network, GPUs, model, batch, lengths, fixed cost; with --prompts, of a whole RL step. Also "
        "says what a balancer with wrong sample weights costs.",
    )
    groups = options.add_question(parser, BREAK_EVEN, needed=("model", "devices"))
    add_steps(groups[BATCH], groups[STEP], required=False)
    parser.add_argument("--json", action="store_true", help="print all points as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page with the curves")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.break_even import STEPS, WholeStep, find_break_even
    from odcsim.decide.rl import Around, RolloutBatch
    from odcsim.say import break_even_words, terminal

    if (args.prompts is None) != (args.rollouts is None):
        raise InputError("--prompts or --rollouts alone", fix="a step of rollouts has both")
    if args.prompts is None and not (args.minibatch or args.global_batch):
        raise InputError("no batch is given", fix="give --minibatch K, --global-batch B, or --prompts P --rollouts R")
    whole = None
    if args.prompts is not None:
        around = Around(args.forward_passes, args.critic, args.generation_seconds, args.tensor_parallel)
        whole = WholeStep(RolloutBatch(args.prompts, args.rollouts, args.updates, STEPS), around)
    asked = options.read_question(args)
    with progress("changing", 7 if whole else 6) as advance:
        result = find_break_even(asked, whole, advance=advance)
    if args.html is not None:
        from odcsim.show.pages.answer_pages import write_break_even

        write_break_even(result, args.html)
    if args.json:
        options.print_json(result.as_json())
    else:
        terminal.show(break_even_words.answer(result))
