"""What is printed for other trainers has the names that their sources have, and is YAML where it is said to be.

axolotl and LLaMA-Factory pin other versions of what the rest of these tests need: `pip install --no-deps -r
requirements-trainers.txt`.
"""

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest
from theirs import folder
from transformers import TrainingArguments

from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.neighbours.settings import written
from odcsim.recipe import USUAL

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
MUCH = ChosenRow(
    USUAL.by(sharding="hybrid", offload=True, lora=8, optimizer="8bit"), "lb-mini", 16, 8, 4, 32768, 2.6, epochs=0.5
)
PLAIN = ChosenRow(USUAL.by(sync="deferred", recompute="none"), "lb-micro", 8, 8, 4, 16384, 3.4)
OWN = replace(PLAIN, model="Qwen/Qwen3-8B", epochs=3.0, longest=9000, samples_made=30.4)
RULES = {"packed": 0, "filled": 0, "batches": 2, "padded": 2}  # with samples of a microbatch, where they are counted
ROWS = [
    PLAIN,
    MUCH,
    replace(PLAIN, recipe=PLAIN.recipe.by(lora=8, quantization="nf4")),
    *(
        replace(OWN, recipe=USUAL.by(sync=sync), balancer=balancer, each=each)
        for balancer, each in RULES.items()
        for sync in ("deferred", "collective")
    ),
]
SCHEMAS = {"axolotl": ("utils/schemas", "integrations/cut_cross_entropy"), "llamafactory": ("hparams",)}


@pytest.mark.parametrize("package", SCHEMAS)
def test_every_setting_is_a_field_of_theirs(package):
    """Every annotated name in a class of those files; what transformers has is LLaMA-Factory's, too."""
    paths = [path for where in SCHEMAS[package] for path in (folder(package) / where).glob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    bodies = [node.body for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = {line.target.id for body in bodies for line in body if isinstance(line, ast.AnnAssign)}
    assert len(known) > 50
    known |= {one.name for one in fields(TrainingArguments)} if package == "llamafactory" else set()
    for row in ROWS:
        settings = TRAINERS[package].settings(row)
        inside = {name for key, value in settings.items() if isinstance(value, dict) and key != "accelerator_config"
                  for name in value}  # fmt: skip
        assert {*settings, *inside} <= known


def test_yaml_is_yaml_of_the_same_settings():
    yaml = pytest.importorskip("yaml")
    for name in ("axolotl", "llamafactory"):
        settings = TRAINERS[name].settings(MUCH)
        assert yaml.safe_load("\n".join(written(settings, "yaml"))) == settings


def test_the_pages_that_are_named_are_there():
    root = Path(__file__).parents[3]
    assert all((root / trainer.engine).is_file() for trainer in TRAINERS.values() if trainer.engine)
