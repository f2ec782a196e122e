"""Reads a part of a file where it lies: on this machine, or in the store by a ranged request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swamp.errors import NotFound, ObjectMissing
from swamp.index.keys import slice_of
from swamp.repo.contents import File

if TYPE_CHECKING:
    from swamp.repo.repository import Repo


def read_range(repo: Repo, file: File, start: int, end: int) -> bytes:
    """Bytes `start` to `end` of a file, which stays where it is; one in a pack is small: it is fetched whole, and kept.

    A range cannot be compared with the checksum of the whole: its object never changes, and the store answers for it.
    """
    path = file.path.relative_to(repo.tree.root).as_posix()
    engine = repo.datastore.engine
    row = None if engine is None or file.path.is_file() else engine.state.base(path)
    if row is not None and slice_of(row.key) is None:
        try:
            return repo.datastore.store.get(row.key, start=start, length=max(0, end - start)).body
        except ObjectMissing:
            pass  # moved since this machine last looked: fetched whole, which asks the store where it is now
    found = repo.tree.materialize(path)
    if not found.is_file():
        raise NotFound(f"{path} is not there")
    with found.open("rb") as local:
        local.seek(start)
        return local.read(max(0, end - start))
