"""NVSHMEM itself, as far as a machine without a GPU goes: every call that the engine makes fits what is installed, and
processes start it together. Skipped where nvshmem4py is not installed, which `make test` does on Linux for x86-64."""

import ast
import ctypes
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from transports import lost

import odc_engine
from odc_engine.backends.nvshmem import library as nvshmem_library
from odc_engine.backends.nvshmem.library import Nvshmem, host_library
from odc_engine.backends.nvshmem.memory import NvshmemMemory

nvshmem = pytest.importorskip("nvshmem.core", reason="needs nvshmem4py")
ROOT = Path(odc_engine.__file__).parent
# How the engine's sources call each module.
CORE = ("nvshmem", "nvshmem.core")
BINDINGS = ("nvshmem.bindings", "self._calls")
HOST = ("self._host", "host_library()")


def calls(spellings):
    """Of functions that these words stand before: name, how many arguments by place, names of others, where."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "nvshmem" in text else ():
            function = getattr(node, "func", None)
            if isinstance(function, ast.Attribute) and ast.unparse(function.value) in spellings:
                keywords = [keyword.arg for keyword in node.keywords]
                yield function.attr, len(node.args), keywords, f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize(
    ("module", "spellings", "some"),
    [("core", CORE, {"init", "get_unique_id"}), ("bindings", BINDINGS, {"putmem_nbi_on_stream", "ptr"})],
)
def test_calls_of_nvshmem4py_have_its_signatures(module, spellings, some):
    import nvshmem.bindings

    found = list(calls(spellings))
    for name, count, keywords, where in found:
        try:
            inspect.signature(getattr(getattr(nvshmem, module), name)).bind(*range(count), **dict.fromkeys(keywords))
        except (AttributeError, TypeError) as error:
            pytest.fail(f"{where}: {name} ({error})")
    assert some <= {name for name, *_ in found}


HEADERS = re.compile(r"(\w+[ *]+)(nvshmemx?_\w+)\(([^()]*)\);")
KINDS = {"c_void_p": "pointer", "c_ulong": "size_t", "None": "void"}


def kind(words):
    return "pointer" if "*" in words or "cudaStream_t" in words else "size_t" if "size_t" in words else words.split()[0]


def test_entries_that_are_called_past_nvshmem4py_are_declared_as_the_headers_have_them():
    from cuda.pathfinder import find_nvidia_header_directory

    headers = {}
    for path in Path(find_nvidia_header_directory("nvshmem")).joinpath("host").glob("nvshmem*_api.h"):
        for result, name, arguments in HEADERS.findall(path.read_text()):
            taken = [kind(each) for each in arguments.split(",") if each.strip() not in ("", "void")]
            headers[name] = kind(result), taken
    host, called = host_library(), {name: count for name, count, _, _ in calls(HOST)}
    assert len(called) == 4
    assert not isinstance(host, ctypes.PyDLL)  # other threads run while one waits for a peer
    for name, count in called.items():
        entry = getattr(host, name)
        assert len(entry.argtypes) == count
        restype = KINDS[getattr(entry.restype, "__name__", "None")]
        assert (restype, [KINDS[each.__name__] for each in entry.argtypes]) == headers[name], name


def test_transfers_give_the_library_whole_numbers_of_the_right_order(monkeypatch):
    """Where to, where from, bytes, whom, on which stream. The library takes whatever it is given for that."""
    import nvshmem.bindings

    noted, library = Mock(ptr=Mock(return_value=0)), object.__new__(Nvshmem)
    monkeypatch.setattr(Nvshmem, "_calls", noted)
    monkeypatch.setattr(Nvshmem, "_stream", 7)
    one, other = torch.zeros(48, dtype=torch.uint8), torch.zeros(48, dtype=torch.uint8)
    library.get_nbi(one, other, 3)
    library.put_nbi(one, other, 3)
    library.quiet()
    library.mapped(one, 3)
    moved = one.data_ptr(), other.data_ptr(), 48, 3, 7
    get, put = call.getmem_nbi_on_stream(*moved), call.putmem_nbi_on_stream(*moved)
    assert noted.method_calls == [get, put, call.quiet_on_stream(7), call.ptr(one.data_ptr(), 3)]
    for name in ("getmem_nbi_on_stream", "putmem_nbi_on_stream"):
        names = list(inspect.signature(getattr(nvshmem.bindings, name)).parameters)
        assert names == ["dest", "source", "bytes", "pe", "cstrm"]


# Processes without a GPU know each other, and no more.


def started_twice(rank):
    import nvshmem.bindings
    import nvshmem.core

    alone = [dist.new_group([device]) for device in range(2)]
    nvshmem_library.start()
    status = nvshmem.bindings.init_status()
    nvshmem_library.start(alone[rank])
    return status, nvshmem.core.my_pe(), nvshmem.core.n_pes()


@pytest.mark.slow
def test_a_second_start_over_others_gets_the_devices_of_the_first_without_a_word():
    """Why others are refused, and why it is asked after a start who is there."""
    assert on_ranks(started_twice, 2, 60.0) == [(nvshmem_library.BOOTSTRAPPED, rank, 2) for rank in range(2)]


@pytest.mark.slow
def test_what_is_called_past_nvshmem4py_is_the_library_that_it_uses():
    """Not another copy, which would know nothing of a start."""
    from nvshmem.bindings._internal.nvshmem import _inspect_function_pointers

    nvshmem_library.versions()
    host, used = host_library(), _inspect_function_pointers()
    for name in (name for name in vars(host) if name.startswith("nvshmem")):
        assert ctypes.cast(getattr(host, name), ctypes.c_void_p).value == used[f"__{name}"]


def waits_for_a_start(rank):
    """Device 1 takes the id and never comes."""
    if rank == 1:
        dist.broadcast_object_list([None], group_src=0)
        return dist.barrier()  # it lives as long as it is waited for
    host = SimpleNamespace(rank=0, size=2, timeout=0.5, group=None, check=lambda: None, explain=lambda: None)
    memory = NvshmemMemory(host, SimpleNamespace(device=torch.device("cpu")))
    found = lost(lambda: memory._bounded(nvshmem_library.start, "NVSHMEM's start"))
    dist.barrier()
    return found


@pytest.mark.slow
def test_a_start_to_which_a_device_never_comes_is_given_up_in_time():
    """nvshmem4py lets other threads run meanwhile."""
    assert on_ranks(waits_for_a_start, 2, 60.0)[0] == [1]
