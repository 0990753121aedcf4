"""A setting in words: what is trained on what, by which lengths, in minibatches of which size."""

from typing import TYPE_CHECKING

from odcsim.support.numbers import counted

if TYPE_CHECKING:
    from odcsim.decide.setting import Setting


def named(setting: "Setting") -> str:
    """The model, on what, and the lengths."""
    cost = setting.cost
    return f"{cost.model.name} on {cost.cluster.gpus} x {cost.profile.gpu}, {setting.trace.name}"


def sized(setting: "Setting", *, limited: bool = True) -> str:
    """Samples of a device and step, and the token limit."""
    tried = f" (the best of {setting.limits_tried} limits that fit)" if setting.limits_tried else ""
    samples = f"{counted(setting.minibatch, setting.trace.unit)} per device and step"
    return f"{samples}, at most {setting.limit:,} tokens in a microbatch{tried}" if limited else samples


def asked(setting: "Setting", *, limited: bool = True) -> str:
    """Not `limited`: a trainer's own rows have limits of their own."""
    cost, trace = setting.cost, setting.trace
    nodes = cost.cluster.nodes
    where = f"{cost.cluster.gpus} x {cost.profile.gpu}" + (f" in {nodes} nodes" if nodes > 1 else "")
    where += ", hybrid sharding" if cost.recipe.sharding == "hybrid" else ""
    lengths = f"{trace.name} ({trace.in_words}, longest {trace.longest:,} tokens)"
    model, drawn = f"{cost.model.name}{cost.recipe.told}", counted(setting.minibatches, "minibatch")
    by = "" if setting.trainer is None else f" by {setting.trainer}"
    return f"{model}{by} on {where}, {lengths}, {sized(setting, limited=limited)}, {drawn}"
