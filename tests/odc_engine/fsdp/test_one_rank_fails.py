"""What one rank alone is refused while OnDemand is made: it says what, others name it, and none waits."""

import errno
import gc
import mmap
import os
import tempfile
from collections import Counter
from pathlib import Path

import nets
import pytest
import torch.distributed as dist
import work
from fake_nvshmem import FakeNvshmem
from own_loops import FULL, HYBRID, sharded
from ranks import on_ranks
from work import Case

from odc_engine import OnDemand
from odc_engine.backends import machines
from odc_engine.backends.shm import files, memory, peers
from odc_engine.doctor import abilities
from odc_engine.errors import PeerLost
from odc_engine.fsdp import units
from odc_engine.memory import arenas
from odcsim.errors import InputError


def refuses(number):
    def refused(*_args, **_named):
        raise OSError(number, os.strerror(number))

    return refused


def no_map(more_than):
    class Map(mmap.mmap):
        def __new__(cls, fd, size):
            if size > more_than:
                refuses(errno.ENOMEM)()
            return super().__new__(cls, fd, size)

    return files.mmap, "mmap", Map


def no_peer_s_file(number):
    usual = os.open

    def opened(path, *args, **named):
        if str(path).startswith("/proc/") and not str(path).startswith("/proc/self"):
            refuses(number)()
        return usual(path, *args, **named)

    return os, "open", opened


def broken(*_):
    raise ValueError("something else")


def refuses_room(_nbytes):
    raise InputError("no room", fix="make some")


NO_MEMFD = os, "memfd_create", refuses(errno.EPERM)
# What is replaced, and what comes of it.
FAULTS = {
    "no file": ([NO_MEMFD, (tempfile, "mkstemp", refuses(errno.EACCES))], InputError),
    "no page": ([no_map(0)], InputError),
    "no arena": ([no_map(peers.PAGE)], InputError),
    "no room": ([(memory, "check_room", refuses_room)], InputError),
    "no peer": ([no_peer_s_file(errno.EACCES)], InputError),
    "no number": ([no_peer_s_file(errno.EMFILE)], InputError),
    "no name": ([(machines, "here", refuses(errno.EACCES))], InputError),
    "a bug": ([(files, "here", broken)], ValueError),
    "a refusal": ([(units, "check_precision", broken)], ValueError),
    "a backend": ([(arenas, "PeerMemory", int)], AssertionError),
}


def ended(call) -> tuple[type, list[int]]:
    """The kind of error, and the devices that are lost."""
    try:
        call()
    except Exception as error:
        return type(error), error.devices if isinstance(error, PeerLost) else []
    return type(None), []


def tried(rank, fault, at, mesh, folder):
    """What came of OnDemand, how many files of its own stayed open, and whether another can be made afterwards."""
    OnDemand(sharded(mesh), timeout=20.0).close()  # what is connected on first use is
    before = files_of_arenas()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        if rank == at:
            for replaced in FAULTS[fault][0]:
                patch.setattr(*replaced)
        found = ended(lambda: OnDemand(sharded(mesh), timeout=20.0).close())
    left = files_of_arenas() - before
    OnDemand(sharded(mesh), timeout=20.0).close()
    return *found, left


def files_of_arenas():
    gc.collect()  # a map of which an error's frames hold views stays as long as these
    links = list(Path("/proc/self/fd").iterdir())
    return Counter(name for link in links if link.is_symlink() and "odc" in (name := str(link.readlink())))


@pytest.mark.by_default(5)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_is_refused_something_says_what_and_no_other_waits(pools, fault, tmp_path):
    at = int(fault != "no room")  # whom its node's first rank asks
    found = pools(2).run(tried, fault, at, FULL, str(tmp_path))
    assert found[1 - at] == (PeerLost, [at], Counter())
    assert found[at] == (FAULTS[fault][1], [], Counter())
    assert not list(tmp_path.iterdir())


@pytest.mark.by_default(1)
@pytest.mark.parametrize(("fault", "at"), [("no page", 1), ("no arena", 1), ("a bug", 1), ("no room", 2)])
def test_nor_does_any_other_of_a_hybrid_mesh(pools, fault, at, tmp_path):
    for rank, (kind, named, _) in enumerate(pools(4).run(tried, fault, at, HYBRID, str(tmp_path))):
        assert kind == (FAULTS[fault][1] if rank == at else PeerLost)
        assert set(named) <= {at, at ^ 1}  # beyond its replica perhaps who has heard of it there


def lost_in_a_pass(rank):
    """What each hears where device 0 of a hybrid mesh loses its peer in a forward pass, and its loop goes on."""
    model = sharded(HYBRID)
    odc = OnDemand(model, timeout=3.0)
    if rank == 0:
        odc.arena.gather = lambda *_: raised(PeerLost([1], "is gone"))
    try:
        nets.loss(model, rank, 0).backward()
        odc.settle()
    except PeerLost as error:
        dist.barrier()
        return str(error)
    finally:
        odc._opened.close()


def raised(error):
    raise error


def test_a_peer_that_is_lost_in_a_pass_is_told_to_replicas_at_once(pools):
    """Device 1 is well here, and waits for device 0 in vain."""
    first, waits, replica, _ = pools(4).run(lost_in_a_pass)
    assert first == "device 1 is gone"
    assert "device 0" in replica
    assert "within" in waits
    assert "within" not in replica


def refused_memfd(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        if rank == 1:
            patch.setattr(*NO_MEMFD)
        with work.device(Case((1, 2))) as (model, odc):
            work.minibatch(Case((1, 2)), rank, model, odc)
            held = files_of_arenas()
            found = work.whole_gradients(model)
        memfd = next(finding.ok for finding in abilities.examine() if finding.name == "memfd")
    return found, sum(folder in name for name in held), memfd


def test_where_memfd_is_refused_a_temporary_file_takes_its_place(pools, tmp_path):
    """Of that rank alone, and `doctor` says so there."""
    found = pools(2).run(refused_memfd, str(tmp_path))
    for gradients, *_ in found:
        assert work.error(gradients, work.reference(Case((1, 2)))) < 1e-5
    assert [how for _, *how in found] == [[2, True], [2, False]]  # a page and an arena
    assert not list(tmp_path.iterdir())


def tried_over_nvshmem(rank, step):
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(FakeNvshmem, step, broken)
        case = Case((1, 1), backend="nvshmem", machines=(1, 1), accumulate="slots")
        return ended(lambda: work.communication(case, sharded(FULL)))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["start", "allocate", "mapped"])
def test_nor_does_any_over_nvshmem(step):
    """Not in a pool: what has started NVSHMEM once has it for good."""
    assert on_ranks(tried_over_nvshmem, 2, 200.0, step) == [(PeerLost, [1]), (ValueError, [])]
