"""Transfers of several lanes, given in a drawn order and each after some of the others: none begins before what it
waits for is done, and each lane keeps its order. And what was reached by gradients, against plain sets."""

import random
import threading
import time
from types import SimpleNamespace

import pytest

from odc_engine.fsdp.minibatch import Minibatch
from odc_engine.fsdp.reached_parameters import ReachedParameters
from odc_engine.places.lanes import ThreadLane


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


# What a minibatch knows of gradients.


@pytest.mark.parametrize("seed", range(40))
def test_reached_parameters_are_those_that_were_pushed_and_not_lost(seed):
    drawn = random.Random(seed)
    every = [SimpleNamespace(index=n, trainable=[None] * drawn.randrange(4), pieces=[]) for n in range(3)]
    found, waiting, pushed = ReachedParameters(every), set(), set()
    places = [(unit.index, piece) for unit in every for piece in range(len(unit.trainable))]
    for _ in range(30):
        move = drawn.choice(["note"] * 4 + ["collect"] * 2 + ["lose unpushed", "lose pushed"])
        unit = drawn.randrange(3)
        if move == "note" and places:
            place = drawn.choice(places)
            found.note(*place)
            waiting.add(place)
        elif move == "collect":
            mine = [(unit, piece) in waiting for piece in range(len(every[unit].trainable))]
            assert found.collect(unit) == mine
            pushed |= {place for place in waiting if place[0] == unit}
            waiting = {place for place in waiting if place[0] != unit}
        elif move == "lose unpushed":
            found.lose_unpushed()
            waiting = set()
        elif move == "lose pushed":
            found.lose_pushed()
            pushed = set()
        assert found.flags().tolist() == [int(place in pushed) for place in places]
        assert [found.any_unpushed(n) for n in range(3)] == [any(p[0] == n for p in waiting) for n in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_that_was_lost_leaves_what_was_pushed_before(seed):
    drawn, one = random.Random(seed), Minibatch([], SimpleNamespace(look=None), "")
    one.reached = ReachedParameters([SimpleNamespace(trainable=[None, None]) for _ in range(2)])
    places = [(unit, piece) for unit in range(2) for piece in range(2) if drawn.random() < 0.6]
    for place in places:
        one.reached.note(*place)
    one.reached.collect(0)
    one.lose_pass()
    assert not one.reached.any_unpushed(1)
    one.reached.collect(1)
    assert one.reached.flags().tolist() == [int((0, piece) in places) for piece in range(2)] + [0, 0]
    assert not one.in_pass
    one.pushes, one.cleared = 2, True
    one.drop()
    assert (one.pushes, one.cleared, one.pushed) == (0, False, False)
    assert one.reached.flags().tolist() == [0] * 4
