"""One word, one meaning: no class shares its name with another, and the nouns of the contracts are in the glossary."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from scripts import ROOT
from sources import ENGINE, ODCSIM

PAGE = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
GLOSSARY = {word.lower() for word in re.findall(r"^\| ([\w -]+) \| ", PAGE, re.MULTILINE)}
PLAIN = {"About", "BalancedBatches", "Given", "Parser", "Passes", "Polynomial", "Silence", "Started"}  # say it all
ERRORS = re.compile(r"Error$|Lost$|^Bad")


def classes(path: Path) -> list[str]:
    return [
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)
    ]


def test_no_two_classes_share_a_name():
    homes = defaultdict(list)
    for module, path in (ODCSIM | ENGINE).items():
        for name in classes(path):
            homes[name.lstrip("_")].append(module)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_two_files_of_tests_share_a_name():
    """Their folders are no packages, so pytest would take the one for the other, and collect neither."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def words(name: str) -> str:
    return " ".join(re.findall(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z][a-z]+", name)).lower()


def test_the_nouns_of_the_contracts_are_in_the_glossary():
    """A compound such as ScheduleFile is known by its first or its last word."""
    missing = []
    for module, path in (ODCSIM | ENGINE).items():
        for name in classes(path) if module.count(".") == 1 and path.name != "__init__.py" else []:
            parts = words(name).split()
            if not (
                name.startswith("_")
                or name in PLAIN
                or ERRORS.search(name)
                or {" ".join(parts), parts[0], parts[-1]} & GLOSSARY
            ):
                missing.append(f"{module}.{name}")
    assert missing == []


TO_RUN = re.compile(r"`(?:\S*/)?(?:pytest|python) [^`]*`")


def prose(page: str) -> str:
    """Sentences: neither code, tables nor commands to type."""
    text = re.sub(r"^ *```.*?^ *```$|^ *\|[^\n]*$", "", page, flags=re.MULTILINE | re.DOTALL)
    return TO_RUN.sub("", text)


def test_no_sentence_of_a_page_names_a_test():
    """Who reads a page wants to know what holds, and has a table where it matters what holds it. What says how to add
    something, at the end of CONTRIBUTING.md, tells which test to look at."""
    every = [path for folder in ("docs", "notebooks", "traces") for path in (ROOT / folder).rglob("*.md")]
    pages = {path: path.read_text(encoding="utf-8") for path in (*ROOT.glob("*.md"), *every)}
    pages[ROOT / "CONTRIBUTING.md"] = pages[ROOT / "CONTRIBUTING.md"].partition("\n## Add ")[0]
    assert len(pages) > 40
    assert {
        str(path.relative_to(ROOT)): found
        for path, text in pages.items()
        if (found := re.findall(r"\btest_\w+", prose(text)))
    } == {}


def test_prose_is_what_is_neither_code_table_nor_command():
    page = "a test_a\n\n```sh\ntest_b\n```\n\n| test_c |\n\n`pytest test_d.py\n-s`, `bin/pytest test_e`, `test_f`\n"
    assert re.findall(r"test_\w", prose(page)) == ["test_a", "test_f"]


def test_no_test_imports_another():
    """What several need is a helper, so that a folder of tests runs by itself."""
    files = {p: p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py")}
    assert [
        str(p.relative_to(ROOT)) for p, text in files.items() if re.search(r"^(from|import) test_", text, re.MULTILINE)
    ] == []
