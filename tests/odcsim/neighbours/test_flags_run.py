"""From a file of one's own to a run: lengths, price and start by commands. What is printed runs on processors, changed
in its paths alone, and makes as many steps as were priced."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tiny_trainers import llama

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
WORDS = [f"w{i}" for i in range(60)]
BATCH, PROCESSES = 16, 2
HERE = "--use_cpu true --report_to none --save_strategy no --logging_steps 1 --output_dir out"
SCRIPT = """
import dataclasses, datasets, transformers
@dataclasses.dataclass
class Own:
    model_name_or_path: str
args, own = transformers.HfArgumentParser((transformers.TrainingArguments, Own)).parse_args_into_dataclasses()
words = transformers.AutoTokenizer.from_pretrained(own.model_name_or_path)
model = transformers.AutoModelForCausalLM.from_pretrained(own.model_name_or_path)
data = datasets.load_dataset("json", data_files="trainer/train.jsonl", split="train")
data = data.map(lambda row: words(row["text"]), remove_columns=data.column_names)
collate = transformers.DataCollatorForLanguageModeling(words, mlm=False)
transformers.Trainer(model=model, args=args, train_dataset=data, data_collator=collate).train()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, its tokenizer, and three datasets."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder, rng = tmp_path_factory.mktemp("own"), Random(1)
    known = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", "u:", "a:", *WORDS])}
    words = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    own = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    own.chat_template = "{% for m in messages %}{{ ' u: ' if m.role == 'user' else ' a: ' }}{{ m.content }}{% endfor %}"
    own.save_pretrained(folder / "tiny")
    llama(vocab_size=len(known), max_position_embeddings=1024).save_pretrained(folder / "tiny")

    def text():
        return " ".join(rng.choices(WORDS, k=min(200, int(rng.lognormvariate(3, 0.8)) + 3)))

    rows = {
        "sft": [{"messages": [{"role": who, "content": text()} for who in ("user", "assistant")]} for _ in range(230)],
        "dpo": [{"prompt": text(), "chosen": f" {text()}", "rejected": f" {text()}"} for _ in range(130)],
        "trainer": [{"text": text()} for _ in range(150)],
    }
    for name, each in rows.items():
        (folder / name).mkdir()
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in each))
    (folder / "your_script.py").write_text(SCRIPT)
    return folder


def say(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "odcsim", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("data", "trainer"), [("sft", "trl"), ("dpo", "trl"), ("trainer", "accelerate")])
def test_what_is_printed_runs_the_steps_that_were_priced(folder, data, trainer):
    asked = (
        f"--model tiny/config.json --gpu h100 --attention sdpa --devices {PROCESSES} --global-batch {BATCH} --epochs 1"
    )
    told = say(
        folder, "compare", f"{data}/train.jsonl", "--tokenizer", "tiny", *asked.split(), "--trainer", trainer, "--json"
    )
    (folder / "rows.json").write_text(told)
    script = say(folder, "flags", trainer, "rows.json")
    name = re.search(r"^# (\S+) \+ (\S+), ", script).groups()
    run = next(one for one in json.loads(told)["run"]["rows"] if one["row"] == " + ".join(name[::-1]))
    for path, own in (("config", "tiny"), ("your-data", data)):
        script = script.replace(f"/path/to/{path}", str(folder / own))
    lines = _until_trained(folder, script.replace("--bf16 true", f"--bf16 true {HERE}"))
    assert sum("'loss':" in line or "{'loss'" in line for line in lines) == run["steps"]
    speed = {name: float(value) for name, value in re.findall(r"'train_(\w+)': '?([\d.]+)", lines[-1])}
    assert speed["runtime"] * speed["steps_per_second"] == pytest.approx(run["steps"], rel=0.02)


def _until_trained(folder: Path, script: str) -> list[str]:
    """What it prints until it has trained: over gloo its processes do not always come to an end afterwards."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    more = {"PATH": path, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=os.environ | more, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as started:  # fmt: skip
        lines = []
        try:
            for line in started.stdout:
                lines += line.replace("}", "}\n").splitlines()
                if "train_runtime" in line:
                    return [one for one in lines if "'" in one]
        finally:
            os.killpg(started.pid, signal.SIGKILL)
    raise AssertionError("\n".join(lines[-30:]))
