"""Run a script's first minibatch as it is, and again in other microbatches: gradients must not change.

Both runs end at the first optimizer step, in processes of their own, each of which runs

    python -m torch.distributed.run ... -m odc_engine.runs.packings FOLDER OTHERWISE train.py ...
"""

import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import clip_grad
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from odc_engine import sampler
from odc_engine.errors import EngineError
from odc_engine.fsdp.inside import in_backward
from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.started import started
from odc_engine.trainers import minibatches, order, rollouts
from odc_engine.trainers.answers import parts_within
from odc_engine.trainers.exchange import all_told
from odc_engine.trainers.minibatches import padded_parts
from odc_engine.trainers.slices import padded_slices
from odc_engine.trainers.verl import VerlMixin
from odcsim.balance import Plan, plan, runs_with
from odcsim.errors import InputError
from odcsim.program import MEETING

HOW = "odc_engine verify --packings --script train.py"
WAYS = "have odc_engine.BalancedBatches or a trainer of odc_engine.trainers cut minibatches of several samples"
CAUSE = "as those of a mean over a microbatch, of dropout, of batch norm and of unseeded data do"
WEIGH = "multiply a microbatch's mean by share.weights[i], its sum by share.token_weight; divide by num_items_in_batch"
SHOWN = 12  # lines of what a script that failed has said last
FULL, LOW = 1e-5, 5e-2  # what orders of summation explain in fp32, and roundings in bf16 and fp16
FLOOR = 1e-4  # of the norm of all: below it a parameter's own gradient is noise, as that of a key's bias
CLIPS = ("clip_grads_with_norm_", "_clip_grads_with_norm_", "clip_grad_value_")  # a clipped gradient has lost its size
LIMIT = "max_token_len_per_gpu"  # verl's, of a microbatch's tokens


class Stepped(BaseException):
    """Ends the script at its first step. No Exception, which training loops catch, and no SystemExit, which some
    swallow."""


def verify_packings(arguments: Sequence[str]) -> int:
    """`arguments`: the script and its own. 0 where gradients are equal, 1 where they are not."""
    script = arguments[0] if arguments else ""
    if not Path(script).is_file():
        raise InputError(f"no script '{script}'", fix=HOW)
    if started() is not None:
        raise InputError("--packings under torchrun: it starts processes of its own", fix=HOW)
    return told(Path(script).name, *(_run(arguments, otherwise) for otherwise in (False, True)))


def _run(arguments: Sequence[str], otherwise: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="odc-") as folder:
        start = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "odc_engine.runs.packings"]
        command = [sys.executable, "-m", *start, folder, str(int(otherwise)), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if (refused := Path(folder) / "refused").is_file():
            raise InputError(refused.read_text(encoding="utf-8"))
        if done.returncode:
            print("\n".join(done.stdout.splitlines()[-SHOWN:]), file=sys.stderr)
            raise EngineError(f"{arguments[0]} failed; its last lines are above")
        return dict(torch.load(Path(folder) / "step", weights_only=True))


def told(name: str, usual: dict[str, Any], other: dict[str, Any]) -> int:
    """Print how far the gradients of two first steps are apart. 0 where they are equal, 1 where they are not."""
    if not all(map(torch.equal, usual["weights"], other["weights"])):
        raise InputError(f"{name} began with other weights when it ran again", fix="seed what draws them")
    counts = [sum(step["microbatches"]) for step in (usual, other)]
    if usual["microbatches"] == other["microbatches"]:  # on every rank
        raise InputError(f"{name} ran {counts[0]} microbatches both times", fix=WAYS)
    pair = [[gradient.double() for gradient in step["gradients"]] for step in (usual, other)]
    norms = [torch.stack([gradient.norm() for gradient in each]).norm() for each in pair]
    apart = [(one - two).norm() / one.norm().clamp(min=FLOOR * norms[0]) for one, two in zip(*pair, strict=True)]
    furthest, bound = float(torch.stack(apart).max()), LOW if usual["low"] else FULL
    print(f"{name}: {counts[0]} microbatches, norm of the gradient {norms[0]:.6g}")
    print(f"{name}: {counts[1]} microbatches, norm {norms[1]:.6g}, furthest {furthest:.1e}")
    if furthest <= bound:
        print(f"{name}: gradients are equal within {bound:g}", flush=True)
        return 0
    print(f"{name}: gradients depend on how the minibatch is cut, {CAUSE}; {WEIGH}", flush=True)
    return 1


def first_step(arguments: Sequence[str], otherwise: bool) -> dict[str, Any]:
    """Run a script until its first optimizer step, cut `otherwise` or as it is. On every process of a run; gradients
    and weights are on rank 0 only."""
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    step: dict[str, Any] = {"microbatches": 0, "low": False}
    make, backward = OnDemand.__init__, torch.autograd.backward

    def noting(self: OnDemand, *args: Any, **how: Any) -> None:
        make(self, *args, **how)
        stack.callback(self.close)

    def counting(*args: Any, **how: Any) -> None:
        step["microbatches"] += not in_backward()  # else a checkpoint's own
        backward(*args, **how)

    def look(_module: object, _args: object, out: object) -> None:
        step["low"] |= isinstance(out, Tensor) and out.dtype in (torch.bfloat16, torch.float16)

    def begins(optimizer: Optimizer, *_: object) -> None:
        if any(all_told(step["microbatches"])):  # not the step that makes an optimizer's states
            step["weights"] = _whole([own for group in optimizer.param_groups for own in group["params"]])

    def ends(optimizer: Optimizer, *_: object) -> None:
        """Registered first, so before an attached OnDemand publishes, and after it has settled."""
        if "weights" in step:
            trained = [own for group in optimizer.param_groups for own in group["params"]]
            step["gradients"] = _whole([torch.zeros_like(own) if own.grad is None else own.grad for own in trained])
            raise Stepped

    with ExitStack() as stack:
        for hook in (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)):
            stack.callback(hook.remove)
        stack.callback(register_module_forward_hook(look).remove)
        stack.enter_context(patch.object(OnDemand, "__init__", noting))
        stack.enter_context(patch.object(torch.autograd, "backward", counting))
        for owner, name in product((clip_grad, torch.nn.utils), CLIPS):
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, lambda *_, **__: None))
        if otherwise:
            _cut_otherwise(stack)
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except Stepped:
            counts, low = zip(*all_told((step["microbatches"], step["low"])), strict=True)
            return step | {"microbatches": list(counts), "low": any(low)}
    raise InputError(f"{arguments[0]} ended before an optimizer's step", fix="train at least one minibatch in it")


def _whole(values: Sequence[Tensor]) -> list[Tensor]:
    """On rank 0; every rank takes part."""
    every = (value.full_tensor() if isinstance(value, DTensor) else value for value in values)
    first = not dist.is_initialized() or dist.get_rank() == 0
    return [whole.detach().cpu().clone() for whole in every if first]


def _cut_otherwise(stack: ExitStack) -> None:
    """Put every sample into a microbatch of its own, or two by two where a device has them so already."""
    trains = VerlMixin.forward_backward_batch

    def again(parts: Iterable[Iterable[int]]) -> list[Any]:
        filled = [tuple(part) for part in parts if part]
        every = [place for part in filled for place in part]
        size = 2 if len(filled) == len(every) else 1
        return [tuple(every[i : i + size]) for i in range(0, len(every), size)]

    def planned(*args: Any, **how: Any) -> Plan:
        found = plan(*args, **how)
        devices = [again(parts) for parts in found.devices]
        most = max(map(len, devices)) if runs_with(how["balancer"], MEETING) else 0  # who meets meets as often
        return replace(found, devices=tuple((*parts, *[()] * (most - len(parts))) for parts in devices))

    def limited(engine: Any, data: Any, *args: Any, **how: Any) -> Any:
        """verl cuts what a device has by a limit of tokens, which comes with the samples."""
        if LIMIT in data.keys():  # noqa: SIM118 - of a TensorDict
            usual, longest = int(data[LIMIT]), int(data["input_ids"].offsets().diff().max())
            data, helpers = data.clone(recurse=False), import_module("verl.utils.tensordict_utils")
            helpers.assign_non_tensor_data(data, LIMIT, longest if usual > longest else 2 * usual)
        return trains(engine, data, *args, **how)

    for owner, name, value in (
        (sampler, "plan", planned),
        (order, "plan", planned),
        (order, "padded_parts", lambda *given: again(padded_parts(*given))),
        (minibatches, "padded_parts", lambda *given: again(padded_parts(*given))),
        (rollouts, "parts_within", lambda *given: again(parts_within(*given))),
        (order, "padded_slices", lambda *given: [again(own) for own in padded_slices(*given)]),
        (VerlMixin, "forward_backward_batch", limited),
    ):
        stack.enter_context(patch.object(owner, name, value))


def main(arguments: Sequence[str]) -> int:
    folder, otherwise, *script = arguments
    try:
        step = first_step(script, otherwise == "1")
    except InputError as error:
        (Path(folder) / "refused").write_text(str(error), encoding="utf-8")
        return 2
    if step["gradients"]:
        torch.save(step, Path(folder) / "step")
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
