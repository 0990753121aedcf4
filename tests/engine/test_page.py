"""The training loop that docs/engine.md shows, as its reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs/engine.md"


@pytest.mark.slow
def test_the_loop_of_the_page_prints_what_the_page_says(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    program = re.search(r"^```python train.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    shown = re.search(r"^torchrun .* train.py\n```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(program[1])
    torchrun = Path(sys.executable).parent / "torchrun"
    done = subprocess.run(
        [torchrun, "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown[1]
