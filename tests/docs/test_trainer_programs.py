"""The programs of the pages on trainers, as they stand there, in the trainers themselves."""

import re

import pytest
from jobs import torchrun
from scripts import ROOT

pytestmark = pytest.mark.slow

PRETENDED = str(ROOT / "tests/helpers/pretended.py")


def program(page, name):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.search(rf"^```python {name}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]


def test_the_finetuning_learns_and_its_lines_are_three(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shown = program("hugging-face.md", "finetune.py")
    assert re.findall(r"  # (\d)", shown) == ["1", "2", "3"]
    (tmp_path / "finetune.py").write_text(shown, encoding="utf-8")
    done = torchrun(tmp_path, "--nproc-per-node", "2", PRETENDED, "finetune.py", warnings="default")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in done.stdout.split("losses")[1].split()]
    assert len(losses) == 3
    assert losses[2] < losses[0] - 0.1
