"""Trainers that run by printed settings make the steps that were priced: these samples in these microbatches."""

import json
from dataclasses import replace

import numpy as np
import pytest
from recorded import run

from odcsim.cli import main
from odcsim.decide import stock
from odcsim.decide.asking import ask
from odcsim.decide.setting import plan
from odcsim.decide.whole_run import steps

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
DEVICES, SAMPLES = 2, 230
LENGTHS = np.minimum(np.random.default_rng(5).lognormal(3, 0.8, SAMPLES).astype(int) + 3, 120).tolist()
ASKED = {"packed": (130, 28), "padded": (256, 16)}  # max_tokens and global_batch: several microbatches on each device
WAYS = [(trainer, rule, sync) for trainer, rule in (("trl", "packed"), ("trl", "padded"), ("accelerate", "padded"))
        for sync in ("deferred", "collective")]  # fmt: skip


@pytest.fixture
def printed(tmp_path, capsys):
    """What `flags` prints of a comparison's row, both by commands."""
    path = tmp_path / "lengths.csv"
    path.write_text("\n".join(["length", *map(str, LENGTHS)]) + "\n")

    def printed(trainer, rule, sync):
        limit, batch = ASKED[rule]
        asked = f"--model nano --gpu h100 --devices {DEVICES} --global-batch {batch} --max-tokens {limit} --in-order"
        more = f"--trainer {trainer} --epochs 1 --minibatches 4 --json"
        assert main(["compare", str(path), *asked.split(), *more.split()]) == 0
        (tmp_path / "rows.json").write_text(told := capsys.readouterr().out)
        rows = [(row["balancer"], row["sync"]) for row in json.loads(told)["rows"]]
        number = str(1 + rows.index((rule, sync)))
        assert main(["flags", trainer, str(tmp_path / "rows.json"), "--row", number]) == 0
        return capsys.readouterr().out

    return printed


def priced(trainer, rule, sync):
    """The plan of an epoch's full steps; which sample of the dataset each number in it stands for; and all steps."""
    asked = dict(zip(("max_tokens", "global_batch"), ASKED[rule], strict=True))
    setting = ask(LENGTHS, "nano", gpu="h100", devices=DEVICES, in_order=True, trainer=trainer, **asked)
    ways = {way.pair: way for way in stock.choose(setting)}
    own = ways[rule, sync]
    batch, trace = own.setting.minibatch * DEVICES, own.setting.trace
    whole = replace(own.setting, minibatches=trace.bundles.size // batch)
    rows = own.rule.rows(LENGTHS, own.setting.limit) if own.rule.rows else [[i] for i in range(SAMPLES)]
    return plan(whole, rule).schedules, [i for row in rows for i in row], steps(trace, 1, batch, trainer)


def planned(schedules, ids, rank):
    """Of every microbatch: its step, samples, their tokens, and those with padding."""
    for step, schedule in enumerate(schedules):
        for held in schedule.devices[rank]:
            samples = tuple(ids[schedule.samples[i]] for i in held)
            yield step, samples, sum(LENGTHS[i] for i in samples), schedule.tokens(held)


@pytest.mark.parametrize(("trainer", "rule", "sync"), WAYS, ids=["-".join(way) for way in WAYS])
def test_every_step_is_as_priced(pools, tmp_path, printed, trainer, rule, sync):
    schedules, ids, count = priced(trainer, rule, sync)
    found = pools(2).run(run, trainer, printed(trainer, rule, sync), LENGTHS, tmp_path, timeout=300.0)
    full = len(schedules)
    for rank, (made, seen) in enumerate(found):
        assert made == count
        held = [(one.step, one.samples, one.tokens, one.padded) for one in seen if one.step < full]
        assert held == list(planned(schedules, ids, rank))
        each = [[one.left for one in seen if one.step == step] for step in range(full)]
        assert {len(lefts) for lefts in each} != {1}
        assert all(lefts == [sync == "collective"] * (len(lefts) - 1) + [True] for lefts in each)
    _check_ending(found, full, count, set(ids))


def _check_ending(found, full, count, every):
    """The last step of an epoch has what is left over, and some again, so that ranks have as many microbatches."""
    assert count == full + 1
    first, last = [], []
    for _, seen in found:
        for one in seen:
            (first if one.step < full else last).extend(one.samples)
    assert len(first) == len(set(first))
    assert set(last) >= every - set(first) > set()
    assert len({sum(one.step >= full for one in seen) for _, seen in found}) == 1
