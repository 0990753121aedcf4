"""Whoever has the link comes in, and nobody else; whatever controls and links say, the page answers in a line."""

import errno
import hmac
import json
import os
import re
import socket
from unittest.mock import Mock, patch
from urllib.parse import quote

import pytest
from explorer import BASE, UPDATE, Page, told
from hypothesis import given, settings
from hypothesis import strategies as st

from odcsim.cli import main
from odcsim.errors import InputError
from odcsim.support import budget
from odcsim.support.budget import memoize

pytest.importorskip("dash", reason="pip install 'odcsim[explore]'")

from odcsim.show.explore import controls, line, reply
from odcsim.show.explore.controls import PageQuestion
from odcsim.show.explore.door import Door
from odcsim.show.explore.serve import serve

PLACES = ["/", "/assets/explore.css", "/_dash-layout", "/_dash-dependencies", "/_favicon.ico", "/any/thing", UPDATE]


@pytest.fixture(scope="module")
def served():
    one = serve(0)
    yield one
    one.server.server_close()


@pytest.fixture(scope="module")
def page(served):
    return Page(served)


def stranger(served):
    return served.server.app.test_client()


def with_token(served, rest=""):
    return f"/?token={served.door.token}{rest}"


def test_the_link_holds_the_token_and_opens_the_page_and_all_that_it_asks_for(served):
    link, told = served.link(PageQuestion(devices=16, price=3.5).search), "&devices=16&price=3.5&sharding=usual"
    assert link == f"http://127.0.0.1:{served.server.server_port}/?token={served.door.token}{told}"
    assert re.fullmatch(r"[0-9a-f]{48}", served.door.token)
    assert Door().token != served.door.token
    browser = stranger(served)
    first = browser.get(with_token(served, "&trace=lmsys-chat&devices=16"), base_url=BASE)
    assert (first.status_code, first.headers["Location"]) == (302, "/?trace=lmsys-chat&devices=16")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(first.headers["Set-Cookie"].split("; "))
    for place in (first.headers["Location"], *PLACES[1:6]):
        with browser.get(place, base_url=BASE) as reply:
            assert reply.status_code == 200, place
    old = browser.get("/?token=old&devices=4", base_url=BASE)  # still opens for who is in
    assert (old.status_code, old.headers["Location"]) == (302, "/?devices=4")


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "OPTIONS"])
def test_without_the_token_nothing_is_answered(served, method):
    """And at the front door alone with it."""
    for place in PLACES:
        reply = stranger(served).open(place, method=method, base_url=BASE)
        assert reply.status_code == 403
        assert method == "HEAD" or len(reply.get_data(as_text=True).splitlines()) == 1
        told = with_token(served).replace("/", place, 1)
        assert place == "/" or stranger(served).open(told, method=method, base_url=BASE).status_code == 403


@given(given=st.one_of(st.text(max_size=60), st.text("0123456789abcdef", min_size=48, max_size=48)))
def test_another_token_is_refused_in_link_and_cookie(served, given):
    """Compared in constant time."""
    browser = stranger(served)
    with patch.object(hmac, "compare_digest", Mock(side_effect=hmac.compare_digest)) as compared:
        assert browser.get("/", query_string={"token": given}, base_url=BASE).status_code == 403
    assert compared.called
    browser.set_cookie("odcsim-8050", given.encode("ascii", "ignore").decode(), domain="127.0.0.1")
    assert browser.get("/", base_url=BASE).status_code == 403


OURS = ["127.0.0.1:8050", "localhost:8050", "localhost", "[::1]:8050", "127.0.0.1:9000"]
OTHERS = [f"{name}:8050" for name in ("elsewhere.example", "127.0.0.1.elsewhere.example", "localhost.", "10.0.0.1")]
NO_HOST = ["[", "127.0.0.1:99999999", "127.0.0.1:x", "a b", "\xe9", "127.0.0.1@x:1"]


def test_other_names_of_this_address_are_refused(served):
    """A site may have its name lead here once its page is open (DNS rebinding); another port is a tunnel's. A browser
    keeps one set of cookies for all ports of a host: two servers have cookies of their own."""
    for host in (*OTHERS, *OURS):
        reply = stranger(served).get(with_token(served), base_url=f"http://{host}", follow_redirects=True)
        assert reply.status_code == (200 if host in OURS else 403), host
    for host in NO_HOST:
        assert stranger(served).get("/", headers={"Host": host}).status_code in (400, 403)
    replies = [stranger(served).get(with_token(served), base_url=f"http://127.0.0.1:{port}") for port in (8050, 8051)]
    assert [one.headers["Set-Cookie"].split("=")[0] for one in replies] == ["odcsim-8050", "odcsim-8051"]


ORIGINS = ["http://elsewhere.example", "http://127.0.0.1:9999", "http://127.0.0.1", "https://127.0.0.1:8050", "null"]


def test_another_sites_page_may_not_ask_through_the_browser(page):
    """Which has the cookie, and sends it along: to all ports of this host. Nor may it show this one in a frame."""
    body = page.body("break-even", {"asked": "?devices=3"})
    assert page.post(body).status_code == page.post(body, headers={"Origin": BASE}).status_code == 200
    for origin in (*ORIGINS, ""):
        assert page.post(body, headers={"Origin": origin}).status_code == 403, origin
    reply = page.client.get("/", base_url=BASE)
    assert reply.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert not re.search("https?://", reply.get_data(as_text=True))


NEVER = [b"", b"{", b"[]", b"5", b"null", b"{}", b'{"output": 5}', b'{"price": ' + b"9" * 5000]


def test_what_the_page_never_asks_and_a_port_that_is_taken_are_refused(page, served):
    for body in NEVER:
        reply = page.post(body)
        assert (reply.status_code, len(reply.get_data(as_text=True).splitlines())) == (400, 1), body
    assert page.post(json.dumps("a" * 2**20).encode()).status_code in (400, 413)
    with pytest.raises(InputError):
        serve(served.server.server_port)


# A question that is soon answered. Sliders stand at their places.
SMALL = dict.fromkeys("devices minibatch network minibatches epochs".split(), 0)
SMALL |= {"trainer": "none", "recompute": "full", "sharding": "usual"}
SMALL |= {"trace": "uniform:min=2,max=9,samples=64", "model": "tiny", "gpu": "a100", "room": 1, "price": 2.0}
LINK = "trace=uniform%3Amin%3D2%2Cmax%3D9%2Csamples%3D64&model=tiny&devices=2&minibatch=1&minibatches=4"
NAMES = "- /dev/stdin /dev/zero /dev/tty /dev/fd/0 /proc/self/mem /proc/self/fd/0 / . .. ~ --help <script>".split()
NAMES += ["a" * 256, "a" * 4096, "a/" * 3000, "\0", "\ud800", "a\0b", "../" * 900, "/etc/shadow"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ODD = st.one_of(JSON, st.integers(-3, 12), st.sampled_from([10**300, -0.0, 1e-320, 2.5, "0", "1.0", " 1", "", "\n"]))


def answered(page, of, values, name):
    """The line that is shown, none where there are figures."""
    reply = page.ask(of, values)
    assert reply.status_code == 200, reply.get_data(as_text=True)
    shown = told(reply, name)
    assert line.OURS not in shown
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= line.LETTERS
    return shown


@settings(max_examples=100)
@given(values=st.fixed_dictionaries({}, optional=dict.fromkeys(SMALL, ODD)))
def test_whatever_controls_say_is_answered(page, values):
    answered(page, "asked.data", SMALL | values, "problem")


@given(name=st.sampled_from([*SMALL, "token", "colour", ""]), value=ODD, after=st.text(max_size=20))
def test_whatever_a_link_says_is_answered(page, name, value, after):
    said = quote(f"{value}".encode(errors="surrogatepass")) if isinstance(value, str | int | float) else "odd"
    answered(page, "link-problem", {"place": f"?{LINK}&{name}={said}{after}"}, "link-problem")
    assert page.client.get(f"/?{name}={said}", base_url=BASE).status_code in (200, 302)


@settings(max_examples=10)
@given(search=JSON | st.builds(lambda name, value: f"?{LINK}&{name}={value}", st.sampled_from(sorted(SMALL)), ODD))
@pytest.mark.parametrize(
    ("of", "name"), [("pair.figure", "caption"), ("break-even", "break-even"), ("report.data", "saved")]
)
def test_whatever_the_page_is_said_to_have_asked_is_answered(page, of, name, search):
    if search in (None, "", False, 0) or (isinstance(search, float | list | dict) and not search):
        search = f"?{LINK}"  # the usual question takes longer
    answered(page, of, {"asked": search, "save": 1}, name)


@settings(max_examples=60)
@given(body=JSON, name=st.sampled_from(["output", "outputs", "inputs", "state", "changedPropIds"]))
def test_whatever_is_sent_is_no_fault_of_the_server(page, body, name):
    assert page.post(json.dumps(body).encode(errors="surrogatepass")).status_code in (200, 204, 400)
    assert page.post(page.body("break-even", {"asked": "?devices=3"}) | {name: body}).status_code in (200, 204, 400)


def test_where_a_link_says_nothing_it_shows_what_it_was_started_with():
    """And its own link, which always says something, what it holds."""
    served = serve(0, PageQuestion(trace="lmsys-chat", devices=16))
    started = Page(served)
    served.server.server_close()

    def shown(place):
        return started.ask("link-problem", {"place": place}).get_json()["response"]

    for search, trace in ((None, "lmsys-chat"), ("", "lmsys-chat"), ("?trace=longalign", "longalign")):
        assert shown(search)["trace"]["value"] == trace
    values = {name: shown("?trace=longalign")[name]["value"] for name in SMALL}
    told = started.ask("asked.data", values).get_json()["response"]["asked"]["data"]
    assert shown(told)["trace"]["value"] == "longalign"


def test_what_is_no_file_is_not_waited_for(page, tmp_path):
    """Nor is a path that nobody may look into."""
    pipe, place, loop = tmp_path / "pipe.json", socket.socket(socket.AF_UNIX), tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    place.bind(str(tmp_path / "socket"))
    for path in ("-", "/dev/zero", pipe, tmp_path / "socket", loop, loop / "a.csv", "x" * 300 + "/config.json"):
        for name in ("trace", "model", "gpu"):
            assert answered(page, "asked.data", SMALL | {name: str(path)}, "problem"), (name, path)
    place.close()


def test_what_is_refused_goes_back_to_what_was_answered_last(page):
    """With a line beside the control that was changed; what is then asked again says nothing new."""
    usual = page.ask("asked.data", SMALL).get_json()["response"]["asked"]["data"]
    for name, value in {"price": None, "recompute": "some", "devices": 77, "model": "no-such-model"}.items():
        body = page.body("asked.data", SMALL | {name: value, "asked": usual}) | {"changedPropIds": [f"{name}.value"]}
        shown = page.post(body).get_json()["response"]
        assert {of for of, one in shown.items() if one.get("children")} == {f"{name}-problem"}
        assert {of: shown[of]["value"] for of in SMALL} == SMALL
    assert page.ask("asked.data", SMALL | {"asked": usual}).get_json()["response"] == {}
    assert "value" not in page.ask("asked.data", SMALL | {"price": None}).get_data(as_text=True)


CODES = (errno.EACCES, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.EMFILE, errno.ENOMEM)


def test_what_the_system_refuses_and_a_defect_of_ours_are_a_line(page, tmp_path, monkeypatch, capsys):
    def refused(question):
        raise OSError(int(question.trace), os.strerror(int(question.trace)), str(tmp_path))

    monkeypatch.setattr("odcsim.show.explore.controls.lengths_of", refused)
    for code in CODES:
        shown = answered(page, "asked.data", SMALL | {"trace": f"{code}"}, "problem")
        assert shown.startswith(f"{tmp_path}: {os.strerror(code)}; ")
    reply = page.ask("asked.data", SMALL | {"trace": "unlucky"})
    assert (reply.status_code, told(reply)) == (200, f"ValueError: {line.OURS}")
    assert "Traceback" in capsys.readouterr().err


def test_the_page_reads_lengths_as_the_link_says_that_it_was_opened_by(page, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n,other\n" + "5,x\n0,x\n" * 20)
    values = SMALL | {"trace": str(path)}
    opened = {"place": f"?{LINK}&trace={quote(str(path))}&column=n&skip_bad=True"}
    assert not answered(page, "asked.data", values | opened, "problem")
    shown = page.ask("asked.data", values | opened).get_json()["response"]
    assert f"{path}: 20 of 40 rows left out" in json.dumps(shown["advice"])
    assert answered(page, "asked.data", values | {"place": "?colour=red"}, "problem")


def test_the_process_is_bounded_before_it_serves(capsys):
    with patch.object(budget, "limit") as limit, patch("odcsim.show.explore.serve.serve") as serves:
        serves.return_value.link.return_value = "http://here"
        serves.return_value.server.serve_forever.side_effect = lambda: limit.assert_called_once_with(budget.most())
        assert main(["explore", "--no-open"]) == 0
    serves.return_value.server.serve_forever.assert_called_once_with()
    assert "http://here" in capsys.readouterr().out


def test_plans_of_few_samples_and_lengths_are_kept_and_those_of_many_take_their_place():
    """Where memory has run out, all is forgotten."""
    few = [PageQuestion(minibatch=2**n, devices=2) for n in range(4)]
    kept = [reply._plans(one) for one in few]
    assert line.or_line(lambda: int("x"), str)
    assert all(reply._plans(one) is plans for one, plans in zip(few, kept, strict=True))
    for seed in range(2):
        reply._plans(PageQuestion(devices=64, minibatch=16, minibatches=200, seed=seed))
    assert not any(reply._plans(one) is plans for one, plans in zip(few, kept, strict=True))
    kept = reply._plans(few[0])
    with patch("odcsim.show.explore.controls.lengths_of", side_effect=MemoryError):
        assert line.or_line(lambda: PageQuestion(trace="large").lengths, str)
    assert reply._plans(few[0]) is not kept
    read = []
    known = memoize(controls.ROWS, lambda found, *_: found)(lambda rows, number: read.append(number) or rows)
    for number in (0, 1, 0, 2, 0, 1):
        known(controls.ROWS // 2, number)
    assert read == [0, 1, 2, 1]
