"""Ways that were tried as changes that somebody can make: with dollars, a trainer's settings, and a row for them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from odcsim.decide.comparison import inputs
from odcsim.decide.diagnosis.alternatives import REPAIR, TOGETHER, TriedWay
from odcsim.decide.diagnosis.outcome import EFFORTS, Change
from odcsim.decide.setting import Setting
from odcsim.errors import InputError
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ELSEWHERE
from odcsim.neighbours.settings import flags, written

WORTH = 1.03  # times as fast: what brings less is not worth changing
MOST = 2  # ways of an effort
UNSIZED = dict.fromkeys(
    ("memory_bytes", "memory_fits", "memory_limit", "memory_terms", "tflops_per_device", "mfu", "hfu")
)


def worth(every: Iterable[TriedWay]) -> Iterator[TriedWay]:
    """Of each effort the best, where they bring something that chance does not, and fit. Every repair, the largest
    first, and last what all bring."""
    there = [one for one in every if one.gain[0] >= WORTH and one.gain[1] > 1]
    there = [one for one in there if one.evaluation.rows[0].memory_fits is not False]
    for effort in EFFORTS:
        best = sorted((one for one in there if one.effort == effort), key=lambda one: -one.gain[0])
        repairs = sorted(best, key=lambda one: one.way == TOGETHER)
        yield from repairs if effort == REPAIR else best[:MOST][::-1]


def change(
    one: TriedWay, asked: Setting, step: float, rests: str, *, sized: bool = True, whole: bool = False
) -> Change:
    """`asked`: the question whose inputs the row has; `step`: its seconds as it ran. `sized`: memory is known;
    `whole`: microbatches are moved whole."""
    [row], setting = one.evaluation.rows, one.evaluation.setting
    shown = {"max_tokens": setting.limit, **row.as_json(), **({} if sized else UNSIZED)}
    gain, low, high = one.gain
    devices, price = asked.cost.cluster.gpus, asked.price
    return Change(
        effort=one.effort,
        way=one.way,
        gain=gain,
        low=low,
        high=high,
        seconds=step / gain,
        balancer=row.balancer,
        sync=row.sync,
        max_tokens=0 if whole else setting.limit,
        row=shown,
        dollars_a_day=None if price is None else devices * 24 * price * (1 - 1 / gain),
        setting=_setting(asked, shown),
        rests=rests,
        fits=row.memory_fits if sized else None,
    )


def _setting(asked: Setting, row: Mapping[str, Any]) -> str:
    """In the trainer's own words, where it runs that row."""
    name = asked.trainer
    if name not in TRAINERS:
        return ""
    try:
        settings = flags(name, {"inputs": inputs(asked), "rows": [row]}, row=1).settings
    except InputError:
        return ""
    said = {key: value for key, value in settings.items() if not str(value).startswith(ELSEWHERE)}
    return "\n".join(written(said, TRAINERS[name].form))
