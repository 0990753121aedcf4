"""Settings of axolotl and LLaMA-Factory are fields of their own schemas, which take them as they are meant.

Both pin other versions of what the rest of these tests need: `pip install --no-deps -r requirements-trainers.txt`.
"""

import ast
import json
import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from theirs import folder

from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import EACH_BATCH, ChosenRow

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
PLAIN = ChosenRow("deferred", "lb-micro", 8, 8, 4, 16384, 3.4, "none")
MUCH = ChosenRow("on-demand", "lb-mini", 16, 8, 4, 32768, 2.6, "full", True, True, 8, "8bit")
OWN = replace(PLAIN, recompute="full", model="Qwen/Qwen3-8B", epochs=3.0, longest=9000, samples_made=30.4)
RULES = {"packed": 0, "filled": 0, "batches": 2, "padded": 2}  # with samples of a microbatch, where they are counted
ROWS = {"plain": PLAIN, "much": MUCH} | {
    f"{balancer} {sync}": replace(OWN, way=sync, balancer=balancer, each=each)
    for balancer, each in RULES.items()
    for sync in ("deferred", "collective")
}
SCHEMAS = {"axolotl": "utils/schemas", "llamafactory": "hparams"}  # where each names its settings


def known(package):
    """Every annotated name in a class of those files; what transformers has is LLaMA-Factory's, too."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (folder(package) / SCHEMAS[package]).glob("*.py")]
    bodies = [node.body for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own = {line.target.id for body in bodies for line in body if isinstance(line, ast.AnnAssign)}
    assert len(own) > 50
    if package != "llamafactory":
        return own
    return own | {one.name for one in fields(pytest.importorskip("transformers").TrainingArguments)}


def names(settings):
    """Those inside others among them, but for accelerate's."""
    inside = [
        set(value) for name, value in settings.items() if isinstance(value, dict) and name != "accelerator_config"
    ]
    return set(settings).union(*inside)


@pytest.mark.parametrize("package", SCHEMAS)
@pytest.mark.parametrize("row", ROWS)
def test_every_setting_is_a_field_of_theirs(package, row):
    assert names(TRAINERS[package].settings(ROWS[row])) <= known(package)


# What each takes of a dict of settings, said by its names for them.
READ = {
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


@pytest.mark.parametrize("package", SCHEMAS)
def test_their_own_schema_takes_them_as_they_are_meant(package, tmp_path):
    folder(package)
    pytest.importorskip("trl")  # which LLaMA-Factory imports, and what it brings
    settings = json.dumps([TRAINERS[package].settings(row) for row in ROWS.values()])
    done = subprocess.run(
        [sys.executable, "-c", READ[package] + MAIN, settings],
        env=os.environ | {"DISABLE_VERSION_CHECK": "1", "PYTHONWARNINGS": "ignore"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [meant(row) for row in ROWS.values()]


def meant(row):
    packs, together = not row.each, row.way == "collective"
    tokens = row.max_tokens if packs else row.longest
    times = 4 // row.each if row.each else 4 if row.in_rows else row.rounded
    return [tokens, packs, row.each or 1, times, row.recompute != "none", EACH_BATCH if together else None]
