"""What trainers' logs say of their steps, each by its own keys; the plain ones are those that people write by hand."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

TRACKED = ("_step", "step")  # by W&B and TensorBoard, whoever logs to them
# Seconds since the run began, or since 1970, as W&B and TensorBoard add them to every row.
CLOCKS = ("_runtime", "relative time (process)", "relative time (wall)", "wall time", "_timestamp", "timestamp")


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Keys of one trainer; of several that say the same, the first that a log has counts."""

    name: str
    step: tuple[str, ...] = ("global_step",)
    seconds: tuple[str, ...] = ()  # of one step, a mean since the row before
    tokens: tuple[str, ...] = ()  # of one step, on all devices
    rate: tuple[str, ...] = ()  # tokens in a second
    seen: tuple[str, ...] = ()  # tokens since the run began, on all devices
    clock: tuple[str, ...] = ()  # seconds since the run began
    apart: tuple[str, ...] = ()  # seconds of a row that the clock counts, and that are no training
    per_device: bool = False  # its rate is of one device
    updates: bool = False  # a row may hold several optimizer steps
    padded: tuple[str, ...] = ()  # keys that may count padding, too
    way: tuple[str, str] | None = None  # (balancer, sync) that it runs where nobody says otherwise

    @property
    def ways(self) -> tuple[tuple[str, ...], ...]:
        """To tell seconds and tokens of a step."""
        return self.seconds, self.tokens, self.rate, self.seen, self.clock


BY_HAND = LogKeys(
    "a log of steps",
    step=("step", "global_step", "iteration", "iter"),
    seconds=("seconds", "step_seconds", "seconds_per_step", "step_time", "time_per_step", "iteration_time"),
    tokens=("tokens", "step_tokens", "tokens_per_step"),
    rate=("tokens_per_second", "tokens_per_sec", "tokens/s"),
    seen=("tokens_seen", "total_tokens", "consumed_tokens"),
    clock=("elapsed", "elapsed_seconds"),
)
# verl/trainer/ppo/metric_utils.py and verl/trainer/sft_trainer.py of 0.9.1. Seconds of the update alone, since
# `perf/time_per_step` holds generation, too. A row is a step of rollouts, with all of its updates.
VERL = LogKeys(
    "verl",
    step=("training/global_step", "step"),
    seconds=("timing_s/update_actor",),
    tokens=("perf/total_num_tokens", "train/global_tokens"),
    updates=True,
    way=("verl", "collective"),
)
VERL_MEANS = ("global_seqlen/mean", "perf/total_num_tokens", "response_length/mean")  # of its steps: no lengths
# torchtitan/components/metrics.py of 0.3.0. Its rate is of one device of those that share the data, and of all tokens,
# padding among them.
TORCHTITAN = LogKeys(
    "torchtitan",
    step=("step",),
    seconds=("time_metrics/end_to_end(s)",),
    rate=("throughput(tps)",),
    seen=("n_tokens_seen",),
    per_device=True,
    padded=("throughput(tps)", "n_tokens_seen"),
    way=("native", "collective"),
)
# transformers 5.23: `train_runtime` is in every row where tokens are counted (--include_num_input_tokens_seen), else in
# the last one alone; it counts evaluation. `num_input_tokens_seen` counts padding unless it is told `non_padding`.
# TRL 1.16, whose trainers are on Hugging Face's: `num_tokens` by the attention mask, since the run began; `step_time`
# of GRPO alone.
HF_TRAINER = LogKeys(
    "Hugging Face's Trainer",
    step=("global_step", "step"),
    seconds=("step_time",),
    seen=("num_tokens", "num_input_tokens_seen"),
    clock=("train_runtime",),
    apart=("eval_runtime",),
    padded=("num_input_tokens_seen",),
    way=("native", "deferred"),
)

# Bytes of a GPU that were reserved at most, with the unit that each counts in: verl, torchtitan, and by hand.
MEMORY = (
    ("perf/max_memory_reserved_gb", 2**30), ("memory/max_reserved(GiB)", 2**30), ("max_memory_reserved_gb", 2**30),
    ("peak_memory_gb", 1e9),
)  # fmt: skip


def keys_of(names: Collection[str]) -> LogKeys:
    """Of whose log has these names: of those with a key of their own, which nobody writes by hand, the one that tells
    seconds and tokens in most ways."""
    plain = {*BY_HAND.step}.union(*BY_HAND.ways)
    own = (one for one in (VERL, TORCHTITAN, HF_TRAINER) if key_of({*one.step}.union(*one.ways) - plain, names))
    return max((*own, BY_HAND), key=lambda keys: sum(key_of(way, names) is not None for way in keys.ways))


def key_of(keys: Iterable[str], names: Iterable[str]) -> str | None:
    """The first key that is among the names of a log, as the log calls it. W&B puts the name of the run before a key,
    Hugging Face's Trainer `train/`, and TensorBoard's files have no slashes."""
    forms: dict[str, str] = {}
    for name in names:
        plain = _plain(name.rpartition(" - ")[2])
        forms.setdefault(plain, name)
        forms.setdefault(plain.removeprefix("train_"), name)
    return next((forms[_plain(key)] for key in keys if _plain(key) in forms), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace("/", "_")
