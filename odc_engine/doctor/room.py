"""Estimate what a model needs of each rank's memory, by how gradients are summed. Needs no torch.

Arenas have the layout of `memory/arena.py` and the room of `memory/spare.py`; tests hold the two together.
"""

from collections.abc import Iterator

from odc_engine.doctor.finding import Finding
from odc_engine.memory.spare import room_for
from odcsim import catalog
from odcsim.model import Model

FP32 = 4
STATES = 4 * FP32  # bytes for each element of a shard: weight, gradient, and two numbers of AdamW
NODE = 8  # GPUs of a machine where none are to be counted
LESS = "use more devices, or a smaller model"


def slots(model: Model, devices: int) -> int:
    """Return bytes of a rank's arena in fp32 with a slot for each rank, and memory for bytes that a network carries."""
    largest = -(-max(model.layer_parameters, model.root_parameters) // devices)
    return FP32 * _shard(model, devices) * (1 + devices) + 2 * room_for(FP32 * largest, devices - 1)


def locked(model: Model, devices: int) -> int:
    """Return bytes of an arena with one sum for each shard."""
    return 2 * FP32 * _shard(model, devices)


def arena(name: str, devices: int) -> int:
    """Return bytes that suffice for either."""
    return slots(catalog.model(name), devices)


def examine(name: str, devices: int, gpus: int, each: int) -> Iterator[Finding]:
    """`each`: bytes of a GPU, 0 where there is none."""
    model, here = catalog.model(name), gpus or NODE
    if devices <= gpus or not gpus:
        yield _finding("locked", locked(model, devices), _shard(model, devices), each, "on one machine")
    yield _finding("slots", slots(model, devices), _shard(model, devices), each, f"over {devices} devices")
    if devices > here and not devices % here:
        where = f"a mesh of {devices // here} x {here}"
        yield _finding("hybrid", locked(model, here), _shard(model, here), each, where)


def _shard(model: Model, devices: int) -> int:
    return -(-model.parameters // devices)


def _finding(name: str, arena: int, shard: int, each: int, where: str) -> Finding:
    states = STATES * shard
    said = f"{where}: an arena of {_gb(arena)} in fp32, and {_gb(states)} of weights, gradients and AdamW"
    left = each - arena - states
    if not each:
        return Finding("memory", name, said, True)
    if left <= 0:
        return Finding("memory", name, f"{said}: more than a GPU's {_gb(each)}", False, LESS)
    return Finding("memory", name, f"{said}, which leave {_gb(left)} of a GPU's {_gb(each)} to microbatches", True)


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
