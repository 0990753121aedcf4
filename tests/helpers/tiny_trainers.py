"""Trainers of Hugging Face on two processes without GPUs: a model, samples, and the same training stock and on demand.

accelerate shards over CPUs only if it takes them for GPUs, which `arguments` has it do.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset, Sampler

SEED, WORDS = 42, 50
IGNORED = -100
DDP = {"fsdp": False, "fsdp_config": None}
FSDP = {"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}


def lengths(count: int) -> list[int]:
    return np.random.default_rng(1).integers(3, 60, count).tolist()


class Texts(Dataset):
    """Random tokens. The first third of a text is a prompt, which no loss counts."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(2)
        self.texts = [rng.integers(1, WORDS, length).tolist() for length in lengths(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> dict[str, list[int]]:
        text = self.texts[i]
        return {"input_ids": text, "labels": [IGNORED] * (len(text) // 3) + text[len(text) // 3 :]}


def collate(samples: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    longest = max(len(sample["input_ids"]) for sample in samples)
    fill = {"input_ids": 0, "labels": IGNORED, "attention_mask": 0}
    full = [sample | {"attention_mask": [1] * len(sample["input_ids"])} for sample in samples]
    return {k: torch.tensor([s[k] + [own] * (longest - len(s[k])) for s in full]) for k, own in fill.items()}


def llama(**changed: object):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": WORDS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes | heads | {"attn_implementation": "eager"} | changed))


def tied():
    return llama(tie_word_embeddings=True)


def adapted():
    from peft import LoraConfig, get_peft_model

    return get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def started(rank: int) -> None:
    """This process as accelerate wants to find it, without what an earlier test left behind."""
    from accelerate.state import AcceleratorState, GradientState

    told = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "HF_HUB_OFFLINE": "1"}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}  # a group is there already
    for name, value in told.items():
        os.environ.setdefault(name, value)  # who runs on one of several machines has been told more
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def arguments(rank: int, folder: Path, kind: type | None = None, **changed: object):
    from transformers import TrainingArguments

    started(rank)
    usual = {"use_cpu": True, "report_to": [], "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-2, "max_steps": 6}
    fsdp = {"fsdp": True, "fsdp_config": dict(FSDP)}
    own = (kind or TrainingArguments)(output_dir=str(folder), **usual | sizes | fsdp | {"seed": SEED} | changed)
    return as_gpus(own, "MULTI_CPU" if changed.get("fsdp") is False else "MULTI_GPU")


def as_gpus(own, kind: str = "MULTI_GPU"):
    """The same arguments, with processors that count as GPUs."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    assert own.device.type == "cpu"  # which makes the state that is changed next
    PartialState._shared_state["distributed_type"] = DistributedType[kind]
    return own


class InOrder(Sampler):
    """A sampler of one's own: shuffled as `BalancedBatches` shuffles, epoch after epoch."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.default_rng((SEED, self.epoch)).permutation(self.count).tolist())


@dataclass
class Trained:
    weights: dict[str, Tensor]
    logs: list[dict[str, float]]

    def column(self, name: str) -> list[float]:
        return [line[name] for line in self.logs if name in line]

    def furthest(self, other: "Trained") -> float:
        assert self.weights.keys() == other.weights.keys()
        return max((own - other.weights[name]).abs().max().item() for name, own in self.weights.items())


def outcome(trainer) -> Trained:
    weights = {name: whole(parameter) for name, parameter in trainer.model.named_parameters()}
    return Trained(weights, trainer.state.log_history)


def whole(parameter: Tensor) -> Tensor:
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach().clone()


def in_order(base: type) -> type:
    """A trainer with a sampler of its own."""

    def ordered(self, train_dataset=None):
        return InOrder(len(train_dataset if train_dataset is not None else self.train_dataset))

    return type("Stock", (base,), {"_get_train_sampler": ordered})


def words():
    """A tokenizer that knows numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {"<pad>": 0, **{str(i): i for i in range(1, WORDS)}}
    whole_words = Tokenizer(models.WordLevel(known, unk_token="<pad>"))
    whole_words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=whole_words, pad_token="<pad>", eos_token=str(WORDS - 1))


def both(pools, work, *args):
    """On both devices; the first call imports transformers there."""
    return pools(2).run(work, *args, timeout=300.0)


def alone(samples: int, steps: int) -> tuple[dict[str, Tensor], list[float]]:
    """One process that takes each minibatch's samples one by one, and the mean over all tokens that have a label."""
    from odc_engine import BalancedBatches

    model, texts = llama(), Texts(samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = BalancedBatches(
        [len(text) for text in texts.texts], devices=1, rank=0, minibatch=8, max_tokens=10**6, averaged=False, seed=42
    )
    losses = []
    while len(losses) < steps:
        for share in batches.minibatches():
            found = [collate([texts[i]]) for part in share.microbatches for i in part]
            tokens = sum(int((one["labels"][:, 1:] != IGNORED).sum()) for one in found)
            parts = [summed(model, one) / tokens for one in found]
            for part in parts:
                part.backward()
            losses.append(sum(part.item() for part in parts))
            optimizer.step()
            optimizer.zero_grad()
    return dict(model.named_parameters()), losses


def summed(model, one: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=one["input_ids"]).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, one["labels"][0, 1:], reduction="sum", ignore_index=IGNORED)
