"""Shard a model with FSDP2, one unit per layer, prefetching as far ahead as the program says."""

from collections.abc import Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from odcsim.program import Prefetch


def shard(
    model: nn.Module,
    layers: Sequence[nn.Module],
    ahead: Prefetch,
    precision: MixedPrecisionPolicy | None = None,
    mesh: DeviceMesh | None = None,
    *,
    reshard: bool = True,
) -> None:
    """Make each layer a unit, and the rest the root.

    On a GPU, FSDP2 prefetches because the CPU runs ahead; on a CPU nothing does, so each module is told what to
    prefetch.
    """
    policy = precision or MixedPrecisionPolicy()
    for layer in layers:
        fully_shard(layer, mp_policy=policy, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=policy, mesh=mesh)
    _prefetch([model, *layers], ahead.forward, "set_modules_to_forward_prefetch")
    _prefetch([model, *reversed(layers)], ahead.backward, "set_modules_to_backward_prefetch")


def _prefetch(order: Sequence[nn.Module], ahead: int, setter: str) -> None:
    for i, module in enumerate(order):
        assert isinstance(module, FSDPModule)
        # Nothing to prefetch means FSDP2's default, which is one ahead in backward; prefetching itself means none.
        getattr(module, setter)(list(order[i + 1 : i + 1 + ahead]) or [module])
