"""What commands print, read and approved by somebody: see tests/helpers/transcripts.py, which makes it anew."""

import pytest
import transcripts

FILES = {path.stem: path for path in sorted(transcripts.FOLDER.glob("*.txt"))}


@pytest.mark.parametrize("name", FILES)
def test_commands_print_what_was_approved(name):
    approved = FILES[name].read_text(encoding="utf-8")
    assert transcripts.renewed(approved) == approved, "see `python tests/helpers/transcripts.py`"


def test_what_is_printed_otherwise_is_seen():
    """And lines of the reader, of Python and of commands are told apart."""
    before = "## A\n$ printf 'b\\n# c\\n'\nold\n\n## D\n>>> 1 / 0\n$ false\n"
    after = before.replace("\nold", "\nb\n# c").replace("/ 0\n", "/ 0\nZeroDivisionError: division by zero\n") + "[1]\n"
    assert transcripts.renewed(before) == transcripts.renewed(after) == after
