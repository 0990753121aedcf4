"""A verb that many classes answer to is said once, and who answers says whose word it is. Read from the source."""

import ast

import pytest
from sources import ENGINE

# Each verb, the file with the interface, and the interfaces there.
VERBS = {
    "meet": {"odc_engine.backends.base": ["Meeting"], "odc_engine.devices.run_device": ["RunDevice"]},
    "take": {"odc_engine.backends.base": ["Counting"], "odc_engine.fsdp.communication": ["Communication"]},
    "drain": {"odc_engine.places.lanes": ["Lane"], "odc_engine.fsdp.communication": ["Communication"]},
    "settle": {"odc_engine.fsdp.communication": ["Communication"]},
    "publish": {"odc_engine.fsdp.communication": ["Communication"], "odc_engine.devices.run_device": ["RunDevice"]},
    "finish": {"odc_engine.places.place": ["Place"], "odc_engine.backends.base": ["Collectives"]},
    "gathered": {"odc_engine.devices.run_device": ["RunDevice"]},
}
# What an answering class is made of, with a word alike that nobody else says to it.
PARTS = {"Peers", "Links", "Team", "Library", "Nvshmem", "Arena", "Buffers", "Checks", "Late"}
Place = tuple[str, str]  # a module, and a class there
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in ENGINE.items()}
CLASSES: dict[Place, ast.ClassDef] = {
    (module, node.name): node for module, tree in TREES.items() for node in tree.body if isinstance(node, ast.ClassDef)
}


def home(module: str, name: str) -> Place:
    """Where a module has a name from."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            return str(node.module), name
    return module, name


def line(place: Place) -> set[Place]:
    """A class and all that it derives from in the engine."""
    if place not in CLASSES:
        return set()
    bases = (getattr(base, "id", getattr(base, "attr", "")) for base in CLASSES[place].bases)
    return {place}.union(*(line(home(place[0], base)) for base in bases))


def answering(verb: str) -> list[Place]:
    return [
        place
        for place, node in CLASSES.items()
        if verb in {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    ]


@pytest.mark.parametrize("verb", VERBS)
def test_who_answers_to_a_verb_says_whose_it_is(verb):
    interfaces = {(module, name) for module, names in VERBS[verb].items() for name in names}
    others = [place for place in answering(verb) if not line(place) & interfaces]
    assert [place for place in others if not {name for _, name in line(place)} & PARTS] == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_said_where_its_interface_is(verb):
    for module, names in VERBS[verb].items():
        for name in names:
            [method] = [each for each in CLASSES[module, name].body if getattr(each, "name", "") == verb]
            assert ast.get_docstring(method)


@pytest.mark.parametrize("said", ["did not synchronize", "wait longer with", "seconds between looks"])
def test_how_long_a_silent_peer_is_waited_for_has_one_home(said):
    homes = [name for name, path in ENGINE.items() if said in path.read_text(encoding="utf-8")]
    assert homes == ["odc_engine.backends.patience"]
