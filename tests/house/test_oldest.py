"""The versions that are promised are those that are tested."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_oldest_versions_promised_are_those_of_make_oldest():
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    promised = [re.match(r"(torch|triton)>=([\d.]+)", need) for extra in extras.values() for need in extra]
    assert sum(map(bool, promised)) >= 5
    assert all(pinned[told[1]].startswith(f"{told[2]}.") for told in promised if told)
