"""Trainers' configurations read back: what `flags` writes is the row that it was written for, for every trainer."""

import json
import shlex
from dataclasses import replace
from itertools import product

import pytest
from drawn_rows import KINDS, MACHINES, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import ROOT

from odcsim.errors import InputError
from odcsim.neighbours import TRAINERS, edit, names, shell
from odcsim.neighbours.config import check_names, read_config
from odcsim.neighbours.launch import Launcher
from odcsim.neighbours.settings import TrainerFlags
from odcsim.neighbours.values import RunEnds, Values, flatten, plain, scalar
from odcsim.trace import GRPO

EXAMPLES = [json.loads(line) for line in (ROOT / "tests/odcsim/audit/examples.jsonl").read_text().splitlines()]
SUFFIXES = {"yaml": "yaml", "toml": "toml", "json": "json"}
SAID = ("balancer", "devices", "minibatch", "each", "kind", "rollouts", "updates", "passes", "model", "engine_gpus",
        "epochs", "attention", "nodes")  # fmt: skip
RECIPE = ("sync", "recompute", "sharding", "lora", "quantization", "optimizer", "offload", "stack", "loss", "attention")


def write(folder, trainer, row, name="run"):
    form = TRAINERS[trainer].form
    path = folder / f"{name}.{SUFFIXES.get(form, 'sh')}"
    path.write_text(f"{TrainerFlags(TRAINERS[trainer], row)}\n", encoding="utf-8")
    return path


def meaning(row):
    """What is priced of a row."""
    limit = () if row.each else (row.max_tokens,)
    return [getattr(row, name) for name in SAID], [row.recipe.value(name) for name in RECIPE], limit


@pytest.mark.parametrize(("trainer", "kind"), KINDS)
@given(data=st.data())
def test_what_flags_write_is_read_back_to_the_same_row(tmp_path_factory, trainer, kind, data):
    row = data.draw(rows(trainer, kind))
    path = write(tmp_path_factory.mktemp("written"), trainer, row)
    config = read_config(path)
    assert (config.trainer.name, config.kind) == (trainer, kind)
    again = config.row()
    assert meaning(again) == meaning(row)
    assert config.trainer.settings(again) == config.trainer.settings(row)
    assert config.trainer.command(again) == config.trainer.command(row)
    assert not config.unknown()


@pytest.mark.parametrize(("trainer", "kind"), KINDS)
@given(data=st.data())
def test_an_edited_configuration_is_that_of_the_other_row(tmp_path_factory, trainer, kind, data):
    machines = [data.draw(st.sampled_from(MACHINES))]
    before, after = (data.draw(rows(trainer, kind, machines)) for _ in range(2))
    after = replace(after, model=before.model, epochs=before.epochs, longest=before.longest)
    if trainer == "llamafactory":  # how it is launched stands in no file of its own
        after = replace(after, recipe=after.recipe.by(sharding=before.recipe.sharding))
    folder = tmp_path_factory.mktemp("edited")
    config = read_config(write(folder, trainer, before))
    changed = edit.differences(config, config.row(), after)
    path = folder / f"new.{SUFFIXES.get(config.form, 'sh')}"
    path.write_text(edit.edit(config, changed), encoding="utf-8")
    assert meaning(read_config(path).row()) == meaning(after), path.read_text()


@pytest.mark.parametrize(("trainer", "kind"), KINDS)
@given(data=st.data(), odd=st.from_regex(r"zz[a-z]{3,9}", fullmatch=True))
def test_no_name_is_swallowed(tmp_path_factory, trainer, kind, data, odd):
    path = write(tmp_path_factory.mktemp("odd"), trainer, data.draw(rows(trainer, kind)))
    config = read_config(path)
    name = (
        odd if config.trainer.form in ("yaml", "toml") else f"{odd}.x" if config.trainer.form == "hydra" else f"--{odd}"
    )
    path.write_text(edit.edit(config, {name: 3}), encoding="utf-8")
    config = read_config(path)
    config.row()
    assert [plain(one) for one in config.unknown()] == [plain(name)]
    assert check_names(config)[0].startswith(name)


ODD = (0, -1, 3, 2**40, 2**70, 10**400, 0.5, 1e-320, float("inf"), True, False, "", "x", "12", "${A}", [], [1], ["a"],
       {}, {"a": 1}, "\x1b[2J", "9" * 400)  # fmt: skip


@pytest.mark.parametrize(("trainer", "kind"), KINDS)
@settings(max_examples=2)
@given(data=st.data())
def test_any_value_is_read_or_refused(tmp_path_factory, trainer, kind, data):
    """Each of every name that a reader asks for, whether a file has it or not."""
    config = read_config(write(tmp_path_factory.mktemp("any"), trainer, data.draw(rows(trainer, kind))))
    given = {name: config.values.get(name) for name in config.values.names}
    Recorded.asked = set()
    config.entry.read(Recorded(given, "F"), config.launch)
    counts = "devices", "per_node", "minibatch", "max_tokens", "rollouts", "updates", "each", "rows", "longest", "steps"
    for name, odd in product(sorted(Recorded.asked), ODD):
        try:
            row = config.entry.read(Values(given | {name: odd}, "F"), config.launch)
            assert str(TrainerFlags(config.trainer, row))
        except InputError:
            continue
        assert all(type(of := getattr(row, count)) is int and of >= 0 for count in counts), (name, odd)


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)


@given(
    NAMES,
    st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9)),
    st.dictionaries(NAMES.map(min), st.just(99)),
)
def test_of_several_names_the_first_that_somebody_used_counts_and_all_are_read(names, said, usual):
    """A trainer's own default of a new name is none that somebody used: an older name counts before it."""
    values = Values(said, "F", usual)
    used = [said[name] for name in names if said.get(name) is not None]
    assumed = [usual[name] for name in names if name in usual]
    assert values.whole(names, 77, 0) == values.first(names, 77) == [*used, *assumed, 77][0]
    assert set(values.unread()) == said.keys() - set(names)


LAUNCHES = (
    "accelerate launch --num_processes {} --num_machines {} --use_fsdp --parallelism_config_cp_size {} -m",
    "torchrun --nproc_per_node {} --nnodes {} -m", "deepspeed --num_gpus {} --num_nodes {} --module",
)  # fmt: skip
COUNTS = st.sampled_from(["-1", "0", "2", "8", "auto", "gpu", "1:4", "x", "9" * 400, "0.5", "[1]"])


@given(st.sampled_from(LAUNCHES), st.lists(COUNTS, min_size=3, max_size=3), st.sampled_from([0, 1, 6, 8]))
def test_any_count_of_a_launcher_is_read_or_refused(launch, counts, devices):
    command = f"{launch.format(*counts)} trl.scripts.sft --model_name_or_path somebody/model"
    try:
        row = read_config(command, Launcher(devices=devices)).row()
    except InputError:
        return
    assert row.devices >= 1
    assert row.workers >= 1
    assert devices in (0, row.devices)


class Recorded(Values):
    """With what a reader asks for, and takes where nobody says."""

    taken: dict = {}  # noqa: RUF012 - of one test
    asked: set = set()  # noqa: RUF012

    def get(self, name, default=None):
        self.asked.add(plain(name))
        if default not in (None, ""):  # where it only asks whether somebody says anything
            self.taken[plain(name)] = default
        return super().get(name, default)


# Names whose default in a table is none of the trainer's: a command or a reader gives another.
OTHERWISE = {
    "trl": {"dtype"},
    "verl": {"data.max_prompt_length", "trainer.total_epochs"},
    "torchtitan": {"training.steps"},
}


@pytest.mark.parametrize(("trainer", "kind"), KINDS)
def test_readers_take_the_defaults_of_the_tables(trainer, kind):
    needed = {"verl": {"actor_rollout_ref.actor.use_dynamic_bsz": True}, "slime": {"rollout_batch_size": 8}}
    needed |= {"nemo-rl": {"grpo.num_prompts_per_step": 32} if kind == GRPO else {}}
    Recorded.taken = {}
    values = Recorded(needed.get(trainer, {}), "nowhere")
    TRAINERS[trainer].entries[kind].read(values, Launcher(devices=8))
    table = names.tomllib.loads((names.FOLDER / f"{trainer}.toml").read_text())
    parts = [table.get(part, {}) for part in (names.ALL, kind, "off", f"{kind}_off")]
    known = {plain(name): value for part in parts for name, value in flatten(part)}
    skipped = OTHERWISE.get(trainer, set())
    both = {
        name: (value, known[name]) for name, value in Recorded.taken.items() if name in known and name not in skipped
    }
    assert both
    assert {name: pair for name, pair in both.items() if pair[0] != pair[1] and 0 not in pair} == {}


def text_of(example):
    """As the trainer takes it."""
    values, form = example["values"], example["form"]
    if form == "toml":
        import tomlkit

        return tomlkit.dumps(values), "toml"
    if form in ("yaml", "json"):
        return json.dumps(values), form

    def word(value):
        return (
            json.dumps(value)
            if isinstance(value, dict | list)
            else str(value).lower()
            if value in (True, False)
            else str(value)
        )

    words = []
    for name, value in values.items():
        if form == "hydra":
            words.append(shlex.quote(f"{name}={word(value)}"))
        else:
            every = [] if value is None else value if isinstance(value, list) else [value]
            words += [name, *(shlex.quote(word(one)) for one in every)]
    return f"{example['program']} {' '.join(words)}", "sh"


# What `flags` says of every run, whatever it was asked for; and names of one thing in other words.
CONSTANT = tuple(
    "data dataset output_dir logger learning_rate bf16 plugins stage val_ load input_key prompt_data reward_funcs "
    "use_vllm custom_rm_path rollout_function_path policy.sequence_packing policy.dynamic_batching cluster trainer.n "
    "trainer.logger deployment sft. grpo.val optim actor_rollout_ref.rollout.name attn_implementation flash_attn "
    "parallelism activation_checkpoint".split()
)
COUNTS = {"read": 70, "another": 11, "refused": 69}


def test_examples_of_their_repositories_are_read_or_refused_and_written_back_to_equal_values(tmp_path):
    found, ways = dict.fromkeys(COUNTS, 0), []
    for number, example in enumerate(EXAMPLES):
        text, suffix = text_of(example)
        path = tmp_path / f"{number}.{suffix}"
        path.write_text(text, encoding="utf-8")
        try:
            config = read_config(path)
            config = config if config.launch.gpus else read_config(path, Launcher(devices=8))
            row = config.row()
        except InputError as error:
            ways.append(error.fix)
            found["refused"] += 1
            continue
        ours = (config.trainer.name, config.kind) == (example["trainer"], example["kind"])
        found["read" if ours else "another"] += 1
        settings = flatten(config.trainer.settings(row))
        back = {plain(name): True if value is None else value for name, value in settings}
        given_values = {plain(name): value for name, value in flatten(example["values"])}
        both = {name: (given_values[name], back[name]) for name in back if given_values.get(name) is not None}
        odd = {
            name: pair
            for name, pair in both.items()
            if not name.startswith(CONSTANT)
            and scalar(str(pair[0])) != scalar(str(pair[1]))
            and "$" not in str(pair[0])
        }
        assert odd == {}, example["address"]
    assert found == COUNTS
    assert all(ways)


def test_a_script_is_read_with_its_variables_arrays_and_sums():
    text = """#!/bin/bash
# a comment with train.py
LEN=$((1024 * 8))
export MODEL="Qwen/Qwen3-8B"
ARGS=(
   --hf-checkpoint ${MODEL}  # the weights
   --max-tokens-per-gpu $LEN
)
MORE=${UNSET:-4}
ray job submit -- python3 train.py "${ARGS[@]}" \\
   --n-samples-per-prompt $MORE --colocate
"""
    command = shell.find(text, "here", {"train.py": "slime"})
    assert command.before[-1] == "python3"
    found, others = shell.flags_of(command.after)
    assert not others
    numbers = {"--max-tokens-per-gpu": "8192", "--n-samples-per-prompt": "4"}
    assert found == {"--hf-checkpoint": "Qwen/Qwen3-8B", **numbers, "--colocate": None}


SCRIPT = """NNODES=${NNODES:-2}
LONG=$((1024 * 2))
MOST=$(((LONG + 1024 * 8) * NNODES))
trl sft --eos_token '<|im_end|>' --max_length $MOST %s
"""


@pytest.mark.parametrize("end", ["", "2>&1 | tee log.txt", "> log.txt", "&& echo done", "&"])
def test_a_variable_has_its_old_value_in_it_and_a_pipe_ends_a_command(end):
    found, _ = shell.flags_of(shell.find(SCRIPT % end, "here", {"trl sft": "trl"}).after)
    assert found == {"--eos_token": "<|im_end|>", "--max_length": "20480"}


def test_how_many_machines_a_variable_of_slurm_says_is_asked_for():
    text = "srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 -m trl.scripts.sft --model_name_or_path x"
    assert read_config(text).launch.gpus == 0
    assert read_config(text, Launcher(devices=32)).row().devices == 32


SHARDED = "accelerate launch --num_processes 8 --use_fsdp --fsdp_activation_checkpointing true"


@pytest.mark.parametrize("text", [
    f"{SHARDED} -m trl.scripts.sft --model_name_or_path x --gradient_checkpointing false",
    "trl sft --model_name_or_path x --activation_checkpointing true --gradient_checkpointing false",
])  # fmt: skip
def test_layers_are_computed_again_by_fsdp_or_by_the_newer_name(text):
    assert read_config(text, Launcher(devices=8)).row().recipe.value("recompute") == "full"


def test_a_newer_name_is_edited_where_it_stands():
    config = read_config(f"{TRL} --activation_checkpointing true", Launcher(devices=8))
    row = config.row()
    changed = edit.differences(config, row, replace(row, recipe=row.recipe.by(recompute="none")))
    assert changed == {"--activation_checkpointing": False}


def test_what_a_merge_brings_is_said_anew(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("base: &base {max_length: 900, bf16: true}\n<<: *base\nmodel_name_or_path: x  # theirs\n")
    text = edit.edit(read_config(path, Launcher(devices=8)), {"max_length": 800, "model_name_or_path": "y"})
    assert text == path.read_text().replace("x  # theirs", "y  # theirs") + "max_length: 800\n"


def test_machines_of_the_environment_are_counted_beside_their_gpus():
    assert read_config("NPROC_PER_NODE=4 NNODES=2 llamafactory-cli train model_name_or_path=x").launch.gpus == 8


def test_an_older_flag_of_a_kernel_goes_with_a_new_one(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("base_model: x\nbf16: true\nflash_attention: true\nmicro_batch_size: 2\n")
    config = read_config(path, Launcher(devices=8))
    row = config.row()
    changed = edit.differences(config, row, replace(row, attention="fa3", recipe=row.recipe.by(attention="fa3")))
    path.write_text(edit.edit(config, changed))
    assert "flash_attention:" not in path.read_text()
    assert read_config(path, Launcher(devices=8)).row().attention == "fa3"


def test_a_subcommand_takes_the_place_of_another():
    text = "torchrun --nproc-per-node 8 -m torchtitan.train --hf_assets_path x activation-checkpoint:full"
    config = read_config(text)
    row = config.row()
    changed = edit.differences(config, row, replace(row, recipe=row.recipe.by(recompute="none")))
    assert edit.edit(config, changed) == text.replace(":full", ":none")


def test_only_the_command_of_accelerate_takes_its_flags():
    config = read_config(f"{TRL} --use_fsdp")
    assert edit.is_launched(config)
    assert not config.row().whole
    assert not config.unknown()
    assert not edit.is_launched(read_config("torchrun --nproc_per_node 8 -m trl.scripts.sft --model_name_or_path x"))
    assert edit.is_launched(read_config(f"{SHARDED} -m trl.scripts.sft --model_name_or_path x"))


REFUSED = {
    "no file and no command": "nothing.yaml",
    "no trainer": "python serve.py --port 1",
    "no program": "ls -l /tmp",
    "GPUs that differ": "torchrun --nproc_per_node 4 -m verl.trainer.sft_trainer data.train_batch_size=8",
    "an odd batch": "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.ppo_mini_batch_size=3",
    "no microbatch": "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=x",
    "Megatron": "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=megatron",
    "tensor parallelism": "python3 train.py --hf-checkpoint x --rollout-batch-size 8 --tensor-model-parallel-size 2",
    "no number": "trl sft --model_name_or_path x --per_device_train_batch_size many",
    "axolotl's other name of accumulation": "axolotl train base_model=x micro_batch_size=2 batch_size=64",
    "quotes": "trl sft --model_name_or_path 'x",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_with_a_way_out(text):
    with pytest.raises(InputError) as error:
        read_config(text, Launcher(devices=8)).row()
    assert error.value.fix
    assert "\n" not in str(error.value)


TRL = "trl sft --model_name_or_path x --num_processes 8"
VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=x"
NOTES = {  # settings that do nothing, or that fight each other
    f"{TRL} --packing --max_length 900": "without flash attention",
    f"{TRL} --config nowhere.yaml": "nowhere.yaml is not here",
    f"{TRL} --fsdp full_shard --fsdp_config here.json": "here.json was not read",
    f"{TRL} --padding_free": "without flash attention",
    f"{TRL} --packing --train_sampling_strategy group_by_length": "does nothing beside packing",
    f"{TRL} --max_steps 10 --num_train_epochs 2": "does nothing beside max_steps",
    f"{TRL} --use_liger_kernel": "in chunks already",
    f"{TRL} --optim adafactor": "priced as AdamW",
    f"{TRL} --attn_implementation paged": "priced as sdpa",
    "accelerate launch --num_processes 8 train.py --model_name_or_path x --max_steps 9": "bf16 is off",
    f"{VERL} actor_rollout_ref.actor.use_dynamic_bsz=true actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4":
        "does nothing beside use_dynamic_bsz",
    "python3 train.py --hf-checkpoint x --rollout-batch-size 64 --use-dynamic-batch-size --micro-batch-size 4 "
    "--max-tokens-per-gpu 900": "does nothing beside",
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), NOTES.items())
def test_settings_that_fight_or_do_nothing_are_told(text, words):
    config = read_config(text, Launcher(devices=8))
    config.row()
    assert any(words in note for note in config.values.notes)


ENDS = {
    "FSDP's recompute and the trainer's": f"{SHARDED} -m trl.scripts.sft --model_name_or_path x",
    "both precisions": f"{TRL} --bf16 --fp16",
    "an odd batch": f"{VERL} actor_rollout_ref.actor.ppo_mini_batch_size=3 data.train_batch_size=3",
    "rows that ranks do not divide": "torchrun -m torchtitan.train --training.global_batch_size 9",
    "packs and dynamic batches": "uv run examples/run_sft.py policy.model_name=x policy.sequence_packing.enabled=true "
    "policy.dynamic_batching.enabled=true",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_what_a_trainer_would_end_with_is_told_as_that(text):
    with pytest.raises(RunEnds):
        read_config(text, Launcher(devices=8)).row()
