"""Hold generation, and whole steps of reinforcement learning, against published times, and write docs/rollouts.md.

    python docs/studies/rollouts.py [-o docs/rollouts.md]

What a step of decoding takes beside bytes and FLOPs is fitted to all publishers but the one that is predicted. Logs say
the mean of the answers, where they are cut and seldom how many are: the rest of their distribution is assumed.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy.optimize import brentq

from odcsim import Trace, catalog, rl
from odcsim.cluster import GPU, cluster_of
from odcsim.decide import generation
from odcsim.decide.generation import ALONE, BANDWIDTH, HIGH, LOW, SHARED, STEP, TOKEN, engine_of, generate

HERE = Path(__file__).parent
SPREAD = 0.5  # of the logarithms of answers, where a log says nothing of it
RUNAWAY = 0.003  # of answers reach the cut, where a log says nothing of it: 0.2 and 0.4 % in two logs that do
REPEATS = 6  # steps that are drawn
NORMAL = np.sort(np.random.default_rng(0).standard_normal(20_000))
STEPS = [0.5e-3 * n for n in range(9)]  # seconds of a step and of a token that are tried: of 256 answers at once
TOKENS = [1e-5 * n for n in range(9)]  # vLLM is known to write 12,500 tokens a second, which leaves no more
NEMO, VERL, BLOG = "NeMo-RL 0.5", "verl 0.10, R1", "NeMo-RL 0.3"


@dataclass(frozen=True)
class Run:
    """A published step: of so many GPUs some generate alone, one step ahead."""

    source: str
    model: str
    gpu: str
    gpus: int
    alone: int
    answer: int  # tokens, on average
    tensor: int
    step: float  # seconds, as published; and where somebody says them, of generation and of what is computed after it
    generation: float | None = None
    rest: float | None = None
    prompts: int = 64
    rollouts: int = 32
    updates: int = 4
    cut: int = 4096 - 150
    prompt: int = 150

    @property
    def words(self) -> str:
        return f"{self.model}, {self.gpus} x {self.gpu}, {f'{self.alone} one step ahead' if self.alone else 'in turn'}"


RUNS = (
    Run(VERL, "qwen3-8b", "h20", 4, 0, 1674, 2, 89.3, 37.3, 47.7, 16, 8, 2, 8192, 157),
    Run(BLOG, "llama-3.1-8b", "h100", 8, 0, 777, 1, 122, 57, 57),
    Run(NEMO, "llama-3.1-8b", "h100", 16, 0, 869, 1, 92.8),
    Run(NEMO, "llama-3.1-8b", "h100", 16, 8, 973, 1, 64.8),
    Run(NEMO, "llama-3.1-8b", "gb200", 8, 0, 916, 1, 91.0),
    Run(NEMO, "llama-3.1-8b", "gb200", 8, 4, 957, 1, 71.1),
    Run(NEMO, "qwen3-32b", "h100", 32, 0, 3101, 4, 376),
    Run(NEMO, "qwen3-32b", "h100", 64, 32, 3102, 4, 200),
    Run(NEMO, "qwen3-32b", "gb200", 16, 0, 3103, 1, 381),
    Run(NEMO, "qwen3-32b", "gb200", 32, 16, 3108, 1, 210),
    Run(NEMO, "qwen3-30b-a3b", "h100", 32, 0, 3046, 2, 198),
    Run(NEMO, "qwen3-30b-a3b", "h100", 32, 16, 3051, 2, 154),
)


@dataclass(frozen=True)
class Log:
    """What somebody published of one run, and answers like its own."""

    row: dict[str, str]
    steps: Sequence[tuple[np.ndarray, np.ndarray]]

    @property
    def seconds(self) -> float:
        return float(self.row["generation"])

    def predict(self) -> float:
        row, gpu = self.row, gpu_of(self.row["gpu"])
        gpus, alone = int(row["gpus"]), row["with"] == "alone"
        engine = engine_of(
            catalog.model(row["model"]), gpu, cluster_of(gpu, gpus), ALONE if alone else SHARED, int(row["tensor"])
        )
        found = generate(engine, gpus, self.steps, int(row["rollouts"]))
        assert found is not None
        return found.seconds


def gpu_of(name: str) -> GPU:
    """H20 is not in the catalogue: its datasheet's figures, and as large a share of them in matmuls as an H200's."""
    if name != "h20":
        return catalog.gpu(name)
    other = catalog.gpu("h200")
    share = other.matmul_flops / other.peak_flops
    return replace(other, name=name, peak_flops=148e12, matmul_flops=148e12 * share, memory_bytes=96e9,
                   memory_bandwidth=4e12)  # fmt: skip


def draw(mean: float, most: int, cut: float | None, size: int, seed: int) -> np.ndarray:
    """Answers of this mean, of which so many are cut."""
    own = np.random.default_rng(seed)
    if cut is not None and cut > RUNAWAY:  # which says the spread
        place = np.quantile(NORMAL, 1 - cut)
        spread = brentq(lambda s: np.minimum(most * np.exp(s * (NORMAL - place)), most).mean() - mean, 0.01, 5)
        found = most * np.exp(spread * (own.standard_normal(size) - place))
    else:
        few = RUNAWAY if cut is None else cut
        rest = (mean - few * most) / (1 - few)
        middle = brentq(lambda at: np.minimum(np.exp(at + SPREAD * NORMAL), most).mean() - rest, 0, 20)
        found = np.exp(middle + SPREAD * own.standard_normal(size))
        found[own.random(size) < few] = most
    return np.clip(found, 1, most).astype(np.int64)


def read() -> list[Log]:
    logs = []
    with (HERE / "rollouts.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            size, cut = int(row["answers"]), float(row["cut"]) if row["cut"] else None
            every = (draw(float(row["answer"]), int(row["most"]), cut, size, seed) for seed in range(REPEATS))
            logs.append(Log(row, [(np.full(size, int(row["prompt"])), answers) for answers in every]))
    return logs


def errors(logs: Sequence[Log]) -> dict[tuple[float, float], np.ndarray]:
    """Logarithms of predicted over published seconds, by what a step and a token take."""
    found = {}
    for step in STEPS:
        for token in TOKENS:
            generation.STEP, generation.TOKEN = step, token
            found[step, token] = np.log([log.predict() / log.seconds for log in logs])
    generation.STEP, generation.TOKEN = STEP, TOKEN
    return found


def fit(known: dict[tuple[float, float], np.ndarray], publishers: np.ndarray, use: np.ndarray) -> tuple[float, float]:
    """The least squares, each publisher counted once."""
    names = set(publishers[use])
    return min(known, key=lambda at: np.mean([np.mean(known[at][use & (publishers == name)] ** 2) for name in names]))


def whole() -> list[list[str]]:
    """What generation, all else and all of a step take, beside what was published of them."""
    rows = []
    with TemporaryDirectory() as folder:
        for run in RUNS:
            answers = draw(run.answer, run.cut, None, 128 * run.rollouts, 0)
            trace = Trace("answers", answers + run.prompt, loss=answers, group=np.repeat(np.arange(128), run.rollouts))
            found = rl(
                trace, run.model, gpu=own_gpu(run.gpu, Path(folder)), devices=run.gpus, prompts=run.prompts,
                rollouts=run.rollouts, updates=run.updates, steps=4, tensor_parallel=run.tensor,
                trainer="verl" if run.source == VERL else "nemo-rl",
            )  # fmt: skip
            split = next((one for one in found.splits if one.generators == run.alone), None)
            step = split.step if split else found.best
            ours = step.row.makespan_seconds
            pairs = ((step.generation, run.generation), (step.trained, run.rest), (ours, run.step))
            beside = [f"{mine:.0f} s ({f'{its:.0f}' if its else '-'})" for mine, its in pairs]
            rows.append([run.source, run.words, *beside, f"{ours / run.step - 1:+.0%}"])
    return rows


def own_gpu(name: str, folder: Path) -> str:
    """Its name in the catalogue, or a file of its figures."""
    if name in catalog.gpu_names():
        return name
    gpu, file = gpu_of(name), folder / f"{name}.toml"
    figures = {
        "peak_tflops": gpu.peak_flops / 1e12, "matmul_tflops": gpu.matmul_flops / 1e12,
        "memory_gb": gpu.memory_bytes / 1e9, "memory_tb_s": gpu.memory_bandwidth / 1e12,
        "link_gb_s": gpu.link_bandwidth / 1e9, "nic_gbit_s": gpu.nic_bandwidth * 8 / 1e9,
        "devices_per_node": gpu.devices_per_node,
    }  # fmt: skip
    file.write_text('like = "h200"\n' + "".join(f"{key} = {value}\n" for key, value in figures.items()))
    return str(file)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page() -> str:
    logs = read()
    known, publishers = errors(logs), np.array([log.row["publisher"] for log in logs])
    left_out = np.zeros(len(logs))
    for name in sorted(set(publishers)):
        left_out[publishers == name] = known[fit(known, publishers, publishers != name)][publishers == name]
    step, token = fit(known, publishers, np.ones(len(logs), dtype=bool))
    if (step, token) != (STEP, TOKEN):
        raise SystemExit(f"all publishers decide {step:g} and {token:g} s: write them into odcsim/decide/generation.py")
    bytes_alone = known_alone(logs)
    cells = [
        [log.row["publisher"], log.row["source"], log.row["model"], f"{log.row['gpus']} x {log.row['gpu']}",
         log.row["answer"], log.row["most"], f"{log.seconds:.0f} s", f"{log.seconds * np.exp(error):.0f} s",
         f"{np.expm1(error):+.0%}"]
        for log, error in zip(logs, left_out, strict=True)
    ]  # fmt: skip
    head = ["publisher", "source", "model", "GPUs", "mean answer", "cut at", "published", "predicted", "error"]
    ends = np.exp(-left_out)
    of_steps = ["source", "run", "generation", "the rest", "step", "error"]
    steps = whole()
    far = [abs(float(row[-1].removesuffix("%"))) / 100 for row in steps]
    return PAGE.format(
        cells=table(head, cells), steps=table(of_steps, steps), date=f"{date.today():%Y-%m}",
        whole=f"{np.median(far):.0%}",
        used=f"{STEP * 1e3:.1f} ms and {TOKEN * 1e6:.0f} us", bandwidth=f"{BANDWIDTH:.0%}",
        most=f"{TOKENS[-1] * 1e6:.0f} us",
        bytes=f"{1 - np.exp(np.median(bytes_alone)):.0%}", count=len(logs), publishers=len(set(publishers)),
        spread=SPREAD, runaway=f"{RUNAWAY:.1%}", median=f"{np.median(np.abs(np.expm1(left_out))):.0%}",
        low=f"{ends.min():.2f}", high=f"{ends.max():.2f}", ends=f"{LOW:g} to {HIGH:g}",
    )  # fmt: skip


def known_alone(logs: Sequence[Log]) -> np.ndarray:
    """The same by bytes and FLOPs alone."""
    generation.STEP = generation.TOKEN = 0.0
    found = np.log([log.predict() / log.seconds for log in logs])
    generation.STEP, generation.TOKEN = STEP, TOKEN
    return found


PAGE = """# Generation and RL steps against published times

How far [`odcsim rl`](howto/rl.md) is off where it generates answers by estimate. Written by
`python docs/studies/rollouts.py`, {date}, on a machine without a GPU; sources of all logs: `docs/studies/rollouts.csv`.

## The model

A step of decoding reads the weights once (of experts, those that any answer visits), and the keys and values of every
answer that is being written. It takes as long as its bytes at {bandwidth} of the memory's rate, or its FLOPs where
those take longer; two all-reduces a layer where several GPUs share an engine; and {used} for each step and
each token of it, which the host spends on scheduling and sampling. By bytes and FLOPs alone the median log comes out
{bytes} too short.

All answers are asked for at once. Memory decides how many are written at the same time; when it is full, whoever came
last makes room and is read anew. As answers end, the weights are read for fewer: the long tail.

Not modeled: loading new weights into engines (4 to 26 s in the first table's logs of NeMo-RL, 0.5 to 4 s in the
others), sliding windows (whole contexts are read), speculative decoding, fp8, prompts that share more than their
siblings' text, tools and rewards.

## Generation alone

{count} logs of {publishers} publishers; each is predicted by what the others decide for a step and a token. Logs say
the mean and the cut. Of their spread most say nothing: it is taken for a log-normal with a deviation of {spread}, and
{runaway} of answers run to the cut.

{cells}

The median error is {median}. Published seconds are {low} to {high} times the predicted ones; `odcsim rl` prints
{ends} times as its 90 % interval of generation. What a step and a token take is tried up to
{most} for a token: beyond, errors hardly change.

## Whole steps

Seconds by `odcsim rl`, in brackets those that were published. NeMo-RL 0.5: its own table
(docs/about/performance-summary.md at 0.5.0), 64 prompts of 32 rollouts in 4 updates, by Megatron with tensor, pipeline
and expert parallelism, where here the same GPUs train with FSDP and NeMo-RL's packing. NeMo-RL 0.3: the row of DTensor,
which is FSDP, of the first table; verl: its first row there.

{steps}

Most steps in turn come out too short: in brackets, a step is longer than its parts by what loads weights and moves data
between them. One step ahead most of that is hidden. The median error of a step is {whole}. Generation is by what all
publishers decide for a step and a token, and not, as in the table above, by the others alone.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default=str(HERE.parent / "rollouts.md"))
    Path(parser.parse_args().output).write_text(page())


if __name__ == "__main__":
    main()
