"""What loops over two machines do beside training: another model, evaluation, a checkpoint, an end and a new start."""

import nets
import pytest
import torch
import torch.distributed.checkpoint as dcp
import work
from own_loops import COUNTS, FULL, HYBRID, SGD, TIMEOUT, Loop, sharded, stock
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from odc_engine import OnDemand

pytestmark = pytest.mark.slow

STATES = ("model", "optimizer")


@pytest.fixture(scope="module", params=[HYBRID, FULL])
def mesh(request):
    return request.param


@pytest.fixture(scope="module")
def expected(machines, mesh):
    return machines(2, 2).run(stock, Loop(mesh))[0]


def made(mesh):
    model = sharded(mesh)
    return model, SGD(model.parameters()), OnDemand(model, timeout=TIMEOUT)


def minibatch(rank, number, model, optimizer, odc):
    for m in range(COUNTS[number][rank]):
        nets.loss(model, rank, m, number).backward()
    odc.settle()
    optimizer.step()
    optimizer.zero_grad()
    odc.publish()


def two_at_once(rank, mesh):
    """Two models, each with its own OnDemand; a minibatch of one, then one of the other."""
    both = [made(mesh) for _ in range(2)]
    for number in range(len(COUNTS)):
        for own in both:
            minibatch(rank, number, *own)
    for *_, odc in both:
        odc.close()
    return [work.whole_parameters(model) for model, *_ in both]


def test_two_models_train_side_by_side(machines, mesh, expected):
    for found in machines(2, 2).run(two_at_once, mesh):
        for weights in found:
            assert work.error(weights, expected[-1].weights) < 1e-6


def evaluated(rank, mesh, anew):
    """On demand, as often as each process likes; or stock, behind a close() and before another OnDemand."""
    model, optimizer, odc = made(mesh)
    losses = []
    for number in range(len(COUNTS)):
        minibatch(rank, number, model, optimizer, odc)
        if anew:
            odc.close()
        with torch.no_grad():
            losses.append(max(nets.loss(model, rank, 0, 77).item() for _ in range(1 if anew else 1 + rank)))
        if anew:
            odc = OnDemand(model, timeout=TIMEOUT)
    odc.close()
    return losses, work.whole_parameters(model)


@pytest.mark.parametrize("anew", [False, True])
def test_weights_are_everywhere_after_each_step(machines, mesh, expected, anew):
    for rank, (losses, weights) in enumerate(machines(2, 2).run(evaluated, mesh, anew)):
        assert work.error(weights, expected[-1].weights) < 1e-6
        for loss, step in zip(losses, expected, strict=True):
            model = work.Case((1,)).fresh()
            model.load_state_dict(step.weights)
            assert loss == pytest.approx(nets.loss(model, rank, 0, 77).item(), rel=1e-5)


def saved_and_loaded(rank, mesh, folder):
    """The first two minibatches, then the last two by another model that has loaded what was saved."""
    model, optimizer, odc = made(mesh)
    for number in (0, 1):
        minibatch(rank, number, model, optimizer, odc)
    dcp.save(dict(zip(STATES, get_state_dict(model, optimizer), strict=True)), checkpoint_id=folder)
    odc.close()
    model, optimizer, odc = made(mesh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    odc.publish()
    states = dict(zip(STATES, get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    odc.publish()
    for number in (2, 3):
        minibatch(rank, number, model, optimizer, odc)
    odc.close()
    return work.whole_parameters(model)


def test_a_checkpoint_of_all_machines_is_where_training_goes_on(machines, mesh, expected, tmp_path):
    for weights in machines(2, 2).run(saved_and_loaded, mesh, tmp_path):
        assert work.error(weights, expected[-1].weights) < 1e-6
