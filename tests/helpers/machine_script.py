"""The script of the page on launching, which makes machines, and the page's command that trains on them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from scripts import ROOT

SCRIPT = ROOT / "docs" / "launch" / "machines.sh"
PAGE = (ROOT / "docs" / "howto" / "launch.md").read_text(encoding="utf-8")
[_WORDS] = re.findall(r"^docs/launch/machines.sh (.*) train.py$", PAGE, re.MULTILINE)
COMMAND = tuple(_WORDS.split())


def made(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    known = {"PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", SCRIPT, *command], env=os.environ | known | more, capture_output=True, text=True, timeout=120
    )
