"""The programs of the pages on trainers and plans: loops on real devices, and hooks in stand-ins of trainers.

A stand-in is what the page says of its trainer: which hook is called with what, what the loss is divided by, and
whether gradients are summed over devices or averaged. Devices take turns here, so a stand-in adds up gradients itself.
"""

import re
from unittest import mock

import numpy as np
import programs
import pytest
import torch
from jobs import torchrun
from scripts import ROOT
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from odc_engine import BalancedBatches
from odc_engine.runs import packings
from odcsim.balance import LearnedCosts

TEXT = (ROOT / "docs/own-loop.md").read_text(encoding="utf-8")
PAGES = {"loop.py": "own-loop.md", "balanced_titan.py": "torchtitan.md"}
PAGES |= {"verl_plan.py": "verl.md", "exchange.py": "plans.md"}
SHOWN = re.search(r"^torchrun [^\n]* --on-demand\n```\n.*?```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[1]
IGNORED = -100
LENGTHS = np.random.default_rng(3).integers(2, 40, 24).tolist()
SEEDED = [torch.Generator().manual_seed(n + 50 * i) for i, n in enumerate(LENGTHS)]
SAMPLES = [torch.randint(1, 11, (n,), generator=of) for n, of in zip(LENGTHS, SEEDED, strict=True)]


def program(name):
    return programs.program(PAGES[name], name)


def run(name, **names):
    """What a program of the page defines."""
    found = {"__name__": name, "torch": torch, "DataLoader": DataLoader, "BalancedBatches": BalancedBatches} | names
    exec(compile(program(name), name, "exec"), found)
    return found


def looped(rank, on_demand):  # noqa: ARG001
    return run("loop.py")["train"](on_demand)


@pytest.mark.parametrize("on_demand", [False, True])
def test_the_loop_of_the_page_loses_what_the_page_says(pools, on_demand):
    expected = [float(loss) for loss in SHOWN.split()]
    assert len(expected) == 12
    for losses in pools(2).run(looped, on_demand):
        assert losses == pytest.approx(expected, abs=2e-4)


def cut(rank, path, otherwise):  # noqa: ARG001
    with mock.patch("torch.distributed.init_process_group"):
        return packings.first_step([path, "--on-demand"], otherwise)


def test_its_gradients_are_equal_however_they_are_cut(pools, tmp_path, capsys):
    (tmp_path / "loop.py").write_text(program("loop.py"), encoding="utf-8")
    steps = [pools(2).run(cut, str(tmp_path / "loop.py"), otherwise)[0] for otherwise in (False, True)]
    assert packings.told("loop.py", *steps) == 0
    shown = re.search(r"--packings --script loop.py --on-demand\n```\n\n```text\n(.*?)^```$", TEXT, re.M | re.S)[1]
    figure = re.compile(r"furthest .*|(?<=norm 1\.514)\d+")
    assert figure.sub("", capsys.readouterr().out) == figure.sub("", shown)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--on-demand"]])
def test_so_it_does_under_torchrun(tmp_path, options):
    (tmp_path / "loop.py").write_text(program("loop.py"), encoding="utf-8")
    done = torchrun(tmp_path, "--nproc-per-node", "2", "loop.py", *options)
    assert done.returncode == 0, done.stderr
    assert [float(x) for x in done.stdout.split()] == pytest.approx([float(x) for x in SHOWN.split()], abs=2e-4)


def fresh():
    torch.manual_seed(4)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 11)).double()


def summed(model, samples):
    """Each token from the one before it, in the same sample."""
    inputs, targets = (torch.cat([sample[part] for sample in samples]) for part in (slice(0, -1), slice(1, None)))
    return functional.cross_entropy(model(inputs), targets, reduction="sum")


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def whole(ids):
    """Of one process that holds all samples of a minibatch: the mean over their tokens."""
    model = fresh()
    (summed(model, [SAMPLES[i] for i in ids]) / sum(LENGTHS[i] - 1 for i in ids)).backward()
    return gradients(model)


def samplers(epoch=0):
    """Of 23 samples the last minibatch has one, and one of its devices none."""
    asked = {"devices": 2, "minibatch": 11, "max_tokens": 60, "averaged": False}
    found = [BalancedBatches(LENGTHS[:23], rank=rank, **asked) for rank in range(2)]
    for sampler in found:
        sampler.set_epoch(epoch)
    return found


def counted(*shares):
    return sum(LENGTHS[i] - 1 for share in shares for part in share.microbatches for i in part)


class Titan:
    """torchtitan 0.3.0: `train_step` draws its microbatches first, counts tokens, and divides sums by everybody's."""

    def __init__(self, config):
        self.model, self.gradient_accumulation_steps, self.total = fresh(), config["steps"], None

    def train_step(self, data_iterator):
        drawn = [next(data_iterator) for _ in range(self.gradient_accumulation_steps)]
        own = sum(int((labels != IGNORED).sum()) for _, labels in drawn)
        for inputs, labels in drawn:
            found = functional.cross_entropy(self.model(inputs["input"]), labels, ignore_index=IGNORED, reduction="sum")
            (found / self.total(own)).backward()


def titanic(samples):
    """What a collate function for it returns; for an empty microbatch, labels that are all ignored."""
    if not samples:
        return {"input": torch.zeros(1, dtype=torch.int64)}, torch.tensor([IGNORED])
    return {"input": torch.cat([s[:-1] for s in samples])}, torch.cat([s[1:] for s in samples])


def test_torchtitan_trains_minibatch_after_minibatch():
    both = samplers(), samplers(epoch=1)
    expected = [shares for made in both for shares in zip(*(each.minibatches() for each in made), strict=True)]
    devices = []
    for batches in samplers():
        loader = DataLoader(SAMPLES, batch_sampler=batches, collate_fn=titanic)
        devices.append(run("balanced_titan.py", Trainer=Titan)["BalancedTrainer"]({"steps": 77}, batches, loader))
    assert any(() in share.microbatches for shares in expected for share in shares)
    assert len({len(shares[0].microbatches) for shares in expected}) > 1
    for shares in expected:
        total = counted(*shares)
        for share, trainer in zip(shares, devices, strict=True):
            trainer.total = lambda own, share=share, total=total: total if own == counted(share) else 1 / 0
            trainer.model.zero_grad()
            trainer.train_step(None)
        ids = [i for share in shares for part in share.microbatches for i in part]
        torch.testing.assert_close(sum(gradients(t.model) for t in devices), whole(ids))


@pytest.mark.parametrize("minibatch", [3, 6, 12])
def test_verl_workers_split_what_the_controller_planned(minibatch):
    """The batch is reordered, cut into a part for each worker, that into minibatches, and those by the column."""
    found = run("verl_plan.py")
    order, numbers = found["order_and_microbatches"](LENGTHS, 2, minibatch, 60)
    assert sorted(order) == list(range(24))
    for start in range(0, 12, minibatch):
        held = [order[12 * worker :][:12][start : start + minibatch] for worker in range(2)]
        split = [[[ids[i] for i in part] for part in found["split"]([numbers[i] for i in ids])] for ids in held]
        assert len({len(parts) for parts in split}) == 1
        assert all(part and sum(LENGTHS[i] for i in part) <= 60 for parts in split for part in parts)
        together = [i for ids in held for i in ids]
        assert sorted(together) == list(range(2 * start, 2 * (start + minibatch)))
        model, tokens = fresh(), sum(LENGTHS[i] - 1 for i in together)
        for parts in split:
            for part in parts:  # token-mean: the sum over the tokens of all devices, times the devices; then averaged
                (summed(model, [SAMPLES[i] for i in part]) / tokens * 2 / 2).backward()
        torch.testing.assert_close(gradients(model), whole(together))


def test_measurements_are_exchanged_by_what_every_device_ran():
    costs = [LearnedCosts(2), LearnedCosts(2)]
    mine = [[([100, 200], 1.0), ([5000], 20.0)], [([700], 3.0)]]

    class Gathered:
        get_world_size = staticmethod(lambda: 2)

        @staticmethod
        def all_gather_object(found, _):
            found[:] = mine

    learn = run("exchange.py", dist=Gathered)["learn_together"]
    for device in range(2):
        learn(costs[device], mine[device])
    assert costs[0].coefficients == costs[1].coefficients != LearnedCosts(2).coefficients
