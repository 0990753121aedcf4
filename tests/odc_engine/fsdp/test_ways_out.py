"""Every fix that an error names is followed by a habit that trains right; a fix without one fails here."""

import ast

import pytest
from habits import EVERY, sentence
from habits_page import ROW
from scripts import ROOT

from odc_engine.fsdp.remedies import DROP

FSDP = ROOT / "odc_engine/fsdp"
SOURCES = [
    *FSDP.glob("guards/*.py"),
    *FSDP.glob("optimizers/*.py"),
    FSDP / "pending_gradients.py",
    FSDP / "agreement.py",
]
LATE = "wait longer with --timeout, or timeout= of OnDemand; if it waits in a collective for each microbatch"

# What follows each fix, one habit for each way that it names.
FOLLOWED = {
    # By hand.
    "call settle() first": ("order: documented",),
    "call settle() before anybody looks at gradients, clips them or steps": ("order: documented",),
    "settle when all backward passes are done": ("gradients: two_losses",),
    "finish backward before the optimizer steps": ("gradients: two_losses",),
    "call publish() after the optimizer's step": ("order: documented",),
    "call publish() on all devices": ("weights: in_place_published", "weights: data_published"),
    "call settle() on all devices, or publish() on all to drop a minibatch": (
        "order: documented",
        "order: publish_without_settle",
    ),
    DROP: ("interrupted: dropped_after_backward", "interrupted: refused_then_dropped"),
    f"zero_grad() and the like after the step, or {DROP}": ("order: documented", "order: publish_without_settle"),
    "evaluate after publish()": ("training: eval_mode",),
    "use it in a forward pass, or add to .grad after settle()": (
        "ways_out: penalty_in_forward",
        "gradients: set_after_settle",
    ),
    "change .grad after settle() instead": ("gradients: changed_in_place",),
    "step after settle(): earlier, gradients are zeros": ("order: documented",),
    "make the optimizer of model.parameters() anew": ("weights: assigned_published",),
    "close() this OnDemand and make another where parameters are frozen or unfrozen": ("frozen: refrozen",),
    "close() this OnDemand, have fully_shard manage the parameter, make another": ("replaced: head_for_another",),
    "change its values in place and publish(), or replace it before fully_shard": (
        "replaced: values",
        "ways_out: replaced_before",
    ),
    "change it between settle() and publish(), or make it a buffer": (
        "ways_out: changed_between",
        "weights: counted_in_a_buffer",
    ),
    f"{LATE}, as of metrics, call that once, after settle()": (
        "interrupted: late_device",
        "interrupted: metrics_after_settle",
    ),
    "set_requires_gradient_sync(True) before the last backward pass of a minibatch": ("gradients: sync_at_the_last",),
    "call backward(), and leave torch.autocast, after each microbatch": (
        "training: recomputed_reentrant",
        "gradients: autocast",
    ),
    "fully_shard(reshard_after_forward=False) and set_reshard_after_backward(False)": (
        "gradients: gradient_penalty_kept_whole",
    ),
    "save states of optimizers between two minibatches": ("checkpoints: before_the_first_step",),
    "close() that one first": ("frozen: refrozen",),
    "drop it with zero_grad()": ("ways_out: closed_and_cleared",),
    "cast the model before fully_shard": ("weights: cast_before",),
    "close() this OnDemand on all devices and make another, as where training starts": (
        "interrupted: settle_interrupted_and_made_anew",
    ),
    "change them before OnDemand is made": ("settings: divide_factor_one",),
    "leave average=False out to divide as FSDP2 does": ("settings: divide_factor_kept",),
    "use torch.bfloat16 for param_dtype, or leave it out": ("ways_out: in_bfloat16", "order: documented"),
    "leave offload_policy out: peers read parameters where they compute": ("order: documented",),
    # Attached.
    "look at gradients when backward() has ended": ("attached: norm_logged",),
    "look at gradients when all backward passes are done": ("ways_out: look_after_both",),
    "attach() the optimizer that steps": ("steps: inner_attached",),
    "call the optimizer's step() next, or zero_grad() to leave it out": (
        "attached: settle_after_clipping",
        "ways_out: evaluation_after_a_skipped_step",
    ),
    f"call zero_grad() of every attached optimizer, on all devices or on none; or {DROP}": (
        "turns: all_clear_inside_a_minibatch",
        "ways_out: dropped",
    ),
    "call zero_grad() after each step, of the model where the optimizer has some of the parameters alone": (
        "attached: five_lines",
        "ways_out: part_of_the_parameters_cleared",
    ),
    "use it in a forward pass, or add to .grad between the last backward() and step()": (
        "ways_out: penalty_in_forward_attached",
        "ways_out: changed_before_step",
    ),
    "change .grad between the last backward() and step() instead": ("ways_out: changed_before_step",),
    "evaluate when every attached optimizer has stepped, or had its zero_grad() called instead": (
        "turns: each_steps_and_clears",
        "turns: one_clears_before_the_other_steps",
    ),
    "step every attached optimizer or call its zero_grad(), and publish() on all devices after other changes": (
        "turns: each_steps_and_clears",
        "turns: one_clears_in_place_of_its_step",
        "ways_out: loaded_partly_and_published",
    ),
    "look at gradients, step and call zero_grad() on all devices or on none, also before the first minibatch; "
    f"or {DROP}": (
        "attached: five_lines",
        "attached: one_without_microbatches",
        "turns: published_where_one_has_nothing",
    ),
    "evaluate under torch.no_grad(), or reshard() every module given to fully_shard before": (
        "attached: evaluation_before_clipping",
        "attached: forward_and_reshard_before_clipping",
    ),
    "make the optimizer of model.parameters() anew, and attach() it": ("ways_out: assigned_and_attached",),
    "close() this OnDemand, make another and attach() to it where parameters are frozen or unfrozen": (
        "ways_out: unfrozen_for_another",
    ),
    "close() this OnDemand, have fully_shard manage the parameter, make another and attach() to it": (
        "ways_out: another_head_for_another",
    ),
    f"{LATE}, as of metrics, call that once, after step()": (
        "interrupted: late_device",
        "ways_out: metrics_after_the_step",
    ),
    "attach a torch.optim.Optimizer, or call settle() and publish() yourself": (
        "attached: without_clipping",
        "steps: own_class_by_hand",
    ),
    "attach the model's own": ("attached: without_clipping",),
    "attach it once, where it is made": ("attached: without_clipping",),
    "call backward before step()": ("attached: without_clipping",),
    "zero_grad()": ("attached: without_clipping",),
    "OnDemand(check_finite=False) skips this check, for loops that skip such steps themselves (gradient scalers)": (
        "steps: grad_scaler_skips",
    ),
}
RESULTS = dict(ROW.findall((ROOT / "docs/habits.md").read_text(encoding="utf-8")))


def named_in(source: str) -> set[str]:
    """The fixes that a module spells out."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        named = isinstance(node, ast.keyword) and node.arg == "fix"
        named |= isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["fix"]
        if named and isinstance(node.value, ast.Constant):
            found.add(node.value.value)
    return found


def test_every_fix_that_a_habit_is_told_is_followed_and_no_other():
    told = {found.partition("; ")[2] for found in RESULTS.values()} - {""}
    assert told - FOLLOWED.keys() == set()
    assert FOLLOWED.keys() - told == set()


def test_every_fix_of_a_guard_and_of_an_attached_optimizer_is_followed():
    spelled = {fix for path in SOURCES for fix in named_in(path.read_text(encoding="utf-8"))}
    assert len(spelled) >= 10
    assert spelled - FOLLOWED.keys() == set()


@pytest.mark.parametrize("fix", FOLLOWED)
def test_what_follows_a_fix_trains_right(fix):
    """Each of these habits is compared with one process in test_habits.py."""
    assert {name: RESULTS[sentence(EVERY[name])] for name in FOLLOWED[fix]} == dict.fromkeys(FOLLOWED[fix], "works")
