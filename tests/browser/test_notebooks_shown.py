"""Notebooks that somebody exported show their figures in a browser, without a network."""

import subprocess
import sys

import browser
import jupytext
import nbformat
import pytest
from scripts import ROOT

pytestmark = pytest.mark.browser
HERE = ROOT / "notebooks"
QUICK = [path.stem for path in sorted(HERE.glob("*.py")) if path.stem[0] not in "4578"]


def exported(name, folder):
    """A notebook as `jupyter nbconvert --execute --to html` gives it, and how many figures it has."""
    from nbclient import NotebookClient

    notebook = jupytext.read(HERE / f"{name}.py")
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    nbformat.write(notebook, folder / f"{name}.ipynb")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", f"{name}.ipynb"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    figures = sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs)
    return folder / f"{name}.html", figures


@pytest.mark.parametrize("name", QUICK)
def test_every_figure_is_drawn(chromium, name, tmp_path, pictures):
    page, figures = exported(name, tmp_path)
    assert figures
    with browser.window(chromium, 1100) as seen:
        seen.open(page).drawn(figures)
        assert [e for e in seen.errors if "ERR_" not in e] == []  # the exporter's own styles of formulas are not here
        words = [box for box in seen.boxes() if box["of"] != "page"]
        assert len({box["of"] for box in words}) == figures
        assert browser.overlapping(words) == []
        seen.picture(pictures / f"notebook-{name}.png")
