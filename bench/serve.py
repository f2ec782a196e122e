"""How fast the server answers with 500 idle event streams and one slow reader, beside the same server without them.

    .venv/bin/python bench/serve.py [--streams 500] [--requests 2000]

Interleaved: the same requests without and with the streams, several times. Every fiftieth request writes a version, so
that the slow reader has something to be slow with; the idle streams follow a run that does nothing. Prints a table,
writes bench/results/serve.md. Ratios in one run on one machine; none is asserted.
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
from pathlib import Path
from urllib.parse import urlsplit

SWAMP = Path(sys.executable).with_name("swamp")
RESULT = Path(__file__).parent / "results" / "serve.md"
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
        found: dict[str, list[float]] = {"idle": [], "streams": []}
        ask(url, token, 200)
        for _ in range(rounds):
            found["idle"] += ask(url, token, requests)
            opened = [stream(url, token, "?run=none") for _ in range(streams)] + [stream(url, token)]
            time.sleep(1)
            found["streams"] += ask(url, token, requests)
            for wire in opened:
                wire.close()
            time.sleep(1)
        report(found, streams, len(found["idle"]))
    finally:
        process.terminate()
        process.wait(timeout=60)


def swamp(env: dict[str, str], where: Path, *words: str) -> dict:
    done = subprocess.run([SWAMP, *words, "--json"], cwd=where, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def ask(url: str, token: str, count: int) -> list[float]:
    """Seconds of each request, one after the other on one connection."""
    place, times = urlsplit(url), []
    wire = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    for number in range(count):
        if number % 50 == 0:  # not timed: it makes events
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "text/plain"}
            wire.request("PUT", "/api/v1/data/bench/beat", body=b"x" * 100, headers=headers)
            wire.getresponse().read()
        began = time.perf_counter()
        wire.request("GET", PATHS[number % len(PATHS)], headers={"Authorization": f"Bearer {token}"})
        answer = wire.getresponse()
        answer.read()
        times.append(time.perf_counter() - began)
        assert answer.status == 200, answer.status
    wire.close()
    return times


def stream(url: str, token: str, query: str = "") -> socket.socket:
    """An event stream that nobody reads."""
    place = urlsplit(url)
    wire = socket.create_connection((str(place.hostname), place.port))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.sendall(
        f"GET /api/v1/events{query} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    return wire


def report(found: dict[str, list[float]], streams: int, count: int) -> None:
    rows = []
    for name, title in (("idle", "no streams"), ("streams", f"{streams} idle streams, one slow reader")):
        cuts = statistics.quantiles(found[name], n=100)
        rows.append(f"| {title} | {cuts[49] * 1000:.1f} | {cuts[94] * 1000:.1f} | {cuts[98] * 1000:.1f} |")
    text = "\n".join([
        "# The server with idle event streams and a slow reader",
        "",
        f"Written by `bench/serve.py`: {count} requests each ({', '.join(PATHS)}), interleaved, one client; "
        f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}.",
        "",
        "| | p50 ms | p95 ms | p99 ms |",
        "|---|---|---|---|",
        *rows,
        "",
    ])  # fmt: skip
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
