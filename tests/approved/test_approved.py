"""What commands print, read and approved by somebody: see tests/helpers/transcripts.py, which makes it anew."""

import pytest
import transcripts

FILES = {path.stem: path for path in sorted(transcripts.FOLDER.glob("*.txt"))}


@pytest.mark.parametrize("name", FILES)
def test_commands_print_what_was_approved(name):
    approved = FILES[name].read_text(encoding="utf-8")
    assert transcripts.renewed(approved) == approved, "see `python tests/helpers/transcripts.py`"
