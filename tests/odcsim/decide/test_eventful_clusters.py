"""Who asks about a cluster that shares links or draws is answered by discrete events, with no word of theirs."""

import json

import pytest

import odcsim
from odcsim.cli import main

CLUSTERS = {
    "shared": "devices_per_node = 2\nnics_per_node = 1\n",
    "jitter": "jitter = 0.05\n",
    "swing": "swing = 0.2\nspell_seconds = 0.5\n",
}
LENGTHS = "lognormal:median=700,sigma=0.9,max=4096,samples=200"
SMALL = {"minibatch": 2, "devices": 4, "max_tokens": 8192}


@pytest.fixture(params=CLUSTERS)
def cluster(request, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTERS[request.param])
    return str(path)


def flags(cluster, **more):
    """The words of a question, by its flags."""
    named = {"model": "tiny", "gpu": "a100", "cluster": cluster} | more
    return [LENGTHS, *(word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value)))]


def told(capsys, argv):
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rows(cluster, **more):
    setting = odcsim.ask(LENGTHS, "tiny", gpu="a100", cluster=cluster, minibatches=3, **SMALL, **more)
    return [row.makespan_seconds for row in odcsim.compare(setting).rows]


def test_comparing_says_what_discrete_events_say(cluster, tmp_path):
    (tmp_path / "own-cards.toml").write_text("devices_per_node = 2\nnics_per_node = 2\n")
    assert rows(cluster) != rows(str(tmp_path / "own-cards.toml"))


def test_every_command_that_predicts_answers(cluster, capsys):
    grid = {"trace": LENGTHS, "model": "tiny", "gpu": "a100", "cluster": cluster, "minibatches": 3}
    assert [row["makespan_seconds"] for row in odcsim.sweep(grid | SMALL)] == pytest.approx(rows(cluster))
    assert told(capsys, ["break-even", *flags(cluster, **SMALL)])["regrets"]
    rollouts = {"devices": 4, "max_tokens": 8192, "prompts": 4, "rollouts": 2, "steps": 2}
    assert told(capsys, ["rl", *flags(cluster, **rollouts)])["rows"]
    assert told(capsys, ["advise", *flags(cluster, devices=4, global_batch=8)])
