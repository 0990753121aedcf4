"""A run of stock FSDP2 over gloo, with causes of waiting that are put into it and a record of what was really done.

Each rank is a process. Compute is an operator that sleeps, forward and twice as long backward, so that ranks do not
disturb each other on a machine with few cores; torch.profiler looks on. Beside its trace every rank
writes what it measured by itself: seconds of its own compute, when it came to each collective and when that was done,
and seconds of what was put in.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

LAYERS, WIDTH = 2, 32
SKIPPED = 2  # steps before the profiler looks: the first one starts up, one more warms the profiler
MEETINGS = ("all_gather_single", "reduce_scatter_single", "all_gather_into_tensor", "reduce_scatter_tensor")


@dataclass(frozen=True, slots=True)
class Injected:
    """What is put into a run. All zero: nothing, and lengths are even."""

    lengths: float = 0.0  # sigma of the logarithm of lengths
    device: float = 1.0  # how many times as long one rank takes for equal work
    network: int = 0  # MiB that each layer moves besides
    loader: float = 0.0  # seconds that a microbatch is late
    collector: float = 0.0  # seconds of a collection in each step, on one rank at a time
    slow: int = 1  # the rank that is slow


@dataclass(frozen=True, slots=True)
class Asked:
    injected: Injected
    folder: str
    ranks: int = 2
    steps: int = 3
    microbatches: int = 3
    tokens: int = 256  # of a microbatch, in the median
    pace: float = 2e-4  # seconds of a token in a layer's forward pass
    seed: int = 0


@dataclass(slots=True)
class Record:
    """What one rank measured in one step; all ranks of a machine have one clock."""

    step: int
    begin: float
    end: float = 0.0
    compute: float = 0.0
    loader: float = 0.0
    collector: float = 0.0
    came: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)  # seconds of each microbatch's compute


class Notes:
    """Where the parts of a rank say what they did."""

    def __init__(self) -> None:
        self.steps: list[Record] = []

    @property
    def now(self) -> Record:
        return self.steps[-1]

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        self.steps.append(Record(number, time.perf_counter()))
        yield
        self.now.end = time.perf_counter()

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        setattr(self.now, name, getattr(self.now, name) + time.perf_counter() - begin)


NOTES = Notes()  # of this process


@torch.library.custom_op("causes::work", mutates_args=())
def work(given: Tensor, seconds: float) -> Tensor:
    begin = time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - begin
    NOTES.now.compute += took
    NOTES.now.worked[-1] += took
    return given.clone()


@work.register_fake
def _(given: Tensor, seconds: float) -> Tensor:
    del seconds
    return torch.empty_like(given)


def _keep(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    del output
    ctx.seconds = inputs[1]


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return torch.ops.causes.work(gradient, 2 * ctx.seconds), None


work.register_autograd(_back, setup_context=_keep)


class Layer(nn.Module):
    """A product that is small, compute that sleeps, and parameters that are moved and hardly used."""

    def __init__(self, pace: float, ballast: int) -> None:
        super().__init__()
        self.pace = pace
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.ballast = nn.Parameter(torch.zeros(max(1, ballast * 2**18)))

    def forward(self, x: Tensor) -> Tensor:
        return work(self.linear(x) + self.ballast[:1], self.pace * len(x))


class Model(nn.Module):
    def __init__(self, pace: float, ballast: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(pace, ballast) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Tokens(Dataset[Tensor]):
    """Microbatches of this rank, the loader's delay among them."""

    def __init__(self, lengths: Sequence[int], delay: float) -> None:
        self.lengths, self.delay = lengths, delay

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Tensor:
        time.sleep(self.delay)
        return torch.randn(self.lengths[i], WIDTH)


def lengths_of(asked: Asked) -> list[list[int]]:
    """Of each rank's microbatches. Multiples of 32, so that ranks meet equal ones now and then."""
    draw = np.random.default_rng(asked.seed)
    count = (asked.steps + SKIPPED) * asked.microbatches
    drawn = asked.tokens * np.exp(draw.normal(0, asked.injected.lengths, (asked.ranks, count)))
    return (np.clip(np.round(drawn / 32), 1, 4 * asked.tokens / 32) * 32).astype(int).tolist()  # type: ignore[no-any-return]


def _noted(meeting: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:
        NOTES.now.came.append(time.perf_counter())
        found = meeting(*args, **kwargs)
        NOTES.now.done.append(time.perf_counter())
        return found

    return noting


def rank_of(rank: int, asked: Asked) -> None:
    """What one process does."""
    torch.set_num_threads(1)
    for name in MEETINGS:
        if hasattr(dist, name):
            setattr(dist, name, _noted(getattr(dist, name)))
    store = dist.FileStore(str(Path(asked.folder, "store")), asked.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=asked.ranks)
    torch.manual_seed(rank)
    injected = asked.injected
    pace = asked.pace * (injected.device if rank == injected.slow else 1.0)
    model = Model(pace, injected.network)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = iter(DataLoader(Tokens(lengths_of(asked)[rank], injected.loader), batch_size=None))
    gc.disable()
    try:
        _train(rank, asked, model, optimizer, loader)
    finally:
        gc.enable()
    kept = [asdict(step) for step in NOTES.steps if step.step >= SKIPPED]
    Path(asked.folder, f"record-rank{rank}.json").write_text(json.dumps(kept))
    dist.destroy_process_group()


def _train(
    rank: int, asked: Asked, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterator[Tensor]
) -> None:
    path = str(Path(asked.folder, f"rank{rank}.json"))
    plan = schedule(wait=SKIPPED - 1, warmup=1, active=asked.steps)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda seen: seen.export_chrome_trace(path),
    ) as profiler:
        for step in range(SKIPPED + asked.steps):
            if step == SKIPPED - 1:
                dist.barrier()
            with NOTES.step(step):
                _step(rank, step, asked, model, optimizer, loader)
            profiler.step()


def _step(
    rank: int, step: int, asked: Asked, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterator[Tensor]
) -> None:
    for microbatch in range(asked.microbatches):
        with NOTES.timing("loader"):
            tokens = next(loader)
        NOTES.now.lengths.append(len(tokens))
        NOTES.now.worked.append(0.0)
        if asked.injected.collector and microbatch == 1 and step % asked.ranks == rank:
            with NOTES.timing("collector"), record_function("gc.collect"):
                gc.collect()
                time.sleep(asked.injected.collector)
        model(tokens).square().mean().backward()
    with NOTES.timing("compute"):
        optimizer.step()
        optimizer.zero_grad()


def run(asked: Asked) -> None:
    """Traces `rank*.json` and records `record-rank*.json` of one run, in its folder."""
    Path(asked.folder).mkdir(parents=True, exist_ok=True)
    Path(asked.folder, "store").unlink(missing_ok=True)
    mp.spawn(rank_of, args=(asked,), nprocs=asked.ranks)
