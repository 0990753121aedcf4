"""Refuse settings of a Trainer under which on-demand would train differently or not at all, and say what to set
instead."""

import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from odc_engine.trainers.images import TYPES
from odcsim.errors import InputError

BELOW = ("training_step", "get_train_dataloader", "get_batch_samples")  # what the mixin does in a trainer's place


def check_order(kind: type, mixin: type) -> None:
    """Refuse base classes in front of the mixin that bypass it."""
    before = kind.__mro__[: kind.__mro__.index(mixin)]
    if ahead := [base for base in before if "training_step" in vars(base) and not issubclass(base, mixin)]:
        told = f"{ahead[0].__name__} in front of {mixin.__name__} trains without it"
        raise InputError(told, where=kind.__name__, fix=f"class {kind.__name__}({mixin.__name__}, {ahead[0].__name__})")
    for base, name in [(base, name) for base in before for name in BELOW if _replaces(vars(base).get(name), mixin)]:
        told = f"{name} of {base.__name__} stands in front of {mixin.__name__}'s, which it never calls"
        fix = (
            f"write it in a trainer below: class Own(Trainer) with {name}, class {base.__name__}({mixin.__name__}, Own)"
        )
        raise InputError(told, where=kind.__name__, fix=fix)


def _replaces(method: Any, mixin: type) -> bool:
    """Whether a method never calls the one that it overrides."""
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    own = getattr(method, "__module__", "").split(".")[0] == __name__.split(".")[0]
    return code is not None and not own and not {"super", mixin.__name__} & {*code.co_names}


def check_processes(given: Iterable[Any], where: str) -> None:
    """Check a Trainer's arguments: FSDP needs several processes, with GPUs, or accelerate shards nothing."""
    own = next((one for one in given if hasattr(one, "fsdp") and hasattr(one, "parallel_mode")), None)
    if own is None or not own.fsdp or own.parallel_mode.value == "distributed":
        return
    if torch.accelerator.is_available() or "LOCAL_RANK" not in os.environ:
        raise InputError("fsdp in one process", where=where, fix="torchrun --nproc-per-node 2 train.py")
    fix = "torchrun --nproc-per-node 2 -m odc_engine.trainers.on_processors train.py"
    raise InputError("processes without GPUs, over which accelerate does not shard", where=where, fix=fix)


def dataset_of(trainer: Any, loader: Any, mixin: type) -> Any:
    """Return the dataset that the loader's indices refer to: with all its columns if the loader is the trainer's
    own."""
    made = cast(Any, super(mixin, trainer)).get_train_dataloader
    own = made.__func__.__module__.split(".")[0] in ("transformers", "trl")
    return trainer.train_dataset if own else loader.dataset


def check(trainer: Any) -> None:
    """Check a trainer before anything is prepared for training."""
    for problem, fix in _problems(trainer):
        raise InputError(problem, where=type(trainer).__name__, fix=fix)


GIVEN = tuple(f"trl.trainer.{name}_trainer" for name in ("dpo", "kto", "reward", "sft"))  # whose samples are there
ANSWERING = ("trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer")  # whose answers OnDemandRollouts deals out


def _first(kinds: Iterable[type], *methods: str) -> type | None:
    """Return the first class that has one of these methods of its own."""
    return next((kind for kind in kinds if {*methods} & vars(kind).keys()), None)


def _generating(trainer: Any) -> type | None:
    """Return the trainer of TRL's that makes its samples while training, as all but a few do that prepare inputs."""
    theirs = [kind for kind in type(trainer).__mro__ if kind.__module__.startswith("trl.")]
    return _first([kind for kind in theirs if kind.__module__ not in GIVEN], "training_step", "_prepare_inputs")


def _problems(trainer: Any) -> Iterator[tuple[str, str]]:
    own = trainer.args
    if own.world_size > 1 and not own.average_tokens_across_devices:
        told = "average_tokens_across_devices is off, so that the loss depends on which rank runs a sample"
        yield told, "leave it on, its default"
    if own.fp16:
        yield "fp16, whose loss scaler relies on gradients that overflow", "use bf16"
    if own.auto_find_batch_size:
        told = "auto_find_batch_size, with which a single rank would restart"
        yield told, "set max_tokens to what fits"
    if trainer.train_dataset is not None and not hasattr(trainer.train_dataset, "__len__"):
        yield "a dataset without a length", "use one with __len__ and __getitem__"
    spread = {name: getattr(trainer, f"get_{name}_size")() for name in ("tp", "cp", "sp")}
    if any(size > 1 for size in spread.values()):
        told = ", ".join(f"{name} {size}" for name, size in spread.items() if size > 1)
        yield f"samples that several devices run together ({told})", "use data parallelism alone"
    if (kind := _generating(trainer)) and not hasattr(trainer, "rollouts"):
        known = kind.__module__ in ANSWERING
        fix = "put OnDemandRollouts in front instead" if known else f"train {kind.__name__} without a mixin"
        yield "samples that are generated while training", fix
    yield from _of_preferences(trainer)
    yield from _of_experts(trainer)


MIXED = ("aot", "aot_unpaired", "bco_pair", "sft")  # losses of TRL's in which a pair is counted by those beside it


def _of_preferences(trainer: Any) -> Iterator[tuple[str, str]]:
    """Check settings of TRL's DPOTrainer or KTOTrainer."""
    own = trainer.args
    losses = getattr(own, "loss_type", None) or ()
    if mixed := [loss for loss in ([losses] if isinstance(losses, str) else losses) if loss in MIXED]:
        yield (
            f"loss_type '{mixed[0]}', in which pairs of a microbatch depend on each other",
            "use 'sigmoid' or the like",
        )
    if getattr(trainer, "calculate_KL", False) and getattr(trainer, "mean_over", None) is None:
        told = f"loss_type '{losses}', whose KL term is a mean over the samples of a batch"
        yield told, "use 'apo_zero_unpaired', or take each microbatch's own by mean_over = 'samples' on your trainer"
    if getattr(own, "sync_ref_model", False):
        yield "sync_ref_model, which changes weights that other ranks read", "leave the reference as it is"
    if getattr(trainer, "aux_loss_enabled", False):
        yield "a router's loss, which depends on how samples are packed", "leave output_router_logits off"


def _of_experts(trainer: Any) -> Iterator[tuple[str, str]]:
    """Check a mixture of experts: the router's part of a loss is too small to be detected in it."""
    config = getattr(getattr(trainer, "model", None), "config", None)
    told = getattr(trainer, "aux_loss_enabled", False) or getattr(trainer, "mean_over", None) is not None
    if getattr(config, "output_router_logits", False) and not told:
        fix = "leave output_router_logits off, or take each microbatch's own by mean_over = 'labels' on your trainer"
        yield "a router's loss, which depends on how samples are packed", fix


PLAIN = ("nothing", "samples")  # what answers' own losses may be said to be means over
OVER: dict[str | None, str] = {  # TRL's own losses on answers, by loss_type; RLOO has none
    **dict.fromkeys(("cispo", "dapo", "vespo"), "nothing"),  # divided by all tokens, whoever runs them
    **dict.fromkeys(("dr_grpo", "grpo", "luspo", "sapo", None), "samples"),
}


def over_of(trainer: Any) -> str | None:
    """Return what a loss on answers is a mean over: of TRL's own it is known, of any other it has to be said."""
    own, told = _first(type(trainer).__mro__, "compute_loss", "_compute_loss"), getattr(trainer, "mean_over", None)
    known = own is not None and own.__module__ in ANSWERING
    return OVER.get(getattr(trainer.args, "loss_type", None), told) if known else told


def check_rollouts(trainer: Any) -> None:
    """Check settings of TRL's GRPOTrainer or RLOOTrainer."""
    for problem, fix in _of_rollouts(trainer):
        raise InputError(problem, where=type(trainer).__name__, fix=fix)


def _of_rollouts(trainer: Any) -> Iterator[tuple[str, str]]:
    own, kinds = trainer.args, type(trainer).__mro__
    generating = _generating(trainer)
    if generating is None or generating.__module__ not in ANSWERING:
        named = (generating or type(trainer)).__name__
        yield f"{named}, which is neither a GRPOTrainer nor an RLOOTrainer", f"train {named} without OnDemandRollouts"
        return
    mixed = [place for place, kind in enumerate(kinds) if hasattr(kind, "rollouts")]
    prepares = _first(kinds[mixed[-1] + 1 if mixed else 0 :], "_prepare_inputs")
    if prepares is not None and prepares.__module__ not in ANSWERING:
        fix = f"write it in front: class Own(OnDemandRollouts, {generating.__name__}) with _prepare_inputs"
        yield f"_prepare_inputs of {prepares.__name__}, which is never called behind OnDemandRollouts", fix
    if own.steps_per_generation % own.gradient_accumulation_steps:
        told = f"steps_per_generation {own.steps_per_generation} in the middle of an optimizer step"
        yield told, f"make it a multiple of gradient_accumulation_steps {own.gradient_accumulation_steps}"
    if getattr(own, "loss_type", None) == "bnpo":
        yield "loss_type 'bnpo', in which answers of a microbatch depend on each other", "use 'dapo' or 'grpo'"
    elif over_of(trainer) not in PLAIN:
        fix = "say mean_over = 'samples' if it is a mean over answers, 'nothing' if it divides by num_items_in_batch"
        yield "a loss of its own, which is not tried since there are no answers yet", fix
    processor = getattr(trainer, "processing_class", None)
    sided = getattr(getattr(processor, "tokenizer", None), "padding_side", "left")
    if sided != "left" and {*TYPES} & {*getattr(processor, "model_input_names", ())}:
        told = f"a processor that pads on the {sided}, where types of tokens lie beside tokens of others"
        yield told, "set padding_side = 'left' on the processor's tokenizer"
    if getattr(trainer, "_entropy_bonus_enabled", False) or getattr(trainer, "top_entropy_quantile", 1.0) < 1.0:
        fix = "leave entropy_coef at 0 and top_entropy_quantile at 1"
        yield "entropies of a microbatch in its loss, so that answers depend on each other", fix


ROWS = "let _generate_and_score_completions give a row for each answer"


def check_answers(answers: dict[str, Any]) -> None:
    """Check answers: a value that is neither one row per answer nor the same for all would go to other answers."""
    count = len(answers["prompt_ids"])
    for name, value in answers.items():
        if value is None or (isinstance(value, Tensor) and not value.dim()):
            continue
        if not isinstance(value, (Tensor, list, tuple)):
            raise InputError(f"'{name}', a {type(value).__name__} beside answers", fix=ROWS)
        if len(value) != count:
            raise InputError(f"'{name}', of which {count} answers have {len(value)} rows", fix=ROWS)


def check_alike(facts: Sequence[dict[str, str]]) -> None:
    """Check that all ranks' answers have the same names and common values, since answers move between ranks."""
    for name in sorted({name for own in facts for name in own}):
        if not all(name in own for own in facts):
            raise InputError(f"'{name}', which answers have on some ranks alone", fix=f"{ROWS}, on every rank")
        if len(found := {own[name] for own in facts}) > 1:
            told = (
                f"'{name}', one value for all answers of a rank, but another one on each ({', '.join(sorted(found))})"
            )
            raise InputError(told, fix=ROWS)


def check_balancer(kind: type, balancer: str) -> None:
    """Check the balancer of a trainer whose ranks synchronize in every microbatch."""
    if (named := getattr(kind, "balancer", balancer)) != balancer:
        told = f"balancer '{named}' where devices meet in every microbatch"
        raise InputError(told, where=kind.__name__, fix=f"leave it at '{balancer}', or take OnDemandMixin")


def check_prepared(model: nn.Module, processes: int) -> None:
    """Check the model that the Trainer has prepared for its own collectives."""
    compiled = getattr(model, "_orig_mod", model)  # before or after it was wrapped
    if isinstance(compiled, nn.DataParallel):
        raise InputError("several GPUs in one process", fix="torchrun --nproc-per-node 2 train.py")
    if processes > 1 and not any(isinstance(one, (FSDPModule, DistributedDataParallel)) for one in (model, compiled)):
        fix = "leave fsdp and deepspeed out, or set fsdp=True and fsdp_config={'version': 2}"
        raise InputError(f"{type(model).__name__}, which is neither DDP's nor FSDP2's", fix=fix)


def check_model(model: nn.Module) -> None:
    """Check the model that the Trainer has prepared."""
    if not isinstance(model, FSDPModule):
        fix = "set fsdp=True and fsdp_config={'version': 2}, or fsdp_version: 2 in accelerate's config file"
        raise InputError(f"{type(model).__name__} is not sharded by FSDP2", fix=fix)


def pads(collate: Any) -> bool:
    """Whether a collate function pads samples to the longest of the batch."""
    return not (getattr(collate, "padding_free", False) or type(collate).__name__ == "DataCollatorWithFlattening")
