"""Trainers of transformers and TRL over two machines: on demand they learn what they learn stock, step by step."""

import pytest
import work
from accelerate import ParallelismConfig
from datasets import Dataset
from datasets.table import InMemoryTable
from own_loops import FULL, HYBRID, Step, worst
from tiny_trainers import Texts, Trained, arguments, collate, in_order, llama, outcome, words
from transformers import Trainer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from odc_engine.trainers import OnDemandMixin

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds; the first call imports transformers there
MESHES = {HYBRID: {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)}, FULL: {}}
STEPS = 4
# No optimizer whose steps depend on signs of what is nearly nothing.
USUAL = {"max_steps": STEPS, "optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.5}
USUAL["gradient_accumulation_steps"] = 3
SFT = {"bf16": False, "max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}


class EachStep(TrainerCallback):
    """What there is when an optimizer is about to step, and when it has."""

    def __init__(self, trainer) -> None:
        self.trainer, self.gradients, self.steps = trainer, {}, []

    def on_pre_optimizer_step(self, *_, **__) -> None:
        self.gradients = work.whole_gradients(self.trainer.model)

    def on_step_end(self, *_, **__) -> None:
        self.steps.append(Step(self.gradients, work.whole_parameters(self.trainer.model)))


def plain(kind, rank, folder, changed):
    own = arguments(rank, folder, **USUAL | changed)
    return kind(model=llama(), args=own, train_dataset=Texts(48), data_collator=collate)


def finetuning(kind, rank, folder, changed):
    own = arguments(rank, folder, SFTConfig, **USUAL | SFT | changed)
    samples = [Texts(48)[i] for i in range(48)]
    columns = {name: [one[name] for one in samples] for name in ("input_ids", "labels")}
    data = Dataset(InMemoryTable.from_pydict(columns), fingerprint="texts")
    return kind(model=llama(), args=own, train_dataset=data, processing_class=words())


TRAINERS = {"transformers": (Trainer, plain), "TRL": (SFTTrainer, finetuning)}


class Counted(OnDemandMixin):
    """How many microbatches each minibatch had on this device, too."""

    max_tokens = 100
    counts: list[int]

    def training_step(self, model, inputs, *more):
        self.counts.append(sum(part.samples > 0 for _, part in inputs["microbatches"]))
        return super().training_step(model, inputs, *more)


def compared(rank, folder, name, mesh) -> list[tuple[list[Step], Trained, list[int]]]:
    base, make = TRAINERS[name]
    found = []
    for kind in (in_order(base), type("AcrossMachines", (Counted, in_order(base)), {})):
        trainer = make(kind, rank, folder / kind.__name__, MESHES[mesh])
        trainer.counts = []
        trainer.add_callback(seen := EachStep(trainer))
        trainer.train()
        found.append((seen.steps, outcome(trainer), trainer.counts))
    return found


@pytest.mark.parametrize("mesh", [HYBRID, FULL])
@pytest.mark.parametrize("name", TRAINERS)
def test_all_is_as_in_stock_training_after_each_step(machines, tmp_path, name, mesh):
    every = machines(2, 2).run(compared, tmp_path, name, mesh, timeout=LIMIT)
    for (stock, stock_logs, _), (on_demand, logs, _) in every:
        assert len(stock) == STEPS
        assert worst(on_demand, stock) < 1e-6
        for column in ("loss", "grad_norm"):
            assert logs.column(column) == pytest.approx(stock_logs.column(column), rel=1e-5)
    assert any(len(set(counts)) > 1 for counts in zip(*(counts for _, (*_, counts) in every), strict=True))
