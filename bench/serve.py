"""How fast the server answers with 500 idle event streams and one slow reader, beside the same server without them.

    .venv/bin/python bench/serve.py [--streams 500] [--requests 2000]

Interleaved, several times: the same requests without streams, with streams that are idle (each follows a run that does
nothing) and one reader that never reads, and with streams that want every event. Once while nothing happens, as the
design words it; once while every fiftieth request writes a version, which makes events. Beside the times, what the
server's process used of the CPU for one request: that is true on a busy machine too. Prints a table, writes
bench/results/serve.md. Ratios in one run on one machine; none is asserted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

SWAMP = Path(sys.executable).with_name("swamp")
RESULT = Path(__file__).parent / "results" / "serve.md"
KINDS = {
    "": "no streams",
    "run=none": "{} idle streams, one slow reader",
    "kinds=commit,run,step,log,status,delivery": "{} streams that want everything, one slow reader",
}
PATHS = ("/healthz", "/api/v1/session", "/api/v1/data", "/api/v1/runs", "/api/v1/datastore/status")


def main() -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--streams", type=int, default=500)
    given.add_argument("--requests", type=int, default=1000)
    given.add_argument("--rounds", type=int, default=3)
    options = given.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, options.streams * 2 + 200)), hard))
    with tempfile.TemporaryDirectory(prefix="swamp-bench-") as directory:
        measure(Path(directory), options.streams, options.requests, options.rounds)
    return 0


def measure(root: Path, streams: int, requests: int, rounds: int) -> None:
    repo, env = root / "repo", {**os.environ, "SWAMP_HOME": str(root / "home")}
    swamp(env, root, "repo", "init", str(repo))
    swamp(env, repo, "datastore", "setup", f"file://{root}/bucket")
    (repo / "x").write_text("hello")
    for number in range(20):
        swamp(env, repo, "data", "put", f"model-{number % 4}", f"name-{number}", "x")
    token = swamp(env, repo, "serve", "token", "create", "--role", "operator")["token"]
    process = subprocess.Popen(
        [SWAMP, "serve", "--port", "0", "--json"], cwd=repo, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        server = Server(url, token, process.pid)
        server.ask(200, writes=True)
        found: dict[tuple[str, bool], Times] = defaultdict(Times)
        for _ in range(rounds):
            for kind in KINDS:
                opened = [server.stream(f"?{kind}") for _ in range(streams)] if kind else []
                opened += [server.stream("?after=0")] if kind else []
                time.sleep(1)
                for writes in (False, True):
                    found[kind, writes].take(server, requests, writes)
                for wire in opened:
                    wire.close()
                time.sleep(1)
        report(found, streams, requests * rounds)
    finally:
        process.terminate()
        process.wait(timeout=60)


def swamp(env: dict[str, str], where: Path, *words: str) -> dict:
    done = subprocess.run([SWAMP, *words, "--json"], cwd=where, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@dataclass
class Server:
    """Somebody who asks a running server."""

    url: str
    token: str
    pid: int

    def ask(self, count: int, *, writes: bool) -> list[float]:
        """Seconds of each request, one after the other on one connection."""
        place, times = urlsplit(self.url), []
        wire = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
        for number in range(count):
            if writes and number % 50 == 0:  # not timed: it makes events
                headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "text/plain"}
                wire.request("PUT", "/api/v1/data/bench/beat", body=b"x" * 100, headers=headers)
                wire.getresponse().read()
            began = time.perf_counter()
            wire.request("GET", PATHS[number % len(PATHS)], headers={"Authorization": f"Bearer {self.token}"})
            answer = wire.getresponse()
            answer.read()
            times.append(time.perf_counter() - began)
            assert answer.status == 200, answer.status
        wire.close()
        return times

    def stream(self, query: str) -> socket.socket:
        """An event stream that nobody reads."""
        place = urlsplit(self.url)
        wire = socket.create_connection((str(place.hostname), place.port))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = (
            f"GET /api/v1/events{query} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {self.token}\r\n\r\n"
        )
        wire.sendall(head.encode())
        return wire

    def cpu(self) -> float:
        """Seconds that its process used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Times:
    """What one situation cost."""

    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0

    def take(self, server: Server, count: int, writes: bool) -> None:
        before = server.cpu()
        self.seconds += server.ask(count, writes=writes)
        self.cpu += server.cpu() - before

    def row(self) -> str:
        cuts = statistics.quantiles(self.seconds, n=100)
        shown = " | ".join(f"{cuts[at - 1] * 1000:.1f}" for at in (50, 95, 99))
        return f"{shown} | {self.cpu / len(self.seconds) * 1000:.2f}"


def report(found: Mapping[tuple[str, bool], Times], streams: int, count: int) -> None:
    rows = [
        f"| {'events' if writes else 'nothing happens'} | {KINDS[kind].format(streams)} | {times.row()} |"
        for (kind, writes), times in sorted(found.items(), key=lambda item: item[0][1])
    ]
    text = "\n".join([
        "# The server with event streams and a slow reader",
        "",
        f"Written by `bench/serve.py`: {count} requests each ({', '.join(PATHS)}), interleaved, one client; "
        f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}. With events, every fiftieth "
        "request is followed by one that writes a version: its CPU is in the last column, its time in none.",
        "",
        "| | | p50 ms | p95 ms | p99 ms | CPU ms per request |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ])  # fmt: skip
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
