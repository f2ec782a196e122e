"""Machines for engine tests: a cache, an engine, and what their users do with files."""

from __future__ import annotations

import datetime as dt
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swamp.cache.layout import CacheDir
from swamp.cache.state import Hook
from swamp.env import Env, SystemClock
from swamp.index.entry import Entry, is_payload_key
from swamp.index.lookup import live_rows
from swamp.index.pack import read_payload
from swamp.index.root import ROOT_KEY, Root, Writer
from swamp.store.port import Body, Condition, Fetched, Level, ObjectMeta, ObjectStore, Token, Uploaded
from swamp.sync.engine import Engine, Policy
from swamp.sync.progress import IdleTimeout
from swamp.sync.result import SyncResult

MODEL = "data/command/shell/0b54a7a1-6c1f-4c0e-a8c7-4f5f3f6b1d10"


class HastyClock(SystemClock):
    """Sleeps are over at once, and deadlines notice them; the time of day stays what it is."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        self._skipped += seconds
        time.sleep(min(seconds, 0.001))


def hasty() -> Env:
    return Env(HastyClock(), random.SystemRandom())


@dataclass
class Watched:
    """A store that tells `before` about each call, which may do something meanwhile, wait, or raise."""

    inner: ObjectStore
    before: Callable[[str, str], None]
    after: Callable[[str, str], None] = lambda verb, key: None

    @property
    def url(self) -> str:
        return self.inner.url

    def head(self, key: str) -> ObjectMeta:
        self.before("head", key)
        return self.inner.head(key)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        self.before("open" if is_payload_key(key) else "get", key)  # a small payload comes in one piece
        return self.inner.get(key, start=start, length=length)

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        self.before("get", key)
        return self.inner.get_if_changed(key, token)

    def open(self, key: str, *, start: int = 0) -> AbstractContextManager[Body]:
        self.before("open", key)
        return self.inner.open(key, start=start)

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        self.before("put", key)
        done = self.inner.put(key, body, condition)
        self.after("put", key)
        return done

    def put_file(self, key: str, path: Path) -> Uploaded:
        self.before("upload", key)
        done = self.inner.put_file(key, path)
        self.after("upload", key)
        return done

    def delete(self, keys: Sequence[str]) -> None:
        self.before("delete", keys[0] if keys else "")
        self.inner.delete(keys)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        self.before("list", prefix)
        return self.inner.list(prefix, start_after=start_after)

    def level(self, prefix: str = "") -> Level:
        self.before("list", prefix)
        return self.inner.level(prefix)


def once(verb: str, ending: str, act: Callable[[], object]) -> Callable[[str, str], None]:
    """Does `act` the first time that `verb` is called on a key with `ending` in it."""
    done: list[str] = []

    def before(called: str, key: str) -> None:
        if called == verb and ending in key and not done:
            done.append(key)
            act()

    return before


def version(name: str, number: int, model: str = MODEL) -> str:
    return f"{model}/{name}/{number}"


@dataclass
class Peer:
    """One machine's cache of a store. `engine()` again is another process on the same cache."""

    store: ObjectStore
    home: Path
    name: str = "a"
    policy: Policy = field(default_factory=lambda: Policy(push_concurrency=4, pull_concurrency=4))
    env: Env = field(default_factory=hasty)
    live: Engine | None = None

    @property
    def cache(self) -> CacheDir:
        return CacheDir(self.home / self.name)

    @property
    def tree(self) -> Path:
        return self.cache.tree

    @property
    def engine(self) -> Engine:
        if self.live is None:
            self.live = self.process()
        return self.live

    def process(
        self, store: ObjectStore | None = None, *, env: Env | None = None, hook: Hook | None = None, **changed: Any
    ) -> Engine:
        """Another engine on the same cache, as another process would open it."""
        policy = replace(self.policy, **changed)
        return Engine.open(
            store or self.store, self.cache, writer=self.writer, env=env or self.env, policy=policy, hook=hook
        )

    @property
    def writer(self) -> Writer:
        return Writer("repo-1", f"host-{self.name}", self.name, 1, "0.1.0")

    def restart(self) -> Engine:
        if self.live is not None:
            self.live.close()
        self.live = None
        return self.engine

    # -- files

    def write(self, path: str, content: str | bytes, engine: Engine | None = None) -> None:
        with (engine or self.engine).announce([path]):
            self.put(path, content)

    def put(self, path: str, content: str | bytes) -> None:
        """Bytes in the tree that nobody announced."""
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def write_version(self, unit: str, raw: str | bytes, engine: Engine | None = None) -> None:
        with (engine or self.engine).announce([unit]):
            self.put(f"{unit}/raw", raw)
            self.put(f"{unit}/metadata.yaml", f"size: {len(raw)}\n")

    def delete(self, path: str, engine: Engine | None = None) -> None:
        with (engine or self.engine).announce([path], "delete"):
            target = self.tree / path
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def read(self, path: str) -> str:
        return (self.tree / path).read_text()

    def has(self, path: str) -> bool:
        return (self.tree / path).exists()

    def files(self) -> dict[str, str]:
        return files_below(self.tree)

    def kept(self) -> dict[str, str]:
        """What lies in conflicts/, by path below the operation's directory."""
        return {p.partition("/")[2]: c for p, c in files_below(self.cache.conflicts).items()}

    # -- sync

    def push(self, *scope: str, full: bool = False) -> SyncResult:
        return self.engine.push(scope, full=full)

    def pull(self, *scope: str, full: bool = False) -> SyncResult:
        return self.engine.pull(scope, full=full)

    def sync(self, *scope: str, full: bool = False) -> SyncResult:
        return self.engine.sync(scope, full=full)

    def pace(self) -> None:
        IdleTimeout(self.env, 60.0).check()


def files_below(top: Path) -> dict[str, str]:
    found = sorted(p for p in top.rglob("*") if p.is_file())
    return {str(p.relative_to(top)): p.read_bytes().decode("utf-8", "replace") for p in found}


def root_of(engine: Engine) -> Root:
    root = engine.committer.read().root
    assert root is not None, "the store has no root"
    return root


def shared(engine: Engine) -> dict[str, Entry]:
    """What the store's index says exists, by path."""
    return {row.path: row for row in live_rows(root_of(engine), engine.committer.fetch)}


def content(engine: Engine) -> dict[str, str]:
    """What anybody can read from the bucket: every entry's payload, which must be there."""
    store = engine.committer.store
    rows = shared(engine)
    return {p: read_payload(store, e.key, e.size).decode("utf-8", "replace") for p, e in rows.items()}


def keys(store: ObjectStore, prefix: str = "") -> set[str]:
    return {meta.key for page in store.list(prefix) for meta in page}


def ruin_root(store: ObjectStore, damage: bytes | None) -> None:
    """The root is lost, or holds these bytes."""
    if damage is None:
        store.delete([ROOT_KEY])
    else:
        store.put(ROOT_KEY, damage)


def assert_quiet(peers: Iterable[Peer]) -> None:
    """Everybody agrees with the bucket, and another sync has nothing to do."""
    for peer in peers:
        again = peer.sync()
        assert again.ok, again
        assert (again.files_pushed, again.files_pulled, again.files_deleted) == (0, 0, 0), (peer.name, again)
        assert again.fast_path, (peer.name, again)
        assert peer.files() == content(peer.engine), peer.name


def settled(*peers: Peer) -> None:
    """Syncs everybody until quiet, twice round, then checks."""
    for _ in range(2):
        for peer in peers:
            peer.sync()
    assert_quiet(peers)


@dataclass
class Aged(Watched):
    """A store some of whose objects are older than they are: `ages` by a part of their key. The rest is from now."""

    before: Callable[[str, str], None] = lambda verb, key: None
    ages: dict[str, dt.timedelta] = field(default_factory=dict)

    def _aged(self, meta: ObjectMeta) -> ObjectMeta:
        age = next((age for part, age in self.ages.items() if part in meta.key), dt.timedelta(0))
        return replace(meta, last_modified=meta.last_modified - age)

    def head(self, key: str) -> ObjectMeta:
        return self._aged(self.inner.head(key))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        for page in self.inner.list(prefix, start_after=start_after):
            yield [self._aged(meta) for meta in page]
