"""Seconds in which inference engines write the answers of a step, by bytes and FLOPs.

A step of decoding reads the weights once, and the keys and values of every answer that is being written. As answers end
the weights are read for fewer and fewer of them: what the longest ones take is the long tail. All of an engine's
answers are asked for at once; those for whose keys and values there is no room wait until others have ended.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from odcsim.cluster import GPU, Cluster
from odcsim.errors import InputError
from odcsim.model import BYTES_BF16, Model
from odcsim.timeline import Floats, Ints

# Of the memory's rate that decoding reaches: vLLM 0.23 with one answer at a time, Llama 3.1 8B on an A100
# (johnmusgrave.com/p/vllm-throughput-latency-sweep-on) and on an H100 (yobitelcomm.github.io/bench): 77 and 74 %.
BANDWIDTH = 0.75
# What else a step and an answer's token take, by docs/rollouts.md: the host schedules, samples and writes text.
STEP, TOKEN = 1.5e-3, 8e-5
MEET = 10e-6  # seconds of an all-reduce of few bytes inside a node, of which a layer has two
SHARED, ALONE = 0.6, 0.85  # of a GPU's memory that an engine has beside training (NeMo-RL's recipes), and by itself
WEIGHTS = 0.75  # of that, at most, for weights where nobody says how many GPUs an engine has
LOW, HIGH = 0.7, 1.3  # of generation's seconds, 90 %: docs/rollouts.md
NINETY = 1.645  # standard deviations to either side of 90 % of a normal distribution
TAIL = 0.1  # of an engine's answers: when so few are left, the rest of its time is the long tail


@dataclass(frozen=True)
class Engine:
    """A model on one GPU, or on several that share every layer."""

    model: Model
    gpu: GPU
    gpus: int
    memory: float  # bytes of each GPU that it may fill

    @cached_property
    def routed(self) -> float:
        """Parameters of experts that a token visits or not."""
        model = self.model
        if not model.experts:
            return 0.0
        return (model.parameters - model.active_parameters) / (1 - model.experts_active / model.experts)

    @cached_property
    def dense(self) -> float:
        """Parameters that every step reads: of an embedding that is no head too it reads a few rows."""
        embedding = 0 if self.model.tied else self.model.head_parameters
        return self.model.parameters - self.routed - embedding

    def weights(self, answers: int) -> float:
        """Bytes that a step reads of them on each GPU; of experts those that any of so many tokens visits."""
        missed = (1 - self.model.experts_active / self.model.experts) ** answers if self.model.experts else 0.0
        return BYTES_BF16 * (self.dense + self.routed * (1 - missed)) / self.gpus

    @cached_property
    def cache(self) -> float:
        """Bytes of a token's keys and values on each GPU; windows and choices of tokens are left out."""
        model = self.model
        if model.latent_rank:  # which all GPUs keep whole
            return BYTES_BF16 * (model.layers - model.linear_layers) * (model.latent_rank + model.rotary_dim)
        heads = max(model.kv_heads / self.gpus, 1)
        each = heads * (model.head_dim + (model.value_dim or model.head_dim))
        return BYTES_BF16 * each * (model.layers - model.linear_layers)

    @cached_property
    def room(self) -> float:
        """Tokens whose keys and values fit."""
        return max(0.0, self.memory - BYTES_BF16 * self.model.parameters / self.gpus) / self.cache

    def step(self, answers: int, tokens: float) -> float:
        """Seconds in which each of so many answers, of so many tokens together, gets one token more."""
        read = (self.weights(answers) + self.cache * tokens) / (self.gpu.memory_bandwidth * BANDWIDTH)
        compute = answers * self.flops / self.gpus / self.gpu.matmul_flops
        meet = 0.0
        if self.gpus > 1:
            meet = (
                2 * self.model.layers * (MEET + answers * self.model.hidden * 2 * BYTES_BF16 / self.gpu.link_bandwidth)
            )
        return STEP + TOKEN * answers + max(read, compute) + meet

    @cached_property
    def flops(self) -> float:
        """Of a token, without attention."""
        return float(self.model.layers * self.model.layer_forward(1, 0) + self.model.head_forward(1))

    def write(self, prompts: Ints, answers: Ints) -> tuple[float, float]:
        """Seconds until all are written, and of these the long tail's. Where memory is full, whoever came last makes
        room, and is read anew when another has ended."""
        size = len(answers)
        there, left = prompts.tolist(), answers.tolist()  # tokens of one that waits, and those that it lacks
        waiting, writing, ends = list(range(size))[::-1], dict[int, int](), list[tuple[int, int]]()
        done, tokens, seconds, tail, room = 0, 0, 0.0, 0.0, True
        while waiting or writing:
            while room and waiting and (not writing or tokens + there[waiting[-1]] + len(writing) < self.room):
                one = waiting.pop()
                writing[one] = done  # since when
                heapq.heappush(ends, (done + left[one], one))
                tokens += there[one]
            while ends[0][1] not in writing or writing[ends[0][1]] + left[ends[0][1]] != ends[0][0]:
                heapq.heappop(ends)  # one that has made room
            count = len(writing)
            full = int((self.room - tokens) / count)
            room = count == 1 or ends[0][0] - done <= full
            steps = ends[0][0] - done if room else full
            spent = steps * self.step(count, tokens + count * steps / 2) if steps else 0.0
            seconds, tail = seconds + spent, tail + (spent if count + len(waiting) <= TAIL * size else 0.0)
            done, tokens = done + steps, tokens + count * steps
            if not room:
                last = next(reversed(writing))
                wrote = done - writing.pop(last)
                there[last], left[last] = there[last] + wrote, left[last] - wrote
                tokens, seconds = tokens - there[last], seconds + self.read(there[last])
                waiting.append(last)
                continue
            while ends and ends[0][0] == done:
                one = heapq.heappop(ends)[1]
                if one in writing and writing[one] + left[one] == done:
                    tokens -= there[one] + left[one]
                    del writing[one]
        return seconds, tail

    def read(self, tokens: float) -> float:
        """Seconds to read so many tokens of a prompt."""
        return tokens * self.flops / self.gpus / self.gpu.matmul_flops


@dataclass(frozen=True, slots=True)
class GenerationTime:
    """Of the answers of each step."""

    seconds: float  # of a step, on average
    engines: int = 0  # 0: somebody said the seconds
    engine_gpus: int = 0
    memory_share: float = 0.0  # of a GPU's memory that an engine may fill
    tail: float = 0.0  # the share of the seconds when at most a tenth of an engine's answers are still written
    open: float = 0.0  # the standard deviation of the logarithm, by which other pilots would have come out otherwise

    @property
    def estimated(self) -> bool:
        return self.engines > 0

    @property
    def between(self) -> tuple[float, float]:
        """The ends of its 90 % interval, as factors: of how far estimates are off, and of which answers were known."""
        if not self.estimated:
            return 1.0, 1.0
        low, high = (math.hypot(math.log(end), NINETY * self.open) for end in (LOW, HIGH))
        return math.exp(-low), math.exp(high)


def engine_of(model: Model, gpu: GPU, cluster: Cluster, share: float, gpus: int | None = None) -> Engine:
    """On as many GPUs as somebody says, else on the fewest of a node that leave room for keys and values."""
    memory, most = share * gpu.memory_bytes, min(cluster.gpus, cluster.devices_per_node)
    if gpus is not None and (gpus > cluster.gpus or cluster.gpus % gpus):
        raise InputError(f"--tensor-parallel {gpus} on {cluster.gpus} GPUs", fix=f"give a divisor of {cluster.gpus}")
    tried = [gpus] if gpus else [each for each in range(1, most + 1) if most % each == 0 and each & (each - 1) == 0]
    held = [each for each in tried if BYTES_BF16 * model.parameters / each <= WEIGHTS * memory]
    return Engine(model, gpu, (held or tried)[0 if held else -1], memory)


def generate(engine: Engine, gpus: int, steps: Sequence[tuple[Ints, Ints]], rollouts: int) -> GenerationTime | None:
    """Of steps of (tokens of the prompt, tokens of the answer), in their order dealt to the engines of so many GPUs;
    None where not even the longest fits. A prompt is read once for all its rollouts."""
    engines, longest = gpus // engine.gpus, max(int((prompts + answers).max()) for prompts, answers in steps)
    if not engines or longest > engine.room:
        return None
    spent: list[Floats] = []
    for prompts, answers in steps:
        parts = zip(np.array_split(prompts, engines), np.array_split(answers, engines), strict=True)
        read = engine.read(prompts.sum() / rollouts / engines)
        seconds, tail = max(engine.write(*part) for part in parts)
        spent.append(np.array([seconds + read, tail]))
    seconds, tail = np.mean(spent, axis=0)
    share = engine.memory / engine.gpu.memory_bytes
    return GenerationTime(float(seconds), engines, engine.gpus, round(share, 2), float(tail / seconds))
