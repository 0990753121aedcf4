"""What a command held fixed, and which command searches it: an answer is the best of what was tried, and no more."""

from collections.abc import Sequence
from typing import Any

from odcsim.decide.setting import Setting
from odcsim.recipe import ASKED, SEARCHED, Recipe, recipe_of

BY, MORE = "odcsim advise", "odcsim sweep"
HELD = tuple(name for name in ASKED if name not in SEARCHED)  # by an advice


def fixed(setting: Setting, *, limited: bool = True) -> dict[str, Any]:
    """As JSON, of whoever has one recipe for all rows, and one limit unless not `limited`."""
    limit = {"max_tokens": setting.limit} if limited else {}
    why = {"sharding_because": setting.sharded_by} if setting.sharded_by else {}
    return {**setting.cost.recipe.written(SEARCHED), **why, **limit, "searched_by": BY}


def sentence(setting: Setting, *, limited: bool = True) -> str:
    """Not `limited`: the command looks for the token limit itself."""
    recipe = setting.cost.recipe
    known = recipe_of({name: recipe.value(name) for name in SEARCHED})
    limit = [f"at most {setting.limit:,} tokens in a microbatch"] if limited else []
    why = f" ({setting.sharded_by})" if setting.sharded_by else ""
    words = ", ".join([f"{setting.cost.sharded} sharding{why}", known.told.strip(), *limit])
    return f"Not varied: {words}. To search these, run '{BY}'.{given(setting.cost.on_demand_cost)}"


def given(seconds: float) -> str:
    """What on-demand was said to cost: nobody has measured it."""
    return (
        f" On-demand is assumed to take {seconds:g} s more per minibatch, as you asked; nobody has measured that."
        if seconds
        else ""
    )


def left(recipe: Recipe) -> dict[str, Any]:
    """What an advice does not search, as JSON."""
    return {**recipe.written(HELD), "searched_by": MORE}


def beside(recipe: Recipe, searched: Sequence[str] = SEARCHED, cost: float = 0.0) -> str:
    """The same in words."""
    unusual = ", ".join(f"{name} {recipe.value(name)}" for name in HELD if name not in recipe.usual)
    words = f"{unusual}, and all else at its default" if unusual else "all else, at its default"
    told = f"Searched: sync, balancer, token limit, {', '.join(searched)}. Not varied: {words}; '{MORE}' tries more."
    return f"{told}{given(cost)}"
