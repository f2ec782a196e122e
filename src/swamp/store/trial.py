"""One experiment at a time on a bucket, in a scratch prefix: what is seen, and when that is a verdict.

Only evidence convicts: "not enforced" takes a conditional write that should have been refused and was *seen* to have
taken effect, its bytes read back, twice. An error, a timeout, a lost answer, a right condition that is refused under
load say nothing: the experiment is made again, under another name and after a pause. inv[probe.evidence]
"""

from __future__ import annotations

import datetime as dt
import tempfile
import threading
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

from swamp.env import Env
from swamp.errors import ConditionFailed, Interrupted, Misconfigured, ObjectMissing, StoreError, Unavailable
from swamp.store.layers import innermost
from swamp.store.port import CREATE, Condition, ConditionalDeletes, ConditionalFiles, Match, ObjectStore
from swamp.store.retry import pause_after
from swamp.store.together import together
from swamp.store.upload import PART_BYTES
from swamp.values import mutable, value

Seen = Literal["kept", "broken", "unknown"]
T = TypeVar("T")

PROOF: Final = 2
"""How often a promise must be seen broken; and one that was seen broken once must then be kept more often than that."""
TRIES: Final = 8
SECONDS: Final = 60.0
FIRST_PAUSE: Final = 0.1
WRITERS: Final = 8


@mutable
class Trial:
    """Experiments under one scratch prefix."""

    store: ObjectStore
    prefix: str
    env: Env
    used: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: bool = False
    """Whether the store has taken a write: there is something to clean up then."""
    why: StoreError | None = None
    """What the last unclear answer was."""
    stopped: threading.Event = field(default_factory=threading.Event)
    """Nobody wants an answer any more: what was used by then is cleaned up, so nothing else is used."""

    def beside(self) -> Trial:
        """For an experiment that is made at the same time: what is unclear to one says nothing of another."""
        return Trial(self.store, self.prefix, self.env, self.used, self.lock, stopped=self.stopped)

    def key(self, name: str) -> str:
        """A name that was never used before: what arrives late cannot disturb a later attempt."""
        key, number = f"{self.prefix}{name}", 1
        with self.lock:
            if self.stopped.is_set():
                raise Interrupted("interrupted")
            while key in self.used:
                number += 1
                key = f"{self.prefix}{name}-{number}"
            self.used.add(key)
        return key

    # -- from experiments to a verdict

    def keeps(self, experiment: Callable[[], Seen]) -> bool:
        """Whether a promise is kept. Raises Unavailable when that cannot be told."""
        seen = {"kept": 0, "broken": 0, "unknown": 0}
        began = self.env.clock.monotonic()
        while True:
            seen[self._tried(experiment)] += 1
            if seen["broken"] >= PROOF:
                return False
            if seen["kept"] > (PROOF if seen["broken"] else 0):
                return True
            if seen["unknown"] >= TRIES or self.env.clock.monotonic() - began > SECONDS:
                raise self._untold()
            if seen["unknown"]:
                self.env.clock.sleep(pause_after(self.why, FIRST_PAUSE * 2 ** seen["unknown"], self.env))

    def _tried(self, experiment: Callable[[], Seen]) -> Seen:
        try:
            return experiment()
        except Unavailable as error:
            if error.details.get("unreachable"):
                raise  # waiting for it is done already, for each request
            self.why = error
            return "unknown"

    def _untold(self) -> Unavailable:
        why = self.why.message if self.why else "right conditions are refused again and again"
        return Unavailable(
            f"cannot tell whether {self.store.url} enforces conditional writes: {why}",
            hint="nothing was set up or changed: try again when the store is less busy",
            details=self.why.details if self.why else {"store": self.store.url},
        )

    def told(self, question: Callable[[], T]) -> T:
        """An answer that needs no proof, asked again while the store does not answer. Raises Unavailable."""
        answers: list[T] = []

        def experiment() -> Seen:
            answers.append(question())
            return "kept"

        self.keeps(experiment)
        return answers[-1]

    # -- one writer

    def reads_its_writes(self, rounds: int) -> Seen:
        key = self.key("read")
        for number in range(rounds):
            body = f"version {number}".encode()
            self.store.put(key, body)
            # In part: so that the adapter learns by the way, on some bytes, whether ranges are answered with all of it.
            part, size = together([lambda: self.store.get(key, start=1).body, lambda: self.store.head(key).size])
            if (part, size) != (body[1:], len(body)):
                return "broken"
        self.store.delete([key])
        return "kept" if self._body(key) is None else "broken"

    def lists_its_writes(self, rounds: int) -> Seen:
        place = self.key("list")
        keys = [self.key(f"{place.removeprefix(self.prefix)}/{n}") for n in range(rounds)]
        for key in keys:
            self.store.put(key, b"x")
        listed = {m.key for page in self.store.list(f"{place}/") for m in page}
        self.store.delete(keys)
        left = [m.key for page in self.store.list(f"{place}/") for m in page]
        return "kept" if listed == set(keys) and not left else "broken"

    def refuses_second_create(self) -> Seen:
        key = self.key("create")
        if not self._allowed(key, b"first", CREATE):
            return "unknown"
        return self._forbidden(key, b"second", CREATE, stands=b"first")

    def swaps_only_on_match(self) -> Seen:
        key = self.key("swap")
        old = self.store.put(key, b"first").token
        if not self._allowed(key, b"second", Match(old)):
            return "unknown"
        seen = self._forbidden(key, b"third", Match(old), stands=b"second")
        return seen if seen != "kept" else self._forbidden(self.key("nothing"), b"x", Match(old), stands=None)

    def _allowed(self, key: str, body: bytes, condition: Condition) -> bool:
        """A write whose condition holds. Refused, it proves nothing: it was sent twice, or met a busy store."""
        try:
            self.store.put(key, body, condition)
        except ConditionFailed as refusal:
            self.why = refusal
            return self._body(key) == body
        return True

    def _forbidden(self, key: str, body: bytes, condition: Condition, *, stands: bytes | None) -> Seen:
        """A write whose condition does not hold, over bytes that must still stand afterwards."""
        answer = "done"
        try:
            self.store.put(key, body, condition)
        except Unavailable as lost:
            self.why, answer = lost, "none"
        except StoreError as refusal:
            if not isinstance(refusal, ConditionFailed) and refusal.details.get("status") != 404:
                raise  # denied, or not spoken there
            answer = "refused"
        return self._judged(key, body, answer, stands)

    def _judged(self, key: str, body: bytes, answer: str, stands: bytes | None) -> Seen:
        """What a refusal, an error or a success says together with the bytes there now. inv[probe.evidence]"""
        if answer == "none":
            return "unknown"
        now = self._body(key)
        if now == body:
            return "broken" if answer != "refused" else "unknown"
        return "kept" if answer != "done" and now == stands else "unknown"

    def _body(self, key: str) -> bytes | None:
        try:
            return self.store.get(key).body
        except ObjectMissing:
            return None

    # -- eight writers

    def one_creator_wins(self) -> Seen:
        return self._race(self.key("race-create"), CREATE)

    def one_swapper_wins(self) -> Seen:
        key = self.key("race-swap")
        return self._race(key, Match(self.store.put(key, b"start").token))

    def _race(self, key: str, condition: Condition) -> Seen:
        """Exactly one of the writers is told that it won, and its bytes are what is there."""

        def writer(number: int) -> Callable[[], bool | None]:
            return lambda: self._wins(key, _body_of(number), condition)

        answers = together([writer(number) for number in range(WRITERS)])
        winners = [number for number, won in enumerate(answers) if won]
        if len(winners) > 1:
            return "broken"
        told = len(winners) == 1 and None not in answers and self._body(key) == _body_of(winners[0])
        return "kept" if told else "unknown"

    def _wins(self, key: str, body: bytes, condition: Condition) -> bool | None:
        try:
            self.store.put(key, body, condition)
        except ConditionFailed:
            return False
        except Unavailable as lost:
            self.why = lost
            return None
        return True

    # -- what nothing depends on: None where the adapter has no such call, or it could not be told

    def deletes_on_match(self) -> bool | None:
        key = self.key("delete")
        adapter, full = innermost(self.store, key)
        if not hasattr(adapter, "delete_if"):
            return None
        can = cast(ConditionalDeletes, adapter)
        old = self.store.put(key, b"first").token
        try:
            new = self.store.put(key, b"second", Match(old)).token  # which teaches the client the form of a condition
            if not _refused(lambda: can.delete_if(full, old)) or self._body(key) is None:
                return False
            return not _refused(lambda: can.delete_if(full, new)) and self._body(key) is None
        except Unavailable:
            raise
        except StoreError as refusal:
            return None if isinstance(refusal, Misconfigured) else False

    def uploads_on_condition(self) -> bool | None:
        key = self.key("parts")
        adapter, full = innermost(self.store, key)
        if not hasattr(adapter, "put_file_if"):
            return None
        can = cast(ConditionalFiles, adapter)
        self.store.put(key, b"first")
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(PART_BYTES + 1)
            path = Path(file.name)
            return _refused(lambda: can.put_file_if(full, path, CREATE)) and self._body(key) == b"first"

    def tick(self) -> ProbeTick:
        """The first write of a probe, alone: whom the store denies everything is told by one request, and no server has
        to make the scratch directory for two at once (docs/decisions/0007-servers-with-directories.md)."""
        key = self.key("clock")
        before = self.env.clock.now()
        self.store.put(key, b"tick")
        return ProbeTick(key, before, self.env.clock.now())

    def clock_skew(self, tick: ProbeTick) -> float:
        stamp = self.store.head(tick.key).last_modified
        # Most stores keep whole seconds: only what cannot be rounding counts.
        early, late = (tick.before - stamp).total_seconds() - 1, (stamp - tick.after).total_seconds()
        return late if late > 0 else -early if early > 0 else 0.0


@value
class ProbeTick:
    """A write, and this machine's clock before and after it."""

    key: str
    before: dt.datetime
    after: dt.datetime


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ConditionFailed:
        return True
    return False


def _body_of(number: int) -> bytes:
    return f"writer {number}".encode()
