"""The page on this machine alone: nobody else can open it, and no other site's page can ask through a browser."""

import errno
from typing import Any

from odcsim.errors import InputError

HOST = "127.0.0.1"
OURS = (HOST, "localhost")


def server(port: int) -> Any:
    """It listens and waits for `serve_forever`. Port 0 is any that is free."""
    try:
        from flask import abort, request
        from werkzeug.serving import make_server

        from odcsim.explore.page import page
    except ImportError:
        raise InputError("explore needs dash", fix="pip install 'odcsim[explore]'") from None

    def refuse_others() -> None:
        if request.host.rpartition(":")[0] not in OURS:
            abort(403)

    app = page().server
    app.before_request(refuse_others)
    try:
        return make_server(HOST, port, app, threaded=True, request_handler=_quiet())
    except (OSError, SystemExit) as error:
        taken = isinstance(error, SystemExit) or error.errno == errno.EADDRINUSE
        problem = "is taken" if taken else str(error)
        raise InputError(f"port {port} {problem}", fix="give another with --port, or 0 for any that is free") from None


def address(server: Any, search: str = "") -> str:
    return f"http://{HOST}:{server.server_port}/{search}"


def _quiet() -> Any:
    """A handler that does not say something of every request."""
    from werkzeug.serving import WSGIRequestHandler

    return type("Quiet", (WSGIRequestHandler,), {"log": lambda *_: None})
