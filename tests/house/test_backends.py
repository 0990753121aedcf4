"""What a backend is stands in its row: outside odc_engine/backends nobody asks which one it is. Read from the source,
without torch."""

import ast
from collections.abc import Iterator

import pytest
from scripts import ROOT
from sources import ENGINE

from odc_engine import backends

NAMES = set(backends.names())
PACKAGES = {"torch"}  # a name that is also that of a package, which others may look for
OUTSIDE = {name: path for name, path in ENGINE.items() if not name.startswith("odc_engine.backends")}
CLASSES = {
    node.name
    for path in (ROOT / "odc_engine/backends").glob("*/*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
}


def words(node: ast.AST) -> set[object]:
    """Texts that stand in an expression."""
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def is_a_backend(node: ast.AST) -> bool:
    """`backend`, `job.backend`, or the name of either."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return is_a_backend(node.value)
    return getattr(node, "attr", getattr(node, "id", "")) in ("backend", "row")


def asked(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(words(side) & NAMES for side in sides) or any(map(is_a_backend, sides)):
                yield node.lineno, "compares"
        elif isinstance(node, ast.MatchValue) and words(node) & NAMES:
            yield node.value.lineno, "matches"
        elif isinstance(node, ast.Dict) and any(words(key) & NAMES - PACKAGES for key in node.keys if key):
            yield node.lineno, "has a table by name"
        elif isinstance(node, ast.Subscript) and words(node.slice) & NAMES:
            yield node.lineno, "looks up a name"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            kinds = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node.args[1])}
            if kinds & CLASSES:
                yield node.lineno, "asks for a class of one backend"
        elif isinstance(node, ast.FunctionDef) and getattr(node.returns, "id", "") == "bool" and takes_a_backend(node):
            yield node.lineno, "answers a question that is the row's"


def takes_a_backend(function: ast.FunctionDef) -> bool:
    return "backend" in {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}


@pytest.mark.parametrize("name", OUTSIDE)
def test_nobody_else_asks_which_backend_it_is(name):
    assert list(asked(ast.parse(OUTSIDE[name].read_text(encoding="utf-8")))) == []


QUESTIONS = (
    "job.backend == 'shm'",
    "plan.backend.name in ('shm', 'torch')",
    "backend != usual",
    "'threads' == name",
    "SYNCS = {'shm': 1}",
    "SYNCS['cuda_ipc']",
    "isinstance(memory, SharedMemory)",
    "isinstance(memory, (Arena, device.NcclDevice))",
    "def has_gpu(backend: str, device: str) -> bool: ...",
    "match name:\n    case 'nvshmem': ...",
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_way_to_ask_is_seen(question):
    assert len(list(asked(ast.parse(question)))) == 1


@pytest.mark.parametrize("fine", ["job.backend.across", "isinstance(backend, Threads)", "find_spec('nvshmem')"])
def test_what_a_row_says_may_be_asked(fine):
    assert list(asked(ast.parse(fine))) == []


def test_every_backend_has_a_folder_and_its_row_there():
    folders = {path.parent.name for path in (ROOT / "odc_engine/backends").glob("*/__init__.py")}
    assert {type(row).__module__ for row in backends.ROWS} == {f"odc_engine.backends.{name}" for name in folders}
