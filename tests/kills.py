"""Real commands, killed with SIGKILL at a chosen step, and what was at risk when they died.

On S3 a step is a request: a proxy kills the command before the server hears of it, or after it has acted. On a bucket
in a directory a step is a call that changes the file system, in the cache, the tree or the bucket: an audit hook in
the command's own interpreter kills it before the call. Both are counted in a first run that nobody kills.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from machines import Machine, Place, Ran
from servers.proxy import FaultProxy, Rule
from swamp.cache.layout import caches_of
from swamp.data.metadata import decode
from swamp.errors import ObjectMissing
from swamp.index.entry import is_pack
from swamp.index.root import ROOT_KEY
from swamp.locks.decide import GLOBAL_KEY
from swamp.store.port import ObjectStore
from warm import Process

HOOK = """
import itertools, os, signal, sys

below, at, log = os.environ["SWAMP_TEST_BELOW"], int(os.environ["SWAMP_TEST_STEP"]), os.environ["SWAMP_TEST_LOG"]
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
changes = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate")
steps, out = itertools.count(), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def watch(event, args):
    if event not in changes and not (event == "open" and isinstance(args[2], int) and args[2] & writing):
        return
    path = args[0]
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or (path.startswith("/") and not path.startswith(below)):
        return
    if next(steps) == at:
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(out, f"{event} {path}\\n".encode("utf-8", "replace"))

sys.addaudithook(watch)
"""


@dataclass
class Died:
    """How a command ended: killed, or with an answer."""

    ran: Ran
    killed: bool

    @property
    def acknowledged(self) -> bool:
        return not self.killed and self.ran.code == 0


@dataclass
class Killer:
    """Kills the commands of machines below `directory`: at requests if there is a proxy, else at file system calls."""

    directory: Path
    proxy: FaultProxy | None = None
    timeout: float = 120

    def count(self, machine: Machine, *args: str) -> tuple[Ran, list[str]]:
        """Runs the command to its end; every step it made."""
        if self.proxy is None:
            died = self.kill(machine, -1, *args)
            return died.ran, self._log.read_text().splitlines()
        seen = len(self.proxy.seen)
        died = self.kill(machine, -1, *args)
        return died.ran, [f"{method} {path}" for method, path in self.proxy.seen[seen:]]

    def kill(self, machine: Machine, at: int, *args: str, late: bool = False) -> Died:
        """Kills it at that step: before it, or (`late`, requests only) after its effect and before its answer."""
        if self.proxy is None:
            env, hook = self._hooked(at)
            return self._finish(machine.start(*args, env=env, group=True, first=hook), args)
        numbers, started = itertools.count(), threading.Event()
        process: list[Process] = []

        def end() -> None:
            started.wait(30)
            end_group(process[0])

        rule = Rule("lose" if late else "drop", times=None, when=lambda _: next(numbers) == at, then=end)
        self.proxy.rules.insert(0, rule)
        try:
            process.append(machine.start(*args, group=True))
            started.set()
            return self._finish(process[0], args)
        finally:
            self.proxy.rules.remove(rule)

    @property
    def _log(self) -> Path:
        return self.directory / "steps.log"

    def _hooked(self, at: int) -> tuple[dict[str, str], Path]:
        site = self.directory / "killing"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(HOOK)
        self._log.unlink(missing_ok=True)
        log = self._log.parent.resolve() / self._log.name
        found = {"SWAMP_TEST_BELOW": str(self.directory), "SWAMP_TEST_STEP": str(at), "SWAMP_TEST_LOG": str(log)}
        return found, site

    def _finish(self, process: Process, args: tuple[str, ...]) -> Died:
        try:
            out, err = process.communicate(timeout=self.timeout)
        finally:
            end_group(process)
        return Died(Ran(args, process.returncode, out, err), process.returncode == -signal.SIGKILL)


def end_group(process: Process) -> None:
    """Kills the process and everything it has started in its group. One that was waited for has given its number
    back: by now it may be somebody else's."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@dataclass
class Tally:
    """What a harness did: printed by every one of them."""

    name: str
    killed: int = 0
    acknowledged: int = 0
    at_risk: int = 0
    lost: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, died: Died, owed: set[str]) -> None:
        self.acknowledged += died.acknowledged
        self.killed += died.killed
        if died.killed and owed:
            self.at_risk += 1
        if died.killed:
            self.notes.append("+".join(sorted(owed)) or "nothing")

    def __str__(self) -> str:
        said = f"killed {self.killed}, acknowledged {self.acknowledged}, at risk {self.at_risk}, lost {self.lost}"
        return f"{self.name}: {said} ({', '.join(self.notes)})"


# --- what is owed ---------------------------------------------------------------------------------------------------


def owed(machine: Machine, place: Place) -> set[str]:
    """What a dead command has begun and not recorded: in its cache, and in the bucket."""
    return owed_locally(machine) | _owed_in(place.open())


def owed_locally(machine: Machine) -> set[str]:
    return {reason for cache in machine.caches for reason in _owed_by(cache)}


def journal(machine: Machine, place: Place) -> list[tuple[object, ...]]:
    """What the journal of this machine's cache of that place holds. A cache that a killed `setup` began to fill owes
    nobody anything: the checkout never named it."""
    rows: list[tuple[object, ...]] = []
    caches = caches_of(machine.home / ".swamp", place.open().url)
    assert caches, f"no cache of {place.url} was looked at"
    for cache in caches:
        with contextlib.closing(sqlite3.connect(cache.state_db)) as db:
            rows += db.execute("SELECT * FROM journal").fetchall()
    return rows


def _owed_by(cache: Path) -> Iterator[str]:
    if any((cache / "staging").glob("*")):
        yield "staging"
    if not (cache / "state.db").exists():
        return
    db = sqlite3.connect(cache / "state.db")
    try:
        for table in ("journal", "staged", "deferred"):
            with contextlib.suppress(sqlite3.OperationalError):  # killed before it had tables
                if db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]:
                    yield table
    finally:
        db.close()


def _owed_in(store: ObjectStore) -> set[str]:
    try:
        body = store.get(ROOT_KEY).body
    except ObjectMissing:
        return set()
    root = json.loads(body)
    found = {"collecting"} if root["collecting"] else set()
    named = body.decode()
    keys = [meta.key for page in store.list("") for meta in page]
    segments = [k for k in keys if k.startswith("_index/") and k.endswith(".parquet")]
    if any(json.dumps(k) not in named for k in segments):
        found.add("unnamed segment")
    unnamed = [k for k in keys if ("~" in k and json.dumps(k) not in named) or (is_pack(k) and f"{k}@" not in named)]
    if not root["segments"] and unnamed:
        found.add("unnamed payload")
    if GLOBAL_KEY in keys and json.loads(store.get(GLOBAL_KEY).body).get("state") == "held":
        found.add("lease")
    return found


# --- what is there --------------------------------------------------------------------------------------------------

Versions = dict[tuple[str, str, int], str]
"""(model, name, version) -> checksum."""


def whole(tree: Path, *, writer_died: bool = False) -> Versions:
    """Every version of a tree. Each must have its metadata and exactly the bytes that the metadata promises.

    Where a writer died, its own cache may hold content without metadata: no version, for `data prune` to remove.
    """
    from hashlib import sha256

    found: Versions = {}
    described = set()
    for file in sorted((tree / "data").rglob("metadata.yaml")):
        meta = decode(file.read_bytes(), str(file))
        described.add(file.parent)
        if not meta.active:
            continue
        raw = file.parent / "raw"
        if meta.parts:
            for part in meta.parts:
                assert sha256((raw / part.name).read_bytes()).hexdigest() == part.checksum, f"torn: {raw / part.name}"
            lines = "".join(f"{part.name}\0{part.checksum}\n" for part in sorted(meta.parts, key=lambda p: p.name))
            assert sha256(lines.encode()).hexdigest() == meta.checksum
        else:
            body = raw.read_bytes()
            assert (len(body), sha256(body).hexdigest()) == (meta.size, meta.checksum), f"torn: {raw}"
        found[(meta.tags.get("modelName", ""), meta.name, meta.version)] = meta.checksum
    for raw in (tree / "data").rglob("raw"):
        assert writer_died or raw.parent in described, f"half a version: {raw.parent}"
    return found


def assert_no_help_needed(machine: Machine) -> None:
    """No pending work, no lock that is stuck, nothing missing or corrupt in the bucket."""
    status = machine.status()
    assert status["healthy"] and status["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}, status
    if status["lock"]["held"]:  # by a structural command that was killed: the next one takes it over after a TTL
        machine("datastore", "gc").ok()
        assert not machine.status()["lock"]["held"], status
    checked = machine("datastore", "verify", "--engine", "inline").ok()
    assert checked["missing"] == [] and checked["corrupt"] == [], checked


@contextlib.contextmanager
def being(machine: Machine) -> Iterator[None]:
    """This process with the environment of that machine: for work that needs no process of its own."""
    kept = dict(os.environ)
    os.environ.update(machine.environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
