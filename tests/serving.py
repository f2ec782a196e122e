"""Real servers for tests: `swamp serve` as a process, asked over HTTP, killed without mercy."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import requests

from machines import Machine
from warm import Process

SECRET = "a secret of the webhook"
WORKFLOW = """\
id: {id}
name: {name}
inputs: {{type: object, properties: {{ref: {{type: string, default: none}}}}}}
{more}jobs:
  - name: main
    steps:
      - name: hello
        task:
          type: model_method
          modelType: command/shell
          modelName: {name}-hello
          methodName: execute
          inputs: {{run: "{run}"}}
"""
HOOKS = """\
serve:
  webhooks:
    - route: /hooks/deploy
      workflow: deploy
      scheme: github
      secret: "@env=HOOK_SECRET"
      inputs: {ref: "${{ event.body.ref }}"}
"""


def add_workflow(machine: Machine, name: str = "deploy", run: str = "echo hello", more: str = "") -> None:
    folder = machine.repo / "workflows"
    folder.mkdir(exist_ok=True)
    identity = f"00000000-0000-4000-8000-{crc32(name.encode()):012}"
    text = WORKFLOW.format(id=identity, name=name, run=run.replace('"', '\\"'), more=more)
    (folder / f"workflow-{name}.yaml").write_text(text)


def add_hooks(machine: Machine, text: str = HOOKS) -> None:
    file = machine.repo / ".swamp.yaml"
    file.write_text(file.read_text() + text)
    machine.env["HOOK_SECRET"] = SECRET


def signed(body: bytes, identity: str | None, secret: str = SECRET) -> dict[str, str]:
    mark = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={mark}", "Content-Type": "application/json"}
    return {**headers, "X-GitHub-Delivery": identity} if identity else headers


def until(found: Callable[[], Any], seconds: float = 120.0, pause: float = 0.1) -> Any:
    """What `found` gives as soon as it is something."""
    deadline = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(pause)


@dataclass
class Serving:
    """One server process and somebody who talks to it."""

    machine: Machine
    process: Process
    url: str
    login: str | None
    err: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    def token(self, role: str = "admin") -> str:
        if role not in self.tokens:
            self.tokens[role] = self.machine("serve", "token", "create", "--role", role).ok()["token"]
        return self.tokens[role]

    def ask(self, method: str, path: str, *, role: str | None = "admin", **more: Any) -> requests.Response:
        headers = dict(more.pop("headers", {}))
        if role is not None:
            headers["Authorization"] = f"Bearer {self.token(role)}"
        more.setdefault("timeout", 60)
        return requests.request(method, self.url + path, headers=headers, allow_redirects=False, **more)

    def get(self, path: str, **more: Any) -> Any:
        found = self.ask("GET", path, **more)
        assert found.status_code == 200, (path, found.status_code, found.text)
        return found.json()

    def deliver(self, identity: str | None, body: Any = None, route: str = "/hooks/deploy") -> requests.Response:
        raw = json.dumps(body if body is not None else {"ref": "main"}).encode()
        return requests.post(self.url + route, data=raw, headers=signed(raw, identity), timeout=30)

    def runs(self, **query: Any) -> list[dict[str, Any]]:
        """All pages."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self.get("/api/v1/runs", params={"limit": 500, **query, **({"cursor": cursor} if cursor else {})})
            found += page["items"]
            cursor = page["next"]
            if cursor is None:
                return found

    def ended(self, run_id: str, seconds: float = 180.0) -> dict[str, Any]:
        over = ("succeeded", "failed", "cancelled")
        found: dict[str, Any] = until(
            lambda: (r := self.get(f"/api/v1/runs/{run_id}"))["status"] in over and r, seconds
        )
        return found

    def kill(self) -> None:
        """kill -9, of the server and nobody else."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 60.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)


def start(machine: Machine, *args: str, env: dict[str, str] | None = None, seconds: float = 60.0) -> Serving:
    """`swamp serve --port 0 --json`, when it has said that it is ready."""
    process = machine.start("serve", "--port", "0", *args, env=env, group=True)
    err: list[str] = []
    assert process.stderr is not None and process.stdout is not None
    threading.Thread(target=lambda: err.extend(process.stderr or ()), daemon=True).start()
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    assert line, f"the server ended with {process.wait()}: {''.join(err)}"
    ready = json.loads(line)
    assert set(ready) == {"url", "login", "pid"} and ready["pid"] == process.pid
    return Serving(machine, process, ready["url"], ready["login"], err)


@contextmanager
def serving(machine: Machine, *args: str, env: dict[str, str] | None = None) -> Iterator[Serving]:
    server = start(machine, *args, env=env)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
        end_workers(machine)


def end_workers(machine: Machine) -> None:
    """Processes of runs that outlived their server: theirs is the environment of this machine."""
    mark = f"SWAMP_REPO_DIR={machine.repo}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if mark in (entry / "environ").read_bytes() and b"swamp.serve" in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


class Stream:
    """A reader of `/api/v1/events` in a thread."""

    def __init__(self, server: Serving, *, role: str = "viewer", last: int | None = None, query: str = "") -> None:
        headers = {"Authorization": f"Bearer {server.token(role)}"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.answer = requests.get(
            f"{server.url}/api/v1/events{query}", headers=headers, stream=True, timeout=(10, 120)
        )
        assert self.answer.status_code == 200, self.answer.text
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        fields: dict[str, str] = {}
        try:
            for raw in self.answer.iter_lines(chunk_size=1):
                line = raw.decode()
                if line:
                    key, _, value = line.partition(": ")
                    fields[key] = value
                else:
                    if "data" in fields:
                        self.events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
                    fields = {}
        except (requests.RequestException, OSError, AttributeError, ValueError):
            return

    def wait(self, kind: str, seconds: float = 60.0, **wanted: Any) -> dict[str, Any]:
        def found() -> Any:
            return next(
                (d for _, k, d in list(self.events) if k == kind and all(d.get(a) == b for a, b in wanted.items())),
                None,
            )

        event: dict[str, Any] = until(found, seconds)
        return event

    def close(self) -> None:
        """Ends the connection first: an answer that is closed waits for who reads it, and that is for the next beat."""
        wire = getattr(self.answer.raw.connection, "sock", None)
        if wire is not None:
            wire.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=60)
        self.answer.close()
