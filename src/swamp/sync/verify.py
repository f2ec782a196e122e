"""Reads every payload and compares it with its hash; heals what this cache still has the bytes of.

A payload that is not there never removes its entry. inv[entry.keeps]
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice
from typing import Final, Literal

from swamp.cache.files import hash_file
from swamp.commit.build import survive
from swamp.commit.commit import Changes
from swamp.env import SYSTEM
from swamp.errors import CorruptData, NotFound, ObjectMissing, SwampError
from swamp.index.entry import Entry, Tombstone, Unreferenced
from swamp.index.lookup import live_rows, lookup
from swamp.index.pack import open_payload
from swamp.index.root import Root
from swamp.store.port import ObjectStore
from swamp.sync.bulk import Upload
from swamp.sync.fetch import AT_ONCE, grouped, sound_slices
from swamp.sync.inline import THREADS, pooled
from swamp.sync.progress import IdleTimeout
from swamp.sync.record import EngineContext
from swamp.sync.transfer import ignored, retried, upload_one
from swamp.sync.units import unit_of
from swamp.values import value

TOGETHER: Final = 100_000
"""Rows that are held to find those of one pack: a larger index reads some packs once for each so many rows."""

Verdict = Literal["good", "missing", "corrupt"]


@value
class Finding:
    entry: Entry
    verdict: Verdict
    size: int = 0


@value
class VerifyReport:
    checked: int
    bytes: int
    missing: tuple[str, ...] = ()
    corrupt: tuple[str, ...] = ()
    healed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    """Files of this cache that vanished and could not be brought back; the store has them. inv[tree.damage]"""

    @property
    def ok(self) -> bool:
        return not self.missing and not self.corrupt and not self.gone


def inspect(store: ObjectStore, entry: Entry, on_bytes: Callable[[int], None] = ignored) -> Finding:
    """One payload, streamed and hashed. An adopted entry without a hash is held to its size."""
    digest, size = hashlib.sha256(), 0
    try:
        with open_payload(store, entry.key, entry.size) as body:
            for chunk in body:
                digest.update(chunk)
                size += len(chunk)
                on_bytes(len(chunk))
    except ObjectMissing:
        return Finding(entry, "missing")
    except CorruptData:
        return Finding(entry, "corrupt", size)
    right = size == entry.size and entry.sha256 in (None, digest.hexdigest())
    return Finding(entry, "good" if right else "corrupt", size)


def inspect_group(
    store: ObjectStore, entries: list[Entry], on_bytes: Callable[[int], None], idle_timeout: IdleTimeout | None
) -> list[Finding]:
    """One payload, or the files of one range of a pack by one request; what seems wrong is read again by itself.

    Not read is not rotten: what a store does not bring for half a minute stops the work instead (Unavailable).
    """

    env = idle_timeout.env if idle_timeout else SYSTEM

    def once(entry: Entry, tell: Callable[[int], None] = on_bytes) -> Finding:
        return retried(lambda: inspect(store, entry, tell), env, idle_timeout)

    # inv[read.twice]: one reading that is wrong may be the line's fault, and who is told of it may drop the file.
    if len(entries) == 1:
        found = once(entries[0])
        return [found if found.verdict == "good" else once(entries[0], ignored)]
    try:
        sound = sound_slices(store, [(e.key, e.size, e.sha256) for e in entries])
    except ObjectMissing:
        first = once(entries[0])
        if first.verdict == "missing":  # and so are all of them: they lie in one object
            return [Finding(entry, "missing") for entry in entries]
        return [first, *map(once, entries[1:])]
    on_bytes(sum(entry.size for entry, good in zip(entries, sound, strict=True) if good))
    return [
        Finding(entry, "good", entry.size) if good else once(entry) for entry, good in zip(entries, sound, strict=True)
    ]


def inspect_all(
    store: ObjectStore,
    entries: Iterable[Entry],
    threads: int,
    on_bytes: Callable[[int], None] = ignored,
    idle_timeout: IdleTimeout | None = None,
) -> Iterator[Finding]:
    """Findings as they come, in process and inside Spark tasks. The files of a pack are read together, as far as they
    are among so many rows."""
    room = threading.Semaphore(AT_ONCE)

    def look(group: list[Entry]) -> list[Finding]:
        with room if len(group) > 1 else nullcontext():
            return inspect_group(store, group, on_bytes, idle_timeout)

    rows = iter(entries)
    pages = iter(lambda: list(islice(rows, TOGETHER)), [])
    groups = chain.from_iterable(grouped(page, lambda entry: entry.key) for page in pages)
    jobs = ([entry for _, entry in group] for group in groups)
    return chain.from_iterable(pooled(jobs, look, threads, idle_timeout.check if idle_timeout else None))


def verify(
    context: EngineContext,
    idle_timeout: IdleTimeout,
    *,
    threads: int = THREADS,
    repair: bool = False,
    drop: tuple[str, ...] = (),
) -> VerifyReport:
    """Looks at everything the root names. With `repair`, heals from this cache and drops exactly `drop`."""
    root = context.committer.read().root
    if root is None:
        return VerifyReport(0, 0)
    context.progress.begin("verifying", sum(s.rows for s in root.segments) + len(root.entries) or None)
    checked = size = 0
    bad: list[Finding] = []
    try:
        live = live_rows(root, context.committer.fetch)
        for finding in inspect_all(context.committer.store, live, threads, idle_timeout=idle_timeout):
            idle_timeout.progressed()
            context.progress.advance(1, finding.size)
            checked += 1
            size += finding.size
            if finding.verdict != "good":
                bad.append(finding)
    finally:
        context.progress.end()
    return conclude(context, idle_timeout, checked, size, bad, repair=repair, drop=drop)


def conclude(
    context: EngineContext,
    idle_timeout: IdleTimeout,
    checked: int,
    size: int,
    bad: list[Finding],
    *,
    repair: bool,
    drop: tuple[str, ...],
) -> VerifyReport:
    """What stays bad after healing; shared by both engines, so that only one of them ever publishes."""
    unknown = set(drop) - {f.entry.path for f in bad}
    if unknown:
        raise NotFound(f"nothing is wrong with {sorted(unknown)[0]}: only missing or corrupt entries can be dropped")
    # How far the collections have come before anything is uploaded. inv[gc.uploads-survive]
    before = context.committer.read().root if repair and bad else None
    epoch = before.gc_epoch if before is not None else 0
    healed = _heal(context, idle_timeout, [f for f in bad if f.entry.path not in drop]) if repair else {}
    gone = [f for f in bad if f.entry.path in drop] if repair else []
    left = [f for f in bad if f.entry.path not in healed and f not in gone]
    if repair and (healed or gone or any(f.verdict == "missing" and not f.entry.missing for f in left)):
        taken = _publish(context, idle_timeout, healed, gone, left, epoch)
        healed = {path: rows for path, rows in healed.items() if path not in taken}
        left = [f for f in bad if f.entry.path not in healed and f not in gone]
    return VerifyReport(
        checked,
        size,
        missing=tuple(sorted(f.entry.path for f in left if f.verdict == "missing")),
        corrupt=tuple(sorted(f.entry.path for f in left if f.verdict == "corrupt")),
        healed=tuple(sorted(healed)),
        dropped=tuple(sorted(f.entry.path for f in gone)),
    )


def _heal(context: EngineContext, idle_timeout: IdleTimeout, bad: list[Finding]) -> dict[str, tuple[Entry, Entry]]:
    """path -> (old entry, the same bytes under a new key), where this cache holds bytes of the right hash."""
    healed: dict[str, tuple[Entry, Entry]] = {}
    for finding in bad:
        idle_timeout.check()
        entry = finding.entry
        file = context.cache.tree / entry.path
        try:
            if entry.sha256 is None or hash_file(file).sha256 != entry.sha256:
                continue
        except SwampError:
            continue  # not here, or not readable here: another cache may have it
        sent = upload_one(context.committer.store, Upload(entry.path, str(file)), context.env, idle_timeout)
        if sent.key and sent.sha256 == entry.sha256:
            again = replace(entry.rewritten(sent.key), last_modified=sent.last_modified or "")
            healed[entry.path] = (entry, again)
    return healed


def _publish(
    context: EngineContext,
    idle_timeout: IdleTimeout,
    healed: dict[str, tuple[Entry, Entry]],
    gone: list[Finding],
    left: list[Finding],
    epoch: int,
) -> frozenset[str]:
    """Commits what is still so on the root that it is swapped on; the paths whose upload a collector has taken."""
    taken: set[str] = set()
    store = context.committer.store

    def propose(root: Root) -> Changes | None:
        taken.clear()
        taken.update(path for path, (_, new) in healed.items() if not survive(store, root, (new.key,), epoch))
        still = _unchanged(context, root, [*(old for old, _ in healed.values()), *(f.entry for f in (*gone, *left))])
        sent = [(old, new) for path, (old, new) in healed.items() if path in still and path not in taken]
        puts = [new for _, new in sent]
        dropped = [Unreferenced.of(old) for old, _ in sent]
        lost = (f.entry for f in left if f.verdict == "missing" and f.entry.path in still)
        marks = [entry.rewritten(entry.key, missing=True) for entry in lost]
        # What is given up, and what is no version any more without it. inv[unit.whole]
        units = {unit_of(f.entry.path) for f in gone if f.entry.path in still}
        rows = live_rows(root, context.committer.fetch) if units else ()
        tombs = [Tombstone.of(row) for row in rows if unit_of(row.path) in units]
        if not (puts or marks or tombs):
            return None
        return Changes(puts=(*puts, *marks), deletes=tuple(tombs), dropped=tuple(dropped))

    context.committer.commit(propose, idle_timeout.check)
    return frozenset(taken)


def _unchanged(context: EngineContext, root: Root, entries: list[Entry]) -> frozenset[str]:
    """Paths whose winning row on this root, segments included, is still the one that was examined. inv[verify.winner]

    A row that has left the newest layer may have been replaced in a segment: its absence there proves nothing (L71).
    """
    rows = lookup(root, [entry.path for entry in entries], context.committer.fetch)
    found = ((entry, rows.get(entry.path)) for entry in entries)
    return frozenset(e.path for e, row in found if isinstance(row, Entry) and (row.key, row.seq) == (e.key, e.seq))
