"""Collects facts: reads the journal and base, looks at files, asks the view, learns hashes. The planner's eyes; decides
nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from swamp.cache.paths import ancestors, is_below
from swamp.cache.rows import BaseRow, JournalRow, StagedRow
from swamp.cache.scan import Exclude, Observed, ScanProblem, Seen, is_left_out, scan, stat_one
from swamp.cache.state import State
from swamp.errors import ObjectMissing
from swamp.index.entry import Entry, Row, Tombstone
from swamp.index.pack import read_payload
from swamp.index.root import EVERYTHING, Span
from swamp.store.port import ObjectStore
from swamp.sync.decide import Facts
from swamp.sync.units import is_large_part, unit_of
from swamp.sync.view import View, as_entry
from swamp.values import mutable, value

Scope = tuple[str, ...]
_BEHIND_ALL: Final = "\U0010ffff" * 2
"""Sorts behind every path."""


@value
class Snapshot:
    """The journal as it was when nobody was mutating: rows later than `last` belong to the next sync."""

    rows: tuple[JournalRow, ...]
    last: int
    at_ns: int = 0
    """When it was taken: whatever this sync reads of a file, it reads later than that."""
    own: tuple[int, int] = (0, 0)
    """Rows that this sync added itself for files it found: they are no news to it."""

    def intent(self) -> Intent:
        written = {r.path: r.id for r in self.rows if r.kind == "write"}
        deleted = {r.path: r.id for r in self.rows if r.kind == "delete"}
        again = {path for path, number in deleted.items() if written.get(path, 0) > number}
        return Intent(set(written), set(deleted), again)


@value
class Intent:
    """Which paths were announced, as files or through a directory above them."""

    writes: set[str]
    deletes: set[str]
    again: set[str]
    """Paths that were deleted and written again since: if such a file vanishes, nobody has deleted it."""

    def edited(self, path: str, *, by_name: bool = False) -> bool:
        """Announced by itself or, unless `by_name`, through a directory above it."""
        if not self.writes:
            return False
        return path in self.writes or (not by_name and any(a in self.writes for a in ancestors(path)))

    def deleted(self, path: str, *, absent: bool) -> bool:
        """Whether a delete row stands for this path as it is now. inv[tree.damage]"""
        return path in self.deletes and not (absent and path in self.again)


@mutable
class Gathered:
    """Facts in path order, what could not be observed, and what the root says of paths hidden by that."""

    facts: list[Facts] = field(default_factory=list)
    problems: list[ScanProblem] = field(default_factory=list)
    hidden: dict[str, Row | None] = field(default_factory=dict)


@value
class Gatherer:
    """One look at the cache. `full_local` walks the whole tree instead of the announced paths."""

    state: State
    tree: Path
    view: View
    snapshot: Snapshot
    scope: Scope
    full_local: bool
    exclude: Exclude
    deferred: dict[str, Row | None]
    hydrating: bool = False
    lazy: bool = False
    leave_large: bool = False
    """Whether content may stay in the bucket: what was left there is then nothing to look at."""
    span: Span = EVERYTHING
    """The paths that a full comparison looks at: no unit may lie on both sides of a bound."""

    def is_plain(self) -> bool:
        """Whether every path can be decided without the others: all is compared, nobody has announced anything, no
        earlier attempt left anything, and the tree holds nothing that base does not know (no two names can clash)."""
        if not self.view.full or self.scope or self.snapshot.rows or self.deferred or self._staged:
            return False
        out = Gathered()
        met = _merge(self.state.base_below(""), scan(self.tree, "", exclude=self.exclude), (), out)
        return all(base is not None for _, base, _, _ in met) and not out.problems

    @property
    def everything(self) -> bool:
        """Whether every path is looked at, not only those that somebody announced."""
        return self.full_local or self.view.full

    def gathered(self, most: int | None) -> Iterator[Gathered]:
        """The facts of whole units, about `most` at a time: nothing else is held. One portion, if None. The same in
        process, and in a Spark task with its range. inv[decide.one-table]"""
        out = Gathered()
        intent = self.snapshot.intent()
        triples = self._all_paths(out) if self.everything else self._announced(out)
        unit: list[Facts] = []
        name = ""
        private = _Private(self.exclude)
        for path, base, local, remote in triples:
            if self.scope and not any(is_below(path, prefix) for prefix in self.scope):
                continue
            known = base is not None or remote is not None
            if not known and private(path):
                continue  # announced or not: what stays on this machine is never pushed (L23, L24)
            if known and local is None and private(path):
                local = self._look_again(path, out)  # what is shared already stays shared, whatever is left out now
            belongs = unit_of(path)
            if unit and name != belongs:
                out.facts += self._worth_keeping(unit)
                unit = []
                if most is not None and len(out.facts) >= most:
                    # What hides a part of the unit that begins here has been met already: it stays with its unit.
                    begun = {p: row for p, row in out.hidden.items() if unit_of(p) == belongs}
                    yield replace(out, hidden={p: row for p, row in out.hidden.items() if p not in begun})
                    out.facts, out.hidden = [], begun
            if local is None and out.problems and any(p.hides(path) for p in out.problems):
                out.hidden[path] = remote  # neither present nor absent: nothing is concluded. inv[scan.honest]
                continue
            unit.append(self._facts(path, base, local, remote, intent))
            name = belongs
        out.facts += self._worth_keeping(unit)
        yield out

    def _look_again(self, path: str, out: Gathered) -> Observed | None:
        """A file that the walk left out on purpose: left out is not absent."""
        seen = stat_one(self.tree, path)
        if isinstance(seen, ScanProblem):
            out.problems.append(seen)
            return None
        return seen

    def _worth_keeping(self, unit: list[Facts]) -> list[Facts]:
        """A unit is decided as a whole, so it is kept or left out as a whole. inv[unit.whole]"""
        for f in unit:
            if f.base is None or not (f.trivial or ((self.lazy or (self.leave_large and f.large_part)) and f.resting)):
                return unit
        return []

    def _facts(
        self, path: str, base: BaseRow | None, local: Observed | None, remote: Row | None, intent: Intent
    ) -> Facts:
        base = self._mine(path, base, remote)
        # State was lost: a row over a whole directory must not make edits of the old files below it (L39).
        unknown = base is None and self.view.full
        edited = intent.edited(path, by_name=unknown)
        buried = edited and local is not None and isinstance(remote, Tombstone)
        return Facts(
            path,
            base,
            local,
            remote,
            edited=edited,
            deleted=intent.deleted(path, absent=local is None),
            in_history=self.view.in_history,
            owed=path in self.deferred,
            arrived=self._arrived(local, remote) if buried else None,
        )

    def _mine(self, path: str, base: BaseRow | None, remote: Row | None) -> BaseRow | None:
        """A remote row that names my upload proves that my commit landed: it is base. inv[crash.resolved]"""
        if path not in self._staged:
            return base
        for staged in self.state.staged_for(path):
            landed = self._landed(staged, remote)
            if landed is not None and (base is None or base.identity != landed.identity):
                base = landed
        return base

    def _landed(self, staged: StagedRow, remote: Row | None) -> BaseRow | None:
        """What base was to become with that upload, if the root shows that it did: the row of its path names it, by
        place or by identity, or a dropped row of that path does."""
        made = BaseRow(staged.path, staged.key, staged.size, staged.sha256, 0, present=True)
        if remote is not None and staged.key in (remote.key, remote.identity):
            return replace(made, key=remote.key, seq=remote.seq, id=remote.id, id_seq=remote.id_seq)
        gone = self.view.dropped.get(staged.key)
        if gone is None or gone.path != staged.path:
            return None
        return replace(made, key=gone.key, seq=gone.seq, id=gone.id)

    def _arrived(self, local: Observed | None, buried: Row | None) -> BaseRow | None:
        """A pull that died between its rename and its record left the root's bytes under an old row of the journal.

        If they were deleted since, they are what the tombstone buries and no edit: base, if their hash says so.
        Only for a tombstone that is news here: after it, the same bytes again are somebody's wish. inv[crash.resolved]
        """
        if local is None or not isinstance(buried, Tombstone) or buried.sha256 is None:
            return None
        if buried.size != local.size or buried.seq <= int(self.state.meta("pulledSeq") or 0):
            return None
        told = (buried.path, buried.key, buried.size, buried.sha256, buried.seq)
        return BaseRow(*told, present=True, id=buried.id, id_seq=buried.id_seq)

    @cached_property
    def _staged(self) -> frozenset[str]:
        return self.state.staged_paths()

    def _all_paths(self, out: Gathered) -> Iterator[Triple]:
        """Every path of base, tree and index in its range, in order; what could not be looked at goes to `out`."""
        bases = self.state.base_between(self.span.start, self.span.stop)
        remotes = self.view.stream(self.span) if self.view.full else self._changed_rows()
        for path, base, local, remote in _merge(bases, self._walked(out), remotes, out):
            if remote is None and base is not None and not self.view.full:
                remote = as_entry(base)
            yield path, base, local, remote

    def _changed_rows(self) -> Iterator[Row]:
        """What the root changed in its range, and what an earlier pull owes, in path order."""
        owed = {p: r for p, r in self.deferred.items() if r is not None}
        for path, row in sorted({**owed, **self.view.delta}.items()):
            if self.span.holds(path):
                yield row

    def _walked(self, out: Gathered) -> Iterator[Seen]:
        """The tree's files in its range. An obstacle before the range may hide paths within it: it is told first, and
        where it lies somebody else meets it too."""
        for start in self.starts():
            for seen in scan(self.tree, start, exclude=self.exclude, lowest=self.span.start, end=self.span.stop):
                if isinstance(seen, ScanProblem) and seen.path < self.span.start:
                    out.problems.append(seen)
                else:
                    yield seen

    def starts(self) -> list[str]:
        """Where a walk of the tree begins."""
        return _outermost(self.scope if self.scope and not self.view.full else ("",))

    def _announced(self, out: Gathered) -> Iterator[Triple]:
        """Only what somebody announced, what the root changed, and what an earlier pull owes."""
        touched = {unit_of(r.path) for r in self.snapshot.rows}
        touched |= {unit_of(p) for p in self.view.delta} | {unit_of(p) for p in self.deferred}
        if self.hydrating:
            owes = (
                r.path for r in self.state.remote_only() if not (self.leave_large and is_large_part(r.path, r.size))
            )
            touched |= {unit_of(path) for path in owes}
        if self.scope:
            touched = {u for u in touched if any(is_below(u, s) or is_below(s, u) for s in self.scope)}
        starts = _outermost(touched)
        below: dict[str, list[Row]] = {start: [] for start in starts}
        for row in self._changed_rows():
            start = next((above for above in (row.path, *ancestors(row.path)) if above in below), None)
            if start is not None:
                below[start].append(row)
        for start in starts:
            bases = self.state.base_below(start)
            locals_ = scan(self.tree, start, exclude=self.exclude)
            for path, base, local, remote in _merge(bases, locals_, below[start], out):
                yield path, base, local, remote if remote is not None else (as_entry(base) if base else None)


class _Private:
    """Whether a path stays on this machine: an internal name, or left out by the user, itself or a directory above."""

    def __init__(self, exclude: Exclude) -> None:
        self._exclude = exclude
        self._directories: dict[str, bool] = {"": False}

    def __call__(self, path: str) -> bool:
        return is_left_out(path, False) or self._exclude(path, False) or self._inside(path.rpartition("/")[0])

    def _inside(self, directory: str) -> bool:
        known = self._directories.get(directory)
        if known is None:
            known = self._inside(directory.rpartition("/")[0]) or self._exclude(directory, True)
            self._directories[directory] = known
        return known


Triple = tuple[str, BaseRow | None, Observed | None, Row | None]
"""A path, and what base, tree and root have of it."""


def _merge(
    bases: Iterable[BaseRow], locals_: Iterable[Seen], remotes: Iterable[Row], out: Gathered
) -> Iterator[Triple]:
    """Three streams in path order as one: nothing is held but the path at hand."""
    known, here, there = iter(bases), iter(locals_), iter(remotes)
    next_base, next_local, next_remote = next(known, None), next(here, None), next(there, None)
    last = ""
    while True:
        path = min(
            _BEHIND_ALL if next_base is None else next_base.path,
            _BEHIND_ALL if next_local is None else next_local.path,
            _BEHIND_ALL if next_remote is None else next_remote.path,
        )
        if path is _BEHIND_ALL:
            return
        base: BaseRow | None = None
        local: Observed | None = None
        remote: Row | None = None
        hidden = False
        while next_base is not None and next_base.path == path:
            base, next_base = next_base, next(known, None)
        while next_local is not None and next_local.path == path:
            if isinstance(next_local, ScanProblem):
                out.problems.append(next_local)
                hidden = True
            else:
                local = next_local
            next_local = next(here, None)
        while next_remote is not None and next_remote.path == path:
            remote, next_remote = next_remote, next(there, None)
        if hidden:
            out.hidden[path] = remote
            continue
        if path <= last:  # one path met twice would be pulled and pushed at once: rather nothing than that
            raise AssertionError(f"{path!r} came after {last!r}: a stream is out of order")
        last = path
        yield path, base, local, remote


def _outermost(prefixes: Iterable[str]) -> list[str]:
    """The prefixes that no other one contains, in order."""
    kept: list[str] = []
    for prefix in sorted(set(prefixes), key=lambda p: p + "/"):
        if not kept or not is_below(prefix, kept[-1]):
            kept.append(prefix)
    return kept


Hasher = Callable[[list[Facts]], dict[str, str]]
"""Hashes the local files of these facts; a file that changed or failed meanwhile is left out."""


def learn(
    facts: list[Facts], hash_local: Hasher, hash_remote: Callable[[Entry], str | None]
) -> tuple[list[Facts], set[str]]:
    """The same facts with every hash that the table needs, and the paths that could not be read: undecided."""
    local = hash_local([f for f in facts if f.needs_hash])
    known = [f.hashed(local[f.path]) if f.path in local else f for f in facts]
    learned: list[Facts] = []
    unread: set[str] = set()
    for f in known:
        if f.needs_hash:
            unread.add(f.path)
        elif f.needs_remote_hash and isinstance(f.remote, Entry):
            learned.append(replace(f, remote_sha256=hash_remote(f.remote)))
        else:
            learned.append(f)
    return learned, unread


GROWING: Final = "audit/"
LARGEST: Final = 16 << 20


def with_grown_base(facts: Facts, tree: Path, store: ObjectStore) -> Facts:
    """For an audit file whose state was lost here, and which nobody ever changes but by adding lines: the same facts
    with the shorter side as base where the longer one begins with it. One side has added lines and the other has not,
    and that is no conflict."""
    local, remote = facts.local, facts.remote
    if facts.base is not None or not facts.path.startswith(GROWING) or local is None or not isinstance(remote, Entry):
        return facts
    if local.size == remote.size or max(local.size, remote.size) > LARGEST:
        return facts
    try:
        here, there = (tree / facts.path).read_bytes(), read_payload(store, remote.key, remote.size)
    except (FileNotFoundError, ObjectMissing):
        return facts  # decided as if nothing were known of it
    if len(here) != local.size:
        return facts
    sha256 = hashlib.sha256(here).hexdigest()
    if there.startswith(here):
        return replace(facts, base=BaseRow(facts.path, "", len(here), sha256, 0, present=True), sha256=sha256)
    if here.startswith(there):
        return replace(facts, base=BaseRow.of(remote, remote.sha256, True, None), sha256=sha256)
    return facts
