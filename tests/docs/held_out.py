"""What one held-out schedule came to, as docs/studies/validate.py notes it."""

from dataclasses import replace

import agreement


def case(predicted: float, measured: tuple[float, ...], **changes) -> agreement.Case:
    usual = ("real", "swe", 0, "collective", "native", predicted, measured, measured)
    return replace(agreement.Case(*usual, 0.5, "push", {"a term": 2 * predicted}, "a test"), **changes)
