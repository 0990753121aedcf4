"""Who asks about a cluster that shares links or draws is answered by discrete events, with no word of theirs."""

import pytest

import odcsim

LENGTHS = "lognormal:median=700,sigma=0.9,max=4096,samples=200"
SMALL = {"model": "tiny", "gpu": "a100", "devices": 4, "max_tokens": 8192}
CLUSTERS = {
    "shared": "devices_per_node = 2\nnics_per_node = 1\n",
    "jitter": "devices_per_node = 2\njitter = 0.05\n",
    "swing": "devices_per_node = 2\nswing = 0.2\nspell_seconds = 0.5\n",
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_command_that_predicts_answers(name, tmp_path):
    (tmp_path / "plain.toml").write_text("devices_per_node = 2\nnics_per_node = 2\n")
    (tmp_path / "cluster.toml").write_text(CLUSTERS[name])
    asked = {"trace": LENGTHS, **SMALL, "minibatch": 2, "minibatches": 3}
    plain, found = ([row.makespan_seconds for row in odcsim.compare(odcsim.ask(**asked, cluster=str(path))).rows]
                    for path in (tmp_path / "plain.toml", tmp_path / "cluster.toml"))  # fmt: skip
    assert plain != found
    cluster = str(tmp_path / "cluster.toml")
    assert [row["makespan_seconds"] for row in odcsim.sweep(asked | {"cluster": cluster})] == pytest.approx(found)
    rl = odcsim.rl(LENGTHS, **SMALL, cluster=cluster, prompts=4, rollouts=2, steps=2)
    assert all(row.training > 0 for row in rl.rows)
    if name == "shared":
        assert odcsim.break_even(LENGTHS, **SMALL, cluster=cluster, minibatch=2).regrets
