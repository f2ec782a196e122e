"""Moves what lives in packs that are mostly dead into new packs, so that the old ones can be collected.

A move is no change: identity and number stay, only the place is another one. inv[pack.identity] The old pack is dropped
by the commit that moves out of it, so that readers and undelete find it for the length of the undo window.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from swamp.commit.collect import Ages, internal_objects
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import names
from swamp.commit.survive import survive
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Dropped, Entry, Row, Tombstone
from swamp.index.keys import Slice, is_pack, object_of, pack_key, slice_of
from swamp.index.lookup import all_rows, live_rows, lookup, winning_rows
from swamp.index.pack import Packed, PackWriter, unpacked, verified
from swamp.index.payload import packed_bytes
from swamp.index.root import Root
from swamp.locks.acquire import store_now
from swamp.store.port import ObjectMeta

PACK_BYTES: Final = 8 << 20
SMALL_PACK: Final = 1 << 20
MANY_SMALL: Final = 100
OLD_DEAD: Final = dt.timedelta(days=30)
COMMIT_ROWS: Final = 20_000
RUN_ROWS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Repacked:
    """Packs that were (or would be) emptied, the rows moved out of them, and the bytes that can be collected then."""

    packs: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, more: Repacked) -> Repacked:
        return Repacked(self.packs + more.packs, self.rows + more.rows, self.bytes + more.bytes)


@dataclass
class _Pack:
    """What is known of one pack: its object, and what lives, waits and has long been dead in it."""

    meta: ObjectMeta
    live: int = 0
    rows: int = 0
    waits: bool = False
    long_dead: bool = False
    held: int | None = None
    """Bytes of all its slices, as its footer says."""

    @property
    def saves(self) -> int:
        return max((self.meta.size if self.held is None else self.held) - self.live, 0)

    @property
    def may_be_mostly_dead(self) -> bool:
        """By its size; a footer is part of that, and only reading it tells how much."""
        return self.rows > 0 and not self.waits and self.live * 2 < self.meta.size

    def worth_it(self, small: bool) -> bool:
        if not self.rows:
            return False  # nothing lives in it: it is collected as a whole
        mostly_dead = self.may_be_mostly_dead and self.held is not None and self.live * 2 < self.held
        return mostly_dead or self.long_dead or (small and self.meta.size < SMALL_PACK)


def repack(
    committer: Committer, pace: Pace, *, keep: dt.timedelta, dry_run: bool = False, rows: int = RUN_ROWS
) -> Repacked:
    """Empties the packs that are worth it, at most `rows` rows in one run; with `dry_run` says what it would do."""
    root = committer.read().root
    if root is None:
        return Repacked()
    chosen = _chosen(committer, root, keep, rows)
    if dry_run:
        return Repacked(len(chosen), sum(p.rows for p in chosen), sum(p.saves for p in chosen))
    done = Repacked()
    for batch in _batches(chosen):
        pace()
        done += _moved(committer, pace, batch)
    return done


def is_live(row: Row) -> bool:
    return isinstance(row, Entry)


def empty(committer: Committer, pace: Pace, packs: Iterable[str], moves: Callable[[Row], bool] = is_live) -> Repacked:
    """Moves what lives in these packs, or what of it `moves` says, deleted files too, whatever they would save."""
    found = [_Pack(meta) for key in packs if (meta := _there(committer, key)) is not None]
    return _moved(committer, pace, found, moves) if found else Repacked()


def _there(committer: Committer, key: str) -> ObjectMeta | None:
    try:
        return committer.store.head(key)
    except ObjectMissing:
        return None


def _chosen(committer: Committer, root: Root, keep: dt.timedelta, rows: int) -> list[_Pack]:
    """Those that save most come first."""
    packs = {meta.key: _Pack(meta) for meta in internal_objects(committer.store) if is_pack(meta.key)}
    if not packs:
        return []
    for entry in live_rows(root, committer.fetch):
        pack, cut = packs.get(object_of(entry.key)), _slice(entry.key)
        if pack is not None and cut is not None:
            pack.live += cut.length
            pack.rows += 1
    _note_dead(committer, root, packs, keep)
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


def _note_dead(committer: Committer, root: Root, packs: dict[str, _Pack], keep: dt.timedelta) -> None:
    ages = Ages.of(list(names(committer.store)), store_now(committer.store))
    for row in all_rows(root, committer.fetch):
        pack = packs.get(object_of(row.key))
        if pack is not None and not isinstance(row, Entry):
            pack.waits |= not ages.older(row.seq, keep)
            pack.long_dead |= ages.older(row.seq, max(OLD_DEAD, keep))


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
    copied = _Copier(committer, pace, root.gc_epoch)
    copied.copy(rows)
    if not copied.places:
        return Repacked()
    done = committer.commit(lambda now: _changes(committer, now, copied), pace)
    if done is None:
        return Repacked()
    gone = copied.emptied
    return Repacked(len(gone), len(copied.moved), sum(wanted[key].saves for key in gone))


def _changes(committer: Committer, root: Root, copied: _Copier) -> Changes | None:
    copied.moved.clear()
    if not copied.still_there(root):
        return None
    was = {entry.path: entry for entry in copied.places}
    rows = lookup(root, was, committer.fetch)
    for path, entry in was.items():
        now = rows.get(path)
        if now is not None and is_what_was_read(now, entry):
            copied.moved[now] = copied.places[entry]
    if not copied.moved:
        return None
    puts = tuple(now.rewritten(key, missing=now.missing) for now, key in copied.moved.items() if isinstance(now, Entry))
    deletes = tuple(now.moved(key) for now, key in copied.moved.items() if isinstance(now, Tombstone))
    return Changes(puts, deletes, dropped=tuple(Dropped(pack, "") for pack in copied.emptied))


def is_what_was_read(now: Row, read: Row) -> bool:
    """Identity, number and place, of a file or of a deletion. inv[pack.moved-only-unchanged]"""
    same = (now.identity, now.number, now.key) == (read.identity, read.number, read.key)
    return same and isinstance(now, Entry) == isinstance(read, Entry)


@dataclass
class _Copier:
    """New packs with the slices of old ones; `places` says where each row's bytes are now too."""

    committer: Committer
    pace: Pace
    epoch: int
    places: dict[Row, str] = field(default_factory=dict)
    moved: dict[Row, str] = field(default_factory=dict)
    _new: set[str] = field(default_factory=set)
    _writer: PackWriter = field(default_factory=PackWriter)
    _waiting: list[tuple[Row, Packed]] = field(default_factory=list)

    @property
    def emptied(self) -> list[str]:
        """Packs out of which something was moved: their undo window begins now."""
        return sorted({object_of(entry.key) for entry in self.moved})

    def copy(self, rows: Iterable[Row]) -> None:
        by_pack: dict[str, list[Row]] = {}
        for entry in rows:
            by_pack.setdefault(object_of(entry.key), []).append(entry)
        for pack, entries in by_pack.items():
            self.pace()
            self._copy_pack(pack, entries)
        self._seal()

    def _copy_pack(self, pack: str, entries: list[Row]) -> None:
        try:
            body = self.committer.store.get(pack).body
        except ObjectMissing:
            return  # `verify` tells; a move would only hide it
        for entry in sorted(entries, key=lambda e: (e.path.endswith("/raw") or "/raw/" in e.path, e.path)):
            cut = _slice(entry.key)
            if cut is None or not _holds(body, cut, entry):
                continue  # a bad slice stays where it is, for `verify` to find
            stored = body[cut.offset : cut.end]
            file = Packed(entry.path, 0, cut.length, entry.size, entry.sha256 or "", cut.zstd)
            self._waiting.append((entry, self._writer.copy(file, stored, entry.identity)))
            if self._writer.size >= PACK_BYTES:
                self._seal()

    def _seal(self) -> None:
        """Uploads a pack under a key of its own, before anything names it. inv[commit.root-last]"""
        if not self._waiting:
            return
        key = pack_key(self.committer.env.ulid())
        self.committer.put_segment(key, self._writer.seal())
        self._new.add(key)
        self.places |= {entry: file.slice(key).key for entry, file in self._waiting}
        self._writer, self._waiting = PackWriter(), []

    def still_there(self, root: Root) -> bool:
        """A collector may have been there: a condemned pack is given up, a collection means looking again."""
        there = survive(self.committer.store, root, self._new, self.epoch)
        self.epoch = root.gc_epoch if there else self.epoch
        return there


def _slice(key: str) -> Slice | None:
    try:
        return slice_of(key)
    except CorruptData:
        return None


def _holds(body: bytes, cut: Slice, entry: Row) -> bool:
    """Whether the slice has the bytes that the row promises: nothing is moved that was not checked."""
    try:
        return entry.sha256 is not None and verified(
            unpacked(cut, body[cut.offset : cut.end], entry.size), entry.size, entry.sha256
        )
    except CorruptData:
        return False
