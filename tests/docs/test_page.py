"""The training loop that docs/engine.md shows, as its reader would run it."""

import re

import pytest
from jobs import torchrun
from scripts import ROOT

PAGE = ROOT / "docs/engine.md"


@pytest.mark.slow
def test_the_loop_of_the_page_prints_what_the_page_says(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    program = re.search(r"^```python train.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = re.search(r"^torchrun .* train.py\n```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program[1])
    done = torchrun(tmp_path, "--nproc-per-node", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown[1]
