"""An HTTP proxy in front of a real server that loses answers, cuts bodies, stalls and refuses, on request."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from swamp.env import SYSTEM
from swamp.testing.listen import LoopbackHandler, LoopbackServer

Action = Literal["drop", "freeze", "lose", "cut", "stall", "delay", "trickle", "answer", "pass"]
FOR_EVER = float("inf")


@dataclass
class Rule:
    """What happens to the requests it matches, by method, path and (`when`) headers.

    drop    the connection is reset before the server hears of the request
    freeze  the server does not hear of it and nothing is ever answered, until the client hangs up
    lose    the server does it, and the connection is reset instead of its answer
    cut     the answer ends after half of its body
    stall   the answer's headers and half of its body (nothing, if it has none) come, then nothing for `seconds`
            (`FOR_EVER`: until the client hangs up)
    delay   the answer comes `seconds` later
    trickle the answer comes in small pieces that take `seconds` in all
    answer  the proxy answers `status` with `body` and `headers` itself
    pass    the request goes through (to let the first `times` of a kind pass)
    """

    action: Action
    method: str = ".*"
    path: str = ".*"
    times: int | None = 1
    status: int = 503
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 5.0
    when: Callable[[Mapping[str, str]], bool] = lambda _headers: True
    then: Callable[[], None] = lambda: None
    """Called when `drop` or `lose` has come to its point, before the reset: the place to kill the client."""

    def takes(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        if self.times == 0 or not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        if not self.when(headers):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class FaultProxy:
    """`with FaultProxy(endpoint, rules) as proxy: … proxy.endpoint …`; `seen` is every request, `fired` every fault."""

    def __init__(self, endpoint: str, rules: Iterable[Rule] = ()) -> None:
        self.rules = list(rules)
        self.seen: list[tuple[str, str]] = []
        self.fired: list[tuple[Action, str, str]] = []
        self._lock = threading.Lock()
        target = urlsplit(endpoint)
        handler = type("BoundHandler", (_Handler,), {"proxy": self, "host": target.hostname, "port": target.port})
        self._server = LoopbackServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}{target.path}"

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def pick(self, method: str, path: str, headers: Mapping[str, str]) -> Rule | None:
        with self._lock:
            self.seen.append((method, path))
            rule = next((r for r in self.rules if r.takes(method, path, headers)), None)
            if rule is not None and rule.action != "pass":
                self.fired.append((rule.action, method, path))
            return rule


class _Handler(LoopbackHandler):
    proxy: FaultProxy
    host: str
    port: int

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        rule = self.proxy.pick(self.command, self.path, dict(self.headers.items()))
        action = rule.action if rule else "pass"
        if rule and action == "drop":
            rule.then()
            return self.reset()
        if rule and action == "freeze":
            return self._hold(FOR_EVER)
        if rule and action == "answer":
            return self._send(rule.status, list(rule.headers.items()), rule.body, len(rule.body))
        status, headers, answer = self._forward(body)
        if rule and action == "delay":
            SYSTEM.clock.sleep(rule.seconds)
        if rule and action == "lose":
            rule.then()
            return self.reset()
        if rule and action in ("cut", "stall"):
            if answer:
                self._send(status, headers, answer[: len(answer) // 2], len(answer))
            self.wfile.flush()
            return self._hold(rule.seconds if action == "stall" else 0)
        if rule and action == "trickle":
            return self._trickle(status, headers, answer, rule.seconds)
        return self._send(status, headers, answer, None if self.command == "HEAD" else len(answer))

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=60)) as connection:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, length: int | None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if length is None or name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if length is not None and status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def _trickle(self, status: int, headers: list[tuple[str, str]], answer: bytes, seconds: float) -> None:
        self._send(status, headers, b"", None if self.command == "HEAD" else len(answer))
        step = max(1, -(-len(answer) // _PIECES))
        for start in range(0, len(answer), step):
            self.wfile.write(answer[start : start + step])
            self.wfile.flush()
            SYSTEM.clock.sleep(seconds / _PIECES)

    def _hold(self, seconds: float) -> None:
        """Says nothing for so long, or until the client has had enough; then resets."""
        self.connection.settimeout(None if seconds == FOR_EVER else max(seconds, 0.001))
        with contextlib.suppress(OSError):
            self.connection.recv(1)
        self.reset()


_PIECES = 20
