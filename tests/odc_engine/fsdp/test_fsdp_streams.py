"""What FSDP2 lets run beside compute on a GPU: its own code on fake streams, which know what is done before what."""

import contextlib
from contextlib import contextmanager
from functools import partial

import fake_cuda
import nets
import pytest
import torch
import torch.distributed as dist
import work
from work import Case

from odc_engine.errors import BadGradient, PeerLost
from odc_engine.memory.finite import Checks
from odc_engine.places import streams
from odc_engine.places.place import Processor
from odc_engine.places.streams import StreamLane

ASKED = ("Stream", "Event", "current_stream", "stream")  # of a kind of device, by FSDP2
LAYERS = 6
DEEP = Case((1, 1), model=partial(nets.Net, layers=LAYERS))


@contextmanager
def on_streams():
    """Models that are sharded inside take the CPU for a GPU as far as streams go."""
    fake = fake_cuda.FakeCuda()
    with pytest.MonkeyPatch.context() as patch:
        for name in ASKED:
            patch.setattr(torch.cpu, name, getattr(fake, name))
        patch.setattr(torch.accelerator, "current_stream", fake_cuda.current)
        patch.setattr(streams, "_cuda", fake)
        patch.setattr(Processor, "lane", lambda *_: StreamLane(torch.device("cuda")))
        yield


def gathers(rank, case):
    """Of each gather of a forward pass, its unit, and up to which layer's forward is known to be done before it."""
    with on_streams(), work.device(case) as (model, comm):
        compute, layer_of, found = fake_cuda.current().number, {0: 0}, []
        owner, name = (comm.arena, "gather") if hasattr(comm, "arena") else (comm, "transfer")
        usual = getattr(owner, name)

        def computes(layer):
            _, number, _ = fake_cuda.current().work()
            layer_of[number] = layer

        def gathered(unit):
            done = fake_cuda.current().work()[2].get(compute, 0)
            found.append((unit, max(layer for number, layer in layer_of.items() if number <= done)))

        def gather(unit, out):
            gathered(unit)
            usual(unit, out)

        def transfer(kind, unit, move):
            usual(kind, unit, lambda: (kind == "gather" and gathered(unit.index), move()))

        for i, layer in enumerate(model.layers, 1):
            layer.register_forward_pre_hook(lambda *_, i=i: computes(i))
        setattr(owner, name, gather if name == "gather" else transfer)
        loss = case.loss(model, rank, 0)
        forward = list(found)
        loss.backward()
        comm.settle()
        return forward


@pytest.mark.parametrize("case", [DEEP, DEEP.but(sync="collective"), DEEP.but(sync="collective", backend="torch")])
def test_forward_gathers_are_two_layers_ahead_of_compute(pools, case):
    """The gather of layer k may begin when layer k - 2 does, so when k - 3 is done, as FSDP2's own may."""
    for found in pools(2).run(gathers, case):
        layers = [(unit, after) for unit, after in found if unit > 0]
        assert layers == [(k, max(0, k - 3)) for k in range(1, LAYERS + 1)]


def pushed(rank, case, worth):
    """How a minibatch ends whose gradients say that they are on a GPU; `worth` is in one of device 1."""
    usual, seen = Checks.check, []

    def check(self, gradients, unit, device, microbatches):
        gradients = gradients.clone()
        if rank == 1 and (unit, list(microbatches)) == ("layers.2", [1]):
            gradients[-2:] = worth
        seen.append(unit)
        usual(self, gradients.as_subclass(OnGpu), unit, device, microbatches)

    with on_streams(), pytest.MonkeyPatch.context() as patch, work.device(case) as (model, comm):
        patch.setattr(Checks, "check", check)
        for m in range(case.counts[rank]):
            case.loss(model, rank, m).backward()  # nothing is read here
        pushes = len(seen)
        try:
            comm.settle()
        except (BadGradient, PeerLost) as error:
            comm.memory.fail(error)
            return pushes, type(error), "layers.2" in str(error)
        dist.barrier()
        return pushes, None, False


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_gradient_that_is_not_finite_is_named_when_a_gpu_s_pushes_end(pools, worth):
    (_, other, _), (pushes, own, names_it) = pools(2).run(pushed, DEEP.but(counts=(1, 3)), worth)
    assert pushes == 3 * (LAYERS + 1)
    assert (other, own, names_it) == ((None, None, False) if worth == 3e38 else (PeerLost, BadGradient, True))


AHEAD = Case((3, 1), accumulate="slots", prefetch=2)


@pytest.mark.parametrize("model", [nets.Net, nets.Dropping, nets.Half, partial(nets.Net, around="reentrant")])
def test_what_was_gathered_ahead_for_nothing_is_not_taken_for_new_weights(pools, model):
    """A layer that is left out was gathered, too; FSDP2 keeps that until somebody takes it. Frozen units are gathered
    for backward and push nothing."""
    straight, found = (pools(2).run(trained, AHEAD.but(model=model), on_gpu)[0] for on_gpu in (False, True))
    assert all(torch.equal(found[name], value) for name, value in straight.items())


def place(on_gpu):
    return on_streams() if on_gpu else contextlib.nullcontext()


def trained(rank, case, on_gpu):
    with place(on_gpu):
        return work.trained(rank, case, 3)


def evaluated(rank, case, on_gpu):
    """Whether losses are those of weights that have changed after a forward pass alone had gathered some ahead."""
    with place(on_gpu), work.device(case) as (model, comm):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        work.evaluate(case, model, rank, 1)
        work.train(case, rank, model, comm, optimizer, range(1))
        found = []
        for microbatches in (1, 2, 3):  # each leaves out another layer at its end
            work.evaluate(case, model, rank, microbatches)
            with torch.no_grad():
                for parameter in list(model.parameters()):
                    parameter.mul_(1.5)
            comm.publish()
            alone = work.evaluate(case, work.unsharded(case, model), rank)
            found.append(work.evaluate(case, model, rank) == pytest.approx(alone, rel=1e-6))
            dist.barrier()
        return found


@pytest.mark.parametrize("on_gpu", [False, True])
def test_evaluation_ahead_of_a_change_leaves_nothing_old(pools, on_gpu):
    assert pools(2).run(evaluated, AHEAD.but(model=nets.Dropping), on_gpu) == [[True] * 3] * 2
