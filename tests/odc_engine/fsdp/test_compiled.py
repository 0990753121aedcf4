"""Functions under torch.compile that meet: what cannot be compiled whole is refused with the way out."""

import pytest
import torch
from torch._dynamo.exc import Unsupported
from users import RATE, by_layers
from work import Case

from odc_engine import OnDemand
from odc_engine.fsdp.graph_breaks import FULL


def refused(_rank: int, what: str) -> str:
    model = Case((1, 1)).fresh()
    by_layers(model)
    odc, optimizer = OnDemand(model), torch.optim.SGD(model.parameters(), lr=RATE)
    odc.attach(optimizer)
    calls = {"step": lambda: optimizer.step(), "zero_grad": lambda: optimizer.zero_grad(), "publish": odc.publish}
    try:
        torch.compile(calls[what], backend="eager", fullgraph=True)()
    except Unsupported as error:
        return str(error)
    finally:
        odc.close()
        torch._dynamo.reset()
    return ""


@pytest.mark.parametrize("what", ["step", "zero_grad", "publish"])
def test_one_graph_of_what_meets_is_refused_with_the_way_out(pools, what):
    assert all(FULL in told for told in pools(2).run(refused, what))
