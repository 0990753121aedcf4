"""Public names: the same as ever, loaded no earlier than they are used, and each taken by one path."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import combinations
from textwrap import dedent

import pytest
from public import NAMES, Taken, elsewhere, goes_around, missing, offered, private
from sources import Files, Source, everything, pages, planted, programs

pytest.importorskip("torch")

DOTTED = re.compile(r"\b((?:odcsim|odc_engine)(?:\.\w+)+)\.(\w+)")
HERE = "tests/house/test_public.py"  # shows what other paths are
PAGE = "A page says `odc_engine.sampler.agree(digest)`.\n\n```python\nfrom odc_engine.sampler import agree\n```\n"


def test_public_names_are_those_that_were_always_public_and_no_two_modules_offer_the_same():
    for module in NAMES:
        found = import_module(module)
        assert sorted(found.__all__) == sorted(NAMES[module]), module
        assert [name for name in NAMES[module] if not hasattr(found, name)] == []
    for a, b in combinations(NAMES, 2):
        assert [n for n in NAMES[a] & NAMES[b] if offered(a, n) is offered(b, n)] == [], f"{a} and {b}"
    for package in ("odcsim", "odcsim.balance", "odc_engine", "odc_engine.trainers"):
        with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
            import_module(package).nothing  # noqa: B018


def test_public_names_are_listed_before_they_are_loaded():
    code = "import odcsim; print(*dir(odcsim)); odcsim.balance.plan, odcsim.plots.idle"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rooms = {name.removeprefix("odcsim.") for name in NAMES if name.startswith("odcsim.")}
    assert {name for name in listed if not name.startswith("__")} == NAMES["odcsim"] | rooms


def pages_by_another_path(files: Files) -> list[str]:
    """Pages and notebooks; the log records experiments as they were run."""
    found = []
    for page in pages(files):
        if page.name != "docs/log.md":
            found += [page.at(page.line(start), name) for start, name in said(page.text)]
            blocks = [(line, dedent(body)) for line, language, _, body in page.blocks if language == "python"]
            found += [page.at(line + below, name) for line, body in blocks for below, name in elsewhere(body)]
    for program in programs(files, "notebooks", "traces"):
        found += [program.at(*each) for each in [*elsewhere(program.tree), *in_strings(program)]]
    return found


def strings_by_another_path(files: Files) -> list[str]:
    """What the packages say, and programs in their strings; inside, they take names from where they are."""
    return [one.at(*each) for one in programs(files, "odcsim", "odc_engine") for each in in_strings(one)]


def insiders_by_another_path(files: Files) -> list[str]:
    """Tests and studies look inside the rooms of odcsim, but take the engine's public names as others do."""
    some = [one for one in programs(files, "tests", "docs/studies") if "odc_engine." in one.text and one.name != HERE]
    found = ((one, each) for one in some for each in [*elsewhere(one.tree), *in_strings(one)])
    return [one.at(*each) for one, each in found if each[1].startswith("odc_engine.")]


def in_strings(source: Source) -> Iterator[tuple[int, str]]:
    """What strings say and programs in strings take, at the line where the string begins."""
    for node in source.every(ast.Constant):
        if isinstance(node.value, str) and re.search("odcsim|odc_engine", node.value):
            yield from ((node.lineno, name) for name in taken_in(node.value))


def taken_in(string: str) -> list[str]:
    """Of a string that may be a program, or words with a program's line in them."""
    try:
        return [name for _, name in elsewhere(dedent(string))]
    except SyntaxError:
        found = [name for _, name in said(string)]
    for line in string.splitlines():
        try:
            found += [name for _, name in elsewhere(line.strip())] if line.lstrip().startswith("from odc") else []
        except SyntaxError:  # words, or the first line of an import over several
            continue
    return found


def said(text: str) -> Taken:
    """Names in words, and where they begin."""
    found = [match for match in DOTTED.finditer(text) if goes_around(*match.groups())]
    return [(match.start(), ".".join(match.groups())) for match in found]


STRINGS = {
    "odcsim/a.py": "RUN = 'from odc_engine.sampler import agree; agree(1)'",
    "odcsim/b.py": '"""Told.\n\n    from odc_engine.sampler import agree\n"""',
    "odcsim/c.py": '"""As odc_engine.sampler.agree does."""',
}
RULES = {
    pages_by_another_path: ({"docs/a.md": PAGE, "notebooks/b.py": "import odc_engine.sampler as s\ns.agree"}, "1 4 2"),
    strings_by_another_path: (STRINGS, "1 1 1"),
    insiders_by_another_path: ({"tests/a.py": "\nfrom odc_engine.sampler import REMEMBERED, agree"}, "2"),
}


@pytest.mark.parametrize("rule", RULES)
def test_another_path_is_seen_and_nobody_takes_one(rule):
    files, lines = RULES[rule]
    found = rule(planted(files))
    assert all(each.endswith(": odc_engine.sampler.agree") for each in found)
    assert " ".join(each.split(":")[1] for each in found) == lines
    assert (broken := rule(everything())) == [], "\n".join(broken)


PRIVATE = {
    "import numpy as np, odcsim\nodcsim.compare(odcsim.ask('t', 'm')).rows\nnp.zeros(3)": [],
    "import odcsim\nodcsim.balance.plan([1]).devices\nodcsim.plots.idle([])": [],
    "from odcsim import plots\nplots.idle([]).update_layout()": [],
    "from odcsim.balance import plan": [],
    "from odc_engine import OnDemand": [],
    "import odcsim.timeline as t\nt.read('a').blocks": [],
    "import odcsim\nodcsim.cost": [(2, "odcsim.cost")],
    "import odcsim\nodcsim.executors.des": [(2, "odcsim.executors"), (2, "odcsim.executors.des")],
    "import odcsim.cost": [(1, "odcsim.cost")],
    "def f():\n    from odcsim.executors.des import lower": [(2, "odcsim.executors.des.lower")],
    "from odcsim import plots as p\np.rows": [(2, "odcsim.plots.rows")],
    "from odc_engine.trainers import OnDemandMixin, rows": [(1, "odc_engine.trainers.rows")],
    "from odc_engine.packed import pack": [(1, "odc_engine.packed.pack")],
}
MISSING = {
    "from odcsim import plots\nplots.idle\nplots.idel": [(3, "odcsim.plots.idel")],
    "def f():\n    from odcsim.nowhere import a": [(2, "odcsim.nowhere.a")],
    "import odcsim.cost as c\nc.Cost, c.Costs": [(2, "odcsim.cost.Costs")],
    "import numpy as np\nnp.nothing": [],
}


def test_what_is_private_or_missing_is_seen_in_a_program():
    assert {code: sorted(private(code)) for code in PRIVATE} == PRIVATE
    assert {code: missing(code) for code in MISSING} == MISSING
