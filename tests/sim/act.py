"""What the user of one process does: mutate, sync, keep the store in order; and what is acknowledged to that user."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from sim.deliver import Courier
from sim.mutate import TYPE_AND_MODEL
from sim.open import capabilities_of
from sim.oracle import Delete, Write, version_of
from sim.reading import sha_of
from sim.upgrade import is_recorded, upgrade
from swamp.cache.paths import ancestors
from swamp.commit.collect import collect
from swamp.commit.commit import Changes
from swamp.commit.repack import compact, empty
from swamp.commit.restore import undelete
from swamp.errors import ConditionFailed, CorruptData, LockTimeout, SwampError
from swamp.index.entry import object_of, slice_of
from swamp.index.root import Root
from swamp.locks.decide import Holder, model_key
from swamp.locks.leases import StoreLeases, Terms
from swamp.sync.progress import IdleTimeout
from swamp.sync.result import SyncResult
from swamp.sync.units import unit_of
from swamp.sync.verify import verify

SYNCING = frozenset({"push", "pull", "sync", "full", "scoped", "lease"})
"""What may undo a delete: its user is told, or excused. A read never does."""


class Process(Courier):
    """One process of a machine: an open engine and the acts of its user."""

    def act(self) -> None:
        """One operation, chosen by the seed. A refusal is fine; what it leaves behind is checked elsewhere."""
        names, weights = zip(*self.world.mix.weights.items(), strict=True)
        name = self.rng.choices(names, weights)[0]
        self.world.operations[name] += 1
        self.scheduler.note(f"-- {name}")
        self.world.acting += 1
        try:
            getattr(self, f"do_{name}")()
        except ConditionFailed as error:
            self.world.fail("commit.unknown-is-not-failure", f"{name} gave up because somebody was faster: {error}")
        except SwampError as error:
            if self.world.mix.lies and isinstance(error, CorruptData):
                self.world.fail("read.twice", f"{name} called a sound store damaged: {error}")
            self.world.refusals[f"{name}: {type(error).__name__}"] += 1
            self.scheduler.note(f"{name} refused: {self.world.said(error)}")
            if name in SYNCING:
                self.excuse_deletes()
        finally:
            self.world.acting -= 1
        if self.rng.random() < 0.2:
            self.check_journal()

    def check_journal(self) -> None:
        """What is here and was never in the bucket is announced, or a full comparison is due. inv[journal.first]"""
        state = self.engine.state
        if state.meta("pulledOp") is None or self.world.recreated is not None:
            return
        rows = {row.path for row in state.journal()}
        for path in sorted(self.oracle.writes):
            last = self.last_act(path)
            if not isinstance(last, Write) or last.done is None or last.lost or last.sha in self.oracle.ever_live[path]:
                continue
            if self.holds(path, last.sha) and not rows.intersection((path, *ancestors(path))):
                self.world.fail("journal.first", f"{path}: {last.sha[:8]} is unpushed and no row says so")

    # -- sync

    def do_push(self) -> None:
        if self.engine.committer.enforced:
            self.synced(lambda: self.engine.push())
        else:  # as a command does that pulls first, and believes the log's names
            self.told(self.engine.before_commit().pull())
            self.synced(lambda: self.engine.push(after_pull=True))

    def do_sync(self) -> None:
        self.synced(lambda: self.engine.sync())

    def do_full(self) -> None:
        self.synced(lambda: self.engine.sync(full=True))

    def do_pull(self) -> None:
        self.told(self.engine.pull())

    def do_scoped(self) -> None:
        scope = self.rng.choice(("files", "files/d", TYPE_AND_MODEL))
        if self.rng.random() < 0.5:
            self.told(self.engine.pull((scope,)))
        else:
            self.synced(lambda: self.engine.push((scope,)), scope)

    def do_read(self) -> None:
        """A read takes in what harms nobody: what somebody announced stays as it is, and no mark moves."""
        read = self.engine.committer.read()
        if read.root is None:
            return
        before = self._announced()
        result = self.engine.refresh(read)
        self.scheduler.note(f"read: pulled {result.files_pulled} failed {[f.path for f in result.failed]}")
        if len(self.peer.actors) > 1:
            return  # whatever has changed may be another process's doing
        if self._announced() != before or result.conflicts:
            self.world.fail("read.harmless", f"a read changed what was announced: {before} -> {self._announced()}")

    def _announced(self) -> tuple[str | None, list[int], dict[str, bytes | None]]:
        """The mark, the journal, and what is at the paths that it names."""
        state, rows = self.engine.state, self.engine.state.journal()
        here = dict(self.peer.tree())
        names = [row.path for row in rows]
        files = {p: body for p, body in here.items() if any(p == n or p.startswith(f"{n}/") for n in names)}
        missing = dict.fromkeys(n for n in names if n not in here)
        return state.meta("pulledSeq"), [row.id for row in rows], {**files, **missing}

    def do_plan(self) -> None:
        self.engine.plan("sync")

    def do_hydrate(self) -> None:
        remote = sorted(r.path for r in self.engine.remote_only())
        if remote:
            self.engine.materialize(self.rng.choice(remote))

    def do_wait(self) -> None:
        self.scheduler.sleep(self.rng.choice((1.0, 10.0, 3600.0, 40_000.0)))

    def synced(self, call: Callable[[], SyncResult], scope: str = "") -> None:
        """What this user finished before the push and is not told otherwise about is shared afterwards."""
        begun = self.scheduler.now
        result = call()
        self.told(result)
        excused = {version_of(p) or p for p in self.excuses(result)}
        for path in sorted(self.oracle.writes.keys() | self.oracle.deletes.keys()):
            if path.startswith(scope) and (version_of(path) or path) not in excused:
                self.acknowledged(path, begun, result)

    def excuses(self, result: SyncResult) -> set[str]:
        return {f.path for f in result.failed} | {c.path for c in result.conflicts} | self.peer.told

    def told(self, result: SyncResult) -> None:
        conflicts = {c.path for c in result.conflicts}
        for refused in (c.path for c in result.conflicts if c.kept == c.path and not version_of(c.path)):
            self.oracle.check_refusal(self.peer.name, refused)
        self.peer.told |= conflicts
        self.excuse_deletes(conflicts)
        summary = f"pushed {result.files_pushed} pulled {result.files_pulled} deleted {result.files_deleted}"
        failed = [f"{f.path}: {f.error}".replace(str(self.world.place), "") for f in result.failed]
        self.scheduler.note(f"{result.mode}: {summary} failed {failed} conflicts {[c.path for c in result.conflicts]}")

    def excuse_deletes(self, paths: set[str] | None = None) -> None:
        """The user knows that these deletes (or all so far) may not have happened."""
        self.oracle.excuse(self.peer.name, paths)

    def acknowledged(self, path: str, begun: float, result: SyncResult) -> None:
        last = self.last_act(path)
        if last is None or last.done is None or last.done > begun:
            return
        live = self.oracle.live.get(path)
        if isinstance(last, Delete):
            told = last.told or result.deletes_held
            if live is not None and live.sha in last.seen and not told and self.oracle.knew(last, live.key):
                self.world.fail("delete.intent", f"{path}: its delete was acknowledged and it is still there")
        elif live is not None and live.sha == last.sha:
            self.oracle.acked.add((path, live.key))
        elif not last.lost and last.sha not in self.oracle.ever_live[path] and self.holds(path, last.sha):
            self.world.fail("journal.survives", f"{path}: {last.sha[:8]} was acknowledged and is not in the bucket")

    def last_act(self, path: str) -> Write | Delete | None:
        mine: list[Write | Delete] = [w for w in self.oracle.writes[path] if w.peer == self.peer.name]
        mine += [d for d in self.oracle.deletes[path] if d.peer == self.peer.name]
        return max(mine, key=lambda e: e.at, default=None)

    # -- the store's own upkeep

    def pace(self) -> Callable[[], None]:
        return IdleTimeout(self.peer.env, 300.0).check

    def do_collect(self) -> None:
        keep = dt.timedelta(seconds=self.world.mix.keep_s)
        done = collect(self.engine.committer, self.pace(), keep=keep)
        self.scheduler.note(f"collected {done}")

    def do_compact(self) -> None:
        root = self.oracle.root
        listed = [s.key for s in root.segments] if root else []
        some = frozenset(k for k in listed if self.rng.random() < 0.7) if self.rng.random() < 0.6 else None
        done = compact(self.engine.committer, self.pace(), keys=some)
        self.scheduler.note(f"compacted {done}")

    def do_undelete(self) -> None:
        dead = sorted(self.oracle.tombstones())
        if not dead:
            return
        path = self.rng.choice(dead)
        self.oracle.undeleting(version_of(path) or path)
        done = undelete(self.engine.committer, self.pace(), [path], unit_of)
        self.scheduler.note(f"undeleted {path}: {done}")

    def do_move(self) -> None:
        """What is alive in a pack moves to another one: its identity and number stay. A root that has moved on
        meanwhile keeps what it has made of a path."""
        packs = sorted({object_of(live.place) for live in self.oracle.live.values() if slice_of(live.place)})
        if packs:
            taken = self.rng.choice(packs)
            done = empty(self.engine.committer, self.pace(), [taken])
            self.scheduler.note(f"moved {done.rows} files of {taken}")

    def do_verify(self) -> None:
        """Every payload is read; what this machine has the bytes of is uploaded again, the rest is marked."""
        found = verify(self.engine.context, IdleTimeout(self.peer.env, 300.0), threads=1, repair=True)
        self.scheduler.note(f"verified: healed {found.healed} missing {found.missing}")

    def do_rot(self) -> None:
        """The bucket loses a payload that some machine still holds."""
        held = {(p, sha_of(body)) for peer in self.world.peers if not peer.lazy for p, body in peer.tree()}
        alive = sorted(self.oracle.live.items())
        kept = {object_of(live.place) for path, live in alive if (path, live.sha) not in held}
        lost = sorted({object_of(live.place) for _, live in alive} - kept)
        if lost:
            key = self.rng.choice(lost)
            self.scheduler.note(f"ROT of {key}")
            self.world.bucket.objects.pop(key, None)

    def do_hostile(self) -> None:
        """A broken client condemns what is not garbage: the root, a lease, live payloads, another tool's objects."""
        others = [key for key in self.world.bucket.objects if not key.startswith("_index/log/")]
        listed = self.rng.sample(others, min(len(others), 6))
        self.scheduler.note(f"HOSTILE collecting {listed}")

        def propose(root: Root) -> Changes | None:
            return Changes(collecting=tuple(sorted({*root.collecting, *listed, "../outside"})))

        self.engine.committer.commit(propose, self.pace())

    def do_stranger(self) -> None:
        """Another tool writes again under a plain key that nothing of ours names any more."""
        named = {live.place for live in self.oracle.live.values()}
        free = [key for key in self.world.mix.foreign if key in self.oracle.left_at and key not in named]
        if free:
            key, body = self.rng.choice(free), b"stranger %07d" % self.world.unique()
            self.scheduler.note(f"STRANGER writes {key}")
            self.world.bucket.replace(key, body)
            self.oracle.strangers[key] = sha_of(body)

    def do_damage(self) -> None:
        """Somebody overwrites or removes the root by other means: an old client, a careless hand."""
        if self.oracle.newer is not None:
            known = is_recorded(self.oracle)
        else:
            known = self.oracle.root is not None and self.oracle.newest_logged() is not None
        if known and self.world.acting == 1:  # a commit between its swap and its log record has nobody to tell it
            self.scheduler.note("DAMAGE to the root")
            self.oracle.damage(self.rng.random() < 0.5)

    def do_newer(self) -> None:
        """Somebody upgrades the store to a format that nobody here knows."""
        if self.world.acting > 1 or self.oracle.newer is not None or self.oracle.damaged or self.oracle.root is None:
            return
        if self.oracle.newest_logged() is not None:
            self.scheduler.note("UPGRADE to a format that nobody here knows")
            upgrade(self.oracle, recorded=self.rng.random() < 0.5)

    def do_recreate(self) -> None:
        """The bucket is emptied and created anew: no cache may take that for a wish to lose its files."""
        if self.world.recreated is None and self.world.acting == 1:  # nobody is in the middle of anything
            self.scheduler.note("RECREATE the bucket")
            self.world.recreate()

    def do_lease(self) -> None:
        """A model's lease around a pull, a write and a push, as every run; renewed now and then, sometimes outlived."""
        holder = Holder("sim", self.peer.name, 1)
        terms = Terms(renew_s=0)
        client = StoreLeases(
            self.world.store(self.peer),
            holder,
            self.peer.env,
            timeout_s=90,
            inherited=(),
            terms=terms,
            capabilities=capabilities_of(self.world, self.peer),
        )
        with client.acquire(model_key("t", "m")) as lease:
            for _ in range(self.rng.randint(1, 3)):
                self.scheduler.sleep(self.rng.choice((1.0, 9.0, 40.0)))
                lease.renew_once()
            try:
                lease.check()
            except LockTimeout:
                self.scheduler.note("the lease was lost")
                return
            # Nobody claims a version number without knowing which ones there are (`repo/transaction.py`).
            self.told(self.engine.before_commit().pull((TYPE_AND_MODEL,)))
            self.do_version()
            self.do_push()
