"""One record per won commit: the exact bytes of its root, under a name that says which. A lost root comes back."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, Literal

from swamp.env import Env
from swamp.errors import ConditionFailed, CorruptData, ObjectMissing
from swamp.index.read import read_root, read_segment
from swamp.index.root import REPAIR_HINT, SEGMENT_PREFIX, Root
from swamp.store.port import CREATE, ObjectMeta, ObjectStore
from swamp.store.retry import put_again
from swamp.values import value

LOG_PREFIX: Final = SEGMENT_PREFIX + "log/"
_ATTEMPTS: Final = 6
_LOOKED_AT: Final = 16


@value
class LogName:
    """What a log record's key says: `_index/log/<seq, 12 digits>-<op>.json`."""

    key: str
    seq: int
    op: str
    meta: ObjectMeta


@value
class Ages:
    """When commits happened by the store's clock. A commit whose record is gone is as young as the next later one."""

    now: dt.datetime
    seqs: tuple[int, ...]
    times: tuple[dt.datetime, ...]

    @classmethod
    def of(cls, records: list[LogName], now: dt.datetime) -> Ages:
        known: dict[int, dt.datetime] = {}
        for record in records:
            at = record.meta.last_modified
            known[record.seq] = max(at, known.get(record.seq, at))
        return cls(now, tuple(sorted(known)), tuple(known[seq] for seq in sorted(known)))

    def older(self, seq: int, than: dt.timedelta) -> bool:
        at = self.at(seq)
        return at is not None and self.now - at >= than

    def at(self, seq: int) -> dt.datetime | None:
        """When a commit happened, or the next later one that has a record; None when there is none."""
        place = bisect_left(self.seqs, seq)
        return self.times[place] if place < len(self.times) else None


def log_key(seq: int, op: str) -> str:
    return f"{LOG_PREFIX}{seq:012d}-{op}.json"


def put_log(store: ObjectStore, env: Env, root: Root, body: bytes) -> None:
    """Makes the record of `root` exist: same bytes whoever writes it, so being second is as good. inv[commit.logged]"""
    key = log_key(root.seq, root.op)
    with suppress(ConditionFailed):
        put_again(store, env, key, body, CREATE, attempts=_ATTEMPTS)


def names(store: ObjectStore, *, after_seq: int = 0) -> Iterator[LogName]:
    """Records of commits later than `after_seq`, oldest first."""
    start = f"{LOG_PREFIX}{after_seq:012d}~" if after_seq else None
    for page in store.list(LOG_PREFIX, start_after=start):
        for meta in page:
            digits, dash, rest = meta.key.removeprefix(LOG_PREFIX).partition("-")
            if dash and digits.isdigit() and rest.endswith(".json"):
                yield LogName(meta.key, int(digits), rest.removesuffix(".json"), meta)


def has_op(store: ObjectStore, op: str, *, after_seq: int) -> bool:
    """Whether the commit `op` is known to have won, from the log's key names alone."""
    return any(name.op == op for name in names(store, after_seq=after_seq))


LogStatus = Literal["recorded", "unrecorded", "rolled back"]


def log_status(store: ObjectStore, root: Root) -> LogStatus:
    """What the log says of a root, where conditions are not enforced and any write may land late.

    Rolled back: there is a later commit; or this one was never recorded and another was since the one it was built on:
    its writer had lost its lease, and nobody was told that it counts. Unrecorded: not known yet whether it counts.
    """
    built_on = root.recent_ops[1][1] if len(root.recent_ops) > 1 else 0
    later = [name for name in names(store, after_seq=built_on) if name.seq > built_on]
    if any(name.key == log_key(root.seq, root.op) for name in later):
        return "rolled back" if later[-1].seq > root.seq else "recorded"
    return "rolled back" if later else "unrecorded"


def is_newest(store: ObjectStore, root: Root) -> bool:
    """Whether the newest record is that of this root: where conditions are not enforced nothing later counts then,
    whatever stands at the root's key, because a root counts when it is recorded (decision 0006)."""
    return [name.key for name in names(store, after_seq=root.seq - 1)] == [log_key(root.seq, root.op)]


def newest_whole(store: ObjectStore, *, of_latest_format: bool = False, older: bool = False) -> Root | None:
    """The newest recorded root, or None when no record is whole: it can be read, its segments are there and sound.

    Where the newest record is not whole, an older one is taken only if the user agrees (`older`), because it forgets
    commits that were acknowledged: raises CorruptData. inv[rebuild.newest-record]
    A record of a later format than ours is not skipped for an older one: raises NewerFormat. Where an old client has
    gone on beside commits of a later format, raises CorruptData, or takes the newest of those. inv[format.newer]
    """
    recorded = list(names(store))
    newest = next(_whole(store, recorded), None)
    if newest is None:
        return None
    if newest.seq < recorded[-1].seq and not older:
        lost = recorded[-1].seq
        raise CorruptData(
            f"the index root is lost, and so is part of its newest record: commit {lost} cannot be read, "
            f"commit {newest.seq} can",
            hint=f"{REPAIR_HINT} (it goes back to commit {newest.seq}; "
            "who has seen later ones brings their files again)",
            details={"seq": lost, "whole": newest.seq},
        )
    later = [r for r in _beside(store, newest, recorded) if r.version > newest.version]
    if not later:
        return newest
    if not of_latest_format:
        raise _put_back(newest, later[0])
    last = max(r.version for r in later)
    return next((r for r in _whole(store, recorded) if r.version == last), None)


def _whole(store: ObjectStore, recorded: list[LogName]) -> Iterator[Root]:
    """Recorded roots whose segments are all there with their hashes, newest first."""
    sound: set[str] = set()
    for name in reversed(recorded):
        try:
            root, _ = read_root(store, key=name.key)
            for segment in root.segments:
                if segment.key in sound:
                    continue
                if read_segment(store, segment).sha256 != segment.sha256:
                    raise CorruptData(f"{segment.key} is not what was written", details={"key": segment.key})
                sound.add(segment.key)
        except (ObjectMissing, CorruptData):
            continue
        yield root


def refuse_later_formats(store: ObjectStore, root: Root) -> None:
    """Raises where the log has commits of a later format that are not in this root's past: an old client, which cannot
    read them, has put an older root in their place. inv[format.newer]

    Of the commits that `recentOps` tells, so one page of names, and nothing is read where all of them are its own.
    """
    for record in _beside(store, root, names(store, after_seq=max(root.oldest_known_seq - 1, 0))):
        if record.version > root.version:
            raise _put_back(root, record)


def _beside(store: ObjectStore, root: Root, recorded: Iterable[LogName]) -> Iterator[Root]:
    """Recorded commits that are as young as this root's history and not in it, newest first. Raises NewerFormat."""
    first, past = root.oldest_known_seq, {op for op, _ in root.recent_ops}
    beside = [name for name in recorded if name.seq >= first and name.op not in past]
    for name in reversed(beside[-_LOOKED_AT:]):
        try:
            yield read_root(store, key=name.key)[0]
        except (ObjectMissing, CorruptData):
            continue  # says nothing


def _put_back(root: Root, record: Root) -> CorruptData:
    return CorruptData(
        f"an older client has put back an index of format version {root.version}: commit {record.seq}, "
        f"of version {record.version}, is not in it",
        hint=REPAIR_HINT + " (it restores the index from the log), and upgrade that client",
        details={"version": root.version, "recorded": record.version, "seq": record.seq},
    )
