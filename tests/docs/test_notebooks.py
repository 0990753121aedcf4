"""Every notebook runs from top to bottom, and its .ipynb says what its .py says."""

import jupytext
import nbformat
import pytest
import scripts
from scripts import ROOT

HERE = ROOT / "notebooks"
NAMES = sorted(path.stem for path in HERE.glob("*.py"))


def test_pairs_agree_hold_no_outputs_and_are_listed():
    """Renew one with `jupytext --update --to ipynb notebooks/NAME.py`."""
    assert NAMES
    assert sorted(path.stem for path in HERE.glob("*.ipynb")) == NAMES
    listed = (HERE / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        text, paired = jupytext.read(HERE / f"{name}.py"), nbformat.read(HERE / f"{name}.ipynb", as_version=4)
        assert [(c.cell_type, c.source) for c in text.cells] == [(c.cell_type, c.source) for c in paired.cells], name
        assert not any(c.get("outputs") or c.get("execution_count") for c in paired.cells), name
        assert f"({name}.ipynb)" in listed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_ends_with_an_answer(name):
    """Once: `make site` shows what it gave."""
    notebook = scripts.load("docs/site/notebooks.py").ran(name)
    assert "?" in notebook.cells[0].source.splitlines()[0]
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    figures = [data for data in shown if "application/vnd.plotly.v1+json" in data]
    assert figures
    assert all("text/html" in data for data in figures)
    last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    assert name == "explore" or any(output.output_type == "stream" for output in last.outputs)
