"""Lanes beside the caller, and transfers of a model in them. Their order and their errors: test_lanes_law."""

import threading
import time
from functools import partial

import nets
import pytest
import torch.distributed as dist
import work
from work import Case

from odc_engine.places.lanes import ThreadLane
from odc_engine.runs.verify import BOUND


def test_the_caller_goes_on_meanwhile():
    lane, go = ThreadLane("test"), threading.Event()
    handle = lane.give(lambda: go.wait(5))
    assert isinstance(handle, dist.Work)
    assert not handle._done.is_set()
    go.set()
    assert handle.wait() is True
    lane.close()
    assert not lane._thread.is_alive()


@pytest.mark.parametrize("used", [False, True])
def test_with_nothing_under_way_a_lane_drains_at_once(used):
    """Its thread has ended, so that anything given to it would be waited for in vain."""
    lane = ThreadLane("test")
    if used:
        lane.give(lambda: None).wait()
    lane.close()
    draining = threading.Thread(target=lane.drain, daemon=True)
    draining.start()
    draining.join(5)
    assert not draining.is_alive()


@pytest.mark.parametrize("trail", [1, 2, 3])
def test_a_push_waits_for_the_one_that_far_back(pools, trail):
    """Pushes are made slow: as many as may be under way are under way."""
    case = Case((2, 2), model=nets.Net, trail=trail)
    expected = work.reference(case)
    for most, found in pools(2).run(pushes_under_way, case):
        assert most == trail - 1
        assert work.error(found, expected) <= BOUND


def pushes_under_way(rank, case):
    with work.device(case) as (model, comm):
        push, done, given, most = comm.arena.push, [], [], []

        def slow(*args):
            time.sleep(0.03)
            push(*args)
            done.append(1)

        def counted(*args, give=comm.push):
            given.append(1)
            give(*args)
            most.append(len(given) - len(done))

        comm.arena.push, comm.push = slow, counted
        work.minibatch(case, rank, model, comm)
        assert len(done) == len(given) == 2 * len(comm.units)  # settling waits for every push
        return max(most), work.whole_gradients(model)


def test_gathers_and_pushes_run_while_layers_compute(pools):
    """A gather, and a push, that end only once the layer beside them computes: waiting for either would be for ever."""
    case = Case((2, 1), prefetch=1)
    expected = work.reference(case)
    for found in pools(2).run(transfers_that_wait_for_compute, case):
        assert work.error(found, expected) <= BOUND


def transfers_that_wait_for_compute(rank, case):
    with work.device(case) as (model, comm):
        arena, begun = comm.arena, {"gather 2": threading.Event(), "push 3": threading.Event()}
        model.layers[0].norm.register_forward_pre_hook(lambda *_: begun["gather 2"].set())
        model.layers[1].norm.register_full_backward_pre_hook(lambda *_: begun["push 3"].set())

        def after(kind, transfer, unit, tensor):
            if f"{kind} {unit}" in begun:
                assert begun[f"{kind} {unit}"].wait(10), f"{kind} of unit {unit} did not run beside compute"
            transfer(unit, tensor)

        arena.gather, arena.push = partial(after, "gather", arena.gather), partial(after, "push", arena.push)
        work.minibatch(case, rank, model, comm)
        return work.whole_gradients(model)
