"""The trainers that odcsim speaks to, and where the names of their settings were read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from odcsim.handover import finetuning, reinforcement
from odcsim.handover.chosen import ENGINE, ChosenRow

COLLECTIVE = ("collective",)
LAST = ("deferred",)  # accelerate's no_sync: gradients leave after the last microbatch
GITHUB = "https://github.com"
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OtherTrainer:
    """How its settings are called and written (`form`: shell, hydra or yaml), and where that was read."""

    name: str
    form: str
    source: str
    settings: Callable[[ChosenRow], Settings]
    met: tuple[str, ...]  # syncs that it runs by itself
    rule: str  # by which it deals samples to devices and microbatches
    knows: frozenset[str] = frozenset()  # what of a recipe its settings say, beside recompute of whole layers
    engine: str = ""  # the page on running it on demand by odc_engine
    caution: str = ""

    @property
    def ways(self) -> tuple[str, ...]:
        return (*self.met, ENGINE) if self.engine else self.met


VERL = OtherTrainer(
    "verl",
    "hydra",
    "verl 0.9.1, verl/trainer/config/ppo_trainer.yaml",
    reinforcement.verl,
    COLLECTIVE,
    "Karmarkar-Karp over 24576 n + n^2, for devices and for microbatches",
    frozenset({"hybrid", "on_host", "rank"}),
    caution="ppo_mini_batch_size counts prompts: --rollouts N where each has N samples",
)
SLIME = OtherTrainer(
    "slime",
    "shell",
    f"{GITHUB}/THUDM/slime, slime/utils/arguments.py, read 2026-11-22",
    reinforcement.slime,
    COLLECTIVE,
    "Karmarkar-Karp over tokens, for devices and for microbatches",
    frozenset({"operators"}),
    caution="slime runs Megatron, whose data parallelism keeps whole weights: memory was reckoned for FSDP",
)
NEMO_RL = OtherTrainer(
    "nemo-rl",
    "hydra",
    f"{GITHUB}/NVIDIA-NeMo/RL at 00294d9, examples/configs/grpo_math_1B.yaml",
    reinforcement.nemo_rl,
    COLLECTIVE,
    "first fit decreasing into packs",
    frozenset({"on_host"}),
)
TRL = OtherTrainer(
    "trl",
    "shell",
    "TRL 1.16.0, SFTConfig",
    finetuning.trl,
    LAST,
    "best fit decreasing into packs, which come to devices in turn",
    frozenset({"rank", "moments"}),
    "docs/trl.md",
)
TORCHTITAN = OtherTrainer(
    "torchtitan",
    "shell",
    "torchtitan 0.3.0, torchtitan/config/configs.py",
    finetuning.torchtitan,
    COLLECTIVE,
    "packing in order until a sequence is full",
    frozenset({"operators", "hybrid", "on_host"}),
    "docs/torchtitan.md",
)
AXOLOTL = OtherTrainer(
    "axolotl",
    "yaml",
    f"{GITHUB}/axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas, read 2026-11-22",
    finetuning.axolotl,
    LAST,
    "first fit decreasing into packs",
    frozenset({"hybrid", "on_host", "rank", "moments"}),
)
LLAMA_FACTORY = OtherTrainer(
    "llamafactory",
    "yaml",
    f"{GITHUB}/hiyouga/LLaMA-Factory at 072bfe2, src/llamafactory/hparams",
    finetuning.llama_factory,
    LAST,
    "greedy knapsacks into packs",
    frozenset({"rank", "moments"}),
)
TRAINERS = {t.name: t for t in (VERL, SLIME, NEMO_RL, TRL, TORCHTITAN, AXOLOTL, LLAMA_FACTORY)}


def lines(trainer: OtherTrainer, row: ChosenRow) -> Iterator[str]:
    """Comments first: what the settings rest on, and what they cannot say."""
    yield from (f"# {note}" for note in notes(trainer, row))
    yield from written(trainer.settings(row), trainer.form)


def notes(trainer: OtherTrainer, row: ChosenRow) -> Iterator[str]:
    yield f"{row.balancer} + {row.way}, {row.max_tokens:,} tokens a microbatch, {row.samples:,} samples a step"
    yield f"names as in {trainer.source}"
    yield f"{trainer.name} deals by its own rule, not by {row.balancer}: {trainer.rule}"
    if row.way == ENGINE and trainer.engine:
        yield f"on-demand by odc_engine, with max_tokens = {row.max_tokens}: see {trainer.engine}"
    elif row.way not in trainer.met:
        yield f"{trainer.name} does not run {row.way} sync, but {trainer.met[0]}: expect other seconds than the row's"
    if trainer.caution:
        yield trainer.caution
    yield from (f"not said here: {words}" for name, words in _unsaid(row).items() if name not in trainer.knows)


def _unsaid(row: ChosenRow) -> dict[str, str]:
    """What of the row is not as usual, and may have no setting."""
    said = {
        "hybrid": "sharding inside each node alone" if row.hybrid else "",
        "on_host": "states of the optimizer on the host" if row.on_host else "",
        "rank": f"adapters of rank {row.rank}" if row.rank else "",
        "moments": f"moments in {row.moments}" if row.moments != "fp32" else "",
        "operators": "recompute of operators alone" if row.recompute == "operators" else "",
        "layers": "recompute of every second layer alone" if row.recompute == "layers" else "",
    }
    return {name: words for name, words in said.items() if words}


def written(settings: Settings, form: str) -> Iterator[str]:
    """As the trainer reads them: a line for each."""
    for name, value in settings.items():
        if form == "hydra":
            yield f"{name}={_word(value)}"
        elif form == "yaml":
            yield from _yaml(name, value)
        elif value is None:
            yield name
        else:
            yield f"{name} {_word(value)}"


def _yaml(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{name}: {_word(value)}"
        return
    yield f"{name}:"
    yield from (f"  {key}: {_word(item)}" for key, item in value.items())


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
