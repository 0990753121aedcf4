"""A measured or published profile for a model of another size: a guess, and marked as one.

Matmuls and attention follow FLOPs, what moves shards follows their bytes, constants follow the number of launches. How
well a small model fills a GPU changes with its size and is not in this: so the range becomes wider.
"""

from dataclasses import replace

from odcsim.model import Model
from odcsim.profile import SHARDED, Polynomial, Profile

# The published fit of a 1.5B model, scaled to 7B, takes 1.27 to 1.46 times the seconds of the fit published for 7B, for
# samples of 4K to 64K tokens (a test computes it); larger steps in size are likely to be further off.
WIDER = 1.5


def scaled(profile: Profile, known: Model, wanted: Model) -> Profile:
    """The profile of `known` as a guess for `wanted`."""
    forward = _ratio(wanted.layer_forward(1, 0), known.layer_forward(1, 0))
    backward = _ratio(wanted.layer_backward(1, 0), known.layer_backward(1, 0))
    squares = _ratio(wanted.attention_flops_per_square, known.attention_flops_per_square)
    head = _ratio(wanted.head_forward(1), known.head_forward(1))
    moved, layers = _ratio(wanted.parameters, known.parameters), wanted.layers / known.layers
    embed, below = wanted.hidden / known.hidden, profile.below
    # Between steps and to settle the engine does as much as there are layers; it publishes and steps parameters.
    by_kind = dict.fromkeys(SHARDED, moved) | {"overhead": layers, "settle": layers}
    return replace(
        profile,
        model=wanted.name,
        fidelity="extrapolated",
        origin=f"scaled from {known.name} by FLOPs, up to {WIDER:g} times off either way; {profile.origin}",
        forward=_times(profile.forward, forward, squares),
        backward=_times(profile.backward, backward, squares),
        head=_times(profile.head, head, 1.0),
        embed=_times(profile.embed, embed, 1.0),
        kept=replace(
            profile.kept,
            forward=_times(profile.kept.forward, forward, squares),
            backward=_times(profile.kept.backward, backward, squares),
        ),
        below=replace(
            below,
            forward=_times(below.forward, forward, squares),
            backward=_times(below.backward, backward, squares),
            head=_times(below.head, head, 1.0),
            embed=_times(below.embed, embed, 1.0),
            microbatch=below.microbatch * layers,
        ),
        microbatch=profile.microbatch * layers,
        overhead=profile.overhead * layers,
        optimizer=profile.optimizer * moved,
        publish=profile.publish * moved,
        timings=tuple(replace(t, constant=t.constant * by_kind.get(t.kind, 1.0)) for t in profile.timings),
        low=profile.low / WIDER,
        high=profile.high * WIDER,
    )


def _ratio(wanted: float, known: float) -> float:
    """1 where the known model has none of it: its profile then says nothing about it."""
    return wanted / known if known else 1.0


def _times(of: Polynomial, linear: float, quadratic: float) -> Polynomial:
    return replace(of, linear=of.linear * linear, quadratic=of.quadratic * quadratic)
