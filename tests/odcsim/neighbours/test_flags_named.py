"""Settings of axolotl and LLaMA-Factory are fields of their own, as their sources name them where they are installed.

Both pin other versions of what the rest of these tests need, so nothing of them is imported:
`pip install --no-deps --target DIR axolotl llamafactory`, with DIR on PYTHONPATH, is enough.
"""

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ChosenRow

pytestmark = pytest.mark.slow
ROWS = [
    ChosenRow("on-demand", "lb-mini", 16, 8, 4, 32768, 2.6, "full", True, True, 8, "8bit"),
    ChosenRow("deferred", "lb-micro", 8, 8, 4, 16384, 3.4, "none"),
]
# Where each names its settings; what transformers' TrainingArguments has is LLaMA-Factory's, too.
SCHEMAS = {"axolotl": "axolotl/utils/schemas", "llamafactory": "llamafactory/hparams"}
OF_TRANSFORMERS = {"per_device_train_batch_size", "gradient_accumulation_steps", "optim"}


def fields(package):
    """Every annotated name in a class of the package's folder of settings."""
    if (spec := find_spec(package)) is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    folder = Path(spec.submodule_search_locations[0]).parent / SCHEMAS[package]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))]
    bodies = [node.body for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {line.target.id for body in bodies for line in body if isinstance(line, ast.AnnAssign)}


def names(settings):
    """Those inside others among them."""
    inside = [set(value) for value in settings.values() if isinstance(value, dict)]
    return set(settings).union(*inside)


@pytest.mark.parametrize("package", SCHEMAS)
@pytest.mark.parametrize("row", ROWS, ids=["much", "plain"])
def test_every_setting_is_a_field_of_theirs(package, row):
    known = fields(package)
    assert len(known) > 50
    assert names(TRAINERS[package].settings(row)) - OF_TRANSFORMERS <= known
