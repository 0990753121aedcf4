"""Make the example of docs/howto/slow-step.md: a run whose ranks wait, as odc_engine.Watcher saw it.

    python docs/studies/slow_step.py traces/slow-step
    python docs/studies/slow_step.py docs/images/slow-step.png    (draws its worst step, which needs a Chromium)

Each rank is a process that gathers every layer over gloo, as FSDP does. Compute is sleep, seconds by tokens and squares
of lengths, so that ranks do not disturb each other on a machine with few cores. Samples are ShareGPT's, in the order of
the draw, two in a microbatch.
"""

import argparse
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from draw import save

import odcsim
from odc_engine import Watcher
from odcsim import plots

RANKS, STEPS, MICROBATCHES, SAMPLES, LAYERS = 4, 12, 4, 2, 2
LONGEST = 8192


def seconds(lengths: list[int]) -> float:
    """Of a forward and a backward pass."""
    return 0.02 + 1e-4 * sum(lengths) + 1e-8 * sum(n * n for n in lengths)


def train(rank: int, folder: str, lengths: list[int]) -> None:
    store = dist.FileStore(str(Path(folder, ".store")), RANKS)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store, timeout=timedelta(minutes=2))
    watcher = Watcher(folder, every=0)
    mine, whole = torch.zeros(4096), [torch.zeros(4096) for _ in range(RANKS)]
    for step in range(STEPS):
        dist.barrier()
        for microbatch in range(MICROBATCHES):
            first = ((step * RANKS + rank) * MICROBATCHES + microbatch) * SAMPLES
            held = lengths[first : first + SAMPLES]
            with watcher.microbatch(held):
                for _ in range(2 * LAYERS):
                    dist.all_gather(whole, mine)
                    time.sleep(seconds(held) / (2 * LAYERS))
        dist.all_reduce(mine)
        watcher.step()
    dist.destroy_process_group()


def run(folder: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    trace = odcsim.load("sharegpt", truncate=LONGEST)
    lengths = [int(n) for n in odcsim.reading.draw(trace, RANKS * STEPS * MICROBATCHES * SAMPLES, seed=3)]
    mp.spawn(train, args=(folder, lengths), nprocs=RANKS)
    Path(folder, ".store").unlink(missing_ok=True)


def draw(picture: str) -> None:
    told = odcsim.diagnose("slow-step")
    save(plots.worst_step(told.run, told.found), Path(picture))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("written", help="a folder for the ranks' files, or a PNG")
    written = parser.parse_args().written
    (draw if written.endswith(".png") else run)(written)


if __name__ == "__main__":
    main()
