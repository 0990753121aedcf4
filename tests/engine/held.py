"""What one held-out schedule came to, as docs/validate.py notes it."""

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import agreement


def case(predicted: float, measured: tuple[float, ...], **changes) -> agreement.Case:
    return replace(
        agreement.Case(
            "real",
            "swe",
            0,
            "collective",
            "native",
            predicted,
            measured,
            measured,
            0.5,
            "push",
            {"a term": 2 * predicted},
            "a test",
        ),
        **changes,
    )
