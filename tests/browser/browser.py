"""A real browser without a window: pages opened, measured and photographed. `make browser` installs what it needs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (390, 800, 1400)
SCHEMES = ("light", "dark")
VIEWS = [(width, scheme) for width in WIDTHS for scheme in SCHEMES]

# Boxes of words: of every figure, and of the page around them.
_BOXES = """() => {
  const seen = (e) => { const s = getComputedStyle(e); return s.visibility !== "hidden" && s.display !== "none"; };
  const box = (e, of) => { const r = e.getBoundingClientRect();
    return {of, text: e.textContent.trim().slice(0, 60), left: r.left + scrollX, top: r.top + scrollY,
            right: r.right + scrollX, bottom: r.bottom + scrollY}; };
  const boxes = [];
  for (const plot of document.querySelectorAll(".js-plotly-plot")) {
    const name = plot.id || "figure";
    for (const e of plot.querySelectorAll("svg text")) if (e.textContent.trim() && seen(e)) boxes.push(box(e, name));
  }
  const words = ["h1", "h2", "h3", "p", "li > b", "li > span", "label"].map((tag) => `main ${tag}`).join();
  for (const e of document.querySelectorAll(words))
    if (e.textContent.trim() && seen(e) && e.getClientRects().length) boxes.push(box(e, "page"));
  return boxes.filter((b) => b.right > b.left && b.bottom > b.top);
}"""
# What reaches beyond the window's right edge, but for what scrolls by itself.
_WIDE = """() => [...document.querySelectorAll("main *")].filter((e) => {
  if (e.closest("svg") || e.closest(".scroll")) return false;
  return e.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map((e) => e.tagName + ": " + e.textContent.trim().slice(0, 60))"""
# Words of figures that reach beyond their figure, which shows nothing of them there.
_CUT = """() => [...document.querySelectorAll(".js-plotly-plot")].flatMap((plot) => {
  const room = plot.getBoundingClientRect();
  return [...plot.querySelectorAll("svg text")].filter((e) => {
    const r = e.getBoundingClientRect();
    return r.width && e.textContent.trim() && (r.right > room.right + 1 || r.left < room.left - 1);
  }).map((e) => plot.id + ": " + e.textContent.trim().slice(0, 60));
})"""


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def missing() -> str:
    """What a test with a browser lacks here, or nothing."""
    lacks = [package for package in ("playwright", "axe_playwright_python", "nbconvert") if find_spec(package) is None]
    lacks += [] if executable() else ["a browser"]
    return f"no {', no '.join(lacks)}: make browser" if lacks else ""


@dataclass
class Seen:
    """A page that is open, and what it complained about."""

    page: Any
    errors: list[str] = field(default_factory=list)

    def open(self, address: Path | str) -> "Seen":
        self.page.goto(address.as_uri() if isinstance(address, Path) else address)
        return self

    def drawn(self, figures: int) -> "Seen":
        """Wait until so many figures are there, and what moves has come to rest."""
        for _ in range(600):  # asked again and again: the page's policy lets nothing wait inside it
            left = figures - self.page.evaluate("""document.querySelectorAll('.figure[data-drawn="yes"]').length""")
            if left <= 0:
                break
            self.page.wait_for_timeout(100)
        assert left <= 0, f"{left} of {figures} figures are not drawn; {self.errors}"
        self.page.wait_for_timeout(300)
        return self

    def boxes(self) -> list[dict[str, Any]]:
        return list(self.page.evaluate(_BOXES))

    def readable(self, picture: Path) -> None:
        """Nothing covers anything or reaches beyond the window."""
        self.picture(picture)
        assert overlapping(self.boxes()) == []
        assert self.page.evaluate(_WIDE) == []
        assert self.accessible() == []

    def laid_out(self, picture: Path) -> None:
        """Nor is anything cut or complained of."""
        self.readable(picture)
        assert self.page.evaluate(_CUT) == []
        assert self.errors == []

    def accessible(self) -> list[str]:
        """What axe finds wrong."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page).response["violations"]
        return [f"{v['id']}: {[node['target'] for node in v['nodes']][:4]}" for v in found]

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(path), full_page=True)


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=executable(), args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def window(browser: Any, width: int = 1400, scheme: str = "light", height: int = 900) -> Iterator[Seen]:
    """A window of its own, with nothing kept from others."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    seen = Seen(context.new_page())
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
    yield seen
    context.close()


def overlapping(boxes: list[dict[str, Any]], slack: float = 2.0) -> list[str]:
    """Pairs of words of one figure, or of the page, that cover each other by more than `slack` pixels both ways."""
    pairs = []
    for i, one in enumerate(boxes):
        for other in boxes[i + 1 :]:
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
            if across > slack and down > slack:
                pairs.append(f"{one['of']}: '{one['text']}' over {other['of']}: '{other['text']}'")
    return pairs
