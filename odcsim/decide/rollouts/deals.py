"""How trainers deal a step's samples to devices and microbatches, beside balancers of ours."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from odcsim.decide import stock
from odcsim.decide.setting import Setting, assign, drawn
from odcsim.errors import InputError
from odcsim.flat import flattened
from odcsim.neighbours import verl
from odcsim.program import MEETING, ONE_SIDED, SIDES
from odcsim.schedule import Schedule

Updates = Sequence[Schedule]  # of all steps, one behind the other
Dealt = list[list[list[int]]]  # device -> microbatch -> samples


@dataclass(frozen=True, slots=True)
class Dealer:
    """`function` makes the updates of all steps. `ways`: the syncs that are simulated with it."""

    name: str
    says: str
    function: Callable[[Setting, int], Updates]
    ways: tuple[str, ...]
    trainer: str = ""  # that deals so by itself


def in_order(setting: Setting, _: int) -> Updates:
    """Samples as they come, in equal numbers; a microbatch is full when the next does not fit."""
    return [m.dealt(flattened(_blocks(m, setting, padded=False))) for m in _minibatches(setting)]


def padded(setting: Setting, _: int) -> Updates:
    """As they come, and every sample of a microbatch as long as its longest."""
    return [_filled(m.dealt(flattened(_blocks(m, setting, padded=True)))) for m in _minibatches(setting)]


def by_rollout(setting: Setting, updates: int) -> Updates:
    """verl's: all samples of a step are dealt at once, and each device cuts its own into updates."""
    minibatches = _minibatches(setting)
    steps = [minibatches[start : start + updates] for start in range(0, len(minibatches), updates)]
    return [schedule for step in steps for schedule in verl.dealt_once(step, setting.cost.workers, setting.limit)]


def by_update(name: str) -> Callable[[Setting, int], Updates]:
    """One of our balancers, anew for each update."""
    return lambda setting, _: assign(setting, name, drawn(setting)).schedules


def _minibatches(setting: Setting) -> list[Schedule]:
    return [minibatch.unassigned for minibatch in drawn(setting)]


def _blocks(minibatch: Schedule, setting: Setting, *, padded: bool) -> Dealt:
    count, limit = setting.minibatch, setting.limit
    shares = [range(d * count, (d + 1) * count) for d in range(setting.cost.workers)]
    return _even([_full(list(share), minibatch.lengths, limit, padded=padded) for share in shares])


def _full(samples: list[int], lengths: Sequence[int], limit: int, *, padded: bool) -> list[list[int]]:
    """Microbatches in order; what padding adds counts against the limit."""
    microbatches: list[list[int]] = []
    for sample in samples:
        longer = [*microbatches[-1], sample] if microbatches else []
        held = [lengths[i] for i in longer]
        tokens = max(held, default=0) * len(held) if padded else sum(held)
        if longer and tokens <= limit:
            microbatches[-1] = longer
        else:
            microbatches.append([sample])
    return microbatches


def _even(devices: Dealt) -> Dealt:
    """Collectives meet in every microbatch: who has fewer splits its largest until all have as many."""
    most = max(map(len, devices))
    for device in devices:
        while len(device) < most:
            at = max(range(len(device)), key=lambda m: len(device[m]))
            half = len(device[at]) // 2
            device[at : at + 1] = [device[at][:half], device[at][half:]] if half else [device[at], []]
    return devices


def _filled(schedule: Schedule) -> Schedule:
    lengths = list(schedule.lengths)
    for device in schedule.devices:
        for microbatch in device:
            for sample in microbatch:
                lengths[sample] = max(schedule.lengths[i] for i in microbatch)
    return replace(schedule, lengths=tuple(lengths), loss=())


DEALERS = (
    Dealer("padded", "as they come, padded to the longest of a microbatch", padded, (MEETING,), "trl"),
    Dealer("packed", "as they come, packed up to the limit", in_order, (MEETING,)),
    Dealer("rollout", "verl's rule (0.9.1): assigned once for all updates of a step", by_rollout, SIDES, "verl"),
    Dealer("lb-micro", "balanced for each update", by_update("lb-micro"), (MEETING,)),
    Dealer("sorted-slice", "balanced for each update", by_update("sorted-slice"), (MEETING,)),
    Dealer("lb-mini", "balanced for each update", by_update("lb-mini"), (ONE_SIDED,)),
)
# Of trainers that were asked for, beside the others.
ASKED = tuple(
    Dealer(name, f"{name}'s rule, for each update", by_update(name), (MEETING,), name) for name in ("slime", "nemo-rl")
)


def dealers(trainer: str | None) -> tuple[Dealer, ...]:
    """What is dealt by, the rule of a trainer that was asked for among it."""
    if (known := stock.known(trainer)) is None:
        return DEALERS
    every = (*DEALERS, *ASKED)
    if known.name not in {dealer.trainer for dealer in every}:
        names = ", ".join(dealer.trainer for dealer in every if dealer.trainer)
        raise InputError(f"{known.name} does not train on rollouts", fix=f"ask for {names} or {stock.ENGINE}")
    return (*DEALERS, *(dealer for dealer in ASKED if dealer.trainer == known.name))
