"""Moves what lives in packs that are mostly dead into new packs, so that the old ones can be collected.

A move is no change: identity and number stay, only the place is another one. inv[pack.identity] The old pack is dropped
by the commit that moves out of it, so that readers and undelete find it for the length of the undo window.
`PackCopier` copies the slices, each checked on the way, here and inside Spark tasks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import groupby
from typing import Final, Protocol

from swamp.commit.build import survive
from swamp.commit.collect import internal_objects
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import Ages, names
from swamp.env import Env
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced
from swamp.index.keys import Slice, is_pack, object_of, pack_key, slice_of
from swamp.index.lookup import FetchSegment, all_rows, lookup, rows_between, winning_rows
from swamp.index.pack import PACK_BYTES, PACK_FILES, Packed, PackWriter, holds, packed_bytes
from swamp.index.root import EVERYTHING, Root, Span
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


def cut_of(key: str) -> Slice | None:
    """The slice that a key names; None for an object of its own, and for a slice that cannot be."""
    try:
        return slice_of(key)
    except CorruptData:
        return None


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
    def rows(self) -> int:
        return self.told.rows

    @property
    def saves(self) -> int:
        return max((self.meta.size if self.held is None else self.held) - self.told.live, 0)

    @property
    def may_be_mostly_dead(self) -> bool:
        """By its size; a footer is part of that, and only reading it tells how much."""
        return self.rows > 0 and not self.told.waits and self.told.live * 2 < self.meta.size

    def worth_it(self, small: bool) -> bool:
        if not self.rows:
            return False  # nothing lives in it: it is collected as a whole
        mostly_dead = self.may_be_mostly_dead and self.held is not None and self.told.live * 2 < self.held
        return mostly_dead or self.told.long_dead or (small and self.meta.size < SMALL_PACK)


class Bulk(Protocol):
    """The same work on many machines, for an index that is too large to be walked here."""

    def survey(self, root: Root, ages: Ages, keep: dt.timedelta) -> Iterable[PackSurvey]:
        """`survey` of all paths."""
        ...

    def move(self, root: Root, packs: Sequence[str]) -> Iterable[tuple[Row, str]]:
        """Copies what lives in these packs; each row with its new place, those of one pack together."""
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
        return Repacked(len(chosen), sum(p.rows for p in chosen), sum(p.saves for p in chosen))
    if bulk is not None:
        return _moved_in_bulk(committer, pace, chosen, bulk) if chosen else Repacked()
    done = Repacked()
    for batch in _batches(chosen):
        pace()
        done += _moved(committer, pace, batch)
    return done


def is_live(row: Row) -> bool:
    return isinstance(row, Entry)


def empty(committer: Committer, pace: Pace, packs: Iterable[str], moves: Callable[[Row], bool] = is_live) -> Repacked:
    """Moves what lives in these packs, or what of it `moves` says, deleted files too, whatever they would save."""
    found: list[_Pack] = []
    for key in packs:
        with suppress(ObjectMissing):
            found.append(_Pack(committer.store.head(key), PackSurvey(key)))
    return _moved(committer, pace, found, moves) if found else Repacked()


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
    many = sum(p.meta.size < SMALL_PACK and p.rows > 0 for p in packs.values()) > MANY_SMALL
    worth = sorted((p for p in packs.values() if p.worth_it(many)), key=lambda p: p.saves, reverse=True)
    taken: list[_Pack] = []
    for pack in worth:
        if taken and sum(p.rows for p in taken) + pack.rows > rows:
            break
        taken.append(pack)
    return taken


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


def _batches(packs: Iterable[_Pack]) -> Iterator[list[_Pack]]:
    """Whole packs, at most 20,000 rows together."""
    batch: list[_Pack] = []
    for pack in packs:
        if batch and sum(p.rows for p in batch) + pack.rows > COMMIT_ROWS:
            yield batch
            batch = []
        batch.append(pack)
    if batch:
        yield batch


def _moved(
    committer: Committer, pace: Pace, batch: Sequence[_Pack], moves: Callable[[Row], bool] = is_live
) -> Repacked:
    """Copies what lives in these packs by a fresh root, and commits exactly what still is what was read."""
    root = committer.read().root
    if root is None:
        return Repacked()
    wanted = {pack.meta.key: pack for pack in batch}
    rows = [row for row in winning_rows(root, committer.fetch) if object_of(row.key) in wanted and moves(row)]
    copier = PackCopier(committer.store, committer.env)
    places = dict(copier.copy(rows, pace))
    return _committed(committer, pace, _Moves(places, root.gc_epoch), wanted)


def _moved_in_bulk(committer: Committer, pace: Pace, packs: Sequence[_Pack], bulk: Bulk) -> Repacked:
    """The copies of many machines, committed here: whole packs, at most 20,000 rows a commit.
    inv[spark.publish-once]"""
    root = committer.read().root
    if root is None:
        return Repacked()
    wanted, done = {pack.meta.key: pack for pack in packs}, Repacked()
    places: dict[Row, str] = {}
    for _, moved in groupby(bulk.move(root, sorted(wanted)), key=lambda move: object_of(move[0].key)):
        some = dict(moved)
        if places and len(places) + len(some) > COMMIT_ROWS:
            done += _committed(committer, pace, _Moves(places, root.gc_epoch), wanted)
            places = {}
        places |= some
    return done + _committed(committer, pace, _Moves(places, root.gc_epoch), wanted)


def _committed(committer: Committer, pace: Pace, moves: _Moves, wanted: Mapping[str, _Pack]) -> Repacked:
    if not moves.places or committer.commit(lambda now: _changes(committer, now, moves), pace) is None:
        return Repacked()
    return Repacked(len(moves.emptied), len(moves.moved), sum(wanted[key].saves for key in moves.emptied))


@mutable
class _Moves:
    """Rows and the places where their bytes lie now too; of those, the ones that a root still allowed to be moved."""

    places: dict[Row, str]
    epoch: int
    """The collection after which the copies were made."""
    moved: dict[Row, str] = field(default_factory=dict)

    @property
    def emptied(self) -> list[str]:
        """Packs out of which something was moved: their undo window begins now."""
        return sorted({object_of(entry.key) for entry in self.moved})

    @property
    def copies(self) -> frozenset[str]:
        return frozenset(map(object_of, self.places.values()))


def _changes(committer: Committer, root: Root, moves: _Moves) -> Changes | None:
    """Of what was copied, exactly the rows that still are what was read; none if a collector has taken the copies."""
    moves.moved.clear()
    if not survive(committer.store, root, moves.copies, moves.epoch):
        return None
    moves.epoch = root.gc_epoch
    was = {entry.path: entry for entry in moves.places}
    rows = lookup(root, was, committer.fetch)
    for path, entry in was.items():
        now = rows.get(path)
        if now is not None and is_what_was_read(now, entry):
            moves.moved[now] = moves.places[entry]
    if not moves.moved:
        return None
    puts = tuple(now.rewritten(key, missing=now.missing) for now, key in moves.moved.items() if isinstance(now, Entry))
    deletes = tuple(now.moved(key) for now, key in moves.moved.items() if isinstance(now, Tombstone))
    return Changes(puts, deletes, dropped=tuple(Unreferenced(pack, "") for pack in moves.emptied))


def is_what_was_read(now: Row, read: Row) -> bool:
    """Identity, number and place, of a file or of a deletion. inv[pack.moved-only-unchanged]"""
    same = (now.identity, now.number, now.key) == (read.identity, read.number, read.key)
    return same and isinstance(now, Entry) == isinstance(read, Entry)
