"""Loops whose gradients follow the packing are told from those whose do not."""

import re

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


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_what_is_right_passes_and_what_is_wrong_fails(typed, name):
    code, printed, told = typed((RIGHT | WRONG)[name])
    assert (code, told) == (int(name in WRONG), "")
    first, second, *_ = printed.splitlines()
    assert [int(re.search(r"(\d+) microbatches", line)[1]) for line in (first, second)] == [3, 8]
    assert float(first.split()[-1]) > 0.1  # the norm is not clipped


DEALT = """
class Share:
    token_weight, weights = 0.1, (1.0,) * 9


def dealt():
    yield Share, [[sample] for sample in SAMPLES[:4][dist.get_rank() :: 2]]


odc = OnDemand(model, average=False)
"""


BY_HAND = ("in batches.over(loader):", "in dealt():"), ("odc = OnDemand(model, average=False)\n", DEALT)
ANEW = ("torch.manual_seed(0)", "torch.manual_seed(torch.seed())")


@pytest.mark.parametrize("replaced", [BY_HAND, (ANEW,)], ids=["cuts itself", "other weights in each run"])
def test_where_nothing_is_compared_it_is_refused(typed, replaced):
    code, printed, told = typed({}, *replaced)
    assert (code, printed, told.count("\n")) == (2, "", 1)


def ended(rank, path):  # noqa: ARG001
    with pytest.raises(InputError):
        packings.first_step([str(path)], otherwise=False)


def test_what_cannot_be_run_is_refused_in_a_line(pools, tmp_path, capsys, monkeypatch):
    (tmp_path / "nothing.py").write_text("print()", encoding="utf-8")  # has no step
    pools(1).run(ended, tmp_path / "nothing.py")
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "1", "LOCAL_RANK": "0"}
    for words, environment in (
        (["--script", "nowhere.py"], {}),
        (["a.jsonl", "--sync", "on-demand"], {}),
        (["--script", __file__], torchrun),
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert main(["verify", "--packings", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
