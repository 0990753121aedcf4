"""Arenas of several machines over TCP. Here the machines are one whose devices say that they are on several; over real
ones loops are held to stock FSDP2 elsewhere."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import nets
import pytest
import torch
import torch.distributed as dist
import work
from torch.distributed.fsdp import fully_shard
from work import Case

from odc_engine import OnDemand
from odc_engine.backends import machines
from odc_engine.backends.base import MAIN
from odc_engine.backends.network import Network
from odc_engine.backends.shm.memory import SharedMemory
from odc_engine.backends.tcp import carriers
from odc_engine.backends.tcp.links import LEFT_EARLY
from odc_engine.backends.tcp.memory import FETCHES, SENDS, TcpMemory
from odc_engine.errors import EngineError, PeerLost
from odc_engine.fsdp import afar, agreement
from odc_engine.memory.arenas import memory_for
from odcsim.errors import InputError

TWO = (0, 0, 1, 1)
SIZE = 1 << 16


@contextmanager
def spread(rank: int, over=TWO) -> Iterator[None]:
    """Devices that say that they are on so many machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines, "here", lambda: f"machine {over[rank]}")
        yield


@contextmanager
def memory(rank: int, over=TWO, timeout: float = 20.0, nbytes: int = SIZE) -> Iterator[TcpMemory]:
    with spread(rank, over):
        made = TcpMemory(Network(timeout=timeout))
        made.allocate(nbytes)
        yield made
        made.close()


def moved(rank):
    with memory(rank) as made:
        mine = made.view(rank)
        mine[:100] = rank
        made.meet(MAIN)
        far = [d for d in range(4) if TWO[d] != TWO[rank]]
        made.fetch_all([(d, 0, mine[200 + 100 * i : 300 + 100 * i]) for i, d in enumerate(far)])
        mine[500:510] = 10 + rank
        for d in far:
            made.send(d, 1000 + 10 * rank, mine[500:510])
        made.arrive()
        made.meet(MAIN)
        return (
            list(made.near),
            mine[200:400].tolist(),
            [mine[1000 + 10 * d].item() for d in far],
            [made.view(d)[0].item() for d in made.near],
            made.moved == {FETCHES: 200, SENDS: 20},
        )


def test_far_arenas_are_read_and_written_and_near_ones_seen(pools):
    for rank, (near, fetched, came, seen, counted) in enumerate(pools(4).run(moved)):
        assert near == seen == [d for d in range(4) if TWO[d] == TWO[rank]]
        far = [d for d in range(4) if TWO[d] != TWO[rank]]
        assert fetched == [far[0]] * 100 + [far[1]] * 100
        assert came == [10 + d for d in far]
        assert counted


def moved_by_two_lanes(rank):
    """Each with bytes of its own, of sizes that no message holds."""
    nbytes = 5_000_003
    with memory(rank, (0, 1), nbytes=4 * nbytes) as made:
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
        return [torch.equal(mine[at * nbytes : (at + 1) * nbytes], theirs) for at in (1, 2)]


def test_two_lanes_move_beside_each_other(pools):
    assert pools(2).run(moved_by_two_lanes) == [[True, True]] * 2


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
    class OnGpu(torch.nn.Module):
        def parameters(self):
            return [type("Parameter", (), {"is_cuda": True, "device": torch.device("cuda", 0)})]

    with spread(rank), pytest.MonkeyPatch.context() as patch:
        if rank == 1:  # one that lacks it is enough
            patch.setattr("odc_engine.backends.gpu_row.importlib.util.find_spec", lambda _: None)
        else:
            patch.setattr("odc_engine.backends.gpu_row.importlib.util.find_spec", lambda _: True)
        try:
            memory_for(OnGpu(), 20.0, None)
        except (InputError, PeerLost) as error:
            return str(error)
    return ""


def test_gpus_of_several_machines_are_refused_by_all_where_one_has_no_nvshmem(pools):
    found = pools(4).run(on_gpus)
    assert "devices are on several machines, and nvshmem, which reaches GPUs of others, is not installed" in found[1]
    assert "a mesh of replicas each of which is on one machine" in found[1]
    assert {found[0], *found[2:]} == {"device 1 failed: its own error says why"}


COUNTS = ((3, 1, 0, 2), (0, 0, 2, 1))


def trained(rank, accumulate, per_node, far):
    with spread(rank):
        model = sharded()
        how = {"accumulate": accumulate, "devices_per_node": per_node, "far": far}
        odc = OnDemand(model, timeout=20, average=False, **how)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for number, counts in enumerate(COUNTS):
            for m in range(counts[rank]):
                nets.loss(model, rank, m, number).backward()
            odc.settle()
            optimizer.step()
            optimizer.zero_grad()
            odc.publish()
        found = odc.arena.accumulate
        odc.close()
        return found, work.whole_parameters(model)


def sharded():
    model = Case((1,)).fresh()
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def alone():
    model = Case((1,)).fresh().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, counts in enumerate(COUNTS):
        for rank, count in enumerate(counts):
            for m in range(count):
                nets.loss(model, rank, m, number).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


@pytest.mark.parametrize(
    ("accumulate", "per_node", "far", "sums"),
    [(None, None, "each", "slots"), (None, 2, "each", "locked"), ("locked", 2, "hierarchical", "locked")],
)
def test_training_is_as_in_one_process(pools, accumulate, per_node, far, sums):
    expected = alone()
    for found, parameters in pools(4).run(trained, accumulate, per_node, far):
        assert found == sums
        assert work.error(parameters, expected) < 1e-5


def refused(rank):
    with spread(rank):
        try:
            OnDemand(sharded(), accumulate="locked", timeout=20)
        except InputError as error:
            return str(error)
    return ""


def test_sums_at_which_a_network_would_have_to_add_are_refused_by_all(pools):
    for line in pools(4).run(refused):
        assert "reached over a network, which cannot add to a sum" in line


def counted(rank, counts):
    with spread(rank):
        model = sharded()
        odc = OnDemand(model, timeout=20)
        before = odc.memory.moved.copy()
        for m in range(counts[rank]):
            nets.loss(model, rank, m, 0).backward()
        odc.settle()
        found = odc.memory.moved - before
        each = afar.traffic(model, odc.units, others=2)
        notes = 2 * (agreement.SIZE + sum(len(unit.trainable) for unit in odc.units))
        told = afar.costs(odc.memory, model, odc.units)
        own = sum(4 * unit.shape.push for unit in odc.units)
        odc.publish()
        odc.close()
        return (
            (found[FETCHES] - notes, found[SENDS]),
            (each.fetched(counts[rank]), each.sent(counts[rank])),
            told,
            own,
        )


def test_bytes_that_are_told_are_those_that_pass_the_network(pools):
    for found, expected, _, _ in pools(4).run(counted, (3, 1, 0, 2)):
        assert found == expected


def test_one_mesh_over_machines_is_told_what_it_costs_and_the_way_out(pools):
    _, _, told, own = pools(4).run(counted, (1, 1, 1, 1))[0]
    assert len(told) == 3
    assert "sharded across 2 machines" in told[0]
    assert f"its gradient sums take {4 * own / 1e6:.3g} MB, 4 times its gradients" in told[0]
    # Each of two replicas has half: a ring of two passes it twice half.
    assert f"it would be {2 * own / 1e6:.3g} MB per minibatch" in told[1]
    assert told[2] == 'odc_engine: mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))'


def told_by(rank, over):
    lines = []
    with spread(rank, over), pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *words, **_: lines.append(words))
        OnDemand(sharded(), timeout=20).close()
    return lines


@pytest.mark.parametrize(("over", "lines"), [((0, 0, 0, 0), 0), ((0, 1, 1, 1), 2), ((0, 0, 1, 1), 3)])
def test_one_device_says_it_and_none_where_all_are_near(pools, over, lines):
    assert [len(each) for each in pools(4).run(told_by, over)] == [lines, 0, 0, 0]


def asked_for_too_much(rank):
    with memory(rank, (0, 1)) as made:
        line = ""
        try:
            if rank == 0:
                made.fetch(1, SIZE - 5, made.view(0)[:10])
            made.meet(MAIN)
            time.sleep(0.5)
            made.check()
        except EngineError as error:
            line = str(error)
        return line


def test_a_server_that_fails_is_heard_of_on_both_sides(pools):
    asked, served = pools(2).run(asked_for_too_much)
    assert asked == "device 1 failed: its own error says why"
    assert served == f"what others asked for could not be done: bytes {SIZE - 5} to {SIZE + 5} of an arena of {SIZE}"


def one_moves_nothing(rank):
    with memory(rank, (0, 1), timeout=0.5) as made:
        if rank:
            with pytest.MonkeyPatch.context() as patch:
                made.view(1).zero_()
                patch.setattr("odc_engine.backends.tcp.carriers._answer", lambda *_: time.sleep(2.0))
                dist.barrier()
                time.sleep(1.5)
            return ""
        dist.barrier()
        try:
            made.fetch(1, 0, made.view(0)[:10])
        except PeerLost as lost:
            return str(lost)
        return ""


def test_who_moves_nothing_is_named(pools):
    assert pools(2).run(one_moves_nothing)[0].startswith("device 1 moved nothing for 0.5 s")


def broken_off(rank):
    """By Ctrl-C in a notebook, say, whose next cell goes on."""
    with memory(rank, (0, 1)) as made:
        made.view(rank)[:10] = torch.arange(10) + 10 * rank
        made.meet(MAIN)
        if rank:
            dist.barrier()
            return [], told(made)

        def interrupted(asker, into):
            asker.connection.recv(len(into) // 2)
            raise KeyboardInterrupt

        into = made.view(0)[20:30]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(carriers.Asker, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                made.fetch(1, 0, into)
        lines = []
        for again in (lambda: made.fetch(1, 0, into), lambda: made.send(1, 50, into), made.arrive):
            try:
                again()
            except EngineError as error:
                lines.append(str(error))
        dist.barrier()
        return lines, told(made, EngineError)


def test_after_a_transfer_that_was_broken_off_there_is_none(pools):
    """The rest of it would be taken for the next one's bytes."""
    (lines, at_meeting), (_, elsewhere) = pools(2).run(broken_off)
    assert lines == ["a transfer was broken off (KeyboardInterrupt)"] * 3
    assert at_meeting == lines[0]
    assert elsewhere == "device 0 failed: its own error says why"


def one_leaves_before(rank):
    """A device that is done lets others read what it has."""
    with memory(rank, (0, 1)) as made:
        made.view(rank)[:10] = 7
        made.meet(MAIN)
        if rank == 1:
            made.close()
            dist.barrier()
            dist.barrier()
            made.close()
        else:
            dist.barrier()
            made.fetch(1, 0, made.view(0)[20:30])
            found = made.view(0)[20:30].tolist()
            dist.barrier()
            return found, told(made)
    return [], ""


def told(made, kind=PeerLost):
    with pytest.raises(kind) as caught:
        made.meet(MAIN)
    return str(caught.value)


def test_an_arena_stays_as_long_as_somebody_may_ask_for_it(pools):
    found, line = pools(2).run(one_leaves_before)[0]
    assert found == [7] * 10
    assert line == f"device 1 {LEFT_EARLY}"


def threads_left(rank):
    with memory(rank, (0, 1)) as made:
        made.meet(MAIN)
    until = time.monotonic() + 5.0
    while (names := [t.name for t in threading.enumerate() if t.name.startswith("odc-")]) and time.monotonic() < until:
        time.sleep(0.02)
    return names


def test_nothing_runs_when_all_have_left(pools):
    assert pools(2).run(threads_left) == [[], []]
