"""`odcsim rl`: a whole step of reinforcement learning, with what on-demand brings to it."""

import argparse
from typing import Any

from odcsim.cli import options
from odcsim.decide.words import RL
from odcsim.option import BATCH, STEP
from odcsim.support.command import rare
from odcsim.support.numbers import seconds

EXAMPLE = "odcsim rl deepcoder-rl --model qwen3-1.7b --gpu h100 --devices 4 --prompts 32 --rollouts 8"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "rl",
        help="predict an RL step (GRPO, PPO): training, log-probs, generation",
        examples=(EXAMPLE,),
        description="Predict steps and runs of reinforcement learning (GRPO, PPO) from recorded rollouts: generation "
        "on all GPUs or on some of their own, forward-only passes, and training.",
    )
    groups = options.add_question(parser, RL, seldom=("truncate", "sharding"))
    asked = groups[BATCH]
    add_steps(asked, groups[STEP], required=True)
    rare(asked.add_argument("--steps", type=options.whole, default=20, metavar="S", help="RL steps to simulate (20)"))
    asked.add_argument(
        "--total-steps", type=options.whole, metavar="N", help="RL steps of the whole run, to tell its hours and cost"
    )
    parser.add_argument("--json", action="store_true", help="print the inputs and all rows as JSON")
    options.add_levers(parser)
    parser.set_defaults(run=_run)


def add_steps(asked: Any, step: Any, *, required: bool) -> None:
    """What a step of rollouts is; rare where it need not be one."""
    own = [
        asked.add_argument("--prompts", type=options.whole, required=required, metavar="P", help="prompts per step"),
        asked.add_argument("--rollouts", type=options.whole, required=required, metavar="R", help="samples per prompt"),
        asked.add_argument(
            "--updates", type=options.whole, default=1, metavar="U", help="optimizer steps per RL step (1)"
        ),
        step.add_argument(
            "--forward-passes",
            type=int,
            choices=range(4),
            default=2,
            help="forward-only passes: old and reference policy (2)",
        ),
        step.add_argument(
            "--generation-seconds", type=seconds, metavar="T", help="generation time per step: 90 or 3min (estimated)"
        ),
        step.add_argument(
            "--tensor-parallel",
            type=options.whole,
            metavar="N",
            help="GPUs of an inference engine (fewest that hold it)",
        ),
    ]
    critic = step.add_argument("--critic", action="store_true", help="also train a critic of the same shape")
    for one in (critic, *(() if required else own[2:])):
        rare(one)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide.levers import levers
    from odcsim.decide.rl import Around, RolloutBatch, count_work, predict_steps
    from odcsim.say import rl_words, terminal
    from odcsim.support.progress import progress

    batch = RolloutBatch(args.prompts, args.rollouts, args.updates, args.steps)
    around = Around(args.forward_passes, args.critic, args.generation_seconds, args.tensor_parallel)
    question = options.read_question(args)
    with progress("assigning samples", count_work(question.trainer)) as advance:
        total = args.total_steps
        result = predict_steps(
            question, batch, around, total_steps=total, advance=advance, make_setting=options.limited
        )
    if args.json:
        options.print_json(result.as_json() | ({"levers": levers(result).as_json()} if args.levers else {}))
    else:
        terminal.show(rl_words.answer(result, levers(result)))
