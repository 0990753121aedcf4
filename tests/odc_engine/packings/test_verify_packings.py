"""Loops whose gradients follow the packing are told from those whose do not."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odc_engine.cli import main
from odc_engine.packings import command
from odc_engine.packings.first_step import first_step
from odc_engine.packings.packing import AS_IT_IS, OTHERS, Packing
from odc_engine.packings.verdict import verdict
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
    "dropout": {"layer": "nn.Dropout(0.5)"},
    "attached": {"attach": "odc.attach(optimizer)", "settle": "", "publish": ""},
    "a step by hand": {"step": "[p.data.sub_(0.1 * p.grad) for p in model.parameters()]"},
}
WRONG = {
    "means": ({"loss": "loss / count"}, "a loss that is a mean over its own microbatch .*share.weights"),
    "means, by the number of processes": (
        {"loss": "loss / count / dist.get_world_size()"},
        "a mean over its own",
    ),
    "sums, by the number of processes": (
        {"loss": "share.token_weight * loss * dist.get_world_size()"},
        "on 1 process they are 0.5 times as large; leave the number of processes out of the loss",
    ),
    "sums, averaged over processes": (
        {"average": "True"},
        r"on 1 process they are 2 times as large; leave .* the loss, or give OnDemand average=False",
    ),
    "a penalty in each microbatch": ({"loss": "share.token_weight * loss + model(batch[0]).square().mean()"}, "a mean"),
    "batch norm": ({"layer": "nn.BatchNorm1d(16)"}, "2 is a batch norm"),
}


def ran(rank, path, packing, weights=None):  # noqa: ARG001
    return first_step([str(path)], packing, weights)


def judged(pools, folder, changed):
    """The verdict on a loop, each way run on live devices."""
    (folder / "loop.py").write_text(LOOP.format(**USUAL | changed), encoding="utf-8")
    steps = {cut: pools(cut.processes).run(ran, folder / "loop.py", cut)[0] for cut in (AS_IT_IS, *OTHERS)}
    return verdict(steps.pop(AS_IT_IS), steps)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(pools, tmp_path, name):
    found = judged(pools, tmp_path, RIGHT[name])
    assert (found.ok, found.held) == (True, 2), found.lines
    counts = [int(re.search(r"(\d+) microbatches", line)[1]) for line in found.lines[:3]]
    assert counts[1] == 8 > max(counts[0], counts[2])
    assert found.lines[3] == "gradients are equal within 1e-05"


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_fails_with_the_line_to_write(pools, tmp_path, name):
    changed, told = WRONG[name]
    found = judged(pools, tmp_path, changed)
    assert not found.ok
    assert re.search(rf"^gradients depend on how the minibatch is cut: .*{told}", found.lines[-1]), found.lines
    norms = {re.search(r"norm (?:of the gradient )?(\S+?),?( |$)", line)[1] for line in found.lines[:3]}
    assert len(norms) > 1


@pytest.fixture
def typed(pools, tmp_path, monkeypatch, capsys):
    """What the command says of a loop, and its exit code; its runs are on live devices."""

    def run(script, packing, weights=None):
        return pools(packing.processes).run(ran, script[0], packing, weights)[0]

    def call(changed, *replaced):
        text = LOOP.format(**USUAL | changed)
        for usual, new in replaced:
            assert usual in text
            text = text.replace(usual, new)
        (tmp_path / "loop.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(command, "_run", run)
        return main(["verify", "--packings", "--script", str(tmp_path / "loop.py")]), *capsys.readouterr()

    return call


def test_the_exit_code_says_it(typed):
    code, printed, told = typed({})
    assert (code, told, printed.count("\nloop.py: ")) == (0, "", 3)
    code, printed, told = typed(WRONG["means"][0])
    assert (code, told) == (1, "")
    assert "share.weights" in printed


OWN = "for share, microbatches in batches.over(loader):", "for share, microbatches in dealt():"
DEALT = """
class Share:
    token_weight, weights = 0.1, (1.0,) * 9


def dealt():
    yield Share, [[sample] for sample in SAMPLES[:4][{places}]]


odc = OnDemand(model, average=False)
"""


def by_hand(places):
    return OWN, ("odc = OnDemand(model, average=False)\n", DEALT.format(places=places))


def test_a_loop_that_cuts_its_minibatch_itself_is_held_against_one_process(typed):
    """As long as that has the same samples: which, the tokens say that are looked up."""
    every = "dist.get_rank() :: dist.get_world_size()"
    code, printed, told = typed({}, *by_hand(every))
    assert (code, told) == (0, "")
    assert "2 processes, cut otherwise: not checked, since the script cuts its minibatch itself\n" in printed
    assert "1 process: 4 microbatches" in printed
    code, printed, told = typed({"loss": "loss / dist.get_world_size()"}, *by_hand(every))
    assert code == 1
    assert "on 1 process they are 2 times as large; leave the number of processes out of the loss" in printed
    code, printed, told = typed({}, *by_hand("dist.get_rank() :: 2"))
    assert (code, printed, told.count("\n")) == (2, "", 1)
    assert "gave nothing to compare: 1 process: not checked, since its first minibatch has other samples; have" in told


def test_weights_are_those_of_the_first_run_or_it_is_said(typed):
    """A model that is drawn anew in every run, and one that is drawn anew behind the engine's back."""
    anew = "torch.manual_seed(0)", "torch.manual_seed(torch.seed())"
    code, printed, told = typed({}, anew)
    assert (code, told, "are equal within" in printed) == (0, "", True)
    code, printed, told = typed({"attach": "[p.data.normal_() for p in model.parameters()]; odc.publish()"}, anew)
    assert code == 2
    assert "it begins with other weights; seed what draws them" in told


def ended(rank, path):  # noqa: ARG001
    with pytest.raises(InputError) as told:
        first_step([str(path)], AS_IT_IS)
    return str(told.value)


def test_a_script_without_a_step_says_so(pools, tmp_path):
    (tmp_path / "nothing.py").write_text("print()", encoding="utf-8")
    assert pools(1).run(ended, tmp_path / "nothing.py")[0].endswith("train at least one minibatch in it")


@given(st.lists(st.lists(st.integers(0, 99), max_size=5).map(tuple), max_size=6), st.booleans())
def test_cut_again_are_the_same_samples(microbatches, otherwise):
    again = Packing(otherwise=otherwise).again(microbatches)
    assert [i for part in again for i in part] == [i for part in microbatches for i in part]
    if otherwise and sum(map(len, microbatches)) > 1:
        assert again != [part for part in microbatches if part]


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
    assert "--packings under torchrun, whose number of processes is to change; odc" in capsys.readouterr().err
