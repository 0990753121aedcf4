"""Rows of trainers that others wrote, drawn by hypothesis: all that `flags` can print."""

from hypothesis import strategies as st

from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import IN_BATCHES, IN_PADDED, ChosenRow
from odcsim.recipe import USUAL
from odcsim.trace import GRPO

KINDS = [(name, kind) for name, trainer in TRAINERS.items() for kind in trainer.entries]


MACHINES = ((1, 2), (1, 8), (2, 4))


@st.composite
def rows(draw, name, kind, machines=MACHINES):
    trainer = TRAINERS[name]
    nodes, per_node = draw(st.sampled_from(machines))
    rule = draw(st.sampled_from([rule for rule in trainer.rules if not rule.kinds or kind in rule.kinds]))
    counted = rule.balancer in (IN_PADDED, IN_BATCHES)
    rollouts = draw(st.sampled_from([4, 8])) if kind == GRPO else 1
    each = draw(st.sampled_from([1, 2, 4])) if counted else 0
    share = draw(st.sampled_from([2, 3, 8])) * (each or 1) * rollouts
    words = _recipe(draw, trainer, nodes)
    attention = draw(st.sampled_from(["fa2", "fa3", "sdpa", "eager"])) if "attention" in trainer.knows else "sdpa"
    attention = "fa2" if name == "slime" else attention
    updates = draw(st.sampled_from([1, 2])) if kind == GRPO else 1
    old = updates > 1 if name == "trl" else 1  # the old policy passes, and a reference where it has a weight
    passes = old + draw(st.booleans()) if kind == GRPO else draw(st.booleans()) if kind == "dpo" else 0
    more = {"engine_gpus": draw(st.sampled_from([1, 2])), "memory_share": 0.5, "answer": 1000} if kind == GRPO else {}
    epochs = None if name in ("torchtitan", "prime-rl") else draw(st.sampled_from([None, 1.0, 3.0]))
    return ChosenRow(
        USUAL.by(attention=attention, **words), rule.balancer, nodes * per_node, per_node, share,
        draw(st.sampled_from([4096, 16384, 30000])), share / (each or 1), kind, rollouts, updates, int(passes),
        attention=attention, each=each, longest=4000 if counted else 0, epochs=epochs,
        model=draw(st.sampled_from(["Qwen/Qwen3-8B", "somebody/model"])), **more,
    )  # fmt: skip


def _recipe(draw, trainer, nodes):
    """What of a recipe its settings say."""
    knows = trainer.knows
    again = ["full", "none", *(["operators"] if "operators" in knows else [])]
    shardings = [
        "full",
        *(["none"] if "whole" in knows else []),
        *(["hybrid"] if "hybrid" in knows and nodes > 1 else []),
    ]
    words = {**trainer.assumes, "sync": draw(st.sampled_from(trainer.syncs)), "recompute": draw(st.sampled_from(again))}
    words["sharding"] = draw(st.sampled_from(shardings))
    known = {"chunked": {"loss": "chunked"}, "compiled": {"stack": "compiled"}, "moments": {"optimizer": "8bit"},
             "rank": {"lora": 16}}  # fmt: skip
    for name, choice in known.items():
        if name in knows and draw(st.booleans()):
            words |= choice
    if "quantized" in knows and "lora" in words and draw(st.booleans()):
        words["quantization"] = "nf4"
    if "on_host" in knows and words["sharding"] != "none" and draw(st.booleans()):
        words["offload"] = True
    if trainer.name == "axolotl" and words["sharding"] == "none" and "lora" not in words:
        words.setdefault("optimizer", "pure")
    return words
