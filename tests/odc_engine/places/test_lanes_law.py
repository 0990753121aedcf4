"""Transfers of several lanes, given in a drawn order and each after some of the others: none begins before what it
waits for is done, and each lane keeps its order. Lanes beside the caller and beside a model. And what was reached by
gradients, against plain sets."""

import random
import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest
import work
from work import Case

from odc_engine.fsdp.minibatch import Minibatch
from odc_engine.fsdp.remedies import BY_HAND
from odc_engine.places.lanes import ThreadLane
from odc_engine.runs.verify import BOUND


def unit_of(trainable, index=0):
    none = SimpleNamespace(shards=list)
    unit = SimpleNamespace(index=index, trainable=[None] * trainable, pieces=[], inside=none)
    unit.versions = unit.whole_versions = list
    return unit


@pytest.mark.parametrize("seed", range(25))
def test_a_transfer_begins_when_what_it_waits_for_is_done(seed):
    drawn, lanes = random.Random(seed), [ThreadLane(str(n)) for n in range(3)]
    begun, done, given = [], [], []
    of_lane = [[], [], []]

    def transfer(number, after):
        def run():
            begun.append((number, [n for n in after if n not in done]))
            time.sleep(drawn.choice([0, 0, 2e-3]))
            done.append(number)

        return run

    for number in range(12):
        lane, after = drawn.randrange(3), drawn.sample(range(number), min(number, drawn.randrange(3)))
        given.append(lanes[lane].give(transfer(number, after), [given[n] for n in after]))
        of_lane[lane].append(number)
    which = drawn.randrange(3)
    lanes[which].drain()
    assert set(of_lane[which]) <= set(done)
    for lane in lanes:
        lane.drain()
        lane.close()
    assert sorted(done) == list(range(12))
    assert all(not early for _, early in begun)
    for numbers in of_lane:
        assert [n for n, _ in begun if n in numbers] == numbers


@pytest.mark.parametrize("seed", range(25))
def test_an_error_reaches_whoever_waits_for_it_and_nobody_else(seed):
    drawn, lane, other = random.Random(seed), ThreadLane("a"), ThreadLane("b")
    bad, done = drawn.randrange(5), []
    handles = [lane.give((lambda: 1 / 0) if n == bad else (lambda n=n: done.append(n))) for n in range(5)]
    for number, handle in enumerate(handles):
        if number < bad:
            assert handle.wait()
        else:
            with pytest.raises(ZeroDivisionError):
                other.give(lambda: done.append("late"), [handle])
    with pytest.raises(ZeroDivisionError):
        lane.drain()
    other.drain()
    assert done == list(range(bad))
    for one in (lane, other):
        one.close()


def test_one_that_waits_holds_up_its_giver_alone():
    lane, other, go, done = ThreadLane("a"), ThreadLane("b"), threading.Event(), []
    first = lane.give(go.wait)
    giver = threading.Thread(target=lambda: other.give(lambda: done.append("after"), [first]), daemon=True)
    giver.start()
    giver.join(0.05)
    assert giver.is_alive()
    assert done == []
    other.give(lambda: done.append("before")).wait()
    go.set()
    giver.join(5)
    other.drain()
    assert done == ["before", "after"]
    lane.close()
    other.close()


# Beside the caller, and beside a model that computes.


@pytest.mark.parametrize("used", [False, True])
def test_with_nothing_under_way_a_lane_drains_at_once(used):
    """Its thread has ended, so that anything given to it would be waited for in vain."""
    lane = ThreadLane("test")
    if used:
        assert lane.give(lambda: None).wait() is True
    lane.close()
    assert not lane._thread.is_alive()
    draining = threading.Thread(target=lane.drain, daemon=True)
    draining.start()
    draining.join(5)
    assert not draining.is_alive()


@pytest.mark.parametrize("trail", [1, 2, 3])
def test_a_push_waits_for_the_one_that_far_back(pools, trail):
    """Pushes are made slow: as many as may be under way are under way."""
    case = Case((2, 2), trail=trail)
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


# What a minibatch knows of gradients.


@pytest.mark.parametrize("seed", range(40))
def test_reached_parameters_are_those_that_were_pushed_and_not_lost(seed):
    drawn = random.Random(seed)
    every = [unit_of(drawn.randrange(4), n) for n in range(3)]
    found, waiting, pushed = Minibatch(every, BY_HAND, ""), set(), set()
    places = [(unit.index, piece) for unit in every for piece in range(len(unit.trainable))]
    for _ in range(30):
        move = drawn.choice(["note"] * 4 + ["collect"] * 2 + ["lose unpushed", "lose pushed"])
        unit = drawn.randrange(3)
        if move == "note" and places:
            place = drawn.choice(places)
            found.unpushed[place[0]][place[1]] = True
            waiting.add(place)
        elif move == "collect":
            mine = [(unit, piece) in waiting for piece in range(len(every[unit].trainable))]
            assert found.collect(unit) == mine
            pushed |= {place for place in waiting if place[0] == unit}
            waiting = {place for place in waiting if place[0] != unit}
        elif move == "lose unpushed":
            found.lose_pass()
            waiting = set()
        elif move == "lose pushed":
            found.drop()
            pushed = set()
        assert found.flags().tolist() == [int(place in pushed) for place in places]
        assert [any(found.unpushed[n]) for n in range(3)] == [any(p[0] == n for p in waiting) for n in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_that_was_lost_leaves_what_was_pushed_before(seed):
    drawn, one = random.Random(seed), Minibatch([unit_of(2) for _ in range(2)], BY_HAND, "")
    places = [(unit, piece) for unit in range(2) for piece in range(2) if drawn.random() < 0.6]
    for place in places:
        one.unpushed[place[0]][place[1]] = True
    one.collect(0)
    one.lose_pass()
    assert not any(one.unpushed[1])
    one.collect(1)
    assert one.flags().tolist() == [int((0, piece) in places) for piece in range(2)] + [0, 0]
    assert not one.in_pass
    one.pushes, one.cleared = 2, True
    one.drop()
    assert (one.pushes, one.cleared, one.has_gradients) == (0, False, False)
    assert one.flags().tolist() == [0] * 4
