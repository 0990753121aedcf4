"""Which seconds to use for a model on a GPU: a given profile, else a published fit, else the catalogue's rates."""

from importlib.resources import files
from pathlib import Path

from odcsim import catalog
from odcsim import profile as profiles
from odcsim.cluster import GPU
from odcsim.cost import estimate
from odcsim.errors import InputError
from odcsim.estimates.recompute import under
from odcsim.estimates.scaling import scaled
from odcsim.model import Model
from odcsim.profile import Profile
from odcsim.recipe import USUAL, Recipe


def choose(model: Model, gpu: GPU | None, devices: int, path: str | None = None, recipe: Recipe = USUAL) -> Profile:
    """One order everywhere: the profile at `path`, a fit shipped for exactly this model and GPU, the catalogue."""
    if path is not None:
        profile = profiles.read(path)
        known = profile if profile.model == model.name else _of_another(profile, model, path)
        return under(known, model, recipe.recompute)
    if gpu is None:
        raise InputError("neither --gpu nor --profile given", fix="name a GPU ('odcsim catalog list') or a profile")
    fit = published(model.name, gpu.name)
    return under(fit, model, recipe.recompute) if fit else estimate(model, gpu, devices, recipe)


def _of_another(profile: Profile, model: Model, path: str) -> Profile:
    """Scaled from the model that it was made with, where the catalogue knows that one's shape."""
    if profile.model not in catalog.model_names():
        told = f"profile is for {profile.model}, not {model.name}, and the catalogue does not know its shape"
        raise InputError(told, where=path, fix=f"use --model {profile.model}, or measure {model.name}")
    return scaled(profile, catalog.model(profile.model), model)


def published(model: str, gpu: str) -> Profile | None:
    """The published fit for exactly this model and GPU, if one ships."""
    path = files("odcsim.catalog") / "profiles" / f"{model}-{gpu}.json"
    return profiles.read(Path(str(path))) if path.is_file() else None
