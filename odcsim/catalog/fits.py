"""Which seconds to use for a model on a GPU: a given profile, else a published fit, else the catalogue's rates."""

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from odcsim import catalog
from odcsim import profile as profiles
from odcsim.catalog.estimates import compute, own
from odcsim.catalog.estimates.recompute import WIDER, under
from odcsim.catalog.estimates.scaling import scaled
from odcsim.catalog.rates import rates
from odcsim.cluster import GPU
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.option import flag
from odcsim.profile import Polynomial, Profile, ProfileBelow
from odcsim.recipe import CHOICES, USUAL, Recipe


def profile_for(
    model: Model, gpu: GPU | None, devices: int, path: str | None = None, recipe: Recipe = USUAL
) -> Profile:
    """One order everywhere: the profile at `path`, a fit shipped for this shape and GPU, the catalogue.

    What was measured or fitted holds the choices that it was made with: other ones are the catalogue's.
    """
    if path is not None:
        profile = profiles.read(path)
        computed = (profile.forward, profile.backward, profile.head, profile.embed)
        if set(computed) == {Polynomial()} and not (profile.microbatch or profile.overhead):
            fix = (
                "give seconds to at least one kind of compute"  # else nothing takes any time, and no row leads another
            )
            raise InputError("no seconds of any compute", where=path, fix=fix)
        _check_recipe(profile, recipe, path)
        if profile.factor and gpu and catalog.known_as(gpu) != profile.gpu.lower():
            fix = f"ask for {profile.gpu}, or measure {gpu.name}"
            raise InputError(f"profile is for {profile.gpu}, not {gpu.name}", where=path, fix=fix)
        if profile.factor and (profile.model != model.name or _recompute(profile) != recipe.recompute):
            return _estimated_anew(profile, model, gpu or catalog.gpu(profile.gpu), devices, recipe)
        known = profile if _is_of(profile, model) else _of_another(profile, model, path)
        return under(known, model, recipe.recomputes)
    if gpu is None:
        raise InputError("neither --gpu nor --profile given", fix="name a GPU ('odcsim catalog list') or a profile")
    fit = None if recipe.estimated else _of_shape(model, catalog.known_as(gpu))
    guess = estimate(model, gpu, devices, recipe)
    return _joined(under(fit, model, recipe.recomputes), guess) if fit else guess


def _joined(fit: Profile, guess: Profile) -> Profile:
    """A fit that has the catalogue's seconds where microbatches are emptier than those that it was made from."""
    below = ProfileBelow(guess.forward, guess.backward, guess.head, guess.embed, guess.microbatch, guess.copying)
    less = f"the catalogue's rates below {fit.fewest // 2:,} tokens of a microbatch, and in part up to {fit.fewest:,}"
    origin = f"{fit.origin}; {less}"
    low, high = min(fit.low, guess.low), max(fit.high, guess.high)
    return replace(fit, below=below, origin=origin, low=low, high=high, kinds=guess.kinds)


def held(recipe: Recipe) -> tuple[str, ...]:
    """What of a recipe is in measured seconds and not as usual, in words."""
    return tuple(f"{name} {recipe.value(name)}" for name in recipe.estimated)


def measured_by(path: str) -> dict[str, Any]:
    """What the profile there was measured with, of a recipe, where it says that and can be read more than once."""
    if not Path(path).is_file():
        return {}
    profile = profiles.read(path)
    words = (words.partition(" ") for words in profile.recipe)
    known = {name: type(CHOICES[name].usual)(value) for name, _, value in words if name in CHOICES}
    return known | ({"recompute": _recompute(profile)} if profile.factor else {})


def own_origin(profile: Profile, given: float = 0.0) -> str:
    """Where on-demand's own seconds of a minibatch, beside bytes, are from. `given`: those that somebody asked for."""
    if any(t.kind in ("settle", "publish") for t in profile.timings):
        known = "measured with the profile"
    elif profile.factor or profile.fidelity == "catalogue":
        known = own.ORIGIN
    else:
        known = "given in the profile" if profile.publish else "none known"
    return f"{known}; and {given:g} s as given, not measured" if given else known


def _check_recipe(profile: Profile, recipe: Recipe, path: str) -> None:
    """The question's choices are the profile's, but for recompute, which changes what estimates say."""
    asked = dict(zip(recipe.estimated, held(recipe), strict=True))
    free = {"recompute"} if profile.factor else set[str]()
    if odd := [name for name, words in asked.items() if words not in profile.recipe and name not in free]:
        fix = "its seconds already include what it was measured with"
        raise InputError(f"{', '.join(CHOICES[name].flag for name in odd)} with a profile", where=path, fix=fix)
    missing = [words for words in profile.recipe if words not in asked.values() and words.partition(" ")[0] not in free]
    if missing:
        fix = f"its seconds include that: ask with {flag(missing[0])}".removesuffix(" True")
        raise InputError(f"measured with {', '.join(missing)}", where=path, fix=fix)


def _recompute(profile: Profile) -> str:
    """What it was measured with."""
    held = (words.partition(" ") for words in profile.recipe)
    return next((value for name, _, value in held if name == "recompute"), "full" if profile.recompute else "none")


def _estimated_anew(profile: Profile, model: Model, gpu: GPU, devices: int, recipe: Recipe) -> Profile:
    """The factor of a run of another model or recompute, on what estimates say of this one."""
    found = estimate(model, gpu, devices, recipe).stretched(profile.factor)
    told = f"the factor measured for {profile.model} with recompute {_recompute(profile)}"
    origin = f"{told}, taken for this with recompute {recipe.recompute}; {profile.origin}"
    low, high = (1 / WIDER, WIDER) if profile.model == model.name else (found.low, found.high)
    return replace(
        found,
        fidelity="extrapolated",
        origin=origin,
        low=profile.low * low,
        high=profile.high * high,
        longest=profile.longest,
        most_tokens=profile.most_tokens,
        factor=profile.factor,
        run=profile.run,
        recipe=profile.recipe,
    )


def _is_of(profile: Profile, model: Model) -> bool:
    """By its name, and by its shape where the catalogue knows it: anybody may call a folder as another's model."""
    if profile.model != model.name:
        return False
    return profile.model not in catalog.model_names() or _alike(catalog.model(profile.model), model)


def _alike(one: Model, other: Model) -> bool:
    """Whether they have one shape. A tied head computes as another does."""
    return replace(one, name=other.name, tied=other.tied) == other


def estimate(model: Model, gpu: GPU, devices: int, recipe: Recipe = USUAL) -> Profile:
    """A profile by what the GPU's family reaches inside a step."""
    return compute.estimate(model, gpu, rates(gpu.family), devices, recipe)


def _of_another(profile: Profile, model: Model, path: str) -> Profile:
    """Scaled from the model that it was made with, where the catalogue knows that one's shape."""
    if profile.model not in catalog.model_names():
        told = f"profile is for {profile.model}, not {model.name}, and the catalogue does not know its shape"
        raise InputError(told, where=path, fix=f"use --model {profile.model}, or measure {model.name}")
    return scaled(profile, catalog.model(profile.model), model)


def published(model: str, gpu: str) -> Profile | None:
    """The published fit for exactly this model and GPU, if one ships."""
    path = _PROFILES / f"{model}-{gpu}.json"
    return profiles.read(Path(str(path))) if path.is_file() else None


def _of_shape(model: Model, gpu: str) -> Profile | None:
    """The published fit for this GPU and any model of this shape."""
    for name in _fitted(gpu):
        if _alike(catalog.model(name), model):
            fit = published(name, gpu)
            return fit and replace(fit, model=model.name)
    return None


_PROFILES = files("odcsim.catalog") / "profiles"


@cache
def _fitted(gpu: str) -> tuple[str, ...]:
    """The models that fits ship for."""
    ending = f"-{gpu}.json"
    return tuple(sorted(f.name.removesuffix(ending) for f in _PROFILES.iterdir() if f.name.endswith(ending)))
