"""docs/gpu.md has a line for every probe."""

import re

from scripts import ROOT

from odc_engine.doctor.probes.every import PROBES

PAGE = ROOT / "docs/gpu.md"
RECORD = re.compile(r"<!-- record -->(.*)<!-- end of record -->", re.DOTALL)


def test_the_page_has_a_line_for_every_probe():
    [record] = RECORD.findall(PAGE.read_text(encoding="utf-8"))
    assert re.findall(r"^\| `([\w-]+)` \| ", record, re.MULTILINE) == [probe.name for probe in PROBES]
