"""`odcsim rl`: a whole step of reinforcement learning, with what on-demand brings to it."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odcsim.cli import options
from odcsim.decide.words import RL
from odcsim.question import BATCH, STEP
from odcsim.support.numbers import counted, money, seconds

if TYPE_CHECKING:
    from odcsim.decide.rollouts.whole import WholeStep
    from odcsim.decide.setting import Setting


HEAD = ("batching", "sync", "training", "forward", "step", "cost", "times\nas\nfast", "memory")
EXAMPLE = "odcsim rl deepcoder-rl --model qwen3-1.7b --gpu h100 --devices 4 --prompts 32 --rollouts 8"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "rl",
        help="predict an RL step (GRPO, PPO): training, log-probs, generation",
        examples=(EXAMPLE,),
        description="Predict whole steps of reinforcement learning (GRPO, PPO), with groups drawn from recorded "
        "rollouts: training under several ways to assign samples, forward-only passes, and generation as given.",
    )
    groups = options.add_question(parser, without=RL.without, seldom=("truncate", "sharding"))
    asked, step = groups[BATCH], groups[STEP]
    asked.add_argument("--prompts", type=options.whole, required=True, metavar="P", help="prompts per step")
    asked.add_argument("--rollouts", type=options.whole, required=True, metavar="R", help="samples per prompt")
    asked.add_argument("--updates", type=options.whole, default=1, metavar="U", help="optimizer steps per RL step (1)")
    asked.add_argument("--steps", type=options.whole, default=20, metavar="S", help="RL steps to simulate (20)")
    step.add_argument(
        "--forward-passes",
        type=int,
        choices=range(4),
        default=2,
        help="forward-only passes: old and reference policy (2)",
    )
    step.add_argument("--critic", action="store_true", help="also train a critic of the same shape")
    step.add_argument(
        "--generation-seconds", type=seconds, default=0.0, metavar="T", help="generation time per step: 90 or 3min (0)"
    )
    parser.add_argument("--json", action="store_true", help="print the inputs and all rows as JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> None:
    from odcsim.decide import setting_words
    from odcsim.decide.rollouts.asking import stepped
    from odcsim.decide.rollouts.pilot import RolloutBatch
    from odcsim.decide.rollouts.whole import Around, pieces
    from odcsim.support.progress import progress

    batch = RolloutBatch(args.prompts, args.rollouts, args.updates, args.steps)
    around = Around(args.forward_passes, args.critic, args.generation_seconds)
    question = options.asked(args)
    with progress("assigning samples", pieces(question.trainer)) as advance:
        found = stepped(question, batch, around, advance=advance, limited=options.limited)
    if args.json:
        options.print_json(found.as_json())
        return
    rows, setting = found.rows, found.setting
    print(_asked(args, setting))
    _show(rows)
    for line in found.sentences():
        print(line)
    print(setting_words.fixed(setting))
    if args.truncate or args.drop_over:
        print(f"Lengths: {setting.trace.origin}.")
    print(f"Cost: {setting.cost.profile.origin}.")


def _asked(args: argparse.Namespace, setting: "Setting") -> str:
    step = f"{args.prompts:,} prompts x {args.rollouts} rollouts in {counted(args.updates, 'update')}"
    where = f"{args.devices} x {setting.cost.profile.gpu}"
    limit = f"at most {setting.limit:,} tokens in a microbatch"
    limit += f" (the best of {setting.limits_tried} limits that fit)" if setting.limits_tried else ""
    made = f" with {args.generation_seconds:,.0f} s of generation each" if args.generation_seconds else ""
    by = f" by {setting.trainer}" if setting.trainer else ""
    model = f"{setting.cost.model.name}{setting.cost.recipe.told}{by}"
    return f"{model} on {where}, {step}, {limit}, {counted(args.steps, 'step')}{made}; figures are of one step"


def _show(rows: "Sequence[WholeStep]") -> None:
    """Tight ones after those that fit, then those that do not; how many times as fast is over what needs no rule."""
    from odcsim.cli import table
    from odcsim.decide.rollouts.whole import REFERENCE
    from odcsim.results import capacity
    from odcsim.results.summary import memory

    usual = next(row for row in rows if (row.dealer, row.way) == REFERENCE)
    priced = usual.rate is not None
    cells = [
        [row.dealer, row.way, *map(_seconds, (row.trained, row.passed, row.seconds)),
         *([] if row.rate is None else [money(row.rate * row.seconds)]),
         f"{usual.seconds / row.seconds:.2f}", memory(row)]
        for row in sorted(rows, key=capacity.level)
    ]  # fmt: skip
    head = [name for name in HEAD if priced or name != "cost"]
    table.show_texts(head, cells, names=2, padding=(0, 0, 0, 1))


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 1000 else f"{value:,.0f} s"
