"""A plan from a file: JSON, JSON lines, a schedule file, or a dataset packed into `seq_lengths`."""

import json
from pathlib import Path
from typing import Any

from odcsim.checking.batches import FORM, Batch, Dealing, of_lengths, of_lists, of_object
from odcsim.errors import InputError
from odcsim.neighbours.trl import PACKED
from odcsim.reading.records import TABLES, RecordFile
from odcsim.schedule import FORMAT
from odcsim.support import budget
from odcsim.support.checked import Given
from odcsim.support.files import reading
from odcsim.support.whole import check_file, read_stdin, read_text


def read(path: str, dealing: Dealing) -> list[Batch]:
    """Its minibatches, right or wrong: only what is no plan at all is refused."""
    with budget.bounded(path):
        return _read(path, dealing)


def _read(path: str, dealing: Dealing) -> list[Batch]:
    where = "stdin" if path == "-" else path
    if Path(path).suffix.lower() in TABLES and Path(path).exists() and not Path(path).is_dir():
        check_file(Path(path))
    if Path(path).is_dir() or Path(path).suffix.lower() in TABLES:
        rows = [row[PACKED] for row in _packed(RecordFile(Path(path)))]
        batches = of_lengths(rows, where, dealing)
    else:
        batches = _json(path, where, dealing)
    return _some(batches, where)


def of_value(value: Any, where: str, dealing: Dealing) -> list[Batch]:
    """A plan as JSON has it."""
    return _some(_value(value, where, dealing), where)


def _some(batches: list[Batch], where: str) -> list[Batch]:
    if not batches or not any(batch.devices for batch in batches):
        raise InputError("holds no minibatch", where=where, fix=FORM)
    return batches


def _packed(file: RecordFile) -> list[dict[str, Any]]:
    if PACKED not in file.first():
        raise InputError(f"has no column '{PACKED}'", where=str(file.path), fix="give a dataset that TRL packed")
    return list(file.rows((PACKED,)))


def _json(path: str, where: str, dealing: Dealing) -> list[Batch]:
    with reading(path, missing="give a plan", expected="a plan in JSON"):
        text = read_stdin() if path == "-" else read_text(path, encoding="utf-8-sig")
        try:
            whole = json.loads(text)
        except ValueError:
            return _lines(text, where, dealing)
    return _value(whole, where, dealing)


def _lines(text: str, where: str, dealing: Dealing) -> list[Batch]:
    batches: list[Batch] = []
    packs: list[list[int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{where}:{number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError("is not valid JSON", where=place, fix=FORM) from None
        if isinstance(value, dict) and value.get("format") == FORMAT:
            continue  # its head: what it says is not asked here
        if isinstance(value, dict) and isinstance(value.get(PACKED), list):
            packs.append(list(Given(PACKED, value[PACKED], place).wholes(1)))
        else:
            batches += _value(value, place, dealing)
    return of_lengths(packs, where, dealing) if packs else batches


def _value(value: Any, where: str, dealing: Dealing) -> list[Batch]:
    if isinstance(value, dict):
        return of_object(Given("", value, where), dealing)
    return of_lists(value, where, dealing)
