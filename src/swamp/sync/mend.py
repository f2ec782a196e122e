"""What vanished from the tree unannounced comes back: with the next pull, or for whoever reads it. inv[tree.damage]"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from swamp.cache.damage import GONE, look_for_damage, remember_whole
from swamp.cache.rows import Transaction
from swamp.errors import SwampError
from swamp.index.entry import Entry
from swamp.sync.record import Parts
from swamp.sync.units import is_content
from swamp.sync.view import as_entry
from swamp.values import value


@value
class Mender:
    """Looks after the files that one cache is proven to hold. `fetch` brings one of them again."""

    parts: Parts
    fetch: Callable[[str], object]

    def missing(self, prefix: str = "") -> Sequence[str]:
        """Files that belong here and are gone, though nobody deleted them."""
        return look_for_damage(self.parts.state, self._tree, self.parts.now_ns(), (prefix,)).missing

    def missing_at(self, path: str) -> Sequence[str]:
        """The same of one file, or of everything below a directory."""
        state = self.parts.state
        base = state.base(path)
        if base is None:
            return self.missing(path)
        gone = base.present and not os.path.lexists(self._tree / path)
        return [path] if gone and not state.deleted_among([path]) else []

    def bring_back(self, prefix: str) -> None:
        """Fetches metadata and records below `prefix` that vanished; what the store cannot give now is owed."""
        for path in self.missing(prefix):
            if is_content(path):
                continue  # fetched by who reads it
            try:
                self.fetch(path)
            except SwampError as error:
                with self.parts.tree_lock.shared(self.parts.lock_timeout), self.parts.state.transaction() as tx:
                    self._owe(tx, path, f"{GONE}; {error.message}")

    def note(self, prefixes: tuple[str, ...]) -> None:
        """What vanished is owed from now on, so that the pull that follows brings it back. Under `sync.lock`."""
        found = look_for_damage(self.parts.state, self._tree, self.parts.now_ns(), prefixes)
        remember_whole(self.parts.state, found)
        if found.missing:
            with self.parts.state.transaction() as tx:
                for path in found.missing:
                    self._owe(tx, path, GONE)

    def vanished(self, prefixes: tuple[str, ...]) -> dict[str, Entry]:
        """The same for a dry run: what would be owed, with what base knows of it. Writes nothing."""
        found = look_for_damage(self.parts.state, self._tree, self.parts.now_ns(), prefixes).missing
        bases = (self.parts.state.base(path) for path in found)
        return {base.path: as_entry(base) for base in bases if base is not None}

    @property
    def _tree(self) -> Path:
        return self.parts.cache.tree

    def _owe(self, tx: Transaction, path: str, why: str) -> None:
        """Only what is still so: base may have moved on, a delete may have been announced, it may be back."""
        base = tx.base(path)
        if base is None or not base.present or tx.is_deleted(path) or os.path.lexists(self._tree / path):
            return
        if tx.is_deferred(path):  # with what a newer root said of it
            return
        tx.defer(path, as_entry(base), why)
        tx.touch([path])
