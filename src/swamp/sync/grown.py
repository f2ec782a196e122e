"""Finds what base must have been of a file that only grows, where this cache has lost its state."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Final

from swamp.cache.rows import BaseRow
from swamp.errors import ObjectMissing
from swamp.index.entry import Entry
from swamp.index.pack import read_payload
from swamp.store.port import ObjectStore
from swamp.sync.decide import Facts

GROWING: Final = "audit/"
LARGEST: Final = 16 << 20


def grown(facts: list[Facts], tree: Path, store: ObjectStore) -> list[Facts]:
    """The same, with the shorter side as base where the longer one begins with it: then one side has added lines and
    the other has not, and that is no conflict. Only for audit files, which nobody ever changes in another way."""
    return [
        _with_base(f, tree, store) if f.local is not None and f.base is None and f.path.startswith(GROWING) else f
        for f in facts
    ]


def _with_base(facts: Facts, tree: Path, store: ObjectStore) -> Facts:
    local, remote = facts.local, facts.remote
    if local is None or not isinstance(remote, Entry):
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
        known = BaseRow(remote.path, remote.key, remote.size, remote.sha256, remote.seq, present=True)
        return replace(facts, base=replace(known, id=remote.id, id_seq=remote.id_seq), sha256=sha256)
    return facts
