"""A run on CPUs that hangs: `torchrun hung.py CAUSE`. Its dumps are written by the program of the page on hangs."""

import os
import sys
from datetime import timedelta

import dumps
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH, STEPS, MICROBATCHES = 8, 3, 3


class Net(nn.Module):
    """A tower and a text of units of one size: gloo aborts where sizes differ."""

    def __init__(self):
        super().__init__()
        self.tower = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.text = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def see(self, hidden):
        for unit in self.tower:
            hidden = unit(hidden)
        return hidden

    def forward(self, hidden, image):
        hidden = self.see(hidden) if image else hidden
        for unit in self.text:
            hidden = unit(hidden)
        return self.head(hidden)


def evaluate(model):
    with torch.no_grad():
        for _ in range(4):
            model(torch.randn(2, WIDTH), True)


def train(cause):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model, beside = Net(), dist.new_group()
    for unit in (*model.tower, *model.text, model):
        fully_shard(unit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS + (cause == "evaluation")):
        here = step == STEPS - 1 and rank == (0 if cause == "evaluation" else last)
        if cause == "dead" and here:
            os._exit(0)
        for m in range(MICROBATCHES - (here and cause in ("microbatches", "beside"))):
            model(torch.randn(2, WIDTH), not (here and m == 1 and cause == "tower")).sum().backward()
        if cause == "beside":  # a sum that all ranks come to in a group of its own
            dist.all_reduce(torch.ones(1), group=beside)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if here and cause == "evaluation":
            evaluate(model)
        if cause == "order":
            for group in (beside, None) if here else (None, beside):
                dist.all_reduce(torch.ones(2), group=group)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    dumps.start("dumps")
    train(sys.argv[1])
    dist.barrier()
