"""What a store enforces, measured once per cache and kept in its state with the URL it was measured on."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from swamp.cache.state import State
from swamp.errors import StoreError, Unavailable
from swamp.store.port import Capabilities

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore
    from swamp.store.probe import Probed

_NAME: Final = "probe"


def known_capabilities(datastore: Datastore) -> Capabilities:
    """The recorded result; without one the store is asked now."""
    cache = datastore.cache.ensure()
    state = State.open(cache.state_db)
    try:
        recorded = read_record(state, datastore.store.url)
        if recorded is not None or datastore.is_away:
            return recorded or Capabilities()  # a probe writes: it would make an empty store of one that is away
        return measure(datastore, state).capabilities
    except StoreError as error:
        # Nothing can be committed to a store that does not answer, so nothing rests on this guess.
        datastore.silence = error if isinstance(error, Unavailable) else None
        return Capabilities()
    finally:
        state.close()


def probe_again(datastore: Datastore) -> Probed:
    """Asks the store now, whatever is recorded. Raises StoreError."""
    state = State.open(datastore.cache.ensure().state_db)
    try:
        return measure(datastore, state)
    finally:
        state.close()


def measure(datastore: Datastore, state: State) -> Probed:
    """Asks the store by trying, and records the answer. Raises StoreError."""
    from swamp.store.probe import probe

    found = probe(datastore.store, datastore.context.env)
    seen = found.capabilities
    record = {"url": found.url, "capabilities": {f.name: getattr(seen, f.name) for f in fields(seen)}}
    with state.transaction() as tx:
        tx.set_meta(_NAME, json.dumps(record))
    return found


def read_record(state: State, url: str) -> Capabilities | None:
    try:
        record = json.loads(state.meta(_NAME) or "{}")
        known = record["capabilities"] if record["url"] == url else {}
        return Capabilities(**{f.name: bool(known[f.name]) for f in fields(Capabilities)})
    except (ValueError, KeyError, TypeError):
        return None  # none, of another store, or of another version: measured again
