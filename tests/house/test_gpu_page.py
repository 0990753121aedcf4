"""docs/gpu.md says what has not run on a GPU, of every probe, and no other place does."""

import re

from scripts import ROOT

from odc_engine.doctor.probes.every import PROBES

PAGE = ROOT / "docs/gpu.md"
RECORD = re.compile(r"<!-- record -->(.*)<!-- end of record -->", re.DOTALL)
SAID = re.compile(
    r"not run (on a gpu )?yet|not (been )?(tried|run) on a gpu|no gpu (has run|was here)|has not run (on|yet)",
    re.IGNORECASE,
)
HISTORY = {ROOT / "docs/log.md", ROOT / "tests/house/test_gpu_page.py"}


def test_the_page_has_a_line_for_every_probe():
    [record] = RECORD.findall(PAGE.read_text(encoding="utf-8"))
    assert re.findall(r"^\| `([\w-]+)` \| ", record, re.MULTILINE) == [probe.name for probe in PROBES]


def test_no_other_place_says_what_has_not_run_on_a_gpu():
    """A link to the page is what a user needs elsewhere."""
    every = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("odc*/**/*.py"), *ROOT.glob("tests/**/*.py")]
    texts = {path: " ".join(path.read_text(encoding="utf-8").split()) for path in {*every} - HISTORY - {PAGE}}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if SAID.search(text)] == []
