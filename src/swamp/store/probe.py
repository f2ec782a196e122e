"""Finds out by trying what a bucket enforces, in a scratch prefix that is cleaned up.

A name proves nothing: servers exist that accept `If-Match` and `If-None-Match` and ignore them. So every promise
that the commit protocol stands on is put to the test, also with eight writers at once.

Only evidence convicts: "not enforced" takes a conditional write that should have been refused and was *seen* to have
taken effect, its bytes read back, twice. An error, a timeout, a lost answer, a right condition that is refused under
load say nothing: the experiment is made again, under another name and after a pause. inv[probe.evidence]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from swamp.env import SYSTEM, Env
from swamp.errors import ConditionFailed, Misconfigured, ObjectMissing, StoreError, Unavailable
from swamp.store.layers import innermost
from swamp.store.port import CREATE, Capabilities, Condition, ConditionalDeletes, ConditionalFiles, Match, ObjectStore
from swamp.store.retry import pause_after
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
    why: StoreError | None = None
    """What the last unclear answer was."""

    def key(self, name: str) -> str:
        """A name that was never used before: what arrives late cannot disturb a later attempt."""
        key, number = f"{self.prefix}{name}", 1
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
            if self.store.get(key).body != body or self.store.head(key).size != len(body):
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
        return self._race(self.key("race/create"), CREATE)

    def one_swapper_wins(self) -> Seen:
        key = self.key("race/swap")
        return self._race(key, Match(self.store.put(key, b"start").token))

    def _race(self, key: str, condition: Condition) -> Seen:
        """Exactly one of the writers is told that it won, and its bytes are what is there."""

        def write(number: int) -> bool | None:
            try:
                self.store.put(key, _body_of(number), condition)
            except ConditionFailed:
                return False
            except Unavailable as lost:
                self.why = lost
                return None
            return True

        with ThreadPoolExecutor(WRITERS) as pool:
            answers = list(pool.map(write, range(WRITERS)))
        winners = [number for number, won in enumerate(answers) if won]
        if len(winners) > 1:
            return "broken"
        told = len(winners) == 1 and None not in answers and self._body(key) == _body_of(winners[0])
        return "kept" if told else "unknown"

    # -- what nothing depends on: None where the adapter has no such call, or it could not be told

    def deletes_on_match(self) -> bool | None:
        key = self.key("delete")
        old = self.store.put(key, b"first").token
        new = self.store.put(key, b"second").token
        adapter, full = innermost(self.store, key)
        if not hasattr(adapter, "delete_if"):
            return None
        can = cast(ConditionalDeletes, adapter)
        try:
            if not _refused(lambda: can.delete_if(full, old)) or self._body(key) is None:
                return False
            return not _refused(lambda: can.delete_if(full, new)) and self._body(key) is None
        except Unavailable:
            raise
        except StoreError as refusal:
            return None if isinstance(refusal, Misconfigured) else False

    def uploads_on_condition(self) -> bool | None:
        key = self.key("parts")
        self.store.put(key, b"first")
        adapter, full = innermost(self.store, key)
        if not hasattr(adapter, "put_file_if"):
            return None
        can = cast(ConditionalFiles, adapter)
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(PART_BYTES + 1)
            path = Path(file.name)
            return _refused(lambda: can.put_file_if(full, path, CREATE)) and self._body(key) == b"first"

    def clock_skew(self) -> float:
        key = self.key("clock")
        before = self.env.clock.now()
        self.store.put(key, b"tick")
        after = self.env.clock.now()
        stamp = self.store.head(key).last_modified
        # Most stores keep whole seconds: only what cannot be rounding counts.
        early, late = (before - stamp).total_seconds() - 1, (stamp - after).total_seconds()
        return late if late > 0 else -early if early > 0 else 0.0


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except ConditionFailed:
        return True
    return False


def _body_of(number: int) -> bytes:
    return f"writer {number}".encode()


SCRATCH: Final = ".swamp-probe"
ROUNDS: Final = 3
SKEW_SECONDS: Final = 60.0


@value
class ProbedPromise:
    """One promise, whether it was kept, and what that means to a person."""

    name: str
    kept: bool
    text: str


@value
class Probed:
    """What was seen at `url`. `skew` is the store's clock minus ours, in seconds."""

    url: str
    capabilities: Capabilities
    findings: tuple[ProbedPromise, ...]
    skew: float | None = None

    def to_json(self) -> dict[str, Any]:
        seen = {"url": self.url, "capabilities": self.capabilities.to_json(), "clockSkewSeconds": self.skew}
        return seen | {"findings": [{"name": f.name, "kept": f.kept, "text": f.text} for f in self.findings]}


def probe(store: ObjectStore, env: Env = SYSTEM) -> Probed:
    """Tries every promise. Raises StoreError if the store cannot be used, Unavailable also if it cannot be told what it
    enforces: nothing may be set up on a guess. inv[probe.evidence]"""
    notes = _Notes()
    with _scratch(store, env, notes) as trial:
        notes.add("readAfterWrite", trial.keeps(lambda: trial.reads_its_writes(ROUNDS)), _READ)
        notes.add("listAfterWrite", trial.keeps(lambda: trial.lists_its_writes(ROUNDS)), _LIST)
        created = trial.keeps(trial.refuses_second_create)
        notes.add("createOnly", created and all(trial.keeps(trial.one_creator_wins) for _ in range(ROUNDS)), _CREATE)
        swapped = trial.keeps(trial.swaps_only_on_match)
        notes.add("compareAndSwap", swapped and all(trial.keeps(trial.one_swapper_wins) for _ in range(ROUNDS)), _SWAP)
        notes.add_if_tried("conditionalDelete", trial.told(trial.deletes_on_match), _DELETE)
        notes.add_if_tried("conditionalMultipart", trial.told(trial.uploads_on_condition), _PARTS)
        skew = trial.told(trial.clock_skew)
        notes.add("clock", abs(skew) <= SKEW_SECONDS, _clock_text(skew))
    return Probed(store.url, notes.capabilities(), tuple(notes.findings), skew)


def ignores_conditions(store: ObjectStore, env: Env = SYSTEM) -> bool:
    """The one question that commits depend on, by one writer. Raises Unavailable when it cannot be told."""
    notes = _Notes()
    with _scratch(store, env, notes) as trial:
        return not (trial.keeps(trial.refuses_second_create) and trial.keeps(trial.swaps_only_on_match))


_READ: Final = ("what was written is read at once", "reads may return an older version for a while")
_LIST: Final = ("what was written is listed at once", "listings may lag behind: discovery and clean-up wait longer")
_CREATE: Final = (
    "two machines cannot create the same object",
    "create-only writes are accepted although the object exists: two machines must not write at once",
)
_SWAP: Final = (
    "a write based on an older version is refused",
    "writes based on an older version are accepted: two machines must not write at once",
)


_DELETE: Final = ("a delete can depend on a version", "deletes ignore conditions (nothing here needs them)")
_PARTS: Final = (
    "an upload in parts can depend on a version",
    "uploads in parts ignore conditions (nothing here needs them)",
)


def _clock_text(skew: float) -> tuple[str, str]:
    told = f"the store's clock and this machine's differ by {abs(skew):.0f} s"
    return (told, f"{told}: set this machine's clock, signatures may be refused")


class _Notes:
    """What has been found so far."""

    def __init__(self) -> None:
        self.findings: list[ProbedPromise] = []

    def add(self, name: str, kept: bool, texts: tuple[str, str]) -> None:
        self.findings.append(ProbedPromise(name, kept, texts[0] if kept else texts[1]))

    def add_if_tried(self, name: str, kept: bool | None, texts: tuple[str, str]) -> None:
        if kept is not None:
            self.add(name, kept, texts)

    def capabilities(self) -> Capabilities:
        kept = {f.name: f.kept for f in self.findings}
        return Capabilities(
            create_only=kept["createOnly"],
            compare_and_swap=kept["compareAndSwap"],
            read_after_write=kept["readAfterWrite"],
            list_after_write=kept["listAfterWrite"],
            conditional_delete=kept.get("conditionalDelete", False),
            conditional_multipart=kept.get("conditionalMultipart", False),
        )


@contextmanager
def _scratch(store: ObjectStore, env: Env, notes: _Notes) -> Iterator[Trial]:
    trial = Trial(store, f"{SCRATCH}/{env.ulid()}/", env)
    try:
        yield trial
    except Unavailable:
        if notes.findings:
            _clean(store, trial, notes)
        raise  # a store that never answered at all would only be waited for once more
    except BaseException:
        _clean(store, trial, notes)
        raise
    _clean(store, trial, notes)


def _clean(store: ObjectStore, trial: Trial, notes: _Notes) -> None:
    try:
        store.delete(sorted(trial.used))
    except StoreError as error:
        # What stays is a few bytes under an internal name; the finding says so.
        notes.findings.append(
            ProbedPromise("cleanUp", False, f"some objects under {trial.prefix} stayed ({error.kind})")
        )
