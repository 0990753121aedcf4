"""Options that several commands share, and what they mean."""

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from odcsim.command import add_recipe, chosen
from odcsim.command import amount as amount
from odcsim.command import whole as whole
from odcsim.recipe import USUAL

if TYPE_CHECKING:
    from odcsim.questions.setting import Setting
    from odcsim.trace import Trace

EXECUTORS = ("analytic", "des")


def seed(text: str) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0")
    return int(text)


def fraction(text: str) -> float:
    if not amount(text) <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a fraction from 0 to 1")
    return amount(text)


def add_hardware(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="G", help="a GPU of 'odcsim catalog list', or a TOML file of its figures")
    parser.add_argument("--profile", metavar="F", help="seconds measured on your machine (a profile's JSON file)")
    parser.add_argument("--devices-per-node", type=whole, metavar="N", help="default: the GPU's usual node")
    parser.add_argument("--cluster", metavar="FILE", help="TOML: devices_per_node, nics_per_node, nic_gbit_s, ...")


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a file of lengths, a name ('odcsim trace list') or a spec")
    parser.add_argument("--column", metavar="C", help="the file's column that holds the lengths")
    add_tokenizer(parser)
    add_limit(parser)


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="count texts and conversations by the tokenizer.json and template in DIR"
    )
    parser.add_argument("--sample", type=whole, default=0, metavar="N", help="count N rows of texts, drawn at random")


def add_limit(parser: argparse.ArgumentParser) -> None:
    """What trainers do with samples that are too long: some shorten them, some leave them out."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--truncate", type=whole, metavar="T", help="shorten samples over T tokens to T")
    either.add_argument(
        "--drop-over", type=whole, metavar="T", help="leave out samples over T tokens; ids count the rest"
    )
    parser.add_argument("--cutoff", metavar="T", type=whole, help="only tell what a limit of T tokens loses")


def trace_of(args: argparse.Namespace, *, tell: bool = True) -> "Trace":
    trace = loaded(args, args.trace)
    tell_cutoff(trace, args.cutoff if tell else None)
    return trace


def loaded(args: argparse.Namespace, source: str) -> "Trace":
    """As the flags say."""
    from odcsim.reading import load

    counting = {"tokenizer": args.tokenizer, "sample": args.sample}
    return load(source, column=args.column, truncate=args.truncate, drop_over=args.drop_over, **counting)


def tell_cutoff(trace: "Trace", at: int | None) -> None:
    """On stderr, so that results stay what they are."""
    if at is not None:
        from odcsim.reading.stats import cut_lines

        print(*cut_lines(trace, at), sep="\n", file=sys.stderr)


def add_setting(parser: argparse.ArgumentParser) -> None:
    add_trace(parser)
    parser.add_argument("--model", required=True, metavar="M", help="a name ('odcsim catalog list') or a config.json")
    add_hardware(parser)
    add_recipe(parser, USUAL.inputs())
    parser.add_argument("--devices", type=whole, required=True, metavar="N", help="GPUs that share each minibatch")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--minibatch", type=whole, metavar="K", help="samples per device and optimizer step")
    size.add_argument("--global-batch", type=whole, metavar="B", help="of all devices together, instead")
    parser.add_argument(
        "--max-tokens", type=whole, metavar="T", help="limit of a microbatch; default: what is fastest of what fits"
    )
    parser.add_argument("--minibatches", type=whole, default=200, metavar="B", help="how many to draw (200)")
    parser.add_argument("--seed", type=seed, default=0, metavar="S", help="of the shuffle (0)")
    parser.add_argument("--in-order", action="store_true", help="keep the recorded order, RL steps and groups")
    parser.add_argument(
        "--split-overhead",
        type=fraction,
        metavar="X",
        help="try to split samples too long for one device (context parallelism) at this much extra work for each "
        "doubling of the devices on one sample, such as 0.05; simulated only",
    )


def per_device(batch: int, devices: int) -> int:
    """Of a global batch."""
    from odcsim.errors import InputError

    if batch % devices:
        fix = f"give a multiple of {devices}, such as {devices * -(-batch // devices)}"
        raise InputError(f"--global-batch {batch} does not divide by {devices} devices", fix=fix)
    return batch // devices


def setting_of(args: argparse.Namespace) -> "Setting":
    from odcsim.questions.asking import ask

    return ask(
        trace_of(args),
        args.model,
        gpu=args.gpu,
        profile=args.profile,
        devices=args.devices,
        minibatch=args.minibatch or per_device(args.global_batch, args.devices),
        max_tokens=args.max_tokens,
        minibatches=args.minibatches,
        seed=args.seed,
        in_order=args.in_order,
        devices_per_node=args.devices_per_node,
        cluster=args.cluster,
        split_overhead=args.split_overhead,
        **chosen(args),
    )


def print_json(content: Any) -> None:
    """JSON knows no number that is not finite: a share of nothing, say, is null."""
    print(json.dumps(_finite(content), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(of) for of in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
