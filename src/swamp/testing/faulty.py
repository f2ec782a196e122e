"""A store that misbehaves on request: faults before and after the effect, lost answers, delays, late writes.

Scripted (`Fault` says which call) or by chance (`Chance`, seeded). Everything that fired is in `fired`, so that a
test can show that its fault really happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeVar

from swamp.env import SYSTEM, Env, Rng
from swamp.errors import ConditionFailed, OutcomeUnknown, StoreError, Unavailable
from swamp.store.port import Body, Condition, Fetched, Level, ObjectMeta, ObjectStore, Token, Uploaded

Kind = Literal["before", "after", "late", "delay", "cut", "refuse"]
Verb = Literal["head", "get", "put", "delete", "list"]
T = TypeVar("T")
KINDS_BY_CHANCE: tuple[Kind, ...] = ("before", "after", "late")


@dataclass
class Fault:
    """One kind of trouble for the calls it matches.

    before  nothing happens, and the answer is lost
    after   it happens, and the answer is lost
    late    the answer is lost, and it happens when `land()` is called (writes and deletes; else as `before`)
    delay   it happens `seconds` later
    cut     a body ends after `count` bytes (only `open`); as `after` elsewhere
    refuse  nothing happens, and `error` is raised: a definite answer
    """

    kind: Kind
    verb: Verb | None = None
    key: str = "*"
    skip: int = 0
    times: int | None = 1
    seconds: float = 0.0
    count: int = 0
    error: StoreError | None = None
    status: int = 500

    def takes(self, verb: Verb, key: str) -> bool:
        """Whether this call is the one; counts it if it matches."""
        if self.verb not in (None, verb) or not fnmatchcase(key, self.key) or self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass
class Chance:
    """Trouble with probability `rate` per call, drawn from a seeded Rng."""

    rng: Rng
    rate: float
    kinds: Sequence[Kind] = KINDS_BY_CHANCE
    verbs: Sequence[Verb] = ("head", "get", "put", "delete", "list")

    def draw(self, verb: Verb) -> Fault | None:
        if verb not in self.verbs or self.rng.random() >= self.rate:
            return None
        return Fault(self.kinds[int(self.rng.random() * len(self.kinds))], verb)


@dataclass(frozen=True)
class Fired:
    kind: Kind
    verb: Verb
    key: str


@dataclass
class FaultyStore:
    """`inner`, with `faults` tried in order for each call, then `chance`."""

    inner: ObjectStore
    faults: list[Fault] = field(default_factory=list)
    chance: Chance | None = None
    env: Env = SYSTEM
    fired: list[Fired] = field(default_factory=list)
    pending: list[Callable[[], object]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def url(self) -> str:
        return self.inner.url

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self.faults.extend(faults)

    def land(self) -> int:
        """Lets late writes arrive, in the order they were sent; how many took effect."""
        with self._lock:
            waiting, self.pending = self.pending, []
        return sum(_landed(effect) for effect in waiting)

    def fired_kinds(self) -> set[Kind]:
        return {f.kind for f in self.fired}

    # -- the protocol

    def head(self, key: str) -> ObjectMeta:
        return self._call("head", key, lambda: self.inner.head(key))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        return self._call("get", key, lambda: self.inner.get(key, start=start, length=length))

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        return self._call("get", key, lambda: self.inner.get_if_changed(key, token))

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[Body]:
        fault = self._pick("get", key)
        if fault and fault.kind not in ("delay", "cut"):
            raise self._error(fault, "get", key)
        if fault and fault.kind == "delay":
            self.env.clock.sleep(fault.seconds)
        with self.inner.open(key, start=start) as body:
            yield CutBody(body, fault.count, self._error(fault, "get", key)) if fault and fault.kind == "cut" else body

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        return self._call("put", key, lambda: self.inner.put(key, body, condition))

    def put_file(self, key: str, path: Path) -> Uploaded:
        return self._call("put", key, lambda: self.inner.put_file(key, path))

    def delete(self, keys: Sequence[str]) -> None:
        frozen = list(keys)
        self._call("delete", frozen[0] if frozen else "", lambda: self.inner.delete(frozen))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        fault = self._pick("list", prefix)
        if fault and fault.kind != "delay":
            yield from self._cut_pages(self.inner.list(prefix, start_after=start_after), fault, prefix)
        else:
            if fault:
                self.env.clock.sleep(fault.seconds)
            yield from self.inner.list(prefix, start_after=start_after)

    def level(self, prefix: str = "") -> Level:
        return self._call("list", prefix, lambda: self.inner.level(prefix))

    # -- trouble

    def _cut_pages(
        self, pages: Iterable[Sequence[ObjectMeta]], fault: Fault, prefix: str
    ) -> Iterator[Sequence[ObjectMeta]]:
        if fault.kind == "cut":
            for page in pages:
                yield page[: max(1, fault.count)]
                break
        raise self._error(fault, "list", prefix)

    def _pick(self, verb: Verb, key: str) -> Fault | None:
        with self._lock:
            fault = next((f for f in self.faults if f.takes(verb, key)), None)
            if fault is None and self.chance is not None:
                fault = self.chance.draw(verb)
            if fault is not None:
                self.fired.append(Fired(fault.kind, verb, key))
            return fault

    def _call(self, verb: Verb, key: str, effect: Callable[[], T]) -> T:
        fault = self._pick(verb, key)
        if fault is None:
            return effect()
        if fault.kind == "delay":
            self.env.clock.sleep(fault.seconds)
            return effect()
        if fault.kind in ("after", "cut"):
            effect()
        elif fault.kind == "late" and verb in ("put", "delete"):
            with self._lock:
                self.pending.append(effect)
        raise self._error(fault, verb, key)

    def _error(self, fault: Fault, verb: Verb, key: str) -> StoreError:
        if fault.kind == "refuse" and fault.error is not None:
            return fault.error
        kind = OutcomeUnknown if verb == "put" else Unavailable
        details = {"key": key, "status": fault.status, "fault": fault.kind}
        return kind(f"injected fault {fault.kind!r} in {verb} {key}", hint="this is a test", details=details)


@dataclass(frozen=True)
class CutBody:
    """A body that ends too early."""

    body: Body
    count: int
    error: StoreError

    @property
    def meta(self) -> ObjectMeta:
        return self.body.meta

    def __iter__(self) -> Iterator[bytes]:
        left = self.count
        for chunk in self.body:
            if left <= 0:
                break
            yield chunk[:left]
            left -= len(chunk)
        raise self.error


def _landed(effect: Callable[[], object]) -> bool:
    try:
        effect()
    except ConditionFailed:
        return False  # exactly what a condition is for: the late write changes nothing
    return True
