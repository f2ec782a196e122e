"""The proxy that tests put before their servers leaves nothing open, whatever becomes of the server behind it."""

from __future__ import annotations

import gc
import http.client
import http.server
import threading
import warnings

import pytest

from servers.proxy import FaultProxy


class BreaksOff(http.server.BaseHTTPRequestHandler):
    """Promises more than it sends, and closes the connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response_only(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"x")
        self.close_connection = True


def test_a_server_that_breaks_off_leaves_no_socket_of_the_proxy_open() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with http.server.HTTPServer(("127.0.0.1", 0), BreaksOff) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
                asking = http.client.HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=30)
                asking.request("GET", "/")
                with pytest.raises((http.client.HTTPException, ConnectionError)):
                    asking.getresponse()
                asking.close()
            server.shutdown()
        gc.collect()
    assert [str(one.message) for one in told if issubclass(one.category, ResourceWarning)] == []
