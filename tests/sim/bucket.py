"""An object store in memory that does to its clients what networks do: refuse, lose answers, deliver late and twice."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from sim.schedule import EPOCH, Scheduler
from swamp.env import UTC
from swamp.errors import ConditionFailed, NotFound, ObjectMissing, OutcomeUnknown, Unavailable
from swamp.store import port
from swamp.store.port import Condition, CreateOnly, Fetched, Level, Match, ObjectMeta, Token, Uploaded
from swamp.store.probe import SCRATCH

T = TypeVar("T")
Fault = Literal["none", "before", "lost", "late", "twice", "ghost"]
"""before: no effect · lost: effect, answer lost · late: the effect comes later, while its condition still holds ·
twice: delivered again later · ghost: effect, and the client's own re-send is answered with "condition failed"."""


@dataclass(frozen=True, slots=True)
class Stored:
    body: bytes
    token: Token
    modified: float


Watcher = Callable[[str, Stored | None, Stored | None], None]
"""Told of every change: key, before, after."""


@dataclass
class Bucket:
    """What is really there, and what is still under way."""

    hashed_tokens: bool
    conditions: bool = True
    objects: dict[str, Stored] = field(default_factory=dict)
    watchers: list[Watcher] = field(default_factory=list)
    under_way: list[tuple[float, str, Callable[[], object]]] = field(default_factory=list)
    begun: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When the bytes of an upload were read, and by whom."""
    fetched: dict[tuple[str, str], float] = field(default_factory=dict)
    """When a machine first read a payload."""
    now: float = 0.0
    _counter: int = 0

    def put(self, key: str, body: bytes, condition: Condition) -> ObjectMeta:
        before = self.objects.get(key)
        condition = condition if self.conditions else None
        if isinstance(condition, CreateOnly) and before is not None:
            raise ConditionFailed(f"{key} exists")
        if isinstance(condition, Match) and (before is None or before.token != condition.token):
            raise ConditionFailed(f"{key} has changed")
        self._counter += 1
        token = hashlib.md5(body).hexdigest() if self.hashed_tokens else f"v{self._counter}"
        after = Stored(body, token, self.now)
        self.objects[key] = after
        self._tell(key, before, after)
        return self.meta(key)

    def replace(self, key: str, body: bytes) -> None:
        """By other means than ours: no condition, nobody is told."""
        self._counter += 1
        self.objects[key] = Stored(body, f"other-{self._counter}", self.now)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            before = self.objects.pop(key, None)
            if before is not None:
                self._tell(key, before, None)

    def _tell(self, key: str, before: Stored | None, after: Stored | None) -> None:
        for watcher in self.watchers:
            watcher(key, before, after)

    def meta(self, key: str) -> ObjectMeta:
        found = self.objects.get(key)
        if found is None:
            raise ObjectMissing(f"{key} does not exist", details={"key": key})
        modified = dt.datetime.fromtimestamp(int(EPOCH + found.modified), UTC)  # whole seconds, like most stores
        return ObjectMeta(key, len(found.body), found.token, modified)

    def fetch(self, key: str) -> Fetched:
        return Fetched(self.meta(key), self.objects[key].body)

    def forget_under_way(self, what: str) -> None:
        self.under_way = [x for x in self.under_way if x[1] != what]

    def deliver(self, now: float) -> None:
        """Time has passed: requests under way arrive."""
        self.now = now
        if not self.under_way:
            return
        due = sorted((x for x in self.under_way if x[0] <= now), key=lambda x: x[0])
        self.under_way = [x for x in self.under_way if x[0] > now]
        for _, _, effect in due:
            try:
                effect()
            except ConditionFailed:
                pass  # its condition no longer held: nobody is listening any more


@dataclass
class Weather:
    """How often requests go wrong; drawn from the seed."""

    before: float = 0.01
    lost: float = 0.01
    late: float = 0.01
    twice: float = 0.01
    ghost: float = 0.005

    def worse(self, times: float) -> Weather:
        kinds = (self.before, self.lost, self.late, self.twice, self.ghost)
        return self if times == 1.0 else Weather(*(min(0.18, times * max(odds, 0.004)) for odds in kinds))

    def draw(self, rng: random.Random, write: bool) -> Fault:
        drawn = rng.random()
        odds: list[tuple[Fault, float]] = [("before", self.before), ("lost", self.lost)]
        if write:
            odds += [("late", self.late), ("twice", self.twice), ("ghost", self.ghost)]
        for fault, chance in odds:
            if drawn < chance:
                return fault
            drawn -= chance
        return "none"


class SimStore:
    """One process's client of the bucket: implements `ObjectStore`."""

    def __init__(
        self,
        bucket: Bucket,
        scheduler: Scheduler,
        weather: Weather,
        faults: Counter[str],
        peer: str = "",
        rough_probe: float = 1.0,
        lies: float = 0.0,
        halves: float = 0.0,
    ) -> None:
        self.bucket, self._scheduler, self.weather, self.faults = bucket, scheduler, weather, faults
        self._peer = peer
        self._lies, self._halves = lies, halves
        self._probing = weather.worse(rough_probe)
        self.requests = 0

    @property
    def url(self) -> str:
        return "sim://bucket/"

    # -- reads

    def head(self, key: str) -> ObjectMeta:
        return self._read(f"HEAD {key}", lambda: self.bucket.meta(key))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        found = self._as_told(key, self._read(f"GET {key}", lambda: self.bucket.fetch(key)))
        if not start and length is None:
            return found
        stop = None if length is None else start + length
        return Fetched(found.meta, found.body[start:stop])

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        found = self._read(f"GET? {key}", lambda: self.bucket.fetch(key))
        return None if found.meta.token == token else self._as_told(key, found)

    def _as_told(self, key: str, found: Fetched) -> Fetched:
        """Now and then other bytes than the index has, with the right token; never the same ones twice."""
        rng = self._scheduler.rng
        if (
            not self._lies
            or self._scheduler.current is None
            or not key.startswith((".datastore-index", "_index/"))
            or rng.random() >= self._lies
        ):
            return found
        self.faults["lie"] += 1
        self._scheduler.note(f"a lie about {key}")
        return Fetched(found.meta, found.body[: len(found.body) // 2] + f" {rng.random()}".encode())

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[SimBody]:
        found = self._read(f"OPEN {key}", lambda: self.bucket.fetch(key))
        self.bucket.fetched.setdefault((self._peer, key), self._scheduler.now)
        yield SimBody(found.meta, found.body[start:])

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        def must_end(last: str | None) -> None:
            if self._halves and self._read(f"LIST? {prefix}", lambda: self._page(prefix, last or "")):
                raise Unavailable(f"simulated: the listing of {prefix} was cut")

        return port.whole_listing(self._pages(prefix, start_after or ""), must_end, start_after)

    def _pages(self, prefix: str, after: str) -> Iterator[Sequence[ObjectMeta]]:
        while True:
            page = self._read(f"LIST {prefix}", lambda: self._page(prefix, after))  # noqa: B023
            if self._is_html():
                return  # as obstore does, which takes it for an empty last page
            if page:
                yield page
            if len(page) < self._page_size:
                return
            after = page[-1].key

    def _is_html(self) -> bool:
        if not self._halves or self._scheduler.current is None or self._scheduler.rng.random() >= self._halves:
            return False
        self.faults["html"] += 1
        self._scheduler.note("a page of HTML instead of a listing")
        return True

    @property
    def _page_size(self) -> int:
        return 2 if self._halves else 20

    def _page(self, prefix: str, after: str) -> Sequence[ObjectMeta]:
        keys = sorted(k for k in self.bucket.objects if k.startswith(prefix) and k > after)
        return [self.bucket.meta(k) for k in keys[: self._page_size]]

    def level(self, prefix: str = "") -> Level:
        return self._read(f"LEVEL {prefix}", lambda: self._level(prefix))

    def _level(self, prefix: str) -> Level:
        dirs: set[str] = set()
        objects: list[ObjectMeta] = []
        for key in sorted(k for k in self.bucket.objects if k.startswith(prefix)):
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                dirs.add(prefix + name)
            else:
                objects.append(self.bucket.meta(key))
        return Level(tuple(sorted(dirs)), tuple(objects))

    # -- writes

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        if key.startswith("_packs/"):
            self.bucket.begun.setdefault(key, (self._scheduler.now, self._peer))
        ghosts = condition is not None and self.bucket.conditions
        return self._write(f"PUT {key}", lambda: self.bucket.put(key, body, condition), ghosts=ghosts)

    def put_file(self, key: str, path: Path) -> Uploaded:
        try:
            body = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"{path} is gone") from error
        self.bucket.begun.setdefault(key, (self._scheduler.now, self._peer))
        meta = self._write(f"PUT {key}", lambda: self.bucket.put(key, body, None))
        return Uploaded(meta, hashlib.sha256(body).hexdigest())

    def delete(self, keys: Sequence[str]) -> None:
        doomed = tuple(keys)
        self._write(f"DELETE {' '.join(doomed)}", lambda: self.bucket.delete(doomed))

    # -- what the network does

    def _read(self, what: str, effect: Callable[[], T]) -> T:
        fault = self._begin(what, write=False)
        if fault == "before":
            raise Unavailable(f"simulated: {what} was not answered")
        result = effect()
        if fault == "lost":
            raise Unavailable(f"simulated: the answer to {what} was lost")
        return result

    def _write(self, what: str, effect: Callable[[], T], *, ghosts: bool = False) -> T:
        fault = self._begin(what, write=True)
        if fault == "before":
            raise Unavailable(f"simulated: {what} was not sent")
        if fault == "late":
            self._later(what, effect)
            raise OutcomeUnknown(f"simulated: {what} timed out")
        if fault == "twice":
            self._later(what, effect)
        result = effect()
        self._scheduler.pause(f"answer to {what}")
        if fault == "lost":
            raise OutcomeUnknown(f"simulated: the answer to {what} was lost")
        if fault == "ghost" and ghosts:
            raise ConditionFailed(f"simulated: {what} was sent twice")
        return result

    def _begin(self, what: str, *, write: bool) -> Fault:
        self.requests += 1
        scheduler = self._scheduler
        scheduler.pause(what)
        if scheduler.current is None:
            return "none"
        weather = self._probing if write and SCRATCH in what else self.weather
        fault = weather.draw(scheduler.rng, write)
        if fault == "none":
            scheduler.note(what)
        else:
            self.faults[fault] += 1
            scheduler.note(f"{what} !{fault}")
        return fault

    def _later(self, what: str, effect: Callable[[], object]) -> None:
        scheduler = self._scheduler
        delay = scheduler.rng.choice((0.1, 1.0, 30.0, 4000.0, 400_000.0)) * scheduler.rng.random()
        when = scheduler.now + delay

        def lands() -> object:
            scheduler.note(f"lands late: {what}")
            return effect()

        self.bucket.under_way.append((when, what, lands))


@dataclass(frozen=True, slots=True)
class SimBody:
    meta: ObjectMeta
    body: bytes

    def __iter__(self) -> Iterator[bytes]:
        if self.body:
            yield self.body
