"""The explorer in a real browser: dragged and clicked, it shows what the command prints, soon."""

import threading
from contextlib import contextmanager

import browser
import pytest

from odcsim.recipe import recipe_of
from odcsim.show.explore import reply as replies
from odcsim.show.explore.controls import PageQuestion, read_link
from odcsim.show.explore.opening import opened
from odcsim.show.explore.reply import reply

pytestmark = pytest.mark.browser
SHOWN = """() => [...document.querySelectorAll('#table tbody tr')].map(
    (row) => [...row.children].map((cell) => cell.textContent))"""


@contextmanager
def serving(*asked):
    pytest.importorskip("dash", reason="make browser")
    from odcsim.show.explore.serve import serve

    one = serve(0, *asked)
    threading.Thread(target=one.server.serve_forever, daemon=True).start()
    try:
        yield one
    finally:
        one.server.shutdown()
        one.server.server_close()


@pytest.fixture(scope="module")
def served():
    with serving() as one:
        yield one


@pytest.fixture
def seen(chromium, served):
    """A window with the explorer as it is at first."""
    with browser.window(chromium, 1200) as seen:
        settled(seen.open(served.link()), PageQuestion())
        yield seen


def settled(seen, asked):
    """Wait for what belongs to this question, which the page's own link holds."""
    wanted = [list(row) for row in reply(asked).table[1]]
    for _ in range(300):
        if seen.page.evaluate(SHOWN) == wanted and read_link(seen.page.evaluate("location.search")) == asked:
            return
        seen.page.wait_for_timeout(50)
    raise AssertionError(f"{seen.page.evaluate(SHOWN)[:2]} is shown, not {wanted[:2]}; {seen.errors}")


def drawn(seen):
    for _ in range(300):
        if seen.page.evaluate("document.querySelectorAll('#pair .barlayer .point').length"):
            return
        seen.page.wait_for_timeout(50)
    raise AssertionError(f"nothing is drawn; {seen.errors}")


def dragged(seen, name, to):
    """A slider pulled by the mouse to a share of its width."""
    slider = seen.page.locator(f"#{name}")
    box, here = slider.bounding_box(), float(slider.input_value()) / float(slider.get_attribute("max"))
    along = [box["x"] + 8 + share * (box["width"] - 16) for share in (here, to)]
    seen.page.mouse.move(along[0], box["y"] + box["height"] / 2)
    seen.page.mouse.down()
    seen.page.mouse.move(along[1], box["y"] + box["height"] / 2, steps=4)
    seen.page.mouse.up()


def typed(seen, name, words):
    seen.page.locator(f"#{name}").fill(words)
    seen.page.locator(f"#{name}").press("Enter")


def test_it_answers_as_the_command_does_while_one_drags(seen, pictures):
    dragged(seen, "devices", 1.0)
    settled(seen, PageQuestion(devices=64))
    dragged(seen, "minibatch", 0.0)
    settled(seen, PageQuestion(devices=64, minibatch=1))
    typed(seen, "gpu", "h100")
    settled(seen, PageQuestion(devices=64, minibatch=1, gpu="h100"))
    drawn(seen)
    seen.page.locator("#break-even", has_text="Gb/s per GPU: It pays").wait_for()
    assert seen.page.locator("#command").inner_text() == PageQuestion(devices=64, minibatch=1, gpu="h100").command
    assert seen.errors == []
    seen.picture(pictures / "explore-dragged.png")


def test_an_old_answer_is_dimmed_until_the_new_one_is_there(seen, monkeypatch):
    """All that is of the old question, from the answer to the chart."""
    kept, go = replies.reply, threading.Event()
    opacity = "(name) => Number(getComputedStyle(document.querySelector(name)).opacity)"
    drawn(seen)
    monkeypatch.setattr(replies, "reply", lambda asked: go.wait(60) and kept(asked))
    dragged(seen, "devices", 0.0)
    for name in ("#advice", "#table", "figure", "#break-even", "#levers", "#command"):
        seen.page.wait_for_function(f"() => ({opacity})('{name}') < 0.5")
    go.set()
    settled(seen, PageQuestion(devices=1))
    for name in ("#advice", "#table", "figure", "#break-even", "#levers", "#command"):
        seen.page.wait_for_function(f"() => ({opacity})('{name}') === 1")
    assert seen.errors == []


def test_the_recipe_and_epochs_have_controls(seen):
    dragged(seen, "epochs", 1.0)
    settled(seen, PageQuestion(epochs=10.0))
    assert seen.page.locator("#advice", has_text="10 epochs are").count() == 1
    seen.page.locator("#recompute").get_by_label("without recompute").check()
    settled(seen, PageQuestion(epochs=10.0, recipe=recipe_of({"recompute": "none"})))
    assert seen.page.locator("#sharding").get_by_label("usual").is_checked()


def test_the_root_shows_what_it_was_started_with(chromium):
    asked = PageQuestion(trace="lmsys-chat")
    with serving(asked) as one, browser.window(chromium) as seen:
        for link in (one.link(), one.link().partition("?")[0]):
            settled(seen.open(link), asked)


def test_a_link_opens_what_was_set(chromium, served):
    asked = PageQuestion(trace="lmsys-chat", devices=16, network=100, price=3.0)
    with browser.window(chromium) as seen:
        settled(seen.open(served.link(asked.search)), asked)
        assert seen.page.locator("#trace").input_value() == "lmsys-chat"
        assert "token" not in seen.page.evaluate("location.href")


def test_a_file_that_only_its_owner_can_read_opens_it(chromium, served, monkeypatch, tmp_path):
    asked, files = PageQuestion(devices=4), []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", files.append)
    with opened(served.link(asked.search)) as entered, browser.window(chromium) as seen:
        monkeypatch.setattr(served.door, "entered", entered)
        seen.open(files[0])
        # The file leads to the link with its token, and that one to the page without.
        seen.page.wait_for_function("location.protocol == 'http:' && !location.search.includes('token')")
        settled(seen, asked)
        assert list(tmp_path.iterdir()) == []


def test_what_a_link_cannot_say_is_said(chromium, served):
    with browser.window(chromium) as seen:
        seen.open(served.link("?devices=3"))
        problem = "the link says devices=3; it may be 1, 2, 4, 8, 16, 32, 64"
        seen.page.locator("#link-problem", has_text=problem).wait_for()
        settled(seen, PageQuestion())


def test_a_page_of_another_site_learns_nothing(seen, served):
    """It knows the address, and the browser has the cookie."""
    place = served.link().partition("?")[0]
    seen.page.goto("about:blank")
    how = "{method: 'POST', body: '{}', credentials: 'include'}"
    asking = f"(place) => fetch(place, {how}).then((reply) => reply.status, String)"
    assert "TypeError" in seen.page.evaluate(asking, place + "_dash-update-component")
    seen.errors.clear()


def test_what_cannot_be_asked_is_said_and_the_rest_stays(seen):
    for name, words, line in (
        ("model", "no-such-model", "no-such-model"),
        ("trace", "/dev/stdin", "/dev/stdin: the trace is a pipe or a device"),
    ):
        before = seen.page.locator(f"#{name}").input_value()
        typed(seen, name, words)
        seen.page.locator(f"#{name}-problem", has_text=line).wait_for()
        assert seen.page.locator(f"#{name}").input_value() == before
        seen.page.wait_for_timeout(500)  # nothing that comes of going back takes the line away
        assert line in seen.page.locator(f"#{name}-problem").inner_text()
        settled(seen, PageQuestion())
    typed(seen, "price", "3")
    settled(seen, PageQuestion(price=3.0))
    assert seen.page.locator(".controls .problem").all_inner_texts() == [""] * 13


def test_a_report_is_saved(seen):
    with seen.page.expect_download(timeout=60_000) as saving:
        seen.page.locator("#save").click()
    assert "How to train" in saving.value.path().read_text(encoding="utf-8")


@pytest.mark.parametrize(("width", "scheme"), browser.VIEWS)
def test_it_is_readable_everywhere(chromium, served, pictures, width, scheme):
    with browser.window(chromium, width, scheme) as seen:
        settled(seen.open(served.link()), PageQuestion())
        drawn(seen)
        seen.page.wait_for_timeout(500)
        seen.laid_out(pictures / f"explore-{width}-{scheme}.png")
