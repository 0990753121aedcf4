"""What was asked, what was held fixed, and what seconds rest on, in words that all answers have."""

from collections.abc import Sequence

from odcsim.answer import Answer
from odcsim.catalog.estimates.compute import PUBLISHED, guessed
from odcsim.decide.setting import Setting
from odcsim.decide.words import BY, HELD, MORE
from odcsim.profile import Profile
from odcsim.program import WHOLE
from odcsim.recipe import SEARCHED, Recipe, recipe_of
from odcsim.support.numbers import counted, duration
from odcsim.trace import DPO, Trace

SHAPE = "shape, not data"
NOT_RUN = "odc_engine does not run context parallelism: on-demand rows say what it would bring."
_TRUST = {
    "calibrated": "Seconds come from a profile measured on this hardware.",
    "scaled": "Seconds are estimates, scaled by one factor that was measured on a run of yours.",
    "published fit": "Seconds come from a published fit to others' measurements, not from measurements of yours.",
    "extrapolated": "Some seconds are extrapolated beyond what they were fitted to (longer samples, fuller "
    "microbatches, other devices, another model, or the same with another recompute).",
}
ALONE = "One GPU waits for nobody: there is no sync to choose."
UNRUN = "odc_engine does not run QLoRA: what is said of on-demand is predicted alone."


def answer(setting: Setting) -> Answer:
    return Answer("Setting", f"{named(setting)}, {sized(setting)}", question=question(setting))


def named(setting: Setting) -> str:
    """The model, on what, and the lengths."""
    cost = setting.cost
    return f"{cost.model.name} on {cost.cluster.gpus} x {cost.profile.gpu}, {setting.trace.name}"


def sized(setting: Setting, *, limited: bool = True) -> str:
    """Samples of a device and step, and the token limit."""
    samples = f"{counted(setting.minibatch, setting.trace.unit)} {per_step(setting)}"
    return f"{samples}, {limit(setting)}" if limited else samples


def per_step(setting: Setting) -> str:
    """Whose samples of a step are counted."""
    each = setting.cost.recipe.context
    return "per device and step" if each == 1 else f"per group of {each} devices and step"


def limit(setting: Setting) -> str:
    tried = f" (the best of {setting.limits_tried} limits that fit)" if setting.limits_tried else ""
    return f"at most {setting.limit:,} tokens in a microbatch{tried}"


def question(setting: Setting, *, limited: bool = True) -> str:
    """Not `limited`: a trainer's own rows have limits of their own."""
    cost, trace = setting.cost, setting.trace
    nodes = cost.cluster.nodes
    where = f"{cost.cluster.gpus} x {cost.profile.gpu}" + (f" in {nodes} nodes" if nodes > 1 else "")
    where += {"hybrid": ", hybrid sharding", WHOLE: ", without sharding"}.get(cost.recipe.sharding, "")
    lengths = f"{trace.name} ({trace.in_words}, longest {trace.longest:,} tokens)"
    model, drawn = f"{cost.model.name}{cost.recipe.full_words}", counted(setting.minibatches, "minibatch")
    by = "" if setting.trainer is None else f", by {setting.trainer},"
    return f"{model}{by} on {where}, {lengths}, {sized(setting, limited=limited)}, {drawn}"


def fixed(setting: Setting, *, limited: bool = True, by: str = f" To search these, run '{BY}'.") -> str:
    """What was held fixed: an answer is the best of what was tried, and no more. Not `limited`: the command looks for
    the token limit itself. `by`: who searches it."""
    recipe = setting.cost.recipe
    known = recipe_of({name: recipe.value(name) for name in SEARCHED}).full_words.strip()
    why = f" ({setting.sharded_by})" if setting.sharded_by else ""
    tokens = [f"at most {setting.limit:,} tokens in a microbatch"] if limited else []
    how = "no" if recipe.sharding == WHOLE else setting.cost.sharded
    words = ", ".join([f"{how} sharding{why}", known, *tokens])
    beside = "" if recipe.context == 1 else f" {NOT_RUN}"
    return f"Not varied: {words}.{by}{beside}{_charged(setting.cost.on_demand_cost)}"


def searched(recipe: Recipe, names: Sequence[str] = SEARCHED, cost: float = 0.0) -> str:
    """What an advice searched, and what it did not."""
    unusual = ", ".join(f"{name} {recipe.value(name)}" for name in HELD if name in recipe.unusual)
    words = f"{unusual}, and all else at its default" if unusual else "all else, at its default"
    told = f"Searched: sync, balancer, token limit, {', '.join(names)}. Not varied: {words}; '{MORE}' tries more."
    return f"{told}{_charged(cost)}"


def _charged(seconds: float) -> str:
    """What on-demand was said to cost: nobody has measured it."""
    if not seconds:
        return ""
    return f" On-demand is assumed to take {seconds:g} s more per minibatch, as you asked; nobody has measured that."


def lengths(origin: str) -> str:
    """Where lengths come from; those of a published shape are nobody's data."""
    made = f"{SHAPE}: "
    if origin.startswith(made):
        return f"Lengths are synthetic ({SHAPE}): {origin.removeprefix(made)}."
    return f"Lengths: {origin}."


def reference(trace: Trace, seconds: float | None) -> list[str]:
    """What pairs take beside their steps: of a whole run so many seconds."""
    if trace.kind != DPO:
        return []
    charged = "; ask with --epochs to have it charged" if seconds is None else f": {duration(seconds)} of the whole run"
    return [f"Pairs are trained on by DPO, whose reference model passes them all once before the first step{charged}."]


def trust(fidelity: str, profile: Profile) -> str:
    """What seconds were made from; of the catalogue's, how its figures are known."""
    if fidelity == "catalogue":
        guesses, rates = " and ".join(guessed(profile.kinds)), "what GPUs reach in published runs"
        if guesses and PUBLISHED.isdisjoint(profile.kinds):
            rates = f"rates that are {guesses}, and not fitted to published runs"
        elif guesses:
            rates += f", and in part from rates that are {guesses}"
        words = f"Seconds are estimated from {rates}; they are not measured."
    else:
        words = _TRUST.get(fidelity, fidelity)
    return f"{words} WARNING: {profile.origin}." if profile.fidelity == "extrapolated" else words


def doubts(fidelity: str, profile: Profile) -> list[str]:
    """The same, where some of what was asked about is beyond that."""
    return [trust(fidelity, profile)] if fidelity == "extrapolated" else []
