"""What on-demand costs beside bytes, in words: by a profile's own timings, for each number of devices."""

from odcsim.model import Model
from odcsim.profile import Profile

KINDS = ("settle", "publish", "meeting")


def lines(profile: Profile, model: Model) -> list[str]:
    """A line for each number of devices that all of it was measured with."""
    every = sorted({t.devices for t in profile.timings if t.kind == "publish"})
    return [_line(profile, devices, model.layers + 1) for devices in every]


def _line(profile: Profile, devices: int, units: int) -> str:
    found = {t.kind: t.constant for t in profile.timings if t.devices == devices and t.kind in KINDS}
    told = ", ".join(f"{kind} {1e3 * found[kind]:.3g} ms" for kind in KINDS if kind in found)
    each = 1e6 * sum(found.values()) / units
    return f"on-demand's own on {devices} devices, once per minibatch: {told}; {each:.0f} us for each of {units} units"
