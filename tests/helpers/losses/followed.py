"""The first minibatch of a trainer: on demand and stock on the devices of a pool, and as one batch in one process."""

import gc
import multiprocessing
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tiny_trainers import IGNORED, arguments, started, whole
from torch import Tensor, nn
from transformers import PrinterCallback, TrainerCallback

from losses.kind import Kind
from losses.samples import FILLS
from odc_engine.trainers import BalancedMixin, OnDemandMixin, OnDemandRollouts
from odcsim.errors import InputError

DEVICES, EACH, ACCUMULATED = 2, 2, 2
ONE_STEP = {"max_steps": 1, "optim": "sgd", "max_grad_norm": 0, "logging_steps": 50, "dataloader_pin_memory": False}
SIZES = {"per_device_train_batch_size": EACH, "gradient_accumulation_steps": ACCUMULATED}
NORMS = re.compile(r"has norm (\S+) here, of the loss on all of it \((?:a )?(.+?)\), and (\S+) in the stock Trainer")


@dataclass
class Step:
    """`places`: of the minibatch's samples here; `run`: its batches; `told`: warnings; `over`: what the loss is a mean
    over; `substeps`: how often on_substep_end came."""

    gradient: dict[str, Tensor] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    run: list[dict[str, Tensor]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    over: str = ""
    microbatches: int = 0
    substeps: int = 0
    seen: Any = None

    @property
    def norm(self) -> float:
        return norm(self.gradient)

    @property
    def norms(self) -> tuple[float, float] | None:
        """That are told of, here and in the stock Trainer."""
        found = [told for words in self.told if (told := NORMS.search(words))]
        return (float(found[0][1]), float(found[0][3])) if found else None


def norm(gradient: dict[str, Tensor]) -> float:
    return float(sum(value.double().pow(2).sum() for value in gradient.values()) ** 0.5)


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far one gradient is from another, relative to it."""
    assert one.keys() == other.keys()
    return norm({name: one[name].double() - other[name].double() for name in one}) / (norm(other) or 1.0)


class _Looks(TrainerCallback):
    def __init__(self, step: Step) -> None:
        self.step = step

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self.step.substeps += 1

    def on_pre_optimizer_step(self, *_: Any, model: nn.Module, **__: Any) -> None:
        self.step.gradient = gradient_of(model)


def gradient_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def made(kind: Kind, trainer: type, own: Any) -> Any:
    given = {"data_collator": kind.collate} if kind.collate else {}
    return trainer(model=kind.model(), args=own, train_dataset=kind.data(), **given | kind.more())


def on_demand(kind: Kind, limit: int) -> type:
    mixin = OnDemandRollouts if kind.rollouts else OnDemandMixin
    return type("OnDemandTrainer", (mixin, kind.trainer), {"max_tokens": limit} | kind.said)


def balanced(kind: Kind, limit: int) -> type:
    return type("BalancedTrainer", (BalancedMixin, kind.trainer), {"max_tokens": limit} | kind.said)


Mixed = Callable[[Kind, int], type]  # a kind of trainer behind a mixin, with a limit of tokens


def steps(rank: int, folder: Path, kind: Kind, mixed: Mixed = on_demand) -> list[Step | str]:
    """Of each limit, or what is refused; the last one is stock training's, of what trains."""
    found = [_told(rank, folder, kind, mixed(kind, limit)) for limit in kind.limits]
    if not any(isinstance(step, str) for step in found):
        found.append(_told(rank, folder, kind, kind.trainer))
    return found


def told(rank: int, folder: Path, kind: Kind, limit: int) -> Step | str:
    """On demand, or what is refused."""
    return _told(rank, folder, kind, on_demand(kind, limit))


def _told(rank: int, folder: Path, kind: Kind, trainer: type) -> Step | str:
    try:
        return _stepped(rank, folder, kind, trainer)
    except InputError as error:
        return str(error)
    except Exception:
        return f"FAILED: {traceback.format_exc()}"


def _stepped(rank: int, folder: Path, kind: Kind, trainer: type) -> Step:
    sharded = {"fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": kind.layer}}
    own = arguments(rank, folder, kind.config, **ONE_STEP | SIZES | sharded | kind.arguments)
    trains, step = made(kind, trainer, own), Step()
    trains.remove_callback(PrinterCallback)
    trains.add_callback(_Looks(step))
    _spied(trains, step, kind)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trains.train()
    step.told = [str(one.message) for one in told]
    if losses := getattr(trains, "_losses", None):
        step.over = losses.over
    step.seen = kind.seen(trains) if kind.seen else None
    return step


def _spied(trains: Any, step: Step, kind: Kind) -> None:
    """Notes what is run."""
    usual = trains.training_step

    def noted(model: nn.Module, inputs: Any, items: Any = None) -> Tensor:
        if isinstance(inputs, dict):
            _note(step, kind, inputs, trains.train_dataset)
        return usual(model, inputs, items)

    if kind.rollouts and isinstance(trains, OnDemandMixin):
        share = trains._shared

        def shared(answers: Any) -> list[Any]:
            step.microbatches += len(parts := share(answers))
            return parts

        trains._shared = shared
    trains.training_step = noted


def _note(step: Step, kind: Kind, inputs: Any, data: Any) -> None:
    if "microbatches" not in inputs:
        step.places.extend(places_of(data, inputs))
    for batch, part in inputs.get("microbatches", ()):
        if part.samples:
            # Whether there is something that a loss counts; else nothing is run.
            step.microbatches += "labels" not in batch or bool((batch["labels"] != IGNORED).any())
            step.places.extend(part.places)
            step.run.extend([dict(batch)] if kind.as_run else [])


def places_of(data: Any, batch: Any) -> list[int]:
    """Of samples that a batch has a row of each for, by their tokens."""
    if "attention_mask" not in batch or "input_ids" not in data[0]:
        return []
    known = {tuple(data[i]["input_ids"]): i for i in range(len(data))}
    rows = zip(batch["input_ids"].tolist(), batch["attention_mask"].tolist(), strict=True)
    found = [tuple(token for token, own in zip(ids, mask, strict=True) if own) for ids, mask in rows]
    return [known[row] for row in found if row in known]


@contextmanager
def _alone() -> Iterator[None]:
    """One process, as accelerate sees it."""
    before = dict(os.environ)
    started(0)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def in_one_process(folder: Path, kind: Kind, ran: Sequence[Step]) -> dict[str, Tensor]:
    """The gradient of the trainer's own loss on all samples of the minibatch in one batch."""
    with _alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library's own settings
        usual = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "learning_rate": 1e-2}
        sizes = {"per_device_train_batch_size": DEVICES * EACH * ACCUMULATED, "gradient_accumulation_steps": 1}
        own = kind.config(output_dir=str(folder), **usual | ONE_STEP | sizes | kind.arguments)
        trains = made(kind, kind.trainer, own)
        loader = trains.get_train_dataloader()
        samples = [loader.dataset[place] for step in ran for place in step.places]
        batch = together(ran) if kind.as_run else loader.collate_fn(samples)
        trains.create_optimizer_and_scheduler(1)
        trains.current_gradient_accumulation_steps = 1
        batches, items = trains.get_batch_samples(iter([batch]), 1, own.device)
        trains.training_step(trains.model, batches[0], items)
        return gradient_of(trains.model)


def together(ran: Sequence[Step]) -> dict[str, Tensor]:
    """What devices ran, in one batch."""
    every, found = [batch for step in ran for batch in step.run], {}
    for name in every[0]:
        values = [batch[name] for batch in every]
        if values[0].dim() > 1:
            longest = max(value.shape[1] for value in values)
            pad = nn.functional.pad
            values = [pad(value, (0, longest - value.shape[1]), value=FILLS[name]) for value in values]
        found[name] = torch.cat(values)
    return found


def called(rank: int, folder: Path, name: str, mixed: Mixed = on_demand) -> list[Step | str]:
    from losses import EVERY

    multiprocessing.current_process()._config["daemon"] = False  # loaders may have workers
    gc.collect()
    gc.freeze()  # accelerate collects twice in each training
    return steps(rank, folder / name[:20].replace("/", "_"), EVERY[name], mixed)
