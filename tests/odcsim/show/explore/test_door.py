"""Whoever has the link comes in, and nobody else: not another user of this machine, nor a page of another site."""

import hmac
import json
import re

import pytest
from explorer import BASE, UPDATE, Page
from hypothesis import given
from hypothesis import strategies as st

from odcsim.errors import InputError

pytest.importorskip("dash", reason="pip install 'odcsim[explore]'")

from odcsim.show.explore.asked import Asked
from odcsim.show.explore.door import Door
from odcsim.show.explore.serve import serve

PLACES = ["/", "/assets/explore.css", "/_dash-layout", "/_dash-dependencies", "/_favicon.ico", "/any/thing", UPDATE]


@pytest.fixture(scope="module")
def served():
    one = serve(0)
    yield one
    one.server.server_close()


@pytest.fixture
def stranger(served):
    return served.server.app.test_client()


@pytest.fixture(scope="module")
def page(served):
    return Page(served)


def with_token(served, rest=""):
    return f"/?token={served.door.token}{rest}"


def test_the_link_holds_the_token_and_what_is_set(served):
    asked = Asked(devices=16, price=3.5)
    link, told = served.link(asked.search), "&devices=16&price=3.5&sharding=usual"
    assert link == f"http://127.0.0.1:{served.server.server_port}/?token={served.door.token}{told}"
    assert re.fullmatch(r"[0-9a-f]{48}", served.door.token)
    assert Door().token != served.door.token


def test_the_link_opens_the_page_and_all_that_it_asks_for(served, stranger):
    first = stranger.get(with_token(served, "&trace=lmsys-chat&devices=16"), base_url=BASE)
    assert (first.status_code, first.headers["Location"]) == (302, "/?trace=lmsys-chat&devices=16")
    cookie = first.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
    assert stranger.get("/?trace=lmsys-chat&devices=16", base_url=BASE).status_code == 200
    for place in PLACES[1:6]:
        with stranger.get(place, base_url=BASE) as reply:
            assert reply.status_code == 200, place


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "OPTIONS"])
def test_without_the_token_nothing_is_answered(served, stranger, method):
    """And at the front door alone with it."""
    for place in PLACES:
        reply = stranger.open(place, method=method, base_url=BASE)
        assert reply.status_code == 403
        assert method == "HEAD" or len(reply.get_data(as_text=True).splitlines()) == 1
        if place != "/":
            assert stranger.open(f"{place}?token={served.door.token}", method=method, base_url=BASE).status_code == 403


@given(given=st.one_of(st.text(max_size=60), st.text("0123456789abcdef", min_size=48, max_size=48)))
def test_another_token_is_refused_in_link_and_cookie(served, given):
    stranger = served.server.app.test_client()
    assert stranger.get("/", query_string={"token": given}, base_url=BASE).status_code == 403
    stranger.set_cookie("odcsim-8050", given.encode("ascii", "ignore").decode(), domain="127.0.0.1")
    assert stranger.get("/", base_url=BASE).status_code == 403


def test_tokens_are_compared_in_constant_time(served, stranger, monkeypatch):
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append((one, other)) or False)
    stranger.get("/?token=guess", base_url=BASE)
    assert (b"guess", served.door.token.encode()) in compared


OURS = ["127.0.0.1:8050", "localhost:8050", "localhost", "[::1]:8050", "127.0.0.1:9000"]
OTHERS = ["elsewhere.example", "elsewhere.example:8050", "127.0.0.1.elsewhere.example:8050", "localhost.:8050"]
NO_HOST = ["[", "127.0.0.1:99999999", "127.0.0.1:x", "a b", "\xe9", "127.0.0.1@x:1"]


def test_other_names_of_this_address_are_refused(served, stranger):
    """A site may have its name lead here once its page is open (DNS rebinding); another port is a tunnel's."""
    for host in (*OTHERS, "10.0.0.1:8050", *OURS):
        reply = stranger.get(with_token(served), base_url=f"http://{host}", follow_redirects=True)
        assert reply.status_code == (200 if host in OURS else 403), host
    for host in NO_HOST:
        assert stranger.get("/", headers={"Host": host}).status_code in (400, 403)


ORIGINS = ["http://elsewhere.example", "http://127.0.0.1:9999", "http://127.0.0.1", "https://127.0.0.1:8050", "null"]


@pytest.mark.parametrize("origin", [*ORIGINS, ""])
def test_another_sites_page_may_not_ask_through_the_browser(page, origin):
    """Which has the cookie, and sends it along: to all ports of this host."""
    body = page.body("break-even", {"asked": "?devices=3"})
    assert page.post(body).status_code == 200
    assert page.post(body, headers={"Origin": BASE}).status_code == 200
    assert page.post(body, headers={"Origin": origin}).status_code == 403


def test_no_other_page_may_show_this_one_and_nothing_is_fetched_from_elsewhere(page):
    reply = page.client.get("/", base_url=BASE)
    assert reply.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert not re.search("https?://", reply.get_data(as_text=True))


def test_two_servers_of_one_machine_have_cookies_of_their_own(served):
    """A browser keeps one set of cookies for all ports of a host."""
    other, browser = serve(0), served.server.app.test_client()
    cookies = set()
    for one, port in ((served, 8050), (other, 8051)):
        reply = one.server.app.test_client().get(with_token(one), base_url=f"http://127.0.0.1:{port}")
        cookies.add(reply.headers["Set-Cookie"].split("=")[0])
    other.server.server_close()
    assert cookies == {"odcsim-8050", "odcsim-8051"}
    assert browser.get("/", base_url=BASE).status_code == 403


def test_an_old_link_still_opens_for_who_is_in(page):
    reply = page.client.get("/?token=old&devices=4", base_url=BASE)
    assert (reply.status_code, reply.headers["Location"]) == (302, "/?devices=4")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"5", b"null", b"{}", b'{"output": 5}', b'{"price": ' + b"9" * 5000]
)
def test_what_the_page_never_asks_is_refused_in_a_line(page, body):
    reply = page.post(body)
    assert reply.status_code == 400
    assert len(reply.get_data(as_text=True).splitlines()) == 1


def test_a_question_without_an_end_and_a_port_that_is_taken_are_refused(page, served):
    assert page.post(json.dumps("a" * 2**20).encode()).status_code in (400, 413)
    with pytest.raises(InputError):
        serve(served.server.server_port)
