"""The tables of docs/trainers.md: lines as programs number them, refusals in the words they come in."""

import os
import re
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from scripts import ROOT
from torch import nn
from torch.utils.data import DataLoader

from odc_engine.trainers import BalancedMixin, OnDemandMixin, refusals, titan, verl
from odc_engine.trainers.collated import collated_lengths
from odc_engine.trainers.one_process import own_alone
from odc_engine.trainers.order import OwnOrder
from odcsim.errors import InputError

DOCS = ROOT / "docs"
PAGE = (DOCS / "trainers.md").read_text(encoding="utf-8")
LINES = dict(re.findall(r"^\| .*? \| \[(.*?)\]\([\w.-]*\) \| (\d+) \|", PAGE, re.MULTILINE))
REFUSED = re.findall(r"^\| ([^|]*?) \| ([^|]*?) \| ([^|]*; [^|]*?) \|$", PAGE, re.MULTILINE)


def test_the_lines_of_the_table_are_those_that_programs_number():
    assert len(LINES) == 4
    for page, lines in LINES.items():
        code = re.search(r"^```python \w+\.py\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
        assert [int(n) for n in re.findall(r"  # (\d)\b", code[1])] == [*range(1, int(lines) + 1)], page


GRPO_LIKE = {"_prepare_inputs": lambda *_: None, "compute_loss": lambda *_: None}
GRPOTrainer = type("GRPOTrainer", (SimpleNamespace,), {"__module__": "trl.trainer.grpo_trainer", **GRPO_LIKE})


def trainer(dataset=(1,), tp=1, kind=SimpleNamespace, **changed):
    usual = {"world_size": 2, "average_tokens_across_devices": True, "train_sampling_strategy": "random"}
    own = SimpleNamespace(**usual | {"fp16": False, "auto_find_batch_size": False} | changed)
    sizes = {f"get_{name}_size": lambda size=size: size for name, size in (("tp", tp), ("cp", 1), ("sp", 1))}
    refusals.check(kind(args=own, train_dataset=dataset, **sizes))


def preferences(router=False, kl=False, **changed):
    own = SimpleNamespace(**{"loss_type": ["sigmoid"], "sync_ref_model": False} | changed)
    raise_first(refusals._of_preferences(SimpleNamespace(args=own, aux_loss_enabled=router, calculate_KL=kl)))


def rollouts(quantile=1.0, kind=GRPOTrainer, processor=None, **changed):
    usual = {"steps_per_generation": 2, "gradient_accumulation_steps": 2, "loss_type": "dapo"}
    own = SimpleNamespace(**usual | changed)
    refusals.check_rollouts(kind(args=own, top_entropy_quantile=quantile, processing_class=processor))


def engine(**changed):
    usual = {"strategy": "fsdp2", "ulysses_sequence_parallel_size": 1, "fsdp_size": -1, "param_offload": False}
    raise_first(verl._problems(SimpleNamespace(**usual | {"mixed_precision": None, "dtype": "bfloat16"} | changed)))


def raise_first(problems):
    for problem, fix in problems:
        raise InputError(problem, fix=fix)


def started(**environment):
    own = SimpleNamespace(fsdp=True, parallel_mode=SimpleNamespace(value="not_parallel"))
    with mock.patch.dict(os.environ, environment), mock.patch.object(torch.accelerator, "is_available", bool):
        refusals.check_processes(["a model", own], "")


def gathered():
    with own_alone(accelerator := SimpleNamespace()):
        accelerator.reduce(1)


class Texts(titan.BalancedTexts):
    def samples(self):
        return [[1, 2, 3]]


def titans(graphs=False, dataloader=None, **degrees):
    dims = SimpleNamespace(**{"tp": 1, "cp": 1, "pp": 1, "ep": 1} | degrees)
    config = SimpleNamespace(training=SimpleNamespace(disable_cuda_graphs=not graphs))
    loader = dataloader or SimpleNamespace(begin=lambda: 1)
    titan._check(SimpleNamespace(config=config, parallel_dims=dims, dataloader=loader))


def mine(*kinds, **members):
    return type("Mine", kinds, members)


RIGHT = SimpleNamespace(padding_side="right")
RIGHT_PADDED = SimpleNamespace(model_input_names=["token_type_ids"], tokenizer=RIGHT)
WITHOUT_IDS = DataLoader(["one"], collate_fn=lambda _: {"pixel_values": 1})
STOCK = type("Stock", (), {"training_step": lambda _: None})
GKD = type("GKDTrainer", (SimpleNamespace,), {"training_step": 0, "__module__": "trl.experimental.gkd"})
DISPATCHED = type("DataLoaderDispatcher", (DataLoader,), {})
UNMIXED = Texts.Config(minibatch=1).build(dp_world_size=1, dp_rank=0, tokenizer=None)
MORE_ROWS = {"prompt_ids": torch.ones(2, 1), "patches": torch.ones(3)}
HF, DPO, BOTH, BALANCED = "Trainer, SFTTrainer", "DPOTrainer", "GRPOTrainer, RLOOTrainer", "`BalancedMixin`"
GRPO, TITAN = "GRPOTrainer", "torchtitan"
CASES = {
    (HF, "`average_tokens_across_devices=False`"): lambda: trainer(average_tokens_across_devices=False),
    (HF, "`fp16=True`"): lambda: trainer(fp16=True),
    (HF, "`auto_find_batch_size=True`"): lambda: trainer(auto_find_batch_size=True),
    (HF, "a dataset without `__len__`"): lambda: trainer(dataset=iter(())),
    (HF, "tensor parallelism"): lambda: trainer(tp=2),
    (HF, "a model that FSDP2 does not shard"): lambda: refusals.check_model(nn.Linear(2, 2)),
    (HF, "the mixin behind the trainer"): lambda: mine(STOCK, OnDemandMixin),
    (HF, "`fsdp=True` without torchrun"): lambda: started(),
    (HF, "`fsdp=True` and no GPU"): lambda: started(LOCAL_RANK="0"),
    (HF, "a loader that is none of torch"): lambda: OwnOrder([], accumulated=1),
    (HF, "`dispatch_batches=True`"): lambda: OwnOrder(DISPATCHED([1], batch_size=1), accumulated=1),
    (HF, "`accelerator.reduce` or `gather` in `compute_loss`"): gathered,
    (HF, "a collate function whose batches have no `input_ids`"): lambda: collated_lengths(
        WITHOUT_IDS, rank=0, devices=1
    ),
    (DPO, '`loss_type="aot"`, `aot_unpaired`, `bco_pair` or `sft`'): lambda: preferences(loss_type=["sigmoid", "aot"]),
    (DPO, "`sync_ref_model=True`"): lambda: preferences(sync_ref_model=True),
    ("KTOTrainer", '`loss_type="kto"`'): lambda: preferences(loss_type="kto", kl=True),
    ("DPOTrainer, GRPOTrainer", "a loss of a mixture of experts' router"): lambda: preferences(router=True),
    (BOTH, "`OnDemandMixin`"): lambda: trainer(kind=GRPOTrainer),
    (BOTH, "a generation that ends in the middle of a step"): lambda: rollouts(steps_per_generation=3),
    (GRPO, '`loss_type="bnpo"`'): lambda: rollouts(loss_type="bnpo"),
    (GRPO, "`top_entropy_quantile` under 1, or an entropy bonus"): lambda: rollouts(quantile=0.5),
    (BOTH, "a `compute_loss` of one's own, or TRL's `GMPOTrainer`"): lambda: rollouts(
        kind=mine(GRPOTrainer, compute_loss=0)
    ),
    (BOTH, "a `_prepare_inputs` of one's own behind `OnDemandRollouts`"): lambda: rollouts(
        kind=mine(GRPOTrainer, _prepare_inputs=0)
    ),
    ("other trainers of TRL that generate", "a mixin"): lambda: trainer(kind=GKD),
    (BOTH, "a processor that pads on the right, with types of tokens"): lambda: rollouts(processor=RIGHT_PADDED),
    (BOTH, "a tensor of one's own without a row for each answer"): lambda: refusals.check_answers(MORE_ROWS),
    (BALANCED, "DeepSpeed, FSDP1, or no wrapper"): lambda: refusals.check_prepared(nn.Linear(2, 2), 2),
    (BALANCED, "several GPUs in one process"): lambda: refusals.check_prepared(nn.DataParallel(nn.Linear(2, 2)), 1),
    (BALANCED, "a `balancer` of unlike numbers"): lambda: mine(BalancedMixin, balancer="lb-mini"),
    (TITAN, "CUDA graphs"): lambda: titans(graphs=True),
    (TITAN, "tensor and pipeline parallelism"): lambda: titans(tp=2, pp=2),
    (TITAN, "a data loader of its own"): lambda: titans(dataloader=type("Loader", (), {})()),
    (TITAN, "`BalancedTexts` in the trainer without the mixin"): lambda: next(iter(UNMIXED)),
    ("verl", "FSDP1"): lambda: engine(strategy="fsdp"),
    ("verl", "sequence parallelism"): lambda: engine(ulysses_sequence_parallel_size=2),
    ("verl", "replicas of one device each"): lambda: engine(fsdp_size=1),
    ("verl", "`param_offload`"): lambda: engine(param_offload=True),
    ("verl", "fp16"): lambda: engine(mixed_precision={"param_dtype": "fp16"}),
}


def test_what_is_refused_is_refused_in_the_words_of_the_table():
    assert [(trainer, habit) for trainer, habit, _ in REFUSED] == list(CASES)
    said = []
    for case in CASES.values():
        with pytest.raises(InputError) as refused:
            case()
        said.append(re.sub(r"^(SimpleNamespace|GRPOTrainer|gathered, line \d+): ", "", str(refused.value)))
    assert said == [words for *_, words in REFUSED]


def test_what_is_supported_is_not_refused():
    for usual in (trainer, titans, preferences, rollouts, engine):
        usual()
    engine(mixed_precision={"param_dtype": "bf16"})
    refusals.check_answers({"prompt_ids": torch.ones(2, 1), "num_items_in_batch": torch.tensor(3)})
