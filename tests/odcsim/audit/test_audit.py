"""What an audit says: the price is that of the row that was printed, and changes are what their lines then come to."""

import json

import numpy as np
import pytest
from scripts import ROOT

import odcsim
from odcsim.cli import main
from odcsim.decide.audit import audited
from odcsim.decide.priced_step import STEPS
from odcsim.errors import InputError
from odcsim.neighbours import TRAINERS, edit
from odcsim.trace import SFT, Trace

LENGTHS = np.minimum(np.random.default_rng(3).lognormal(6.2, 0.9, 3000).astype(int) + 20, 6000)
TRACE = Trace("these", LENGTHS)
PADDED = """model_name_or_path: Qwen/Qwen3-1.7B
dataset_name: somebody/data  # theirs
max_length: 6000
per_device_train_batch_size: 4
gradient_accumulation_steps: 4
"""
H100 = {"gpu": "h100"}


@pytest.fixture
def padded(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text(PADDED)
    return path


def ask(path, lengths=TRACE, log=(), **words):
    return audited(path, lengths, log, {"devices": 8, **H100, **words})


@pytest.mark.parametrize("trainer", [name for name, one in TRAINERS.items() if SFT in one.entries])
def test_a_step_costs_what_the_row_did_that_was_printed(tmp_path, trainer):
    asked = odcsim.ask(TRACE, "qwen3-1.7b", devices=8, minibatch=8, minibatches=STEPS, trainer=trainer, **H100)
    compared = odcsim.compare(asked)
    own = [row for row in compared.rows if row.made]
    assert own
    for row in own:
        alone = compared.stock[row.pair]
        path = tmp_path / f"run.{TRAINERS[trainer].form if TRAINERS[trainer].form in ('yaml', 'toml') else 'sh'}"
        path.write_text(str(odcsim.flags(trainer, compared, row=row.pair)).replace("/path/to/qwen3-1.7b", "qwen3-1.7b"))
        step = ask(path, devices=None).step
        assert step.row.balancer == row.balancer
        assert step.seconds == pytest.approx(alone.rows[0].makespan_seconds / STEPS, rel=1e-12)
        assert step.need.memory_bytes >= 0.999 * row.memory_bytes  # of the longest that there are


@pytest.mark.parametrize("after", ["python eval.py --model out", "# --max_length 900 was too short"])
def test_a_script_is_changed_in_its_command_alone(tmp_path, after):
    path = tmp_path / "run.sh"
    flags = PADDED.replace("dataset_name: somebody/data  # theirs\n", "").replace(": ", " ").replace("\n", " --")
    command = f"accelerate launch --num_processes 8 --use_fsdp -m trl.scripts.sft --{flags.removesuffix('--')}\n"
    path.write_text(command)
    assert ask(path, devices=None).edited().startswith("accelerate launch")
    path.write_text(f"{command}\n{after}\n")
    audit = ask(path, devices=None)
    assert audit.edited().endswith(f"\n\n{after}\n")
    path.write_text(audit.edited())
    assert ask(path, devices=None).step.seconds == pytest.approx(audit.found[-1].step.seconds)


def test_changes_come_to_what_the_edited_file_is_priced_at(padded, tmp_path):
    audit = ask(padded)
    assert audit.found
    new = tmp_path / "new.yaml"
    new.write_text(audit.edited())
    assert "# theirs" in new.read_text()
    again = ask(new)
    assert again.step.seconds == pytest.approx(audit.found[-1].step.seconds, rel=1e-12)
    assert again.step.per_token < audit.step.per_token
    for before, one in zip([audit.step, *(one.step for one in audit.found)], audit.found, strict=False):
        assert one.times == pytest.approx(before.per_token / one.step.per_token)
        assert one.step.tokens == pytest.approx(audit.step.tokens, rel=0.12)  # the same batch, about
    assert all(one not in audit.found for one in audit.beside)


def test_padding_is_counted_and_no_change_needs_more_than_there_is(padded):
    audit = ask(padded)
    schedule = np.random.default_rng(0).choice(LENGTHS, (20_000, 4))
    assert audit.step.padding == pytest.approx(4 * schedule.max(axis=1).sum() / schedule.sum(), rel=0.05)
    assert audit.step.counts == (4, 4)
    assert all(one.step.need.memory_fits for one in (*audit.found, *audit.beside))


def test_what_runs_out_of_memory_is_told_with_its_sample_and_step(padded):
    padded.write_text(PADDED.replace("1.7B", "8B").replace("batch_size: 4", "batch_size: 16"))
    audit = ask(padded)
    step = audit.step
    assert not audit.runs
    assert step.need.memory_bytes > step.need.memory_limit
    drawn = np.random.default_rng(0).choice(LENGTHS, (2000, 8 * 64)).max(axis=1)
    share = float((drawn > step.over_sample).mean())
    assert step.first_over == pytest.approx(1 / share, rel=0.5)
    assert audit.sentences()[0].startswith("Out of memory in ")
    assert (
        main(["audit", str(padded), "--lengths", "uniform:min=5000,max=6000", "--gpu", "h100", "--devices", "8"]) == 1
    )


@pytest.mark.parametrize("text", ["data.max_length=4000", "data.max_length=9000 data.max_token_len_per_gpu=2000"])
def test_what_would_end_at_a_sample_is_told_so(text):
    command = f"torchrun --nproc_per_node 8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-1.7B {text}"
    audit = ask(command, devices=None)
    assert not audit.runs
    assert audit.step is None
    assert "6,000 tokens" in audit.ends


def logged(path, seconds, tokens, steps=12):
    rows = [{"step": i, "seconds": seconds * (1 + 0.01 * (i % 3)), "tokens": tokens} for i in range(1, steps)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return [str(path)]


def test_a_log_as_expected_is_normal(padded, tmp_path):
    step = ask(padded).step
    normal = ask(padded, log=logged(tmp_path / "a.jsonl", step.seconds, step.tokens)).normal
    assert normal.normal
    assert not normal.explained
    # Of larger steps seconds go with their tokens.
    assert ask(padded, log=logged(tmp_path / "b.jsonl", 1.5 * step.seconds, 1.5 * step.tokens)).normal.normal


INSTEAD = {  # lines of who ran something else, and how its explanation begins
    "attention_ran_eager": ("attn_implementation: eager\n", "attention ran eager"),
    "states_on_the_host": ("deepspeed: ds.json\n", "states of the optimizer lay on the host"),
}


@pytest.mark.parametrize(("lines", "words"), INSTEAD.values(), ids=INSTEAD)
def test_what_ran_instead_is_among_what_explains_a_log(padded, tmp_path, lines, words):
    """At its price to the last digit, since a log of it is what its own configuration lets expect."""
    sharded = {"zero_optimization": {"stage": 3}}
    (tmp_path / "plain.json").write_text(json.dumps(sharded))
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})
    )
    longer = Trace("longer", np.minimum(LENGTHS * 4, 16_000))
    base = PADDED.replace("6000", "16000") + "deepspeed: plain.json\ngradient_checkpointing: true\n"
    base = base.replace("batch_size: 4", "batch_size: 1")
    padded.write_text(base.replace("deepspeed: plain.json\n", "") + lines if "deepspeed" in lines else base + lines)
    ran = ask(padded, lengths=longer).step
    padded.write_text(base)
    expected = ask(padded, lengths=longer).step
    normal = ask(padded, lengths=longer, log=logged(tmp_path / "log.jsonl", ran.seconds / 1.01, ran.tokens)).normal
    if normal.normal:
        assert expected.low <= ran.seconds <= expected.high
        return
    [found] = [one for one in normal.explained if one.words.startswith(words)]
    assert found.seconds == pytest.approx(ran.seconds, rel=0.1)


def test_nothing_is_named_where_nothing_comes_near(padded, tmp_path):
    step = ask(padded).step
    normal = ask(padded, log=logged(tmp_path / "log.jsonl", 200 * step.high, step.tokens)).normal
    assert not normal.normal
    assert not normal.explained
    assert normal.rest == pytest.approx(200 * step.high - step.seconds, rel=0.02)


REFUSED = {
    "lengths": {"lengths": None},
    "a GPU": {"gpu": None},
    "a model": {"model": "nobody/knows"},
    "devices": {"devices": None},
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_what_is_not_said_is_asked_for_in_one_line(padded, words):
    words = dict(words)
    lengths = words.pop("lengths", TRACE)
    with pytest.raises(InputError) as error:
        ask(padded, lengths, **words)
    assert error.value.fix
    assert "\n" not in str(error.value)


def test_lines_are_in_the_syntax_of_the_file(padded):
    audit = ask(padded)
    for lines in audit.changes:
        for line in edit.lines(audit.config, lines):
            assert not line.startswith("--")
    assert json.loads(json.dumps(audit.as_json()))["runs"]
    assert (ROOT / "docs/howto/audit.md").exists()


def test_what_is_read_is_not_written_over(padded):
    with pytest.raises(InputError):
        odcsim.audit(padded, lengths=TRACE, gpu="h100", devices=8, write=padded)
    assert padded.read_text() == PADDED
