"""Arenas of several machines over TCP, and the connections that carry them. Here the machines are one whose devices
say that they are on several; over real ones loops are held to stock FSDP2 elsewhere (across)."""

import socket
import threading
import time
from contextlib import contextmanager

import nets
import pytest
import torch
import torch.distributed as dist
import work
from fake_devices import model_on
from transports import refused, spread
from work import Case

from odc_engine.backends.base import MAIN
from odc_engine.backends.network import Network
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.backends.tcp import carriers
from odc_engine.backends.tcp.carriers import Asker, bytes_in, move, serve
from odc_engine.backends.tcp.memory import FETCHES, SENDS, TcpMemory
from odc_engine.errors import EngineError
from odc_engine.memory.arenas import memory_for

TWO = (0, 0, 1, 1)
SIZE = 1 << 16
TIMEOUT = 0.3
PIECE = 1 << 16


@contextmanager
def memory(rank, over=(0, 1), timeout=20.0, nbytes=SIZE):
    with spread(rank, over):
        made = TcpMemory(Network(timeout=timeout))
        made.allocate(nbytes)
        yield made
        made.close()


def moved_by_two_lanes(rank):
    """Each with bytes of its own, of sizes that no message holds; and what was counted."""
    nbytes = 5_000_003
    with memory(rank, nbytes=4 * nbytes) as made:
        mine = made.view(rank)
        mine[:nbytes] = torch.arange(nbytes).mul_(rank + 3).to(torch.uint8)
        made.meet(MAIN)

        def push():
            for _ in range(5):
                made.send(1 - rank, nbytes, mine[:nbytes])
                made.arrive()

        lane = threading.Thread(target=push)
        lane.start()
        for _ in range(5):
            made.fetch(1 - rank, 0, mine[2 * nbytes : 3 * nbytes])
        lane.join()
        made.meet(MAIN)
        theirs = torch.arange(nbytes).mul_(4 - rank).to(torch.uint8)
        right = [torch.equal(mine[at * nbytes : (at + 1) * nbytes], theirs) for at in (1, 2)]
        return right, made.moved == {FETCHES: 5 * nbytes, SENDS: 5 * nbytes}


def test_two_lanes_move_beside_each_other(pools):
    assert pools(2).run(moved_by_two_lanes) == [([True, True], True)] * 2


def chosen(rank, over):
    with spread(rank, over):
        made = memory_for(nets.Net(), 20.0, None)
        found = type(made), [list(near) for near in getattr(made, "every_near", ())]
        made.close()
        return found


@pytest.mark.parametrize(
    ("over", "kind", "near"),
    [
        ((0, 0, 0, 0), SharedMemory, []),
        ((0, 0, 1, 1), TcpMemory, [[0, 1], [0, 1], [2, 3], [2, 3]]),
        ((0, 1, 0, 0), TcpMemory, [[0], [1], [2, 3], [2, 3]]),  # an address may go by a run of devices alone
    ],
)
def test_memory_is_chosen_by_where_devices_are(pools, over, kind, near):
    assert pools(4).run(chosen, over) == [(kind, near)] * 4


def on_gpus(rank):
    with spread(rank, TWO), pytest.MonkeyPatch.context() as patch:
        # One that lacks it is enough.
        patch.setattr("odc_engine.backends.gpu_row.importlib.util.find_spec", lambda _: None if rank == 1 else True)
        return refused(lambda: memory_for(model_on(0), 20.0, None))


def test_gpus_of_several_machines_are_refused_by_all_where_one_has_no_nvshmem(pools):
    assert pools(4).run(on_gpus) == ["PeerLost", "InputError", "PeerLost", "PeerLost"]


CASE = Case((3, 1, 0, 2))


def trained(rank, case):
    with spread(rank, TWO), work.device(case) as (model, odc):
        work.train(case, rank, model, odc, torch.optim.AdamW(model.parameters(), lr=0.01), range(2))
        return odc.arena.accumulate, work.whole_parameters(model)


@pytest.mark.parametrize(
    ("accumulate", "per_node", "far", "sums"),
    [(None, None, "each", "slots"), (None, 2, "each", "locked"), ("locked", 2, "hierarchical", "locked")],
)
def test_training_is_as_in_one_process(pools, accumulate, per_node, far, sums):
    alone = CASE.fresh().double()
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.01)
    for number in range(2):
        work.reference(CASE, number, alone)
        optimizer.step()
        optimizer.zero_grad()
    for found, parameters in pools(4).run(trained, CASE.but(accumulate=accumulate, per_node=per_node, far=far)):
        assert found == sums
        assert work.error(parameters, dict(alone.named_parameters())) < 1e-5


def sums_afar(rank):
    with spread(rank, TWO):
        return refused(lambda: work.communication(CASE, work.shard(CASE, CASE.fresh())))


def test_sums_at_which_a_network_would_have_to_add_are_refused_by_all(pools):
    assert pools(4).run(sums_afar) == ["InputError"] * 4


def wrong(call):
    """What kind of error, and who is named."""
    try:
        call()
    except EngineError as error:
        return type(error).__name__, getattr(error, "devices", [])
    return "", []


def one_fails(rank, how):
    """To serve: device 0 asks for what lies beyond device 1's bytes, or the answer moves nothing."""
    with memory(rank, timeout=0.5 if how == "mute" else 20.0) as made, pytest.MonkeyPatch.context() as patch:
        if how == "mute":
            patch.setattr(carriers, "_answer", lambda *_: time.sleep(2.0))
        dist.barrier()

        def asked():
            if rank == 0:
                made.fetch(1, 0 if how == "mute" else SIZE - 5, made.view(0)[:10])
            time.sleep(1.5)
            made.check()

        found = wrong(asked)
        dist.barrier()
        return found


@pytest.mark.parametrize("how", ["mute", "beyond"])
def test_who_does_not_serve_is_named_and_hears_of_its_own_failure(pools, how):
    asked, serves = pools(2).run(one_fails, how)
    assert asked == ("PeerLost", [1])
    assert how == "mute" or serves == ("EngineError", [])


def broken_off(rank):
    """By Ctrl-C in a notebook, say, whose next cell goes on."""
    with memory(rank) as made:
        made.view(rank)[:10] = torch.arange(10) + 10 * rank
        made.meet(MAIN)
        if rank:
            dist.barrier()
            return [wrong(lambda: made.meet(MAIN))]

        def interrupted(asker, into):
            asker.connection.recv(len(into) // 2)
            raise KeyboardInterrupt

        into = made.view(0)[20:30]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Asker, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                made.fetch(1, 0, into)
        again = (lambda: made.fetch(1, 0, into), lambda: made.send(1, 50, into), made.arrive)
        found = [wrong(call) for call in again]
        dist.barrier()
        return [*found, wrong(lambda: made.meet(MAIN))]


def test_after_a_transfer_that_was_broken_off_there_is_none(pools):
    """The rest of it would be taken for the next one's bytes."""
    assert pools(2).run(broken_off) == [[("EngineError", [])] * 4, [("PeerLost", [0])]]


def one_leaves_before(rank):
    """A device that is done lets others read what it has."""
    with memory(rank) as made:
        made.view(rank)[:10] = 7
        made.meet(MAIN)
        if rank == 1:
            made.close()
            dist.barrier()
            dist.barrier()
            return made.close()
        dist.barrier()
        made.fetch(1, 0, made.view(0)[20:30])
        found = made.view(0)[20:30].tolist()
        dist.barrier()
        return found, wrong(lambda: made.meet(MAIN))


def test_an_arena_stays_as_long_as_somebody_may_ask_for_it(pools):
    assert pools(2).run(one_leaves_before)[0] == ([7] * 10, ("PeerLost", [1]))


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
    yield ends
    for each in ends:
        each.close()


def look(patience):
    if patience.ended(TIMEOUT):
        raise TimeoutError


def test_a_slow_network_is_waited_for_as_long_as_something_moves(pair, monkeypatch):
    """The limit is for a silence, and not for all of what may be gigabytes."""
    monkeypatch.setattr(carriers, "LOOK_UP", 0.02)
    here, there = pair
    data = torch.arange(30 * PIECE, dtype=torch.int32).view(torch.uint8)[: 30 * PIECE]
    found = bytearray(carriers._REQUEST.size + len(data))

    def read():
        for start in range(0, len(found), 2 * PIECE):
            move(there.recv_into, memoryview(found)[start : start + 2 * PIECE])
            time.sleep(TIMEOUT / 6)

    reader = threading.Thread(target=read)
    reader.start()
    began = time.monotonic()
    Asker(here, look).send(0, data)
    reader.join()
    assert time.monotonic() - began > TIMEOUT
    assert found[carriers._REQUEST.size :] == bytes_in(data)
    with pytest.raises(TimeoutError):  # nobody reads
        Asker(here, look).send(0, data)
    with pytest.raises(TimeoutError):
        Asker(here, look).read(data)


@pytest.mark.parametrize(("start", "nbytes"), [(-20, 10), (-5, 5), (90, 20), (200, 10), (0, -1)])
def test_nothing_is_read_beyond_an_arena(pair, start, nbytes):
    here, there = pair
    failed = []
    serve(there, torch.zeros(100, dtype=torch.uint8), failed.append)
    Asker(here, look).ask(start, nbytes)
    with pytest.raises(ConnectionResetError):
        move(here.recv_into, memoryview(bytearray(1)))
    assert [type(error) for error in failed] == [ValueError]
