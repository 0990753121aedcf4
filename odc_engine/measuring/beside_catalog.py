"""By how much the catalogue's seconds were off on the machine that was just measured."""

import re

from odcsim import catalog
from odcsim.model import Model
from odcsim.profile import Polynomial, Profile
from odcsim.support.numbers import from_to, ratio

# What a driver calls the catalogue's GPUs. A card of the same chip (PCIe, NVL) is another GPU.
CALLED = (
    ("a100", r"A100-SXM4-80GB"),
    ("a100-40gb", r"A100-SXM4-40GB"),
    ("h100", r"H100 80GB HBM3"),
    *((name, rf"{name}(?! NVL)\b") for name in catalog.gpu_names() if name not in ("a100", "a100-40gb", "h100")),
)
WHOLE = re.compile(r"\d+ x ")  # devices, each a GPU of its own


def known(hardware: str) -> str:
    """The catalogue's name of the GPUs that `hardware` tells of; empty where they are not in it."""
    return next((name for name, called in CALLED if re.search(rf"\b{called}", hardware, re.IGNORECASE)), "")


def line(profile: Profile, model: Model, device: str) -> str:
    """One sample of the most tokens that were measured, forward and backward, beside the catalogue's estimate."""
    if device == "cpu":
        return "beside the catalogue: nothing, since it has GPUs and these seconds are a processor's"
    name = known(profile.hardware)
    if not name:
        return f"beside the catalogue: nothing, since {profile.hardware or 'this GPU'} is not in it"
    if not WHOLE.match(profile.hardware):
        return f"beside the catalogue: nothing, since devices are not a whole {name} each"
    tokens = profile.longest or profile.most_tokens
    guess = catalog.estimate(model, catalog.gpu(name), 1)  # as usual, as what the engine measures first is
    times = seconds(profile, model, tokens) / seconds(guess, model, tokens)
    inside = "inside" if guess.low <= times <= guess.high else "outside"
    words = f"a sample of {tokens:,} tokens of {model.name} took {times:.2f} times the catalogue's seconds for {name}"
    kind = "" if profile.dtype == "bfloat16" else f"; these are of {profile.dtype}, the catalogue's of bfloat16"
    return f"beside the catalogue: {words}, {inside} its interval ({from_to(guess.low, guess.high, ratio)}){kind}"


def seconds(profile: Profile, model: Model, tokens: int) -> float:
    """Compute of a microbatch that is one sample."""
    square = float(model.squares(tokens))

    def of(fit: Polynomial) -> float:
        return max(fit.floor, fit.constant + fit.linear * tokens + fit.quadratic * square + fit.sample)

    return model.layers * (of(profile.forward) + of(profile.backward)) + of(profile.head) + 2 * of(profile.embed)
