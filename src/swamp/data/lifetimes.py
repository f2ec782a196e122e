"""How long data lives, how many versions of it stay, and which have had their time. Nothing is removed here."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swamp.cache.files import on_disk
from swamp.data.names import METADATA, DataName, VersionRef, parse_version
from swamp.errors import UsageError
from swamp.values import value

if TYPE_CHECKING:
    from swamp.data.versions import DataVersion, VersionReader

NAMED: Final = ("infinite", "ephemeral", "job", "workflow")
KEEP_DEFAULT: Final = 10
_DURATION = re.compile(r"([1-9][0-9]{0,8})(mo|m|h|d|w|y)\Z")
_UNIT: Final = {
    "m": dt.timedelta(minutes=1),
    "h": dt.timedelta(hours=1),
    "d": dt.timedelta(days=1),
    "w": dt.timedelta(weeks=1),
    "mo": dt.timedelta(days=30),
    "y": dt.timedelta(days=365),
}


def parse_duration(text: str) -> dt.timedelta | None:
    """`90m`, `2w`, `1mo`: the span it stands for, None if it is not one."""
    match = _DURATION.match(text)
    if match is None:
        return None
    try:
        return int(match[1]) * _UNIT[match[2]]
    except OverflowError:
        return dt.timedelta.max


@value
class Lifetime:
    """`infinite`, `ephemeral`, `job`, `workflow`, or a span from the newest version's creation."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Lifetime:
        if text in NAMED or parse_duration(text) is not None:
            return cls(text)
        raise UsageError(
            f"{text!r} is not a lifetime",
            hint=f"allowed: {', '.join(NAMED)}, or a number with m, h, d, w, mo or y such as `30d`",
        )

    @property
    def span(self) -> dt.timedelta | None:
        return parse_duration(self.text)

    def __str__(self) -> str:
        return self.text


@value
class Retention:
    """Which older versions stay: the newest `keep` ones, or those younger than `span`. The newest always stays."""

    keep: int | None = None
    span: dt.timedelta | None = None
    text: str = ""

    @classmethod
    def parse(cls, value: object) -> Retention:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return cls(keep=value)
        text = value if isinstance(value, str) else ""
        if text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) >= 1:
            return cls(keep=int(text))
        span = parse_duration(text)
        if span is not None:
            return cls(span=span, text=text)
        raise UsageError(
            f"{value!r} is not a garbageCollection value",
            hint="allowed: how many versions to keep (1 or more), or a span such as `30d`",
        )

    @property
    def value(self) -> int | str:
        """As it stands in metadata."""
        return self.keep if self.keep is not None else self.text


FOREVER: Final = Lifetime("infinite")
KEEP_TEN: Final = Retention(keep=KEEP_DEFAULT)


ABANDONED: Final = dt.timedelta(days=1)


@value
class Doomed:
    """A version that may go, and why, in words for who is asked."""

    version: DataVersion
    why: str

    def to_json(self) -> dict[str, object]:
        fields = self.version.fields("modelName", "name", "version", "size", "createdAt")
        return {**fields, "reason": self.why}


@value
class Reclaimed:
    """What a collection removed, or would remove, and the names that it had to leave alone."""

    found: tuple[Doomed, ...]
    leftovers: tuple[VersionRef, ...]
    dry_run: bool
    unreadable: tuple[str, ...] = ()
    """Names with a version that cannot be read: nothing of them was removed, and everything else went on (L75)."""

    @property
    def versions(self) -> tuple[VersionRef, ...]:
        return tuple(one.version.ref for one in self.found)

    @property
    def refs(self) -> tuple[VersionRef, ...]:
        return (*self.versions, *self.leftovers)

    @property
    def size(self) -> int:
        return sum(one.version.meta.size for one in self.found)

    def to_json(self) -> dict[str, object]:
        return {
            "versionsDeleted": len(self.found),
            "bytesReclaimed": self.size,
            "leftoversDeleted": len(self.leftovers),
            "dryRun": self.dry_run,
            "versions": [one.to_json() for one in self.found],
            **({"unreadable": list(self.unreadable)} if self.unreadable else {}),
        }


@value
class Times:
    """What ages are measured with: the store's clock, and when the store says that versions were written to it."""

    now: dt.datetime
    written: Callable[[Sequence[VersionRef]], Mapping[VersionRef, dt.datetime]] = lambda refs: {}


Written = Mapping["VersionRef", dt.datetime]


def doomed(versions: Sequence[DataVersion], times: Times, run_over: Callable[[str], bool]) -> list[Doomed]:
    """Of one name's versions, newest first, those that may go: all if its life is over, else what it keeps no more.

    What looks old by the clock of the machine that wrote it is old only if the store says so too. inv[age.store-clock]
    """
    first = _doomed(versions, times.now, run_over, {})
    return _doomed(versions, times.now, run_over, times.written([v.ref for v in versions])) if first else []


def _doomed(
    versions: Sequence[DataVersion], now: dt.datetime, run_over: Callable[[str], bool], written: Written
) -> list[Doomed]:
    if not versions:
        return []
    newest = versions[0]
    over = life_is_over(newest, now, run_over, written)
    if over:
        return [Doomed(version, over) for version in versions]
    retention = newest.meta.draft.retention
    if retention.keep is not None:
        why = f"only the newest {max(retention.keep, 1)} are kept"
        return [Doomed(version, why) for version in versions[max(retention.keep, 1) :]]
    span = retention.span or dt.timedelta.max
    why = f"older versions are kept for {retention.text}"
    return [Doomed(version, why) for version in versions[1:] if _older(version, now, span, written)]


def life_is_over(newest: DataVersion, now: dt.datetime, run_over: Callable[[str], bool], written: Written) -> str:
    """Why a name's life is over, or ''. A span counts from the newest version; others end with their run."""
    lifetime = newest.meta.draft.lifetime
    if lifetime.span is not None:
        return f"its lifetime of {lifetime.text} is over" if _older(newest, now, lifetime.span, written) else ""
    run_id = newest.meta.owner.workflow_run_id
    if lifetime.text in ("ephemeral", "job", "workflow") and run_id:
        return "its run is over" if run_over(run_id) else ""
    return "it is ephemeral" if lifetime.text == "ephemeral" else ""


def _older(version: DataVersion, now: dt.datetime, span: dt.timedelta, written: Written) -> bool:
    youngest = max(version.meta.created, written.get(version.ref, version.meta.created))
    return now - youngest > span


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
