"""Notebooks as pages, run while the site is built: their words, their code, and what each cell gave."""

import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, CellExecutionError
from plotly.offline import get_plotlyjs

ROOT = Path(__file__).parents[2]
HERE = ROOT / "notebooks"
KEPT = ROOT / ".site" / "notebooks"
TWO = 2  # at a time: most of them use one core
QUIET = ["--IPKernelApp.log_level=ERROR"]  # a warning for each kernel, that a port of this machine is open


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py"))


def pages() -> dict[str, str]:
    """Every notebook's text for the site, by its name."""
    with ThreadPoolExecutor(TWO) as pool:
        runs = {name: pool.submit(ran, name) for name in names()}
    return {name: page(_done(name, run)) for name, run in runs.items()}


def page(notebook: Any) -> str:
    return "\n\n".join([*_cells(notebook), '<script src="../_static/figures.js"></script>']) + "\n"


def _done(name: str, run: Future[Any]) -> Any:
    """Once more and beside nothing where it failed: some measure this machine, which may have been too busy."""
    error = run.exception()
    if error is None:
        return run.result()
    print(f"{name}: runs alone, since beside another it ended with {_short(error)}", file=sys.stderr)
    try:
        return ran(name)
    except (CellControlSignal, RuntimeError) as again:
        sys.exit(f"{name}: {_short(again)}")


def _short(error: BaseException) -> str:
    """A cell's error without the way to it, which has a hundred lines."""
    told = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else f"{error!r}"
    return told.strip()[-1000:]


def ran(name: str) -> Any:
    """The notebook with its outputs; what ran before on the same code is taken as it was."""
    kept = KEPT / f"{name}-{_digest(name)}.ipynb"
    if kept.exists():
        return nbformat.read(kept, as_version=4)
    notebook = jupytext.read(HERE / f"{name}.py")
    there = {"metadata": {"path": str(HERE)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=there, extra_arguments=QUIET).execute()
    KEPT.mkdir(parents=True, exist_ok=True)
    for old in KEPT.glob(f"{name}-*.ipynb"):
        old.unlink()
    nbformat.write(notebook, kept)
    return notebook


def figures() -> str:
    """What draws them: one file for all pages, where each exported notebook carries its own."""
    loader = files("odcsim.plots").joinpath("figures.js").read_text(encoding="utf-8")
    return f"{get_plotlyjs()}\n{loader}\nwindow.odcsimFigures.all();\n"


def _digest(name: str) -> str:
    """Of the notebook and of all that it may run."""
    parts = [HERE / f"{name}.py", *sorted(ROOT.glob("odc*/**/*.py")), *sorted(ROOT.glob("traces/*.json"))]
    return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]


def _cells(notebook: Any) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield cell.source
        else:
            yield f"```python\n{cell.source}\n```"
            yield from (shown for output in cell.outputs if (shown := _shown(output)))


def _shown(output: Any) -> str:
    """Streams and figures; a slider is nothing without a kernel, and the figures' script is a file here."""
    if output.output_type == "stream":
        return f'<pre class="output"><code>{_lines(output.text)}</code></pre>'
    data = output.get("data", {})
    if "application/vnd.plotly.v1+json" in data:
        return _figure(data["text/html"])
    if "text/html" in data or "widget-view" in json.dumps(list(data)):
        return ""
    return f'<pre class="output"><code>{_lines(data["text/plain"])}</code></pre>' if "text/plain" in data else ""


def _figure(html: str) -> str:
    """In one line, which Markdown leaves alone; what would draw it at once waits for the file at the page's end."""
    place, _, rest = html.partition("\n")
    data, _, _ = rest.partition("<script>window.odcsimFigures")
    return f"<div>{place}{data}</div>".replace("\n", " ")


def _lines(text: str) -> str:
    """Without an empty line, at which Markdown would take the rest for a paragraph."""
    return escape(text.rstrip("\n"), quote=False).replace("\n", "&#10;")
