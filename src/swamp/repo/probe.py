"""What a store enforces: by its root's word, and as it was measured on this machine.

The measurement is kept in the cache's state with the URL that it was made on. It is for people, for the first root of a
store and for doubt: machines work by the root's word. inv[store.one-verdict]
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from swamp.cache.state import State, StateRebuilt, once_more
from swamp.commit.conditions import check_agreement
from swamp.errors import CorruptData, ObjectMissing, StoreError, SwampError, Unavailable
from swamp.index.read import read_root
from swamp.index.root import ENFORCED, IGNORED, Root
from swamp.store.port import Capabilities
from swamp.store.together import together
from swamp.sync.unchanged import recalled

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore
    from swamp.store.port import ObjectStore
    from swamp.store.probe import Probed

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
