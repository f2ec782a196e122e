"""One simulated world: a bucket, a few machines with their caches, and what is known of them."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from sim.bucket import Bucket, SimStore, Weather
from sim.mix import Mix
from sim.oracle import Oracle, Write
from sim.reading import sha_of
from sim.schedule import Actor, Odds, Scheduler, Violation, environment
from swamp.cache.layout import CacheDir
from swamp.commit.log import log_key
from swamp.env import Env, rfc3339
from swamp.index.root import ENFORCED, IGNORED, ROOT_KEY, Writer, encode, first_root

STEP_LIMIT = 60_000


@dataclass(eq=False)
class Backup:
    """A copy of a cache, to be restored later than is good."""

    place: Path
    at: float
    known: dict[str, set[str]]
    pending: list[Write]


@dataclass(eq=False)
class Peer:
    """A machine: one cache, one or two processes, and a user with a memory."""

    name: str
    cache: CacheDir
    lazy: bool
    env: Env
    skew: float
    known: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    told: set[str] = field(default_factory=set)
    actors: list[Actor] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    running: int = 0
    gate: bool = False
    backup: Backup | None = None
    misled: bool = False
    """It was told once that conditions are ignored where they are not, or the other way round."""
    hollow: bool = False
    """Files vanished from its tree unannounced: what of that a write has hidden since takes a full comparison."""

    @property
    def writer(self) -> Writer:
        return Writer(f"repo-{self.name}", self.name, "sim", 1, "sim")

    def tree(self) -> Iterator[tuple[str, bytes]]:
        root = self.cache.tree
        if root.is_dir():
            for file in sorted(root.rglob("*")):
                if file.is_file() and file.name != "latest":
                    yield file.relative_to(root).as_posix(), file.read_bytes()

    def kept(self) -> set[str]:
        """Hashes of everything that was moved aside here."""
        top = self.cache.conflicts
        return {sha_of(f.read_bytes()) for f in top.rglob("*") if f.is_file()} if top.is_dir() else set()

    def wall_ns(self) -> int:
        return int(self.env.clock.now().timestamp()) * 1_000_000_000  # whole seconds: a coarse file system


class World:
    """Everything that one seed makes."""

    def __init__(self, seed: int, mix: Mix, place: Path) -> None:
        self.seed, self.mix, self.place = seed, mix, place
        self.rng = random.Random(f"{seed}/{mix.name}")
        self.odds, self.weather = _odds(self.rng, mix), _weather(self.rng, mix)
        self.bucket = Bucket(hashed_tokens=self.rng.random() < 0.5, conditions=mix.conditions)
        self.scheduler = Scheduler(self.rng, self.odds, self.bucket.deliver, STEP_LIMIT)
        self.oracle = Oracle(self.bucket, self.scheduler, mix.keep_s)
        self.faults: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.recreated: float | None = None
        self.acting = 0
        self.survivors: set[str] = set()
        self.kept: set[str] = set()
        """Puts that were kept while the store was away, by their `writeId`."""
        self._contents = 0
        self.peers = [self._peer(i) for i in range(self._count())]
        for path in mix.foreign:
            self._foreign(path)
        if self.rng.random() < mix.rooted:
            self._found_store()

    def _found_store(self) -> None:
        """Somebody has used this store before and left it empty: runs then need not begin with a race for it."""
        env = self.peers[0].env
        word = ENFORCED if self.mix.conditions else IGNORED
        root = first_root(env.uuid(), env.ulid(), rfc3339(env.clock.now()), self.peers[0].writer, word)
        body = encode(root)
        self.bucket.put(ROOT_KEY, body, None)
        self.bucket.put(log_key(root.seq, root.op), body, None)

    def _foreign(self, path: str) -> None:
        """Another tool has filled the bucket, under plain keys."""
        body = self.content()
        self.bucket.put(path, body, None)
        self.oracle.wrote("another tool", path, sha_of(body), ()).done = 0.0

    def _count(self) -> int:
        return self.rng.randint(*self.mix.peers)

    def _peer(self, number: int) -> Peer:
        rng, name = self.rng, "ABCDEF"[number]
        skew = rng.choice((0.0, 0.0, -7200.0, 86_400.0))
        env = environment(self.scheduler, skew, rng.getrandbits(60))
        lazy = rng.random() < self.mix.lazy
        misled = bool(self.mix.misled) and rng.random() < self.mix.misled
        return Peer(name, CacheDir(self.place / name), lazy, env, skew, misled=misled)

    def store(self, peer: Peer) -> SimStore:
        mix = self.mix
        return SimStore(
            self.bucket, self.scheduler, self.weather, self.faults, peer.name, mix.rough_probe, mix.lies, mix.halves
        )

    def content(self) -> bytes:
        """New bytes, all of one size so that only their hash tells them apart; now and then old bytes again."""
        if self._contents and self.rng.random() < self.mix.repeat:
            return self._bytes(self.rng.randint(max(1, self._contents - 3), self._contents))
        self._contents += 1
        return self._bytes(self._contents)

    def unique(self) -> int:
        self._contents += 1
        return self._contents

    @staticmethod
    def _bytes(number: int) -> bytes:
        return b"content %07d\n" % number

    def said(self, error: Exception) -> str:
        """An error as the trace shows it: without what differs from run to run."""
        text = f"{type(error).__name__}: {error}".replace(str(self.place), "")
        return re.sub(r"process [\d, ]+", "process N ", text)[:200]

    def fail(self, name: str, text: str) -> NoReturn:
        self.scheduler.note(f"VIOLATION [{name}] {text}")
        raise Violation(name, text)

    def recreate(self) -> None:
        """Everything in the bucket is gone; what the caches hold must find its way back. inv[state.bound]"""
        self.recreated = self.scheduler.now
        for peer in self.peers:
            self.survivors |= {path for path, _ in peer.tree()}
        self.oracle.recreated()

    def close(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)


def _odds(rng: random.Random, mix: Mix) -> Odds:
    calm = rng.random() < 0.3
    return Odds(
        stay=rng.choice(mix.stay),
        crash=0.0 if calm else mix.crash,
        pause=mix.pause,
        linger=mix.linger,
        fatal=mix.fatal,
        tick=rng.choice((0.001, 0.05, 0.7)),
    )


def _weather(rng: random.Random, mix: Mix) -> Weather:
    rough = rng.choice((0.0, 0.5, 1.0, 2.0)) * mix.weather
    return Weather(0.012 * rough, 0.012 * rough, 0.012 * rough, 0.012 * rough, 0.008 * rough)
