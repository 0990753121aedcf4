"""A model, how it is trained and sharded, and what each rank gets of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812

from paths.families import SEED, Batch, Family
from paths.skipping import Skipping

Images = tuple[tuple[int, ...], ...]
Gradients = dict[str, Tensor | None]


@dataclass(frozen=True)
class Kind:
    """`images`: in each microbatch of each rank; `units`: names of classes that are FSDP units, if not all that the
    family has; `changed`: what is done to the model before it is sharded; `told`: stock FSDP2 is told that parameters
    may be unused; `evaluates`: forward passes alone, of which logits are compared."""

    family: Family | Skipping
    images: Images = ((2,), (0,))
    changed: Callable[["Kind", nn.Module], nn.Module] | None = None
    units: tuple[str, ...] | None = None
    told: bool = False
    evaluates: bool = False

    @property
    def ranks(self) -> int:
        return len(self.images)

    def fresh(self) -> nn.Module:
        model = self.family.fresh()
        return self.changed(self, model) if self.changed else model

    def sharded(self, mesh: DeviceMesh | None = None) -> nn.Module:
        model = self.fresh()
        for module in self._unit_modules(model):
            fully_shard(module, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def _unit_modules(self, model: nn.Module) -> Iterator[nn.Module]:
        names = self.family.units if self.units is None else self.units
        return (module for module in model.modules() if type(module).__name__ in names)

    def names(self, model: nn.Module) -> dict[str, nn.Module]:
        """Of units beside the root."""
        units = set(self._unit_modules(model))
        return {name: module for name, module in model.named_modules() if module in units}

    def logits(self, model: nn.Module, rank: int, microbatch: int, step: int = 0) -> tuple[Tensor, Batch]:
        seed = 1000 * step + 100 * rank + microbatch + SEED
        batch = self.family.batch(self.images[rank][microbatch], torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)  # which layers are dropped
        return model(**batch).logits, batch

    def loss(self, model: nn.Module, rank: int, microbatch: int, step: int = 0) -> Tensor:
        """A sum over tokens, which no packing changes."""
        logits, batch = self.logits(model, rank, microbatch, step)
        return F.cross_entropy(logits[0, :-1], batch["input_ids"][0, 1:], reduction="sum") / 100

    def backward(self, model: nn.Module, rank: int, step: int = 0) -> None:
        """What a rank does between two steps."""
        for microbatch in range(len(self.images[rank])):
            loss = self.loss(model, rank, microbatch, step)
            if loss.requires_grad:  # adapters of a tower alone get nothing from text
                loss.backward()

    def evaluated(self, model: nn.Module, rank: int) -> list[Tensor]:
        model.eval()
        with torch.no_grad():
            return [self.logits(model, rank, microbatch)[0] for microbatch in range(len(self.images[rank]))]


# What is done to a model.


def frozen(kind: Kind, model: nn.Module) -> nn.Module:
    model.get_submodule(kind.family.tower).requires_grad_(False)
    return model


def joint_frozen(kind: Kind, model: nn.Module) -> nn.Module:
    """What joins the tower to the text, too."""
    model.model.multi_modal_projector.requires_grad_(False)
    return frozen(kind, model)


def text_frozen(kind: Kind, model: nn.Module) -> nn.Module:
    """The tower and what joins it to the text are trained."""
    kept = {*model.get_submodule(kind.family.tower).parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter in kept or "projector" in name)
    return model


def adapted(kind: Kind, model: nn.Module) -> nn.Module:  # noqa: ARG001
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(SEED)
    own = get_peft_model(model, LoraConfig(r=4, target_modules=["qkv", "q_proj", "v_proj"], init_lora_weights=False))
    return own.double()


def recomputed(kind: Kind, model: nn.Module) -> nn.Module:  # noqa: ARG001
    model.activation_checkpointing_enable({"use_reentrant": False})
    return model.train()
