"""What loops over two machines do beside training: another model, evaluation, a checkpoint, an end and a new start."""

import nets
import pytest
import torch
import torch.distributed.checkpoint as dcp
import work
from own_loops import FULL, HYBRID, SGD, TIMEOUT, Loop, sharded, stock
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from odc_engine import OnDemand

pytestmark = pytest.mark.slow

MESHES = [HYBRID, FULL]
STATES = ("model", "optimizer")


@pytest.fixture(scope="module", params=MESHES)
def mesh(request):
    return request.param


@pytest.fixture(scope="module")
def expected(machines, mesh):
    return machines(2, 2).run(stock, Loop(mesh))[0]


def two_at_once(rank, mesh):
    """Two models, each with its own OnDemand; a minibatch of one, then one of the other."""
    models = [sharded(mesh) for _ in range(2)]
    odcs = [OnDemand(model, timeout=TIMEOUT) for model in models]
    optimizers = [SGD(model.parameters()) for model in models]
    for number, counts in enumerate(Loop().counts):
        for model, odc, optimizer in zip(models, odcs, optimizers, strict=True):
            for m in range(counts[rank]):
                nets.loss(model, rank, m, number).backward()
            odc.settle()
            optimizer.step()
            optimizer.zero_grad()
            odc.publish()
    for odc in odcs:
        odc.close()
    return [work.whole_parameters(model) for model in models]


def test_two_models_train_side_by_side(machines, mesh, expected):
    for found in machines(2, 2).run(two_at_once, mesh):
        for weights in found:
            assert work.error(weights, expected[-1].weights) < 1e-6


def closed_and_anew(rank, mesh):
    """Stock evaluation in between."""
    model, steps = sharded(mesh), []
    optimizer = SGD(model.parameters())
    for number, counts in enumerate(Loop().counts):
        odc = OnDemand(model, timeout=TIMEOUT)
        for m in range(counts[rank]):
            nets.loss(model, rank, m, number).backward()
        odc.settle()
        optimizer.step()
        optimizer.zero_grad()
        odc.publish()
        odc.close()
        with torch.no_grad():
            steps.append(nets.loss(model, rank, 0, 77).item())
    return steps, work.whole_parameters(model)


def evaluated(rank, mesh):
    """As often as each process likes, on demand."""
    model, losses = sharded(mesh), []
    odc = OnDemand(model, timeout=TIMEOUT)
    optimizer = SGD(model.parameters())
    for number, counts in enumerate(Loop().counts):
        for m in range(counts[rank]):
            nets.loss(model, rank, m, number).backward()
        odc.settle()
        optimizer.step()
        optimizer.zero_grad()
        odc.publish()
        with torch.no_grad():
            losses.append(max(nets.loss(model, rank, 0, 77).item() for _ in range(1 + rank)))
    odc.close()
    return losses, work.whole_parameters(model)


@pytest.mark.parametrize("how", [closed_and_anew, evaluated])
def test_weights_are_everywhere_after_each_step(machines, mesh, expected, how):
    for rank, (losses, weights) in enumerate(machines(2, 2).run(how, mesh)):
        assert work.error(weights, expected[-1].weights) < 1e-6
        for loss, step in zip(losses, expected, strict=True):
            model = work.Case((1,)).fresh()
            model.load_state_dict(step.weights)
            assert loss == pytest.approx(nets.loss(model, rank, 0, 77).item(), rel=1e-5)


def attached(mesh):
    model = sharded(mesh)
    odc, optimizer = OnDemand(model, timeout=TIMEOUT), SGD(model.parameters())
    odc.attach(optimizer)
    return model, odc, optimizer


def minibatches(rank, model, optimizer, numbers):
    for number in numbers:
        for m in range(Loop().counts[number][rank]):
            nets.loss(model, rank, m, number).backward()
        optimizer.step()
        optimizer.zero_grad()


def saved_and_loaded(rank, mesh, folder):
    """The first two minibatches, then the last two by another model that has loaded what was saved."""
    model, odc, optimizer = attached(mesh)
    minibatches(rank, model, optimizer, (0, 1))
    dcp.save(dict(zip(STATES, get_state_dict(model, optimizer), strict=True)), checkpoint_id=folder)
    odc.close()
    model, odc, optimizer = attached(mesh)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    odc.publish()
    states = dict(zip(STATES, get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    minibatches(rank, model, optimizer, (2, 3))
    odc.close()
    return work.whole_parameters(model)


def test_a_checkpoint_of_all_machines_is_where_training_goes_on(machines, mesh, expected, tmp_path):
    for weights in machines(2, 2).run(saved_and_loaded, mesh, tmp_path):
        assert work.error(weights, expected[-1].weights) < 1e-6
