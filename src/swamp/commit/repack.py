"""Fewer, fuller objects: moves what lives in mostly dead packs into new ones, and merges segments of the index.

A move is no change: identity and number stay, only the place is another one. inv[pack.identity] The old pack is dropped
by the commit that moves out of it, so that readers and undelete find it for the length of the undo window.
`PackCopier` copies the slices, each checked on the way, here and inside Spark tasks. Of merged segments (`compact`)
what was overruled goes, numbers stay, and no tombstone leaves an older row uncovered.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from itertools import groupby
from typing import Final, Protocol

from swamp.commit.build import put_segment, survive
from swamp.commit.collect import internal_objects
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import Ages, names
from swamp.env import Env
from swamp.errors import ObjectMissing
from swamp.index.entry import Entry, Row, Slice, Tombstone, Unreferenced, cut_of, is_pack, object_of, pack_key
from swamp.index.lookup import FetchSegment, all_rows, lookup, merge_range, rows_between, winning_rows
from swamp.index.pack import PACK_BYTES, PACK_FILES, Packed, PackWriter, holds, packed_bytes
from swamp.index.root import EVERYTHING, Root, SegmentRef, Span
from swamp.locks.decide import store_now
from swamp.store.port import ObjectMeta, ObjectStore
from swamp.store.retry import put_again
from swamp.values import mutable, value


@mutable
class PackCopier:
    """Reads old packs, each once, and sends new ones; at most one of each is in memory."""

    store: ObjectStore
    env: Env
    _waiting: list[tuple[Row, Slice, bytes]] = field(default_factory=list)
    _size: int = 0

    def copy(self, rows: Iterable[Row], pace: Callable[[], None]) -> Iterator[tuple[Row, str]]:
        """Each row with the slice that holds its bytes now too, those of one old pack one after the other.

        What is not there, or not right, stays where it is for `verify` to find: a move would only hide it.
        """
        ordered = sorted(rows, key=lambda row: (object_of(row.key), row.path))
        for pack, entries in groupby(ordered, key=lambda row: object_of(row.key)):
            pace()
            for found in self._read(pack, entries):
                self._waiting.append(found)
                self._size += found[1].length
                if len(self._waiting) >= PACK_FILES or self._size >= PACK_BYTES:
                    yield from self._sealed()
        yield from self._sealed()

    def _read(self, pack: str, entries: Iterable[Row]) -> Iterator[tuple[Row, Slice, bytes]]:
        try:
            body = self.store.get(pack).body
        except ObjectMissing:
            return
        for entry in entries:
            cut = cut_of(entry.key)
            # Nothing is moved that was not checked.
            stored = body[cut.offset : cut.end] if cut is not None and entry.sha256 is not None else b""
            if cut is not None and holds(cut, stored, entry.size, entry.sha256):
                yield entry, cut, stored

    def _sealed(self) -> Iterator[tuple[Row, str]]:
        """Uploads a pack under a key of its own, before anything names it. inv[commit.root-last]"""
        if not self._waiting:
            return
        writer, files = PackWriter(), dict[Row, Packed]()
        # Metadata and records come first: who wants only those reads one range.
        for entry, cut, stored in sorted(self._waiting, key=lambda found: "/raw/" in f"{found[0].path}/"):
            file = Packed(entry.path, 0, cut.length, entry.size, entry.sha256 or "", cut.zstd)
            files[entry] = writer.copy(file, stored, entry.identity)
        key = pack_key(self.env.ulid())
        put_again(self.store, self.env, key, writer.seal())
        moved = [(entry, files[entry].key(key)) for entry, _, _ in self._waiting]
        self._waiting, self._size = [], 0
        yield from moved


SMALL_PACK: Final = 1 << 20
MANY_SMALL: Final = 100
OLD_DEAD: Final = dt.timedelta(days=30)
COMMIT_ROWS: Final = 20_000
RUN_ROWS: Final = 200_000


@value
class Repacked:
    """Packs that were (or would be) emptied, the rows moved out of them, and the bytes that can be collected then."""

    packs: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, more: Repacked) -> Repacked:
        return Repacked(self.packs + more.packs, self.rows + more.rows, self.bytes + more.bytes)


@value
class PackSurvey:
    """What some rows of the index say of one pack: bytes and rows that live in it, whether anything waits for the end
    of its undo window, and whether anything in it has been dead for a month."""

    pack: str
    live: int = 0
    rows: int = 0
    waits: bool = False
    long_dead: bool = False

    def __add__(self, more: PackSurvey) -> PackSurvey:
        dead = self.waits or more.waits, self.long_dead or more.long_dead
        return PackSurvey(self.pack, self.live + more.live, self.rows + more.rows, *dead)


@mutable
class _Pack:
    """What is known of one pack: its object, and what lives, waits and has long been dead in it."""

    meta: ObjectMeta
    told: PackSurvey
    held: int | None = None
    """Bytes of all its slices, as its footer says."""

    @property
    def saves(self) -> int:
        return max((self.meta.size if self.held is None else self.held) - self.told.live, 0)

    @property
    def may_be_mostly_dead(self) -> bool:
        """By its size; a footer is part of that, and only reading it tells how much."""
        return self.told.rows > 0 and not self.told.waits and self.told.live * 2 < self.meta.size

    def worth_it(self, small: bool) -> bool:
        if not self.told.rows:
            return False  # nothing lives in it: it is collected as a whole
        mostly_dead = self.may_be_mostly_dead and self.held is not None and self.told.live * 2 < self.held
        return mostly_dead or self.told.long_dead or (small and self.meta.size < SMALL_PACK)


Move = Callable[[Root, Sequence[str]], Iterable[tuple[Row, str]]]
"""Copies what lives in these packs; each row with its new place, those of one pack together."""


class Bulk(Protocol):
    """The same work on many machines, for an index that is too large to be walked here."""

    def survey(self, root: Root, ages: Ages, keep: dt.timedelta) -> Iterable[PackSurvey]:
        """`survey` of all paths."""
        ...

    def move(self, root: Root, packs: Sequence[str]) -> Iterable[tuple[Row, str]]:
        """A `Move`."""
        ...


def repack(
    committer: Committer,
    pace: Pace,
    *,
    keep: dt.timedelta,
    dry_run: bool = False,
    rows: int = RUN_ROWS,
    bulk: Bulk | None = None,
) -> Repacked:
    """Empties the packs that are worth it, at most `rows` rows in one run; with `dry_run` says what it would do."""
    root = committer.read().root
    if root is None:
        return Repacked()
    chosen = _chosen(committer, root, keep, rows, bulk)
    if dry_run:
        return Repacked(len(chosen), sum(p.told.rows for p in chosen), sum(p.saves for p in chosen))
    if bulk is not None:
        return _moved(committer, pace, chosen, bulk.move) if chosen else Repacked()
    done = Repacked()
    for batch in _batches(chosen):
        pace()
        done += _moved(committer, pace, batch, partial(_copied, committer, pace, is_live))
    return done


def is_live(row: Row) -> bool:
    return isinstance(row, Entry)


def empty(committer: Committer, pace: Pace, packs: Iterable[str], moves: Callable[[Row], bool] = is_live) -> Repacked:
    """Moves what lives in these packs, or what of it `moves` says, deleted files too, whatever they would save."""
    found: list[_Pack] = []
    for key in packs:
        with suppress(ObjectMissing):
            found.append(_Pack(committer.store.head(key), PackSurvey(key)))
    return _moved(committer, pace, found, partial(_copied, committer, pace, moves)) if found else Repacked()


def _chosen(committer: Committer, root: Root, keep: dt.timedelta, rows: int, bulk: Bulk | None) -> list[_Pack]:
    """Those that save most come first."""
    listed = (meta for meta in internal_objects(committer.store) if is_pack(meta.key))
    packs = {meta.key: _Pack(meta, PackSurvey(meta.key)) for meta in listed}
    if not packs:
        return []
    ages = Ages.of(list(names(committer.store)), store_now(committer.store))
    for told in bulk.survey(root, ages, keep) if bulk else survey(ages, keep, root, committer.fetch):
        if told.pack in packs:
            packs[told.pack].told += told
    for pack in packs.values():
        if pack.may_be_mostly_dead:
            pack.held = packed_bytes(committer.store, pack.meta)
    many = sum(p.meta.size < SMALL_PACK and p.told.rows > 0 for p in packs.values()) > MANY_SMALL
    worth = sorted((p for p in packs.values() if p.worth_it(many)), key=lambda p: p.saves, reverse=True)
    return next(_batches(worth, rows), [])


def survey(
    ages: Ages, keep: dt.timedelta, root: Root, fetch: FetchSegment, span: Span = EVERYTHING
) -> list[PackSurvey]:
    """What the rows of a range of paths say of each pack: in process all of them, in a task its own."""
    found: dict[str, PackSurvey] = {}
    for told in _surveyed(ages, keep, root, fetch, span):
        found[told.pack] = found[told.pack] + told if told.pack in found else told
    return list(found.values())


def _surveyed(ages: Ages, keep: dt.timedelta, root: Root, fetch: FetchSegment, span: Span) -> Iterator[PackSurvey]:
    for row in rows_between(root, fetch, span):
        cut = cut_of(row.key) if isinstance(row, Entry) else None
        if cut is not None:
            yield PackSurvey(cut.pack, live=cut.length, rows=1)
    long = max(OLD_DEAD, keep)
    for gone in all_rows(root, fetch, span):
        if not isinstance(gone, Entry) and is_pack(name := object_of(gone.key)):
            yield PackSurvey(name, waits=not ages.older(gone.seq, keep), long_dead=ages.older(gone.seq, long))


def _batches(packs: Iterable[_Pack], most: int = COMMIT_ROWS) -> Iterator[list[_Pack]]:
    """Whole packs, at most so many rows together."""
    batch: list[_Pack] = []
    for pack in packs:
        if batch and sum(p.told.rows for p in batch) + pack.told.rows > most:
            yield batch
            batch = []
        batch.append(pack)
    if batch:
        yield batch


def _copied(
    committer: Committer, pace: Pace, moves: Callable[[Row], bool], root: Root, packs: Sequence[str]
) -> Iterator[tuple[Row, str]]:
    """What `Bulk.move` does, here, of the rows that `moves` says."""
    wanted = frozenset(packs)
    rows = [row for row in winning_rows(root, committer.fetch) if object_of(row.key) in wanted and moves(row)]
    return PackCopier(committer.store, committer.env).copy(rows, pace)


def _moved(committer: Committer, pace: Pace, packs: Sequence[_Pack], move: Move) -> Repacked:
    """Copies what lives in these packs by a fresh root, and commits exactly what still is what was read: whole packs,
    at most 20,000 rows a commit. inv[spark.publish-once]"""
    root = committer.read().root
    if root is None:
        return Repacked()
    wanted, done = {pack.meta.key: pack for pack in packs}, Repacked()
    places: dict[Row, str] = {}
    for _, moved in groupby(move(root, sorted(wanted)), key=lambda one: object_of(one[0].key)):
        some = dict(moved)
        if places and len(places) + len(some) > COMMIT_ROWS:
            done += _committed(committer, pace, root, places, wanted)
            places = {}
        places |= some
    return done + _committed(committer, pace, root, places, wanted)


def _committed(
    committer: Committer, pace: Pace, read: Root, places: Mapping[Row, str], packs: Mapping[str, _Pack]
) -> Repacked:
    """Names the new places of rows that `read` had; their packs are dropped: their undo window begins now."""
    epoch, copies = read.gc_epoch, frozenset(map(object_of, places.values()))
    moved: dict[Row, str] = {}

    def propose(now: Root) -> Changes | None:
        """Exactly the rows that still are what was read; none if a collector has taken the copies."""
        nonlocal epoch, moved
        moved = {}
        if not survive(committer.store, now, copies, epoch):
            return None
        epoch, moved = now.gc_epoch, unchanged_rows(committer, now, places)
        emptied = sorted({object_of(row.key) for row in moved})
        return replace(relocated(moved), dropped=tuple(Unreferenced(pack, "") for pack in emptied)) if moved else None

    if not places or committer.commit(propose, pace) is None:
        return Repacked()
    emptied = {object_of(row.key) for row in moved}
    return Repacked(len(emptied), len(moved), sum(packs[key].saves for key in emptied))


def unchanged_rows(committer: Committer, root: Root, places: Mapping[Row, str]) -> dict[Row, str]:
    """Of these rows, as this root has them, those that still are what was read, each with its new place."""
    now = lookup(root, (row.path for row in places), committer.fetch)
    return {
        now[row.path]: key for row, key in places.items() if row.path in now and is_what_was_read(now[row.path], row)
    }


def relocated(places: Mapping[Row, str], *, found: bool = False) -> Changes:
    """Names the new places; `found`: what was missing is there again."""
    puts = tuple(r.rewritten(key, missing=r.missing and not found) for r, key in places.items() if isinstance(r, Entry))
    return Changes(puts, tuple(row.moved(key) for row, key in places.items() if isinstance(row, Tombstone)))


def is_what_was_read(now: Row, read: Row) -> bool:
    """Identity, number and place, of a file or of a deletion. inv[pack.moved-only-unchanged]"""
    same = (now.identity, now.number, now.key) == (read.identity, read.number, read.key)
    return same and isinstance(now, Entry) == isinstance(read, Entry)


TOMBSTONE_AGE: Final = dt.timedelta(days=365)


@value
class Compacted:
    segments_before: int
    segments_after: int
    rows: int


Merge = Callable[[Root, Sequence[SegmentRef], int], Sequence[SegmentRef]]
"""Writes these segments of a root as fewer ones, and forgets tombstones up to a number."""


def compact(
    committer: Committer, pace: Pace, *, keys: frozenset[str] | None = None, merge: Merge | None = None
) -> Compacted:
    """Merges all segments (or those in `keys`) into one, or into what a `merge` in bulk makes of them; starts over when
    an input is no longer listed."""
    while True:
        read = committer.read()
        if read.root is None:
            return Compacted(0, 0, 0)
        done = _compacted(committer, pace, read.root, keys, merge or partial(_merged, committer))
        if done is not None:
            return done


def _compacted(
    committer: Committer, pace: Pace, root: Root, keys: frozenset[str] | None, merge: Merge
) -> Compacted | None:
    inputs = [s for s in root.segments if keys is None or s.key in keys]
    before = len(root.segments)
    if len(inputs) < 2:
        return Compacted(before, before, sum(s.rows for s in inputs))
    horizon = horizon_of(committer)
    merged = tuple(merge(root, inputs, horizon))
    taken = frozenset(s.key for s in inputs)

    def propose(now: Root) -> Changes | None:
        if not taken <= {s.key for s in now.segments}:
            return None
        if not survive(committer.store, now, [ref.key for ref in merged], root.gc_epoch):
            return None
        dropped = tuple(Unreferenced(key, "") for key in sorted(taken))
        return Changes(segments=merged, unlisted=taken, dropped=dropped, horizon_seq=horizon)

    done = committer.commit(propose, pace)
    return None if done is None else Compacted(before, len(done.root.segments), sum(ref.rows for ref in merged))


def _merged(committer: Committer, root: Root, inputs: Sequence[SegmentRef], horizon: int) -> list[SegmentRef]:
    """The inputs as one uploaded segment under the highest number among them: no reader takes it for news."""
    segment = merge_range(root, inputs, horizon, committer.fetch)
    return [put_segment(committer.store, committer.env, segment, max(s.added_seq for s in inputs))]


def horizon_of(committer: Committer) -> int:
    """The newest commit that is older than a year: tombstones up to it may be forgotten."""
    now = store_now(committer.store)
    horizon = 0
    for record in names(committer.store):
        if now - record.meta.last_modified < TOMBSTONE_AGE:
            break
        horizon = record.seq
    return horizon
