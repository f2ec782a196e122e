"""Many requests, many streams, slow readers: nothing grows, and nobody waits for somebody else."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import requests

from machines import Machine
from serving import Serving, add_workflow, serving
from swamp.serve.database import Database

REQUESTS = int(os.environ.get("SWAMP_SERVE_REQUESTS", "1500"))


def descriptors(server: Serving) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def memory(server: Serving) -> int:
    """Bytes that are its own."""
    for line in Path(f"/proc/{server.pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def test_no_descriptor_and_no_memory_grows_over_requests(server: Serving) -> None:
    paths = ["/healthz", "/api/v1/datastore/status", "/api/v1/data", "/api/v1/runs", "/api/v1/session", "/api/v1/none",
             "/api/v1/data/web/page", "/api/v1/data/web/page/versions/1/content", "/metrics"]  # fmt: skip
    server.machine.put("web", "page", "x" * 10_000)
    headers = {"Authorization": f"Bearer {server.token('viewer')}"}

    def ask(count: int) -> None:
        def some(first: int) -> None:
            with requests.Session() as session:
                for number in range(first, count, 4):
                    answer = session.get(server.url + paths[number % len(paths)], headers=headers, timeout=60)
                    assert answer.status_code in (200, 404), answer.text

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(some, range(4)))

    ask(400)  # whatever is made once is made now
    before, used = descriptors(server), memory(server)
    ask(REQUESTS)
    time.sleep(1)
    assert descriptors(server) <= before + 8
    assert memory(server) - used < 10 * 1024 * 1024


def test_threads_that_come_and_go_leave_nothing_open(tmp_path: Path) -> None:
    """Requests are answered by threads that end when they are idle for some seconds."""
    database = Database(tmp_path / "serve.db")
    for _ in range(30):
        thread = threading.Thread(target=lambda: database.all("SELECT * FROM events"))
        thread.start()
        thread.join()
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    opened = sum(os.path.lexists(link) and os.readlink(link) == str(database.path) for link in links)
    database.close()
    assert opened <= 6


def test_streams_that_nobody_reads_do_not_slow_the_api(machine: Machine) -> None:
    """A hundred idle streams, and one reader that never takes what it is sent."""
    add_workflow(machine, run="for i in $(seq 3000); do echo a line that is long enough to fill a buffer $i; done")
    with serving(machine) as server:
        alone = percentile(server, 60)
        place = urlsplit(server.url)
        request = (
            f"GET /api/v1/events HTTP/1.1\r\nHost: {place.netloc}\r\n"
            f"Authorization: Bearer {server.token('viewer')}\r\n\r\n"
        ).encode()
        streams = []
        for _ in range(100):
            wire = socket.create_connection((place.hostname, place.port))
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.sendall(request)
            streams.append(wire)
        time.sleep(1)
        run = server.deliver("one").json()["runId"]
        assert server.ended(run)["status"] == "succeeded"
        beside = percentile(server, 60)
        assert beside < alone * 10 + 0.5, (alone, beside)
        for wire in streams:
            wire.close()
        assert requests.get(f"{server.url}/healthz").status_code == 200


def percentile(server: Serving, count: int) -> float:
    headers = {"Authorization": f"Bearer {server.token('viewer')}"}
    times = []
    with requests.Session() as session:
        for _ in range(count):
            began = time.perf_counter()
            assert session.get(f"{server.url}/api/v1/session", headers=headers).status_code == 200
            times.append(time.perf_counter() - began)
    return statistics.quantiles(times, n=20)[-1]


def test_a_slow_body_holds_up_nobody(server: Serving) -> None:
    place = urlsplit(server.url)
    head = f"POST /hooks/deploy HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 1000\r\n\r\nab".encode()
    wires = []
    for _ in range(60):  # more than there are threads
        wire = socket.create_connection((place.hostname, place.port))
        wire.sendall(head)
        wires.append(wire)
    began = time.monotonic()
    assert server.ask("GET", "/api/v1/data").status_code == 200
    assert server.deliver("one").status_code == 202
    assert time.monotonic() - began < 20
    for wire in wires:
        wire.close()
    assert [d["deliveryId"] for d in server.get("/api/v1/deliveries")["items"]] == ["one"]
