"""Which data has had its time: decisions only, nothing is removed here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swamp.cache.files import on_disk
from swamp.data.names import METADATA, DataName, VersionRef, parse_version

if TYPE_CHECKING:
    from swamp.data.versions import DataVersion, VersionReader

ABANDONED: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What a collection removed, or would remove."""

    versions: tuple[VersionRef, ...]
    size: int
    leftovers: int
    dry_run: bool

    def to_json(self) -> dict[str, object]:
        return {
            "versionsDeleted": len(self.versions),
            "bytesReclaimed": self.size,
            "leftoversDeleted": self.leftovers,
            "dryRun": self.dry_run,
        }


def doomed(versions: Sequence[DataVersion], now: dt.datetime, run_over: Callable[[str], bool]) -> list[DataVersion]:
    """Of one name's versions, newest first, those that may go: all if its life is over, else what it keeps no more."""
    if not versions:
        return []
    newest = versions[0]
    if life_is_over(newest, now, run_over):
        return list(versions)
    retention = newest.meta.draft.retention
    if retention.keep is not None:
        return list(versions[max(retention.keep, 1) :])
    span = retention.span or dt.timedelta.max
    return [version for version in versions[1:] if _older(version, now, span)]


def life_is_over(newest: DataVersion, now: dt.datetime, run_over: Callable[[str], bool]) -> bool:
    """A span counts from the newest version; `ephemeral`, `job`, `workflow` end with their run."""
    lifetime = newest.meta.draft.lifetime
    if lifetime.span is not None:
        return _older(newest, now, lifetime.span)
    run_id = newest.meta.owner.workflow_run_id
    if lifetime.text in ("ephemeral", "job", "workflow") and run_id:
        return run_over(run_id)
    return lifetime.text == "ephemeral"


def _older(version: DataVersion, now: dt.datetime, span: dt.timedelta) -> bool:
    return now - version.meta.created > span


def hidden(reader: VersionReader, data: DataName, unknown: Collection[DataName]) -> bool:
    """Whether a name was soft-deleted, or forwards to a name that is gone. Of names in `unknown` nobody can say it."""
    newest = reader.newest(data)
    if newest is None or newest.meta.active or data in unknown:
        return False
    if newest.meta.renamed_to is None:
        return True
    target = data.sibling(newest.meta.renamed_to)
    return reader.newest(target) is None and target not in unknown


def abandoned(root: Path, data: DataName, now: dt.datetime) -> list[VersionRef]:
    """Version directories that never got metadata and that nobody has touched for a day."""
    found = []
    with on_disk("read", data.path):
        for directory in sorted((root / data.path).iterdir()):
            number = parse_version(directory.name)
            if number is not None and not (directory / METADATA).exists() and _idle(directory, now):
                found.append(data.at(number))
    return found


def _idle(directory: Path, now: dt.datetime) -> bool:
    newest = max(path.stat().st_mtime for path in (directory, *directory.rglob("*")))
    return now.timestamp() - newest > ABANDONED.total_seconds()
