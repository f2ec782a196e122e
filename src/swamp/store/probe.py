"""What does this bucket really enforce? Found out by trying, in a scratch prefix that is cleaned up.

A name proves nothing: servers exist that accept `If-Match` and `If-None-Match` and ignore them. So every promise
that the commit protocol stands on is put to the test here, also with eight writers at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from swamp.env import SYSTEM, Env
from swamp.errors import ConditionFailed, Misconfigured, ObjectMissing, StoreError, Unavailable
from swamp.store.budget import PART_BYTES
from swamp.store.layers import innermost
from swamp.store.port import CREATE, Capabilities, Condition, ConditionalDeletes, ConditionalFiles, Match, ObjectStore

SCRATCH: Final = ".swamp-probe"
WRITERS: Final = 8
ROUNDS: Final = 3
SKEW_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Finding:
    """One promise, whether it was kept, and what that means to a person."""

    name: str
    kept: bool
    text: str


@dataclass(frozen=True)
class Probed:
    """What was seen at `url`. `skew` is the store's clock minus ours, in seconds."""

    url: str
    capabilities: Capabilities
    findings: tuple[Finding, ...]
    skew: float | None = None

    def to_json(self) -> dict[str, Any]:
        seen = {"url": self.url, "capabilities": self.capabilities.to_json(), "clockSkewSeconds": self.skew}
        return seen | {"findings": [{"name": f.name, "kept": f.kept, "text": f.text} for f in self.findings]}


def probe(store: ObjectStore, env: Env = SYSTEM) -> Probed:
    """Tries every promise. Raises only if the store cannot be used at all (unreachable, denied, …)."""
    with _scratch(store, env) as trial:
        trial.note("readAfterWrite", trial.reads_its_writes(), _READ)
        trial.note("listAfterWrite", trial.lists_its_writes(), _LIST)
        trial.note("createOnly", trial.refuses_second_create() and trial.one_creator_wins(), _CREATE)
        trial.note("compareAndSwap", trial.swaps_only_on_match() and trial.one_swapper_wins(), _SWAP)
        trial.note_if_tried("conditionalDelete", trial.deletes_on_match(), _DELETE)
        trial.note_if_tried("conditionalMultipart", trial.uploads_on_condition(), _PARTS)
        skew = trial.clock_skew()
        trial.note("clock", abs(skew) <= SKEW_SECONDS, _clock_text(skew))
    return Probed(store.url, trial.capabilities(), tuple(trial.findings), skew)


_READ: Final = ("what was written is read at once", "reads may return an older version for a while")
_LIST: Final = ("what was written is listed at once", "listings may lag behind: discovery and clean-up wait longer")
_CREATE: Final = (
    "two machines cannot create the same object",
    "create-only writes are accepted although the object exists: two machines must not write at once",
)
_SWAP: Final = (
    "a write based on an older version is refused",
    "writes based on an older version are accepted, or right ones refused: two machines must not write at once",
)


_DELETE: Final = ("a delete can depend on a version", "deletes ignore conditions (nothing here needs them)")
_PARTS: Final = (
    "an upload in parts can depend on a version",
    "uploads in parts ignore conditions (nothing here needs them)",
)


def _clock_text(skew: float) -> tuple[str, str]:
    told = f"the store's clock and this machine's differ by {abs(skew):.0f} s"
    return (told, f"{told}: set this machine's clock, signatures may be refused")


@dataclass
class Trial:
    """Experiments under one scratch prefix."""

    store: ObjectStore
    prefix: str
    env: Env
    findings: list[Finding] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def note(self, name: str, kept: bool, texts: tuple[str, str]) -> None:
        self.findings.append(Finding(name, kept, texts[0] if kept else texts[1]))

    def note_if_tried(self, name: str, kept: bool | None, texts: tuple[str, str]) -> None:
        if kept is not None:
            self.note(name, kept, texts)

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

    def key(self, name: str) -> str:
        key = f"{self.prefix}{name}"
        self.used.add(key)
        return key

    # -- one writer

    def reads_its_writes(self) -> bool:
        key = self.key("read")
        for number in range(ROUNDS):
            body = f"version {number}".encode()
            self.store.put(key, body)
            if self.store.get(key).body != body or self.store.head(key).size != len(body):
                return False
        self.store.delete([key])
        return self._absent(key)

    def lists_its_writes(self) -> bool:
        keys = [self.key(f"list/{n}") for n in range(ROUNDS)]
        for key in keys:
            self.store.put(key, b"x")
        listed = {m.key for page in self.store.list(f"{self.prefix}list/") for m in page}
        self.store.delete(keys)
        left = [m.key for page in self.store.list(f"{self.prefix}list/") for m in page]
        return listed == set(keys) and not left

    def refuses_second_create(self) -> bool:
        key = self.key("create")
        return (
            self._took(key, b"first", CREATE)
            and not self._took(key, b"second", CREATE)
            and self.store.get(key).body == b"first"
        )

    def swaps_only_on_match(self) -> bool:
        key = self.key("swap")
        old = self.store.put(key, b"first").token
        if not self._took(key, b"second", Match(old)):
            return False  # a right match must be accepted, in whatever form the adapter found
        refused = not self._took(key, b"third", Match(old)) and self.store.get(key).body == b"second"
        return refused and not self._took(self.key("nothing"), b"x", Match(old))

    def _took(self, key: str, body: bytes, condition: Condition) -> bool:
        """Whether the write took effect; an answer that was lost is looked up."""
        try:
            self.store.put(key, body, condition)
        except ConditionFailed:
            return False
        except Unavailable:
            return self._holds(key, body)
        return True

    def _holds(self, key: str, body: bytes) -> bool:
        try:
            return self.store.get(key).body == body
        except ObjectMissing:
            return False

    def _absent(self, key: str) -> bool:
        try:
            self.store.head(key)
        except ObjectMissing:
            return True
        return False

    # -- what nothing depends on: None where the adapter has no such call

    def deletes_on_match(self) -> bool | None:
        key = self.key("delete")
        old = self.store.put(key, b"first").token
        new = self.store.put(key, b"second").token
        adapter, full = innermost(self.store, key)
        if not hasattr(adapter, "delete_if"):
            return None
        can = cast(ConditionalDeletes, adapter)
        try:
            if not _refused(lambda: can.delete_if(full, old)) or self._absent(key):
                return False
            return not _refused(lambda: can.delete_if(full, new)) and self._absent(key)
        except StoreError as error:
            return None if isinstance(error, Misconfigured) else False

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
            return _refused(lambda: can.put_file_if(full, path, CREATE)) and self._holds(key, b"first")

    # -- eight writers

    def one_creator_wins(self) -> bool:
        return all(self._race(self.key(f"race/create/{n}"), lambda _: CREATE) for n in range(ROUNDS))

    def one_swapper_wins(self) -> bool:
        return all(self._swap_race(self.key(f"race/swap/{n}")) for n in range(ROUNDS))

    def _swap_race(self, key: str) -> bool:
        token = self.store.put(key, b"start").token
        return self._race(key, lambda _: Match(token))

    def _race(self, key: str, condition: Callable[[int], Condition]) -> bool:
        """Exactly one of the writers is told that it won, and its bytes are what is there."""

        def write(number: int) -> bool:
            return self._took(key, _body(number), condition(number))

        with ThreadPoolExecutor(WRITERS) as pool:
            winners = [n for n, won in enumerate(pool.map(write, range(WRITERS))) if won]
        return len(winners) == 1 and self.store.get(key).body == _body(winners[0])

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


def _body(number: int) -> bytes:
    return f"writer {number}".encode()


@contextmanager
def _scratch(store: ObjectStore, env: Env) -> Iterator[Trial]:
    trial = Trial(store, f"{SCRATCH}/{env.ulid()}/", env)
    try:
        yield trial
    except Unavailable:
        if trial.findings:
            _clean(store, trial)
        raise  # a store that never answered at all would only be waited for once more
    except BaseException:
        _clean(store, trial)
        raise
    _clean(store, trial)


def _clean(store: ObjectStore, trial: Trial) -> None:
    try:
        store.delete(sorted(trial.used))
    except StoreError as error:
        # What stays is a few bytes under an internal name; the finding says so.
        trial.findings.append(Finding("cleanUp", False, f"some objects under {trial.prefix} stayed ({error.kind})"))
