"""docs/gpu.md has a line for every test of tests/gpu."""

import re

import gpu_record
from scripts import ROOT


def test_the_page_has_a_line_for_every_test():
    page = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    record = page.partition(gpu_record.BEGIN)[2].partition(gpu_record.END)[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| ", record, re.MULTILINE)[2:]
    assert dict(rows) == gpu_record.questions()
