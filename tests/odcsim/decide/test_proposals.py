"""What an audit proposes: every setting that the trainer has for it is tried, and reads back as it was written."""

import pytest

from odcsim.decide.asking import lengths_of
from odcsim.decide.audit import audited
from odcsim.decide.levers import BATCH, SHARDING
from odcsim.decide.priced_step import Surroundings
from odcsim.decide.proposals import FILL, STACK, changes, others
from odcsim.neighbours.config import read_config
from odcsim.neighbours.neighbour import IN_BATCHES, IN_ROWS
from odcsim.question import Question

SPREAD = "lognormal:median=700,sigma=0.9,max=4096"
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-4B "
    "trainer.n_gpus_per_node=8 data.train_batch_size=64 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.use_dynamic_bsz=True "
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 data.max_response_length=8192"
)
TRL = (
    "accelerate launch --num_processes 8 --use_fsdp -m trl.scripts.{kind} --model_name_or_path Qwen/Qwen3-4B "
    "--attn_implementation flash_attention_2 --per_device_train_batch_size 4 --max_length 4096"
)


def surroundings(command: str) -> Surroundings:
    return Surroundings(read_config(command).trainer, lengths_of(Question(trace=SPREAD)), {"gpu": "h100"})


def test_rollouts_that_nobody_balances_are_priced_as_they_come_and_balancing_is_proposed():
    found = audited(f"{VERL} trainer.balance_batch=False", "dapo-rl", (), {"gpu": "h100"})
    balanced = audited(f"{VERL} trainer.balance_batch=True", "dapo-rl", (), {"gpu": "h100"})
    assert found.step.training > 1.05 * balanced.step.training
    assert found.changes[0]["trainer.balance_batch"] is True


@pytest.mark.parametrize("balanced", [False, True])
def test_balancing_of_rollouts_is_written_as_it_was_read(balanced):
    config = read_config(f"{VERL} trainer.balance_batch={balanced}")
    assert config.trainer.settings(config.row())["trainer.balance_batch"] is balanced


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_flattened_batches_are_tried_where_the_kernel_keeps_samples_apart(kind):
    command = TRL.format(kind=kind)
    of, row = surroundings(command), read_config(command).row()
    flat = [one for name, one in changes(of, of.price(row, 6), launched=True) if name == FILL]
    assert any(one.balancer == IN_BATCHES for one in flat)
    eager = read_config(command.replace("flash_attention_2", "eager")).row()
    plain = [one for name, one in changes(of, of.price(eager, 6), launched=True) if name == FILL]
    assert not any(one.balancer == IN_BATCHES for one in plain)
    assert of.trainer.settings(flat[0]) != of.trainer.settings(row)


def test_a_compiled_stack_is_tried_and_reads_back():
    command = TRL.format(kind="sft")
    of, config = surroundings(command), read_config(command)
    (row,) = (one for name, one in changes(of, of.price(config.row(), 6), launched=True) if name == STACK)
    assert of.trainer.settings(row)["--torch_compile"] is True
    assert read_config(f"{command} --torch_compile true").row().recipe.value("stack") == "compiled"


def test_larger_steps_are_tried_of_larger_microbatches_and_packed():
    command = f"{TRL.format(kind='sft')} --gradient_accumulation_steps 1"
    of, row = surroundings(command), read_config(command).row()
    larger = [one for name, one in others(of, of.price(row, 6)) if name == BATCH]
    assert {(one.each, one.balancer == IN_ROWS) for one in larger} == {(4, False), (8, False), (0, True)}


def test_layers_that_stay_gathered_are_tried_and_read_back():
    command = TRL.format(kind="sft")
    of, config = surroundings(command), read_config(command)
    rows = [one for name, one in changes(of, of.price(config.row(), 6), launched=True) if name == SHARDING]
    (row,) = (one for one in rows if not one.recipe.reshard)
    assert "--fsdp_reshard_after_forward false" in of.trainer.command(row)
    said = command.replace("--use_fsdp", "--use_fsdp --fsdp_reshard_after_forward false")
    assert not read_config(said).row().recipe.reshard
