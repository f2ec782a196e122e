"""`python moto_atomic.py PORT`: moto, with each write as one step.

moto checks a write's condition and stores its body in two steps, and serves every request in a thread of its own: two
writers can pass the same check. S3 never lets them, so the stand-in must not either.

Where moto judges requests by IAM policies (`/moto-api/reset-auth`), it fails (500) at a login that is in the address
instead of a header: that is 501 here, what a store says that has no such thing.

Most of its time went into asking the same again: which service a host is (it looks at its 175 directories for every
request), which moment a text of a listing says (a third of a page), and which of all objects of the bucket, those of
every test before this one, begin with the prefix of a listing (2 µs each). The first two answers are kept; the third is
found in the names alone.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
import threading
from collections.abc import Iterable
from typing import Any, Final

from botocore.utils import parse_to_aware_datetime  # type: ignore[import-untyped]
from moto import settings
from moto.core import serialize
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import FakeBucket, S3Backend
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


def _list_below(listed: Any) -> Any:
    """moto's listing, of a bucket that holds nothing but what is below the prefix."""

    @functools.wraps(listed)
    def list_objects(self: S3Backend, bucket: FakeBucket, prefix: str | None, *more: Any, **named: Any) -> Any:
        if prefix:
            found = {name: bucket.keys.get(name) for name in list(bucket.keys) if name.startswith(prefix)}
            bucket = copy.copy(bucket)
            bucket.keys = {name: key for name, key in found.items() if key is not None}  # type: ignore[assignment]
        return listed(self, bucket, prefix, *more, **named)

    return list_objects


def main() -> None:
    vars(serialize)["parse_to_aware_datetime"] = functools.lru_cache(10_000)(parse_to_aware_datetime)
    S3Backend.list_objects = _list_below(S3Backend.list_objects)  # type: ignore[method-assign]
    services = DomainDispatcherApplication(create_backend_app)
    services.get_backend_for_host = functools.cache(services.get_backend_for_host)  # type: ignore[method-assign]
    app = OneWriter(services)
    run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
