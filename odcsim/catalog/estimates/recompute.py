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
        alike = replace(
            profile,
            origin=f"without recompute; {profile.origin}",
            forward=kept.forward,
            backward=kept.backward,
            forward_error=kept.forward_error,
            backward_error=kept.backward_error,
        )
    else:
        alike = _derived(profile, model)
    return replace(alike, recompute=recompute, kept=Passes())


def _derived(profile: Profile, model: Model) -> Profile:
    words = ("without", "with") if profile.recompute else ("with", "without")
    below = profile.below
    return replace(
        profile,
        fidelity="extrapolated",
        origin=f"{words[0]} recompute, derived by FLOPs from seconds {words[1]} it; {profile.origin}",
        backward=_changed(profile.backward, profile, model, whole=profile.head == Polynomial()),
        below=replace(below, backward=_changed(below.backward, profile, model, whole=False)),
        low=profile.low / WIDER,
        high=profile.high * WIDER,
    )


def _changed(backward: Polynomial, profile: Profile, model: Model, *, whole: bool) -> Polynomial:
    """`whole`: of a fit of whole microbatches the head is in the layers, and it is not computed again."""
    head = (model.head_forward(1.0) + model.head_backward(1.0)) / model.layers if whole else 0.0
    linear, quadratic = _factor(profile, model, 1.0, 0.0, head), _factor(profile, model, 0.0, 1.0, 0.0)
    return Polynomial(
        linear * backward.constant,
        linear * backward.linear,
        quadratic * backward.quadratic,
        quadratic * backward.sample,
        linear * backward.floor,
    )


def _factor(profile: Profile, model: Model, tokens: float, squares: float, other: float) -> float:
    """How many times as long backward takes: a forward less or more. `other` FLOPs are in the layers' seconds, too,
    and in backward by as large a part as the layers' own. 1 where the model has no such work."""
    forward = model.layer_forward(tokens, squares)
    backward = model.layer_backward(tokens, squares, recompute=profile.recompute)
    if not backward:
        return 1.0
    held = (forward + backward + other) * backward / (forward + backward)
    return 1 + (-forward if profile.recompute else forward) / held
