"""Programs that a page shows, by the names it gives them."""

import re

from scripts import ROOT


def program(page: str, name: str) -> str:
    """The text of the block "```python name" of docs/page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.search(rf"^```python {name}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
