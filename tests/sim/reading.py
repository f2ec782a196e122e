"""Roots, segments and log records as the bucket holds them: what each says is there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from sim.bucket import Bucket
from sim.schedule import Scheduler, Violation
from swamp.index.entry import Entry, object_of, slice_of
from swamp.index.pack import zstd
from swamp.index.root import ROOT_KEY, Root, decode

LOG_PREFIX = "_index/log/"


class Live(NamedTuple):
    """What a root says of a path that is there: its identity, its bytes, and where they lie."""

    key: str
    sha: str
    place: str
    number: int = 0
    """The commit with which it came to its path, however often it was moved since."""


@dataclass
class Reader:
    """Reads the bucket beside the engine, with eyes of its own."""

    bucket: Bucket
    scheduler: Scheduler
    _segments: dict[tuple[str, int], list[tuple[str, int, Live | None]]] = field(default_factory=dict, init=False)

    def live_of(self, root: Root) -> dict[str, Live]:
        """What a root says is there: per path the row with the highest number, wherever it lies."""
        best: dict[str, tuple[int, Live | None]] = {}
        for ref in root.segments:
            for path, seq, row in self._rows(ref.key, ref.added_seq):
                _offer(best, path, seq, row)
        for path, tomb in root.deleted.items():
            _offer(best, path, tomb.seq, None)
        for path, entry in root.entries.items():
            _offer(best, path, entry.seq, self._live(entry))
        return {p: row for p, (_, row) in best.items() if row is not None}

    def _rows(self, key: str, added: int) -> list[tuple[str, int, Live | None]]:
        rows = self._segments.get((key, added))
        if rows is None:
            stored = self.bucket.objects.get(key)
            if stored is None:
                self.fail("commit.root-last", f"the root names the segment {key}, which is not there")
            rows = self._segments[key, added] = self._parse(stored.body, added)
        return rows

    def _parse(self, body: bytes, added: int) -> list[tuple[str, int, Live | None]]:
        from segments import read_segment
        from swamp.index.entry import Unreferenced

        rows: list[tuple[str, int, Live | None]] = []
        for row in read_segment(body, added):
            if isinstance(row, Entry):
                rows.append((row.path, row.seq, self._live(row)))
            elif not isinstance(row, Unreferenced):
                rows.append((row.path, row.seq, None))
        return rows

    def _live(self, entry: Entry) -> Live:
        body = self.body_at(entry.key, entry.size) if entry.sha256 is None else None
        sha = entry.sha256 or (sha_of(body) if body is not None else "?")
        return Live(entry.id or entry.key, sha, entry.key, entry.id_seq or entry.seq)

    def body_at(self, place: str, size: int | None = None) -> bytes | None:
        """The bytes of a file, read with eyes of its own; None when they are not there."""
        cut = slice_of(place)
        stored = self.bucket.objects.get(object_of(place))
        if stored is None or cut is None:
            return stored.body if stored else None
        part = stored.body[cut.offset : cut.end]
        if cut.zstd:
            whole: bytes = zstd().decompress(part)
            return whole
        return b"" if part == b"\0" and size != 1 else part

    def newest_logged(self) -> Root | None:
        keys = sorted(k for k in self.bucket.objects if k.startswith(LOG_PREFIX))
        return decode(self.bucket.objects[keys[-1]].body) if keys else None

    def counting(self) -> Root | None:
        stored, logged = self.bucket.objects.get(ROOT_KEY), self.newest_logged()
        if stored is None:
            return logged
        root = decode(stored.body)
        if logged is None or any(follows(root, one) for one in self.logged_at(logged.seq)):
            return root
        recorded = f"{LOG_PREFIX}{root.seq:012d}-{root.op}.json" in self.bucket.objects
        return root if recorded and root.seq == logged.seq else logged

    def logged_at(self, seq: int) -> list[Root]:
        """Two, when one was recorded so late that its writer had to look again and was told that it does not count."""
        found = (k for k in self.bucket.objects if k.startswith(f"{LOG_PREFIX}{seq:012d}-"))
        return [decode(self.bucket.objects[k].body) for k in sorted(found)]

    def logged_before(self, root: Root) -> Root | None:
        """The newest recorded root in the past of `root`."""
        for key in sorted((k for k in self.bucket.objects if k.startswith(LOG_PREFIX)), reverse=True):
            found = decode(self.bucket.objects[key].body)
            if name_of(found) != name_of(root) and follows(root, found):
                return found
        return None

    def fail(self, name: str, text: str) -> NoReturn:
        self.scheduler.note(f"VIOLATION [{name}] {text}")
        raise Violation(name, text)


def _offer(best: dict[str, tuple[int, Live | None]], path: str, seq: int, row: Live | None) -> None:
    if path not in best or seq > best[path][0]:
        best[path] = (seq, row)


def name_of(root: Root) -> tuple[str, int]:
    """One op may be tried under two numbers."""
    return root.op, root.seq


def follows(root: Root, earlier: Root) -> bool:
    return name_of(earlier) in root.recent_ops


def sha_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
