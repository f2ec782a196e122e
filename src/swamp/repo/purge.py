"""Purges deleted files at once, and lists what of them remains: in the store, and on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from swamp.commit.log import names
from swamp.commit.restore import Findings, Purged, below, find_deleted, purge
from swamp.index.entry import Entry
from swamp.index.lookup import winning_rows
from swamp.sync.progress import IdleTimeout
from swamp.values import value

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore


@value
class Remains:
    """One place where something of a purged file still is."""

    kind: str
    where: str
    what: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


class Purging:
    """One `datastore gc --purge`: what it found, what it does, and what it cannot reach."""

    def __init__(self, datastore: Datastore, paths: Sequence[str]) -> None:
        self._datastore = datastore
        self._committer = datastore.must_sync().committer
        self._paths = tuple(path.strip("/") for path in paths)
        self.found: Findings = find_deleted(self._committer, self._paths)

    def planned(self) -> Purged:
        """What `run` would do; nothing is moved by it, and how much would be is not known before."""
        size = sum(meta.size for meta in self.found.objects.values())
        return Purged(len(self.found.packs), 0, tuple(sorted(self.found.objects)), size)

    def run(self) -> Purged:
        context = self._datastore.context
        idle_timeout = IdleTimeout(context.env, context.settings.sync_timeout, context.cancel)
        return purge(self._committer, idle_timeout.check, self._paths, self.found)

    def remaining(self, done: Purged) -> list[Remains]:
        told = "their caches until they sync, and their conflicts/ after that; running readers; copies of the bucket"
        return [*self._in_the_store(done), *self._here(), Remains("machines", "other machines", told)]

    def _in_the_store(self, done: Purged) -> Iterator[Remains]:
        root, wanted = self._committer.read().root, below(self._paths)
        for row in winning_rows(root, self._committer.fetch) if root is not None else ():
            if row.sha256 in self.found.hashes and not wanted(row.path):
                state = "a live file" if isinstance(row, Entry) else "a deleted file"
                yield Remains("same-bytes", row.path, f"{state} with the same bytes")
        for key in done.left:
            yield Remains("object", key, "it could not be deleted: something else in it cannot be moved or is in use")
        for key in self.found.unread:
            yield Remains("pack", key, "its footer cannot be read, so what it holds is not known")
        records = sum(1 for _ in names(self._committer.store))
        told = (
            f"{records} log records and {len(root.segments) if root else 0} segments may name it: path, size and hash"
        )
        yield Remains("names", "_index/", told)

    def _here(self) -> Iterator[Remains]:
        cache = self._datastore.cache
        sizes = {row.size for row in self.found.rows if row.sha256 is not None}
        for file in sorted(p for p in cache.conflicts.rglob("*") if p.is_file()):
            path = "/".join(file.relative_to(cache.conflicts).parts[1:])
            holds_it = (
                file.stat().st_size in sizes and hashlib.sha256(file.read_bytes()).hexdigest() in self.found.hashes
            )
            if below(self._paths)(path) or holds_it:
                yield Remains("conflicts", str(file), "bytes that were moved aside on this machine")
        for file in sorted(p for path in self._paths for p in (cache.tree / path, *(cache.tree / path).rglob("*"))):
            if file.is_file():
                yield Remains("cache", str(file), "a file in this machine's cache that no sync has removed yet")


def document(purging: Purging, done: Purged, *, dry_run: bool) -> dict[str, Any]:
    """What `gc --purge --json` prints."""
    return {
        "paths": sorted({row.path for row in purging.found.rows}),
        "packs": done.packs,
        "moved": done.moved,
        "deleted": [] if dry_run else list(done.deleted),
        "wouldDelete": list(done.deleted) if dry_run else [],
        "bytes": done.bytes,
        "remaining": [one.to_json() for one in purging.remaining(done)],
        "dryRun": dry_run,
    }
