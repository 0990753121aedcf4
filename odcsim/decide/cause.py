"""Why devices idle: the largest part of their idle time, where it is more than a little."""

from dataclasses import dataclass

from odcsim.results.summary import Row

IDLE = 0.1  # of devices' time: from here on somebody asks why
LONGEST, SHARES, LAYERS, TRANSFERS, REST = "longest", "shares", "layers", "transfers", "rest"


@dataclass(frozen=True, slots=True)
class Cause:
    """Of a row's idle time."""

    kind: str  # LONGEST: one sample takes longer than the others' work fills; SHARES: work is not dealt evenly;
    # LAYERS: ranks meet in every layer, and what meets differs; TRANSFERS: links; REST: where nothing overlaps
    share: float  # of devices' time


def cause_of(row: Row, workers: int) -> Cause | None:
    """The largest; None where devices hardly idle. Of `workers`, as many as each run microbatches of their own."""
    if row.idle < IDLE:
        return None
    parts = row.idle_parts
    waits, inside = parts["wait_inside"] + parts["wait_end"], parts["wait_inside"]
    # What devices that were dealt work as evenly as can be would wait for the heaviest sample.
    longest = min(waits, (1 - row.idle) * (workers / row.busy - 1)) if row.busy else 0.0
    by_layer = min(inside, waits - longest)
    every = {
        LONGEST: longest,
        LAYERS: by_layer,
        SHARES: waits - longest - by_layer,
        TRANSFERS: parts["gather"] + parts["push"],
        REST: parts["other"],
    }
    kind = max(every, key=lambda name: every[name])
    return Cause(kind, every[kind])
