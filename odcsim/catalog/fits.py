"""Which seconds to use for a model on a GPU: a given profile, else a published fit, else the catalogue's rates."""

from importlib.resources import files
from pathlib import Path

from odcsim import profile as profiles
from odcsim.cluster import GPU
from odcsim.cost import estimate
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.profile import Profile


def choose(model: Model, gpu: GPU | None, devices: int, path: str | None = None) -> Profile:
    """One order everywhere: the profile at `path`, a fit shipped for exactly this model and GPU, the catalogue."""
    if path is not None:
        profile = profiles.read(path)
        if profile.model != model.name:
            raise InputError(
                f"profile is for {profile.model}, not {model.name}", where=path, fix=f"use --model {profile.model}"
            )
        return profile
    if gpu is None:
        raise InputError("neither --gpu nor --profile given", fix="name a GPU ('odcsim catalog list') or a profile")
    return published(model.name, gpu.name) or estimate(model, gpu, devices)


def published(model: str, gpu: str) -> Profile | None:
    """The published fit for exactly this model and GPU, if one ships."""
    path = files("odcsim.catalog") / "profiles" / f"{model}-{gpu}.json"
    return profiles.read(Path(str(path))) if path.is_file() else None
