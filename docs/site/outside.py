"""Where files of the repository are on the site, and a page's links and fences made to fit it."""

import posixpath
import re
from collections.abc import Callable

# A file outside `docs`, and the page that it becomes.
PAGES = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "traces/README.md": "traces.md",
    "notebooks/README.md": "notebooks/index.md",
}
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[\w-]+)?(\))")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"^( *)```(\w+) ([\w.-]+)$", re.MULTILINE)


def target(path: str) -> str:
    """Where on the site a file of the repository is; a notebook is a page there."""
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return PAGES.get(path, path.removeprefix("docs/"))


def fitted(text: str, path: str) -> str:
    """The page that a file becomes. What is fenced stays as it is, but shows the name of its file above."""
    here, there = posixpath.dirname(path), posixpath.dirname(target(path)) or "."

    def one(link: re.Match[str]) -> str:
        if "://" in link[2]:
            return link[0]
        goal = target(posixpath.normpath(posixpath.join(here, link[2])))
        return f"{link[1]}{posixpath.relpath(goal, there)}{link[3] or ''}{link[4]}"

    named = r"\1```{code-block} \2\n\1:caption: \3\n"
    return _apart(text, lambda part: _LINK.sub(one, part), lambda fence: _NAMED.sub(named, fence))


def _apart(text: str, words: Callable[[str], str], fences: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [words(text[end : fence.start()]), fences(fence[0])]
        end = fence.end()
    return "".join([*parts, words(text[end:])])
