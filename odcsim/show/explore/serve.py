"""The page on this machine alone, for whoever has its link."""

import errno
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from odcsim.errors import InputError
from odcsim.show.explore.controls import PageQuestion
from odcsim.show.explore.door import TOKEN, Door

HOST = "127.0.0.1"
MOST = 2**20  # bytes of a question


@dataclass(frozen=True, slots=True)
class Served:
    """It listens, and waits for `server.serve_forever`."""

    server: Any
    door: Door

    def link(self, search: str = "") -> str:
        token = urlencode({TOKEN: self.door.token})
        return f"http://{HOST}:{self.server.server_port}/?{token}{search.replace('?', '&', 1)}"


def serve(port: int, start: PageQuestion | None = None) -> Served:
    """Port 0 is any that is free. `start`: what a link without words shows."""
    try:
        from werkzeug.serving import make_server

        from odcsim.show.explore.page import page
    except ImportError:
        raise InputError("explore needs dash", fix="pip install 'odcsim[explore]'") from None
    app, door = page(start or PageQuestion()).server, Door()
    door.put_before(app)
    app.config["MAX_CONTENT_LENGTH"] = MOST
    app.register_error_handler(Exception, _odd)
    try:
        return Served(make_server(HOST, port, app, threaded=True, request_handler=_quiet()), door)
    except (OSError, SystemExit) as error:
        taken = isinstance(error, SystemExit) or error.errno == errno.EADDRINUSE
        problem = "is taken" if taken else str(error)
        raise InputError(f"port {port} {problem}", fix="give another with --port, or 0 for any that is free") from None


def _odd(error: Exception) -> Any:
    """What the page never asks: what its controls say is answered there, by a line."""
    from werkzeug.exceptions import HTTPException

    code, line = 400, "no question of this page"
    if isinstance(error, HTTPException):
        code, line = error.code or code, error.name
    return line, code, {"Content-Type": "text/plain; charset=utf-8"}


def _quiet() -> Any:
    """A handler that does not say something of every request."""
    from werkzeug.serving import WSGIRequestHandler

    return type("Quiet", (WSGIRequestHandler,), {"log": lambda *_: None})
