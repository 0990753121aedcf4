"""Settings for other trainers: as many tokens, samples and devices as the row has, and a word on what is not said."""

import io
import json
import sys

import pytest

from odcsim.catalog import gpu
from odcsim.cli import main
from odcsim.neighbours import TRAINERS
from odcsim.neighbours.neighbour import ChosenRow
from odcsim.neighbours.written import lines

ROW = ChosenRow("collective", "lb-micro", 16, 8, 4, 32768, 2.6)
OFFER = {"gpu": "h100", "devices": 16, "sync": "on-demand", "balancer": "lb-mini", "max_tokens": 32768, "minibatch": 4,
         "recompute": False, "selective": "no", "sharding": "hybrid", "microbatches": 2.6, "lora": 0}  # fmt: skip
ADVICE = {"schema": 1, "inputs": {"model": "m"}, "rows": [OFFER, OFFER | {"devices": 8, "sharding": "full"}]}
COMPARED = {"devices": 8, "devices_per_node": 8, "minibatch": 4, "max_tokens": 1000, "gpu": "h100", "recompute": True}
TIMED = {
    "balancer": "lb-micro",
    "memory_fits": True,
    "minibatches": 10,
    "tokens_per_second": 24000.0,
    "sharding": "full",
}


def compared(*rows):
    names = ("sync", "makespan_seconds")
    return {"schema": 1, "inputs": COMPARED, "rows": [TIMED | dict(zip(names, r, strict=False)) | r[2] for r in rows]}


@pytest.fixture
def run(tmp_path, capsys):
    def run(trainer, content, *more):
        (tmp_path / "a.json").write_text(content if isinstance(content, str) else json.dumps(content))
        code = main(["flags", trainer, str(tmp_path / "a.json"), *more])
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_trainer_is_told_the_limit_and_where_its_names_are_from(run, trainer):
    code, told = run(trainer, ADVICE)
    assert code == 0
    assert "32768" in told.out
    assert TRAINERS[trainer].source in told.out
    assert told.out.startswith("# lb-mini + on-demand, 32,768 tokens a microbatch, 64 samples a step\n")


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=lambda t: t.name)
@pytest.mark.parametrize("sync", ["collective", "deferred", "on-demand"])
def test_a_sync_that_the_trainer_does_not_run_is_told(trainer, sync):
    from dataclasses import replace

    text = "\n".join(lines(trainer, replace(ROW, way=sync)))
    assert (f"does not run {sync} sync" in text) == (sync not in trainer.ways)
    assert ("odc_engine" in text) == (sync == "on-demand" and bool(trainer.engine))


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=lambda t: t.name)
@pytest.mark.parametrize(
    "choice",
    [{"on_host": True}, {"rank": 16}, {"moments": "8bit"}, {"hybrid": True}, {"recompute": "operators"}],
)
def test_every_choice_is_said_or_said_not_to_be(trainer, choice):
    from dataclasses import replace

    plain, chosen = (set(lines(trainer, replace(ROW, **more))) for more in ({}, choice))
    assert chosen - plain


def test_an_offer_of_several_nodes(run):
    out = run("verl", ADVICE, "--rollouts", "8")[1].out.splitlines()
    nodes = 16 // gpu("h100").devices_per_node
    assert f"trainer.nnodes={nodes}" in out
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=8" in out
    assert f"actor_rollout_ref.actor.fsdp_config.fsdp_size={16 // nodes}" in out
    assert "actor_rollout_ref.model.enable_gradient_checkpointing=false" in out
    assert "trainer.nnodes=1" in run("verl", ADVICE, "--row", "2")[1].out


def test_of_a_comparison_the_fastest_that_fits_and_that_the_trainer_runs(run):
    rows = (
        ("collective", 10.0, {}),
        ("deferred", 9.0, {}),
        ("on-demand", 8.0, {}),
        ("on-demand", 7.0, {"memory_fits": False, "balancer": "pool"}),
    )
    assert "+ collective," in run("verl", compared(*rows))[1].out
    assert "+ deferred," in run("axolotl", compared(*rows))[1].out
    assert "# lb-micro + on-demand," in run("trl", compared(*rows))[1].out
    code, told = run("verl", compared(*rows[1:]))
    assert code == 2
    assert "choose one with --row" in told.err
    assert "+ on-demand," in run("verl", compared(*rows), "--row", "3")[1].out


def test_packs_are_as_many_as_tokens_fill(run):
    """24,000 tokens a second in 10 s are 10 minibatches of 8 devices, 3,000 tokens each: 3 packs of 1,000."""
    assert "gradient_accumulation_steps: 3" in run("axolotl", compared(("deferred", 10.0, {})))[1].out


def test_json_by_a_pipe(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(ADVICE)))
    assert main(["flags", "slime", "-"]) == 0
    assert "--max-tokens-per-gpu 32768" in capsys.readouterr().out


BAD = [
    "{",
    "[]",
    "null",
    "{}",
    '{"inputs": {}, "rows": []}',
    '{"inputs": {}, "rows": [5]}',
    '{"inputs": 3, "rows": [{}]}',
    '{"inputs": {}, "rows": [{"makespan_seconds": "a"}]}',
    '{"inputs": {}, "rows": [{"sync": 5}]}',
]


@pytest.mark.parametrize("content", BAD)
def test_what_holds_no_rows_is_one_line(run, content):
    code, told = run("verl", content)
    assert code == 2
    assert len(told.err.splitlines()) == 1


def test_a_row_that_is_not_there(run):
    code, told = run("verl", ADVICE, "--row", "3")
    assert code == 2
    assert "--row 3 of 2; give 1 to 2" in told.err
