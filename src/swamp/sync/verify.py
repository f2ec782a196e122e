"""Reads every payload and compares it with its hash; heals what this cache still has the bytes of.

A payload that is not there never removes its entry. inv[entry.keeps]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from swamp.cache.files import hash_file
from swamp.commit.commit import Changes
from swamp.errors import NotFound, ObjectMissing, SwampError
from swamp.index.entry import Dropped, Entry, Tombstone
from swamp.index.lookup import live_rows
from swamp.index.root import Root
from swamp.store.port import ObjectStore
from swamp.sync.bulk import Upload
from swamp.sync.pool import pooled
from swamp.sync.progress import Patience
from swamp.sync.record import Parts
from swamp.sync.transfer import upload_one
from swamp.sync.units import unit_of

Verdict = Literal["good", "missing", "corrupt"]


@dataclass(frozen=True, slots=True)
class Finding:
    entry: Entry
    verdict: Verdict
    size: int = 0


@dataclass(frozen=True, slots=True)
class VerifyReport:
    checked: int
    bytes: int
    missing: tuple[str, ...] = ()
    corrupt: tuple[str, ...] = ()
    healed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.missing and not self.corrupt


def inspect(store: ObjectStore, entry: Entry) -> Finding:
    """One payload, streamed and hashed. An adopted entry without a hash is held to its size."""
    digest, size = hashlib.sha256(), 0
    try:
        with store.open(entry.key) as body:
            for chunk in body:
                digest.update(chunk)
                size += len(chunk)
    except ObjectMissing:
        return Finding(entry, "missing")
    right = size == entry.size and entry.sha256 in (None, digest.hexdigest())
    return Finding(entry, "good" if right else "corrupt", size)


def inspect_all(parts: Parts, entries: Iterable[Entry], patience: Patience, threads: int) -> Iterator[Finding]:
    store = parts.committer.store
    for finding in pooled(entries, lambda e: inspect(store, e), threads, patience.check):
        patience.progressed()
        parts.progress.advance(1, finding.size)
        yield finding


def verify(
    parts: Parts, patience: Patience, *, threads: int = 16, repair: bool = False, drop: tuple[str, ...] = ()
) -> VerifyReport:
    """Looks at everything the root names. With `repair`, heals from this cache and drops exactly `drop`."""
    root = parts.committer.read().root
    if root is None:
        return VerifyReport(0, 0)
    parts.progress.begin("verifying", sum(s.rows for s in root.segments) + len(root.entries) or None)
    checked = size = 0
    bad: list[Finding] = []
    try:
        for finding in inspect_all(parts, live_rows(root, parts.committer.fetch), patience, threads):
            checked += 1
            size += finding.size
            if finding.verdict != "good":
                bad.append(finding)
    finally:
        parts.progress.end()
    return conclude(parts, patience, checked, size, bad, repair=repair, drop=drop)


def conclude(
    parts: Parts,
    patience: Patience,
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
    healed = _heal(parts, patience, [f for f in bad if f.entry.path not in drop]) if repair else {}
    gone = [f for f in bad if f.entry.path in drop] if repair else []
    left = [f for f in bad if f.entry.path not in healed and f not in gone]
    if repair and (healed or gone or any(f.verdict == "missing" and not f.entry.missing for f in left)):
        _publish(parts, patience, healed, gone, left)
    return VerifyReport(
        checked,
        size,
        missing=tuple(sorted(f.entry.path for f in left if f.verdict == "missing")),
        corrupt=tuple(sorted(f.entry.path for f in left if f.verdict == "corrupt")),
        healed=tuple(sorted(healed)),
        dropped=tuple(sorted(f.entry.path for f in gone)),
    )


def _heal(parts: Parts, patience: Patience, bad: list[Finding]) -> dict[str, tuple[Entry, Entry]]:
    """path -> (old entry, the same bytes under a new key), where this cache holds bytes of the right hash."""
    healed: dict[str, tuple[Entry, Entry]] = {}
    for finding in bad:
        patience.check()
        entry = finding.entry
        file = parts.cache.tree / entry.path
        try:
            if entry.sha256 is None or hash_file(file).sha256 != entry.sha256:
                continue
        except SwampError:
            continue  # not here, or not readable here: another cache may have it
        sent = upload_one(parts.committer.store, Upload(entry.path, str(file)), parts.env, patience)
        if sent.key and sent.sha256 == entry.sha256:
            again = replace(entry, key=sent.key, last_modified=sent.last_modified or "", missing=False)
            healed[entry.path] = (entry, again)
    return healed


def _publish(
    parts: Parts,
    patience: Patience,
    healed: dict[str, tuple[Entry, Entry]],
    gone: list[Finding],
    left: list[Finding],
) -> None:
    def propose(root: Root) -> Changes | None:
        puts = [new for old, new in healed.values() if _still(root, old)]
        dropped = [Dropped(old.key, old.path) for old, new in healed.values() if _still(root, old)]
        marks = [replace(f.entry, missing=True) for f in left if f.verdict == "missing" and _still(root, f.entry)]
        tombs = [Tombstone(e.path, e.key, e.size, e.sha256) for e in _with_units(parts, root, gone)]
        if not (puts or marks or tombs):
            return None
        return Changes(puts=(*puts, *marks), deletes=tuple(tombs), dropped=tuple(dropped))

    parts.committer.commit(propose, patience.check)


def _with_units(parts: Parts, root: Root, gone: list[Finding]) -> list[Entry]:
    """What is given up, and what is no version any more without it. inv[unit.whole]"""
    units = {unit_of(f.entry.path) for f in gone if _still(root, f.entry)}
    return [row for row in live_rows(root, parts.committer.fetch) if unit_of(row.path) in units] if units else []


def _still(root: Root, entry: Entry) -> bool:
    """Nobody has replaced it in the newest layer since it was read."""
    row = root.row(entry.path)
    return row is None or (isinstance(row, Entry) and row.key == entry.key)
