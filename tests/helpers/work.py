"""What the devices of a pool do for tests: shard a model, run a minibatch, tell what came of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import nets
import pytest
import torch
from fake_nvshmem import FakeNvshmem
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from odc_engine import OnDemand
from odc_engine.backends.nvshmem.memory import NvshmemMemory
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.fsdp.collective import Collective
from odcsim.errors import InputError

SEED = 5


@dataclass(frozen=True)
class Case:
    """A model and how it is sharded and synchronised. `counts`: microbatches of each device."""

    counts: tuple[int, ...]
    model: Callable[[], nn.Module] = nets.Net
    sync: str = "on-demand"
    backend: str = "shm"
    accumulate: str = "locked"
    reshard: bool | int = True
    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    # Of what modules, beside the root: a list's members are a unit each, and those of a tuple one together.
    units: tuple[str | tuple[str, ...], ...] = ("layers",)
    prefetch: int = 0
    loss: Callable[..., Tensor] = nets.loss
    trail: int = 2
    machines: tuple[int, ...] = ()  # devices on each, under backend nvshmem
    per_node: int | None = None
    far: str = "each"
    hides: str = ""  # a setter of FSDP2 that an older torch does not have
    part: bool = False  # shard over pairs of the devices alone, each pair for itself

    def but(self, **changes) -> "Case":
        return replace(self, **changes)

    def fresh(self) -> nn.Module:
        torch.manual_seed(SEED)
        return self.model()


def shard(case: Case, model: nn.Module) -> nn.Module:
    found = []
    how = {"mp_policy": case.policy, "reshard_after_forward": case.reshard}
    if case.part:
        how["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("part", "shard"))["shard"]
    for name in case.units:
        together = isinstance(name, tuple)
        module = [model.get_submodule(each) for each in name] if together else model.get_submodule(name)
        found += list(module) if isinstance(module, nn.ModuleList) else [module]
    for module in found:
        fully_shard(module, **how)
    fully_shard(model, **how)
    for i, module in enumerate(found if case.prefetch else []):
        module.set_modules_to_forward_prefetch(found[i + 1 : i + 1 + case.prefetch])
    return model


@contextmanager
def device(case: Case, model: nn.Module | None = None) -> Iterator[tuple[nn.Module, OnDemand | Collective]]:
    """A sharded model, its communication replaced."""
    with hidden(case.hides):
        model = shard(case, case.fresh() if model is None else model)
        comm = communication(case, model)
        try:
            yield model, comm
        finally:
            comm.close()


@contextmanager
def hidden(setter: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if setter:
            patch.delattr(FSDPModule, setter, raising=False)
        yield


def communication(case: Case, model: nn.Module) -> OnDemand | Collective:
    if case.backend == "torch":
        return Collective(model)
    memory = None
    if case.backend == "nvshmem":
        memory = NvshmemMemory(SharedMemory(timeout=30), FakeNvshmem(case.machines))
    how = {"accumulate": case.accumulate, "trail": case.trail, "devices_per_node": case.per_node, "far": case.far}
    return OnDemand(model, memory=memory, **how, meets=case.sync != "on-demand", average=False, timeout=30)


def minibatch(case: Case, rank: int, model: nn.Module, comm, number: int = 0) -> float:
    """This device's microbatches; then the sum is in .grad. This device's loss."""
    total = 0.0
    for m in range(case.counts[rank]):
        if case.sync == "deferred":
            model.set_requires_gradient_sync(m == case.counts[rank] - 1)
        value = case.loss(model, rank, m, number)
        value.backward()
        total += value.item()
    comm.settle()
    return total


def train(case: Case, rank: int, model: nn.Module, comm, optimizer, numbers) -> list[float]:
    """Minibatch after minibatch, as fsdp.py's docstring has it."""
    losses = []
    for number in numbers:
        losses.append(minibatch(case, rank, model, comm, number))
        optimizer.step()
        optimizer.zero_grad()
        comm.publish()
    return losses


def whole(value: Tensor | None) -> Tensor | None:
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return None if value is None else value.detach().clone()


def whole_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: whole(p.grad) for name, p in model.named_parameters()}


def whole_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p) for name, p in model.named_parameters()}


def gradients(rank: int, case: Case) -> dict[str, Tensor | None]:
    with device(case) as (model, comm):
        minibatch(case, rank, model, comm)
        return whole_gradients(model)


def trained(rank: int, case: Case, minibatches: int) -> dict[str, Tensor]:
    with device(case) as (model, comm):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(case, rank, model, comm, optimizer, range(minibatches))
        return whole_parameters(model)


def evaluate(case: Case, model: nn.Module, rank: int, microbatches: int = 3) -> list[float]:
    """Losses of forward passes alone."""
    with torch.no_grad():
        return [case.loss(model, rank, m, 77).item() for m in range(microbatches)]


def unsharded(case: Case, model: nn.Module) -> nn.Module:
    """The same weights in one piece."""
    weights = whole_parameters(model)
    alone = case.fresh()
    alone.load_state_dict(weights, strict=False)
    return alone


def told(call: Callable) -> str:
    """The refusal's one line, or what happened instead."""
    try:
        call()
    except InputError as error:
        return str(error)
    return "nothing was refused"


def refused(call: Callable) -> bool:
    """By an InputError, as what cannot be done is."""
    return told(call) != "nothing was refused"


# In the test's own process, without any engine.


def reference(case: Case, minibatch: int = 0, model: nn.Module | None = None) -> dict[str, Tensor | None]:
    """One process, fp64, one microbatch after the other."""
    model = (case.fresh() if model is None else model).double()
    for rank, count in enumerate(case.counts):
        for m in range(count):
            case.loss(model, rank, m, minibatch).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def error(mine: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> float:
    """Largest |difference| over largest |reference|, of the worst parameter. None must meet None."""
    assert mine.keys() == expected.keys()
    unused = {name for name, value in expected.items() if value is None}
    assert {name for name, value in mine.items() if value is None} == unused
    worst = []
    for name in expected.keys() - unused:
        one, other = mine[name].detach().double(), expected[name].detach().double()
        assert one.shape == other.shape
        worst.append(float((one - other).abs().max() / (other.abs().max() if other.any() else 1.0)))
    return max(worst)
