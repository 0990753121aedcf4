"""Each public name has one path by which pages, programs and tests take it, so that a reader meets one."""

from itertools import combinations

import pytest
from around import around
from public import NAMES, offered
from scripts import ROOT

pytest.importorskip("torch")


def _programs(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


# The log records experiments as they were run.
PAGES = [path for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))] if path.name != "log.md"]
# They look inside the rooms of `odcsim`. These two show what other paths are.
INSIDERS = [
    path for path in _programs("tests", "docs/studies") if path.name not in ("test_public.py", "test_one_path.py")
]


def _around(paths, **how):
    return {path.relative_to(ROOT).as_posix(): found for path in paths if (found := around(path, **how))}


def test_no_two_public_modules_offer_the_same():
    for a, b in combinations(NAMES, 2):
        assert [n for n in NAMES[a] & NAMES[b] if offered(a, n) is offered(b, n)] == [], f"{a} and {b}"


def test_pages_and_notebooks_take_public_names_by_their_one_path():
    assert _around([*PAGES, *_programs("notebooks", "traces")]) == {}


def test_what_the_packages_say_names_them_by_it():
    assert _around(_programs("odcsim", "odc_engine"), imports=False) == {}


def test_tests_and_studies_take_the_engines_names_by_it():
    some = [path for path in INSIDERS if "odc_engine." in path.read_text(encoding="utf-8")]
    found = {path: [n for n in names if n.startswith("odc_engine.")] for path, names in _around(some).items()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "Or `odc_engine.sampler.agree(digest)`."),
        ("page.md", "```python\nfrom odc_engine.sampler import BalancedBatches, agree\n```\n"),
        ("program.py", "from odc_engine.sampler import REMEMBERED, agree"),
        ("program.py", "RUN = 'from odc_engine.sampler import agree; agree(1)'"),
        ("program.py", '"""Told.\n\n    from odc_engine.sampler import agree\n"""'),
        ("program.py", '"""As odc_engine.sampler.agree does."""'),
    ],
)
def test_another_path_is_seen(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert "odc_engine.sampler.agree" in around(tmp_path / name)
