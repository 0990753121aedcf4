"""Whatever people do in a training loop is right or refused: never a third thing. docs/habits.md says which. And every
fix that an error names is followed by a habit that trains right."""

import ast
from dataclasses import fields

import pytest
from habits import EVERY, sentence
from habits_page import ROW
from scripts import ROOT
from users import found

from odc_engine.fsdp.checks import CHECKS
from odc_engine.fsdp.remedies import ATTACHED, BY_HAND

PAGE = (ROOT / "docs/habits.md").read_text(encoding="utf-8")
RESULTS = dict(ROW.findall(PAGE))
COMPILED = ("training: compiled_layers", "training: compiled_model", "training: compiled_step")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in COMPILED else name for name in EVERY]


@pytest.mark.by_default(80)
@pytest.mark.parametrize("name", NAMES)
def test_right_or_refused_as_the_page_says(pools, name):
    if wanting := EVERY[name].wanting:
        pytest.skip(wanting)
    came_to = found(pools, EVERY[name])
    assert not came_to.startswith(("FAILED", "WRONG"))
    assert RESULTS[sentence(EVERY[name])] == (came_to if came_to == "works" else f"refused: {came_to}")


def test_the_page_has_every_habit_once_and_no_other():
    assert sorted(told for told, _ in ROW.findall(PAGE)) == sorted(map(sentence, EVERY.values()))
    assert len(EVERY) >= 60


# Ways out.

FSDP = ROOT / "odc_engine/fsdp"
SOURCES = [FSDP / f"{name}.py" for name in ("attach", "stand_in", "agreement")]
# How each fix begins, or begins and ends, and what follows it: one habit for each way that it names.
FOLLOWED = """
call settle() first -> order: documented
call settle() before anybody -> order: documented
settle when all -> gradients: two_losses
finish backward before -> gradients: two_losses
call publish() after the -> order: documented
call publish() on all devices -> weights: in_place_published, weights: data_published
call settle() on all devices, -> order: documented, order: publish_without_settle
drop the minibatch with -> interrupted: dropped_after_backward, interrupted: refused_then_dropped
zero_grad() and the like -> order: documented, order: publish_without_settle
evaluate after publish() -> training: eval_mode
use it in a forward pass, or add to .grad after -> ways_out: penalty_in_forward, gradients: set_after_settle
change .grad after settle() -> gradients: changed_in_place
step after settle(): earlier, -> order: documented
make the optimizer of model.parameters() anew -> weights: assigned_published
close() this OnDemand and make -> frozen: refrozen
close() this OnDemand, have fully_shard manage the parameter, make another -> replaced: head_for_another
change its values in -> replaced: values, ways_out: replaced_before
change it between settle() and -> ways_out: changed_between, weights: counted_in_a_buffer
wait longer ... after settle() -> interrupted: late_device, interrupted: metrics_after_settle
set_requires_gradient_sync(True) -> gradients: sync_at_the_last
call backward(), and leave -> training: recomputed_reentrant, gradients: autocast
fully_shard(reshard_after_forward=False) -> gradients: gradient_penalty_kept_whole
save states of -> checkpoints: before_the_first_step
close() that one first -> frozen: refrozen
drop it with zero_grad() -> ways_out: closed_and_cleared
cast the model -> weights: cast_before
close() this OnDemand on all -> interrupted: settle_interrupted_and_made_anew
change them before OnDemand -> settings: divide_factor_one
leave average=False out to -> settings: divide_factor_kept
use torch.bfloat16 for -> ways_out: in_bfloat16, order: documented
leave offload_policy out: peers -> order: documented
look at gradients when backward() -> attached: norm_logged
look at gradients when all -> ways_out: look_after_both
attach() the optimizer -> steps: inner_attached
call the optimizer's step() -> attached: settle_after_clipping, ways_out: evaluation_after_a_skipped_step
call zero_grad() of every -> turns: all_clear_inside_a_minibatch, ways_out: dropped
call zero_grad() after each step, -> attached: five_lines, ways_out: part_of_the_parameters_cleared
use it in a forward pass, or add to .grad between -> ways_out: penalty_in_forward_attached
use it in a forward pass, or add to .grad between -> ways_out: changed_before_step
change .grad between the last -> ways_out: changed_before_step
evaluate when every attached -> turns: each_steps_and_clears, turns: one_clears_before_the_other_steps
step every attached optimizer -> turns: each_steps_and_clears, turns: one_clears_in_place_of_its_step
step every attached optimizer -> ways_out: loaded_partly_and_published
look at gradients, step and -> attached: five_lines, attached: one_without_microbatches
look at gradients, step and -> turns: published_where_one_has_nothing
evaluate under torch.no_grad(), -> attached: evaluation_before_clipping, attached: forward_and_reshard_before_clipping
make the optimizer of model.parameters() anew, -> ways_out: assigned_and_attached
close() this OnDemand, make -> ways_out: unfrozen_for_another
close() this OnDemand, have fully_shard manage the parameter, make another and -> ways_out: another_head_for_another
wait longer ... after step() -> interrupted: late_device, ways_out: metrics_after_the_step
attach a torch.optim.Optimizer, -> attached: without_clipping, steps: own_class_by_hand
attach the model's own -> attached: without_clipping
attach it once, where -> attached: without_clipping
call backward before step() -> attached: without_clipping
zero_grad() -> attached: without_clipping
OnDemand(check_finite=False) -> steps: grad_scaler_skips
"""
ROWS = [row.split(" -> ") for row in FOLLOWED.strip().splitlines()]


def named_in(source: str) -> set[str]:
    """The fixes that a module spells out."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        named = isinstance(node, ast.keyword) and node.arg == "fix"
        named |= isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["fix"]
        if named and isinstance(node.value, ast.Constant):
            found.add(node.value.value)
    return found


def row_of(fix: str) -> str:
    """Which one tells of it: the longest that fits."""
    ends = {words: words.partition(" ... ")[::2] for words, _ in ROWS}
    return max((w for w, (begins, end) in ends.items() if fix.startswith(begins) and fix.endswith(end)), default="")


def test_every_fix_that_is_told_or_spelled_out_is_followed_by_what_trains_right():
    told = {found.partition("; ")[2] for found in RESULTS.values()} - {""}
    spelled = {fix for path in SOURCES for fix in named_in(path.read_text(encoding="utf-8"))}
    spelled |= {guard.way_out for guard in CHECKS if " " in guard.way_out}
    assert {fix for fix in told | spelled if not row_of(fix)} == set()
    assert {words for words, _ in ROWS} == {row_of(fix) for fix in told}
    assert {
        name for _, names in ROWS for name in names.split(", ") if RESULTS[sentence(EVERY[name])] != "works"
    } == set()
    for words in (BY_HAND, ATTACHED):  # no way out that no habit was told
        assert [told for told in (getattr(words, each.name) for each in fields(words)) if told not in PAGE] == []
