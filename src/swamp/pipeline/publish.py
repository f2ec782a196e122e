"""The one place where the pipeline makes something true: on the driver, through `commit/`. inv[spark.publish-once]"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swamp.commit.alone import commit_lease
from swamp.commit.commit import Committer, Pace
from swamp.commit.lease import Holder
from swamp.env import SYSTEM, Env
from swamp.errors import Unavailable
from swamp.index.root import Writer
from swamp.pipeline.clients import opened
from swamp.pipeline.place import spec_of
from swamp.store.port import Capabilities, ObjectMeta, ObjectStore
from swamp.store.retry import pause_after
from swamp.sync.progress import Cancel, Patience

if TYPE_CHECKING:
    from swamp.store.open import StoreSpec

COMMIT_SECONDS: Final = 300.0
PUT_SECONDS: Final = 30.0


def committer_for(spec: StoreSpec, repo: str = "", env: Env = SYSTEM) -> Committer:
    """A committer on what the store was seen to enforce; where it enforces nothing, under the commit lease."""
    store = opened(spec)
    seen = _recorded(spec, repo, store.url) or capabilities_of(store, env)
    exclusive = commit_lease(store, env, seen)
    return Committer(store, writer_of(repo, Holder.of_process()), env, seen, exclusive)


def _recorded(spec: StoreSpec, repo: str, url: str) -> Capabilities | None:
    """What this machine has measured before, if it has a cache of the store; a few dozen requests saved."""
    if not repo:
        return None
    from swamp.cache.layout import cache_dir, swamp_home
    from swamp.cache.state import State
    from swamp.repo.probe import read_record

    bucket = replace(spec, namespace=None).open()
    database = cache_dir(swamp_home(os.environ), _repo_id(repo), bucket.url, spec.namespace).state_db
    if not database.exists():
        return None
    state = State.open(database)
    try:
        return read_record(state, url)
    finally:
        state.close()


_measured: dict[str, Capabilities] = {}


def capabilities_of(store: ObjectStore, env: Env = SYSTEM) -> Capabilities:
    """Measured, never assumed from a name; once per store and process."""
    from swamp.store.probe import probe

    if store.url not in _measured:
        _measured[store.url] = probe(store, env).capabilities
    return _measured[store.url]


def writer_of(repo: str, holder: Holder) -> Writer:
    import swamp

    return Writer(_repo_id(repo), holder.hostname, holder.user, os.getpid(), swamp.__version__)


def _repo_id(repo: str) -> str:
    if not repo:
        return ""
    from swamp.repo.config import read_config

    return read_config(Path(repo).expanduser().absolute()).repo_id


def pace_for(env: Env = SYSTEM, cancel: Cancel | None = None, seconds: float = COMMIT_SECONDS) -> Pace:
    return Patience(env, seconds, cancel or Cancel()).check


def put_patiently(store: ObjectStore, key: str, body: bytes, env: Env = SYSTEM) -> ObjectMeta:
    """A small object under a key of its own: writing the same bytes to the same new key again changes nothing."""
    until = env.clock.monotonic() + PUT_SECONDS
    delay = 0.1
    while True:
        try:
            return store.put(key, body)
        except Unavailable as error:
            if env.clock.monotonic() + delay > until:
                raise
            pause = pause_after(error, delay, env)
        env.clock.sleep(pause)
        delay = min(delay * 2, 5.0)


def ensure_root(options: Mapping[str, str]) -> None:
    """A store without a root gets one before the first upload: payloads without a root mean that one was lost (L48)."""
    from swamp.commit.establish import establish

    spec = spec_of(options)
    if spec is not None:
        establish(committer_for(spec, options.get("repo", "")), pace_for(), create=True)
