"""One record per won commit: the exact bytes of its root, under a name that says which. A lost root comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from swamp.env import Env
from swamp.errors import ConditionFailed, CorruptData, ObjectMissing, Unavailable
from swamp.index.root import SEGMENT_PREFIX, Root, decode
from swamp.store.port import CREATE, ObjectMeta, ObjectStore
from swamp.store.retry import pause_after

LOG_PREFIX: Final = SEGMENT_PREFIX + "log/"
_ATTEMPTS: Final = 6


@dataclass(frozen=True, slots=True)
class LogName:
    """What a log record's key says: `_index/log/<seq, 12 digits>-<op>.json`."""

    key: str
    seq: int
    op: str
    meta: ObjectMeta


def log_key(seq: int, op: str) -> str:
    return f"{LOG_PREFIX}{seq:012d}-{op}.json"


def put_log(store: ObjectStore, env: Env, root: Root, body: bytes) -> None:
    """Makes the record of `root` exist: same bytes whoever writes it, so being second is as good. inv[commit.logged]"""
    key = log_key(root.seq, root.op)
    for attempt in range(_ATTEMPTS):
        try:
            store.put(key, body, CREATE)
            return
        except ConditionFailed:
            return
        except Unavailable as error:
            if attempt == _ATTEMPTS - 1:
                raise
            env.clock.sleep(pause_after(error, 0.2 * 2**attempt, env))


def names(store: ObjectStore, *, after_seq: int = 0) -> Iterator[LogName]:
    """Records of commits later than `after_seq`, oldest first."""
    start = f"{LOG_PREFIX}{after_seq:012d}~" if after_seq else None
    for page in store.list(LOG_PREFIX, start_after=start):
        for meta in page:
            name = _parse(meta)
            if name is not None:
                yield name


def _parse(meta: ObjectMeta) -> LogName | None:
    digits, dash, rest = meta.key.removeprefix(LOG_PREFIX).partition("-")
    if not dash or not digits.isdigit() or not rest.endswith(".json"):
        return None
    return LogName(meta.key, int(digits), rest.removesuffix(".json"), meta)


def has_op(store: ObjectStore, op: str, *, after_seq: int) -> bool:
    """Whether the commit `op` is known to have won, from the log's key names alone."""
    return any(name.op == op for name in names(store, after_seq=after_seq))


Standing = Literal["recorded", "unrecorded", "rolled back"]


def standing(store: ObjectStore, root: Root) -> Standing:
    """What the log says of a root, where conditions are not enforced and any write may land late.

    Rolled back: there is a later commit; or this one was never recorded and another was since the one it was built on:
    its writer had lost its lease, and nobody was told that it counts. Unrecorded: not known yet whether it counts.
    """
    built_on = root.recent_ops[1][1] if len(root.recent_ops) > 1 else 0
    later = [name for name in names(store, after_seq=built_on) if name.seq > built_on]
    if any(name.key == log_key(root.seq, root.op) for name in later):
        return "rolled back" if later[-1].seq > root.seq else "recorded"
    return "rolled back" if later else "unrecorded"


def newest_whole(store: ObjectStore) -> Root | None:
    """The newest recorded root whose segments all exist, or None when there is no such record."""
    for name in reversed(list(names(store))):
        try:
            root = decode(store.get(name.key).body)
            for segment in root.segments:
                store.head(segment.key)
        except (ObjectMissing, CorruptData):
            continue
        return root
    return None
