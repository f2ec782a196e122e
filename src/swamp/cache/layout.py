"""Where a cache keeps its things: the synced tree holds synced files and nothing else, the rest lies beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from swamp.cache.files import on_disk
from swamp.cache.paths import safe_path
from swamp.errors import UsageError
from swamp.values import value


@value
class CacheDir:
    """One repository's cache of one store and namespace. Losing it loses nothing shared. inv[cache.disposable]"""

    base: Path

    @property
    def tree(self) -> Path:
        return self.base / "tree"

    @property
    def state_db(self) -> Path:
        return self.base / "state.db"

    @property
    def sync_lock(self) -> Path:
        return self.base / "sync.lock"

    @property
    def tree_lock(self) -> Path:
        return self.base / "tree.lock"

    @property
    def staging(self) -> Path:
        return self.base / "staging"

    @property
    def conflicts(self) -> Path:
        return self.base / "conflicts"

    def ensure(self) -> CacheDir:
        """Makes the directories; the cache belongs to its user alone."""
        with on_disk("create", str(self.base)):
            self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
            for directory in (self.tree, self.staging, self.conflicts):
                directory.mkdir(exist_ok=True)
        return self


def cache_dir(home: Path, repo_id: str, url: str, namespace: str | None = None) -> CacheDir:
    """The cache of this repository for that store: another bucket, endpoint or namespace is another directory."""
    if "/" in safe_path(repo_id):
        raise UsageError(f"{repo_id!r} cannot be a repository id")
    return CacheDir(home / "repos" / repo_id / _mark_of(url, namespace))


def caches_of(home: Path, url: str, namespace: str | None = None) -> list[CacheDir]:
    """Every cache that repositories of this machine have of that store."""
    return [CacheDir(base) for base in sorted((home / "repos").glob(f"*/{_mark_of(url, namespace)}"))]


def _mark_of(url: str, namespace: str | None) -> str:
    identity = json.dumps([url, namespace or ""])
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def swamp_home(environ: Mapping[str, str]) -> Path:
    """`SWAMP_HOME`, or `.swamp` in the user's home directory."""
    chosen = environ.get("SWAMP_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".swamp"
