"""Steps and groups of rollouts: a row in which one is blank belongs to none."""

from collections.abc import Iterable

import numpy as np

from odcsim.errors import InputError
from odcsim.reading.bad import Check
from odcsim.reading.memory import MISSING, wrong


def are_said(name: str, values: Iterable[object]) -> Check:
    """That rows hold something in a column of labels."""
    held = list(values)

    def told(row: int) -> tuple[str, str]:
        if _is_absent(held[row]):
            return wrong(name, held[row])
        return f"column '{name}' holds nothing", "say it in every row, or rename the column"

    return Check(np.array([_is_blank(value) for value in held], np.bool_), told)


def _is_blank(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or _is_absent(value) or value != value


def _is_absent(value: object) -> bool:
    return value is MISSING or isinstance(value, InputError)
