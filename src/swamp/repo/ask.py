"""Asks a store what only it can tell before work rests on it: whether it has changed, and what it enforces.

Before a read that is one conditional GET of the root, two seconds, a notice if it fails. What is new and harms nobody
is taken in (`sync/run.py`). What the store enforces is said by its root's word, and was measured on this machine: the
measurement is kept in the cache's state with the URL that it was made on. It is for people, for the first root of a
store and for doubt: machines work by the root's word. inv[store.one-verdict]
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from swamp.cache.files import on_disk
from swamp.cache.state import State, StateRebuilt, once_more
from swamp.commit.conditions import check_agreement
from swamp.env import Clock, parse_rfc3339
from swamp.errors import CorruptData, LockTimeout, ObjectMissing, StoreError, SwampError, Unavailable
from swamp.index.read import read_root
from swamp.index.root import ENFORCED, IGNORED, ROOT_KEY, Root
from swamp.store.port import Capabilities
from swamp.store.together import SideCall, together
from swamp.sync.result import Mode, SyncResult
from swamp.sync.unchanged import has_taken_in, recalled, unchanged_at
from swamp.values import value

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore
    from swamp.settings import FreshChoice
    from swamp.store.layers import MeterStore
    from swamp.store.port import Fetched, ObjectStore
    from swamp.store.probe import Probed

T = TypeVar("T")

PATIENCE_S: Final = 2.0
"""How long a read waits for the store and for other commands of this cache, and how long an answer is good for."""


def in_time(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises, if it ends in time: whatever hangs (a name server, a login, a mount), nobody waits
    for longer. Else Unavailable, and what it began is left alone."""
    asked = SideCall(call)
    asked.wait(max(0.0, seconds))
    if not asked.ended:
        raise Unavailable(f"the store did not answer within {seconds:.1f} s", hint="check the network and the store")
    return asked.answer()


# -- whether it has changed


@value
class Freshness:
    """Whether what a read shows is what the store holds; if not, since when and why."""

    fresh: bool
    as_of: dt.datetime | None = None
    why: str = ""
    silence: Unavailable | None = None
    """What the store's silence was, so that nobody waits for it again."""

    def told(self, now: dt.datetime) -> str | None:
        """One line for people: `as of 10:42, the store did not answer`. None if there is nothing to tell."""
        if self.fresh or not self.why:
            return None
        if self.as_of is None:
            return f"what is here may be old, {self.why}"
        local = self.as_of.astimezone()
        today = local.date() == now.astimezone().date()
        return f"as of {local:%H:%M}, {self.why}" if today else f"as of {local:%Y-%m-%d %H:%M}, {self.why}"


ANSWERED: Final = Freshness(True)
NOT_ASKED: Final = Freshness(False)


class Question:
    """The one question that a read asks of a datastore."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._env = datastore.context.env
        self._until = self._env.clock.monotonic() + PATIENCE_S

    def ask(self, choice: FreshChoice) -> Freshness:
        """Asks, unless nobody wants it or this machine has just asked, and takes in what is new. Never raises for a
        store that is away, refuses or is damaged: the read goes on with what is here."""
        if not self._datastore.synced:
            return ANSWERED
        if choice == "never" or not self._datastore.is_hydrated:
            return NOT_ASKED if choice == "never" else ANSWERED  # the first command on a machine brings everything
        recent = None if choice == "always" else self._asked_just_now()
        if recent is False:
            return self._stale("the store did not answer", Unavailable(_AWAY))
        if recent is None:
            asked_at = self._env.clock.now().timestamp()
            found = self._told_or_taken()
            if found.fresh or found.silence is not None:  # whoever was answered hears the reason again by asking
                self._note(asked_at, asked_at if found.fresh else self._noted()[1])
            if not found.fresh:
                return found
        return self._waiting()

    @once_more
    def _told_or_taken(self) -> Freshness:
        try:
            with closing(State.open(self._datastore.cache.state_db)) as state:
                self._taken_in(state)
        except StateRebuilt:
            raise
        except Unavailable as error:
            return self._stale("the store did not answer", error)
        except LockTimeout:
            return self._stale("another command is at work in this cache")
        except StoreError as error:
            return self._stale(f"the store refused: {error.message}")
        except SwampError as error:
            hint = f" ({error.hint})" if error.hint else ""
            return self._stale(f"{error.message}{hint}")
        return ANSWERED

    @once_more
    def _waiting(self) -> Freshness:
        """What is known of the store and not shown, because only a sync can take it in."""
        with closing(State.open(self._datastore.cache.state_db)) as state:
            waiting = int(state.meta("readWaits") or 0)
        if not waiting:
            return ANSWERED
        return self._stale(f"{waiting} change{'s' if waiting > 1 else ''} of others wait for `swamp datastore sync`")

    def _taken_in(self, state: State) -> None:
        token = state.meta("seenToken")
        try:
            fetched = in_time(self._until - self._env.clock.monotonic(), lambda: self._fetch(token))
        except ObjectMissing as error:
            if token is None and state.meta("storeId") is None:
                return  # nothing has ever been shared there: what is here is all there is
            raise StoreError(
                "it has no index any more", hint="`swamp datastore doctor` looks into it", details=error.details
            ) from error
        seen = state.meta("seenRoot") if fetched is None else None
        if seen is None or not has_taken_in(state, seen):
            self._take_in(state, fetched)

    def _fetch(self, token: str | None) -> Fetched | None:
        self._datastore.must_be_there()
        store = self._datastore.hurried_store
        return store.get(ROOT_KEY) if token is None else store.get_if_changed(ROOT_KEY, token)

    def _take_in(self, state: State, fetched: Fetched | None) -> None:
        from swamp.commit.commit import RootRead
        from swamp.data.versions import derive_latest
        from swamp.index.root import decode
        from swamp.sync.engine import Engine

        if fetched is None:
            kept = (state.meta("seenBody") or "").encode("utf-8", "surrogatepass")
            read = RootRead(decode(kept), state.meta("seenToken"), kept)
        else:
            root, fetched = read_root(self._datastore.hurried_store, fetched)
            read = RootRead(root, fetched.meta.token, fetched.body)
        left = max(0.0, self._until - self._env.clock.monotonic())
        context = self._datastore.context
        engine = Engine.open(
            self._datastore.hurried_store,
            self._datastore.cache.ensure(),
            writer=self._datastore.writer,
            env=context.env,
            policy=replace(self._datastore.policy(), timeout=PATIENCE_S, lock_timeout=PATIENCE_S),
            progress=context.progress,
            cancel=context.cancel,
        )
        with closing(engine):
            result = engine.refresh(read, wait=left)
            derive_latest(engine.root, result.names)
        for failed in result.failed:
            if failed.cause == "away":
                raise Unavailable(f"{failed.path} could not be fetched: {failed.error}")

    # -- what this machine remembers of having asked

    @property
    def _file(self) -> Path:
        return self._datastore.cache.base / "asked"

    def _noted(self) -> tuple[float, float]:
        """When this machine last asked, and when it was last told everything; zeros if that is not known."""
        try:
            asked, answered = map(float, self._file.read_text(encoding="ascii").split())
        except (OSError, ValueError):
            return 0.0, 0.0
        return asked, answered

    def _asked_just_now(self) -> bool | None:
        """Whether all was told, if this machine asked less than two seconds ago; else None."""
        asked, answered = self._noted()
        if asked <= self._committed_beside():
            return None
        age = self._env.clock.now().timestamp() - asked
        return asked == answered if 0 <= age < PATIENCE_S else None

    def _committed_beside(self) -> float:
        """When a job of this machine last committed to the store past this cache; -1 if none did. inv[read.own-jobs]"""
        try:
            return float((self._datastore.cache.base / _COMMITTED).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return -1.0

    def _note(self, asked: float, answered: float) -> None:
        with on_disk("write", str(self._file)):
            self._file.write_text(f"{asked!r} {answered!r}", encoding="ascii")

    def _stale(self, why: str, silence: Unavailable | None = None) -> Freshness:
        return Freshness(False, self._last_known(), why, silence)

    @once_more
    def _last_known(self) -> dt.datetime | None:
        """When this cache was last told everything, by an answer to a read or by a sync."""
        with closing(State.open(self._datastore.cache.state_db)) as state:
            synced = state.meta("lastSyncAt")
        answered = dt.datetime.fromtimestamp(self._noted()[1], dt.UTC)
        known = max(answered, parse_rfc3339(synced)) if synced else answered
        return known if known.timestamp() > 0 else None


_AWAY: Final = "the store did not answer within 2 s"
_COMMITTED: Final = "committed"


def forget_asking(cache: Path, clock: Clock) -> None:
    """The next read asks again: something was committed beside this cache that it should know of at once (S24).

    A time, not an unlink: a read that has asked before the commit may note that it has asked only after this.
    """
    (cache / _COMMITTED).write_text(repr(clock.now().timestamp()), encoding="ascii")


@once_more
def idle_result(datastore: Datastore, mode: Mode) -> SyncResult | None:
    """The result where nothing is owed in either direction; else None."""
    if not datastore.is_hydrated or not datastore.capabilities.safe:
        return None  # without conditions the root is compared with the log first
    clock, asked = datastore.context.env.clock, 0
    started = clock.monotonic()

    def store() -> MeterStore:
        nonlocal asked
        asked = datastore.store.requests
        return datastore.store

    with closing(State.open(datastore.cache.state_db)) as state:
        now = int(clock.now().timestamp() * 1e9)
        lazy, large = datastore.hydrate == "lazy", datastore.leave_large
        seq = unchanged_at(state, store, datastore.cache.tree, now, lazy=lazy, leave_large=large)
    if seq is None:
        return None
    took = int((clock.monotonic() - started) * 1000)
    requests = datastore.store.requests - asked
    return SyncResult(mode, fast_path=True, seq=seq, requests=requests, duration_ms=took)


# -- what it enforces

_NAME: Final = "probe"
LATELY_SECONDS: Final = 86_400.0


@once_more
def known_capabilities(datastore: Datastore) -> Capabilities:
    """What this machine works by. Asks the store for its root's word only where no root was ever seen here."""
    with _state_of(datastore) as state:
        try:
            recorded, word = read_record(state, datastore.store.url), _recalled_word(state)
            if word is None and recorded is None and not datastore.is_away:
                word = word_of(datastore.store)
            datastore.doubted = word != IGNORED and recorded is not None and not recorded.safe
            return by_word(recorded or Capabilities(), word)
        except StoreError as error:
            # Nothing can be committed to a store that does not answer, so nothing rests on this guess.
            datastore.silence = error if isinstance(error, Unavailable) else None
            return Capabilities()
        except StateRebuilt:
            raise
        except SwampError:
            return Capabilities()  # a root that cannot be read is met, and told, by whoever reads it next


@once_more
def recorded_capabilities(datastore: Datastore) -> Capabilities:
    """What is known here without asking the store: for who writes nothing."""
    with _state_of(datastore) as state:
        return by_word(read_record(state, datastore.store.url) or Capabilities(), _recalled_word(state))


def _state_of(datastore: Datastore) -> AbstractContextManager[State]:
    return closing(State.open(datastore.cache.ensure().state_db))


def _recalled_word(state: State) -> str | None:
    if recalled(state) is not None:
        return IGNORED
    return ENFORCED if state.meta("storeId") else None


def word_of(store: ObjectStore) -> str | None:
    """What the store's root says of conditions; None where there is no root. Raises SwampError."""
    try:
        return read_root(store)[0].conditions or ENFORCED
    except ObjectMissing:
        return None


def by_word(seen: Capabilities, word: str | None) -> Capabilities:
    """The same, with the root's word on what commits depend on."""
    if word is None or seen.safe == (word != IGNORED):
        return seen
    return replace(seen, create_only=word != IGNORED, compare_and_swap=word != IGNORED)


def agreed_capabilities(datastore: Datastore) -> Capabilities:
    """Measures now, for who joins a store. Raises CorruptData where its root says something else: nothing is joined."""
    store = datastore.store
    roots: list[Root | None] = []
    measured, _ = together([lambda: probe_again(datastore), lambda: roots.append(_root(store))])
    assert measured is not None
    root = roots[0] or _root(store)  # one that was made meanwhile counts, too
    if root is not None:
        check_agreement(root, ignored=not measured.capabilities.safe)
    return measured.capabilities


def _root(store: ObjectStore) -> Root | None:
    try:
        return read_root(store)[0]
    except (ObjectMissing, CorruptData):
        return None  # none, or one that is rebuilt from the log before anything else happens


@once_more
def probe_again(datastore: Datastore) -> Probed:
    """Asks the store now, whatever is recorded. Raises StoreError."""
    with _state_of(datastore) as state:
        return measure(datastore, state)


def measure(datastore: Datastore, state: State) -> Probed:
    """Asks the store by trying, and records the answer. Raises StoreError; then nothing is recorded."""
    from swamp.store.probe import probe

    found = probe(datastore.store, datastore.context.env)
    datastore.measured = seen = found.capabilities
    at = datastore.context.env.clock.now().timestamp()
    record = {"url": found.url, "at": at, "capabilities": {f.name: getattr(seen, f.name) for f in fields(seen)}}
    with state.transaction() as tx:
        tx.set_meta(_NAME, json.dumps(record))
    return found


@once_more
def measured_lately(datastore: Datastore) -> Capabilities | None:
    """What this machine measured on this very URL within a day, such as by the setup that came before the first write.

    A wrong one would be noticed: whoever joins measures for itself, and stops where the root says something else.
    """
    with _state_of(datastore) as state, suppress(ValueError):
        made = json.loads(state.meta(_NAME) or "{}").get("at")
        age = datastore.context.env.clock.now().timestamp() - made if isinstance(made, int | float) else -1
        return read_record(state, datastore.store.url) if 0 <= age < LATELY_SECONDS else None
    return None


def read_record(state: State, url: str) -> Capabilities | None:
    try:
        record = json.loads(state.meta(_NAME) or "{}")
        known = record["capabilities"] if record["url"] == url else {}
        return Capabilities(**{f.name: bool(known[f.name]) for f in fields(Capabilities)})
    except (ValueError, KeyError, TypeError):
        return None  # none, of another store, or of another version: measured again
