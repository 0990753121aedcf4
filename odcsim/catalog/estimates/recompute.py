"""A profile's seconds with recompute or without it, whichever of the two it was made from.

Where both were measured, the measured ones. Else backward changes as its FLOPs do: with recompute it runs its layer's
forward once more. A constant changes as matmuls do and what each sample brings as attention does, since the calls that
they stand for are run again in the same way.
"""

from dataclasses import replace

from odcsim.model import Model
from odcsim.profile import Passes, Polynomial, Profile

# Of the range where seconds are derived: as far as FLOPs were off on a CPU, for microbatches of 256 tokens or more
# (docs/log.md).
WIDER = 1.1


def under(profile: Profile, model: Model, recompute: bool) -> Profile:
    """The profile of the same model, with recompute or without."""
    if profile.recompute == recompute:
        return profile
    kept = profile.kept
    if not recompute and kept.backward != Polynomial():
        return replace(
            profile,
            origin=f"without recompute; {profile.origin}",
            forward=kept.forward,
            backward=kept.backward,
            forward_error=kept.forward_error,
            backward_error=kept.backward_error,
            recompute=recompute,
            kept=Passes(),
        )
    # Of a fit of whole microbatches the head is in the layers, and it is not computed again.
    in_layers = profile.head == Polynomial()
    head = (model.head_forward(1.0) + model.head_backward(1.0)) / model.layers if in_layers else 0.0
    linear, below_linear = (_factor(profile, model, 1.0, 0.0, other) for other in (head, 0.0))
    quadratic = _factor(profile, model, 0.0, 1.0, 0.0)
    below = profile.below
    words = ("without", "with") if profile.recompute else ("with", "without")
    return replace(
        profile,
        fidelity="extrapolated",
        origin=f"{words[0]} recompute, derived by FLOPs from seconds {words[1]} it; {profile.origin}",
        backward=_times(profile.backward, linear, quadratic),
        below=replace(below, backward=_times(below.backward, below_linear, quadratic)),
        low=profile.low / WIDER,
        high=profile.high * WIDER,
        recompute=recompute,
        kept=Passes(),
    )


def _times(of: Polynomial, linear: float, quadratic: float) -> Polynomial:
    """A constant and a floor with the matmuls, what each sample brings with attention."""
    return Polynomial(
        linear * of.constant, linear * of.linear, quadratic * of.quadratic, quadratic * of.sample, linear * of.floor
    )


def _factor(profile: Profile, model: Model, tokens: float, squares: float, other: float) -> float:
    """How many times as long backward takes: a forward less or more. `other` FLOPs are in the layers' seconds, too,
    and in backward by as large a part as the layers' own. 1 where the model has no such work."""
    forward = model.layer_forward(tokens, squares)
    backward = model.layer_backward(tokens, squares, recompute=profile.recompute)
    if not backward:
        return 1.0
    own = (forward + backward + other) * backward / (forward + backward)
    return 1 + (-forward if profile.recompute else forward) / own
