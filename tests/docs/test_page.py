"""The training loop that docs/engine/index.md shows, as its reader would run it."""

import re

import pytest
from jobs import torchrun
from scripts import ROOT

PAGE = ROOT / "docs/engine/index.md"


PROGRAM = re.compile(r"^```python train.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^torchrun .* train.py\n```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


ATTACHED = re.compile(r"^odc\.attach\(optimizer\)  # 2[^\n]*\n", re.MULTILINE)
CLIP, ZERO = "    torch.nn.utils.clip_grad_norm_", "    optimizer.zero_grad()\n"


def by_hand(program: str) -> str:
    """The loop with its meetings said, as the page has it further down."""
    found, count = ATTACHED.subn("", program)
    assert count == 1
    for line, meeting in ((CLIP, f"    odc.settle()\n{CLIP}"), (ZERO, f"{ZERO}    odc.publish()\n")):
        assert found.count(line) == 1
        found = found.replace(line, meeting)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("change", [str, by_hand])
def test_the_loop_of_the_page_prints_what_the_page_says(tmp_path, change):
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(change(PROGRAM.search(text)[1]))
    done = torchrun(tmp_path, "--nproc-per-node", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == SHOWN.search(text)[1]


VERDICT = re.compile(r"^ *(train.py: \d.*\n)", re.MULTILINE)
FIGURE = re.compile(r"\d\.\de-0\d \(.*\)")
TWICE = """import odc_engine.fsdp.on_demand as engine
usual = engine.set_grads
engine.set_grads = lambda *how: usual(*how[:3], 2.0)
"""
CALL = "-m", "odc_engine", "verify", "--script"  # as --no-python odc_engine does, wherever it is installed


@pytest.mark.slow
@pytest.mark.parametrize("change", [str, by_hand])
def test_the_first_minibatch_of_the_page_is_checked(tmp_path, change):
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(change(PROGRAM.search(text)[1]))
    done = torchrun(tmp_path, "--nproc-per-node", "2", *CALL, "train.py")
    assert done.returncode == 0, done.stderr
    assert FIGURE.sub("", done.stdout) == FIGURE.sub("", VERDICT.search(text)[1])


@pytest.mark.slow
def test_a_script_whose_gradients_are_others_ends_with_1(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(TWICE + PROGRAM.search(text)[1])
    done = torchrun(tmp_path, "--nproc-per-node", "2", *CALL, "train.py")
    assert done.returncode == 1
    assert "are NOT equal to one process" in done.stdout
