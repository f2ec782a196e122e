"""The uploads of one push: what has arrived in the bucket is remembered here before any root names it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Final

from swamp.cache.files import fingerprint_of, hash_file
from swamp.cache.rows import StagedRow
from swamp.errors import SwampError
from swamp.sync.bulk import Sent, Upload, Work
from swamp.sync.plan import Action, UnitPlan
from swamp.sync.progress import IdleTimeout
from swamp.sync.record import EngineContext, SyncStats
from swamp.sync.transfer import SMALL
from swamp.sync.units import unit_of
from swamp.values import mutable

SAVED_ROWS: Final = 4096
SAVED_BYTES: Final = 64 << 20
"""What may have to be sent again after a crash: a few packs, or a few large files."""


@mutable
class Stager:
    """Sends what a plan pushes, and knows what has arrived."""

    context: EngineContext
    stats: SyncStats
    idle_timeout: IdleTimeout
    epoch: int
    """The collection after which this push sends: a later one may have taken its uploads for garbage."""
    packs: bool
    rows: dict[str, StagedRow] = field(default_factory=dict)
    modified: dict[str, str] = field(default_factory=dict)
    """By path, when the store says that an upload of this push was written."""
    _unsaved: list[StagedRow] = field(default_factory=list)
    _unsaved_bytes: int = 0

    def staged(self, units: Iterable[UnitPlan], missing: dict[str, int]) -> Iterator[tuple[str, str]]:
        """Units and paths as their bytes are known to be in the bucket; a unit without uploads comes at once."""
        actions: dict[str, Action] = {}
        known = self.context.state.staged_paths()
        for unit in units:
            if not missing[unit.unit]:
                yield unit.unit, ""
            for action in unit.actions:
                if action.verb != "push" or action.facts.local is None:
                    continue
                if action.path in known and self._reused(action):
                    yield unit.unit, action.path
                else:
                    actions[action.path] = action
        if actions:
            yield from self._uploaded(self._jobs(actions), actions)

    def _jobs(self, actions: dict[str, Action]) -> list[Upload]:
        """Two files that are small enough are packed, one is not."""
        tree = os.fspath(self.context.cache.tree)
        sizes = {path: a.facts.local.size for path, a in actions.items() if a.facts.local is not None}
        packed = self.packs and sum(size <= SMALL for size in sizes.values()) >= 2
        return [Upload(path, f"{tree}/{path}", size, packed) for path, size in sizes.items()]

    def _uploaded(self, jobs: list[Upload], actions: dict[str, Action]) -> Iterator[tuple[str, str]]:
        total = sum(j.size for j in jobs)
        executor = self.stats.executor = self.context.pick(Work("upload", len(jobs), total))
        self.context.progress.begin("pushing", len(jobs), total)
        try:
            for sent in executor.upload(jobs, self.idle_timeout):
                if not executor.reports_progress:
                    self.context.progress.advance(1, sent.size)
                action = actions.pop(sent.path, None)  # one answer counts
                if action is not None and self._accept(sent, action):
                    yield unit_of(sent.path), sent.path
        finally:
            self.save()
            self.context.progress.end()

    def _accept(self, sent: Sent, action: Action) -> bool:
        """A file whose stat changed since the plan is left for the next push: what was sent may be a mixture."""
        local = action.facts.local
        if sent.changed or local is None or (sent.hint is not None and sent.hint != local.hint):
            self.stats.fail(sent.path, "it changed while it was being pushed; the next push takes it", "changed")
        elif sent.error is not None or sent.key is None or sent.sha256 is None:
            self.stats.fail(sent.path, sent.error or "the upload failed", sent.cause)
        else:
            self._keep(StagedRow(sent.key, sent.path, sent.sha256, sent.size, self.epoch))
            self.modified[sent.path] = sent.last_modified or ""
            return True
        self.stats.unresolved.add(unit_of(sent.path))
        return False

    def _keep(self, row: StagedRow) -> None:
        self.rows[row.path] = row
        self._unsaved.append(row)
        self._unsaved_bytes += row.size
        if len(self._unsaved) >= SAVED_ROWS or self._unsaved_bytes >= SAVED_BYTES:
            self.save()

    def save(self) -> None:
        """Finished uploads are known to later attempts, and prove a commit whose answer was lost."""
        if self._unsaved:
            with self.context.state.transaction() as tx:
                tx.put_staged(self._unsaved)
            self._unsaved.clear()
            self._unsaved_bytes = 0

    def _reused(self, action: Action) -> bool:
        """An upload of an earlier attempt, if the file still holds those bytes."""
        rows = self.context.state.staged_for(action.path)
        local = action.facts.local
        if not rows or local is None:
            return False
        try:
            found = hash_file(self.context.cache.tree / action.path)
        except SwampError:
            return False  # the upload itself will report it
        row = next((r for r in rows if r.sha256 == found.sha256), None)
        if row is None or fingerprint_of(found.stat) != local.hint:
            return False
        self.rows[action.path] = row
        return True

    def release(self, paths: Iterable[str]) -> None:
        """Base knows them now: a push of any number of files holds the uploads of one commit."""
        for path in paths:
            self.rows.pop(path, None)
            self.modified.pop(path, None)

    def give_up(self, row: StagedRow) -> None:
        """An upload that a collector has taken, or is about to take."""
        with self.context.state.transaction() as tx:
            tx.drop_staged(row.key)
