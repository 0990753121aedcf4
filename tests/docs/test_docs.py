"""The pages tell the truth: their commands print what is shown, and contracts list every key and command."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import scripts
from diagnosed import diagnosis
from scripts import ROOT

import odcsim
from odcsim import cluster, program
from odcsim.balance import BALANCERS
from odcsim.cli import COMMANDS
from odcsim.profile import Profile
from odcsim.results.metrics import PARTS
from odcsim.results.summary import Row

DOCS = ROOT / "docs"
refresh = scripts.load("docs/studies/refresh.py")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def shown(page: Path) -> str:
    """`howto/rent.md`, which `pytest -k` takes as it is."""
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


SLOW = {  # whose commands take longer than those of all others
    "log.md", "users.md", "tutorial.md", "sweeps.md", "lengths.md", "rent.md", "launch.md", "network.md", "look.md",
}  # fmt: skip
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
# What the log found once is asked again by `make thorough`, all other pages' commands whenever tests run.
ASKED = [page for page in PAGES if page.name != "log.md" or "THOROUGH" in os.environ]
RUN = [page for page in ASKED if "```console\n$ " in page.read_text("utf-8")]
MARKED = [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else ()) for page in RUN]


@pytest.mark.by_default(14)
@pytest.mark.parametrize("page", MARKED, ids=shown)
def test_commands_print_what_the_page_shows(page):
    """Where this fails on purpose, run `python docs/studies/refresh.py` and read the difference."""
    for shown, printed in refresh.session(page.read_text(encoding="utf-8")):
        assert refresh.matches(shown.output, printed), f"$ {shown.command}\nshows\n{shown.output}\nprints\n{printed}"


@pytest.mark.slow
def test_the_program_of_the_readme_runs():
    [program] = re.findall(r"^```python\n(.*?)^```$", text("README.md"), re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 1 < float(done.stdout) < 2


PAGE = """text
```toml a.toml
x = 1
```
```console
$ cat \\
    a.toml
x = 1
$ echo one; echo two 2.5 MB; echo
one
two ... MB
```
```sh
$ not run
```
"""


def test_a_page_is_a_session_and_refreshing_replaces_what_no_longer_holds_and_nothing_else():
    parts = list(refresh.parse(PAGE))
    assert parts[0] == refresh.File("a.toml", "x = 1\n")
    assert [p.command for p in parts[1:]] == ["cat \\\n    a.toml\n", "echo one; echo two 2.5 MB; echo\n"]
    assert refresh.refreshed(PAGE) == PAGE
    stale = PAGE.replace("x = 1\n$", "x = 2\n$").replace("two ...", "three ...")
    assert refresh.refreshed(stale) == PAGE.replace("...", "2.5")
    with pytest.raises(SystemExit, match="exit status 3"):
        list(refresh.session("```console\n$ false || exit 3\n```\n"))


DOTS = (
    ("a\nb\n", "a\nb\n", True), ("a\n", "a\nb\n", False), ("a\n...\n", "a\nb\nc\n", True),
    ("a\n...\nc\n", "a\nc\n", True), ("a\n...\nd\n", "a\nb\nc\n", False), ("size ... MB\n", "size 4.9 MB\n", True),
    ("size ... MB\n", "size 4.9\nMB\n", False), ("a.b\n", "axb\n", False), ("", "a\n", False),
)  # fmt: skip


def test_dots_stand_for_text_in_a_line_or_for_lines():
    assert [refresh.matches(shown, printed) for shown, printed, _ in DOTS] == [same for *_, same in DOTS]


def keys_of(content) -> set[str]:
    """Of objects in objects, but for what others list: inputs, rows as comparisons have them, and ranks by number."""
    if isinstance(content, list):
        return {key for one in content for key in keys_of(one)}
    if not isinstance(content, dict):
        return set()
    inside = [of for key, of in content.items() if key not in ("inputs", "rows", "stages")]
    return set(content) | keys_of(inside)


def test_the_contract_lists_every_command_and_every_key_of_a_row_and_of_a_diagnosis():
    contract = text("docs/contract.md")
    assert [name for name in COMMANDS if f"`odcsim {name.replace('_', '-')}" not in contract] == []
    keys = {field.name for field in fields(Row)} - {"recipe"}
    keys |= {"sync", "sharding", "schema", "inputs", "fidelity", "rows"}
    assert keys | set(PARTS) <= set(re.findall(r"`(\w+)`", contract.partition("## JSON")[2]))
    told = contract.partition("`odcsim diagnose --json`")[2].partition("| key of a row")[0]
    assert keys_of(diagnosis().as_json()) <= set(re.findall(r"`(\w+)`", told))


def test_the_pages_that_promise_commands_have_them_and_how_tos_list_every_key():
    assert {"tutorial.md", "howto/rent.md", "howto/lengths.md"} <= {shown(page) for page in RUN}
    of_cluster = re.findall(r"^\| `(\w+)` \|", text("docs/howto/own-cluster.md"), re.MULTILINE)
    assert {*cluster._KEYS, "slow"} <= set(of_cluster)
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text("docs/howto/profile.md"), re.MULTILINE)
    assert {f.name for f in fields(Profile)} <= {name.strip("`") for row in rows for name in row.split(", ")}


def test_the_glossary_is_sorted_says_each_word_once_and_knows_every_balancer_and_sync():
    glossary = text("docs/glossary.md")
    words = re.findall(r"^\| ([\w ]+) \| ", glossary, re.MULTILINE)[1:]
    assert len(words) > 30
    assert words == sorted(set(words))
    balancers = [balancer.name for balancer in BALANCERS]
    assert [name for name in (*balancers, *program.SYNCS, *PARTS) if f"`{name}`" not in glossary] == []


def test_the_changelog_has_this_version_and_every_entry_of_the_log_its_command():
    assert re.search(rf"^## \[{re.escape(odcsim.__version__)}\]", text("CHANGELOG.md"), re.MULTILINE)
    entries = re.split(r"^### ", text("docs/log.md"), flags=re.MULTILINE)[1:]
    assert len(entries) >= 5
    assert [entry.splitlines()[0] for entry in entries if not re.search(r"```console\n\$ |gone since", entry)] == []
