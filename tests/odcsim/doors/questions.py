"""Questions that every door of odcsim can be asked, drawn from a seed: the same ones for everybody."""

from dataclasses import dataclass, fields
from functools import lru_cache
from math import gcd
from random import Random
from typing import Any

import odcsim

# Cluster files by name: what stands in each.
CLUSTERS = {
    "slow-network.toml": "nic_gbit_s = 25\n",
    "nodes-of-two.toml": "devices_per_node = 2\nnics_per_node = 2\nnic_gbit_s = 50\n",
    "shared-cards.toml": "devices_per_node = 4\nnics_per_node = 1\nnic_gbit_s = 400\n",
    "jitter.toml": "jitter = 0.05\n",
    "slow-device.toml": "sample_noise = 0.05\n\n[slow]\n1 = 1.2\n",
}
DRAWN = ("shared-cards.toml", "jitter.toml")  # of which the scan says nothing
RECOMPUTE = {  # the fields that a word stands for
    "full": {"recompute": True, "selective": "no"},
    "selective": {"recompute": True, "selective": "operators"},
    "layers": {"recompute": True, "selective": "layers"},
    "none": {"recompute": False, "selective": "no"},
}
SEARCHED = ("recompute", "sharding")  # by an advice, which takes no word on it

TRACES = (
    "lognormal:median=700,sigma=0.9,max=4096,samples=900",
    "lognormal:median=3000,sigma=1,max=16000,samples=600,spike=0.02",
    "uniform:min=20,max=900,samples=700",
    "exponential:mean=6000,min=500,max=30000,samples=800",
    "fixed:length=2000,samples=700",
    "deepcoder-rl",
    "dapo-rl",
    "longalign",
    "azure-chat",
)
HARDWARE = (  # model, gpu
    ("tiny", "a100"), ("qwen2.5-0.5b", "l40s"), ("qwen3-0.6b", "h100"), ("qwen2.5-1.5b", "a100"),
    ("r1-distill-qwen-1.5b", "a100"), ("qwen2.5-7b", "h100"), ("r1-distill-qwen-7b", "a100"), ("qwen3-8b", "b200"),
    ("qwen3-30b-a3b", "h200"), ("llama-3.1-70b", "h100"),
)  # fmt: skip
CHOICES: dict[str, tuple[Any, ...]] = {
    "recompute": ("selective", "layers", "none"), "sharding": ("hybrid",), "lora": (16,), "offload": (True,),
    "optimizer": ("bf16", "8bit", "pure"), "streams": ("two",), "reduce": ("bf16",), "far": ("hierarchical",),
    "reshard": (False,), "attention": ("fa3", "sdpa"), "stack": ("compiled", "plain"), "precision": ("fp8",),
    "loss": ("whole",), "copies": ("engines",),
}  # fmt: skip
PROFILE = "profile.json"  # as the engine measures it; its model
PROFILED = "tiny"


@dataclass(frozen=True)
class Question:
    """One question in the words of compare's flags. `room`: the token limit over the longest sample; 0: chosen."""

    trace: str = TRACES[0]
    model: str = "tiny"
    gpu: str | None = "a100"
    profile: str | None = None
    devices: int = 2
    minibatch: int = 4
    batched: bool = False  # the batch is said of all devices together
    room: float = 1.5
    limit: int = 0  # of a microbatch, where it is known in tokens
    minibatches: int = 4
    seed: int = 0
    in_order: bool = False
    whole: bool = False
    field: bool = False
    truncate: int | None = None
    drop_over: int | None = None
    devices_per_node: int | None = None
    cluster: str | None = None
    price: float | None = None
    epochs: float | None = None
    recipe: tuple[tuple[str, Any], ...] = ()
    rollouts: int = 4  # of each prompt, or fewer
    updates: int = 1

    @property
    def global_batch(self) -> int:
        return self.minibatch * self.devices

    @property
    def max_tokens(self) -> int | None:
        if self.limit:
            return self.limit
        return round(longest(self.trace, self.truncate, self.drop_over) * self.room) if self.room else None

    @property
    def prompts(self) -> int:
        """Of an RL step that has `minibatch` samples for each device and update."""
        return self.global_batch * self.updates // self.of_prompt

    @property
    def of_prompt(self) -> int:
        """Rollouts of each prompt, so many that steps divide by devices."""
        return gcd(self.rollouts, self.global_batch)

    @property
    def is_plain(self) -> bool:
        """Whether the explorer's page can ask it: it has no control for the rest."""
        held = "trace model gpu devices minibatch room minibatches price batched epochs rollouts updates limit".split()
        others = [f.name for f in fields(self) if f.name not in (*held, "cluster")]
        usual = all(getattr(self, name) == getattr(Question(), name) for name in others)
        return usual and self.cluster in (None, "slow-network.toml")


@lru_cache(maxsize=64)
def longest(trace: str, truncate: int | None, drop_over: int | None) -> int:
    """Where nothing is left, the limit itself: whoever is asked refuses."""
    try:
        return odcsim.load(trace, truncate=truncate, drop_over=drop_over).longest
    except odcsim.InputError:
        return drop_over or 1


def drawn(count: int, seed: int = 0) -> list[Question]:
    """Every third can be asked of the explorer, too."""
    rng = Random(seed)
    return [_plain(rng) if number % 3 == 0 else _any(rng) for number in range(count)]


def _plain(rng: Random) -> Question:
    model, gpu = rng.choice(HARDWARE)
    return Question(
        trace=rng.choice(TRACES),
        model=model,
        gpu=gpu,
        devices=rng.choice((2, 4, 8, 16)),
        minibatch=rng.choice((1, 2, 4)),
        batched=rng.random() < 0.5,
        room=rng.choice((0, 1.0, 1.25, 2.0, 4.0)),
        minibatches=rng.randint(2, 12),
        cluster="slow-network.toml" if rng.random() < 0.3 else None,
        price=rng.choice((1.3, 2.0)),
        epochs=rng.choice((1.0, 2.5)),
    )


def _any(rng: Random) -> Question:
    def now_and_then(value: Any, chance: float = 0.15) -> Any:
        return value if rng.random() < chance else None

    model, gpu = rng.choice(HARDWARE)
    trace = rng.choice(TRACES)
    chosen = {name: rng.choice(CHOICES[name]) for name in CHOICES if rng.random() < 0.12}
    cluster = now_and_then(rng.choice(list(CLUSTERS)), 0.4)
    cut = now_and_then(rng.choice((3000, 12_000)), 0.2)
    truncated = rng.random() < 0.5
    profiled = rng.random() < 0.1
    longest_run = 6 if cluster in DRAWN else 12  # des takes its time
    return Question(
        trace=trace,
        model=PROFILED if profiled else model,
        gpu=None if profiled else gpu,
        profile=PROFILE if profiled else None,
        devices=rng.choice((1, 2, 3, 4, 8, 8, 16, 32, 64)[: 6 if cluster in DRAWN else 9]),
        minibatch=rng.choice((1, 2, 3, 4)),
        batched=rng.random() < 0.5,
        room=rng.choice((0, 0, 0.5, 1.0, 1.0, 1.5, 1.5, 3.0, 3.0)),
        minibatches=rng.randint(2, longest_run),
        seed=rng.choice((0, 0, 1, 7)),
        in_order=rng.random() < 0.3 and (":" in trace or rng.random() < 0.1),  # the others are tables, without order
        whole=rng.random() < 0.15,
        field=rng.random() < 0.2,
        truncate=cut if truncated else None,
        drop_over=None if truncated else cut,
        devices_per_node=now_and_then(rng.choice((2, 4))),
        cluster=cluster,
        price=now_and_then(2.5, 0.5),
        epochs=now_and_then(3.0, 0.7),
        recipe=() if profiled and rng.random() < 0.8 else tuple(chosen.items()),
        rollouts=rng.choice((2, 4, 8)),
        updates=rng.choice((1, 1, 2)),
    )


def recipe_fields(question: Question) -> dict[str, Any]:
    """As Python takes them."""
    words = dict(question.recipe)
    return words | RECOMPUTE.get(words.pop("recompute", ""), {})
