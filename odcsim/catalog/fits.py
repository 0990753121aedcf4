"""Which seconds to use for a model on a GPU: a given profile, else a published fit, else the catalogue's rates."""

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from odcsim import catalog
from odcsim import profile as profiles
from odcsim.catalog.estimates import compute
from odcsim.catalog.estimates.rates import rates
from odcsim.catalog.estimates.recompute import WIDER, under
from odcsim.catalog.estimates.work import OWN_ORIGIN
from odcsim.cluster import GPU
from odcsim.errors import InputError
from odcsim.model import Model
from odcsim.option import flag
from odcsim.profile import SHARDED, Polynomial, Profile, ProfileBelow
from odcsim.recipe import CHOICES, USUAL, Recipe

# The published fit of a 1.5B model, scaled to 7B, takes 1.27 to 1.46 times the seconds of the fit published for 7B, for
# samples of 4K to 64K tokens (a test computes it); larger steps in size are likely to be further off.
WIDER_SCALE = 1.5
_PROFILES = files("odcsim.catalog") / "profiles"


def profile_for(
    model: Model, gpu: GPU | None, devices: int, path: str | None = None, recipe: Recipe = USUAL
) -> Profile:
    """One order everywhere: the profile at `path`, a fit shipped for this shape and GPU, the catalogue.

    What was measured or fitted holds the choices that it was made with: other ones are the catalogue's.
    """
    if path is not None:
        return _from_file(path, model, gpu, devices, recipe)
    if gpu is None:
        raise InputError("neither --gpu nor --profile given", fix="name a GPU ('odcsim catalog list') or a profile")
    guess = estimate(model, gpu, devices, recipe)
    fit = None if recipe.estimated else _of_shape(model, catalog.known_as(gpu))
    if fit is None:
        return guess
    # A fit has the catalogue's seconds where microbatches are emptier than those that it was made from.
    fit = under(fit, model, recipe.recomputes)
    less = f"the catalogue's rates below {fit.fewest // 2:,} tokens of a microbatch, and in part up to {fit.fewest:,}"
    return replace(
        fit,
        below=ProfileBelow(guess.forward, guess.backward, guess.head, guess.embed, guess.microbatch, guess.copying),
        origin=f"{fit.origin}; {less}",
        low=min(fit.low, guess.low),
        high=max(fit.high, guess.high),
        kinds=guess.kinds,
    )


def _from_file(path: str, model: Model, gpu: GPU | None, devices: int, recipe: Recipe) -> Profile:
    """The profile there, for this model and recipe as far as it knows them."""
    profile = profiles.read(path)
    computed = (profile.forward, profile.backward, profile.head, profile.embed)
    if set(computed) == {Polynomial()} and not (profile.microbatch or profile.overhead):
        fix = "give seconds to at least one kind of compute"  # else nothing takes any time, and no row leads another
        raise InputError("no seconds of any compute", where=path, fix=fix)
    _check_recipe(profile, recipe, path)
    known_shape = profile.model in catalog.model_names()
    if profile.factor:
        if gpu and catalog.known_as(gpu) != profile.gpu.lower():
            fix = f"ask for {profile.gpu}, or measure {gpu.name}"
            raise InputError(f"profile is for {profile.gpu}, not {gpu.name}", where=path, fix=fix)
        if profile.model != model.name or _recompute(profile) != recipe.recompute:
            return _estimate_anew(profile, model, gpu or catalog.gpu(profile.gpu), devices, recipe)
    # Whose it is is known by its name, and by its shape where the catalogue knows it: anybody may call a folder as
    # another's model.
    if profile.model != model.name or (known_shape and not _alike(catalog.model(profile.model), model)):
        if not known_shape:
            problem = f"profile is for {profile.model}, not {model.name}, and the catalogue does not know its shape"
            raise InputError(problem, where=path, fix=f"use --model {profile.model}, or measure {model.name}")
        profile = scale(profile, catalog.model(profile.model), model)
    return under(profile, model, recipe.recomputes)


def words_of(recipe: Recipe) -> tuple[str, ...]:
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
        known = OWN_ORIGIN
    else:
        known = "given in the profile" if profile.publish else "none known"
    return f"{known}; and {given:g} s as given, not measured" if given else known


def _check_recipe(profile: Profile, recipe: Recipe, path: str) -> None:
    """The question's choices are the profile's, but for recompute, which changes what estimates say."""
    chosen = dict(zip(recipe.estimated, words_of(recipe), strict=True))
    free = {"recompute"} if profile.factor else set[str]()
    if odd := [name for name, words in chosen.items() if words not in profile.recipe and name not in free]:
        fix = "its seconds already include what it was measured with"
        raise InputError(f"{', '.join(CHOICES[name].flag for name in odd)} with a profile", where=path, fix=fix)
    missing = [
        words for words in profile.recipe if words not in chosen.values() and words.partition(" ")[0] not in free
    ]
    if missing:
        fix = f"its seconds include that: ask with {flag(missing[0])}".removesuffix(" True")
        raise InputError(f"measured with {', '.join(missing)}", where=path, fix=fix)


def _recompute(profile: Profile) -> str:
    """What it was measured with."""
    words = (words.partition(" ") for words in profile.recipe)
    return next((value for name, _, value in words if name == "recompute"), "full" if profile.recompute else "none")


def _estimate_anew(profile: Profile, model: Model, gpu: GPU, devices: int, recipe: Recipe) -> Profile:
    """The factor of a run of another model or recompute, on what estimates say of this one."""
    guess = estimate(model, gpu, devices, recipe).stretched(profile.factor)
    source = f"the factor measured for {profile.model} with recompute {_recompute(profile)}"
    low, high = (1 / WIDER, WIDER) if profile.model == model.name else (guess.low, guess.high)
    return replace(
        guess,
        fidelity="extrapolated",
        origin=f"{source}, taken for this with recompute {recipe.recompute}; {profile.origin}",
        low=profile.low * low,
        high=profile.high * high,
        longest=profile.longest,
        most_tokens=profile.most_tokens,
        factor=profile.factor,
        run=profile.run,
        recipe=profile.recipe,
    )


def estimate(model: Model, gpu: GPU, devices: int, recipe: Recipe = USUAL) -> Profile:
    """A profile by what the GPU's family reaches inside a step."""
    return compute.estimate(model, gpu, rates(gpu.family), devices, recipe)


def published(model: str, gpu: str) -> Profile | None:
    """The published fit for exactly this model and GPU, if one ships."""
    path = _PROFILES / f"{model}-{gpu}.json"
    return profiles.read(Path(str(path))) if path.is_file() else None


def _of_shape(model: Model, gpu: str) -> Profile | None:
    """The published fit for this GPU and any model of this shape."""
    for name in _models_with_fit(gpu):
        if _alike(catalog.model(name), model):
            fit = published(name, gpu)
            return fit and replace(fit, model=model.name)
    return None


@cache
def _models_with_fit(gpu: str) -> tuple[str, ...]:
    """The models that fits ship for."""
    ending = f"-{gpu}.json"
    return tuple(sorted(f.name.removesuffix(ending) for f in _PROFILES.iterdir() if f.name.endswith(ending)))


def _alike(one: Model, other: Model) -> bool:
    """Whether they have one shape. A tied head computes as another does."""
    return replace(one, name=other.name, tied=other.tied) == other


def scale(profile: Profile, known: Model, wanted: Model) -> Profile:
    """The profile of `known` as a guess for `wanted`, and marked as one.

    Matmuls and attention follow FLOPs, what moves shards follows their bytes, constants follow the number of launches.
    How well a small model fills a GPU changes with its size and is not in this: so the range becomes wider.
    """

    def ratio(wanted: float, known: float) -> float:
        return wanted / known if known else 1.0  # of which the known model has none, its profile says nothing

    forward = ratio(wanted.layer_forward(1, 0), known.layer_forward(1, 0))
    backward = ratio(wanted.layer_backward(1, 0), known.layer_backward(1, 0))
    squares = ratio(wanted.attention_flops_per_square, known.attention_flops_per_square)
    head = ratio(wanted.head_forward(1), known.head_forward(1))
    embed, layers = wanted.hidden / known.hidden, wanted.layers / known.layers
    moved = ratio(wanted.parameters, known.parameters)

    def times(of: Polynomial, linear: float, quadratic: float = 1.0) -> Polynomial:
        return replace(of, linear=of.linear * linear, quadratic=of.quadratic * quadratic)

    kept, below = profile.kept, profile.below
    # Between steps and to settle the engine does as much as there are layers; it publishes and steps parameters.
    by_kind = dict.fromkeys(SHARDED, moved) | {"overhead": layers, "settle": layers}
    return replace(
        profile,
        model=wanted.name,
        fidelity="extrapolated",
        origin=f"scaled from {known.name} by FLOPs, up to {WIDER_SCALE:g} times off either way; {profile.origin}",
        forward=times(profile.forward, forward, squares),
        backward=times(profile.backward, backward, squares),
        head=times(profile.head, head),
        embed=times(profile.embed, embed),
        kept=replace(
            kept, forward=times(kept.forward, forward, squares), backward=times(kept.backward, backward, squares)
        ),
        below=replace(
            below,
            forward=times(below.forward, forward, squares),
            backward=times(below.backward, backward, squares),
            head=times(below.head, head),
            embed=times(below.embed, embed),
            microbatch=below.microbatch * layers,
        ),
        microbatch=profile.microbatch * layers,
        overhead=profile.overhead * layers,
        optimizer=profile.optimizer * moved,
        publish=profile.publish * moved,
        timings=tuple(replace(t, constant=t.constant * by_kind.get(t.kind, 1.0)) for t in profile.timings),
        low=profile.low / WIDER_SCALE,
        high=profile.high * WIDER_SCALE,
    )
