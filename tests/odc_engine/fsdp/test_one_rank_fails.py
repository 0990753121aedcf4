"""What one rank alone is refused while OnDemand is made: its error says what in one line, the others name it, and none
waits."""

import errno
import gc
import mmap
import os
import re
import resource
import tempfile
from collections import Counter
from pathlib import Path

import nets
import pytest
import work
from fake_nvshmem import FakeNvshmem
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from work import Case

from odc_engine import OnDemand
from odc_engine.backends import machines
from odc_engine.backends.shm import files, peers
from odc_engine.doctor import abilities
from odc_engine.fsdp import on_demand
from odc_engine.memory import arenas

LIMITED = "raise the limit of open files, with 'ulimit -n' before the program starts"
SMALLER = "use fewer devices, a smaller model, or --accumulate locked"
TOGETHER = "run all devices as one user, in one container"


def refuses(number):
    def refused(*_args, **_named):
        raise OSError(number, os.strerror(number))

    return refused


def no_memfd(patch):
    patch.setattr(os, "memfd_create", refuses(errno.EPERM))


def no_file_at_all(patch):
    no_memfd(patch)
    patch.setattr(tempfile, "mkstemp", refuses(errno.EACCES))


def no_map(more_than):
    class Map(mmap.mmap):
        def __new__(cls, fd, size):
            if size > more_than:
                refuses(errno.ENOMEM)()
            return super().__new__(cls, fd, size)

    return lambda patch: patch.setattr(files.mmap, "mmap", Map)


def no_peer_s_file(number):
    usual = os.open

    def opened(path, *args, **named):
        if str(path).startswith("/proc/") and not str(path).startswith("/proc/self"):
            refuses(number)()
        return usual(path, *args, **named)

    return lambda patch: patch.setattr(os, "open", opened)


def no_number_left(_patch):
    """`tried` gives them back."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))


def broken(*_):
    raise ValueError("something else")


FAULTS = {
    "no file": (no_file_at_all, r"InputError: no file for shared memory \(Permission denied\); set TMPDIR to a folder"),
    "no page": (no_map(0), rf"InputError: memory of device 0 cannot be mapped \(Cannot allocate memory\); {SMALLER}"),
    "no arena": (no_map(peers.PAGE), rf"InputError: memory of device 0 cannot be mapped .*; {SMALLER}"),
    "no peer": (no_peer_s_file(errno.EACCES), rf"InputError: memory of device 0 cannot be opened .*; {TOGETHER}"),
    "no number": (no_peer_s_file(errno.EMFILE), rf"InputError: memory of device 0 cannot be opened .*; {LIMITED}"),
    "open files": (no_number_left, rf"InputError: .*Too many open files.*; {LIMITED}"),
    "no name": (
        lambda patch: patch.setattr(machines, "here", refuses(errno.EACCES)),
        r"InputError: the system refuses what devices share .*Permission denied.*; see 'odc_engine doctor'",
    ),
    "a bug": (lambda patch: patch.setattr(files, "here", broken), "ValueError: something else"),
    "a refusal": (lambda patch: patch.setattr(on_demand, "check_precision", broken), "ValueError: something else"),
    "a backend": (lambda patch: patch.setattr(arenas, "PeerMemory", int), "AssertionError"),
}


def tried(rank, fault, made, folder):
    """What came of OnDemand, how many files of its own stayed open, and whether another can be made afterwards."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    OnDemand(made(), timeout=20.0).close()  # what is connected on first use is
    before = files_of_arenas()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        if rank == 1:
            FAULTS[fault][0](patch)
        try:
            OnDemand(made(), timeout=20.0).close()
            told = ""
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    left = files_of_arenas() - before
    OnDemand(made(), timeout=20.0).close()
    return told, left


def files_of_arenas():
    gc.collect()  # a map of which an error's frames hold views stays as long as these
    links = list(Path("/proc/self/fd").iterdir())
    return Counter(name for link in links if link.is_symlink() and "odc" in (name := str(link.readlink())))


def sharded():
    return work.shard(Case((1, 1)), Case((1, 1)).fresh())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_is_refused_something_says_what_and_no_other_waits(pools, fault, tmp_path):
    (other, left), (own, own_left) = pools(2).run(tried, fault, sharded, str(tmp_path))
    assert re.match(FAULTS[fault][1], own)
    assert "\n" not in own
    assert other == "PeerLost: device 1 failed: its own error says why"
    assert left == own_left == Counter()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["no page", "no arena", "a bug"])
def test_nor_does_any_other_of_a_hybrid_mesh(pools, fault, tmp_path):
    found = pools(4).run(tried, fault, hybrid_mesh, str(tmp_path))
    assert re.match(FAULTS[fault][1], found[1][0])
    others = [found[rank][0] for rank in (0, 2, 3)]
    assert all(re.fullmatch(r"PeerLost: device \d failed: its own error says why", told) for told in others)


def hybrid_mesh():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return fully_shard(Case((1,)).fresh(), mesh=mesh)


def refused_memfd(rank, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        if rank == 1:
            no_memfd(patch)
        with work.device(Case((1, 2))) as (model, odc):
            for m in range(1 + rank):
                nets.loss(model, rank, m).backward()
            odc.settle()
            held = files_of_arenas()
            found = work.whole_gradients(model)
        finding = next(f for f in abilities.examine() if f.name == "memfd")
        says = next(f.found for f in abilities.examine() if (f.area, f.name) == ("backend", "shm"))
    return found, sum(folder in name for name in held), finding.ok, says


def test_where_memfd_is_refused_a_temporary_file_takes_its_place(pools, tmp_path):
    """Of that rank alone, and `doctor` says so there."""
    found = pools(2).run(refused_memfd, str(tmp_path))
    for gradients, *_ in found:
        assert work.error(gradients, work.reference(Case((1, 2)))) < 1e-5
    assert [held for _, held, *_ in found] == [2, 2]  # a page and an arena
    assert [(ok, "temporary files" in says) for *_, ok, says in found] == [(True, False), (False, True)]
    assert not list(tmp_path.iterdir())


def tried_over_nvshmem(rank, step):
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(FakeNvshmem, step, broken)
        try:
            work.communication(Case((1, 1), backend="nvshmem", machines=(1, 1), accumulate="slots"), sharded())
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["start", "allocate", "mapped"])
def test_nor_does_any_over_nvshmem(step):
    """Not in a pool: what has started NVSHMEM once has it for good."""
    other, own = on_ranks(tried_over_nvshmem, 2, 200.0, step)
    assert own == "ValueError: something else"
    assert other == "PeerLost: device 1 failed: its own error says why"
