"""What FSDP2's hooks around a layer take of the host in each pass: layers so small that nothing else takes time.

    python docs/studies/hooks.py [--layers 12] [--times 30]

One process, a mesh of one device of a CPU: the hooks run and nothing moves. `HOOKS` of
odcsim/catalog/estimates/work.py is what it prints.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH, TOKENS = 32, 8


class Layer(nn.Module):
    """As many matmuls as a decoder's layer has, and its two norms."""

    def __init__(self) -> None:
        super().__init__()
        matmuls = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(7)]
        self.steps = nn.ModuleList([nn.LayerNorm(WIDTH), *matmuls, nn.LayerNorm(WIDTH)])

    def forward(self, hidden: Tensor) -> Tensor:
        for step in self.steps:
            hidden = step(hidden)
        return hidden


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def sharded(model: Layers) -> Layers:
    mesh, usual = (
        init_device_mesh("cpu", (1,), mesh_dim_names=("shard",)),
        MixedPrecisionPolicy(torch.bfloat16, torch.float32),
    )
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=usual)
    fully_shard(model, mesh=mesh, mp_policy=usual)
    return model


def timed(what: Callable[[], object], times: int) -> float:
    """The median of so many calls, after two that warm up."""
    found = []
    for _ in range(times + 2):
        begun = time.perf_counter()
        what()
        found.append(time.perf_counter() - begun)
    return statistics.median(found[2:])


def passes(model: Layers, times: int) -> tuple[float, float]:
    """Seconds of a layer's forward and of its backward."""
    given = torch.randn(TOKENS, WIDTH)

    def forward() -> Tensor:
        out: Tensor = model(given).sum()
        return out

    ahead, both = timed(forward, times), timed(lambda: forward().backward(), times)
    return ahead / len(model.layers), (both - ahead) / len(model.layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--times", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    plain, hooked = passes(Layers(args.layers), args.times), passes(sharded(Layers(args.layers)), args.times)
    for name, without, with_hooks in zip(("forward", "backward"), plain, hooked, strict=True):
        hooks = f"{(with_hooks - without) * 1e3:.2f} ms of hooks"
        print(f"{name:8} of a layer: {without * 1e3:.2f} ms, sharded {with_hooks * 1e3:.2f} ms: {hooks}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
