"""A script run until its first optimizer step, and the whole gradients that the step would have taken.

Runs in each process that torch.distributed.run starts:

    python -m torch.distributed.run ... -m odc_engine.packings.first_step FOLDER PACKING train.py ...
"""

import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from odc_engine.fsdp.groups import in_backward
from odc_engine.fsdp.on_demand import OnDemand
from odc_engine.packings.packing import Packing
from odc_engine.packings.recut import Planned, put, recut
from odc_engine.packings.steady import steady
from odc_engine.trainers.exchange import all_told
from odcsim.errors import InputError

HOW = "odc_engine verify --packings --script train.py"


@dataclass(frozen=True, slots=True)
class FirstStep:
    """`places`: indices of the samples in the dataset, if the engine planned them. `by`: the trainer mixin that planned
    them, if any. `drawn`: samples that are generated while training. `gradients` and `weights`: on rank 0 only."""

    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    places: list[int]
    microbatches: int
    tokens: dict[int, int]  # how often each has been looked up
    by: str
    drawn: bool
    low: bool  # computed in less than fp32
    mixing: list[str]  # modules in which samples of a microbatch depend on each other


class Stepped(BaseException):
    """The script has come as far as it has to. No Exception, which training loops catch, and no SystemExit, which some
    swallow."""

    def __init__(self, step: FirstStep) -> None:
        self.step = step
        super().__init__()


def first_step(arguments: Sequence[str], packing: Packing, weights: Mapping[str, Tensor] | None = None) -> FirstStep:
    """`arguments`: the script and its own. `weights`: that the model is to begin with. On every process of a run."""
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    with Witness(packing, weights or {}).watching():
        try:
            runpy.run_path(arguments[0], run_name="__main__")
        except Stepped as end:
            return end.step
    raise InputError(f"{arguments[0]} ended before an optimizer's step", fix="train at least one minibatch in it")


class Witness:
    """What a script does before its first step."""

    def __init__(self, packing: Packing, weights: Mapping[str, Tensor]) -> None:
        self._packing, self._planned = packing, Planned()
        self._every: list[OnDemand] = []
        self._settled: dict[nn.Module, dict[str, Tensor]] = {}  # weights of each, when it was
        self._weights = weights
        self._backwards, self._low = 0, False
        self._tokens: Counter[int] = Counter()
        self._hook = register_optimizer_step_pre_hook(self._step)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(register_module_forward_pre_hook(self._look).remove)
            stack.enter_context(recut(self._packing, self._planned))
            stack.enter_context(steady())
            stack.enter_context(put(OnDemand, "__init__", self._made()))
            stack.enter_context(put(OnDemand, "settle", self._settling()))
            stack.enter_context(put(OnDemand, "renew", self._renewing()))
            stack.enter_context(put(torch.autograd, "backward", self._counting()))
            yield

    def _close(self) -> None:
        self._hook.remove()
        for each in self._every:
            each.close()

    def _made(self) -> Callable[..., None]:
        make = OnDemand.__init__

        def made(own: OnDemand, model: nn.Module, **how: Any) -> None:
            _load(model, self._weights)
            make(own, model, **how)
            self._every.append(own)
            self._hook.remove()  # and behind its own, which settles where an optimizer is attached
            self._hook = register_optimizer_step_pre_hook(self._step)

        return made

    def _settling(self) -> Callable[..., None]:
        settle = OnDemand.settle

        def settling(own: OnDemand) -> None:
            settle(own)
            self._settled[own.model] = _whole(dict(own.model.named_parameters()))

        return settling

    def _renewing(self) -> Callable[..., None]:
        renew = OnDemand.renew

        def renewing(own: OnDemand, *, keep: bool) -> None:
            gradients = [parameter.grad for parameter in own.model.parameters()]
            if own.model in self._settled and not self._planned.trainers and any(g is not None for g in gradients):
                self._end(own.model, self._settled[own.model])  # after a step by hand
            renew(own, keep=keep)

        return renewing

    def _counting(self) -> Callable[..., None]:
        backward = torch.autograd.backward

        def counting(*args: Any, **how: Any) -> None:
            self._backwards += not in_backward()  # else a checkpoint's own
            backward(*args, **how)

        return counting

    def _look(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, nn.Embedding) and torch.is_grad_enabled() and not in_backward():
            self._tokens.update(args[0].flatten().tolist())
        self._low |= any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))

    def _step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:  # noqa: ARG002
        known = [trainer.model_wrapped for trainer in self._planned.trainers] + [each.model for each in self._every]
        steps = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        models = [model for model in known if any(id(parameter) in steps for parameter in model.parameters())]
        if self._backwards and models:
            self._end(models[0], _whole(dict(models[0].named_parameters())))

    def _end(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        """On all processes alike."""
        planned = self._planned.microbatches
        every = all_told(planned or [])
        raise Stepped(
            FirstStep(
                gradients=_whole({name: _gradient(own) for name, own in model.named_parameters() if own.requires_grad}),
                weights=weights,
                places=sorted(place for microbatches in every for part in microbatches for place in part),
                microbatches=sum(map(len, every) if self._planned.trainers else all_told(self._backwards)),
                tokens=dict(sum(all_told(self._tokens), Counter())),
                drawn=any(hasattr(trainer, "rollouts") for trainer in self._planned.trainers),
                by=self._planned.by,
                low=self._low or any(unit.shape.dtype != torch.float32 for each in self._every for unit in each.units),
                mixing=[name for name, module in model.named_modules() if isinstance(module, _BatchNorm)],
            )
        )


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _whole(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On device 0."""
    found, first = {}, not dist.is_initialized() or dist.get_rank() == 0
    for name, value in values.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if first:
            found[name] = whole.detach().cpu().clone()
    return found


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Since layers that draw their weights when they are sharded draw others on other numbers of processes."""
    with torch.no_grad():
        for name, own in model.named_parameters():
            if name in weights and weights[name].shape == own.shape:
                whole = weights[name].to(own.device)
                own.copy_(
                    distribute_tensor(whole, own.device_mesh, own.placements) if isinstance(own, DTensor) else whole
                )


def main(arguments: Sequence[str]) -> int:
    folder, packing, *script = arguments
    processes, of, otherwise = (int(word) for word in packing.split(","))
    try:
        first = torch.load(file, weights_only=True) if (file := Path(folder) / "weights").is_file() else None
        step = first_step(script, Packing(processes, of, bool(otherwise)), first)
    except InputError as error:
        (Path(folder) / "refused").write_text(str(error), encoding="utf-8")
        return 2
    if step.gradients:
        torch.save(asdict(step), Path(folder) / "step")
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
