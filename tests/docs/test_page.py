"""The training loop that docs/engine/index.md shows, as its reader would run it."""

import re
import textwrap

import pytest
from jobs import torchrun
from scripts import ROOT

PAGE = (ROOT / "docs/engine/index.md").read_text(encoding="utf-8")
PROGRAM = re.search(r"^```python train.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
SHOWN = re.search(r"^torchrun .* train.py\n```\n\n```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
VERDICT = re.search(r"^ *(train.py: \d.*\n)", PAGE, re.MULTILINE)[1]
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


FIGURE = re.compile(r"\d\.\de-0\d \(.*\)")
TWICE = """import odc_engine.fsdp.on_demand as engine
usual = engine.set_grads
engine.set_grads = lambda *how: usual(*how[:3], 2.0)
"""
CALL = "-m", "odc_engine", "verify", "--script"  # as --no-python odc_engine does, wherever it is installed


@pytest.mark.parametrize("page", ["own-loop", "engine/inside"])
def test_the_training_path_of_a_page_is_that_of_the_source(page):
    source = textwrap.dedent((ROOT / "odc_engine/fsdp/on_demand.py").read_text(encoding="utf-8").partition("path:")[2])
    shown = re.search(r"^```python\n(def gather\(.*?)^```$", (ROOT / f"docs/{page}.md").read_text(), re.M | re.S)[1]
    assert textwrap.indent(shown.replace("\n\n\n", "\n\n"), "    ") in source
    assert 20 <= len([line for line in shown.splitlines() if line]) <= 26


@pytest.mark.slow
@pytest.mark.parametrize("change", [str, by_hand])
def test_the_loop_of_the_page_prints_what_the_page_says_and_its_first_minibatch_is_checked(tmp_path, change):
    (tmp_path / "train.py").write_text(change(PROGRAM))
    done = torchrun(tmp_path, "--nproc-per-node", "2", "train.py")
    assert (done.returncode, done.stdout) == (0, SHOWN), done.stderr
    done = torchrun(tmp_path, "--nproc-per-node", "2", *CALL, "train.py")
    assert (done.returncode, FIGURE.sub("", done.stdout)) == (0, FIGURE.sub("", VERDICT)), done.stderr


@pytest.mark.slow
def test_a_script_whose_gradients_are_others_ends_with_1(tmp_path):
    (tmp_path / "train.py").write_text(TWICE + PROGRAM)
    done = torchrun(tmp_path, "--nproc-per-node", "2", *CALL, "train.py")
    assert done.returncode == 1
    assert "are NOT equal to one process" in done.stdout
