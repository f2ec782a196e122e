"""What can be tuned about an engine, and what it says of itself, as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Literal

from swamp.cache.rows import Pending
from swamp.store.port import Capabilities
from swamp.values import value


@value
class Policy:
    """What can be tuned about an engine."""

    hydrate: Literal["full", "lazy"] = "full"
    leave_large: bool = False
    """Whether a full cache leaves large parts of Spark datasets in the store until they are read."""
    push_concurrency: int = 32
    pull_concurrency: int = 32
    timeout: float = 300.0
    """Seconds *without progress* after which a sync gives up."""
    lock_timeout: float = 60.0
    commit_every: float = 60.0
    delete_fraction: float = 0.2
    delete_floor: int = 100
    allow_deletes: int | None = None
    packs: bool = False
    """Whether a push puts small files together into packs."""
    portion: int = 50_000
    """Paths that a first pull holds at a time: about 70 MB, and some seconds of transfer."""
    exclude: Callable[[str, bool], bool] = lambda path, directory: False
    capabilities: Capabilities = field(default_factory=Capabilities)
    measure: Callable[[], bool] | None = None
    """Finds out by trying whether the store ignores conditions: for its first root, and where there is doubt."""
    doubted: bool = False
    """Whether this machine has once measured something else than the store's roots say."""
    convicted: bool = False
    """Whether it has measured lately that the store ignores conditions."""


@value
class EngineStatus:
    """What can be said without asking the store."""

    seq: int
    last_sync_at: str | None
    pending: Pending
    files: int
    bytes: int
    remote_only: int
    left: int
    """Of those: left there on purpose, by a cache that fetches the rest."""
    conflicts: int
    tree: Path
