"""Build the documentation as a site: every warning is an error, and every link is followed.

    python docs/site/make.py [FOLDER]      (default: site)

Pages under docs, and those outside that outside.py names; the notebooks, run now; references of the command line and of
Python, from the code.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import api
import commands
import follow
import order
import outside

import notebooks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KINDS = {".md", ".png", ".svg", ".toml", ".csv", ".sbatch", ".yaml", ".sh"}
SELF = DOCS / "site"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site", metavar="FOLDER")
    folder = parser.parse_args().folder
    sources = ROOT / ".site" / "sources"
    shutil.rmtree(sources, ignore_errors=True)
    for name, text in pages().items():
        _write(sources / name, text)
    for path in DOCS.rglob("*"):
        if path.suffix in KINDS - {".md"} and not path.is_relative_to(SELF):
            _copy(path, sources / path.relative_to(DOCS))
    _write(sources / "_static/figures.js", notebooks.figures())
    for name in ("site.css", "site.js"):
        _copy(SELF / name, sources / "_static" / name)
    for name in ("conf.py", "scorer.js"):
        _copy(SELF / name, sources / name)
    shutil.rmtree(folder, ignore_errors=True)
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-d", ROOT / ".site/trees"]
    if subprocess.run([*build, sources, folder]).returncode:
        sys.exit("the site is not built: its warnings are errors")
    wrong = follow.broken(folder)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{folder}/index.html: {len(list(folder.rglob('*.html')))} pages, every link followed")


def pages() -> dict[str, str]:
    """Every page's text by its name on the site."""
    paths = {path.relative_to(ROOT).as_posix(): path for path in DOCS.rglob("*.md")}
    paths |= {name: ROOT / name for name in outside.PAGES}
    texts = {outside.target(name): outside.fitted(path.read_text("utf-8"), name) for name, path in paths.items()}
    run = {f"notebooks/{name}.ipynb": text for name, text in notebooks.pages().items()}
    made = {outside.target(name): outside.fitted(text, name) for name, text in run.items()}
    made |= {f"reference/{name}.md": commands.page(name) for name in api.MODULES}
    made |= {f"reference/python-{name}.md": api.page(name) for name in api.MODULES}
    texts |= made
    for index in [name for name in texts if name.endswith("index.md") and not name.startswith("notebooks")]:
        texts[index] += "\n" + "\n".join(order.tree(t, index, p) for t, p in order.sections(texts[index], index))
    notes = [name for name in made if name.startswith("notebooks/")]
    texts["notebooks/index.md"] += "\n" + order.tree("Notebooks", "notebooks/index.md", notes)
    references = [name for name in made if name.startswith("reference/")]
    texts["index.md"] += "\n" + order.tree("Look it up", "index.md", ["notebooks/index.md", *references])
    rest = ["readme.md", "contributing.md", "changelog.md", "traces.md"]
    texts["index.md"] += "\n" + order.tree("The project", "index.md", rest)
    return texts


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


if __name__ == "__main__":
    main()
