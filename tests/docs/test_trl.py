"""The balanced trainer of docs/trl.md in TRL itself, where that is installed: two devices learn what one does."""

import os
import subprocess
import sys

import pytest
from programs import program

SCRIPT = """
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

{trainer}


def fresh():
    torch.manual_seed(0)
    sizes = {{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}}
    heads = {{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, attn_implementation="eager"))


draw = torch.Generator().manual_seed(1)
texts = [torch.randint(1, 50, (n,), generator=draw).tolist() for n in torch.randint(3, 60, (24,), generator=draw)]
words = {{"<pad>": 0, **{{str(i): i for i in range(1, 50)}}}}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="49"
)
arguments = SFTConfig(
    output_dir="out", use_cpu=True, num_train_epochs=2, learning_rate=1e-2, optim="sgd", max_grad_norm=0, report_to=[],
    lr_scheduler_type="constant", save_strategy="no", max_length=None, dataset_kwargs={{"skip_prepare_dataset": True}},
    per_device_train_batch_size=1, gradient_accumulation_steps=3, train_sampling_strategy="sequential",
)
dataset = Dataset(InMemoryTable.from_pydict({{"input_ids": texts}}), fingerprint="texts")
trainer = BalancedTrainer(model=fresh(), args=arguments, train_dataset=dataset, processing_class=tokenizer)
assert trainer.train().global_step == 8
if arguments.process_index == 0:
    model = fresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for first in [*range(0, len(texts), 6)] * 2:
        minibatch = [torch.tensor([text]) for text in texts[first : first + 6]]
        for text in minibatch:
            found = model(text).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(found, text[0, 1:], reduction="sum")
            (loss / sum(one.shape[1] - 1 for one in minibatch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(trainer.accelerator.unwrap_model(trainer.model).parameters(), model.parameters(), strict=True)
    print("furthest", max((mine - its).abs().max().item() for mine, its in pairs))
"""


@pytest.mark.slow
def test_trl_on_two_devices_learns_what_one_process_does(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.format(trainer=program("trl.md", "balanced_trl.py")), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("furthest")[1]) < 1e-4
