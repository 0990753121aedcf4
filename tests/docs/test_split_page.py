"""docs/split.md says what docs/studies/split.py computes."""

import pytest
import scripts

PAGE = (scripts.ROOT / "docs/split.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script():
    return scripts.load("docs/studies/split.py")


def test_the_page_shows_what_the_script_computes(script):
    """Where this fails on purpose, run `python docs/studies/split.py` and read the difference."""
    head, ruler, row = script.table([script.case("longalign", 1, script.DRAWS)]).splitlines()
    assert f"{head}\n{ruler}\n" in PAGE
    assert row in PAGE.splitlines()


def test_the_page_has_every_setting(script):
    for trace in script.TRACES:
        for size in script.SIZES:
            assert f"\n| {trace} | {size} | " in PAGE


def test_the_page_keeps_to_what_was_aimed_at():
    """LongAlign-like, 4 samples on each of 64 devices, 5 %: at most 4 % lost where about 23 % were."""
    (shown,) = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| longalign | 4 |")]
    before, after, idle = (float(shown[i].rstrip("%")) for i in (2, 4, 5))
    assert before > 20
    assert idle <= after <= 4
