"""Loops whose gradients follow the packing are told from those whose do not."""

import pytest

from odc_engine.cli import main
from odc_engine.runs import packings
from odcsim.errors import InputError

LOOP = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader

from odc_engine import BalancedBatches, OnDemand

SAMPLES = [torch.arange(3 * n) * (n + 2) % 17 for n in (1, 5, 2, 1, 7, 3, 1, 1, 2, 4, 1, 2)]


class Model(nn.Sequential):
    pass


def summed(model, batch):
    inputs, targets = (torch.cat([sample[part] for sample in batch]) for part in (slice(0, -1), slice(1, None)))
    return F.cross_entropy(model(inputs), targets, reduction="sum"), len(targets)


torch.manual_seed(0)
model = Model(nn.Embedding(17, 8), nn.Linear(8, 16), {layer}, nn.Linear(16, 17))
for layer in (model[0], model[1], model[3], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
batches = BalancedBatches(
    [len(sample) for sample in SAMPLES], devices=dist.get_world_size(), rank=dist.get_rank(), minibatch=4,
    max_tokens=30, averaged={averaged}, sync="on-demand", balancer="lb-mini",
)
loader = DataLoader(SAMPLES, batch_sampler=batches, collate_fn=list)
odc = OnDemand(model, average={average})
{attach}
for share, microbatches in batches.over(loader):
    for weight, batch in zip(share.weights, microbatches):
        if batch:
            loss, count = summed(model, batch)
            ({loss}).backward()
    {settle}
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    {step}
    {publish}
"""
USUAL = {
    "average": "False",
    "averaged": "False",
    "layer": "nn.ReLU()",
    "attach": "",
    "loss": "share.token_weight * loss",
    "settle": "odc.settle()",
    "step": "optimizer.step()",
    "publish": "odc.publish()",
}
RIGHT = {
    "sums": {},
    "means, weighed": {"loss": "weight * loss / count"},
    "means over processes": {"average": "True", "averaged": "True"},
    "attached": {"attach": "odc.attach(optimizer)", "settle": "", "publish": ""},
}
WRONG = {
    "means": {"loss": "loss / count"},
    "means, as many as there are": {"loss": "loss / count / len(share.microbatches)"},
    "a penalty in each microbatch": {"loss": "share.token_weight * loss + model(batch[0]).square().mean()"},
    "batch norm": {"layer": "nn.BatchNorm1d(16)"},
}


def ran(rank, path, otherwise):  # noqa: ARG001
    return packings.first_step([str(path)], otherwise)


@pytest.fixture
def typed(pools, tmp_path, monkeypatch, capsys):
    """What the command says of a loop, and its exit code; its runs are on live devices."""

    def call(changed, *replaced):
        text = LOOP.format(**USUAL | changed)
        for usual, new in replaced:
            assert usual in text
            text = text.replace(usual, new)
        (tmp_path / "loop.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(packings, "_run", lambda script, otherwise: pools(2).run(ran, script[0], otherwise)[0])
        return main(["verify", "--packings", "--script", str(tmp_path / "loop.py")]), *capsys.readouterr()

    return call


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(typed, name):
    code, printed, told = typed(RIGHT[name])
    assert (code, told) == (0, "")
    first, second, last = printed.splitlines()
    assert first.startswith("loop.py: 3 microbatches, norm of the gradient ")
    assert float(first.split()[-1]) > 0.1  # and is not clipped
    assert second.startswith("loop.py: 8 microbatches, norm ")
    assert last == "loop.py: gradients are equal within 1e-05"


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_fails_with_the_line_to_write(typed, name):
    code, printed, told = typed(WRONG[name])
    assert (code, told) == (1, "")
    assert "gradients depend on how the minibatch is cut" in printed
    assert "share.weights[i]" in printed


DEALT = """
class Share:
    token_weight, weights = 0.1, (1.0,) * 9


def dealt():
    yield Share, [[sample] for sample in SAMPLES[:4][dist.get_rank() :: 2]]


odc = OnDemand(model, average=False)
"""


def test_a_loop_that_cuts_its_minibatch_itself_is_told_that_nothing_was_compared(typed):
    by_hand = ("in batches.over(loader):", "in dealt():"), ("odc = OnDemand(model, average=False)\n", DEALT)
    code, printed, told = typed({}, *by_hand)
    assert (code, printed, told.count("\n")) == (2, "", 1)
    assert "loop.py ran 4 microbatches both times; have odc_engine.BalancedBatches" in told


def test_weights_that_are_drawn_anew_in_each_run_are_told(typed):
    code, printed, told = typed({}, ("torch.manual_seed(0)", "torch.manual_seed(torch.seed())"))
    assert (code, printed) == (2, "")
    assert "loop.py began with other weights when it ran again; seed what draws them" in told


def ended(rank, path):  # noqa: ARG001
    with pytest.raises(InputError) as told:
        packings.first_step([str(path)], otherwise=False)
    return str(told.value)


def test_a_script_without_a_step_says_so(pools, tmp_path):
    (tmp_path / "nothing.py").write_text("print()", encoding="utf-8")
    assert pools(1).run(ended, tmp_path / "nothing.py")[0].endswith("train at least one minibatch in it")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--packings", "--script", "nowhere.py"], "no script 'nowhere.py'; odc_engine verify --packings --script"),
        (["--packings", "a.jsonl", "--sync", "on-demand"], "--packings without a script; odc_engine verify --packings"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(capsys, words, told):
    assert main(["verify", *words]) == 2
    assert told in capsys.readouterr().err


def test_under_torchrun_it_is_refused(capsys, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert main(["verify", "--packings", "--script", __file__]) == 2
    assert "--packings under torchrun: it starts processes of its own; odc" in capsys.readouterr().err
