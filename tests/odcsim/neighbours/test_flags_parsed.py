"""What is printed for other trainers is what their own parsers and schemas read, with the values that were meant.

axolotl and LLaMA-Factory pin other versions of what the rest of these tests need: `pip install --no-deps -r
requirements-trainers.txt`.
"""

import ast
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from theirs import folder
from transformers import HfArgumentParser, TrainingArguments

from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import EACH_BATCH, ChosenRow
from odcsim.neighbours.settings import written
from odcsim.recipe import USUAL

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
ALL = USUAL.by(sharding="hybrid", offload=True, lora=8, optimizer="8bit")
PLAIN = ChosenRow(USUAL.by(sync="deferred", recompute="none"), "lb-micro", 8, 8, 4, 16384, 3.4)
MUCH = ChosenRow(ALL, "lb-mini", 16, 8, 4, 32768, 2.6)
ROWS = {"much": MUCH, "plain": PLAIN, "some": replace(PLAIN, recipe=PLAIN.recipe.by(recompute="operators"))}
OWN = replace(PLAIN, model="Qwen/Qwen3-8B", epochs=3.0, longest=9000, samples_made=30.4)
RULES = {"packed": 0, "filled": 0, "batches": 2, "padded": 2}  # with samples of a microbatch, where they are counted
FEW = replace(PLAIN, recipe=PLAIN.recipe.by(lora=8, quantization="nf4"))
MORE = {"plain": PLAIN, "much": MUCH, "few": FEW} | {
    f"{balancer} {sync}": replace(OWN, recipe=USUAL.by(sync=sync), balancer=balancer, each=each)
    for balancer, each in RULES.items()
    for sync in ("deferred", "collective")
}
TITAN = """
import sys
from torchtitan.config import ConfigManager
c = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel", *sys.argv[1:]])
t, p = c.training, c.parallelism
print(t.seq_len, t.local_batch_size, t.global_batch_size, t.enable_cpu_offload, p.data_parallel_shard_degree,
      p.data_parallel_replicate_degree, type(c.activation_checkpoint).__qualname__)
"""
VERL = """
import importlib.util, json, pathlib, sys, warnings
warnings.simplefilter("ignore")
from hydra import compose, initialize_config_dir
root = pathlib.Path(importlib.util.find_spec("verl").submodule_search_locations[0]) / "trainer/config"
with initialize_config_dir(str(root), version_base=None):
    c = compose("ppo_trainer", overrides=sys.argv[1:])
a = c.actor_rollout_ref.actor
print(json.dumps([a.ppo_max_token_len_per_gpu, c.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu,
                  a.ppo_mini_batch_size, c.actor_rollout_ref.rollout.n, c.data.train_batch_size,
                  a.fsdp_config.fsdp_size, c.trainer.nnodes, a.use_dynamic_bsz]))
"""
READ = {  # what each takes of a dict of settings, said by its names for them
    "axolotl": """
from axolotl.utils.schemas.config import AxolotlInputConfig
def read(given):
    usual = {"base_model": "a/b", "datasets": [{"path": "d", "type": "chat_template"}], "learning_rate": 1e-4}
    found = AxolotlInputConfig(**usual | given)
    names = ("sequence_len", "sample_packing", "micro_batch_size", "gradient_accumulation_steps",
             "gradient_checkpointing", "accelerator_config")
    return [getattr(found, name) for name in names]
""",
    "llamafactory": """
from llamafactory.hparams.parser import _TRAIN_ARGS
from transformers import HfArgumentParser
def read(given):
    usual = {"model_name_or_path": "a/b", "output_dir": "nowhere", "use_cpu": True}
    every = {name: value for of in HfArgumentParser(_TRAIN_ARGS).parse_dict(usual | given) for name, value in
             vars(of).items()}
    each = every["accelerator_config"].gradient_accumulation_kwargs
    return [every["cutoff_len"] + every["packing"], every["neat_packing"], every["per_device_train_batch_size"],
            every["gradient_accumulation_steps"], not every["disable_gradient_checkpointing"],
            each and {"gradient_accumulation_kwargs": each}]
""",
}
MAIN = "\nimport json, sys\nprint(json.dumps([read(given) for given in json.loads(sys.argv[1])]))"
SCHEMAS = {"axolotl": "utils/schemas", "llamafactory": "hparams"}  # where each names its settings


def words(trainer, row):
    return " ".join(written(TRAINERS[trainer].settings(ROWS[row]), TRAINERS[trainer].form)).split()


def last_line(code, *argv, **surroundings):
    command = [sys.executable, "-c", code, *argv]
    done = subprocess.run(command, env=os.environ | surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("row", ROWS)
def test_trl_reads_them(tmp_path, row):
    from trl import ModelConfig, SFTConfig

    given = words("trl", row)
    at = given.index("--bf16")  # which asks for a GPU where it is checked
    more = ["--bf16", "false", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    parser = HfArgumentParser((SFTConfig, ModelConfig))
    config, model = parser.parse_args_into_dataclasses([*given[:at], *given[at + 2 :], *more])
    chosen = ROWS[row]
    apart = chosen.recipe.sync == "on-demand"
    assert (config.max_length, config.packing) == (chosen.max_tokens, not apart)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == ((4, 1) if apart else (1, 3))
    assert config.gradient_checkpointing == (chosen.recipe.recompute != "none")
    assert (model.use_peft, model.lora_r) == ((True, 8) if row == "much" else (False, model.lora_r))
    assert (config.optim == "adamw_torch_8bit") == (row == "much")


def test_trl_takes_weights_in_four_bits_with_double_quantization():
    from trl import ModelConfig

    settings = TRAINERS["trl"].settings(FEW)
    known = {f"--{field.name}" for field in fields(ModelConfig)}
    own = {name: value for name, value in settings.items() if name in known}
    [model] = HfArgumentParser(ModelConfig).parse_args_into_dataclasses(" ".join(written(own, "shell")).split())
    assert (model.use_peft, model.lora_r, model.load_in_4bit) == (True, 8, True)
    assert (model.bnb_4bit_quant_type, model.use_bnb_nested_quant) == ("nf4", True)


def test_torchtitan_reads_them():
    expected = {"much": "32768 1 48 True 8 2 FullAC.Config", "plain": "16384 1 24 False 8 1 NoneType",
                "some": "16384 1 24 False 8 1 SelectiveAC.Config"}  # fmt: skip
    assert {row: last_line(TITAN, *words("torchtitan", row)) for row in ROWS} == expected


@pytest.mark.skipif(find_spec("hydra") is None or find_spec("verl") is None, reason="verl is not installed")
def test_verl_reads_them():
    expected = {"much": [32768, 32768, 64, 1, 64, 8, 2, True], "plain": [16384, 16384, 32, 1, 32, -1, 1, True]}
    assert {row: json.loads(last_line(VERL, *words("verl", row))) for row in expected} == expected


@pytest.mark.parametrize("package", SCHEMAS)
def test_every_setting_is_a_field_of_theirs(package):
    """Every annotated name in a class of those files; what transformers has is LLaMA-Factory's, too."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (folder(package) / SCHEMAS[package]).glob("*.py")]
    bodies = [node.body for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = {line.target.id for body in bodies for line in body if isinstance(line, ast.AnnAssign)}
    assert len(known) > 50
    known |= {one.name for one in fields(TrainingArguments)} if package == "llamafactory" else set()
    for row in MORE.values():
        settings = TRAINERS[package].settings(row)
        inside = {name for key, value in settings.items() if isinstance(value, dict) and key != "accelerator_config"
                  for name in value}  # fmt: skip
        assert {*settings, *inside} <= known


@pytest.mark.parametrize("package", SCHEMAS)
def test_their_own_schema_takes_them_as_they_are_meant(package):
    folder(package)
    pytest.importorskip("trl")  # which LLaMA-Factory imports, and what it brings
    settings = json.dumps([TRAINERS[package].settings(row) for row in MORE.values()])
    found = last_line(READ[package] + MAIN, settings, DISABLE_VERSION_CHECK="1", PYTHONWARNINGS="ignore")
    assert json.loads(found) == [meant(row) for row in MORE.values()]


def meant(row):
    packs, together = not row.each, row.recipe.sync == "collective"
    tokens = row.max_tokens if packs else row.longest
    times = 4 // row.each if row.each else 4 if row.balancer in RULES else 3
    return [tokens, packs, row.each or 1, times, row.recipe.recompute != "none", EACH_BATCH if together else None]


def test_yaml_is_yaml_of_the_same_settings():
    yaml = pytest.importorskip("yaml")
    for name in ("axolotl", "llamafactory"):
        settings = TRAINERS[name].settings(MUCH)
        assert yaml.safe_load("\n".join(written(settings, "yaml"))) == settings


def test_the_pages_that_are_named_are_there():
    root = Path(__file__).parents[3]
    assert all((root / trainer.engine).is_file() for trainer in TRAINERS.values() if trainer.engine)
