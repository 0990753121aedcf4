"""Training that clips, saves by torch.distributed.checkpoint after a step without any image, and goes on in a fresh
model; and the same in one process that never stops."""

from dataclasses import dataclass, replace

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from odc_engine import OnDemand
from paths import families
from paths.followed import whole
from paths.kind import Images, Kind

STEPS: tuple[Images, ...] = (((0,), (0,)), ((2,), (0,)), ((0,), (0,)), ((0,), (1,)), ((1,), (2,)))
SAVED = 3  # steps before the checkpoint
MOST = 0.5  # norm of gradients, which all steps exceed
KIND = Kind(families.QWEN2_5_VL)


@dataclass(frozen=True)
class Trained:
    norms: list[float]
    weights: dict[str, Tensor]


def in_one_process() -> tuple[list[float], dict[str, Tensor]]:
    model, norms = KIND.fresh(), []
    optimizer = _optimizer(model)
    for step, images in enumerate(STEPS):
        for rank in range(len(images)):
            replace(KIND, images=images).backward(model, rank, step)
        norms.append(_clipped(model))
        optimizer.step()
        optimizer.zero_grad()
    return norms, _weights(model)


def saved_and_resumed(rank: int, folder: str) -> Trained:
    torch.set_num_threads(1)
    norms, model = [], KIND.sharded()
    optimizer = _optimizer(model)
    norms += _steps(rank, model, optimizer, range(SAVED))
    dcp.save(_state(model, optimizer), checkpoint_id=folder)
    torch.manual_seed(99)
    other = KIND.sharded()
    nn.init.zeros_(other.lm_head.weight)
    optimizer = _optimizer(other)
    state = _state(other, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    norms += _steps(rank, other, optimizer, range(SAVED, len(STEPS)))
    return Trained(norms, _weights(other))


def _steps(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    odc, norms = OnDemand(model, average=False, timeout=60), []
    try:
        for step in steps:
            replace(KIND, images=STEPS[step]).backward(model, rank, step)
            odc.settle()
            norms.append(_clipped(model))
            optimizer.step()
            optimizer.zero_grad()
            odc.publish()
    finally:
        odc.close()
    return norms


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-4)


def _clipped(model: nn.Module) -> float:
    return whole(nn.utils.clip_grad_norm_(model.parameters(), MOST)).item()


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    own, of_optimizer = get_state_dict(model, optimizer)
    return {"model": own, "optimizer": of_optimizer}


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(parameter) for name, parameter in model.named_parameters()}
