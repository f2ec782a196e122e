"""Machines for tests: a checkout and a SWAMP_HOME of its own, and the CLI as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.index.root import ROOT_KEY
from swamp.store.open import StoreSpec
from swamp.store.port import ObjectStore
from warm import Nursery, Process

if TYPE_CHECKING:
    import pytest

SWAMP = Path(sys.executable).with_name("swamp")
NURSERY = Nursery(SWAMP)
_PASSED_ON = (
    "PATH",
    "PYTHONPATH",
    "LANG",
    "JAVA_HOME",
    "JDK_JAVA_OPTIONS",
    "SPARK_TEST_WORKERS",
    "TMPDIR",
    "COVERAGE_PROCESS_START",
    "SWAMP_PACKS",
)


@dataclass(frozen=True)
class Ran:
    """A finished command: what it printed where, and its exit code."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout: anything else there is a failure of the contract. C07"""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error document: the last line of stderr, while stdout is empty."""
        assert self.out == "", self.out
        found: dict[str, Any] = json.loads(self.err.strip().splitlines()[-1])
        return found

    def ok(self) -> Any:
        assert self.code == 0, f"{self.args} exited {self.code}\n{self.out}\n{self.err}"
        return self.json

    def failed(self, code: int) -> dict[str, Any]:
        assert self.code == code, f"{self.args} exited {self.code}, not {code}\n{self.out}\n{self.err}"
        return self.error


@dataclass
class Machine:
    """One person's computer: its home is its caches, its repo a checkout."""

    home: Path
    repo: Path
    env: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, directory: Path, name: str, env: dict[str, str] | None = None) -> Machine:
        machine = cls(directory / name / "home", directory / name / "repo", dict(env or {}))
        machine.home.mkdir(parents=True)
        machine("repo", "init", str(machine.repo)).ok()
        return machine

    def environment(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        kept = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        own = {"HOME": str(self.home), "SWAMP_HOME": str(self.home / ".swamp"), "SWAMP_REPO_DIR": str(self.repo)}
        return {**kept, **own, **self.env, **(extra or {})}

    def __call__(self, *args: str, json: bool = True, timeout: float = 120, env: dict[str, str] | None = None) -> Ran:
        words = (*args, "--json") if json else args
        process = NURSERY.start(words, self.environment(env), self.repo if self.repo.exists() else self.home)
        with process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode is not None
        return Ran(words, process.returncode, out, err)

    def start(
        self, *args: str, env: dict[str, str] | None = None, group: bool = False, first: Path | None = None
    ) -> Process:
        """The same command, left running; in a process group of its own if asked, to be killed as a whole."""
        return NURSERY.start((*args, "--json"), self.environment(env), self.repo, group=group, first=first)

    # -- short forms

    def setup(self, *args: str) -> Any:
        return self("datastore", "setup", *args).ok()

    def sync(self, *args: str) -> Any:
        return self("datastore", "sync", *args).ok()

    def put(self, model: str, name: str, content: str | bytes, *args: str) -> Any:
        file = self.home / "input"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return self("data", "put", model, name, str(file), *args).ok()

    def get(self, model: str, name: str, *args: str) -> Any:
        return self("data", "get", model, name, *args).ok()

    def names(self) -> list[tuple[str, str]]:
        return sorted((item["modelName"], item["name"]) for item in self("data", "list").ok()["items"])

    def versions(self, model: str, name: str) -> list[int]:
        return [v["version"] for v in self("data", "versions", model, name).ok()["versions"]]

    def status(self) -> Any:
        return self("datastore", "status").ok()

    @property
    def tree(self) -> Path:
        return Path(self.status()["cache"]["path"])

    @property
    def caches(self) -> list[Path]:
        """Every cache directory of this machine."""
        return sorted(p for p in (self.home / ".swamp" / "repos").glob("*/*") if p.is_dir())


def be(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process works as that machine does."""
    for name, value in machine.environment().items():
        if name != "PATH":
            monkeypatch.setenv(name, value)


def read_tree(root: Path) -> dict[str, bytes]:
    """Every file below `root`, for comparisons."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@dataclass(frozen=True)
class Place:
    """A bucket for machines to share: how to set it up, how to log in, and how a test looks inside."""

    url: str
    config: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    @property
    def setup_args(self) -> tuple[str, ...]:
        return (self.url, "--config", json.dumps(self.config)) if self.config else (self.url,)

    def open(self, namespace: str | None = None) -> ObjectStore:
        os.environ.update(self.env)
        return StoreSpec(self.url, self.config, namespace).open()

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Every object, by key."""
        store = self.open()
        return {meta.key: store.get(meta.key).body for page in store.list(prefix) for meta in page}

    def shorten_leases(self, seconds: float = 2.0) -> None:
        """Held leases, as a holder with a shorter time to live would have left them: who comes next waits less."""
        store = self.open()
        for key, body in self.objects().items():
            if key.endswith(".lock") and (lease := json.loads(body))["state"] == "held":
                store.put(key, json.dumps({**lease, "ttlMs": int(seconds * 1000)}).encode())

    def root(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.open().get(ROOT_KEY).body)
        return found

    def key_of(self, ending: str) -> str:
        """The key of the one entry whose path ends like this."""
        [key] = [entry["key"] for path, entry in self.root()["entries"].items() if path.endswith(ending)]
        return str(key)

    def lose(self, ending: str) -> None:
        """As a bucket loses an object: the index still names it."""
        self.open().delete([self.key_of(ending)])


def place_on(name: str, servers: Any, tmp_path: Path, fresh_prefix: Callable[[], str]) -> Place:
    """A place in a directory, or on one of the servers that tests start."""
    if name == "file":
        return Place((tmp_path / "bucket").as_uri())
    running = servers[name]
    return Place(f"{running.url}/{fresh_prefix()}", dict(running.config), dict(running.environ))


@dataclass
class Team:
    """Machines that share a place."""

    directory: Path
    place: Place

    def machine(self, name: str, *setup: str, joined: bool = True) -> Machine:
        made = Machine.make(self.directory, name, self.place.env)
        if joined:
            made.setup(*self.place.setup_args, *setup)
        return made
