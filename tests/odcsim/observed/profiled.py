"""torchrun --nproc-per-node 2 profiled.py WRAP FOLDER: a stock training loop over gloo under torch.profiler.

Every rank writes its trace and, beside it, how many tokens each microbatch of each step had.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

HIDDEN, LAYERS, WORDS, STEPS, MICROBATCHES, WAIT = 32, 3, 100, 3, 2, 1


class TinyDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU()) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def wrapped(model: TinyDecoder, wrap: str) -> nn.Module:
    if wrap == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main(wrap: str, folder: Path) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    model = wrapped(TinyDecoder(), wrap)
    optimizer = torch.optim.SGD(model.parameters())
    kept: list[list[int]] = []
    told = {"activities": [ProfilerActivity.CPU], "record_shapes": True}
    told |= {"schedule": schedule(wait=WAIT, warmup=1, active=STEPS)}
    path = str(folder / f"rank{rank}.json")
    with profile(**told, on_trace_ready=lambda found: found.export_chrome_trace(path)) as profiler:
        for _ in range(WAIT + 1 + STEPS):
            counts = torch.randint(5, 300, (MICROBATCHES,)).tolist()
            kept.append(counts)
            for count in counts:
                model(torch.randint(WORDS, (1, count))).float().logsumexp(-1).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    (folder / f"kept{rank}.json").write_text(json.dumps(kept[WAIT + 1 :]))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(sys.argv[1], Path(sys.argv[2]))
