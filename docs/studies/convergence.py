"""Train a small model on the text of Python's own help under every sync, and draw the losses over each other.

    python docs/studies/convergence.py [--steps 300] [-o docs/images/convergence.png]

Paragraphs are samples, bytes are tokens. All runs see the same minibatches; they differ in who computes what when, and
so in the order in which gradients are added up. How far that alone carries two runs apart is shown by collective runs
of the same minibatches whose microbatches and samples stand in another order: the spread.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import draw
import numpy as np
import torch
import torch.distributed as dist

from odc_engine import OnDemand, Packed, pack, token_mean
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.decoder.model import Decoder
from odc_engine.fsdp.sharding import shard
from odc_engine.runs import launch
from odcsim import catalog
from odcsim.balance import balance
from odcsim.program import prefetch_named

ROOT = Path(__file__).parents[2]
DEVICES, SAMPLES = 2, 8  # of a minibatch
LONGEST, LIMIT = 384, 512  # tokens of a sample, and of a microbatch
ORDERS = 2  # further collective runs, each with its own order
Slots = list[list[list[int]]]  # device -> microbatch -> samples


@dataclass(frozen=True, slots=True)
class Way:
    """One training run."""

    name: str
    sync: str
    balancer: str
    order: int = 0  # 0: as balanced; else microbatches and samples are shuffled by this seed


WAYS = (
    Way("collective", "collective", "lb-micro"),
    Way("deferred", "deferred", "lb-micro"),
    Way("on-demand + lb-micro", "on-demand", "lb-micro"),
    Way("on-demand + lb-mini", "on-demand", "lb-mini"),
    *(Way(f"collective, order {i}", "collective", "lb-micro", i) for i in range(1, ORDERS + 1)),
)


def paragraphs() -> list[bytes]:
    """Text that is wherever Python is, and differs only between its releases."""
    found = [part.strip() for name in sorted(topics) for part in topics[name].encode().split(b"\n\n")]
    return [part[:LONGEST] for part in found if len(part) > 15]


def minibatches(steps: int) -> list[list[bytes]]:
    text, draws = paragraphs(), np.random.default_rng(0)
    return [[text[i] for i in draws.choice(len(text), SAMPLES, replace=False)] for _ in range(steps)]


def slots(minibatch: list[bytes], way: Way, step: int) -> Slots:
    """Who computes what. Microbatches without samples compute nothing and are left out where counts may differ."""
    lengths = np.array([len(sample) for sample in minibatch])
    devices = balance(way.balancer, lengths, lengths.astype(float), DEVICES, LIMIT)
    found = [[list(part) for part in device] for device in devices]
    if way.order:
        draws = np.random.default_rng((way.order, step))
        for device in found:
            draws.shuffle(device)  # type: ignore[arg-type]
            for part in device:
                draws.shuffle(part)
    return found


def batch(minibatch: list[bytes], chosen: list[int]) -> Packed:
    """One microbatch, its losses weighed so that a minibatch's sum is the mean over its tokens."""
    each = token_mean([len(sample) - 1 for sample in minibatch])
    samples = [torch.tensor(list(minibatch[i])) for i in chosen]
    return pack(samples, [torch.full((len(s),), each[i]) for i, s in zip(chosen, samples, strict=True)])


def losses(way: Way, data: list[list[bytes]], rank: int) -> list[float]:
    """This device's part of each minibatch's loss."""
    model = Decoder(catalog.model("nano"), seed=1)
    shard(model, list(model.layers), prefetch_named("fsdp2"))
    odc = OnDemand(model, meets=way.sync != "on-demand", average=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for step, minibatch in enumerate(data):
        mine, total = slots(minibatch, way, step)[rank], 0.0
        for m, chosen in enumerate(mine):
            if way.sync == "deferred":
                model.set_requires_gradient_sync(m == len(mine) - 1)
            loss = model(batch(minibatch, chosen))
            loss.backward()
            total += loss.item()
        odc.settle()
        optimizer.step()
        optimizer.zero_grad()
        odc.publish()
        found.append(total)
    odc.close()
    return found


def train(memory: SharedMemory, steps: int, path: str) -> None:
    data = minibatches(steps)
    curves = {}
    for way in WAYS:
        total = torch.tensor(losses(way, data, memory.rank), dtype=torch.float64)
        dist.all_reduce(total)
        curves[way.name] = total.tolist()
        if memory.rank == 0:
            print(f"{way.name:<24} {total[:10].mean():.4f} -> {total[-10:].mean():.4f}", flush=True)
    if memory.rank == 0:
        Path(path).write_text(json.dumps(curves))


def curves(steps: int) -> dict[str, list[float]]:
    """The loss of every minibatch under every way."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "curves.json"
        if code := launch.run(train, DEVICES, 120.0, steps, str(path)):
            raise SystemExit(code)
        return dict(json.loads(path.read_text()))


def apart(one: list[float], other: list[float]) -> float:
    """Root mean square difference of two curves."""
    return float(np.sqrt(np.mean((np.array(one) - np.array(other)) ** 2)))


def spread(found: dict[str, list[float]]) -> float:
    """How far collective runs lie apart at most."""
    rivals = [found[way.name] for way in WAYS if way.sync == "collective"]
    return max(apart(one, other) for one in rivals for other in rivals)


def main() -> None:
    parser = argparse.ArgumentParser(description="Losses under every sync.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("-o", dest="output", default=str(ROOT / "docs/images/convergence.png"))
    args = parser.parse_args()
    found = curves(args.steps)
    print(f"largest distance between two collective runs: {spread(found):.2e}")
    for way in WAYS[1:4]:
        print(f"{way.name + ' to collective':<38} {apart(found[way.name], found['collective']):.2e}")
    draw.convergence(found, Path(args.output))


if __name__ == "__main__":
    main()
