"""What is printed for other trainers is what their own parsers read, with the values that were meant."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import HfArgumentParser

from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.neighbours.written import written

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
ROWS = {
    "much": ChosenRow("on-demand", "lb-mini", 16, 8, 4, 32768, 2.6, "full", True, True, 8, "8bit"),
    "plain": ChosenRow("deferred", "lb-micro", 8, 8, 4, 16384, 3.4, "none"),
    "some": ChosenRow("deferred", "lb-micro", 8, 8, 4, 16384, 3.4, "operators"),
}


def words(trainer, row):
    return " ".join(written(TRAINERS[trainer].settings(ROWS[row]), TRAINERS[trainer].form)).split()


@pytest.mark.parametrize("row", ROWS)
def test_trl_reads_them(tmp_path, row):
    from trl import ModelConfig, SFTConfig

    parser = HfArgumentParser((SFTConfig, ModelConfig))
    given = words("trl", row)
    at = given.index("--bf16")  # which asks for a GPU where it is checked
    config, model = parser.parse_args_into_dataclasses(
        [*given[:at], *given[at + 2 :], "--bf16", "false", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    )
    chosen = ROWS[row]
    apart = chosen.way == "on-demand"
    assert (config.max_length, config.packing) == (chosen.max_tokens, not apart)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == ((4, 1) if apart else (1, 3))
    assert config.gradient_checkpointing == (chosen.recompute != "none")
    assert (model.use_peft, model.lora_r) == ((True, 8) if row == "much" else (False, model.lora_r))
    assert (config.optim == "adamw_torch_8bit") == (row == "much")


TITAN = """
import sys
from torchtitan.config import ConfigManager
c = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel", *sys.argv[1:]])
t, p = c.training, c.parallelism
print(t.seq_len, t.local_batch_size, t.global_batch_size, t.enable_cpu_offload, p.data_parallel_shard_degree,
      p.data_parallel_replicate_degree, type(c.activation_checkpoint).__qualname__)
"""


@pytest.mark.parametrize(
    ("row", "expected"),
    [("much", "32768 1 48 True 8 2 FullAC.Config"), ("plain", "16384 1 24 False 8 1 NoneType"),
     ("some", "16384 1 24 False 8 1 SelectiveAC.Config")],
)  # fmt: skip
def test_torchtitan_reads_them(row, expected):
    done = subprocess.run(
        [sys.executable, "-c", TITAN, *words("torchtitan", row)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().splitlines()[-1:] == [expected], done.stderr[-2000:]


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


@pytest.mark.skipif(find_spec("hydra") is None or find_spec("verl") is None, reason="verl is not installed")
@pytest.mark.parametrize(
    ("row", "expected"), [("much", [32768, 32768, 64, 1, 64, 8, 2]), ("plain", [16384, 16384, 32, 1, 32, -1, 1])]
)
def test_verl_reads_them(row, expected):
    done = subprocess.run(
        [sys.executable, "-c", VERL, *words("verl", row)], capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [*expected, True], done.stderr[-2000:]


def test_yaml_is_yaml_of_the_same_settings():
    yaml = pytest.importorskip("yaml")
    for name in ("axolotl", "llamafactory"):
        settings = TRAINERS[name].settings(ROWS["much"])
        assert yaml.safe_load("\n".join(written(settings, "yaml"))) == settings


def test_the_pages_that_are_named_are_there():
    root = Path(__file__).parents[3]
    assert all((root / trainer.engine).is_file() for trainer in TRAINERS.values() if trainer.engine)
