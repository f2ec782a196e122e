"""`python moto_atomic.py PORT`: moto, with each write as one step.

moto checks a write's condition and stores its body in two steps, and serves every request in a thread of its own: two
writers can pass the same check. S3 never lets them, so the stand-in must not either.

Where moto judges requests by IAM policies (`/moto-api/reset-auth`), it fails (500) at a login that is in the address
instead of a header: that is 501 here, what a store says that has no such thing.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

from moto import settings
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

_READS: Final = ("GET", "HEAD")


class OneWriter:
    """A WSGI application in which no two requests change something at once."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "X-Amz-Signature=" in environ.get("QUERY_STRING", "") and math.inf != settings.INITIAL_NO_AUTH_ACTION_COUNT:
            start_response("501 Not Implemented", [("Content-Length", "0")])
            return [b""]
        if environ["REQUEST_METHOD"] in _READS:
            answer: Iterable[bytes] = self._app(environ, start_response)
            return answer
        with self._lock:
            return list(self._app(environ, start_response))


def main() -> None:
    app = OneWriter(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
