"""What must be true, whatever the engine thinks: fed by the users' own acts and by every change in the bucket.

A content is known by its hash. Each user write makes a new one (or, rarely, an old one again), and carries what its
author had seen at that path. From that follows, for each step of the root, whether it was allowed:

- a path may change from c to c' only if whoever wrote c' had seen c        (nobody's work is overwritten unseen)
- a path may vanish only if somebody deleted it who had seen c, after its upload had begun       (delete.intent)
- a content that a committed delete has killed does not come back by itself                     (crash.resolved)
- every live entry's payload is there, with its bytes                           (commit.root-last, entry.keeps)
- a version is there as a whole or not at all; a record's version is there                      (unit.whole)
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.bucket import Stored
from sim.reading import LOG_PREFIX, Live, Reader, follows, name_of, sha_of
from swamp.errors import CorruptData
from swamp.index.entry import is_payload_key, object_of
from swamp.index.root import ROOT_KEY, Root, decode
from swamp.store.probe import SCRATCH


@dataclass(eq=False, slots=True)
class Write:
    """A user wrote `sha` to `path`, having seen `seen` there."""

    peer: str
    path: str
    sha: str
    at: float
    seen: frozenset[str]
    done: float | None = None
    lost: bool = False
    torn: bool = False


@dataclass(eq=False, slots=True)
class Delete:
    """A user deleted `path`, having seen `seen` there."""

    peer: str
    path: str
    at: float
    seen: frozenset[str]
    effect: bool = False
    done: float | None = None
    told: bool = False
    content: str = ""
    """The identity of what stood there, as far as its machine knew."""
    number: int = 0
    """The commit with which that came there: an undelete takes a number of its own."""


@dataclass
class Oracle(Reader):
    """Watches the bucket and the users."""

    window: float
    """Seconds for which the collector must keep what was dropped."""
    live: dict[str, Live] = field(default_factory=dict)
    root: Root | None = None
    writes: dict[str, list[Write]] = field(default_factory=lambda: defaultdict(list))
    deletes: dict[str, list[Delete]] = field(default_factory=lambda: defaultdict(list))
    ever_live: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    killed: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    put_back: set[tuple[str, str]] = field(default_factory=set)
    """Old files that somebody copied from a backup into a tree, by path and content."""
    dead_keys: set[str] = field(default_factory=set)
    left_at: dict[str, float] = field(default_factory=dict)
    acked: set[tuple[str, str]] = field(default_factory=set)
    """Paths and keys that a user was told are shared."""
    revived: set[tuple[str, str]] = field(default_factory=set)
    undeleted: dict[str, float] = field(default_factory=dict)
    restored: dict[str, float] = field(default_factory=dict)
    """When an undelete's commit brought a key back: a delete that was made before then, on the old root, is done."""
    strangers: dict[str, str] = field(default_factory=dict)
    """What another tool has written under plain keys that we had dropped."""
    roots: int = 0
    damaged: bool = False
    newer: bytes | None = None
    """The root of a later format that stands there, as this format would write it: nobody may write beside it."""
    _ended: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """Keys that each root replaced or deleted."""
    _counted: set[tuple[str, int]] = field(default_factory=set)
    """Where conditions are not enforced: the roots that have counted so far."""

    def __post_init__(self) -> None:
        self.bucket.watchers.append(self.on_change)

    # -- the users

    def wrote(self, peer: str, path: str, sha: str, seen: Iterable[str]) -> Write:
        event = Write(peer, path, sha, self.scheduler.now, frozenset(seen) | {sha})
        self.writes[path].append(event)
        return event

    def deleted(self, peer: str, path: str, seen: Iterable[str]) -> Delete:
        event = Delete(peer, path, self.scheduler.now, frozenset(seen))
        self.deletes[path].append(event)
        return event

    def excuse(self, peer: str, paths: Iterable[str] | None = None) -> None:
        """That machine's user knows that deletes of these paths' units (or all so far) may not have happened."""
        units = None if paths is None else {version_of(p) or p for p in paths}
        for path, events in self.deletes.items():
            for event in events:
                event.told |= event.peer == peer and (units is None or (version_of(path) or path) in units)

    # -- the bucket

    def on_change(self, key: str, before: Stored | None, after: Stored | None) -> None:
        if not self.bucket.conditions and (key == ROOT_KEY or key.startswith(LOG_PREFIX)):
            self._on_unconditional()
        elif key == ROOT_KEY:
            self._on_root(after)
        elif key.endswith(".lock"):
            if not self.bucket.conditions:
                return  # any write of a lease may land at any time: what commits make of it is what counts
            self._on_lease(key, before, after)
        elif after is None:
            if before is not None and self.strangers.get(key) == sha_of(before.body):
                self.fail("gc.plain-unchanged", f"{key}, which another tool wrote after we dropped it, was deleted")
            self._on_delete(key)
        elif before is None and key.endswith(".parquet"):
            self.bucket.begun.setdefault(key, (self.scheduler.now, ""))
        elif before is not None and before.body != after.body and not key.startswith("."):
            self.fail("object.key-once", f"{key} was written twice with different bytes")

    def _on_root(self, after: Stored | None) -> None:
        if self.newer is not None:
            self.fail("format.newer", "a root was written over one of a later format")
        if after is None:
            self.fail("commit.root-last", "the root was deleted")
        try:
            root = decode(after.body)
        except CorruptData:
            self.fail("commit.root-last", "a root was written that cannot be read")
        if self.damaged:
            self.damaged = False
            self.forget_unlogged(root)
        if self.root is not None and root.seq <= self.root.seq:
            self.fail("commit.single-winner", f"root {root.seq} after root {self.root.seq}")
        self._step(root, self.live_of(root))

    def _on_unconditional(self) -> None:
        """A store without conditions: any root may be put back by a late write. What counts is the root that stands
        there if it follows the newest log record, else that record: whoever commits next has to put it back."""
        root = self.counting()
        if root is None or (self.root is not None and name_of(root) == name_of(self.root)):
            return
        if name_of(root) in self._counted:
            self._fall_back(root)  # it stands again: its steps were looked at when it first did
            return
        if self.root is not None and not follows(root, self.root):
            self._fall_back(self.logged_before(root))
        self._step(root, self.live_of(root))
        self._counted.add(name_of(root))

    def _step(self, root: Root, new: dict[str, Live]) -> None:
        old = self.live
        changed = [p for p in sorted(old.keys() | new.keys()) if old.get(p) != new.get(p)]
        for path in changed:
            self._check_path(path, old.get(path), new.get(path))
            self._check_tombstone(root, path, old.get(path))
        self._ended[name_of(root)] = {old[p].key for p in changed if p in old and not _same(old.get(p), new.get(p))}
        self._check_units(new, changed)
        if len({path.lower() for path in new}) < len(new):
            self.fail("coexist.unit", "two paths of the root are one on some machine")
        listed = {s.key for s in root.segments}
        for segment in self.root.segments if self.root else ():
            if segment.key not in listed:
                self.left_at[segment.key] = self.scheduler.now
        self.root, self.live = root, new
        self.roots += 1

    def _check_path(self, path: str, old: Live | None, new: Live | None) -> None:
        now = self.scheduler.now
        if old is not None:
            self.left_at[object_of(old.place)] = now
        if new is not None and _same(old, new):  # only moved, healed or marked
            self._check_payload(path, new)
            return
        if old is not None:
            self.dead_keys.add(old.key)
        if new is None:
            assert old is not None
            self._check_intent(path, old)
            self.killed[path, old.sha] = self.begun(old.key)
            return
        self._check_payload(path, new)
        if new.key in self.dead_keys and new.key not in self.undeleted:
            self.fail("crash.resolved", f"{path}: the dropped key {new.key} is live again")
        self.dead_keys.discard(new.key)
        if new.key in self.undeleted:
            self.restored[new.key] = self.scheduler.now
        if old is None:
            self._check_rebirth(path, new)
        elif old.sha != new.sha and not self._saw(path, new.sha, old.sha):
            self.fail("commit.single-winner", f"{path}: {_s(new.sha)} replaced {_s(old.sha)} unseen")
        self.ever_live[path].add(new.sha)

    def _check_tombstone(self, root: Root, path: str, old: Live | None) -> None:
        """It says where that lay which it has deleted, so that it can be brought back. inv[pack.place-now]"""
        tomb = root.deleted.get(path)
        if old is not None and tomb is not None and tomb.seq == root.seq and tomb.key != old.place:
            self.fail("pack.place-now", f"{path}: the tombstone names {tomb.key}, which was moved to {old.place}")

    def check_refusal(self, peer: str, path: str) -> None:
        """A delete was refused: then what is there is not what its user deleted. inv[pack.identity]

        The newest one counts: it names no content where its cache had lost its state, and nobody can know it then.
        """
        mine = [d for d in self.deletes[path] if d.peer == peer]
        live = self.live.get(path)
        if not mine or live is None or mine[-1].content != live.key:
            return
        if mine[-1].number < live.number:
            return  # it was deleted and brought back meanwhile, and this machine had not seen that
        if max(self.undeleted.get(live.key, -1.0), self.restored.get(live.key, -1.0)) < mine[-1].at:
            self.fail("pack.identity", f"{path}: the delete of {live.key} was refused, and nobody has changed it")

    def _check_intent(self, path: str, old: Live) -> None:
        sent, uploader = self.begun(old.key)
        back = self.undeleted.get(old.key, 0.0)
        # Who uploads may have read the file long before the attempt that arrived: its own user deletes what was read.
        own = [w.at for w in self.writes[path] if (w.peer, w.sha) == (uploader, old.sha) and w.at <= sent]
        read = max(own, default=sent)
        if not any(
            old.sha in d.seen and d.at >= max(read if d.peer == uploader else sent, back) for d in self.deletes[path]
        ):
            self.fail("delete.intent", f"{path}: {_s(old.sha)} ({old.key}) vanished and nobody deleted it")

    def _check_rebirth(self, path: str, new: Live) -> None:
        killed = self.killed.get((path, new.sha))
        if killed is None or (path, new.sha) in self.revived or new.key in self.undeleted:
            return
        begun, author = killed
        _, uploader = self.begun(new.key)
        own = (w for w in self.writes[path] if w.sha == new.sha and w.peer == uploader)
        if not any(w.at > begun or w.peer != author for w in own):  # not a write of its own: the dead one again
            self.fail("crash.resolved", f"{path}: {_s(new.sha)} was deleted and has risen from the dead")

    def _saw(self, path: str, new: str, old: str) -> bool:
        """Who put an old file back by hand, over what this machine knew, has decided it: the table pushes `found`."""
        return (path, new) in self.put_back or any(w.sha == new and old in w.seen for w in self.writes[path])

    def _check_payload(self, path: str, new: Live) -> None:
        body = self.body_at(new.place)
        if body is None:
            self.fail("commit.root-last", f"{path} names {new.place}, which is not there")
        if sha_of(body) != new.sha:
            self.fail("commit.root-last", f"{path} names {new.place}, which has other bytes")
        if not any(w.sha == new.sha for w in self.writes[path]):
            self.fail("journal.first", f"{path} holds bytes that nobody finished writing: {body[:40]!r}")

    def _check_units(self, new: Mapping[str, Live], changed: list[str]) -> None:
        """Metadata names the parts of its version; a record names its version. inv[unit.whole]"""
        units = {version_of(p) for p in changed} - {""}
        for unit in sorted(units):
            here = {p: e.sha for p, e in new.items() if version_of(p) == unit}
            if here and here != self._promised(unit, here, new):
                self.fail("unit.whole", f"{unit} is not whole: {sorted(here)}")
        for path in changed:
            if path.startswith("outputs/") and path in new:
                named = _read(self.body_at(new[path].place) or b"").get("path", "")
                gone = any(d.path.startswith(named + "/") for ds in self.deletes.values() for d in ds)
                if named and f"{named}/metadata.yaml" not in new and not gone:
                    self.fail("unit.whole", f"{path} names {named}, which is not there")

    def _promised(self, unit: str, here: Mapping[str, str], new: Mapping[str, Live]) -> dict[str, str] | None:
        meta = f"{unit}/metadata.yaml"
        if meta not in here:
            return None
        for event in self.writes[meta]:
            if event.sha == here[meta] and event.torn:
                return dict(here)
        body = self.body_at(new[meta].place)
        if body is None:
            return None
        parts = _read(body).get("parts", {})
        return {meta: here[meta], **{f"{unit}/{name}": sha for name, sha in parts.items()}}

    def _on_delete(self, key: str) -> None:
        now = self.scheduler.now
        if key.startswith(SCRATCH):
            return
        if self.newer is not None:
            self.fail("format.newer", f"{key} was collected beside a root of a later format")
        if any(object_of(e.place) == key for e in self.live.values()):
            self.fail("entry.keeps", f"the payload {key} of a live entry was deleted")
        if self.root is not None and any(s.key == key for s in self.root.segments):
            self.fail("entry.keeps", f"the segment {key} that the root names was deleted")
        if key.startswith(LOG_PREFIX):
            return
        if not is_payload_key(key) and not key.startswith(("_index/", "_packs/")) and key not in self.left_at:
            self.fail("entry.keeps", f"{key}, which another tool put there, was deleted")
        since = max(self.left_at.get(key, 0.0), self.begun(key)[0])
        if now - since < self.window - 2:
            self.fail("gc.window", f"{key} was collected {now - since:.0f} s after it was dropped")

    def _on_lease(self, key: str, before: Stored | None, after: Stored | None) -> None:
        """`epoch` only grows, and nobody takes a lease that was renewed within a TTL by the store's clock."""
        if before is None:
            return
        if after is None:
            self.fail("lease.no-clock", f"{key} was deleted")
        old, new = json.loads(before.body), json.loads(after.body)
        if new["epoch"] <= old["epoch"]:
            self.fail("lease.no-clock", f"{key}: epoch {new['epoch']} after {old['epoch']}")
        young = self.scheduler.now - before.modified < old["ttlMs"] / 1000 - 1
        if old["state"] == "held" and new["nonce"] != old["nonce"] and young:
            self.fail("lease.no-clock", f"{key} was taken from a living holder")

    def damage(self, remove: bool) -> None:
        """The root is overwritten by something else, or gone; nobody is told."""
        self.damaged = True
        # A late create-only PUT would find its condition true again: then the root is older than what was pulled,
        # every machine refuses to go on, and a person runs the doctor. Not what is to be shown here.
        self.bucket.forget_under_way(f"PUT {ROOT_KEY}")
        if remove:
            self.bucket.objects.pop(ROOT_KEY, None)
        else:
            self.bucket.replace(ROOT_KEY, b'{"version": 3, "seq"')

    def recreated(self) -> None:
        """A new bucket knows nothing."""
        self.bucket.objects.clear()
        self.bucket.under_way.clear()
        self.root, self.live, self.damaged = None, {}, False
        self.ever_live.clear()
        self.killed.clear()
        self.acked.clear()

    def tombstones(self) -> set[str]:
        """Paths that the newest layer calls deleted."""
        return set(self.root.deleted) if self.root else set()

    def undeleting(self, unit: str) -> None:
        """Somebody asks for what was deleted: it may come back from now on, and older deletes no longer count."""
        assert self.root is not None
        for path, tomb in self.root.deleted.items():
            if (version_of(path) or path) == unit:
                self.undeleted[tomb.id or tomb.key] = self.scheduler.now

    def forget_unlogged(self, rebuilt: Root) -> None:
        """The root was lost: what counts is the newest log record. inv[commit.logged]"""
        logged = self.newest_logged()
        assert logged is not None
        if rebuilt.seq <= logged.seq:
            self.fail("commit.single-winner", f"root {rebuilt.seq} was rebuilt beside the record of {logged.seq}")
        self._fall_back(logged)

    def _fall_back(self, logged: Root | None) -> None:
        """What came after `logged` never counted, and nobody may have been told that it did."""
        kept = self.live_of(logged) if logged else {}
        ended = set().union(*(self._ended.get(name, set()) for name in logged.recent_ops)) if logged else set()
        for path, entry in self.live.items():
            same = _same(kept.get(path), entry)
            if not same and (path, entry.key) in self.acked and entry.key not in ended:
                self.fail("commit.logged", f"{path}: {entry.key} was acknowledged and is in no log record")
            if not same:
                self.ever_live[path].discard(entry.sha)
        for path in kept.keys() - self.live.keys():
            self.killed.pop((path, kept[path].sha), None)
        for path, entry in kept.items():
            self.dead_keys.discard(entry.key)
            self.ever_live[path].add(entry.sha)
        self.root, self.live = logged, kept

    def begun(self, key: str) -> tuple[float, str]:
        """When the bytes of a payload were read, and by which machine."""
        return self.bucket.begun.get(object_of(key), (0.0, ""))

    def knew(self, event: Delete, key: str) -> bool:
        """Whether a delete was of this very payload: its machine had sent or fetched it before."""
        if max(self.undeleted.get(key, -1.0), self.restored.get(key, -1.0)) > event.at:
            return False
        at, author = self.begun(key)
        fetched = self.bucket.fetched.get((event.peer, object_of(key)))
        return (author == event.peer and at < event.at) or (fetched is not None and fetched < event.at)


def _same(one: Live | None, other: Live | None) -> bool:
    """The same content at a path, wherever it lies."""
    return one is not None and other is not None and (one.key, one.sha) == (other.key, other.sha)


def _read(body: bytes) -> dict[str, Any]:
    """A document of a user; one that died in the middle of writing it left half of it."""
    try:
        doc: dict[str, Any] = json.loads(body)
    except ValueError:
        return {}
    return doc


def version_of(path: str) -> str:
    """The version directory that a path of this simulation belongs to, or ''."""
    parts = path.split("/")
    return "/".join(parts[:5]) if parts[0] == "data" and len(parts) > 5 else ""


def _s(sha: str) -> str:
    return sha[:8]
