"""Every call that the engine makes of NVSHMEM fits what is installed: nvshmem4py's signatures, and the headers of the
library. No GPU is asked. Skipped where nvshmem4py is not installed."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch

import odc_engine
from odc_engine.backends.nvshmem.library import Nvshmem, host_library

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
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if ast.unparse(node.func.value) in spellings:
                keywords = [keyword.arg for keyword in node.keywords]
                yield node.func.attr, len(node.args), keywords, f"{path.relative_to(ROOT)}:{node.lineno}"


def fits(module, name, count, keywords):
    try:
        inspect.signature(getattr(module, name)).bind(*range(count), **dict.fromkeys(keywords))
    except (AttributeError, TypeError):
        return False
    return True


@pytest.mark.parametrize("module", ["core", "bindings"])
def test_calls_of_nvshmem4py_have_its_signatures(module):
    import nvshmem.bindings

    where, spellings = {"core": (nvshmem.core, CORE), "bindings": (nvshmem.bindings, BINDINGS)}[module]
    found = list(calls(spellings))
    wrong = [f"{place}: {name}" for name, *given, place in found if not fits(where, name, *given)]
    assert not wrong
    expected = {"core": {"init", "get_unique_id", "put", "get"}, "bindings": {"putmem_nbi_on_stream", "ptr"}}
    assert expected[module] <= {name for name, *_ in found}


HEADERS = re.compile(r"(\w+[ *]+)(nvshmemx?_\w+)\(([^()]*)\);")
KINDS = {"c_void_p": "pointer", "c_ulong": "size_t", "None": "void"}


def declared():
    """Functions of the library's headers for the host: what they return and take."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = {}
    for path in Path(find_nvidia_header_directory("nvshmem")).joinpath("host").glob("nvshmem*_api.h"):
        for result, name, arguments in HEADERS.findall(path.read_text()):
            found[name] = (
                kind(result),
                [kind(each) for each in arguments.split(",") if each.strip() not in ("", "void")],
            )
    return found


def kind(words):
    return "pointer" if "*" in words or "cudaStream_t" in words else "size_t" if "size_t" in words else words.split()[0]


def test_entries_that_are_called_past_nvshmem4py_are_declared_as_the_headers_have_them():
    host, headers = host_library(), declared()
    called = {name: count for name, count, _, _ in calls(HOST)}
    assert len(called) == 4
    for name, count in called.items():
        entry = getattr(host, name)
        assert len(entry.argtypes) == count
        restype = KINDS[getattr(entry.restype, "__name__", "None")]
        assert (restype, [KINDS[each.__name__] for each in entry.argtypes]) == headers[name], name


class Noted:
    def __init__(self):
        self.made = []

    def __getattr__(self, name):
        return lambda *args: self.made.append((name, args)) or 0


def test_transfers_give_the_library_whole_numbers_of_the_right_order(monkeypatch):
    """Where to, where from, bytes, whom, on which stream. The library takes whatever it is given for that."""
    noted, library = Noted(), object.__new__(Nvshmem)
    monkeypatch.setattr(Nvshmem, "_calls", noted)
    monkeypatch.setattr(Nvshmem, "_stream", 7)
    one, other = torch.zeros(48, dtype=torch.uint8), torch.zeros(48, dtype=torch.uint8)
    library.get_nbi(one, other, 3)
    library.put_nbi(one, other, 3)
    library.quiet()
    library.mapped(one, 3)
    here, there = one.data_ptr(), other.data_ptr()
    assert noted.made == [
        ("getmem_nbi_on_stream", (here, there, 48, 3, 7)),
        ("putmem_nbi_on_stream", (here, there, 48, 3, 7)),
        ("quiet_on_stream", (7,)),
        ("ptr", (here, 3)),
    ]
    import nvshmem.bindings

    for name, args in noted.made:
        names = list(inspect.signature(getattr(nvshmem.bindings, name)).parameters)
        assert len(names) == len(args)
        if len(names) == 5:
            assert names == ["dest", "source", "bytes", "pe", "cstrm"]
