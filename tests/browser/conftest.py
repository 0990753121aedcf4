"""One browser for all tests, or a line that says what is to be installed; pictures where they can be looked at."""

import os
from pathlib import Path

import browser
import pytest


@pytest.fixture(scope="session")
def chromium():
    if lacks := browser.missing():
        pytest.skip(lacks)
    with browser.browsing() as opened:
        yield opened


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """`make pictures` names a folder that git ignores."""
    return Path(os.environ["PICTURES"]) if "PICTURES" in os.environ else tmp_path_factory.mktemp("pictures")
