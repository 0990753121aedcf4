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


@pytest.fixture(scope="module")
def page(served):
    return Page(served)


def stranger(served):
    return served.server.app.test_client()


def with_token(served, rest=""):
    return f"/?token={served.door.token}{rest}"


def test_the_link_holds_the_token_and_opens_the_page_and_all_that_it_asks_for(served):
    link, told = served.link(Asked(devices=16, price=3.5).search), "&devices=16&price=3.5&sharding=usual"
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
    browser = stranger(served)
    assert browser.get("/", query_string={"token": given}, base_url=BASE).status_code == 403
    browser.set_cookie("odcsim-8050", given.encode("ascii", "ignore").decode(), domain="127.0.0.1")
    assert browser.get("/", base_url=BASE).status_code == 403


def test_tokens_are_compared_in_constant_time(served, monkeypatch):
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda *both: compared.append(both) or False)
    stranger(served).get("/?token=guess", base_url=BASE)
    assert (b"guess", served.door.token.encode()) in compared


OURS = ["127.0.0.1:8050", "localhost:8050", "localhost", "[::1]:8050", "127.0.0.1:9000"]
OTHERS = [f"{name}:8050" for name in ("elsewhere.example", "127.0.0.1.elsewhere.example", "localhost.", "10.0.0.1")]
NO_HOST = ["[", "127.0.0.1:99999999", "127.0.0.1:x", "a b", "\xe9", "127.0.0.1@x:1"]


def test_other_names_of_this_address_are_refused(served):
    """A site may have its name lead here once its page is open (DNS rebinding); another port is a tunnel's."""
    for host in (*OTHERS, *OURS):
        reply = stranger(served).get(with_token(served), base_url=f"http://{host}", follow_redirects=True)
        assert reply.status_code == (200 if host in OURS else 403), host
    for host in NO_HOST:
        assert stranger(served).get("/", headers={"Host": host}).status_code in (400, 403)


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


def test_two_servers_of_one_machine_have_cookies_of_their_own(served):
    """A browser keeps one set of cookies for all ports of a host."""
    replies = [stranger(served).get(with_token(served), base_url=f"http://127.0.0.1:{port}") for port in (8050, 8051)]
    assert [one.headers["Set-Cookie"].split("=")[0] for one in replies] == ["odcsim-8050", "odcsim-8051"]


NEVER = [b"", b"{", b"[]", b"5", b"null", b"{}", b'{"output": 5}', b'{"price": ' + b"9" * 5000]


def test_what_the_page_never_asks_and_a_port_that_is_taken_are_refused(page, served):
    for body in NEVER:
        reply = page.post(body)
        assert (reply.status_code, len(reply.get_data(as_text=True).splitlines())) == (400, 1), body
    assert page.post(json.dumps("a" * 2**20).encode()).status_code in (400, 413)
    with pytest.raises(InputError):
        serve(served.server.server_port)
