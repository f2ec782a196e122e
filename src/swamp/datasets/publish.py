"""The one place where datasets make something true: on the driver, through `commit/`. inv[spark.publish-once]"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swamp.bulk.spread import opened
from swamp.commit.commit import Committer, Pace
from swamp.commit.conditions import ConditionsVerdict, SaidIgnored
from swamp.datasets.place import cache_of, spec_of
from swamp.env import SYSTEM
from swamp.index.root import Writer
from swamp.locks.leases import commit_lock
from swamp.store.port import Capabilities, ObjectStore
from swamp.sync.progress import IdleTimeout

if TYPE_CHECKING:
    from swamp.store.open import StoreSpec

COMMIT_SECONDS: Final = 300.0


def committer_for(spec: StoreSpec, repo: str = "") -> Committer:
    """A committer that works by the root's word about conditions: the first read of a root tells it, where no cache of
    this machine has seen one. A store without a root is measured."""
    store = opened(spec)
    said = _recalled(spec, repo)
    word = ConditionsVerdict(said is not None, said, lambda: not _capabilities_of(store).safe)
    return Committer(store, _writer_of(repo), SYSTEM, word, commit_lock(store, SYSTEM))


def _recalled(spec: StoreSpec, repo: str) -> SaidIgnored | None:
    """What this machine's cache of the store has seen roots say, if it has one."""
    if not repo:
        return None
    from swamp.cache.state import State
    from swamp.settings import swamp_home
    from swamp.sync.unchanged import recalled

    database = cache_of(spec, Path(repo), swamp_home(os.environ)).state_db
    if not database.exists():
        return None
    state = State.open(database)
    try:
        return recalled(state)
    finally:
        state.close()


_measured: dict[str, Capabilities] = {}


def _capabilities_of(store: ObjectStore) -> Capabilities:
    """Measured, never assumed from a name; once per store and process."""
    from swamp.store.probe import probe

    if store.url not in _measured:
        _measured[store.url] = probe(store, SYSTEM).capabilities
    return _measured[store.url]


def _writer_of(repo: str) -> Writer:
    from swamp.repo.config import read_config
    from swamp.repo.open import writer_of

    return writer_of(read_config(Path(repo).expanduser().absolute()).repo_id if repo else "")


def tell_caches(spec: StoreSpec) -> None:
    """Says to this machine's caches of the store that it has a commit they do not know of (S24). inv[read.own-jobs]"""
    from swamp.cache.layout import caches_of
    from swamp.repo.ask import forget_asking
    from swamp.settings import swamp_home

    for cache in caches_of(swamp_home(os.environ), replace(spec, namespace=None).open().url, spec.namespace):
        # The commit has happened: a cache that cannot be written must not make it look as if it had not, and two
        # seconds later its reads ask anyway.
        with suppress(OSError):
            forget_asking(cache.base, SYSTEM.clock)


def pace_for() -> Pace:
    return IdleTimeout(SYSTEM, COMMIT_SECONDS).check


def ensure_root(options: Mapping[str, str]) -> None:
    """A store without a root gets one before the first upload: payloads without a root mean that one was lost (L48)."""
    from swamp.commit.bootstrap import bootstrap

    spec = spec_of(options)
    if spec is not None:
        bootstrap(committer_for(spec, options.get("repo", "")), pace_for(), create=True)
