"""Versions of the index format: which are read here, which one new stores get, and what each of them can express.

A store has the version of its root, and every commit keeps it, until somebody upgrades the store
(`swamp datastore upgrade`). What an older client could not understand, and would work against, needs a higher version:
such a client then stops instead. Versions 1 and 2 are older formats that `adopt` reads once.
"""

from __future__ import annotations

from typing import Final, Literal

from swamp.errors import CorruptData, NewerFormat

OLDEST: Final = 3
NEWEST: Final = 4
"""What new stores are made in."""
REPAIR_HINT: Final = "run: swamp datastore doctor --repair"

Feature = Literal["ignored", "slices"]
NEEDS: Final[dict[Feature, int]] = {
    "ignored": 4,  # the root says that conditions are ignored: who does not know the word would swap without a lease
    "slices": 4,  # a key names a part of an object: who does not know that would ask for an object of that name
}
"""The first version in which a store can have it."""


def allows(version: int, feature: Feature) -> bool:
    """Whether a store of this version may use `feature`."""
    return version >= NEEDS[feature]


class UnreadFormat(CorruptData):
    """A root or record of a version that no swamp of ours reads: an older client's, or nobody's."""


def check_version(version: object) -> int:
    """The version of a root or log record, if it is read here.

    Raises NewerFormat for a later one, which is never taken for damage, and CorruptData for everything else.
    inv[format.newer]
    """
    if isinstance(version, int) and OLDEST <= version <= NEWEST:
        return version
    if isinstance(version, int) and version > NEWEST:
        raise NewerFormat(
            f"the store's index has format version {version}, this swamp knows versions up to {NEWEST}",
            hint="upgrade swamp on this machine: the store is whole, a later version wrote it; nothing was changed",
            details={"version": version, "known": NEWEST},
        )
    raise UnreadFormat(
        f"the index has version {version!r}, this swamp reads versions {OLDEST} to {NEWEST}",
        hint=REPAIR_HINT,
        details={"version": version if isinstance(version, int | str) else None},
    )
