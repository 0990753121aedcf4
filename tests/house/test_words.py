"""One word, one meaning, said in one place. Read from the sources and the pages, without torch."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
from scripts import ROOT
from sources import Files, Source, everything, modules, planted, programs

from odc_engine import backends
from odcsim.recipe import CHOICES, KERNELS

HERE = "tests/house/test_words.py"
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
KNOWN = {word.lower() for word in re.findall(r"^\| ([\w -]+) \| ", GLOSSARY, re.MULTILINE)}
PLAIN = {"About", "BalancedBatches", "Given", "Parser", "Passes", "Polynomial", "Silence", "Started"}  # say it all
ERRORS = re.compile(r"Error$|Lost$|^Bad")


def classes(files: Files, *packages: str) -> Iterator[tuple[str, Source, ast.ClassDef]]:
    """Each with the module that has it."""
    for module, source in modules(files, *packages).items():
        for node in source.every(ast.ClassDef):
            yield module, source, node


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef)]


def classes_of_one_name(files: Files) -> list[str]:
    homes = defaultdict(list)
    for _, source, node in classes(files):
        homes[node.name.lstrip("_")].append(source.at(node.lineno, node.name))
    return [place for places in homes.values() if len(places) > 1 for place in places]


def nouns_without_a_meaning(files: Files) -> list[str]:
    """Those of the contracts are in the glossary; a compound is known by its first or its last word."""
    found = []
    for module, source, node in classes(files):
        if module.count(".") == 1 and "__init__" not in source.name:
            parts = re.findall(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z][a-z]+", node.name)
            words = {word.lower() for word in (" ".join(parts), parts[0], parts[-1])}
            if not (node.name.startswith("_") or node.name in PLAIN or ERRORS.search(node.name) or words & KNOWN):
                found.append(source.at(node.lineno, f"{node.name} is not in docs/glossary.md"))
    return found


def paths_of_a_machine(files: Files) -> list[str]:
    """Nobody else has it."""
    pattern = re.compile(r"(?<![\w.~}])/(?:home|Users|root|work)/\w[\w/.-]*")
    return [said for one in files if one.name != HERE for said in one.found(pattern)]


# How a choice of the recipe travels: inside the recipe, from whoever asks down to the place that acts on it. Passed on
# by itself it would spread over the house: a parameter here, a field there, and each new choice the same again.

ASKING = ("odcsim/cli", "odcsim/show", "odcsim/plots", "odcsim/decide")
SEVERAL = {"sync", "sharding"}  # of which these rooms try several for one recipe
OLDEST = {"sync", "recompute", "sharding", "accumulate", "exchange", "context"}  # which most of the house acts on
NEW = 6
# What else is called so: what torch calls its own, and what every training step has.
ELSEWHERE = {"dtype", "reshard", "streams", "attention", "loss", "optimizer", "stack"}
# Which say it in other trainers' words.
SPREAD = "odcsim/neighbours/"


def choices_outside_a_recipe(files: Files) -> list[str]:
    """What functions take, and values hold, each by itself, in rooms that ask."""
    found = []
    for source in programs(files, *ASKING):
        for node in source.every(ast.FunctionDef):
            taken = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            found += [(source, each, each.arg) for each in taken]
        fields = [each for node in source.every(ast.ClassDef) for each in node.body if isinstance(each, ast.AnnAssign)]
        found += [(source, each, each.target.id) for each in fields]
    return [source.at(each.lineno, name) for source, each, name in found if name in set(CHOICES) - SEVERAL]


def kernels_known_beside_estimates(files: Files) -> list[str]:
    elsewhere = [one for one in modules(files).values() if not one.name.startswith("odcsim/catalog/estimates/")]
    found = [(one, node) for one in elsewhere for node in one.every(ast.Attribute) if node.attr in KERNELS]
    return [one.at(node.lineno, node.attr) for one, node in found if getattr(node.value, "attr", "") == "kernels"]


def choices_named_all_over(files: Files) -> list[str]:
    """A choice is named where it is acted on and nowhere else: a new one costs no more files than this."""
    homes = defaultdict(list)
    for source in modules(files).values():
        nodes = source.every(ast.Name, ast.Attribute, ast.arg, ast.keyword, ast.Constant)
        every = [getattr(node, field, None) for node in nodes for field in ("id", "attr", "arg", "value")]
        names = {each for each in every if isinstance(each, str)} & (set(CHOICES) - ELSEWHERE - OLDEST)
        for name in names if not source.name.startswith(SPREAD) else ():
            homes[name].append(source.name)
    return [f"{name}: {', '.join(places)}" for name, places in homes.items() if len(places) > NEW]


# What a backend is stands in its row: outside odc_engine/backends nobody asks which one it is.

BACKENDS = set(backends.names())
PACKAGES = {"torch"}  # a name that is also that of a package, which others may look for


def questions_that_are_a_row_s(files: Files) -> list[str]:
    there = [one for one in programs(everything(), "odc_engine/backends") if one.name.count("/") == 3]
    classes = {node.name for one in there for node in one.tree.body if isinstance(node, ast.ClassDef)}
    outside = [one for one in programs(files, "odc_engine") if not one.name.startswith("odc_engine/backends/")]
    return [one.at(line, what) for one in outside for line, what in sorted(asked(one, classes))]


def asked(source: Source, classes: set[str]) -> Iterator[tuple[int, str]]:
    for node in source.every(ast.Compare):
        sides = [node.left, *node.comparators]
        if any(words(side) & BACKENDS or is_a_backend(side) for side in sides):
            yield node.lineno, "compares"
    for node in source.every(ast.MatchValue):
        if words(node) & BACKENDS:
            yield node.value.lineno, "matches"
    for node in source.every(ast.Dict):
        if any(words(key) & BACKENDS - PACKAGES for key in node.keys if key):
            yield node.lineno, "has a table by name"
    for node in source.every(ast.Subscript):
        if words(node.slice) & BACKENDS:
            yield node.lineno, "looks up a name"
    for node in source.every(ast.Call):
        asks = getattr(node.func, "id", "") == "isinstance"
        if asks and classes & {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node.args[1])}:
            yield node.lineno, "asks for a class of one backend"
    for node in source.every(ast.FunctionDef):
        takes = {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
        if getattr(node.returns, "id", "") == "bool" and "backend" in takes:
            yield node.lineno, "answers a question that is the row's"


def words(node: ast.AST) -> set[object]:
    """Texts that stand in an expression."""
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def is_a_backend(node: ast.AST) -> bool:
    """`backend`, `job.backend`, or the name of either."""
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return is_a_backend(node.value)
    return getattr(node, "attr", getattr(node, "id", "")) in ("backend", "row")


# A verb that many classes answer to is said once, and who answers says whose word it is.

MEETING, COMMUNICATION = "odc_engine.backends.base.Meeting", "odc_engine.fsdp.communication.Communication"
RUN_DEVICE = "odc_engine.devices.run_device.RunDevice"
VERBS = {  # each with its interfaces
    "meet": [MEETING, RUN_DEVICE],
    "take": ["odc_engine.backends.base.Counting", COMMUNICATION],
    "drain": ["odc_engine.places.lanes.Lane", COMMUNICATION],
    "settle": [COMMUNICATION],
    "publish": [COMMUNICATION, RUN_DEVICE],
    "finish": ["odc_engine.places.place.Place", "odc_engine.backends.base.Collectives"],
    "gathered": [RUN_DEVICE],
}
# What an answering class is made of, with a word alike that nobody else says to it.
PARTS = {"Peers", "Links", "Team", "Library", "Nvshmem", "Arena", "Buffers", "Checks", "Late"}


def answers_of_nobody(files: Files) -> list[str]:
    """Classes with such a verb that derive from none of its interfaces."""
    known = {f"{module}.{node.name}": (source, node) for module, source, node in classes(files, "odc_engine")}

    def line(name: str) -> set[str]:
        """A class and all that it derives from in the engine."""
        if name not in known:
            return set()
        source, node = known[name]
        imported = {each.rpartition(".")[2]: each for _, each in source.imports if each.startswith("odc_engine.")}
        bases = (getattr(base, "id", getattr(base, "attr", "")) for base in node.bases)
        return {name}.union(*(line(imported.get(base, f"{source.module}.{base}")) for base in bases))

    return [
        source.at(method.lineno, f"{node.name}.{method.name}")
        for name, (source, node) in known.items()
        for method in methods(node)
        if method.name in VERBS
        if not line(name) & {*VERBS[method.name]} and not {each.rpartition(".")[2] for each in line(name)} & PARTS
    ]


def interfaces_without_a_word(files: Files) -> list[str]:
    """A verb is explained where its interface is."""
    every = classes(files, "odc_engine")
    told = [(f"{module}.{node.name}", method) for module, _, node in every for method in methods(node)]
    said = {f"{interface}.{method.name}" for interface, method in told if ast.get_docstring(method)}
    wanted = {f"{interface}.{verb}" for verb, interfaces in VERBS.items() for interface in interfaces}
    return [f"{name} says not what it promises" for name in sorted(wanted - said)]


def test_the_recipe_and_its_estimates_name_every_choice():
    """So that the rules on choices have something to hold."""
    known = modules(everything())
    estimates = [one for name, one in known.items() if ".estimates." in name]
    assert {*KERNELS} <= {node.attr for one in estimates for node in one.every(ast.Attribute)}
    fields = {node.target.id for node in known["odcsim.recipe"].every(ast.AnnAssign)}
    assert {*CHOICES} <= fields | {node.value for node in known["odcsim.recipe"].every(ast.Constant)}


CASE = "odc_engine/job.py"
SEVEN = {f"odcsim/a{number}.py": "def f(lora): ..." for number in range(NEW + 1)}
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
WAYS = {"odcsim/a.py": "class Way: ...", CASE: "def f():\n    class _Way: ..."}
GIZMO = {"odcsim/a.py": "class Gizmo: ...\nclass ScheduleFile: ..."}
ANSWERS = {"odc_engine/a.py": "class Mine:\n    def settle(self): ..."}
ANSWERS["odc_engine/b.py"] = "from odc_engine.a import Lane\nclass Yours(Lane):\n    def drain(self): ..."
WORDLESS = {"odc_engine/devices/run_device.py": "class RunDevice:\n    def gathered(self): ..."}
RULES = {  # each with a file or two that break it, and what is said of them
    classes_of_one_name: (WAYS, ["odcsim/a.py:1: Way", "odc_engine/job.py:2: _Way"]),
    nouns_without_a_meaning: (GIZMO, ["odcsim/a.py:1: Gizmo is not in docs/glossary.md"]),
    paths_of_a_machine: ({"docs/a.md": "\nsee /home/me/runs, not https://a.b/home/me"}, ["docs/a.md:2: /home/me/runs"]),
    choices_outside_a_recipe: ({"odcsim/cli/a.py": "def f(recompute): ..."}, ["odcsim/cli/a.py:1: recompute"]),
    kernels_known_beside_estimates: ({CASE: "recipe.kernels.loss"}, ["odc_engine/job.py:1: loss"]),
    choices_named_all_over: (SEVEN, [f"lora: {', '.join(SEVEN)}"]),
    answers_of_nobody: (ANSWERS, ["odc_engine/a.py:2: Mine.settle", "odc_engine/b.py:3: Yours.drain"]),
    questions_that_are_a_row_s: ({CASE: "\njob.backend == 'shm'"}, ["odc_engine/job.py:2: compares"]),
    interfaces_without_a_word: (WORDLESS, [f"{RUN_DEVICE}.gathered says not what it promises"]),
}


@pytest.mark.parametrize("rule", RULES)
def test_it_sees_what_breaks_it_and_nothing_does(rule):
    files, said = RULES[rule]
    assert [each for each in rule(planted(files)) if each in said] == said
    assert (broken := rule(everything())) == [], "\n".join(broken)


def test_each_way_to_ask_for_a_backend_is_seen_and_what_a_row_says_may_be_asked():
    seen = [questions_that_are_a_row_s(planted({CASE: question})) for question in QUESTIONS]
    assert [len(found) for found in seen] == [1] * len(QUESTIONS)
    fine = "job.backend.across\nisinstance(backend, Threads)\nfind_spec('nvshmem')"
    assert questions_that_are_a_row_s(planted({CASE: fine})) == []
    folders = {path.parent.name for path in (ROOT / "odc_engine/backends").glob("*/__init__.py")}
    assert {type(row).__module__ for row in backends.ROWS} == {f"odc_engine.backends.{name}" for name in folders}
