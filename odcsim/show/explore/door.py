"""Who may come in: whoever has the link, which other users of this machine and other sites' pages have not."""

import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode, urlsplit

OURS = ("127.0.0.1", "localhost", "::1")
TOKEN = "token"
_LINES = {
    "host": "this page answers at 127.0.0.1 or localhost only",
    "origin": "another site's page may not ask here",
    "token": "open the link that odcsim explore printed: it holds the token, which is new at each start",
}
_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}


class Door:
    """The link's token becomes a cookie, with which the page asks for all that it needs. `entered` is called each time
    that somebody comes by the link."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(24)
        self.entered: Callable[[], object] = lambda: None

    def put_before(self, app: Any) -> None:
        """Before every page, file and answer of a Flask application."""
        app.before_request(self._admit)
        app.after_request(_closed)

    def _admit(self) -> Any:
        from flask import request

        if problem := self._problem(request):
            return _LINES[problem], 403, {"Content-Type": "text/plain; charset=utf-8"}
        return self._entering(request) if self._by_link(request) or _names_token(request) else None

    def _problem(self, request: Any) -> str:
        """A page of another site may have a name for this address (DNS rebinding), or send forms here."""
        if _place(request)[0] not in OURS:
            return "host"
        if request.headers.get("Origin", own := f"http://{request.host}") != own:
            return "origin"
        known = self._is(request.cookies.get(_cookie(request), "")) or self._by_link(request)
        return "" if known else "token"

    def _by_link(self, request: Any) -> bool:
        return _names_token(request) and self._is(request.args[TOKEN])

    def _entering(self, request: Any) -> Any:
        """The same address without the token, which is not to stand in bookmarks."""
        from flask import redirect

        left = urlencode([(name, text) for name, text in request.args.items(multi=True) if name != TOKEN])
        reply = redirect(f"/?{left}" if left else "/")
        if self._by_link(request):
            reply.set_cookie(_cookie(request), self.token, httponly=True, samesite="Lax")
            self.entered()
        return reply

    def _is(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def _names_token(request: Any) -> bool:
    return request.method == "GET" and request.path == "/" and TOKEN in request.args


def _cookie(request: Any) -> str:
    """Browsers give a cookie to all ports of a host, so that each has its own name."""
    return f"odcsim-{_place(request)[1]}"


def _place(request: Any) -> tuple[str, int]:
    with suppress(ValueError):
        where = urlsplit(f"//{request.host}")
        return where.hostname or "", where.port or 80
    return "", 0


def _closed(reply: Any) -> Any:
    reply.headers.update(_HEADERS)
    return reply
