"""The library in somebody else's training loop: fsdp.py's five lines, on modules that know nothing of it."""

import re
import textwrap

import nets
import pytest
import torch
import work
from torch.distributed.fsdp import fully_shard
from work import Case

from odc_engine import OnDemand
from odc_engine.fsdp import on_demand as fsdp

COUNTS = (3, 0, 2)
MINIBATCHES = 4


def test_the_documented_loop_trains(pools):
    """The text of the docstring itself is run, and gives what one process gives by the mean over ranks."""
    reference = Case(COUNTS).fresh()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for minibatch in range(MINIBATCHES):
        for rank, count in enumerate(COUNTS):
            for m in range(count):
                (nets.loss(reference, rank, m, minibatch) / len(COUNTS)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in pools(3).run(run_the_docstring):
        assert work.error(found, dict(reference.named_parameters())) <= 1e-4


def run_the_docstring(rank):
    """Told which model to shard."""
    block = re.search(r"\n\n((?:    .*\n|\n)+)", fsdp.__doc__).group(1)
    shard_it = "[fully_shard(layer) for layer in model.layers]; fully_shard(model)"
    made = "; optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    model = Case(COUNTS).fresh()
    names = {
        "model": model,
        "fully_shard": fully_shard,
        "OnDemand": OnDemand,
        "torch": torch,
        "data": range(MINIBATCHES),
        "my_share": lambda minibatch: [(minibatch, m) for m in range(COUNTS[rank])],
        "loss": lambda model, batch: nets.loss(model, rank, batch[1], batch[0]),
    }
    exec(textwrap.dedent(block).replace("fully_shard(...)", shard_it + made), names)
    names["odc"].close()
    return work.whole_parameters(model)


def with_tensors_elsewhere(rank, case, elsewhere):
    """As where `torch.set_default_device("cuda")` stands in a program: what is made without a device is not a
    processor's. The loop makes its own there."""

    def loss(*at):
        with torch.device("cpu"):
            return nets.loss(*at)

    with work.device(case.but(loss=loss)) as (model, comm):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.set_default_device(elsewhere)
        try:
            work.train(case.but(loss=loss), rank, model, comm, optimizer, range(2))
        finally:
            torch.set_default_device(None)
        return work.whole_parameters(model)


ELSEWHERE = {
    "on demand": Case(COUNTS),
    "a parameter is skipped": Case(COUNTS, nets.Dropping, accumulate="slots"),
    "collective": Case((2, 2, 2), nets.Dropping, sync="collective"),
    "far": Case(COUNTS, backend="nvshmem", machines=(1, 2), accumulate="slots"),
}


@pytest.mark.parametrize("case", ELSEWHERE.values(), ids=ELSEWHERE)
def test_where_tensors_usually_are_made_is_nothing_to_the_engine(pools, case):
    usual, elsewhere = (pools(3).run(with_tensors_elsewhere, case, device)[0] for device in ("cpu", "meta"))
    assert work.error(elsewhere, usual) <= 1e-4
